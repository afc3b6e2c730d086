//! Which capabilities each command needs, as the README says.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{App, PARCAGPU, View, bpf_or_skip, fixture, of, parcagpu, skip, stderr};
use serde_json::Value;
use tempfile::TempDir;

const NOBODY: &str = "65534";

/// A command that runs with these capabilities and no others, as root or as somebody without any rights of
/// a user (root's files are open to root without capabilities).
fn with(capabilities: &str, nobody: bool) -> Command {
    let set = match capabilities {
        "" => "-all".to_owned(),
        some => format!("-all,+{}", some.replace(',', ",+")),
    };
    let mut command = Command::new("setpriv");
    if nobody {
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
        command.args(["--inh-caps", &set, "--ambient-caps", &set]);
    } else {
        command.args(["--bounding-set", &set, "--inh-caps", "-all"]);
    }
    command.stdin(Stdio::null());
    command
}

fn parcagpu_with(capabilities: &str, args: &[&str]) -> Output {
    with(capabilities, false)
        .arg(PARCAGPU)
        .args(args)
        .env("PARCAGPU_LIB", &fixture().lib)
        .output()
        .unwrap()
}

/// Program and library where every user reaches them.
struct Public {
    dir: TempDir,
}

impl Public {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for file in [&fixture().lib, &fixture().app] {
            let copy = dir.path().join(file.file_name().unwrap());
            fs::copy(file, &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { dir }
    }

    fn app(&self) -> std::path::PathBuf {
        self.dir.path().join("app")
    }

    fn lib(&self) -> std::path::PathBuf {
        self.dir.path().join("libfixture.so")
    }

    /// The app of another user.
    fn start(&self) -> App {
        App::of(with("", true).arg(self.app()).arg(self.lib()).arg("-"))
    }
}

fn root_or_skip(test: &str) -> bool {
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skip(test, "not root");
    }
    root
}

#[test]
fn run_needs_bpf_and_perfmon() {
    let Some(_turn) = bpf_or_skip("run_needs_bpf_and_perfmon") else {
        return;
    };
    if !root_or_skip("run_needs_bpf_and_perfmon") {
        return;
    }
    let app = fixture().app.to_str().unwrap();
    let args = ["run", "--", app, "preloaded", "launch 3 100 k"];
    let out = parcagpu_with("bpf,perfmon", &args);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(stderr(&out).contains("all 3 launches"), "{}", stderr(&out));
    for (held, missing) in [
        ("perfmon,sys_ptrace", "missing rights: CAP_BPF;"),
        ("bpf,sys_ptrace", "missing rights: CAP_PERFMON;"),
        ("sys_ptrace", "missing rights: CAP_BPF, CAP_PERFMON;"),
    ] {
        let out = parcagpu_with(held, &args);
        assert_eq!(out.status.code(), Some(2), "{held}");
        assert!(stderr(&out).contains(missing), "{held}: {}", stderr(&out));
    }
}

#[test]
fn views_of_other_users_processes_need_ptrace_too() {
    const TEST: &str = "views_of_other_users_processes_need_ptrace_too";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    if !root_or_skip(TEST) {
        return;
    }
    let public = Public::new();
    let mut app = public.start();
    let pid = app.pid().to_string();
    for command in ["trace", "top"] {
        let out = parcagpu_with("bpf,perfmon", &[command, "--pid", &pid, "--seconds", "0"]);
        assert_eq!(out.status.code(), Some(2), "{command}: {}", stderr(&out));
        assert!(
            stderr(&out).contains("CAP_SYS_PTRACE"),
            "{command}: {}",
            stderr(&out)
        );
        let mut enough = with("bpf,perfmon,sys_ptrace", false);
        let view = View::of(enough.args([PARCAGPU, command, "--json", "--pid", &pid]));
        app.obey("launch 4 100 k");
        let (out, err) = view.end();
        if command == "trace" {
            let lines: Vec<Value> = out
                .lines()
                .map(|l| serde_json::from_str(l).unwrap())
                .collect();
            assert_eq!(of(&lines, app.pid(), "activity_batch").len(), 4);
            assert!(
                err.contains("all 4 launches"),
                "the block can be read: {err}"
            );
        } else {
            let json: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(json["processes"][0]["launches_seen"], 4);
        }
    }
    let file = public.dir.path().join("recording");
    let file = file.to_str().unwrap();
    let record = ["record", "--output", file, "--pid", &pid, "--seconds", "0"];
    let out = parcagpu_with("bpf,perfmon", &record);
    assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
    assert!(stderr(&out).contains("CAP_SYS_PTRACE"), "{}", stderr(&out));
    let out = parcagpu_with("bpf,perfmon,sys_ptrace", &record);
    assert!(out.status.success(), "{}", stderr(&out));
    // All processes: what cannot be seen is told.
    let all = parcagpu_with("bpf,perfmon", &["trace", "--seconds", "0"]);
    assert!(all.status.success(), "{}", stderr(&all));
    assert!(stderr(&all).contains("CAP_SYS_PTRACE"), "{}", stderr(&all));
}

#[test]
fn status_needs_ptrace_for_other_users_and_nothing_for_ones_own() {
    const TEST: &str = "status_needs_ptrace_for_other_users_and_nothing_for_ones_own";
    if !root_or_skip(TEST) {
        return;
    }
    let public = Public::new();
    let app = public.start();
    let pid = app.pid().to_string();
    let args = ["status", "--json", "--pid", &pid];
    let refused = parcagpu_with("bpf,perfmon", &args);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("CAP_SYS_PTRACE"),
        "{}",
        stderr(&refused)
    );
    let state = |out: &Output| {
        assert!(out.status.success(), "{}", stderr(out));
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        (json[0]["state"].clone(), json[0]["semaphores"].clone())
    };
    let expected = (Value::from("dormant"), serde_json::json!({}));
    assert_eq!(state(&parcagpu_with("sys_ptrace", &args)), expected);
    let copy = public.dir.path().join("parcagpu");
    fs::copy(PARCAGPU, &copy).unwrap();
    let own = with("", true).arg(&copy).args(args).output().unwrap();
    assert_eq!(state(&own), expected);
    // Without a number: what cannot be seen is told.
    let all = with("", true).arg(&copy).arg("status").output().unwrap();
    assert!(stderr(&all).contains("CAP_SYS_PTRACE"), "{}", stderr(&all));
}

#[test]
fn doctor_says_what_is_missing_and_how_to_get_it() {
    const TEST: &str = "doctor_says_what_is_missing_and_how_to_get_it";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    if !root_or_skip(TEST) {
        return;
    }
    let lib = fixture().lib.to_str().unwrap();
    let doctor = |out: &Output, check: &str| {
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        let findings = json["findings"].as_array().unwrap().clone();
        findings
            .into_iter()
            .filter(|f| f["check"] == check)
            .collect::<Vec<Value>>()
    };
    let good = parcagpu(&["doctor", "--json", "--lib", lib]);
    let json: Value = serde_json::from_slice(&good.stdout).unwrap();
    // Processes of others on this machine may be in any state.
    let failed = json["findings"].as_array().unwrap().iter();
    let failed: Vec<&Value> = failed
        .filter(|f| f["level"] == "fail" && f["check"] != "process")
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
    let status = if json["fail"] == 0 { 0 } else { 2 };
    assert_eq!(good.status.code(), Some(status), "{json}");
    assert_eq!(
        doctor(&good, "bpf_program")[0]["text"],
        "loaded, and attached to every probe"
    );
    assert_eq!(doctor(&good, "pages")[0]["level"], "ok");
    if !Path::new("/proc/driver/nvidia/version").exists() {
        assert_eq!(doctor(&good, "driver")[0]["level"], "warn");
    }

    let poor = parcagpu_with("sys_ptrace", &["doctor", "--json", "--lib", lib]);
    assert_eq!(poor.status.code(), Some(2));
    let rights = &doctor(&poor, "capabilities")[0];
    assert_eq!(rights["text"], "missing: CAP_BPF, CAP_PERFMON");
    assert!(
        rights["cure"].as_str().unwrap().contains("setcap"),
        "{rights}"
    );

    let old = fixture().lib_without_batch.to_str().unwrap();
    let old = parcagpu(&["doctor", "--json", "--lib", old]);
    assert_eq!(old.status.code(), Some(2));
    assert!(
        doctor(&old, "probes")[0]["text"]
            .as_str()
            .unwrap()
            .contains("activity_batch")
    );
    let none = parcagpu(&["doctor", "--lib", "/nowhere/lib.so"]);
    assert_eq!(none.status.code(), Some(2));
    let text = String::from_utf8(none.stdout).unwrap();
    assert!(
        text.contains("fail  library") && !text.contains('\u{1b}'),
        "{text}"
    );
}

#[test]
fn doctor_finds_processes_and_preloads_that_did_not_work() {
    const TEST: &str = "doctor_finds_processes_and_preloads_that_did_not_work";
    if !root_or_skip(TEST) {
        return;
    }
    let app = App::start(&fixture().lib);
    let mut without = Command::new("sleep")
        .arg("600")
        .env("LD_PRELOAD", "/nowhere/libparcagpu.so")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Before that the loader may still bring it.
    let maps = format!("/proc/{}/maps", without.id());
    while !fs::read_to_string(&maps).unwrap().contains("/libc.so") {
        std::thread::yield_now();
    }
    let lib = fixture().lib.to_str().unwrap();
    let out = parcagpu(&["doctor", "--json", "--lib", lib]);
    without.kill().unwrap();
    let preloaded = without.id();
    without.wait().unwrap();
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    let of_pid = |pid: u32| {
        let head = format!("PID {pid} (");
        let mut all = json["findings"].as_array().unwrap().iter();
        let found = all.find(|f| f["text"].as_str().unwrap().starts_with(&head));
        found.unwrap_or_else(|| panic!("{head}: {json}")).clone()
    };
    let fine = of_pid(app.pid());
    assert_eq!(fine["level"], "ok");
    assert!(
        fine["text"]
            .as_str()
            .unwrap()
            .contains("dormant (the fixture rests)")
    );
    let bad = of_pid(preloaded);
    assert_eq!(bad["level"], "warn");
    assert!(
        bad["text"]
            .as_str()
            .unwrap()
            .contains("not there in its mount namespace"),
        "{bad}"
    );
}
