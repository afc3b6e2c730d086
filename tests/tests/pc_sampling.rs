//! PC sampling in continuous mode, from the simulated driver through real eBPF to `parcagpu trace`.

mod pc_common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use parcagpu_abi::status::Counter;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::trace::{Events, Trace, number};
use parcagpu_tests::{artefacts, block, compilers, mock_log, need};
use pc_common::{SHORT, Sample, by_kernel, cubins, program, refusals, samples, sound, two_kernels};
use serde_json::Value;

fn rest(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// What every consumer is told, whenever it comes.
#[track_caller]
fn metadata(events: &Events) {
    let table = events.of("stall_reason_map").next().expect("a table");
    let names = table["names"].as_array().expect("names");
    assert_eq!((number(table, "count"), names.len()), (40, 40));
    assert_eq!(names[0], "smsp__pcsamp_sample_count");
    assert_eq!(names[37], "smsp__pcsamp_warps_issue_stalled_wait");
    let config = events.of("gpu_config").next().expect("a device");
    let of = |field| number(config, field);
    assert_eq!(
        (
            of("device_id"),
            of("sampling_factor"),
            of("clock_khz"),
            of("sm_count")
        ),
        (0, 20, 1_980_000, 132)
    );
    assert_eq!(cubins(events).len(), 2);
}

/// Samples that were told; those that wait for something are in two reasons.
fn samples_among(events: &[Value]) -> u64 {
    let told = events.iter().filter(|e| e["probe"] == "pc_sample_batch");
    let reasons = told.filter_map(|e| e["stall_reasons"].as_array()).flatten();
    let all: u64 = reasons.map(|reason| number(reason, "samples")).sum();
    all * 10 / 14
}

/// Both kernels are sampled, with shares like their times; a consumer may attach to a running program, leave,
/// and another come.
#[test]
fn samples_have_the_shares_of_the_kernels() {
    if !need::bpf("samples_have_the_shares_of_the_kernels") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let mut host = two_kernels(&lab, "say ready spaced 100 3600")
        .env("MOCK_LOG", &log)
        .start();
    host.wait_stdout("ready");
    let launched = || mock_log::count(&mock_log::read(&log), "cuLaunchKernel") as u64;
    rest(300);
    for later in [false, true] {
        let before = launched();
        let trace = Trace::attach(&lab, &[host.pid()]);
        // Who comes to a running program is told what samples mean a look or two after the first of them.
        trace.until("samples of both kernels, and what they mean", |events| {
            let told = |probe: &str| events.iter().filter(|e| e["probe"] == probe).count();
            let meaning = [
                ("stall_reason_map", 1),
                ("gpu_config", 1),
                ("cubin_loaded", 2),
            ];
            samples_among(events) >= 20_000 && meaning.iter().all(|(probe, n)| told(probe) >= *n)
        });
        let events = trace.end();
        let kernels = launched() - before;
        metadata(&events);
        assert_eq!(refusals(&events), []);
        let samples = sound(&events);
        let counts = by_kernel(&samples);
        let (one, three) = (counts["host_kernel0"], counts["host_kernel1"]);
        let share = three as f64 / (one + three) as f64;
        assert!((share - 0.75).abs() < 0.05, "{counts:?}");
        // A kernel has 200 samples on average; three may have been under way already. Who comes later may be told
        // of the time before, too.
        let most = (kernels + 3) * 200 + 100;
        assert!(
            later || one + three <= most,
            "{counts:?} of {kernels} kernels"
        );
        assert!(samples.iter().all(|s| s.id == 0 && s.offset < 1024));
        rest(1500);
    }
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
}

/// Kernels of the program that a user's GPU is tried with, by name: first and last line.
fn toys(source: &str) -> BTreeMap<String, (u64, u64)> {
    let mut toys = BTreeMap::new();
    let mut open: Option<(String, u64)> = None;
    for (line, text) in (1..).zip(source.lines()) {
        if let Some(rest) = text.strip_prefix("__global__ void ") {
            let name = rest.split('(').next().unwrap_or_default();
            open = Some((name.to_owned(), line));
        } else if text == "}"
            && let Some((name, first)) = open.take()
        {
            toys.insert(name, (first, line));
        }
    }
    toys
}

/// Samples lie in the machine code that the program loaded, and are resolved to the lines of its kernels.
#[test]
fn real_cubins() {
    let Some(tools) = compilers::get("real_cubins") else {
        return;
    };
    if !need::bpf("real_cubins") {
        return;
    }
    let lab = Lab::new();
    let source = artefacts::root().join("microbenchmarks/pc_sample_toy.cu");
    let source = source.to_str().expect("a plain path");
    let options = ["-cubin", "-lineinfo", "-std=c++17", "-arch=sm_90"];
    tools.nvcc(
        lab.path(),
        &[&options[..], &[source, "-o", "toy.cubin"]].concat(),
    );
    let toys = toys(&fs::read_to_string(source).expect("it was compiled"));
    assert_eq!(toys.len(), 6);
    let mangled = |name: &str| format!("_Z{}{name}PKiPii", name.len());
    let launches: String = toys
        .keys()
        .map(|name| format!("launch {} 20 ", mangled(name)))
        .collect();
    let cubin = lab.file("toy.cubin");
    // The consumer reads the code while the program lives.
    let words = format!(
        "init context cubin {} {launches} sync gate",
        cubin.display()
    );
    let trace = pc_common::attach(&lab);
    let mut host = program(&lab, &words).start();
    host.wait_gate(1);
    trace.until("samples of all kernels", |events| {
        toys.keys().all(|name| {
            let name = mangled(name);
            let own = events
                .iter()
                .filter(|e| e["probe"] == "pc_sample_batch" && e["name"] == *name);
            own.count() >= 8
        })
    });
    host.open_gate(1);
    host.wait(SHORT).ok();
    let events = trace.end();
    let samples = sound(&events);
    for (name, (first, last)) in toys {
        let own: Vec<_> = samples
            .iter()
            .filter(|s| s.name == mangled(&name))
            .collect();
        assert!(own.len() >= 8, "{name}: {} records", own.len());
        let on_line = |s: &&&Sample| {
            let file = s.event["file"].as_str().unwrap_or_default();
            let line = s.event["line"].as_u64().unwrap_or(0);
            file.ends_with("pc_sample_toy.cu") && (first..=last).contains(&line)
        };
        let placed: Vec<_> = own.iter().filter(on_line).collect();
        assert!(
            placed.len() * 2 >= own.len(),
            "{name}: {} of {}: {}",
            placed.len(),
            own.len(),
            own[0].event
        );
        let lines: BTreeSet<_> = placed.iter().map(|s| s.event["line"].as_u64()).collect();
        assert!(lines.len() >= 2, "{name}: {lines:?}");
    }
}

/// Code that was loaded before the consumer came and runs much later is told soon after its first samples; CUPTI,
/// which tells of such code at every launch, is not asked all the time.
#[test]
fn code_from_before_that_runs_late() {
    if !need::bpf("code_from_before_that_runs_late") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let modules: String = (0..5).map(|i| format!("module {i} keep {i} ")).collect();
    let runs: String = (0..5)
        .map(|i| {
            let launches = format!("launch sampled_{i} 50 sleep 100 ");
            format!("use {i} {}", launches.repeat(if i == 0 { 36 } else { 6 }))
        })
        .collect();
    let words = format!("init context {modules} gate {runs} sync");
    let mut host = program(&lab, &words).env("MOCK_LOG", &log).start();
    host.wait_gate(1);
    let trace = Trace::attach(&lab, &[host.pid()]);
    let began = Instant::now();
    host.open_gate(1);
    host.wait(SHORT).ok();
    let seconds = began.elapsed().as_secs() as usize;
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    let told: BTreeMap<u64, u64> = events
        .of("cubin_loaded")
        .map(|event| (number(event, "cubin_crc"), number(event, "time_ns")))
        .collect();
    assert_eq!(told.len(), 5);
    let mut first = BTreeMap::new();
    for sample in samples(&events) {
        first.entry(sample.crc).or_insert(sample.time);
    }
    assert!(first.keys().eq(told.keys()), "{first:?} {told:?}");
    for (crc, time) in first {
        // Of one look all samples are told at the same time; so many looks found some until the code was told.
        let until = samples(&events).into_iter().filter(|s| s.crc == crc);
        let looks: BTreeSet<u64> = until
            .map(|s| s.time)
            .filter(|time| *time < told[&crc])
            .collect();
        assert!(looks.len() <= 4, "{time} {looks:?} {told:?}");
    }
    let profiled = mock_log::read(&log);
    let switched: Vec<bool> = profiled
        .iter()
        .filter(|c| c.name == "cuptiEnableCallback" && c.arguments.ends_with(" 3 8"))
        .map(|c| c.arguments.starts_with('1'))
        .collect();
    assert!(switched.starts_with(&[true, false]), "{switched:?}");
    // Some nine seconds, of which nothing is asked most of the time.
    let most = 16 + 2 * seconds.saturating_sub(9);
    assert!(
        (4..=most).contains(&switched.len()),
        "{seconds} s: {switched:?}"
    );
}

/// The checksum function is refused at first: it is named again before the first context has code.
#[test]
fn checksums_are_ours_at_the_second_try() {
    if !need::bpf("checksums_are_ours_at_the_second_try") {
        return;
    }
    let lab = Lab::new();
    let trace = pc_common::attach(&lab);
    program(
        &lab,
        "init context module 0 launch sampled_0 100 sync sleep 300",
    )
    .env("MOCK_FAIL", "cuptiRegisterComputeCrcCallback=1@1")
    .run(SHORT)
    .ok();
    let events = trace.end();
    let told: BTreeSet<u64> = events
        .of("cubin_loaded")
        .map(|event| number(event, "cubin_crc"))
        .collect();
    let sampled: BTreeSet<u64> = samples(&events).iter().map(|s| s.crc).collect();
    assert_eq!((told.len(), &sampled), (1, &told));
}

/// Nobody asks for samples, or nobody listens: CUPTI is not asked for any.
#[test]
fn nobody_asks() {
    if !need::bpf("nobody_asks") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let host = |rate: &str| {
        let program = two_kernels(&lab, "spaced 100 1 sync").env("MOCK_LOG", &log);
        match rate {
            "" => program.without("PARCAGPU_PC_SAMPLING_RATE"),
            rate => program.env("PARCAGPU_PC_SAMPLING_RATE", rate),
        }
    };
    let calls = || {
        let calls = mock_log::read(&log);
        calls
            .iter()
            .filter(|call| call.name.starts_with("cuptiPCSampling"))
            .count()
    };
    host("100").run(SHORT).ok();
    assert_eq!(calls(), 0, "nobody listens");
    let trace = pc_common::attach(&lab);
    host("").run(SHORT).ok();
    assert_eq!(trace.end().of("pc_sample_batch").count(), 0);
    assert_eq!(calls(), 0, "nobody asks");
}

/// One program under the controller.
struct Controlled {
    lab: Lab,
    target: &'static str,
    /// Places of each kernel.
    places: &'static str,
    /// (PC, reason) pairs a second, from the sixth second on, and windows of the whole run.
    seen: (f64, u64),
}

const CONTROLLED: u64 = 18;
const SETTLED: u64 = 6;

fn control(case: &mut Controlled) {
    let script = format!("pcs:{}", case.places);
    let mut host = two_kernels(&case.lab, "say ready spaced 100 3600")
        .env("PARCAGPU_PC_SAMPLING_RATE", case.target)
        .env("MOCK_CUPTI_PC", script)
        .start();
    host.wait_stdout("ready");
    let trace = Trace::attach(&case.lab, &[host.pid()]);
    rest(SETTLED * 1000);
    let began = Instant::now();
    let lost = time_without_looks(host.pid(), &case.lab, CONTROLLED - SETTLED);
    let observed = began.elapsed();
    let windows = block::counter(host.pid(), &case.lab.library(), Counter::PcWindows);
    let events = trace.end();
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
    assert_eq!(refusals(&events), []);
    let samples = samples(&events);
    let end = samples.last().expect("samples").time;
    let from = end.saturating_sub(observed.as_nanos() as u64);
    let settled = samples.iter().filter(|s| s.time > from);
    let pairs: usize = settled.map(|s| s.reasons.len()).sum();
    case.seen = (pairs as f64 / (observed - lost).as_secs_f64(), windows);
}

/// Watches a process for so many seconds. What of it our thread, which looks every tenth of a second, stood still.
fn time_without_looks(pid: u32, lab: &Lab, seconds: u64) -> Duration {
    const SLOW: Duration = Duration::from_millis(250);
    let looks = || block::counter(pid, &lab.library(), Counter::Looks);
    let (began, mut lost) = (Instant::now(), Duration::ZERO);
    let (mut at, mut seen) = (began, looks());
    while began.elapsed() < Duration::from_secs(seconds) {
        rest(500);
        let (now, count) = (Instant::now(), looks());
        let accounted = SLOW * u32::try_from(count - seen).expect("few looks");
        lost += (now - at).saturating_sub(accounted);
        (at, seen) = (now, count);
    }
    lost
}

/// The controller holds its target where the hardware delivers more; without one it takes every fiftieth
/// interval.
#[test]
fn the_controller_holds_its_target() {
    if !need::bpf("the_controller_holds_its_target") {
        return;
    }
    let case = |target, places| Controlled {
        lab: Lab::new(),
        target,
        places,
        seen: (0.0, 0),
    };
    let mut cases = [case("100", "2"), case("1000", "32"), case("0", "8")];
    std::thread::scope(|scope| {
        for case in &mut cases {
            scope.spawn(|| control(case));
        }
    });
    let [hundred, thousand, fixed] = cases.map(|case| case.seen);
    assert!((hundred.0 / 100.0 - 1.0).abs() < 0.25, "{hundred:?}");
    assert!((thousand.0 / 1000.0 - 1.0).abs() < 0.25, "{thousand:?}");
    // Some 180 intervals, and the first one is a window.
    assert!((3..=6).contains(&fixed.1), "{fixed:?}");
}

/// Samples of a program that launches once a second arrive as well.
#[test]
fn sparse_launches() {
    if !need::bpf("sparse_launches") {
        return;
    }
    let lab = Lab::new();
    let trace = pc_common::attach(&lab);
    two_kernels(&lab, "spaced 1 6 sync")
        .env("PARCAGPU_PC_SAMPLING_RATE", "100")
        .run(SHORT)
        .ok();
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    assert!(!sound(&events).is_empty());
}
