//! CUPTI that ends itself while PCs are sampled is left alone, and a context that gives no samples is ended all the same.

mod pc_common;

use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::mock_log::{self, count};
use parcagpu_tests::program::WATCHDOG;
use parcagpu_tests::{block, need, together};
use pc_common::{SHORT, is_claimed, program, refusals, two_kernels};

const FAIL: &str = "MOCK_FAIL";

/// A result of 999 means that CUPTI ends itself at the next call, whoever makes it: none is made any more, and the
/// program's launches, which cannot be seen then, go on.
#[test]
fn cupti_that_ends_itself_is_left_alone() {
    if !need::bpf("cupti_that_ends_itself_is_left_alone") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let trace = pc_common::attach(&lab);
    let mut host = two_kernels(&lab, "spaced 100 1 sync gate spaced 100 1 sync gate")
        .env("MOCK_LOG", &log)
        .env(FAIL, "cuptiPCSamplingGetData=999")
        .start();
    host.wait_gate(1);
    trace.until("the end of CUPTI is told", |events| {
        events.iter().any(|e| e["probe"] == "error")
    });
    block::wait_state(host.pid(), &lab.library(), State::Stopped);
    let before = mock_log::read(&log).len();
    host.open_gate(1);
    host.wait_gate(2);
    block::wait_more_looks(host.pid(), &lab.library(), 3);
    host.open_gate(2);
    host.wait(SHORT).ok();
    let calls = mock_log::read(&log);
    let late: Vec<_> = calls[before..]
        .iter()
        .filter(|call| call.name.starts_with("cupti"))
        .collect();
    assert!(late.is_empty(), "{late:?}");
    let launches = calls[before..].iter();
    assert_eq!(
        launches.filter(|c| c.name.starts_with("cuLaunch")).count(),
        100
    );
    let events = trace.end();
    let told = refusals(&events);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains("which ends CUPTI"), "{told:?}");
    assert_eq!(events.of("pc_sample_batch").count(), 0);
}

/// The same where the call that tells it is one at the end of a context, or of a window.
#[test]
fn cupti_that_ends_itself_at_an_end_is_left_alone() {
    if !need::bpf("cupti_that_ends_itself_at_an_end_is_left_alone") {
        return;
    }
    // A window is closed by our thread where nothing is launched any more. One of two launches opens it: between two
    // requests there is a moment.
    let cases = [
        (
            "continuous",
            "cuptiPCSamplingDisable",
            "launch sampled_0 20 sync destroy",
        ),
        (
            "serialized",
            "cuptiPCSamplingStop",
            "launch sampled_0 1 sleep 20 launch sampled_0 1",
        ),
    ];
    together::at_once(cases, |(mode, function, end)| {
        let lab = Lab::new();
        let log = lab.file("calls");
        let trace = pc_common::attach(&lab);
        let words = format!("init gate context module 0 gate {end} gate");
        let mut host = program(&lab, &words)
            .env("PARCAGPU_PC_SAMPLING_MODE", mode)
            .env("MOCK_LOG", &log)
            .env(FAIL, format!("{function}=999"))
            .start();
        host.wait_gate(1);
        block::wait_state(host.pid(), &lab.library(), State::Active);
        host.open_gate(1);
        host.wait_gate(2);
        // There is a request for a window by then.
        block::wait_more_looks(host.pid(), &lab.library(), 3);
        host.open_gate(2);
        trace.until("the end of CUPTI is told", |events| {
            events.iter().any(|e| e["probe"] == "error")
        });
        block::wait_state(host.pid(), &lab.library(), State::Stopped);
        block::wait_more_looks(host.pid(), &lab.library(), 3);
        let told = refusals(&trace.end());
        // Whether or not somebody listens.
        block::wait_semaphores(host.pid(), &lab.library(), 0);
        block::wait_more_looks(host.pid(), &lab.library(), 3);
        let status = block::read(host.pid(), &lab.library()).expect("it maps the library");
        assert_eq!(block::state(&status), State::Stopped, "{mode}");
        host.open_gate(3);
        host.wait(SHORT).ok();
        let calls = mock_log::read(&log);
        let last = calls.iter().position(|call| call.name == function);
        let late: Vec<_> = calls[last.expect("it was called") + 1..]
            .iter()
            .filter(|call| call.is_cupti())
            .collect();
        assert!(late.is_empty(), "{mode}: {late:?}");
        assert_eq!(told.len(), 1, "{mode}: {told:?}");
        assert!(told[0].1.contains("which ends CUPTI"), "{mode}: {told:?}");
    });
}

/// A context whose samples cannot be had is let go by CUPTI before it is destroyed, and its GPU is free for other
/// processes then: whether that is found at one of our looks, or with the last samples.
#[test]
fn a_context_without_samples_is_let_go() {
    if !need::bpf("a_context_without_samples_is_let_go") {
        return;
    }
    let cases = [("1+", 0x7f00_0001_u32), ("2+", 0x7f00_0002)];
    together::at_once(cases, |(which, number)| {
        let lab = Lab::new();
        let log = lab.file("calls");
        let trace = pc_common::attach(&lab);
        let words = "init gate context module 0 launch sampled_0 20 sync gate destroy gate";
        let gpu = number ^ (std::process::id() << 4);
        let mut host = program(&lab, words)
            .env("MOCK_LOG", &log)
            .env("MOCK_CUDA_GPU", gpu.to_string())
            .env(FAIL, format!("cuptiPCSamplingGetData=1@{which}"))
            // Between windows there is one look a second at most.
            .env("PARCAGPU_PC_SAMPLING_RATE", "0.001")
            .start();
        host.wait_gate(1);
        block::wait_state(host.pid(), &lab.library(), State::Active);
        host.open_gate(1);
        host.wait_gate(2);
        let calls = |name: &str| count(&mock_log::read(&log), name);
        let deadline = Instant::now() + WATCHDOG;
        while calls("cuptiPCSamplingGetData") == 0 {
            assert!(Instant::now() < deadline, "{which}: nothing was fetched");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_claimed(gpu), "{which}");
        host.open_gate(2);
        host.wait_gate(3);
        assert_eq!(calls("cuptiPCSamplingDisable"), 1, "{which}");
        assert!(!is_claimed(gpu), "{which}");
        host.open_gate(3);
        host.wait(SHORT).ok();
        let told = refusals(&trace.end());
        assert_eq!(told.len(), 1, "{which}: {told:?}");
    });
}
