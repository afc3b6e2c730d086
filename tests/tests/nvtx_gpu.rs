//! Ranges around launches, on the simulated driver.

mod nvtx_common;

use std::time::Duration;

use nvtx_common::{INJECTION, SHORT, program, ready, said};
use parcagpu_tests::artefacts;
use parcagpu_tests::block;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::program::{Program, Running, WATCHDOG};
use parcagpu_tests::trace::{Trace, number};
use serde_json::Value;

/// `gpu.c`, preloaded only: it learns of the library from the environment that cuInit leaves.
fn start(lab: &Lab, wheels: &std::path::Path) -> Running {
    let gpu = program(lab, wheels, "gpu.c");
    let mut running = lab
        .program(Mode::Preload, gpu)
        .without(INJECTION)
        .env("PARCAGPU_HOOK_ENGINE", parcagpu_tests::hosts::engine())
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    running.wait_gate(1);
    running
}

#[test]
fn top_gives_ranges_the_time_of_their_kernels() {
    let Some(wheels) = ready("top_gives_ranges_the_time_of_their_kernels") else {
        return;
    };
    let lab = Lab::new();
    let mut running = start(&lab, &wheels);
    let pid = running.pid();
    let mut top = Program::new(artefacts::command(), lab.path())
        .words(&format!("top --nvtx --json --pid {pid}"))
        .start();
    top.wait_stderr("attached to");
    running.open_gate(1);
    running.wait_gate(2);
    block::wait_delivered(pid, &lab.library());
    running.open_gate(2);
    running.wait(SHORT).ok();
    let ended = top.interrupt(SHORT).ok();
    let json: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(json["processes"][0]["launches_told"], 11, "{json}");
    assert_eq!(json["nvtx"].as_array().map(Vec::len), Some(1), "{json}");
    let process = &json["nvtx"][0];
    assert_eq!(number(process, "pid"), u64::from(pid));
    assert_eq!(number(process, "unmatched_ends"), 0);
    let ranges = process["ranges"].as_array().expect("a list");
    assert_eq!(ranges.len(), 5, "{process}");
    let total = number(&json["processes"][0]["kernels"][0], "total_ns");
    let mut gpu = 0;
    for (name, domain, count, kernels) in [
        ("outer", Value::Null, 1, 5),
        ("inner", Value::Null, 2, 2),
        ("nothing", Value::Null, 1, 0),
        ("across", Value::from("gpu.test"), 1, 4),
        ("of the thread", Value::Null, 1, 1),
    ] {
        let range = ranges.iter().find(|r| r["range"] == name).expect(name);
        assert_eq!(range["domain"], domain, "{range}");
        let numbers = ["count", "kernels", "open", "no_time"].map(|n| number(range, n));
        assert_eq!(numbers, [count, kernels, 0, 0], "{range}");
        assert_eq!(number(range, "gpu_ns") > 0, kernels > 0, "{range}");
        assert!(number(range, "total_ns") > 0, "{range}");
        if name != "inner" {
            gpu += number(range, "gpu_ns");
        }
    }
    // All kernels but one were inside a range.
    assert!(gpu < total && gpu > total / 2, "{gpu} of {total}");
}

#[test]
fn cu_init_names_the_library_and_events_name_the_device() {
    let Some(wheels) = ready("cu_init_names_the_library_and_events_name_the_device") else {
        return;
    };
    let lab = Lab::new();
    let mut running = start(&lab, &wheels);
    let trace = Trace::attach(&lab, &[running.pid()]);
    running.open_gate(1);
    running.wait_gate(2);
    let tool = format!("tool {}\n", lab.library().display());
    assert!(running.stdout().contains(&tool), "{}", running.stdout());
    // Through our one thread, which the session has.
    let deadline = std::time::Instant::now() + WATCHDOG;
    while said(&trace.so_far()).len() < 14 {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            said(&trace.so_far())
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let events = trace.end();
    running.open_gate(2);
    running.wait(SHORT).ok();
    let device = |text: &str| {
        let event = events.of("nvtx_event_batch").find(|e| e["message"] == text);
        number(event.expect(text), "device_id")
    };
    assert_eq!(device("outer"), u64::from(u32::MAX));
    assert_eq!(device("nothing"), 0);
    assert_eq!(device("before the thread's launch"), u64::from(u32::MAX));
    assert_eq!(device("after the thread's launch"), 0);
    // No launch is open while the program says something.
    assert!(
        events
            .of("nvtx_event_batch")
            .all(|e| e["correlation_id"] == 0)
    );
    assert_eq!(said(&events.all).len(), 14);
    assert_eq!(events.errors(), []);
}

#[test]
fn a_tool_that_the_user_named_keeps_its_place() {
    let Some(wheels) = ready("a_tool_that_the_user_named_keeps_its_place") else {
        return;
    };
    let lab = Lab::new();
    let gpu = program(&lab, &wheels, "gpu.c");
    let mut running = lab
        .program(Mode::Preload, gpu)
        .env(INJECTION, "/another/tool.so")
        .start();
    running.open_gate(1);
    running.open_gate(2);
    let ended = running.wait(SHORT).ok();
    assert!(
        ended.stdout.contains("tool /another/tool.so\n"),
        "{}",
        ended.stdout
    );
}
