//! Running programs: output into files, a watchdog, and stacks of what hangs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// On top of the time that a test names; past it the program hangs. The kernel alone may take a minute to take the probes
/// of some consumers out of the code when much else goes on.
pub const WATCHDOG: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(5);

/// Prefixes of variables that the machine's environment must not bring into a test.
const FOREIGN: [&str; 3] = ["PARCAGPU_", "MOCK_", "LD_"];

/// A program to run.
pub struct Program {
    command: Command,
    folder: PathBuf,
    name: String,
}

/// A program that ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it printed to stderr.
    pub stderr: String,
    /// From its start to its end.
    pub took: Duration,
}

impl Ended {
    /// Exit code, or -n for signal n.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| -self.status.signal().unwrap_or(0))
    }

    /// The same, when it is 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(
            self.status.success(),
            "ended with {}; stdout: {}; stderr: {}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }
}

/// A program that runs; killed when dropped.
pub struct Running {
    child: Child,
    name: String,
    began: Instant,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: bool,
}

impl Program {
    /// `path`, with output into files of `folder`. Variables of ours and of the loader are not
    /// inherited.
    pub fn new(path: impl AsRef<OsStr>, folder: &Path) -> Self {
        let path = path.as_ref();
        let mut command = Command::new(path);
        for (name, _) in std::env::vars_os() {
            let foreign = |prefix: &&str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
            if FOREIGN.iter().any(foreign) || name == "CUDA_INJECTION64_PATH" {
                command.env_remove(name);
            }
        }
        let name = Path::new(path)
            .file_name()
            .unwrap_or(path)
            .to_string_lossy();
        Self {
            command,
            folder: folder.to_owned(),
            name: name.into_owned(),
        }
    }

    /// More arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// One argument that may have spaces.
    pub fn arg_path(mut self, path: &Path) -> Self {
        self.command.arg(path);
        self
    }

    /// Arguments separated by spaces.
    pub fn words(self, words: &str) -> Self {
        self.args(words.split_whitespace())
    }

    /// One variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Several variables.
    pub fn envs<'a>(mut self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.command.envs(variables);
        self
    }

    /// A variable it does not get.
    pub fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Removes all variables but those that are set afterwards.
    pub fn bare_environment(mut self) -> Self {
        self.command.env_clear();
        self
    }

    /// The command, for what the above does not offer.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Starts it.
    pub fn start(mut self) -> Running {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| self.folder.join(format!("{}.{serial}.{kind}", self.name));
        let (stdout, stderr) = (file("out"), file("err"));
        let create = |path: &Path| File::create(path).expect("the lab can be written");
        let child = self
            .command
            .stdin(Stdio::piped())
            .stdout(create(&stdout))
            .stderr(create(&stderr))
            .spawn()
            .unwrap_or_else(|e| panic!("failed to start {:?}: {e}", self.command));
        Running {
            child,
            name: self.name,
            began: Instant::now(),
            stdout,
            stderr,
            ended: false,
        }
    }

    /// Runs it to its end, which is due within `limit`.
    #[track_caller]
    pub fn run(self, limit: Duration) -> Ended {
        self.start().wait(limit)
    }
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// What it printed to stderr so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// The file its output goes to.
    pub fn stdout_file(&self) -> &Path {
        &self.stdout
    }

    /// Whether it is still there.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Waits for a text in its output.
    #[track_caller]
    pub fn wait_stdout(&mut self, text: &str) {
        self.wait_text(text, |running| running.stdout());
    }

    /// Waits until `lines` whole lines of its stdout have this text: what a consumer prints comes some time
    /// after it was delivered, and bpftrace may throw away what it has not printed when it is interrupted.
    #[track_caller]
    pub fn wait_lines(&mut self, text: &str, lines: usize) {
        let has = |stdout: &str| whole_lines(stdout).filter(|l| l.contains(text)).count() >= lines;
        self.wait_until(&format!("{lines} lines with {text:?}"), |running| {
            has(&running.stdout())
        });
    }

    /// Waits for a text on its stderr.
    #[track_caller]
    pub fn wait_stderr(&mut self, text: &str) {
        self.wait_text(text, |running| running.stderr());
    }

    #[track_caller]
    fn wait_text(&mut self, text: &str, output: impl Fn(&Self) -> String) {
        self.wait_until(&format!("{text:?}"), |running| {
            output(running).contains(text)
        });
    }

    #[track_caller]
    fn wait_until(&mut self, what: &str, said: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let alive = self.runs();
            if said(self) {
                return;
            }
            if !alive || Instant::now() > deadline {
                let state = if alive {
                    stacks(self.pid())
                } else {
                    "it ended".to_owned()
                };
                panic!(
                    "{} did not say {what} ({state}); stdout: {}; stderr: {}",
                    self.name,
                    self.stdout(),
                    self.stderr()
                );
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until it waits for events: bpftrace says what BEGIN prints before it has attached its probes.
    #[track_caller]
    pub fn wait_for_events(&mut self) {
        let deadline = Instant::now() + WATCHDOG;
        while !waits_for_events(self.pid()) {
            assert!(
                self.runs() && Instant::now() < deadline,
                "{} does not wait for events; stderr: {}\n{}",
                self.name,
                self.stderr(),
                stacks(self.pid())
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until its first thread has gone to sleep so many times from now: so often it has gone round a loop in
    /// which it waits for something.
    #[track_caller]
    pub fn wait_sleeps(&mut self, times: u64) {
        let deadline = Instant::now() + WATCHDOG;
        let enough = voluntary_sleeps(self.pid()) + times;
        while voluntary_sleeps(self.pid()) < enough {
            assert!(
                self.runs() && Instant::now() < deadline,
                "{} does not go round; stderr: {}\n{}",
                self.name,
                self.stderr(),
                stacks(self.pid())
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Lets a host program go on that waits at its n-th gate, counted from 1.
    #[track_caller]
    pub fn open_gate(&mut self, n: usize) {
        self.wait_gate(n);
        self.child
            .stdin
            .as_mut()
            .expect("stdin is a pipe until the end")
            .write_all(b"go\n")
            .expect("the program reads its gate");
    }

    /// The end of its input: it comes to no gate any more.
    pub fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Gates that a host program came to so far.
    pub fn gates(&self) -> usize {
        self.stdout().lines().filter(|l| *l == "gate").count()
    }

    /// Waits until a host program stands at its n-th gate.
    #[track_caller]
    pub fn wait_gate(&mut self, n: usize) {
        let deadline = Instant::now() + WATCHDOG;
        while self.gates() < n {
            assert!(
                self.runs() && Instant::now() < deadline,
                "{} did not come to gate {n}; stdout: {}; stderr: {}",
                self.name,
                self.stdout(),
                self.stderr()
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child was not waited for, so the number is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    /// Ends a consumer by SIGINT. bpftrace 0.17 forgets one that comes while it prints, and then needs another;
    /// one that comes while it ends has it throw away what it has not printed yet. It ends when it has waited
    /// for events once and none was left, and so has forgotten the signal when it waits again and again.
    #[track_caller]
    pub fn interrupt(self, limit: Duration) -> Ended {
        const AGAIN: usize = 4;
        let pid = self.child.id();
        let forgetful = self.name == "bpftrace";
        self.signal(libc::SIGINT);
        let mut waits = BTreeSet::new();
        self.wait_with(limit, || {
            let sleeps = voluntary_sleeps(pid);
            if forgetful && waits_for_events(pid) && sleeps == voluntary_sleeps(pid) {
                waits.insert(sleeps);
            }
            if waits.len() >= AGAIN && catches_interrupt(pid) {
                waits.clear();
                // SAFETY: the child was not waited for, so the number is its own.
                unsafe { libc::kill(pid.cast_signed(), libc::SIGINT) };
            }
            std::thread::sleep(LOOK);
        })
    }

    /// Waits for its end, which is due within `limit` from now; the watchdog's time is on top.
    #[track_caller]
    pub fn wait(self, limit: Duration) -> Ended {
        self.wait_with(limit, || std::thread::sleep(LOOK))
    }

    /// As [`Self::wait`], calling `meanwhile` again and again.
    #[track_caller]
    pub fn wait_with(mut self, limit: Duration, mut meanwhile: impl FnMut()) -> Ended {
        let deadline = Instant::now() + limit + WATCHDOG;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            if Instant::now() > deadline {
                let stacks = stacks(self.pid());
                panic!(
                    "{} hangs; stdout: {}; stderr: {}\n{stacks}",
                    self.name,
                    self.stdout(),
                    self.stderr()
                );
            }
            meanwhile();
        };
        self.ended = true;
        Ended {
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
            took: self.began.elapsed(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The lines that end with a line end; what comes after the last one is still being written.
fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
}

/// A file's text; what a program writes may be cut in a character.
fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Whether the first thread of a process waits in `epoll_wait`.
fn waits_for_events(pid: u32) -> bool {
    let now = read(Path::new(&format!("/proc/{pid}/syscall")));
    [libc::SYS_epoll_wait, libc::SYS_epoll_pwait]
        .iter()
        .any(|call| now.starts_with(&format!("{call} ")))
}

/// How often the first thread of a process went to sleep.
fn voluntary_sleeps(pid: u32) -> u64 {
    let status = read(Path::new(&format!("/proc/{pid}/status")));
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// Whether a process has a handler for SIGINT.
fn catches_interrupt(pid: u32) -> bool {
    let status = read(Path::new(&format!("/proc/{pid}/status")));
    let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
    caught
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (libc::SIGINT - 1)) != 0)
}

/// Where each thread of a process is.
pub fn stacks(pid: u32) -> String {
    let mut text = String::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return text;
    };
    for task in tasks.flatten() {
        let part = |name: &str| read(&task.path().join(name)).trim().to_owned();
        text += &format!(
            "thread {:?} ({}), waits in {}\n{}\n",
            task.file_name(),
            part("comm"),
            part("wchan"),
            part("stack")
        );
    }
    text
}
