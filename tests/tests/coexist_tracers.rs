//! Programs that trace themselves with CUPTI while a consumer listens: they get all of theirs and
//! none of ours, and launches are told before and after.

use std::path::PathBuf;
use std::time::Duration;

use parcagpu_abi::status::State;
use parcagpu_tests::block;
use parcagpu_tests::hosts::{Case, Consumer, Told, compile, lab, one_error};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::together::at_once;

const LOAD: &str = "init launch 10 load libcupti.so.13";
const TRACE: &str = "subscribe register on launch 50 sync flush 0 off report unsubscribe";
const SHORT: Duration = Duration::from_secs(20);

fn tool(lab: &Lab) -> PathBuf {
    compile(lab, "coexist/tool.c", "tool", &[])
}

/// Turns that were told, each once.
#[track_caller]
fn turns(told: &Told) -> usize {
    let errors = told.errors();
    let mut turns: Vec<&str> = errors
        .iter()
        .filter(|e| e.0 == 39 && e.1 == "yield")
        .map(|e| e.2.as_str())
        .collect();
    assert_eq!(turns.len(), errors.len(), "other errors: {errors:?}");
    let count = turns.len();
    turns.sort_unstable();
    turns.dedup();
    assert_eq!(turns.len(), count, "a turn told twice");
    count
}

/// Before, during and after a trace of the program's own.
#[test]
fn a_trace() {
    if !need::bpf("a_trace") {
        return;
    }
    at_once(["0", "1"], |lock| {
        let lab = lab();
        let words = format!("{LOAD} {TRACE} gate launch 20 sync say done");
        let seen = Case::new(&lab, tool(&lab), &words)
            .env("MOCK_CUPTI_LOCK", lock)
            .back_at_gates(1)
            .check();
        assert!(
            seen.with
                .ended
                .stdout
                .contains("records 50 foreign 0 driver 0 other 0"),
            "{}",
            seen.with.ended.stdout
        );
        seen.launches(30);
        assert_eq!(turns(&seen.events), 1, "{:?}", seen.events.errors());
        let (_, _, message) = seen.one_error("CUPTI is held by");
        assert!(message.contains("/tool"), "{message}");
    });
}

/// What the status block says meanwhile, and that we are back.
#[test]
fn yielded_and_back() {
    if !need::bpf("yielded_and_back") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} gate subscribe register on launch 5 gate launch 5 sync flush 0 report off unsubscribe gate \
         launch 20 sync"
    );
    let case = Case::new(&lab, tool(&lab), &words);
    let consumer = Consumer::new(&lab);
    let mut host = case.build(Mode::Preload).start();
    let (pid, library) = (host.pid(), lab.library());
    host.wait_gate(1);
    block::wait_state(pid, &library, State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    for _ in 0..10 {
        let status = block::read(pid, &library).unwrap();
        assert_eq!(block::state(&status), State::Yielded);
        let holder = status.cupti_holder.load();
        assert!(holder.ends_with("/tool"), "{holder}");
        assert!(status.reason.load().contains(&holder));
        std::thread::sleep(Duration::from_millis(100));
    }
    host.open_gate(2);
    host.wait_gate(3);
    block::wait_state(pid, &library, State::Active);
    assert_eq!(block::read(pid, &library).unwrap().cupti_holder.load(), "");
    host.open_gate(3);
    let ended = host.wait(SHORT).ok();
    assert!(
        ended.stdout.contains("records 10 foreign 0"),
        "{}",
        ended.stdout
    );
    let told = consumer.end();
    assert_eq!(told.launches().len(), 30);
    assert_eq!(turns(&told), 1);
}

/// A consumer that comes while the program traces waits for its end, and loses nothing after it.
#[test]
fn consumer_comes_meanwhile() {
    if !need::bpf("consumer_comes_meanwhile") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe register on launch 5 gate launch 5 sync flush 0 report off unsubscribe gate launch 20 \
         sync gate"
    );
    let case = Case::new(&lab, tool(&lab), &words);
    let mut host = case.build(Mode::Preload).start();
    let (pid, library) = (host.pid(), lab.library());
    host.wait_gate(1);
    let early = Consumer::new(&lab);
    block::wait_state(pid, &library, State::Yielded);
    assert!(early.end().launches().is_empty());
    block::wait_state(pid, &library, State::Dormant);
    // One that comes before it was noticed that the other one has gone is told what there was some seconds later.
    block::wait_semaphores(pid, &library, 0);
    block::wait_looks(pid, &library);
    let consumer = Consumer::new(&lab);
    block::wait_state(pid, &library, State::Yielded);
    let reason = block::read(pid, &library).unwrap().reason.load();
    assert!(reason.contains("CUPTI is held by"), "{reason}");
    host.open_gate(1);
    host.wait_gate(2);
    block::wait_state(pid, &library, State::Active);
    host.open_gate(2);
    host.open_gate(3);
    let ended = host.wait(SHORT).ok();
    assert!(
        ended.stdout.contains("records 10 foreign 0"),
        "{}",
        ended.stdout
    );
    let told = consumer.end();
    assert_eq!(told.launches().len(), 20);
    one_error(&told, "CUPTI is held by");
}

/// A hundred traces, one after the other.
#[test]
fn a_hundred_traces() {
    if !need::bpf("a_hundred_traces") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} repeat 100 subscribe register on launch 2 sync flush 0 off unsubscribe launch 1 end report \
         gate launch 5 sync"
    );
    let seen = Case::new(&lab, tool(&lab), &words).back_at_gates(1).check();
    let stdout = &seen.with.ended.stdout;
    assert!(stdout.contains("records 200 foreign 0"), "{stdout}");
    let count = seen.events.launches().len();
    // Those between two traces may be seen, those of the traces may not.
    assert!((15..=115).contains(&count), "{count}");
    seen.launches(count);
    assert!((1..=100).contains(&turns(&seen.events)));
}

/// A subscriber that comes and goes a hundred times, as soon as we are back: we are so each time, and each turn
/// that we had to leave for is told once.
#[test]
fn a_hundred_subscribers() {
    if !need::bpf("a_hundred_subscribers") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} repeat 100 subscribe launches 1 launch 1 launches 0 unsubscribe gate launch 1 end report \
         launch 5 sync"
    );
    let seen = Case::new(&lab, tool(&lab), &words)
        .back_at_gates(100)
        .check();
    let stdout = &seen.with.ended.stdout;
    assert!(
        stdout.contains("records 0 foreign 0 driver 200"),
        "{stdout}"
    );
    seen.launches(115);
    assert_eq!(turns(&seen.events), 100);
}

/// As torch.profiler: the subscription stays, the kinds go off. We come back as a guest, its callbacks
/// go on as bare, and the next trace has all its records.
#[test]
fn quiet_tracer() {
    if !need::bpf("quiet_tracer") {
        return;
    }
    let own = [
        "",
        "resource 1",
        "resource 1 launches 1",
        "all 1",
        "launches 1 launches 0",
    ];
    at_once(own, |own| {
        let lab = lab();
        let words = format!(
            "{LOAD} subscribe register {own} on launch 10 sync flush 0 off report gate \
             launch 20 module sync report on launch 30 sync flush 0 off report launch 3 sync \
             gate launch 5 module sync report"
        );
        let seen = Case::new(&lab, tool(&lab), &words).back_at_gates(2).check();
        let stdout = &seen.with.ended.stdout;
        for records in ["records 10 foreign 0", "records 30 foreign 0"] {
            assert!(stdout.contains(records), "{own}: {stdout}");
        }
        // The three after the second trace come before the tool counts as quiet, unless it stands still for as long.
        let count = seen.events.launches().len();
        assert!((35..=38).contains(&count), "{own}: {count}");
        seen.launches(count);
        let told = turns(&seen.events);
        assert_eq!(told, 2, "{own}: {:?}", seen.events.errors());
    });
}

/// A quiet tracer that switches callbacks while we are its guest, ends its subscription then, and
/// subscribes anew.
#[test]
fn guest_of_a_tracer_that_moves() {
    if !need::bpf("guest_of_a_tracer_that_moves") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe register on launch 10 sync flush 0 off report gate launch 20 sync \
         launches 1 launch 4 launches 0 launch 4 resource 1 module sync report unsubscribe gate launch 6 \
         sync subscribe launches 1 launch 2 unsubscribe report {TRACE} gate launch 5 sync"
    );
    let seen = Case::new(&lab, tool(&lab), &words).back_at_gates(3).check();
    let stdout = &seen.with.ended.stdout;
    assert!(stdout.contains("records 50 foreign 0"), "{stdout}");
    let count = seen.events.launches().len();
    // Four come after it has switched a callback of ours off, which our thread sees at its next look.
    assert!((45..=49).contains(&count), "{count}");
    seen.launches(count);
}

/// A tool that takes records and never subscribes.
#[test]
fn activity_only() {
    if !need::bpf("activity_only") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} register on launch 50 sync flush 0 off report gate launch 20 sync \
         on launch 30 sync flush 0 off report gate launch 5 sync report"
    );
    let seen = Case::new(&lab, tool(&lab), &words).back_at_gates(2).check();
    let stdout = &seen.with.ended.stdout;
    assert!(stdout.contains("records 50 foreign 0"), "{stdout}");
    assert!(stdout.contains("records 30 foreign 0"), "{stdout}");
    seen.launches(35);
    assert_eq!(turns(&seen.events), 2, "{:?}", seen.events.errors());
}

/// The tool's libcupti is another one than ours, or mapped in other ways and long after the start.
#[test]
fn ways_to_cupti() {
    if !need::bpf("ways_to_cupti") {
        return;
    }
    let path = parcagpu_tests::artefacts::sim().join("libcupti.so.13");
    // Another file, a path, a name; and loaded before the driver.
    let cases = [
        format!("init launch 10 sync gate loadlocal {}", path.display()),
        format!("init launch 10 sync gate load {}", path.display()),
        "init launch 10 sync gate loadlocal libcupti.so.13".to_owned(),
        "load libcupti.so.13 init launch 10".to_owned(),
    ];
    at_once(cases, |load| {
        let lab = lab();
        let words = format!("{load} {TRACE} gate launch 20 sync");
        let library = lab.library();
        // Long after the start is after some looks of our thread; then we are back.
        let mut case = Case::new(&lab, tool(&lab), &words);
        if load.contains("gate") {
            case = case.at_gate(|pid| block::wait_looks(pid, &library));
        }
        let seen = case.back_at_gates(1).check();
        let stdout = &seen.with.ended.stdout;
        assert!(stdout.contains("records 50 foreign 0"), "{load}: {stdout}");
        seen.launches(30);
        assert_eq!(turns(&seen.events), 1, "{load}");
    });
}

/// A libcupti in a namespace of its own, which sees a driver of its own: as bare.
#[test]
fn cupti_in_another_namespace() {
    if !need::bpf("cupti_in_another_namespace") {
        return;
    }
    let lab = lab();
    let words = format!("init launch 10 sync loadspace libcupti.so.13 {TRACE} gate launch 20 sync");
    let seen = Case::new(&lab, tool(&lab), &words)
        .unlogged()
        .back_at_gates(1)
        .check();
    let count = seen.events.launches().len();
    assert!((30..=80).contains(&count), "{count}");
    seen.launches(count);
}
