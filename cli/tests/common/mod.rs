//! The fixture, the command under test, and when a test may be skipped.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use parcagpu_abi::status::{Counter, Status};
use serde_json::Value;
use tempfile::TempDir;

pub mod cuda;

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

/// A running view.
pub struct View {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    stdout: Option<std::thread::JoinHandle<String>>,
    so_far: Arc<Mutex<String>>,
}

impl View {
    /// Starts a view and waits until it is attached.
    pub fn start(args: &[&str]) -> Self {
        let mut command = Command::new(PARCAGPU);
        // The default library of a view that is given none.
        command.args(args).env("PARCAGPU_LIB", &fixture().lib);
        Self::of(&mut command)
    }

    /// Starts one by a command and waits until it is attached.
    pub fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let so_far: Arc<Mutex<String>> = Arc::default();
        let text = Arc::clone(&so_far);
        let stdout = std::thread::spawn(move || {
            let mut line = String::new();
            while out.read_line(&mut line).unwrap() > 0 {
                text.lock().unwrap().push_str(&line);
                line.clear();
            }
            std::mem::take(&mut *text.lock().unwrap())
        });
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("attached to ") {
            line.clear();
            assert_ne!(
                stderr.read_line(&mut line).unwrap(),
                0,
                "ended before it was attached"
            );
        }
        Self {
            child,
            stderr,
            stdout: Some(stdout),
            so_far,
        }
    }

    /// What it says on stderr behind these words; waits for the line.
    pub fn told(&mut self, before: &str) -> String {
        loop {
            let mut line = String::new();
            let n = self.stderr.read_line(&mut line).unwrap();
            assert_ne!(n, 0, "it ended without a line {before}");
            if let Some(rest) = line.strip_prefix(before) {
                return rest.trim_end().to_owned();
            }
        }
    }

    /// Waits until it has printed this, doing something meanwhile, which must not come faster than it prints.
    pub fn await_text(&self, wanted: &str, mut meanwhile: impl FnMut()) {
        let began = Instant::now();
        while !self.so_far.lock().unwrap().contains(wanted) {
            let so_far = self.so_far.lock().unwrap().clone();
            assert!(began.elapsed() < PATIENCE, "no {wanted} in {so_far}");
            meanwhile();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, as Ctrl-C does.
    pub fn interrupt(&self) {
        let pid = self.child.id().cast_signed();
        // SAFETY: the child is ours and was not waited for.
        unsafe { libc::kill(pid, libc::SIGINT) };
    }

    /// Ends it as Ctrl-C does; what it wrote to stdout and stderr since it attached.
    pub fn end(mut self) -> (String, String) {
        self.interrupt();
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        let out = self.stdout.take().unwrap().join().unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        (out, rest)
    }

    /// Waits until it ends by itself; what it wrote to stdout.
    pub fn wait(mut self) -> String {
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.stdout.take().unwrap().join().unwrap()
    }

    /// Ends it; its JSON lines and stderr.
    pub fn end_json(self) -> (Vec<Value>, String) {
        let (out, err) = self.end();
        let lines = out
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        (lines, err)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.stdout.is_some() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The app, taking commands.
pub struct App {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl App {
    /// Starts the app with a library and waits until it is ready.
    pub fn start(lib: &Path) -> Self {
        let mut command = Command::new(&fixture().app);
        command.arg(lib).arg("-");
        Self::of(&mut command)
    }

    /// Starts it by a command and waits until it is ready.
    pub fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut app = Self {
            child,
            stdin,
            stdout,
        };
        assert_eq!(app.line(), "ready");
        app
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command and waits until it is done; what the app printed.
    pub fn obey(&mut self, command: &str) -> String {
        writeln!(self.stdin, "{command}").unwrap();
        let mut said = String::new();
        loop {
            match self.line().as_str() {
                "done" => return said,
                "" => panic!("the app ended at {command:?}"),
                line => said += line,
            }
        }
    }

    /// Gives a command and does not wait.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    /// Semaphores of cuda_correlation, activity_batch, kernel_executed and error.
    pub fn semaphores(&mut self) -> Vec<u16> {
        let said = self.obey("semaphores");
        let numbers = said.strip_prefix("semaphores ").unwrap().split(' ');
        numbers.map(|n| n.parse().unwrap()).collect()
    }

    /// Waits until somebody listens to PC samples.
    pub fn await_consumer_of_samples(&mut self) {
        let began = Instant::now();
        while self.obey("listens") != "listens 1" {
            assert!(began.elapsed() < PATIENCE, "nobody listens");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a consumer of ours listens: it attaches to errors after launches and kernels, so that these come
    /// to it from now on.
    pub fn await_consumer(&mut self) {
        let began = Instant::now();
        while self.semaphores()[3] == 0 {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.semaphores());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the semaphores have these values.
    pub fn await_semaphores(&mut self, wanted: &[u16]) {
        let began = Instant::now();
        while self.semaphores() != wanted {
            assert!(
                began.elapsed() < PATIENCE,
                "{:?} instead of {wanted:?}",
                self.semaphores()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        // The semaphore rises before the consumer's program is in place.
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
