//! A profiled process that means harm: nothing it does crashes a view or makes it grow without bound.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{App, PARCAGPU, PATIENCE, View, bpf_or_skip, fixture};
use serde_json::Value;

/// More than any view has to take, ring buffer (8 MiB, mapped twice) included.
const MOST_MIB: u64 = 400;

/// Most memory a process ever had, MiB.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()).unwrap();
    kib.parse::<u64>().unwrap() / 1024
}

fn attack(app: &mut App) {
    app.obey("garbage 150");
    app.obey("different 24000");
    app.obey("garbage 50");
    // What is honest in between still counts.
    app.obey("launch 100 1000 an_honest_kernel");
}

#[test]
fn views_of_a_hostile_process_stay_whole_and_small() {
    const TEST: &str = "views_of_a_hostile_process_stay_whole_and_small";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let recording = dir.path().join("hostile.parcagpu");
    let recording = recording.to_str().unwrap();
    for view in [
        vec!["trace", "--json"],
        vec!["trace"],
        vec!["top", "--nvtx"],
        vec!["top", "--pc", "--json"],
        vec!["record", "--output", recording, "--cubins"],
    ] {
        let mut app = App::start(&fixture().lib);
        let pid = app.pid().to_string();
        let mut args = view.clone();
        args.extend(["--pid", &pid]);
        let running = View::start(&args);
        attack(&mut app);
        // The views take what is in the ring buffer.
        std::thread::sleep(Duration::from_millis(700));
        let used = peak(running.pid());
        assert!(used < MOST_MIB, "{view:?}: {used} MiB");
        let (out, err) = running.end();
        if view.contains(&"--json") {
            for line in out.lines() {
                let json: Result<Value, _> = serde_json::from_str(line);
                assert!(json.is_ok(), "{view:?}: {line}");
            }
        }
        // JSON is for programs, and escapes the ones that would break it.
        let json = view.contains(&"--json");
        let bad = |c: char| c != '\n' && if json { c < ' ' } else { c.is_control() };
        assert!(!out.contains(bad), "{view:?}: control characters");
        assert!(
            !err.contains(|c: char| c != '\n' && c.is_control()),
            "{view:?}: {err}"
        );
    }
    assert!(Path::new(recording).exists());
    let report = Command::new(PARCAGPU)
        .args(["report", recording])
        .output()
        .unwrap();
    assert!(
        report.status.success(),
        "{}",
        String::from_utf8_lossy(&report.stderr)
    );
}

#[test]
fn a_status_block_of_noise_is_told_as_such() {
    const TEST: &str = "a_status_block_of_noise_is_told_as_such";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let mut app = App::start(&fixture().lib);
    let pid = app.pid().to_string();
    app.obey("noise");
    let began = Instant::now();
    for args in [
        vec!["status", "--verbose", "--pid", &pid],
        vec!["status", "--json", "--pid", &pid],
        vec!["top", "--once", "--pid", &pid],
        vec!["doctor", "--lib", fixture().lib.to_str().unwrap()],
    ] {
        let out = Command::new(PARCAGPU).args(&args).output().unwrap();
        let code = out.status.code();
        // Whatever a process says is no fault of the host.
        assert_eq!(code, Some(0), "{args:?}");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        if args[0] == "doctor" {
            // But nothing to be content with.
            let told = text.lines().find(|l| l.contains(&format!("PID {pid} ")));
            let warned = |line: &str| line.starts_with("warn ") && line.contains("unknown state");
            assert!(told.is_some_and(warned), "{text}");
        }
        assert!(!text.contains('\u{1b}'), "{args:?}: {text}");
    }
    assert!(began.elapsed() < PATIENCE);
}
