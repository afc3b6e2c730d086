//! Which contexts are sampled when contexts, modules and processes come and go.

mod pc_common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::WATCHDOG;
use parcagpu_tests::trace::{Trace, number};
use parcagpu_tests::{block, mock_log, need};
use pc_common::{SHORT, by_kernel, program, refusals, sound, two_kernels};
use serde_json::Value;

/// Contexts come and go; each one's samples arrive, and nothing is done to one that is gone.
#[test]
fn contexts_come_and_go() {
    if !need::bpf("contexts_come_and_go") {
        return;
    }
    let lab = Lab::new();
    let words: String = (0..6)
        .map(|i| format!("context module {i} launch sampled_{i} 100 sleep 20 destroy "))
        .collect();
    let trace = pc_common::attach(&lab);
    let late = format!("init {words} context module 9 launch sampled_9 400 sleep 200");
    program(&lab, &late).run(SHORT).ok();
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    let counts = by_kernel(&sound(&events));
    // Each ran for 100 ms; the last one still ran when the process ended.
    for i in [0, 1, 2, 3, 4, 5, 9] {
        let count = counts.get(&format!("sampled_{i}")).copied().unwrap_or(0);
        assert!(count > 5000, "{i}: {counts:?}");
    }
}

/// With a second sampled context CUPTI ends itself (the simulated one aborts): the first one is sampled, that another
/// one launches is told, and when the first is destroyed the other one takes its place. Nothing else is lost.
#[test]
fn one_context_at_a_time() {
    if !need::bpf("one_context_at_a_time") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let trace = pc_common::attach(&lab);
    let words = "init gate context module 0 keep 0 launch sampled_0 100 sync \
                 context module 1 keep 1 launch sampled_1 100 sync gate \
                 use 0 destroy use 1 gate launch sampled_1 200 sync gate";
    let mut host = program(&lab, words)
        .env("MOCK_LOG", &log)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    host.wait_gate(1);
    block::wait_state(host.pid(), &lab.library(), State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    trace.until("the other context is told of", |events| {
        events.iter().any(|e| e["probe"] == "error")
    });
    let before = trace.so_far().len();
    host.open_gate(2);
    host.wait_gate(3);
    let enabled = || {
        let calls = mock_log::read(&log);
        calls
            .iter()
            .filter(|c| c.name == "cuptiPCSamplingEnable")
            .count()
    };
    let deadline = Instant::now() + WATCHDOG;
    while enabled() < 2 {
        assert!(Instant::now() < deadline, "the other one is not sampled");
        std::thread::sleep(Duration::from_millis(20));
    }
    host.open_gate(3);
    host.wait_gate(4);
    trace.until("the other context's samples", |events| {
        events
            .iter()
            .any(|e| e["probe"] == "pc_sample_batch" && e["name"] == "sampled_1")
    });
    block::wait_delivered(host.pid(), &lab.library());
    let events = trace.end();
    host.open_gate(4);
    host.wait(SHORT).ok();
    let told: Vec<_> = refusals(&events);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains("one context only"), "{told:?}");
    let early = &events.all[..before];
    assert!(
        early
            .iter()
            .all(|e| e["name"] != "sampled_1" || e["probe"] != "pc_sample_batch")
    );
    assert_eq!(
        (events.launches().len(), events.records().len()),
        (400, 400)
    );
    assert!(by_kernel(&sound(&events)).contains_key("sampled_0"));
    assert_eq!(enabled(), 2);
}

/// A process that sees several GPUs may make a context on the first one and never use it: the one that launches is
/// sampled.
#[test]
fn an_idle_context_is_not_in_the_way() {
    if !need::bpf("an_idle_context_is_not_in_the_way") {
        return;
    }
    let lab = Lab::new();
    let trace = pc_common::attach(&lab);
    let host = program(&lab, "init context context module 1 flat sampled_1")
        .env("MOCK_CUDA_DEVICES", "2")
        .start();
    trace.until("samples of the second context", |events| {
        events
            .iter()
            .any(|e| e["probe"] == "pc_sample_batch" && e["name"] == "sampled_1")
    });
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
    assert_eq!(refusals(&trace.end()), []);
}

/// Two processes on one GPU: the second one's kernels are told, its samples only when the first one has ended.
#[test]
fn one_process_at_a_time() {
    if !need::bpf("one_process_at_a_time") {
        return;
    }
    let lab = Lab::new();
    let trace = pc_common::attach(&lab);
    let gpu = std::process::id().to_string();
    let start = || {
        let words = "init gate context module 0 flat sampled_0";
        let mut host = program(&lab, words)
            .env("MOCK_CUDA_GPU", &gpu)
            .env("PARCAGPU_RATE_LIMIT", "100")
            .start();
        host.wait_gate(1);
        block::wait_state(host.pid(), &lab.library(), State::Active);
        host.open_gate(1);
        host
    };
    let of = |events: &[Value], pid: u32, probe: &str| {
        let pid = u64::from(pid);
        events
            .iter()
            .filter(|e| e["probe"] == probe && e["pid"] == pid)
            .count()
    };
    let first = start();
    trace.until("samples of the first", |events| {
        of(events, first.pid(), "pc_sample_batch") > 0
    });
    let second = start();
    trace.until(
        "the second one is refused, and its kernels are told",
        |events| {
            of(events, second.pid(), "error") > 0 && of(events, second.pid(), "activity_batch") > 10
        },
    );
    block::wait_more_looks(second.pid(), &lab.library(), 3);
    let beside = trace.so_far();
    assert_eq!(of(&beside, second.pid(), "pc_sample_batch"), 0);
    first.signal(libc::SIGKILL);
    first.wait(SHORT);
    trace.until("samples of the second", |events| {
        of(events, second.pid(), "pc_sample_batch") > 0
    });
    second.signal(libc::SIGKILL);
    second.wait(SHORT);
    let events = trace.end();
    let told = refusals(&events);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].1.contains("another process samples GPU-"),
        "{told:?}"
    );
}

/// A module's samples are told before it is unloaded.
#[test]
fn modules_come_and_go() {
    if !need::bpf("modules_come_and_go") {
        return;
    }
    let lab = Lab::new();
    let words: String = (0..12)
        .map(|i| format!("module {i} launch sampled_{i} 10 sync launch other_{i} 5 sync unload "))
        .collect();
    let trace = pc_common::attach(&lab);
    program(&lab, &format!("init context {words} sleep 300"))
        .run(SHORT)
        .ok();
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    let mut loaded = BTreeMap::new();
    let mut sampled = BTreeSet::new();
    for event in &events.all {
        let crc = || number(event, "cubin_crc");
        match event["probe"].as_str() {
            Some("cubin_loaded") => drop(loaded.insert(crc(), true)),
            Some("cubin_unloaded") => drop(loaded.insert(crc(), false)),
            Some("pc_sample_batch") => {
                assert_eq!(loaded.get(&crc()), Some(&true), "{event}");
                sampled.insert(event["name"].as_str().map(str::to_owned));
            }
            _ => {}
        }
    }
    assert_eq!(sampled.len(), 24, "{sampled:?}");
}

/// A forked child does no harm, and the parent goes on.
#[test]
fn fork() {
    if !need::bpf("fork") {
        return;
    }
    let lab = Lab::new();
    let mut host = two_kernels(
        &lab,
        "spaced 100 1 fork sleep 300 exit 3 end gate spaced 100 1 sync",
    )
    .start();
    let trace = Trace::attach(&lab, &[host.pid()]);
    host.wait_gate(1);
    let before = trace.so_far().len();
    host.open_gate(1);
    let ended = host.wait(SHORT).ok();
    assert!(ended.stdout.contains("child exited 3"), "{}", ended.stdout);
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    sound(&events);
    let after = events.all[before..].iter();
    assert!(after.filter(|e| e["probe"] == "pc_sample_batch").count() > 8);
}

/// The end of the sampled context goes unseen while nobody listens, so that no other one may be sampled, which is told.
#[test]
fn a_context_that_goes_unseen_is_told_of() {
    if !need::bpf("a_context_that_goes_unseen_is_told_of") {
        return;
    }
    let lab = Lab::new();
    let words = "init gate context module 0 keep 0 context module 1 keep 1 use 0 launch sampled_0 20 sync gate \
                 use 0 destroy use 1 gate launch sampled_1 100 sync gate";
    let first = pc_common::attach(&lab);
    let mut host = program(&lab, words)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    host.wait_gate(1);
    block::wait_state(host.pid(), &lab.library(), State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    first.until("samples of the first", |events| {
        events.iter().any(|e| e["probe"] == "pc_sample_batch")
    });
    first.end();
    block::wait_state(host.pid(), &lab.library(), State::Dormant);
    host.open_gate(2);
    host.wait_gate(3);
    let second = pc_common::attach(&lab);
    block::wait_state(host.pid(), &lab.library(), State::Active);
    block::wait_looks(host.pid(), &lab.library());
    host.open_gate(3);
    second.until("the other context waits", |events| {
        events.iter().any(|e| e["probe"] == "error")
    });
    host.wait_gate(4);
    block::wait_delivered(host.pid(), &lab.library());
    host.open_gate(4);
    host.wait(SHORT).ok();
    let events = second.end();
    let told = refusals(&events);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains("while somebody listens"), "{told:?}");
    assert_eq!(events.of("pc_sample_batch").count(), 0);
    assert_eq!(
        (events.launches().len(), events.records().len()),
        (100, 100)
    );
}
