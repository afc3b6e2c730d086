//! Threads, forks, and the thread of ours that looks at batches.

mod nvtx_common;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use nvtx_common::{INJECTION, SHORT, at_first_gate, attach, injected, names, program, ready, said};
use parcagpu_tests::block::{threads, wait_semaphores};
use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::{Running, WATCHDOG};
use parcagpu_tests::trace::{Trace, number};
use serde_json::Value;

fn ours(running: &Running) -> usize {
    threads(running.pid())
        .iter()
        .filter(|n| *n == "parcagpu")
        .count()
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn without_cuda_our_thread_lives_while_somebody_listens() {
    let Some(wheels) = ready("without_cuda_our_thread_lives_while_somebody_listens") else {
        return;
    };
    let lab = Lab::new();
    let idle = program(&lab, &wheels, "idle.c");
    let mut running = at_first_gate(injected(&lab, idle));
    assert_eq!(
        threads(running.pid()).len(),
        1,
        "{:?}",
        threads(running.pid())
    );

    let trace = attach(&lab);
    assert_eq!(ours(&running), 0, "no event has seen the consumer");
    running.open_gate(1);
    // The program sleeps at its next gate; its batch is flushed all the same, and late names come.
    until("everything is told", || {
        let events = trace.so_far();
        said(&events).len() == 2 && names(&events).len() == 2
    });
    assert_eq!(ours(&running), 1);
    let events = trace.so_far();
    let story: Vec<_> = said(&events)
        .iter()
        .map(|s| (s.kind.clone(), s.domain.clone(), s.message.clone()))
        .collect();
    let line = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(
        story,
        [
            line("push", "", "then it sleeps"),
            line("mark", "early domain", "in the domain")
        ]
    );
    let pid = u64::from(running.pid());
    let thread = names(&events).remove(&("os_thread".to_owned(), pid));
    assert_eq!(thread.as_deref(), Some("early thread"));
    // Not one by one, but when the oldest is 100 ms old. Those of a batch are told at the same time.
    let mut oldest: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events.iter().filter(|e| e["probe"] == "nvtx_event_batch") {
        let [told, said] = ["time_ns", "timestamp_ns"].map(|field| number(event, field));
        let age = oldest.entry(told).or_default();
        *age = (*age).max(told - said);
    }
    for age in oldest.values() {
        assert!(*age >= 90_000_000, "flushed at an age of {age} ns");
    }

    trace.end();
    // The kernel takes the consumer's attachments back at its leisure.
    wait_semaphores(running.pid(), &lab.library(), 0);
    until("our thread is gone", || ours(&running) == 0);
    running.open_gate(2);
    running.wait_gate(3);
    assert_eq!(
        threads(running.pid()).len(),
        1,
        "{:?}",
        threads(running.pid())
    );

    // And again.
    let trace = attach(&lab);
    running.open_gate(3);
    until("the second consumer is told", || {
        said(&trace.so_far()).len() == 2
    });
    assert_eq!(ours(&running), 1);
    drop(running);
    trace.end();
}

#[test]
fn nobody_listens_and_nothing_happens() {
    let Some(wheels) = ready("nobody_listens_and_nothing_happens") else {
        return;
    };
    let lab = Lab::new();
    let storm = program(&lab, &wheels, "storm.c");
    let quiet = injected(&lab, storm).words("8 3600 50 5").start();
    until("the storm blows", || threads(quiet.pid()).len() > 4);
    assert_eq!(ours(&quiet), 0);
    quiet.signal(libc::SIGUSR1);
    quiet.wait(SHORT).ok();
}

/// What each process said it did: pairs of pushes and pops, and of starts and ends.
fn done(stdout: &str) -> HashMap<u64, (u64, u64)> {
    stdout
        .lines()
        .map(|line| {
            let n: Vec<u64> = line
                .split(' ')
                .map(|n| n.parse().expect("a number"))
                .collect();
            (n[0], (n[1], n[2]))
        })
        .collect()
}

/// Every pair of every thread is there, in order, and nothing else.
#[track_caller]
fn check_pairs(events: &[Value], done: &HashMap<u64, (u64, u64)>) {
    let mut found: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut stacks: HashMap<(u64, u64), Vec<String>> = HashMap::new();
    let mut open: HashMap<(u64, u64), u64> = HashMap::new();
    for s in said(events) {
        let stack = stacks.entry((s.pid, s.thread)).or_default();
        let counts = found.entry(s.pid).or_default();
        match s.kind.as_str() {
            "push" => stack.push(s.message),
            "pop" => {
                let name = stack
                    .pop()
                    .unwrap_or_else(|| panic!("a pop without push: {s:?}"));
                assert_eq!(
                    name == "inner",
                    stack.len() == 1,
                    "{name} at depth {}",
                    stack.len()
                );
                counts.0 += 1;
            }
            "start" => assert_eq!(open.insert((s.pid, s.range), s.thread), None, "an id twice"),
            "end" => {
                assert_eq!(open.remove(&(s.pid, s.range)), Some(s.thread));
                counts.1 += 1;
            }
            _ => {}
        }
    }
    assert!(stacks.values().all(Vec::is_empty), "pushes without pop");
    assert!(open.is_empty(), "starts without end");
    assert_eq!(&found, done);
}

/// A consumer that may come late to what is said, MiB of it.
#[track_caller]
fn attach_with_room(lab: &Lab, mib: u32) -> Trace {
    let library = lab.library();
    Trace::attach_with(
        lab,
        &[],
        &format!("--ring-mib {mib} --lib {}", library.display()),
    )
}

#[test]
fn no_pair_is_lost_in_a_storm_of_threads_and_forks() {
    let Some(wheels) = ready("no_pair_is_lost_in_a_storm_of_threads_and_forks") else {
        return;
    };
    let lab = Lab::new();
    let storm = program(&lab, &wheels, "storm.c");
    let trace = attach_with_room(&lab, 256);
    // The pause keeps the reader of a shared machine in sight.
    let ended = injected(&lab, storm)
        .words("64 2 10000 40")
        .run(Duration::from_secs(30))
        .ok();
    let events = trace.end();
    assert!(
        events.stderr.contains("0 events dropped"),
        "{}",
        events.stderr
    );
    let done = done(&ended.stdout);
    assert_eq!(done.len(), 41, "{}", ended.stdout);
    check_pairs(&events.all, &done);
    assert_eq!(events.errors(), []);
}

#[test]
fn threads_that_end_at_once_are_heard() {
    let Some(wheels) = ready("threads_that_end_at_once_are_heard") else {
        return;
    };
    let lab = Lab::new();
    let storm = program(&lab, &wheels, "storm.c");
    let trace = attach_with_room(&lab, 64);
    // No time for any timer: what the ends of threads and of the process flush is all there is.
    let ended = injected(&lab, storm).words("4 0.02 0 1").run(SHORT).ok();
    let events = trace.end();
    assert!(
        events.stderr.contains("0 events dropped"),
        "{}",
        events.stderr
    );
    check_pairs(&events.all, &done(&ended.stdout));
}

/// What a thread has said when the process begins to end is told, also where the thread goes on and has its batch in
/// hand at that moment.
#[test]
fn a_thread_that_talks_on_while_the_process_ends() {
    let Some(wheels) = ready("a_thread_that_talks_on_while_the_process_ends") else {
        return;
    };
    let lab = Lab::new();
    let talker = program(&lab, &wheels, "talker.c");
    let trace = attach_with_room(&lab, 64);
    let runs: Vec<_> = (0..4)
        .map(|_| {
            let running = injected(&lab, &talker).start();
            let pid = u64::from(running.pid());
            let ended = running.wait(SHORT).ok();
            let count: usize = ended.stdout.trim().parse().expect("a number");
            (pid, count)
        })
        .collect();
    let events = trace.end();
    assert!(
        events.stderr.contains("0 events dropped"),
        "{}",
        events.stderr
    );
    let mut told: HashMap<u64, Vec<usize>> = HashMap::new();
    for event in said(&events.all) {
        if let Some(number) = event.message.strip_prefix("number ") {
            let number = number.parse().expect("a number");
            told.entry(event.pid).or_default().push(number);
        }
    }
    for (pid, count) in runs {
        let told = told.remove(&pid).unwrap_or_default();
        let missing: Vec<usize> = (0..count).filter(|n| told.get(*n) != Some(n)).collect();
        assert!(missing.is_empty(), "of {count} not told: {missing:?}");
    }
}

#[test]
fn consumers_come_and_go_in_a_storm() {
    let Some(wheels) = ready("consumers_come_and_go_in_a_storm") else {
        return;
    };
    let lab = Lab::new();
    let storm = program(&lab, &wheels, "storm.c");
    let mut running = injected(&lab, storm).words("16 3600 20000 10").start();
    let mut told = 0;
    while told < 5 {
        let trace = attach(&lab);
        std::thread::sleep(Duration::from_millis(150));
        if told % 2 == 0 {
            trace.kill();
        } else {
            trace.until("what the storm says", |events| !said(events).is_empty());
            trace.end();
            assert!(running.runs(), "{}", running.stderr());
        }
        told += 1;
    }
    running.signal(libc::SIGUSR1);
    running.wait(SHORT).ok();
}

#[test]
fn switched_off_it_serves_nothing() {
    let Some(wheels) = ready("switched_off_it_serves_nothing") else {
        return;
    };
    let lab = Lab::new();
    let every = program(&lab, &wheels, "every.c");
    let trace = attach(&lab);
    let off = injected(&lab, &every)
        .env("PARCAGPU_DISABLE", "1")
        .run(SHORT)
        .ok();
    // Another tool's name in the variable: we are not even loaded.
    let other = injected(&lab, &every)
        .env(INJECTION, "/nonexistent.so")
        .run(SHORT)
        .ok();
    let events = trace.end();
    assert_eq!(events.all, Vec::<Value>::new());
    assert!(off.stdout.contains("resource 0"), "{}", off.stdout);
    assert_eq!(off.stderr, "");
    assert!(other.stdout.contains("plain -2 -2"), "{}", other.stdout);
}

#[test]
fn calls_while_threads_and_the_process_end_are_heard() {
    let Some(wheels) = ready("calls_while_threads_and_the_process_end_are_heard") else {
        return;
    };
    let lab = Lab::new();
    let late = program(&lab, &wheels, "late.c");
    let trace = attach(&lab);
    injected(&lab, late).run(SHORT).ok();
    let events = trace.end();
    let story: Vec<_> = said(&events.all).into_iter().map(|s| s.message).collect();
    assert_eq!(
        story,
        [
            "of the thread",
            "destructor of a thread",
            "of main",
            "at exit",
            "destructor of the program"
        ]
    );
}

#[test]
fn a_second_copy_leaves_its_clients_to_the_first() {
    let Some(wheels) = ready("a_second_copy_leaves_its_clients_to_the_first") else {
        return;
    };
    let lab = Lab::new();
    let second = lab.file("second.so");
    fs::copy(lab.library(), &second).expect("room for a copy");
    let every = program(&lab, &wheels, "every.c");
    let trace = attach(&lab);
    injected(&lab, every)
        .env("LD_PRELOAD", lab.library())
        .env(INJECTION, &second)
        .run(SHORT)
        .ok();
    assert_eq!(said(&trace.end().all).len(), 30);
}
