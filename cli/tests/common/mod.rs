//! The fixture, the command under test, and when a test may be skipped.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use parcagpu_abi::status::{Counter, Status};
use serde_json::Value;
use tempfile::TempDir;

mod app;
pub mod cuda;
mod held;
mod view;

pub use app::App;
pub use held::Held;
pub use view::View;

/// The command under test.
pub const PARCAGPU: &str = env!("CARGO_BIN_EXE_parcagpu");
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The compiled fixture; one folder per test binary, removed by the last test's end of process.
pub struct Fixture {
    pub lib: PathBuf,
    pub lib_without_batch: PathBuf,
    pub app: PathBuf,
}

/// Compiles the fixture once.
pub fn fixture() -> &'static Fixture {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    FIXTURE.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture");
        // One folder per process: two test binaries may compile at the same time.
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fixture-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let fixture = Fixture {
            lib: dir.join("libfixture.so"),
            lib_without_batch: dir.join("libfixture-old.so"),
            app: dir.join("app"),
        };
        let library = |output: &Path, extra: &[&str]| {
            let mut gcc = Command::new("gcc");
            gcc.args([
                "-O2",
                "-fPIC",
                "-shared",
                "-fvisibility=hidden",
                "-Wl,-z,separate-code",
            ])
            .arg("-I")
            .arg(sources.join("../../../ebpf"))
            .args(extra)
            .args(status_defines())
            .arg(sources.join("fixture.c"))
            .arg("-o")
            .arg(output);
            assert!(
                gcc.status().unwrap().success(),
                "gcc failed; are gcc and systemtap-sdt-dev there?"
            );
        };
        library(&fixture.lib, &[]);
        library(&fixture.lib_without_batch, &["-DNO_ACTIVITY_BATCH"]);
        let app = Command::new("gcc")
            .args(["-O2", "-g", "-fno-inline", "-fno-optimize-sibling-calls"])
            .arg(sources.join("app.c"))
            .arg("-o")
            .arg(&fixture.app)
            .arg("-ldl")
            .status();
        assert!(app.unwrap().success());
        fixture
    })
}

/// The fixture's library as an argument.
pub fn lib() -> &'static str {
    fixture().lib.to_str().unwrap()
}

fn status_defines() -> Vec<String> {
    [
        ("STATUS_SIZE", size_of::<Status>()),
        ("STATUS_COUNTERS", offset_of!(Status, counters)),
        ("STATUS_STATE", offset_of!(Status, state)),
        ("STATUS_PID", offset_of!(Status, pid)),
        ("STATUS_REASON", offset_of!(Status, reason)),
        ("STATUS_DEVICES", offset_of!(Status, devices)),
        ("EAGER_SEEN", Counter::EagerSeen as usize),
        ("EAGER_SAMPLED", Counter::EagerSampled as usize),
        ("IDS_MATCHED", Counter::IdsMatched as usize),
    ]
    .iter()
    .map(|(name, value)| format!("-D{name}={value}"))
    .collect()
}

/// Lets one test run at a time: a view of all processes raises the semaphores of other tests' apps.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to run, or `None`: says aloud and keeps a record when the test cannot run here.
pub fn bpf_or_skip(test: &str) -> Option<MutexGuard<'static, ()>> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let reason = match missing() {
        None => return Some(turn),
        Some(reason) => reason,
    };
    let required = std::env::var("PARCAGPU_REQUIRE").unwrap_or_default();
    assert!(!required.contains("bpf"), "{test} needs BPF: {reason}");
    skip(test, &reason);
    None
}

/// Says aloud that a test cannot run here, and keeps a record.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
    if let Some(log) = std::env::var_os("PARCAGPU_SKIP_LOG") {
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        writeln!(log, "{test}: {reason}").unwrap();
    }
}

/// The command itself says what it lacks: loading its program is the only sure check.
fn missing() -> Option<String> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    MISSING
        .get_or_init(|| {
            let lib = &fixture().lib;
            let out = parcagpu(&["trace", "--seconds", "0", "--lib", lib.to_str().unwrap()]);
            let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
            (out.status.code() == Some(2)).then_some(stderr)
        })
        .clone()
        .map(|reason| reason.trim().to_owned())
}

/// Runs the command to its end.
pub fn parcagpu(args: &[&str]) -> Output {
    Command::new(PARCAGPU)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs the app under `parcagpu run`.
pub fn run(options: &[&str], commands: &[&str]) -> Output {
    let app = fixture().app.to_str().unwrap();
    let mut args = vec!["run", "--lib", lib()];
    args.extend(options);
    args.extend(["--", app, "preloaded"]);
    args.extend(commands);
    parcagpu(&args)
}

/// What a command said on stderr.
pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// A copy of the fixture with an inode of its own.
pub fn own_copy(lib: &Path) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let copy = dir.path().join("libcopy.so");
    fs::copy(lib, &copy).unwrap();
    (dir, copy)
}

/// Those lines of a trace that a process caused by a probe.
pub fn of<'a>(lines: &'a [Value], pid: u32, probe: &str) -> Vec<&'a Value> {
    lines
        .iter()
        .filter(|l| l["pid"] == pid && l["probe"] == probe)
        .collect()
}
