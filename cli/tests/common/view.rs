//! `trace`, `top` and the like as a test runs them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{PARCAGPU, PATIENCE, fixture};

/// A running view.
pub struct View {
    child: Child,
    stderr: BufReader<ChildStderr>,
    stdout: Option<JoinHandle<String>>,
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
