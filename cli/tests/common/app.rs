//! The fixture's program.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::{PATIENCE, fixture};

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
