//! What CUPTI refuses at times is tried again, and what is switched on for somebody goes off with him.

use std::path::Path;
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::{wait_looks, wait_state};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::{self, Call};
use parcagpu_tests::need;
use parcagpu_tests::program::WATCHDOG;

const SHORT: Duration = Duration::from_secs(20);

/// Calls that switch the event of modules with this id: to what, and whether CUPTI did it.
fn switched(calls: &[Call], id: u32) -> Vec<(bool, bool)> {
    let event = format!(" 3 {id}");
    calls
        .iter()
        .filter(|c| c.name == "cuptiEnableCallback" && c.arguments.ends_with(&event))
        .map(|c| (c.arguments.starts_with('1'), c.result == 0))
        .collect()
}

#[track_caller]
fn wait_calls(log: &Path, enough: impl Fn(&[Call]) -> bool) -> Vec<Call> {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let calls = mock_log::read(log);
        if enough(&calls) {
            return calls;
        }
        assert!(Instant::now() < deadline, "{:?}", switched(&calls, 8));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A consumer of code comes and leaves beside one of kernels: CUPTI is not asked for earlier modules, at every
/// launch, for nobody, and it is asked again for the next consumer of code.
#[test]
fn nobody_asks_for_code_any_more() {
    if !need::bpf("nobody_asks_for_code_any_more") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let mut host = lab
        .host(
            Mode::Preload,
            "modules 3 init say up gate spaced 100 5 sync",
        )
        .env("MOCK_LOG", &log)
        .start();
    host.wait_stdout("up");
    let _kernels = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    wait_state(host.pid(), &lab.library(), State::Active);
    let code = || {
        let mut code = Agent::load(Options::default()).unwrap();
        code.attach(&lab.library(), -1, "cubin_loaded").unwrap();
        code
    };
    let first = code();
    wait_calls(&log, |calls| switched(calls, 8).len() == 1);
    drop(first);
    let calls = wait_calls(&log, |calls| switched(calls, 8).len() == 2);
    assert_eq!(switched(&calls, 8), [(true, true), (false, true)]);
    let second = code();
    let calls = wait_calls(&log, |calls| switched(calls, 8).len() == 3);
    assert_eq!(switched(&calls, 8)[2], (true, true));
    host.open_gate(1);
    host.wait(SHORT).ok();
    assert_eq!(second.code().cubins.len(), 3);
}

/// An event of modules that CUPTI refuses for some milliseconds is asked for again a look later, whichever it is.
#[test]
fn module_events_refused_for_a_while() {
    if !need::bpf("module_events_refused_for_a_while") {
        return;
    }
    /// Tries in one look.
    const TRIES: usize = 6;
    let lab = Lab::new();
    let run = |fail: &str| {
        let log = lab.file(&format!("calls-{}", fail.len()));
        std::fs::remove_file(&log).ok();
        let _agent = Agent::parca_sampling(&lab.library(), -1, Options::default()).unwrap();
        let mut host = lab
            .host(Mode::Preload, "init gate sync")
            .env("MOCK_LOG", &log)
            .env("MOCK_FAIL", fail)
            .start();
        host.wait_gate(1);
        wait_looks(host.pid(), &lab.library());
        host.open_gate(1);
        host.wait(SHORT).ok();
        mock_log::read(&log)
    };
    let calls = run("");
    for id in [6, 7, 8] {
        let event = format!(" 3 {id}");
        let mut calls = calls.iter().filter(|c| c.name == "cuptiEnableCallback");
        let at = calls.position(|c| c.arguments.ends_with(&event));
        let at = at.expect("it is switched on") + 1;
        let refused: Vec<String> = (at..at + TRIES)
            .map(|at| format!("cuptiEnableCallback=1@{at}"))
            .collect();
        let calls = run(&refused.join(","));
        let mut tries = vec![(true, false); TRIES];
        tries.push((true, true));
        assert!(switched(&calls, id).starts_with(&tries), "{id}: {tries:?}");
    }
}

/// Kernel activity that CUPTI refuses: callbacks do not stay on without it. Refused for long it is final, until the
/// next consumer comes, for whom one more refusal is not.
#[test]
fn activity_refused_at_times() {
    if !need::bpf("activity_refused_at_times") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let refused: Vec<String> = (1..=4)
        .map(|at| format!("cuptiActivityEnable=1@{at}"))
        .collect();
    let mut host = lab
        .host(Mode::Preload, "init say up spaced 8000 3600")
        .env("MOCK_LOG", &log)
        .env("MOCK_FAIL", refused.join(","))
        .start();
    host.wait_stdout("up");
    let agent = || Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let first = agent();
    wait_state(host.pid(), &lab.library(), State::Stopped);
    drop(first);
    wait_state(host.pid(), &lab.library(), State::Dormant);
    let second = agent();
    let records = second.poll_until(|events| events.iter().any(|event| event.kind == Kind::Record));
    assert!(records, "{:?}", second.errors());
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
    let calls = mock_log::read(&log);
    let (mut on, mut refused, mut launches) = (0, 0, 0);
    for call in &calls {
        match (call.name.as_str(), call.result) {
            ("cuptiEnableCallback", 0) if call.arguments.ends_with(" 1 307") => {
                on += if call.arguments.starts_with('1') {
                    1
                } else {
                    -1
                };
                assert!((0..=1).contains(&on), "left on after a refusal");
            }
            ("cuLaunchKernel", _) => launches += 1,
            ("cuptiActivityEnable", 1) => {
                assert!(refused == 0 || launches > 10, "no time to recover");
                (refused, launches) = (refused + 1, 0);
            }
            _ => {}
        }
    }
    assert_eq!(refused, 4);
}
