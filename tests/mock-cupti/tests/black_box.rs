//! Drives the simulated CUPTI and driver as a C client does, through `scripts/sim`.

mod sim;

use std::path::Path;

use sim::{compile, sim, text};

fn scenario(name: &str, environment: &[(&str, &str)]) {
    let client = compile("client.c", &format!("client-{name}"), &[]);
    let output = sim(
        &["--bare", "--", client.to_str().unwrap(), name],
        environment,
    );
    assert!(
        output.status.success(),
        "{name}: {}\n{}",
        output.status,
        text(&output.stderr)
    );
}

#[test]
fn launches_have_callbacks_and_records() {
    scenario("launches", &[]);
}

#[test]
fn a_running_kernel_holds_its_buffer_back() {
    scenario("held-back", &[]);
}

#[test]
fn each_flush_beside_a_long_kernel_leaves_a_buffer() {
    scenario("buffers-per-thread", &[]);
}

#[test]
fn a_forced_flush_takes_times_away() {
    scenario("forced", &[]);
}

#[test]
fn graphs_have_one_id_and_a_record_per_node() {
    scenario("graphs", &[]);
}

#[test]
fn activity_can_be_turned_on_inside_a_launch() {
    scenario("inside", &[]);
    scenario("inside", &[("MOCK_CUPTI_LOCK", "1")]);
}

#[test]
fn many_threads() {
    scenario("threads", &[]);
    scenario("threads", &[("MOCK_CUPTI_LOCK", "1")]);
}

#[test]
fn records_without_room_are_counted() {
    scenario("dropped", &[]);
}

#[test]
fn runtime_and_driver_calls_share_an_id() {
    scenario("runtime", &[]);
}

#[test]
fn late_subscribers_learn_of_modules() {
    scenario("modules", &[]);
}

#[test]
fn wrong_calls_get_the_real_codes() {
    scenario("errors", &[]);
}

#[test]
fn a_forked_child_has_no_driver() {
    scenario("forked", &[]);
}

#[test]
fn finalize_breaks_graphs() {
    scenario("finalized", &[]);
}

#[test]
fn what_is_scripted_happens() {
    scenario(
        "scripted",
        &[
            ("MOCK_FAIL", "cuptiActivityEnable=999@2"),
            ("MOCK_CUPTI_KERNEL_NAME", "null"),
            ("MOCK_CUPTI_FIRST_CORRELATION", "4294967293"),
            ("MOCK_CUPTI_RECORDS", "duplicate:6"),
        ],
    );
}

#[test]
fn another_driver_is_refused() {
    let driver = compile(
        "foreign.c",
        "foreign.so",
        &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"],
    );
    scenario("foreign", &[("LD_PRELOAD", driver.to_str().unwrap())]);
}

#[test]
fn the_injection_library_is_asked_once() {
    let library = compile("inject.c", "inject.so", &["-shared", "-fPIC"]);
    let output = sim(
        &[
            "--mode",
            "injection",
            "--lib",
            library.to_str().unwrap(),
            "--launches",
            "3",
        ],
        &[("MOCK_CUDA_INIT_REENTERS", "1")],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    assert_eq!(lines.matches("injected").count(), 1, "{lines}");
    assert!(lines.contains("eager=3 "), "{lines}");
    assert!(text(&output.stderr).starts_with("simulated driver\n"));
    // As measured: initialising from in there works, and spoils the rest.
    let spoiled = sim(
        &["--mode", "injection", "--lib", library.to_str().unwrap()],
        &[("INJECT_INIT", "1")],
    );
    assert_eq!(spoiled.status.code(), Some(1));
    assert!(text(&spoiled.stdout).contains("init inside 0"));
    assert!(text(&spoiled.stderr).contains("cuInit: CUresult 3"));
}

#[test]
fn the_stub_driver_fails_every_call() {
    let output = sim(&["--bare"], &[("MOCK_CUDA_STUB", "1")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cuInit: CUresult 34"));
}

#[test]
fn the_call_log_has_every_call() {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls.log");
    let arguments = [
        "--bare",
        "--threads",
        "4",
        "--launches",
        "5000",
        "--call-log",
        log.to_str().unwrap(),
    ];
    let output = sim(&arguments, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let log = std::fs::read_to_string(log).unwrap();
    let count = |name: &str| {
        log.lines()
            .filter(|line| line.split(' ').next() == Some(name))
            .count()
    };
    assert_eq!(count("cuLaunchKernel"), 20_000);
    assert_eq!(count("cuInit"), 1);
    assert!(log.ends_with(" = 0\n"), "the unused end is cut off");
    assert!(log.lines().all(|line| line.contains(" tid=")));
}

#[test]
fn every_way_of_launching_works() {
    for via in [
        "kernel",
        "kernel-ptsz",
        "ex",
        "ex-ptsz",
        "cooperative",
        "cooperative-ptsz",
        "runtime",
    ] {
        let output = sim(&["--bare", "--via", via, "--launches", "10"], &[]);
        assert!(output.status.success(), "{via}: {}", text(&output.stderr));
    }
    let workers = [
        "--bare",
        "--worker",
        "eager:launches=7,threads=2",
        "--worker",
        "graph:nodes=3,launches=5,capture=1",
    ];
    let lines = text(&sim(&workers, &[]).stdout);
    assert!(
        lines.contains("eager=14 long=0 graph=5 graph-kernels=15 kernels=29"),
        "{lines}"
    );
}
