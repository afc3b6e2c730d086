//! PC sampling in serialized mode. The simulated CUPTI ends a program that starts or stops it while a launch is
//! inside, where the real one hangs.

mod pc_common;

use std::collections::BTreeSet;

use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::Program;
use parcagpu_tests::trace::number;
use parcagpu_tests::{block, mock_log, need};
use pc_common::{SHORT, program, refusals, sound, two_kernels};

fn serialized(program: Program) -> Program {
    program.env("PARCAGPU_PC_SAMPLING_MODE", "serialized")
}

/// Every sample's launch was announced, whichever of several threads made it.
#[test]
fn samples_have_their_launches() {
    announced("samples_have_their_launches", "0");
}

/// Also where CUPTI takes its time to switch callbacks, and one thread finds another at it.
#[test]
fn samples_have_their_launches_when_switching_is_slow() {
    announced("samples_have_their_launches_when_switching_is_slow", "500");
}

#[track_caller]
fn announced(name: &str, switch_us: &str) {
    if !need::bpf(name) {
        return;
    }
    let lab = Lab::new();
    let trace = pc_common::attach(&lab);
    let words = "thread spaced 50 3600 end thread spaced 20 3600 end thread flat 3600 end gate stop join sync";
    // A kernel has to wait for all that is queued: that is not much here.
    let mut host = serialized(two_kernels(&lab, words))
        .env("MOCK_CUDA_QUEUE", "4")
        .env("MOCK_CUPTI_SWITCH_US", switch_us)
        .start();
    trace.until(
        "samples of fifty launches, and launches of all threads",
        |events| {
            let of = |probe: &str, field: &str| {
                let of = events.iter().filter(|e| e["probe"] == probe);
                of.map(|e| number(e, field))
                    .collect::<BTreeSet<u64>>()
                    .len()
            };
            of("pc_sample_batch", "correlation_id") >= 50 && of("cuda_correlation", "tid") == 3
        },
    );
    host.open_gate(1);
    host.wait(SHORT).ok();
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    let samples = sound(&events);
    let announced: BTreeSet<u64> = events.launches().into_iter().collect();
    let records: BTreeSet<u64> = events.records().into_iter().collect();
    let sampled: BTreeSet<u64> = samples.iter().map(|s| s.id).collect();
    assert!(
        sampled.len() >= 50 && !sampled.contains(&0),
        "{}",
        sampled.len()
    );
    assert!(sampled.is_subset(&announced) && sampled.is_subset(&records));
    let threads: BTreeSet<u64> = events
        .of("cuda_correlation")
        .filter_map(|e| e["tid"].as_u64())
        .collect();
    assert_eq!(threads.len(), 3);
}

/// Every sample has its launch, also in a window of many short kernels.
#[test]
fn a_window_of_many_places() {
    if !need::bpf("a_window_of_many_places") {
        return;
    }
    let lab = Lab::new();
    let trace = pc_common::attach(&lab);
    let words = "thread flat 3600 end gate stop join sync";
    let mut host = serialized(two_kernels(&lab, words))
        .env("MOCK_CUDA_KERNEL_NS", "200000")
        .env("MOCK_CUPTI_PC", "per-ms:2000,pcs:200")
        .start();
    // More than CUPTI would keep by itself, in one window at least: what is told of it comes at once. How many
    // kernels a window has is up to the machine.
    trace.until("a window of many places", |events| {
        let samples = events.iter().filter(|e| e["probe"] == "pc_sample_batch");
        let times: Vec<u64> = samples.map(|e| number(e, "time_ns")).collect();
        let windows = times.chunk_by(|a, b| b.saturating_sub(*a) < 50_000_000);
        windows.map(<[_]>::len).max() > Some(1500)
    });
    host.open_gate(1);
    host.wait(SHORT).ok();
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    let samples = sound(&events);
    assert!(samples.iter().all(|s| s.id != 0));
}

/// A program that launches no more has its window closed, and its samples told.
#[test]
fn a_window_ends_without_launches() {
    if !need::bpf("a_window_ends_without_launches") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let trace = pc_common::attach(&lab);
    // Spaced: a burst may fall between a request that is taken back and the next one.
    let mut host = serialized(two_kernels(
        &lab,
        "thread spaced 50 3600 end gate stop join sync gate",
    ))
    .env("MOCK_LOG", &log)
    .start();
    host.wait_gate(1);
    let good = |name: &str| {
        let calls = mock_log::read(&log);
        let good = calls.iter().filter(|c| c.name == name && c.result == 0);
        good.count()
    };
    trace.until("samples", |events| {
        let samples = events.iter().filter(|e| e["probe"] == "pc_sample_batch");
        samples.count() >= 8
    });
    host.open_gate(1);
    host.wait_gate(2);
    block::wait_more_looks(host.pid(), &lab.library(), 12);
    let (starts, stops) = (good("cuptiPCSamplingStart"), good("cuptiPCSamplingStop"));
    assert!(starts >= 1 && starts == stops, "{starts} {stops}");
    host.open_gate(2);
    host.wait(SHORT).ok();
    let events = trace.end();
    assert!(sound(&events).len() >= 8);
}

/// A second thread allocates memory meanwhile, and the context is destroyed at the end. Of such calls it is not
/// asked that they are kept out.
#[test]
fn other_calls_meanwhile() {
    if !need::bpf("other_calls_meanwhile") {
        return;
    }
    let lab = Lab::new();
    let launches = "launch sampled_0 20 sleep 5 ".repeat(40);
    let other: String = (1..40).map(|_| "memory 200 sleep 3 ").collect();
    let words =
        format!("init context module 0 thread {launches} end thread {other} end join destroy");
    let trace = pc_common::attach(&lab);
    serialized(program(&lab, &words))
        .env("MOCK_CUDA_KERNEL_NS", "200000")
        .env("MOCK_CUDA_HOLDS", "launches")
        .run(SHORT)
        .ok();
    let events = trace.end();
    assert_eq!(refusals(&events), []);
    let announced: BTreeSet<u64> = events.launches().into_iter().collect();
    let samples = sound(&events);
    assert!(!samples.is_empty() && samples.iter().all(|s| announced.contains(&s.id)));
}
