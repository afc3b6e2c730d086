//! `parcagpu run`: its table, what its command gets, and how both end.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{App, Held, PARCAGPU, PATIENCE, bpf_or_skip, fixture, lib, parcagpu, run, stderr};
use serde_json::Value;

#[test]
fn run_shows_every_launch_and_leaves_the_output_alone() {
    let Some(_turn) = bpf_or_skip("run_shows_every_launch_and_leaves_the_output_alone") else {
        return;
    };
    let commands = [
        "launch 1000 2000 _Z9vectorAddPKfS0_Pfi",
        "launch 10 100000 slow",
        "notime 3",
        "echo 5",
    ];
    let out = run(&[], &commands);
    let err = stderr(&out);
    assert!(out.status.success(), "{err}");
    assert_eq!(out.stdout, b"echo 5\n");
    assert!(err.contains("all 1,010 launches"), "{err}");
    assert!(
        err.contains("1,013 kernel records; 3 without time"),
        "{err}"
    );
    let rows: Vec<Vec<&str>> = err
        .lines()
        .map(|l| l.split_whitespace().collect())
        .filter(|w: &Vec<&str>| w.len() >= 8 && w[1] == "%")
        .collect();
    assert_eq!(
        rows[0][..7],
        ["66.7", "%", "1,000", "2.00", "ms", "2.00", "us"]
    );
    assert_eq!(
        rows[0][7..].join(" "),
        "vectorAdd(float const*, float const*, float*, int)"
    );
    assert_eq!(
        rows[1][..8],
        ["33.3", "%", "10", "1.00", "ms", "100.00", "us", "slow"]
    );
    assert_eq!(
        rows[2][2..],
        ["3", "no", "time", "no", "time", "no_time_kernel"]
    );
}

#[test]
fn run_passes_the_exit_status_on() {
    let Some(_turn) = bpf_or_skip("run_passes_the_exit_status_on") else {
        return;
    };
    for (commands, code) in [
        (["exit 0"], 0),
        (["exit 7"], 7),
        (["kill 9"], 137),
        (["kill 11"], 139),
    ] {
        let out = run(&[], &commands);
        assert_eq!(
            out.status.code(),
            Some(code),
            "{commands:?}: {}",
            stderr(&out)
        );
    }
    let missing = parcagpu(&["run", "--lib", lib(), "--", "/nowhere/app"]);
    assert_eq!(missing.status.code(), Some(127));
    let no_program = parcagpu(&["run", "--lib", lib(), "--", "/etc/passwd"]);
    assert_eq!(no_program.status.code(), Some(126));
}

#[test]
fn run_says_sample_when_it_is_one_and_tells_what_waits() {
    let Some(_turn) = bpf_or_skip("run_says_sample_when_it_is_one_and_tells_what_waits") else {
        return;
    };
    let out = run(&["--json"], &["seen 100", "unmatched 2", "launch 10 500 k"]);
    let json: Value = serde_json::from_slice(&out.stderr).unwrap();
    let process = &json["processes"][0];
    assert_eq!(process["launches_told"], 12);
    assert_eq!(process["launches_seen"], 112);
    assert_eq!(process["sample"], true);
    assert_eq!(process["outstanding"], 2);
    assert_eq!(process["comm"], "app");
    assert_eq!(process["kernels"][0]["calls"], 10);
    assert_eq!(process["kernels"][0]["mean_ns"], 500);
    assert_eq!(json["events_dropped"], 0);
    let text = stderr(&run(&[], &["seen 100", "launch 10 500 k"]));
    assert!(
        text.contains("10 of 110 launches; shares are of the sample"),
        "{text}"
    );
}

#[test]
fn run_sets_rates_keeps_preloads_and_cleans_up() {
    let Some(_turn) = bpf_or_skip("run_sets_rates_keeps_preloads_and_cleans_up") else {
        return;
    };
    let print = "echo $PARCAGPU_RATE_LIMIT $PARCAGPU_GRAPH_RATE_LIMIT $LD_PRELOAD";
    let dir = tempfile::tempdir().unwrap();
    let run = |options: &[&str]| {
        let mut args = vec!["run", "--lib", lib()];
        args.extend(options);
        args.extend(["--", "sh", "-c", print]);
        let out = Command::new(PARCAGPU)
            .args(args)
            .env("TMPDIR", dir.path())
            .env("LD_PRELOAD", &fixture().lib_without_batch)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", stderr(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let all = run(&[]);
    let words: Vec<&str> = all.split_whitespace().collect();
    assert_eq!(words[..2], ["1000000000", "1000000000"]);
    let (private, others) = words[2].split_once(':').unwrap();
    assert!(private.starts_with(dir.path().to_str().unwrap()), "{all}");
    assert!(private.ends_with("/libfixture.so"), "{all}");
    assert_eq!(Path::new(others), fixture().lib_without_batch);
    assert!(run(&["--rate", "50"]).starts_with("50 50 "));
    assert!(run(&["--rate", "50", "--graph-rate", "2.5"]).starts_with("50 2.5 "));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // What the user has set stays, unless an option says otherwise.
    for (options, wanted) in [(&[][..], "7 1000000000 "), (&["--rate", "50"], "50 50 ")] {
        let mut args = vec!["run", "--lib", lib()];
        args.extend(options);
        args.extend(["--", "sh", "-c", print]);
        let out = Command::new(PARCAGPU)
            .args(args)
            .env("PARCAGPU_RATE_LIMIT", "7")
            .output()
            .unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        assert!(out.starts_with(wanted), "{out}");
    }
}

#[test]
fn run_watches_children_and_no_stranger() {
    let Some(_turn) = bpf_or_skip("run_watches_children_and_no_stranger") else {
        return;
    };
    let mut stranger = App::start(&fixture().lib);
    let trace = tempfile::NamedTempFile::new().unwrap();
    let options = [
        "--trace",
        "--json",
        "--output",
        trace.path().to_str().unwrap(),
    ];
    let app = fixture().app.to_str().unwrap();
    let mut args = vec!["run", "--lib", lib()];
    args.extend(options);
    args.extend([
        "--",
        app,
        "preloaded",
        "fork launch 4 100 child",
        "launch 3 100 parent",
        "-",
    ]);
    let mut running = Held::start(&args);
    running.await_line("ready");
    let began = Instant::now();
    while !fs::read_to_string(trace.path()).unwrap().contains("parent") {
        assert!(began.elapsed() < PATIENCE, "nothing was told");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(stranger.semaphores(), [0, 0, 0, 0]);
    stranger.obey("launch 5 100 stranger");
    running.end();
    let text = fs::read_to_string(trace.path()).unwrap();
    let count = |name: &str| {
        let name = format!("\"name\":\"{name}\"");
        let lines = text
            .lines()
            .filter(|l| l.contains("activity_batch") && l.contains(&name));
        lines.count()
    };
    assert_eq!(
        (count("child"), count("parent"), count("stranger")),
        (4, 3, 0)
    );
}

#[test]
fn run_leaves_a_library_that_is_still_used() {
    let Some(_turn) = bpf_or_skip("run_leaves_a_library_that_is_still_used") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let script = "sleep 600 >/dev/null 2>&1 & \
        until [ \"$(cat /proc/$!/comm)\" = sleep ] && grep -q \"$LD_PRELOAD\" /proc/$!/maps; do sleep 0.02; done; \
        echo $!; exit 4";
    let out = Command::new(PARCAGPU)
        .args(["run", "--lib", lib(), "--", "sh", "-c", script])
        .env("TMPDIR", dir.path())
        .output()
        .unwrap();
    let left = String::from_utf8(out.stdout.clone()).unwrap();
    // SAFETY: the process sleeps for longer than this test takes, so the number is its own.
    unsafe { libc::kill(left.trim().parse().unwrap(), libc::SIGKILL) };
    assert_eq!(out.status.code(), Some(4));
    assert!(
        stderr(&out).contains("still run with the library"),
        "{}",
        stderr(&out)
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn ctrl_c_goes_to_the_command_and_its_status_comes_back() {
    let Some(_turn) = bpf_or_skip("ctrl_c_goes_to_the_command_and_its_status_comes_back") else {
        return;
    };
    let script = "trap 'echo trapped; exit 5' INT; echo started; while :; do sleep 0.1; done";
    let mut running = Command::new(PARCAGPU)
        .args(["run", "--lib", lib(), "--", "sh", "-c", script])
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(out.next().unwrap().unwrap(), "started");
    // SAFETY: the group is the one just made for the child, which was not waited for.
    unsafe { libc::kill(-running.id().cast_signed(), libc::SIGINT) };
    assert_eq!(out.next().unwrap().unwrap(), "trapped");
    assert_eq!(running.wait().unwrap().code(), Some(5));
}

/// Waits until a signal that was sent to a process is not pending any more: two of the same would be one.
fn await_taken(pid: u32, signal: i32) {
    let began = Instant::now();
    let is_pending = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let masks = status.lines().filter_map(|line| {
            let mask = line
                .strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
        masks.fold(0, |all, mask| all | mask) & (1 << (signal - 1)) != 0
    };
    while is_pending() {
        assert!(began.elapsed() < PATIENCE, "the signal is not taken");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_second_ctrl_c_ends_the_waiting() {
    let Some(_turn) = bpf_or_skip("a_second_ctrl_c_ends_the_waiting") else {
        return;
    };
    let script = "trap '' INT; echo started; sleep 600";
    let mut running = Command::new(PARCAGPU)
        .args(["run", "--lib", lib(), "--", "sh", "-c", script])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let group = -running.id().cast_signed();
    let mut out = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(out.next().unwrap().unwrap(), "started");
    for _ in 0..2 {
        // SAFETY: the group is the one just made for the child, which was not waited for.
        unsafe { libc::kill(group, libc::SIGINT) };
        await_taken(running.id(), libc::SIGINT);
    }
    assert_eq!(running.wait().unwrap().code(), Some(130));
    // SAFETY: the command of `run` is left in this group.
    unsafe { libc::kill(group, libc::SIGKILL) };
    let err = std::io::read_to_string(running.stderr.take().unwrap()).unwrap();
    assert!(err.contains("is left running"), "{err}");
    let kept = err.split(" still run with the library ").nth(1).unwrap();
    let kept = Path::new(kept.split(';').next().unwrap());
    fs::remove_dir_all(kept.parent().unwrap()).unwrap();
}
