//! A program that locks itself in after the library came up (B51).

use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::block::{wait_looks, wait_state};
use parcagpu_tests::full;
use parcagpu_tests::hosts::{Consumer, compile, engine, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::Running;

const SHORT: Duration = Duration::from_secs(10);

/// The program, waiting before its first launches and its filter.
#[track_caller]
fn start(lab: &Lab, mode: Mode) -> Running {
    let options: &[&str] = match engine().as_str() {
        "gum" => &["-DGUM"],
        _ => &[],
    };
    let sandbox = compile(lab, "cases/sandbox.c", "sandbox", options);
    let launches = full::pick("5000", "10000");
    let mut host = lab
        .program(mode, sandbox)
        .words(launches)
        .env("PARCAGPU_HOOK_ENGINE", engine())
        .env("PARCAGPU_RATE_LIMIT", "50000")
        // Full ones are delivered by a thread of CUPTI's, which begins with the first.
        .env("MOCK_CUPTI_BUFFER_RECORDS", "8")
        .start();
    host.wait_gate(1);
    host
}

#[track_caller]
fn finish(host: Running, mode: Mode) {
    let ended = host.wait(SHORT);
    let end = (ended.code(), ended.stderr.as_str());
    assert_eq!(end, (5, ""), "{mode:?}");
}

/// Our thread has delivered records, in the sandbox.
#[track_caller]
fn flushed(consumer: &Consumer) {
    let deadline = Instant::now() + SHORT;
    while consumer.so_far().records().len() <= 10 {
        assert!(Instant::now() < deadline, "no records are delivered");
        consumer.poll();
    }
}

/// Launches, our thread and the end of the process make no call outside the list, with nobody listening.
#[test]
fn dormant_in_a_sandbox() {
    for mode in [Mode::Bare, Mode::Preload, Mode::Injection] {
        let lab = lab();
        let mut host = start(&lab, mode);
        for gate in 1..=4 {
            host.open_gate(gate);
            if gate == 2 && mode != Mode::Bare {
                wait_looks(host.pid(), &lab.library());
            }
        }
        finish(host, mode);
    }
}

/// With a consumer that is there when the filter comes, leaves, and comes back. (CUPTI's own threads are there by
/// then, too.)
#[test]
fn active_in_a_sandbox() {
    if !need::bpf("active_in_a_sandbox") {
        return;
    }
    for mode in Mode::WITH {
        let lab = lab();
        let mut host = start(&lab, mode);
        let (pid, library) = (host.pid(), lab.library());
        let first = Consumer::new(&lab);
        wait_state(pid, &library, State::Active);
        host.open_gate(1);
        host.wait_gate(2);
        host.open_gate(2);
        host.wait_gate(3);
        flushed(&first);
        let told = first.end();
        assert!(told.launches().len() > 10, "{mode:?}");
        wait_state(pid, &library, State::Dormant);
        let second = Consumer::new(&lab);
        wait_state(pid, &library, State::Active);
        host.open_gate(3);
        host.wait_gate(4);
        flushed(&second);
        host.open_gate(4);
        finish(host, mode);
        let told = second.end();
        assert!(told.records().len() > 10, "{mode:?}");
        assert_eq!(told.errors(), [], "{mode:?}");
    }
}
