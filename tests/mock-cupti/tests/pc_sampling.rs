//! PC sampling of the simulated CUPTI, driven as a C client does.

mod sim;

use std::os::unix::process::ExitStatusExt;

use sim::{compile, sim, text};

/// Seconds after which a client hangs.
const PATIENCE: &str = "60";

/// Its own process below: what never returns is killed after so many seconds.
fn run(name: &str, environment: &[(&str, &str)], seconds: &str) -> std::process::Output {
    let client = compile(
        "pc_client.c",
        &format!("pc-client-{name}"),
        &["-Wextra", "-Werror"],
    );
    let client = client.to_str().expect("a path of ours");
    let arguments = [
        "--bare", "--", "timeout", "-s", "KILL", seconds, client, name,
    ];
    sim(&arguments, environment)
}

fn scenario(name: &str, environment: &[(&str, &str)]) {
    let output = run(name, environment, PATIENCE);
    let errors = text(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}\n{errors}",
        output.status
    );
}

#[test]
fn records_add_up() {
    scenario("continuous", &[]);
}

#[test]
fn sampling_can_be_turned_on_late() {
    scenario("late", &[("MOCK_CUPTI_PC", "per-ms:1000")]);
}

#[test]
fn records_of_serialized_kernels_name_their_launch() {
    scenario("serialized", &[]);
}

#[test]
fn the_clients_checksum_is_asked_for_once() {
    scenario("checksums", &[]);
}

#[test]
fn kernel_activity_cannot_be_turned_on_beside_it() {
    scenario("activity", &[]);
}

#[test]
fn stop_waits_for_queued_kernels() {
    scenario("waits", &[]);
}

#[test]
fn what_is_scripted_happens() {
    let script = "no-period,no-buffer,full:2,dropped:5,foreign:6,sparse";
    scenario(
        "scripted",
        &[
            ("MOCK_FAIL", "cuptiPCSamplingEnable=35@1"),
            ("MOCK_CUPTI_STALL_REASONS", "100"),
            // CUPTI's own period is short.
            ("MOCK_CUPTI_PC", script),
        ],
    );
    scenario("silenced", &[("MOCK_CUPTI_PC", "mute-period")]);
}

/// Whichever thread calls: the process dies and says why, or hangs as the real one if that is wanted.
#[test]
fn the_order_of_locks_is_watched() {
    for (name, function) in [
        ("launch-inside", "cuLaunchKernel"),
        ("own-launch", "cuLaunchKernel"),
    ] {
        let output = run(name, &[], PATIENCE);
        let errors = text(&output.stderr);
        let message = format!("never returns: {function} on thread");
        assert!(
            errors.contains("cuptiPCSamplingStop on thread") && errors.contains(&message),
            "{errors}"
        );
        assert_eq!(signal(&output), Some(libc::SIGABRT));
        let output = run(name, &[("MOCK_CUPTI_PC", "hang")], "5");
        assert_eq!(
            signal(&output),
            Some(libc::SIGKILL),
            "{}",
            text(&output.stderr)
        );
    }
}

/// As `timeout` passes it on.
fn signal(output: &std::process::Output) -> Option<i32> {
    let status = output.status;
    status.signal().or(status.code().map(|code| code - 128))
}

#[test]
fn contexts_take_their_samples_along() {
    scenario("destroyed", &[]);
    let output = run("destroyed", &[("MOCK_CUPTI_STRICT", "1")], PATIENCE);
    assert!(text(&output.stderr).contains("a context that is gone"));
    assert_eq!(signal(&output), Some(libc::SIGABRT));
}
