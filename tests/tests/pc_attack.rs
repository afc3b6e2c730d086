//! PC sampling under attack: what a program may do at the worst moment.

mod pc_common;

use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::hosts::compile;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::program::{Program, WATCHDOG};
use parcagpu_tests::trace::{Trace, number};
use parcagpu_tests::{artefacts, block, mock_log, need};
use pc_common::{SHORT, program, refusals, sampled, sound, two_kernels};
use serde_json::Value;

fn told(events: &[Value], probe: &str) -> bool {
    events.iter().any(|e| e["probe"] == probe)
}

fn rest(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn serialized(program: Program) -> Program {
    program
        .env("PARCAGPU_PC_SAMPLING_MODE", "serialized")
        .env("MOCK_CUDA_HOLDS", "launches")
        .env("MOCK_CUDA_KERNEL_NS", "100000")
        .env("MOCK_CUDA_QUEUE", "4")
        .env(
            "PARCAGPU_CUPTI_PATH",
            artefacts::sim().join("libcupti.so.13"),
        )
}

/// Consumers leave in the middle of a window: it is closed, and not under launches that nobody counts any more.
#[test]
fn consumers_leave_in_a_window() {
    if !need::bpf("consumers_leave_in_a_window") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let words = "say ready thread flat 3600 end thread flat 3600 end gate stop join sync say over";
    // Whoever gets in while sampling is stopped has time for it.
    let mut host = serialized(two_kernels(&lab, words))
        .env("MOCK_CUPTI_PC", "window-us:20000")
        .env("MOCK_LOG", &log)
        .start();
    host.wait_stdout("ready");
    let good = |name: &str| {
        let calls = mock_log::read(&log);
        let good = calls.iter().filter(|c| c.name == name && c.result == 0);
        good.count()
    };
    let start = "cuptiPCSamplingStart";
    for _ in 0..2 {
        let (before, deadline) = (good(start), Instant::now() + WATCHDOG);
        let trace = Trace::attach(&lab, &[host.pid()]);
        while good(start) < before + 2 {
            assert!(Instant::now() < deadline, "{} windows", good(start));
            rest(20);
        }
        assert_eq!(refusals(&trace.end()), []);
        block::wait_state(host.pid(), &lab.library(), State::Dormant);
        // A launch that returns closes what was open when the consumer left.
        let deadline = Instant::now() + WATCHDOG;
        while good(start) != good("cuptiPCSamplingStop") {
            assert!(Instant::now() < deadline, "a window stays open");
            rest(20);
        }
    }
    host.open_gate(1);
    let ended = host.wait(SHORT).ok();
    assert!(ended.stdout.contains("over"), "{}", ended.stderr);
    let (starts, stops) = (good(start), good("cuptiPCSamplingStop"));
    assert!(starts >= 4 && starts == stops, "{starts} {stops}");
}

/// A thread ends in its launch; the launches of others do not wait for it for ever.
#[test]
fn a_thread_ends_in_its_launch() {
    if !need::bpf("a_thread_ends_in_its_launch") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let trace = pc_common::attach(&lab);
    let words = "onsignal exit thread launch 1 launch 1 end join gate thread flat 3600 end gate stop join sync say over";
    let mut host = serialized(two_kernels(&lab, words))
        .env("MOCK_RAISE", "cuLaunchKernel=10@2")
        .env("MOCK_LOG", &log)
        .start();
    host.wait_gate(1);
    // A window opens only where nobody is inside a launch, and launches return while it does.
    let done = |name: &str| {
        let calls = mock_log::read(&log);
        let done = calls.iter().filter(|c| c.name == name && c.result == 0);
        done.count()
    };
    let of = || {
        [
            "cuptiPCSamplingStart",
            "cuptiPCSamplingStop",
            "cuLaunchKernel",
        ]
        .map(done)
    };
    let before = of();
    host.open_gate(1);
    let deadline = Instant::now() + WATCHDOG;
    while of()
        .iter()
        .zip(&before)
        .any(|(now, before)| *now < before + 3)
    {
        assert!(Instant::now() < deadline, "{before:?}, then {:?}", of());
        rest(20);
    }
    trace.until("a sample", |events| told(events, "pc_sample_batch"));
    host.open_gate(2);
    let ended = host.wait(SHORT).ok();
    assert!(ended.stdout.contains("over"));
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    assert!(!sound(&events).is_empty());
}

/// Another thread loads modules meanwhile. Where no hook sees that, nothing is started and stopped.
#[test]
fn modules_are_loaded_meanwhile() {
    if !need::bpf("modules_are_loaded_meanwhile") {
        return;
    }
    for engine in ["detour", "none"] {
        let lab = Lab::new();
        let trace = pc_common::attach(&lab);
        let loads: String = (1..200).map(|i| format!("module {i} unload ")).collect();
        let words = format!(
            "init context module 0 thread flat sampled_0 end gate thread {loads} stop end join"
        );
        let mut host = serialized(program(&lab, &words))
            .env("PARCAGPU_HOOK_ENGINE", engine)
            .start();
        trace.until("samples, or why there are no such", |events| {
            let launched =
                |e: &&Value| e["probe"] == "pc_sample_batch" && number(e, "correlation_id") != 0;
            events.iter().any(|e| launched(&e)) || told(events, "error")
        });
        host.open_gate(1);
        host.wait(SHORT).ok();
        let events = trace.end();
        let told = refusals(&events);
        let samples = sound(&events);
        match engine {
            "none" => {
                assert_eq!(told.len(), 1, "{told:?}");
                assert!(told[0].1.contains("continuous mode"), "{told:?}");
                assert!(samples.iter().all(|s| s.id == 0));
            }
            _ => {
                assert_eq!(told, []);
                assert!(samples.iter().any(|s| s.id != 0));
            }
        }
    }
}

/// A tool takes CUPTI in the middle of a window.
#[test]
fn a_tool_comes_in_a_window() {
    if !need::bpf("a_tool_comes_in_a_window") {
        return;
    }
    let lab = Lab::new();
    let tool = compile(&lab, "coexist/tool.c", "tool", &[]);
    let trace = pc_common::attach(&lab);
    let launches = "until 3600 launch 1 end";
    let words = format!(
        "init launch 10 load libcupti.so.13 thread {launches} end thread {launches} end gate subscribe \
         register on gate off unsubscribe stop join sync say over"
    );
    let program = lab.program(Mode::Preload, tool).words(&words);
    let mut host = serialized(sampled(program))
        .env("MOCK_CUPTI_PC", "window-us:20000")
        .start();
    trace.until("samples", |events| told(events, "pc_sample_batch"));
    host.open_gate(1);
    host.wait_gate(2);
    block::wait_looks(host.pid(), &lab.library());
    host.open_gate(2);
    let ended = host.wait(SHORT).ok();
    assert!(ended.stdout.contains("over"), "{}", ended.stderr);
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    assert!(!sound(&events).is_empty());
}

/// A tool finalises CUPTI, and with it what was switched on: there are kernel times and samples afterwards.
#[test]
fn finalized_by_the_program() {
    if !need::bpf("finalized_by_the_program") {
        return;
    }
    let lab = Lab::new();
    let tool = compile(&lab, "coexist/tool.c", "tool", &[]);
    let trace = pc_common::attach(&lab);
    // No faster than tokens come.
    let launches = "repeat 20 launch 1 sync sleep 20 end";
    let words = format!(
        "init {launches} load libcupti.so.13 {launches} finalize gate {launches} gate say over"
    );
    let program = lab.program(Mode::Preload, tool).words(&words);
    let mut host = sampled(program)
        .env("MOCK_CUPTI_STRICT", "0")
        .env(
            "PARCAGPU_CUPTI_PATH",
            artefacts::sim().join("libcupti.so.13"),
        )
        .start();
    host.wait_gate(1);
    block::wait_state(host.pid(), &lab.library(), State::Active);
    block::wait_looks(host.pid(), &lab.library());
    let before = trace.so_far().len();
    host.open_gate(1);
    host.wait_gate(2);
    trace.until("samples again", |events| {
        told(&events[before..], "pc_sample_batch")
    });
    host.open_gate(2);
    let ended = host.wait(SHORT).ok();
    assert!(ended.stdout.contains("over"), "{}", ended.stderr);
    let events = trace.end();
    assert_eq!(events.launches().len(), events.records().len());
    assert!(events.launches().len() > 50, "{}", events.launches().len());
}

/// CUPTI refuses to be finalised: what it samples it samples still, and it is not asked to begin anew.
#[test]
fn a_finalisation_that_is_refused_ends_nothing() {
    if !need::bpf("a_finalisation_that_is_refused_ends_nothing") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let tool = compile(&lab, "coexist/tool.c", "tool", &[]);
    let trace = pc_common::attach(&lab);
    let launches = "repeat 20 launch 1 sync sleep 20 end";
    let words = format!("init {launches} load libcupti.so.13 gate finalize gate {launches} gate");
    let program = lab.program(Mode::Preload, tool).words(&words);
    let mut host = sampled(program)
        .env("MOCK_LOG", &log)
        .env("MOCK_FAIL", "cuptiFinalize=1")
        .env(
            "PARCAGPU_CUPTI_PATH",
            artefacts::sim().join("libcupti.so.13"),
        )
        .start();
    host.wait_gate(1);
    trace.until("samples", |events| told(events, "pc_sample_batch"));
    host.open_gate(1);
    host.wait_gate(2);
    block::wait_state(host.pid(), &lab.library(), State::Active);
    block::wait_looks(host.pid(), &lab.library());
    let before = trace.so_far().len();
    host.open_gate(2);
    host.wait_gate(3);
    trace.until("samples again", |events| {
        told(&events[before..], "pc_sample_batch")
    });
    host.open_gate(3);
    host.wait(SHORT).ok();
    let calls = mock_log::read(&log);
    assert_eq!(mock_log::count(&calls, "cuptiFinalize"), 1);
    assert_eq!(mock_log::count(&calls, "cuptiPCSamplingEnable"), 1);
}

/// A tool has CUPTI where no hook sees it, and the driver is initialised then: what it has on stays on.
#[test]
fn a_tool_that_nobody_saw_keeps_its_records() {
    let lab = Lab::new();
    let tool = compile(&lab, "coexist/tool.c", "tool", &[]);
    let words = "load libcupti.so.13 subscribe register on init launch 50 sync flush 0 report off unsubscribe";
    let program = lab.program(Mode::Preload, tool).words(words);
    let ended = sampled(program)
        .env("PARCAGPU_HOOK_ENGINE", "none")
        .run(SHORT)
        .ok();
    let stdout = &ended.stdout;
    assert!(stdout.contains("records 50 foreign 0"), "{stdout}");
}
