//! Which launches are sampled, and what becomes of records that are odd.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parcagpu_abi::status::{Counter, Status};
use parcagpu_tests::agent::{Agent, Event, Kind, Options};
use parcagpu_tests::block;
use parcagpu_tests::cut_short;
use parcagpu_tests::full;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::trace::Trace;

const SHORT: Duration = Duration::from_secs(10);
const ALL: [(&str, &str); 2] = [
    ("PARCAGPU_RATE_LIMIT", "1e9"),
    ("PARCAGPU_GRAPH_RATE_LIMIT", "1e9"),
];
/// Enough for one launch of each kind, whatever the time a test takes.
const ONE: [(&str, &str); 2] = [
    ("PARCAGPU_RATE_LIMIT", "0.0001"),
    ("PARCAGPU_GRAPH_RATE_LIMIT", "0.0001"),
];

/// What an agent that was there first saw of a run, and the status block when all was delivered.
struct Seen {
    launches: Vec<Event>,
    records: Vec<Event>,
    errors: Vec<Event>,
    status: Box<Status>,
}

fn observe(lab: &Lab, words: &str, variables: &[(&str, &str)]) -> Seen {
    let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let words = format!("{words} sync gate");
    let mut host = lab
        .host(Mode::Preload, &words)
        .envs(variables.iter().copied())
        .start();
    agent.poll_to_gate(&mut host, 1);
    block::wait_delivered(host.pid(), &lab.library());
    let status = block::read(host.pid(), &lab.library()).unwrap();
    assert_eq!(agent.losses().dropped, 0);
    // Without its end, which waits for our thread with a bound only, and tells so.
    let seen = Seen {
        launches: agent.of(Kind::Correlation),
        records: agent.of(Kind::Record),
        errors: agent.of(Kind::Error),
        status,
    };
    host.open_gate(1);
    host.wait(SHORT).ok();
    seen
}

fn ids(events: &[Event]) -> Vec<u32> {
    events.iter().map(|event| event.id).collect()
}

fn with(
    base: &[(&'static str, &'static str)],
    name: &'static str,
    value: &'static str,
) -> Vec<(&'static str, &'static str)> {
    let mut all = base.to_vec();
    all.push((name, value));
    all
}

/// In a loop that waits for the GPU each round, the launch behind the wait comes up no more than the others.
#[test]
fn a_loop_that_waits() {
    if !need::bpf("a_loop_that_waits") {
        return;
    }
    for engine in ["detour", "none"] {
        let lab = Lab::new();
        let words = "modules 2 init repeat 5000 launch 2 sync end";
        let variables = [
            ("MOCK_CUDA_KERNEL_NS", "200000"),
            ("PARCAGPU_HOOK_ENGINE", engine),
            // So many that their shares are no chance.
            ("PARCAGPU_RATE_LIMIT", "500"),
        ];
        let seen = observe(&lab, words, &variables);
        let of = |name: &str| {
            let named = |r: &&Event| r.name.as_deref() == Some(name.as_bytes());
            seen.records.iter().filter(named).count()
        };
        let (first, second) = (of("host_kernel0"), of("host_kernel1"));
        assert!(first + second >= 600, "{engine}: {first} {second}");
        let share = first as f64 / (first + second) as f64;
        assert!((share - 0.5).abs() < 0.15, "{engine}: {first} {second}");
    }
}

/// Beside threads that launch flat out, slow launches are sampled, and the fast ones get their limit.
#[test]
fn mixed_workload() {
    if need::bpf("mixed_workload") {
        mixed(&[]);
    }
}

/// The same where launches are not hooked and CUPTI's callbacks decide.
#[test]
fn mixed_workload_without_hooks() {
    if need::bpf("mixed_workload_without_hooks") {
        mixed(&[("PARCAGPU_HOOK_ENGINE", "none")]);
    }
}

/// Seconds in which a thread that launches all the time had no launch sampled for as long as twenty take on average:
/// it did not run then.
fn lost(times: &[u64], limit: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let gaps = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as f64 / 1e9);
    gaps.filter(|gap| *gap > 20.0 / limit).sum()
}

#[track_caller]
fn mixed(variables: &[(&str, &str)]) {
    const SECONDS: usize = 12;
    let lab = Lab::new();
    let words = format!(
        "init thread flat {SECONDS} end thread spaced 5 {SECONDS} end \
         thread graph 4 replayspaced 5 {SECONDS} end thread graph 4 replayflat {SECONDS} end join"
    );
    let seen = observe(&lab, &words, variables);
    let mut eager: HashMap<u32, Vec<u64>> = HashMap::new();
    let mut graph: HashMap<u32, Vec<u64>> = HashMap::new();
    for launch in &seen.launches {
        let kind = if launch.code == -514 {
            &mut graph
        } else {
            &mut eager
        };
        kind.entry(launch.tid).or_default().push(launch.time_ns);
    }
    let sorted = |threads: HashMap<u32, Vec<u64>>| {
        let mut threads: Vec<Vec<u64>> = threads.into_values().collect();
        threads.sort_by_key(Vec::len);
        threads
    };
    let (eager, graph) = (sorted(eager), sorted(graph));
    let slow = 5 * SECONDS;
    // Not sampled since another thread was at the switch: few, unless one stands still in the middle of it.
    let busy = usize::try_from(seen.status.get(Counter::SwitchBusy)).expect("few");
    let check = |threads: &[Vec<u64>], limit: usize, what: &str| {
        let counts: Vec<usize> = threads.iter().map(Vec::len).collect();
        assert_eq!(counts.len(), 2, "{what}: {counts:?}");
        assert!(
            counts[0] + busy >= slow * 95 / 100 && counts[0] <= slow,
            "slow {what}: {counts:?}, {busy} busy"
        );
        let full = limit as f64 * SECONDS as f64;
        let lost = lost(&threads[1], limit as f64);
        assert!(lost < SECONDS as f64 / 3.0, "{what}: {lost} s without");
        let least = 0.8 * (full - lost * limit as f64);
        let bounds = least..=full * 1.01 + 1.0;
        assert!(
            bounds.contains(&(counts[1] as f64)),
            "fast {what}: {counts:?}, {lost} s without"
        );
    };
    check(&eager, 100, "eager");
    check(&graph, 20, "graph");
    let announced: HashSet<u32> = ids(&seen.launches).into_iter().collect();
    let with_record: HashSet<u32> = ids(&seen.records).into_iter().collect();
    assert!(with_record.is_subset(&announced));
    let unmatched = announced.len() - with_record.len();
    assert!(
        unmatched * 200 <= announced.len(),
        "{unmatched} of {}",
        announced.len()
    );
}

/// Launches into a capture, and launches that the driver refuses, are not announced and cost no token.
#[test]
fn captured_and_failed() {
    if !need::bpf("captured_and_failed") {
        return;
    }
    let lab = Lab::new();
    let seen = observe(
        &lab,
        "init capture 50 fail 20 launch 5 graph 3 replay 5",
        &ONE,
    );
    let codes: Vec<i32> = seen.launches.iter().map(|l| l.code).collect();
    assert_eq!(codes, [-307, -514], "one launch and one replay");
    assert_eq!(seen.records.len(), 1 + 3);
    assert!(seen.status.get(Counter::CapturedLaunches) >= 50);
    assert_eq!(seen.status.get(Counter::EagerSampled), 1);
    assert_eq!(seen.status.get(Counter::GraphSampled), 1);
    assert_eq!(seen.status.ids_outstanding(), 0);
}

/// Ids go on over 2^32.
#[test]
fn ids_wrap() {
    if !need::bpf("ids_wrap") {
        return;
    }
    let lab = Lab::new();
    let variables = with(&ALL, "MOCK_CUPTI_FIRST_CORRELATION", "4294967280");
    let seen = observe(&lab, "init launch 60 graph 2 replay 10", &variables);
    let launches = ids(&seen.launches);
    assert_eq!(launches.len(), 70);
    assert!(launches.iter().any(|id| *id > u32::MAX - 20) && launches.iter().any(|id| *id < 100));
    let unique: HashSet<u32> = launches.into_iter().collect();
    let records: HashSet<u32> = ids(&seen.records).into_iter().collect();
    assert_eq!(seen.records.len(), 60 + 20);
    assert_eq!((unique.len(), &unique), (70, &records));
}

/// A record that CUPTI gives twice is told once, and the other is counted.
#[test]
fn duplicated_records() {
    if !need::bpf("duplicated_records") {
        return;
    }
    let lab = Lab::new();
    let variables = with(&ALL, "MOCK_CUPTI_RECORDS", "duplicate:10");
    let seen = observe(&lab, "init launch 200", &variables);
    let records: HashSet<u32> = ids(&seen.records).into_iter().collect();
    assert_eq!(
        (seen.launches.len(), seen.records.len(), records.len()),
        (200, 200, 200)
    );
    assert_eq!(seen.status.get(Counter::RecordsReceived), 220);
    assert_eq!(seen.status.get(Counter::RecordsMatched), 200);
    assert_eq!(seen.status.get(Counter::RecordsUnmatched), 20);
}

/// Launches whose record never comes show in the status block.
#[test]
fn withheld_records() {
    if !need::bpf("withheld_records") {
        return;
    }
    let lab = Lab::new();
    let variables = with(&ALL, "MOCK_CUPTI_RECORDS", "withhold:10");
    let seen = observe(&lab, "init launch 200", &variables);
    assert_eq!((seen.launches.len(), seen.records.len()), (200, 180));
    assert_eq!(seen.status.get(Counter::IdsMatched), 180);
    assert_eq!(
        seen.status.ids_outstanding() + seen.status.get(Counter::IdsExpired),
        20
    );
    assert!(seen.errors.is_empty(), "{:?}", seen.errors);
}

/// Records without times are told as they are, and `run` counts them without taking them for 0 ns.
#[test]
fn times_unknown() {
    if !need::bpf("times_unknown") {
        return;
    }
    let lab = Lab::new();
    let variables = with(&ALL, "MOCK_CUPTI_RECORDS", "zero:3");
    let seen = observe(&lab, "init launch 99", &variables);
    let timeless = seen.records.iter().filter(|r| r.start == 0 && r.end == 0);
    assert_eq!((seen.records.len(), timeless.count()), (99, 33));
    let host = parcagpu_tests::artefacts::host();
    let ended = lab
        .parcagpu(&format!("run --lib {} --", lab.library().display()))
        .env("LD_LIBRARY_PATH", parcagpu_tests::artefacts::sim())
        .env("MOCK_CUPTI_RECORDS", "zero:3")
        .arg_path(&host)
        .words("init launch 99 sync")
        .run(SHORT)
        .ok();
    assert!(ended.stderr.contains("33 without time"), "{}", ended.stderr);
    assert!(ended.stderr.contains("all 99 launches"), "{}", ended.stderr);
}

/// `trace` says whether a name is whole or cut, takes none for an empty one, and prints bytes that are not UTF-8 without harm.
#[test]
fn names_in_trace() {
    if !need::bpf("names_in_trace") {
        return;
    }
    let lab = Lab::new();
    for (script, state, length) in [
        ("length:255", "whole", 255),
        ("length:256", "cut", 255),
        ("length:600000", "cut", 255),
        ("empty", "whole", 0),
        ("null", "whole", 0),
        ("invalid", "whole", 10),
    ] {
        let mut host = lab
            .host(Mode::Preload, "gate init launch 3 sync")
            .envs(ALL)
            .env("MOCK_CUPTI_KERNEL_NAME", script)
            .start();
        host.wait_gate(1);
        let trace = Trace::attach(&lab, &[host.pid()]);
        host.open_gate(1);
        host.wait(SHORT).ok();
        let events = trace.end();
        let records = events.records().len();
        cut_short::records(records, 3, events.cut_short());
        for record in events.of("activity_batch") {
            assert_eq!(record["name_state"], state, "{script}: {record}");
            let name = record["name"].as_str().unwrap_or_default();
            assert_eq!(name.chars().count(), length, "{script}: {record}");
        }
    }
}

/// Launches whose records never come: memory stays bounded, and all are accounted for (B44).
#[test]
fn ids_without_records_are_bounded() {
    if !need::bpf("ids_without_records_are_bounded") {
        return;
    }
    let launches = full::pick(500_000, 5_000_000);
    let (growth, status) = growth(launches, "none");
    assert!(growth < 16 << 20, "{growth} bytes more");
    assert_eq!(status.get(Counter::EagerSampled), launches + 1000);
    let (waiting, expired) = (status.ids_outstanding(), status.get(Counter::IdsExpired));
    assert_eq!(waiting + expired, launches + 1000);
    // Two generations of 200,000, and what came beside them.
    assert!(waiting <= 420_000, "{waiting} ids are waited for");
}

/// As many records as launches that belong to none: memory stays as it is, and they are counted (B44).
#[test]
fn records_without_launches_are_bounded() {
    if !need::bpf("records_without_launches_are_bounded") {
        return;
    }
    let launches = full::pick(300_000, 5_000_000);
    let (growth, status) = growth(launches, "duplicate:1");
    assert!(growth < 16 << 20, "{growth} bytes more");
    let received = status.get(Counter::RecordsReceived);
    let dropped = status.get(Counter::RecordsDroppedByCupti);
    assert!(received + dropped >= launches, "{received} and {dropped}");
    let unmatched = status.get(Counter::RecordsUnmatched);
    assert!(
        unmatched.abs_diff(received / 2) <= received / 20,
        "{unmatched} of {received}"
    );
}

/// How much a process grows while it makes so many launches, all sampled, whose records come as scripted; and
/// its status block then.
fn growth(launches: u64, records: &str) -> (u64, Box<Status>) {
    let lab = Lab::new();
    let options = Options {
        names: false,
        ..Options::default()
    };
    let agent = Agent::parca(&lab.library(), -1, options).unwrap();
    let mut host = lab
        .host(
            Mode::Preload,
            &format!("init launch 1000 sync gate launch {launches} sync gate"),
        )
        .envs(ALL)
        .env("MOCK_CUPTI_RECORDS", records)
        .start();
    agent.poll_to_gate(&mut host, 1);
    let before = resident(host.pid());
    host.open_gate(1);
    agent.poll_to_gate(&mut host, 2);
    block::wait_delivered(host.pid(), &lab.library());
    let growth = resident(host.pid()).saturating_sub(before);
    let status = block::read(host.pid(), &lab.library()).unwrap();
    host.open_gate(2);
    host.wait(SHORT).ok();
    (growth, status)
}

/// Resident memory of a process, bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
