//! Consumers coming and going: what they switch on goes off again, and nothing is left behind.

use std::time::{Duration, Instant};

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::{self, wait_state};
use parcagpu_tests::full;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::{self, count};
use parcagpu_tests::need;
use parcagpu_tests::trace::Trace;

const SHORT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// A consumer of a program that runs makes it active, leaving makes it dormant, each within a second;
/// what was switched on was switched off.
#[test]
fn joining_and_leaving() {
    if !need::bpf("joining_and_leaving") {
        return;
    }
    let lab = Lab::new();
    for mode in Mode::WITH {
        let log = lab.file(&format!("{mode:?}.log"));
        let mut host = lab
            .host(mode, "init say up thread spaced 200 6 end join")
            .env("MOCK_LOG", &log)
            .start();
        host.wait_stdout("up");
        wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
        std::thread::sleep(Duration::from_millis(700));
        let consumer = agent(&lab);
        wait_state(host.pid(), &lab.library(), State::Active, SECOND);
        assert!(
            consumer.poll_until(SECOND * 3, |events| events
                .iter()
                .any(|e| e.kind == Kind::Record)),
            "{mode:?}: records come"
        );
        drop(consumer);
        wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
        // Buffers that are still out are asked for, then nothing is called any more: a second is quiet.
        let calls = || mock_log::read(&log).iter().filter(|c| c.is_cupti()).count();
        let (deadline, mut before) = (Instant::now() + SECOND * 4, usize::MAX);
        while before != calls() {
            before = calls();
            assert!(Instant::now() < deadline, "{mode:?}: {before} calls");
            std::thread::sleep(SECOND);
        }
        let calls = mock_log::read(&log);
        assert_eq!(count(&calls, "cuptiSubscribe"), 1, "{mode:?}");
        assert_eq!(count(&calls, "cuptiUnsubscribe"), 1, "{mode:?}");
        assert_eq!(
            count(&calls, "cuptiActivityEnable"),
            count(&calls, "cuptiActivityDisable"),
            "{mode:?}"
        );
        let switched = |on: &str| {
            let of = calls
                .iter()
                .filter(|c| c.name == "cuptiEnableCallback" && c.arguments.starts_with(on));
            of.count()
        };
        assert!(
            switched("1 ") > 0 && switched("1 ") == switched("0 "),
            "{mode:?}"
        );
        assert_eq!(count(&calls, "cuptiFinalize"), 0, "never in a live program");
        host.wait(SHORT).ok();
    }
}

/// Twenty consumers in turn: no descriptor, thread or mapping more than after the third, and events
/// for the last as for the first.
#[test]
fn twenty_consumers_in_turn() {
    if !need::bpf("twenty_consumers_in_turn") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab.host(Mode::Preload, "init say up spaced 500 30").start();
    host.wait_stdout("up");
    let mut held = Vec::new();
    for turn in 0..20 {
        let consumer = agent(&lab);
        wait_state(host.pid(), &lab.library(), State::Active, SECOND);
        let seen = consumer.poll_until(SECOND * 2, |events| !events.is_empty());
        assert!(seen, "turn {turn}");
        drop(consumer);
        wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
        held.push(block::holdings(host.pid()));
    }
    let (early, late) = (held[2], held[19]);
    assert_eq!(
        (early.0, early.1),
        (late.0, late.1),
        "descriptors and threads: {held:?}"
    );
    // Buffers that CUPTI still has are memory of their own for a while.
    assert!(late.2 <= early.2 + 4, "mappings: {held:?}");
    let activations = block::counter(host.pid(), &lab.library(), Counter::Activations);
    assert_eq!(activations, 20);
}

/// A consumer that attaches and detaches as fast as it can: what was switched on is switched off, and the
/// program runs on.
#[test]
fn flapping_consumer() {
    if !need::bpf("flapping_consumer") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let seconds = full::pick(3, 30);
    let run = seconds + 1;
    let mut host = lab
        .host(
            Mode::Preload,
            &format!(
                "init say up thread spaced 1000 {run} end thread spaced 1000 {run} end join count"
            ),
        )
        .env("MOCK_LOG", &log)
        .start();
    host.wait_stdout("up");
    let mut consumer = Agent::load(Options::default()).unwrap();
    let (began, mut turns) = (Instant::now(), 0);
    while began.elapsed() < SECOND * seconds {
        consumer
            .attach(&lab.library(), -1, "activity_batch")
            .unwrap();
        consumer
            .attach(&lab.library(), -1, "cuda_correlation")
            .unwrap();
        // Now shorter, now longer than our thread's period.
        std::thread::sleep(Duration::from_millis([0, 30, 150][turns % 3]));
        consumer.detach();
        turns += 1;
    }
    wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
    let calls = mock_log::read(&log);
    assert_eq!(
        count(&calls, "cuptiSubscribe"),
        count(&calls, "cuptiUnsubscribe")
    );
    assert_eq!(
        count(&calls, "cuptiActivityEnable"),
        count(&calls, "cuptiActivityDisable")
    );
    assert!(turns >= 10, "{turns}");
    let ended = host.wait(SHORT).ok();
    assert!(
        ended
            .stdout
            .ends_with(&format!("launched {} replayed 0\n", 2000 * run)),
        "{}",
        ended.stdout
    );
}

/// A consumer that is killed leaves as one that detaches.
#[test]
fn killed_consumer() {
    if !need::bpf("killed_consumer") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab.host(Mode::Preload, "init say up spaced 200 20").start();
    host.wait_stdout("up");
    let trace = Trace::attach(&lab, &[host.pid()]);
    wait_state(host.pid(), &lab.library(), State::Active, SECOND);
    trace.kill();
    wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
    let again = Trace::attach(&lab, &[host.pid()]);
    wait_state(host.pid(), &lab.library(), State::Active, SECOND);
    let deadline = Instant::now() + SHORT;
    let sees = |again: &Trace| {
        let events = again.so_far();
        events.iter().any(|e| e["probe"] == "cuda_correlation")
    };
    while !sees(&again) {
        assert!(Instant::now() < deadline, "the next one sees no launches");
        std::thread::sleep(Duration::from_millis(20));
    }
    again.end();
}

/// Eight threads call `InitializeInjection` at once: one session, and it works.
#[test]
fn initialised_by_eight_threads() {
    if !need::bpf("initialised_by_eight_threads") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let words = format!(
        "init inject {} 8 launch 10 sync gate",
        lab.library().display()
    );
    let log = lab.file("calls");
    let mut host = lab
        .host(Mode::Bare, &words)
        .env("MOCK_LOG", &log)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    host.wait_gate(1);
    assert!(host.stdout().contains("injected 8\n"));
    let ours = block::threads(host.pid())
        .iter()
        .filter(|name| *name == "parcagpu")
        .count();
    assert_eq!(ours, 1);
    host.open_gate(1);
    host.wait(SHORT).ok();
    assert_eq!(count(&mock_log::read(&log), "cuptiSubscribe"), 1);
    assert_eq!(consumer.of(Kind::Correlation).len(), 10);
    assert_eq!(consumer.of(Kind::Record).len(), 10);
}
