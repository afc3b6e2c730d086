//! `parcagpu run`, `top` and `status`, and parcagpu.bt, against the fixture.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{App, PARCAGPU, PATIENCE, View, bpf_or_skip, fixture, own_copy, parcagpu};
use serde_json::Value;

fn lib() -> &'static str {
    fixture().lib.to_str().unwrap()
}

/// Runs the app under `parcagpu run`.
fn run(options: &[&str], commands: &[&str]) -> Output {
    let app = fixture().app.to_str().unwrap();
    let mut args = vec!["run", "--lib", lib()];
    args.extend(options);
    args.extend(["--", app, "preloaded"]);
    args.extend(commands);
    parcagpu(&args)
}

/// A command of ours with a program that goes on until its input ends.
struct Held {
    running: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Held {
    fn start(args: &[&str]) -> Self {
        let mut running = Command::new(PARCAGPU)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: running.stdin.take(),
            stdout: BufReader::new(running.stdout.take().unwrap()),
            stderr: BufReader::new(running.stderr.take().unwrap()),
            running,
        }
    }

    /// Waits until the program prints this line.
    fn await_line(&mut self, wanted: &str) {
        let mut line = String::new();
        while line.trim_end() != wanted {
            line.clear();
            let n = self.stdout.read_line(&mut line).unwrap();
            if n == 0 {
                let mut err = String::new();
                self.stderr.read_to_string(&mut err).unwrap();
                panic!("it ended without {wanted}: {err}");
            }
        }
    }

    /// Gives the program a line that it prints, and waits until it has.
    fn await_echo(&mut self) {
        writeln!(self.stdin.as_ref().unwrap(), "ready").unwrap();
        self.await_line("ready");
    }

    /// Waits until something that ours prints again and again has this text.
    fn await_told(&mut self, wanted: &str) {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            let n = self.stderr.read_line(&mut line).unwrap();
            assert_ne!(n, 0, "it ended without {wanted}");
        }
    }

    /// Waits until ours has looked at its command several times: it waits for events before each look.
    fn await_looks(&self) {
        let waits = || -> u64 {
            let pid = self.running.id();
            let status = fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).unwrap();
            let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_"));
            let number = line.unwrap().split_whitespace().nth(1).unwrap();
            number.parse().unwrap()
        };
        let (before, began) = (waits(), Instant::now());
        while waits() < before + 15 {
            assert!(began.elapsed() < PATIENCE, "it does not go on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the program; what ours has to say after that.
    fn end(mut self) -> String {
        drop(self.stdin.take());
        let mut err = String::new();
        self.stderr.read_to_string(&mut err).unwrap();
        assert!(self.running.wait().unwrap().success(), "{err}");
        err
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

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
fn run_says_why_it_saw_nothing() {
    let Some(_turn) = bpf_or_skip("run_says_why_it_saw_nothing") else {
        return;
    };
    let app = fixture().app.to_str().unwrap();
    let held = |commands: &[&str], why: &str| {
        let args = [
            "run",
            "--every",
            "0.1",
            "--lib",
            lib(),
            "--",
            app,
            "preloaded",
        ];
        let mut held = Held::start(&[&args, commands, &["-"]].concat());
        // It is met while it lives.
        held.await_line("ready");
        held.await_told(why);
        let told = held.end();
        assert!(told.contains(why), "{told}");
        told
    };
    let idle = held(
        &[],
        "nothing seen: it initialised CUDA; it made no launch; the library is dormant: the fixture rests",
    );
    let untold = held(&["seen 3"], "it made 3 launches, of which none came here");
    // Launches that nobody told of are odd; none are not.
    assert!(!idle.contains("parcagpu doctor"), "{idle}");
    assert!(untold.contains("parcagpu doctor"), "{untold}");
    let quick = parcagpu(&["run", "--lib", lib(), "--", "true"]);
    assert!(quick.status.success());
    let quick = stderr(&quick);
    // It may live for long enough to be met.
    let met = quick.contains("nothing seen: it initialised CUDA; it made no launch;");
    let gone = quick.contains("nothing seen: no process of the command was met")
        || quick.contains(
            "nothing seen: the command started 1 process (true), as far as they were met",
        );
    assert!(
        met || (gone && quick.contains("parcagpu doctor") && !quick.contains("refused")),
        "{quick}"
    );
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("none.pgpu");
    let none = parcagpu(&[
        "record",
        "--lib",
        lib(),
        "-o",
        file.to_str().unwrap(),
        "--",
        "true",
    ]);
    assert!(
        stderr(&none).contains("nothing seen: "),
        "{}",
        stderr(&none)
    );
    let error = stderr(&run(&[], &["metadata"]));
    assert!(error.contains("cupti: something \"broke\""), "{error}");
    assert!(error.contains("warning: process"), "{error}");
}

#[test]
fn what_kept_the_library_out_is_told() {
    let Some(_turn) = bpf_or_skip("what_kept_the_library_out_is_told") else {
        return;
    };
    let (_dir, other) = own_copy(&fixture().lib);
    let app = fixture().app.to_str().unwrap();
    let in_front = format!(
        "LD_PRELOAD={}:$LD_PRELOAD '{app}' preloaded 'launch 5 100 k' -; true",
        other.display()
    );
    let dropped = format!(
        "env -u LD_PRELOAD '{app}' '{}' 'launch 5 100 k' -; true",
        lib()
    );
    let recording = tempfile::tempdir().unwrap();
    let file = recording.path().join("a.pgpu");
    let record = ["record", "--force", "-o", file.to_str().unwrap()];
    for command in [
        &["run"][..],
        &["run", "--trace", "-o", "/dev/null"],
        &record,
    ] {
        let rest = ["--lib", lib(), "--"];
        let shell = |options: &[&str], script: &str| {
            Held::start(&[command, options, &rest, &["sh", "-c", script]].concat())
        };
        let mut another = shell(&[], &in_front);
        another.await_line("ready");
        another.await_looks();
        let another = another.end();
        assert!(
            another.contains("  app: another copy of the library is in charge there, ")
                && another.contains(&other.display().to_string())
                && another.contains("the command started 2 processes (app, sh)"),
            "{another}"
        );
        if command != ["run"] {
            continue;
        }
        let mut none = shell(&["--every", "0.1"], &dropped);
        // The app loads the library itself, and not the private copy.
        none.await_told("  app: another copy of the library");
        let none = none.end();
        assert!(
            none.contains("  app: another copy of the library"),
            "{none}"
        );
        let mut none = shell(&["--every", "0.1"], "env -i cat; true");
        let why = "  cat: LD_PRELOAD in its environment does not name the library";
        none.await_echo();
        none.await_told(why);
        let none = none.end();
        assert!(
            none.contains(why) && none.contains("the command started 2 processes (cat, sh)"),
            "{none}"
        );
        let mut direct = Held::start(&[command, &rest, &["env", "-i", "cat"]].concat());
        direct.await_echo();
        direct.await_looks();
        let direct = direct.end();
        assert!(
            direct.contains("nothing seen: the command started 1 process (cat)")
                && direct.contains("none was seen with the library in charge")
                && direct.contains("parcagpu doctor"),
            "{direct}"
        );
        // Nothing of this where something came.
        let fine = format!("'{app}' preloaded 'launch 5 100 k' -; true");
        let mut fine = shell(&["--every", "0.1"], &fine);
        fine.await_told("all 5 launches");
        let fine = fine.end();
        assert!(
            fine.contains("all 5 launches") && !fine.contains("the command started"),
            "{fine}"
        );
    }
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

#[test]
fn a_view_of_one_process_ends_with_it() {
    let Some(_turn) = bpf_or_skip("a_view_of_one_process_ends_with_it") else {
        return;
    };
    let app = App::start(&fixture().lib);
    let view = View::start(&["trace", "--json", "--pid", &app.pid().to_string()]);
    drop(app);
    view.wait();
}

#[test]
fn top_counts_from_when_it_came() {
    let Some(_turn) = bpf_or_skip("top_counts_from_when_it_came") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    app.obey("launch 500 100 before");
    let pid = app.pid();
    let view = View::start(&["top", "--json", "--pid", &pid.to_string()]);
    assert_eq!(app.semaphores(), [1, 1, 0, 1]);
    app.obey("launch 200 100 during");
    app.obey("seen 800");
    let (out, _) = view.end();
    let json: Value = serde_json::from_str(&out).unwrap();
    let process = &json["processes"][0];
    assert_eq!(process["pid"], pid);
    assert_eq!(
        (&process["launches_told"], &process["launches_seen"]),
        (&200.into(), &1000.into())
    );
    assert_eq!(process["kernels"].as_array().unwrap().len(), 1);
    app.await_semaphores(&[0, 0, 0, 0]);
}

#[test]
fn top_waits_for_the_records_of_its_launches_and_for_no_others() {
    const TEST: &str = "top_waits_for_the_records_of_its_launches_and_for_no_others";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let mut slow = App::start(&fixture().lib);
    let mut quick = App::start(&fixture().lib);
    let pids = [slow.pid().to_string(), quick.pid().to_string()];
    let both = ["top", "--pid", &pids[0], "--pid", &pids[1]];
    let view = View::start(&[&both[..], &["--json"]].concat());
    slow.obey("unmatched 5");
    let interrupted = Instant::now();
    view.interrupt();
    // Most of it while the records of the others are waited for.
    for _ in 0..20 {
        quick.obey("launch 7 100 k");
        std::thread::sleep(Duration::from_millis(20));
    }
    slow.obey("matched 5 k");
    let in_time = interrupted.elapsed() < Duration::from_millis(1500);
    let json: Value = serde_json::from_str(&view.wait()).unwrap();
    let of = |pid: u32, field: &str| {
        let mut all = json["processes"].as_array().unwrap().iter();
        let process = all.find(|p| p["pid"] == pid).unwrap();
        process[field].as_u64().unwrap()
    };
    let told = |pid| ["launches_told", "records", "outstanding"].map(|field| of(pid, field));
    // Records are not waited for longer than it takes the library.
    let whole = |[launches, records, outstanding]: [u64; 3]| {
        launches == records + outstanding && (outstanding == 0 || !in_time)
    };
    let (slow_told, quick_told) = (told(slow.pid()), told(quick.pid()));
    assert!(slow_told[0] == 5 && whole(slow_told), "{json}");
    // Whichever launch was the last one that was taken, no record of a later one was.
    assert!(quick_told[0] <= 140 && whole(quick_told), "{json}");

    let view = View::start(&both);
    slow.obey("unmatched 2");
    let (out, _) = view.end();
    assert!(out.contains("2 launched without a record so far"), "{out}");
    // Ends by itself.
    View::start(&[&both[..], &["--once"]].concat()).wait();
}

#[test]
fn nvtx_lines_have_the_time_of_the_event() {
    let Some(_turn) = bpf_or_skip("nvtx_lines_have_the_time_of_the_event") else {
        return;
    };
    let view = View::start(&["trace", "--probe", "nvtx_event_batch,error", "--lib", lib()]);
    let mut app = App::start(&fixture().lib);
    // The fixture's event is of 0.123456789 s after the start of this machine's clock.
    let now = |clock: libc::clockid_t| parcagpu_cli::text::clock_ns(clock) as f64 / 1e9;
    let before = now(libc::CLOCK_REALTIME);
    app.obey("all");
    let passed = now(libc::CLOCK_REALTIME) - before;
    let (out, _) = view.end();
    let time = |probe: &str| {
        let line = out.lines().find(|l| l.contains(probe)).unwrap();
        let time = line.split(' ').next().unwrap().to_owned();
        let mut parts = time.split(':').map(|p| p.parse::<f64>().unwrap());
        let mut next = || parts.next().unwrap();
        next() * 3600.0 + next() * 60.0 + next()
    };
    let event = now(libc::CLOCK_REALTIME) - now(libc::CLOCK_MONOTONIC) + 0.123_456_789;
    // Days begin anew, and clocks are not read at the same moment.
    let since = |time: f64, begin: f64| (time - begin + 1.0).rem_euclid(86_400.0);
    let of_event = since(time("nvtx_event_batch"), event);
    assert!(of_event < 2.0, "{of_event} {out}");
    let of_error = since(time("error"), before);
    assert!(of_error < passed + 2.0, "{of_error} {passed} {out}");
}

#[test]
fn top_and_the_bpftrace_view_together() {
    let Some(_turn) = bpf_or_skip("top_and_the_bpftrace_view_together") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../parcagpu.bt");
    let mut bpftrace = Command::new("bpftrace")
        .arg(script)
        .arg(&copy)
        .stdout(Stdio::piped())
        .spawn()
        .expect("bpftrace is not there");
    app.await_semaphores(&[1, 1, 0, 1]);
    let mut out = BufReader::new(bpftrace.stdout.take().unwrap());
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let printed = Arc::clone(&lines);
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        while out.read_line(&mut line).unwrap() > 0 {
            printed.lock().unwrap().push(std::mem::take(&mut line));
        }
    });
    let pid = app.pid();
    let told = |probe: &str, text: &str| {
        let head = format!("{pid} {pid} {probe} ");
        let lines = lines.lock().unwrap();
        let here = |l: &&String| l.starts_with(&head) && l.contains(text);
        lines.iter().filter(here).count()
    };
    let await_told = |probe: &str, text: &str, count: usize| {
        let began = Instant::now();
        while told(probe, text) < count {
            let lines = lines.lock().unwrap();
            assert!(began.elapsed() < PATIENCE, "{probe} {text}: {lines:?}");
            drop(lines);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // A semaphore rises before the consumer's program is in place.
    let probes = parcagpu_abi::probe::ALL
        .iter()
        .filter(|p| **p != parcagpu_abi::probe::KERNEL_EXECUTED);
    let began = Instant::now();
    while probes.clone().any(|p| told(p.name, "") == 0) {
        let lines = lines.lock().unwrap();
        assert!(began.elapsed() < PATIENCE, "not attached: {lines:?}");
        drop(lines);
        app.obey("all");
        std::thread::sleep(Duration::from_millis(100));
    }
    let view = View::start(&["top", "--json", "--pid", &pid.to_string()]);
    app.obey("launch 130 100 both");
    let (top, _) = view.end();
    // One leaves, the other goes on.
    app.await_semaphores(&[1, 1, 0, 1]);
    app.obey("launch 10 100 alone");
    // bpftrace may throw away what it has not printed when it is interrupted.
    await_told("activity_batch", "ns=100 both", 130);
    await_told("activity_batch", "ns=100 alone", 10);
    // And it forgets an interrupt that comes while it prints: then it gets another.
    let began = Instant::now();
    while bpftrace.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "bpftrace goes on");
        // SAFETY: the child is ours and was not waited for.
        unsafe { libc::kill(bpftrace.id().cast_signed(), libc::SIGINT) };
        std::thread::sleep(Duration::from_millis(500));
    }
    app.await_semaphores(&[0, 0, 0, 0]);
    reader.join().unwrap();
    assert_eq!(told("activity_batch", "ns=100 both"), 130);
    assert_eq!(told("activity_batch", "ns=100 alone"), 10);
    assert!(told("error", "cupti: something \"broke\"") > 0);
    let json: Value = serde_json::from_str(&top).unwrap();
    assert_eq!(json["processes"][0]["records"], 130);
}

#[test]
fn status_prints_the_block_and_who_listens() {
    let Some(_turn) = bpf_or_skip("status_prints_the_block_and_who_listens") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    app.obey("launch 1500 100 k");
    let pid = app.pid().to_string();
    let read = || {
        let out = parcagpu(&["status", "--json", "--pid", &pid]);
        assert!(out.status.success(), "{}", stderr(&out));
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        json[0].clone()
    };
    let quiet = read();
    assert_eq!(
        (&quiet["state"], &quiet["reason"]),
        (&"dormant".into(), &"the fixture rests".into())
    );
    assert_eq!(quiet["counters"]["eager_launches_seen"], 1500);
    assert_eq!(quiet["semaphores"], serde_json::json!({}));
    let view = View::start(&["top", "--pid", &pid]);
    let heard = read();
    assert_eq!(heard["semaphores"]["activity_batch"], 1);
    // Who listens, or that it cannot be known (before Linux 6.16).
    let raised = heard["semaphores"].as_object().unwrap().len();
    if heard["attachments_of_unknown_consumers"] == 0 {
        let who = serde_json::json!({"pid": view.pid(), "comm": "parcagpu", "attachments": raised});
        assert_eq!(heard["consumers"], serde_json::json!([who]));
    } else {
        assert_eq!(heard["attachments_of_unknown_consumers"], raised);
    }
    assert_eq!(heard["semaphores"].get("cubin_loaded"), None);
    view.end();
    let text = parcagpu(&["status", "--pid", &pid]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("dormant") && text.contains("1,500"), "{text}");
    assert!(!text.contains("buffers_requested"), "{text}");
    let all = parcagpu(&["status", "--verbose", "--pid", &pid]);
    let all = String::from_utf8(all.stdout).unwrap();
    for counter in parcagpu_abi::status::COUNTER_NAMES {
        assert!(all.contains(counter), "{counter}: {all}");
    }
    // A reader that goes away is no failure.
    let script = format!("{PARCAGPU} status --json --pid {pid} | true; echo ${{PIPESTATUS[0]}}");
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(out.stdout, b"0\n", "{}", stderr(&out));
    fs::remove_file(&copy).unwrap();
    assert_eq!(read()["library_deleted"], true);
    drop(app);
    assert_eq!(parcagpu(&["status", "--pid", &pid]).status.code(), Some(2));
}
