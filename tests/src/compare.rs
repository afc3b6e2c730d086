//! Whether a program did the same with the library as without it.

use std::collections::HashMap;
use std::time::Duration;

use crate::agent::{Agent, Options};
use crate::block;
use crate::lab::{Lab, Mode};
use crate::mock_log::{self, Call};
use crate::program::{Ended, Program};

/// Queries of the driver that the library makes itself: they change nothing. What the host program
/// does depends on none of them.
const QUERIES: [&str; 9] = [
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuDriverGetVersion",
    "cuStreamIsCapturing",
    "cuStreamIsCapturing_ptsz",
    "cuDeviceGetCount",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceGet",
];

/// A run and the calls it made.
pub struct Run {
    /// Its end.
    pub ended: Ended,
    /// Every call.
    pub calls: Vec<Call>,
}

/// Runs host words with a call log.
#[track_caller]
pub fn run(
    lab: &Lab,
    mode: Mode,
    words: &str,
    limit: Duration,
    more: impl FnOnce(Program) -> Program,
) -> Run {
    run_at_gates(lab, mode, words, 0, limit, more)
}

/// The same of words with so many gates, at each of which our thread looks at what there is.
#[track_caller]
fn run_at_gates(
    lab: &Lab,
    mode: Mode,
    words: &str,
    gates: usize,
    limit: Duration,
    more: impl FnOnce(Program) -> Program,
) -> Run {
    let log = lab.file(&format!("calls.{mode:?}"));
    let _ = std::fs::remove_file(&log);
    let mut host = more(lab.host(mode, words).env("MOCK_LOG", &log)).start();
    for gate in 1..=gates {
        host.wait_gate(gate);
        if mode != Mode::Bare {
            block::wait_looks(host.pid(), &lab.library());
        }
        host.open_gate(gate);
    }
    let ended = host.wait(limit);
    Run {
        ended,
        calls: mock_log::read(&log),
    }
}

/// The program's own calls, thread by thread in the order in which the threads first called.
fn own_calls(calls: &[Call]) -> Vec<Vec<String>> {
    let mut order = Vec::new();
    let mut threads: HashMap<u32, Vec<String>> = HashMap::new();
    for call in calls {
        if call.is_cupti() || QUERIES.contains(&call.name.as_str()) {
            continue;
        }
        if !threads.contains_key(&call.tid) {
            order.push(call.tid);
        }
        threads.entry(call.tid).or_default().push(format!(
            "{} {} = {}",
            call.name, call.arguments, call.result
        ));
    }
    let mut lists: Vec<Vec<String>> = order
        .iter()
        .map(|tid| threads.remove(tid).unwrap_or_default())
        .collect();
    // Which of two threads comes first is chance.
    lists[1..].sort();
    lists
}

/// Asserts that two runs are the same to everybody but the library.
#[track_caller]
pub fn same(bare: &Run, with: &Run) {
    assert_eq!(
        bare.ended.code(),
        with.ended.code(),
        "exit status; stderr: {}",
        with.ended.stderr
    );
    assert_eq!(bare.ended.stdout, with.ended.stdout, "stdout");
    assert_eq!(bare.ended.stderr, with.ended.stderr, "stderr");
    if bare.calls.is_empty() {
        assert!(with.calls.is_empty(), "calls of a program that makes none");
        return;
    }
    let (bare, with) = (own_calls(&bare.calls), own_calls(&with.calls));
    assert_eq!(bare.len(), with.len(), "threads that call the driver");
    for (bare, with) in bare.iter().zip(&with) {
        let differs = bare.iter().zip(with).position(|(b, w)| b != w);
        assert!(
            differs.is_none() && bare.len() == with.len(),
            "calls differ at {differs:?} ({} and {} calls): {:?} became {:?}",
            bare.len(),
            with.len(),
            differs.map(|at| &bare[at]),
            differs.map(|at| &with[at])
        );
    }
}

/// Runs words bare, preloaded and injected, and asserts that all are the same. Gives the two runs
/// with the library.
#[track_caller]
pub fn transparent(
    lab: &Lab,
    words: &str,
    limit: Duration,
    more: impl Fn(Program) -> Program,
) -> [Run; 2] {
    transparent_at_gates(lab, words, 0, limit, more)
}

/// The same of words with so many gates, at each of which our thread looks at what there is.
#[track_caller]
pub fn transparent_at_gates(
    lab: &Lab,
    words: &str,
    gates: usize,
    limit: Duration,
    more: impl Fn(Program) -> Program,
) -> [Run; 2] {
    let bare = run_at_gates(lab, Mode::Bare, words, gates, limit, &more);
    [Mode::Preload, Mode::Injection].map(|mode| {
        let with = run_at_gates(lab, mode, words, gates, limit, &more);
        same(&bare, &with);
        with
    })
}

/// What a run without waits of its own may take.
const LIMIT: Duration = Duration::from_secs(10);
/// A library that holds a program up for longer hangs in it. (What it costs: `scripts/bench --latency`.)
const LATER: Duration = Duration::from_secs(20);

/// Bare, then in both modes under a consumer: exit status, stdout and stderr are the same. Gives the
/// runs with the library.
#[track_caller]
pub fn same_output(lab: &Lab, words: &str, more: impl Fn(Program) -> Program) -> Vec<Ended> {
    let bare = more(lab.host(Mode::Bare, words)).run(LIMIT);
    Mode::WITH
        .into_iter()
        .map(|mode| {
            let agent = Agent::parca(&lab.library(), -1, Options::default()).expect("it attaches");
            let host = more(lab.host(mode, words).env("PARCAGPU_RATE_LIMIT", "1e9")).start();
            let with = host.wait_with(LIMIT, || agent.poll(Duration::from_millis(5)));
            let told = |e: &Ended| (e.code(), e.stdout.clone(), e.stderr.clone());
            assert_eq!(told(&bare), told(&with), "{mode:?}: {words}");
            assert!(
                with.took < bare.took + LATER,
                "{mode:?}: {:?}, bare {:?}: {words}",
                with.took,
                bare.took
            );
            with
        })
        .collect()
}
