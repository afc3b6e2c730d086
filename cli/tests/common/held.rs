//! `run` or `record` with a program that goes on.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::{PARCAGPU, PATIENCE};

/// A command of ours with a program that goes on until its input ends.
pub struct Held {
    running: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Held {
    /// Starts it.
    pub fn start(args: &[&str]) -> Self {
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
    pub fn await_line(&mut self, wanted: &str) {
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
    pub fn await_echo(&mut self) {
        writeln!(self.stdin.as_ref().unwrap(), "ready").unwrap();
        self.await_line("ready");
    }

    /// Waits until something that ours prints again and again has this text.
    pub fn await_told(&mut self, wanted: &str) {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            let n = self.stderr.read_line(&mut line).unwrap();
            assert_ne!(n, 0, "it ended without {wanted}");
        }
    }

    /// Waits until ours has looked at its command several times: it waits for events before each look.
    pub fn await_looks(&self) {
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
    pub fn end(mut self) -> String {
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
