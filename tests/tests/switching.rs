//! What CUPTI refuses at times is tried again, and what is switched on for somebody goes off with him.

use std::path::Path;
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::{semaphores, wait_looks, wait_more_looks, wait_state};
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

#[track_caller]
fn wait_semaphore(pid: u32, lab: &Lab, probe: &str, wanted: u16) {
    let deadline = Instant::now() + WATCHDOG;
    while !semaphores(pid, &lab.library()).contains(&(probe.to_owned(), wanted)) {
        assert!(Instant::now() < deadline, "{probe} is not {wanted}");
        std::thread::sleep(Duration::from_millis(5));
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
            "modules 3 init say up gate thread spaced 100 3600 end gate stop join sync",
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
    wait_calls(&log, |calls| !switched(calls, 8).is_empty());
    drop(first);
    // While he was there it may have gone off, and on again, by itself.
    let is_off = |calls: &[Call]| switched(calls, 8).last() == Some(&(false, true));
    wait_calls(&log, is_off);
    wait_semaphore(host.pid(), &lab, "cubin_loaded", 0);
    wait_looks(host.pid(), &lab.library());
    let calls = wait_calls(&log, is_off);
    let before = switched(&calls, 8);
    for (i, switch) in before.iter().enumerate() {
        assert_eq!(*switch, (i % 2 == 0, true), "{before:?}");
    }
    wait_more_looks(host.pid(), &lab.library(), 15);
    assert_eq!(switched(&mock_log::read(&log), 8), before, "for nobody");
    let second = code();
    let calls = wait_calls(&log, |calls| switched(calls, 8).len() > before.len());
    assert_eq!(switched(&calls, 8)[before.len()], (true, true));
    host.open_gate(1);
    let deadline = Instant::now() + WATCHDOG;
    while second.code().cubins.len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", second.code().cubins);
        second.poll(Duration::from_millis(20));
    }
    host.open_gate(2);
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
    /// CUPTI is left alone for so long, ns, after it refused.
    const RECOVERY: u64 = 50_000_000;
    let lab = Lab::new();
    let log = lab.file("calls");
    let refused: Vec<String> = (1..=4)
        .map(|at| format!("cuptiActivityEnable=1@{at}"))
        .collect();
    let mut host = lab
        .host(Mode::Preload, "init say up spaced 8000 3600")
        .env("MOCK_LOG", &log)
        .env("MOCK_LOG_TIMES", "1")
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
    let (mut on, mut refused, mut recovers) = (0, 0, 0);
    for call in &calls {
        let (arguments, time) = call.arguments.rsplit_once("at=").expect("its time");
        let time: u64 = time.parse().expect("ns");
        match (call.name.as_str(), call.result) {
            ("cuptiEnableCallback", 0) if arguments.ends_with(" 1 307 ") => {
                on += if call.arguments.starts_with('1') {
                    1
                } else {
                    -1
                };
                assert!((0..=1).contains(&on), "left on after a refusal");
            }
            ("cuptiActivityEnable", 1) => {
                assert!(time >= recovers, "no time to recover");
                (refused, recovers) = (refused + 1, time + RECOVERY);
            }
            _ => {}
        }
    }
    assert_eq!(refused, 4);
}
