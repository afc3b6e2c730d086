//! Consumers coming and going: what they switch on goes off again, and nothing is left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::{
    self, wait_delivered, wait_looks, wait_more_looks, wait_semaphores, wait_state,
};
use parcagpu_tests::full;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::{self, Call, count};
use parcagpu_tests::need;
use parcagpu_tests::trace::Trace;

const SHORT: Duration = Duration::from_secs(10);

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// What was switched on and not off again, of callbacks and kinds of activity, with the calls that did; at times CUPTI
/// refuses a call, and it is made once more.
fn left_on(calls: &[Call]) -> BTreeMap<String, Vec<&Call>> {
    let mut on: BTreeMap<String, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        let (what, is_on) = match call.name.as_str() {
            "cuptiEnableCallback" => {
                let (state, what) = call.arguments.split_once(' ').expect("what is switched");
                (format!("callback {what}"), state == "1")
            }
            "cuptiActivityEnable" => (format!("activity {}", call.arguments), true),
            "cuptiActivityDisable" => (format!("activity {}", call.arguments), false),
            _ => continue,
        };
        if is_on {
            on.entry(what).or_default().push(call);
        } else if call.result == 0 {
            on.remove(&what);
        }
    }
    on
}

/// A consumer of a program that runs makes it active, leaving makes it dormant; what was switched on was
/// switched off.
#[test]
fn joining_and_leaving() {
    if !need::bpf("joining_and_leaving") {
        return;
    }
    let lab = Lab::new();
    for mode in Mode::WITH {
        let log = lab.file(&format!("{mode:?}.log"));
        let mut host = lab
            .host(
                mode,
                "init say up thread spaced 200 3600 end gate stop join",
            )
            .env("MOCK_LOG", &log)
            .start();
        host.wait_stdout("up");
        wait_state(host.pid(), &lab.library(), State::Dormant);
        wait_looks(host.pid(), &lab.library());
        let consumer = agent(&lab);
        wait_state(host.pid(), &lab.library(), State::Active);
        assert!(
            consumer.poll_until(|events| events.iter().any(|e| e.kind == Kind::Record)),
            "{mode:?}: records come"
        );
        drop(consumer);
        wait_state(host.pid(), &lab.library(), State::Dormant);
        // Buffers that are still out are asked for, once a second; then nothing is called any more.
        wait_delivered(host.pid(), &lab.library());
        wait_looks(host.pid(), &lab.library());
        let calls = || mock_log::read(&log).iter().filter(|c| c.is_cupti()).count();
        let before = calls();
        wait_more_looks(host.pid(), &lab.library(), 12);
        let after = calls();
        let new: Vec<Call> = mock_log::read(&log)
            .into_iter()
            .filter(Call::is_cupti)
            .skip(before)
            .take(20)
            .collect();
        assert_eq!(
            after,
            before,
            "{mode:?}: {new:?}, semaphores {:?}",
            block::semaphores(host.pid(), &lab.library())
        );
        let calls = mock_log::read(&log);
        assert_eq!(count(&calls, "cuptiSubscribe"), 1, "{mode:?}");
        assert_eq!(count(&calls, "cuptiUnsubscribe"), 1, "{mode:?}");
        let left_on = left_on(&calls);
        assert_eq!(left_on, BTreeMap::new(), "{mode:?}: {calls:?}");
        assert_eq!(count(&calls, "cuptiFinalize"), 0, "never in a live program");
        host.open_gate(1);
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
    let mut host = lab
        .host(Mode::Preload, "init say up spaced 500 3600")
        .env("MOCK_CUPTI_BUFFER_RECORDS", "8")
        .start();
    host.wait_stdout("up");
    let mut held = Vec::new();
    for turn in 0..20 {
        let consumer = agent(&lab);
        wait_state(host.pid(), &lab.library(), State::Active);
        // The simulated CUPTI has a thread of its own from its first full buffer on.
        let enough = if turn == 0 { 40 } else { 1 };
        let seen = consumer.poll_until(|events| events.len() >= enough);
        assert!(seen, "turn {turn}");
        drop(consumer);
        wait_state(host.pid(), &lab.library(), State::Dormant);
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
    let turns_wanted = full::pick(30, 300);
    let mut host = lab
        .host(
            Mode::Preload,
            "init say up thread spaced 1000 3600 end thread spaced 1000 3600 end gate stop join count",
        )
        .env("MOCK_LOG", &log)
        .start();
    host.wait_stdout("up");
    let mut consumer = Agent::load(Options::default()).unwrap();
    for turn in 0..turns_wanted {
        consumer
            .attach(&lab.library(), -1, "activity_batch")
            .unwrap();
        consumer
            .attach(&lab.library(), -1, "cuda_correlation")
            .unwrap();
        // Now shorter, now longer than our thread's period.
        std::thread::sleep(Duration::from_millis([0, 30, 150][turn % 3]));
        consumer.detach();
    }
    // A look that saw the last of them may still be under way.
    wait_semaphores(host.pid(), &lab.library(), 0);
    wait_looks(host.pid(), &lab.library());
    wait_state(host.pid(), &lab.library(), State::Dormant);
    let calls = mock_log::read(&log);
    assert_eq!(
        count(&calls, "cuptiSubscribe"),
        count(&calls, "cuptiUnsubscribe")
    );
    assert_eq!(left_on(&calls), BTreeMap::new());
    host.open_gate(1);
    let ended = host.wait(SHORT).ok();
    let launched = count(&mock_log::read(&log), "cuLaunchKernel");
    assert!(
        ended
            .stdout
            .ends_with(&format!("launched {launched} replayed 0\n")),
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
    let mut host = lab
        .host(Mode::Preload, "init say up spaced 200 3600")
        .start();
    host.wait_stdout("up");
    let trace = Trace::attach(&lab, &[host.pid()]);
    wait_state(host.pid(), &lab.library(), State::Active);
    trace.kill();
    wait_state(host.pid(), &lab.library(), State::Dormant);
    let again = Trace::attach(&lab, &[host.pid()]);
    wait_state(host.pid(), &lab.library(), State::Active);
    again.until("the next one sees launches", |events| {
        events.iter().any(|e| e["probe"] == "cuda_correlation")
    });
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
        "init inject {} 8 gate launch 10 sync gate",
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
    // A second one would be there by the time the first one has looked.
    wait_state(host.pid(), &lab.library(), State::Active);
    wait_looks(host.pid(), &lab.library());
    let ours = block::threads(host.pid())
        .iter()
        .filter(|name| *name == "parcagpu")
        .count();
    assert_eq!(ours, 1);
    host.open_gate(1);
    host.open_gate(2);
    host.wait(SHORT).ok();
    assert_eq!(count(&mock_log::read(&log), "cuptiSubscribe"), 1);
    assert_eq!(consumer.of(Kind::Correlation).len(), 10);
    consumer.assert_records(10);
}
