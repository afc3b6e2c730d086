//! `parcagpu trace --json` as a consumer.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::artefacts;
use crate::cut_short::{self, Error};
use crate::lab::Lab;
use crate::program::{Program, Running, WATCHDOG};

/// An attached consumer.
pub struct Trace {
    running: Running,
}

/// What it printed.
pub struct Events {
    /// All events, in the order of the ring buffer.
    pub all: Vec<Value>,
    /// What it said about itself.
    pub stderr: String,
}

impl Trace {
    /// Attaches to processes that have the library mapped, and returns when it has.
    #[track_caller]
    pub fn attach(lab: &Lab, pids: &[u32]) -> Self {
        Self::attach_with(lab, pids, "")
    }

    /// With more options.
    #[track_caller]
    pub fn attach_with(lab: &Lab, pids: &[u32], options: &str) -> Self {
        let mut program = Program::new(artefacts::command(), lab.path()).words("trace --json");
        for pid in pids {
            program = program.args(["--pid", &pid.to_string()]);
        }
        let mut running = program.words(options).start();
        running.wait_stderr("attached to");
        Self { running }
    }

    /// Its process.
    pub fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    /// Events printed so far; a line that is being written is left out.
    pub fn so_far(&self) -> Vec<Value> {
        let text = self.running.stdout();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        parse(whole)
    }

    /// Waits until what it printed is enough.
    #[track_caller]
    pub fn until(&self, what: &str, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let events = self.so_far();
            if enough(&events) {
                return events;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: not among {} events",
                events.len()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it by SIGINT; it prints what is left.
    #[track_caller]
    pub fn end(self) -> Events {
        self.running.signal(libc::SIGINT);
        let ended = self.running.wait(Duration::from_secs(10)).ok();
        Events {
            all: parse(&ended.stdout),
            stderr: ended.stderr,
        }
    }

    /// Kills it.
    pub fn kill(self) {
        self.running.signal(libc::SIGKILL);
        self.running.wait(Duration::from_secs(10));
    }
}

fn parse(lines: &str) -> Vec<Value> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

impl Events {
    /// What stands in a file of such events.
    pub fn read(text: &str) -> Self {
        Self {
            all: parse(text),
            stderr: String::new(),
        }
    }

    /// Events of one probe.
    pub fn of<'a>(&'a self, probe: &'a str) -> impl Iterator<Item = &'a Value> {
        self.all.iter().filter(move |event| event["probe"] == probe)
    }

    /// Ids announced by `cuda_correlation`.
    pub fn launches(&self) -> Vec<u64> {
        self.of("cuda_correlation")
            .map(|e| number(e, "correlation_id"))
            .collect()
    }

    /// Ids of kernel records.
    pub fn records(&self) -> Vec<u64> {
        self.of("activity_batch")
            .map(|e| number(e, "correlation_id"))
            .collect()
    }

    /// Error events. Not that an end was cut short.
    pub fn errors(&self) -> Vec<Error> {
        cut_short::without(self.all_errors())
    }

    /// Whether a program said that its end came before everything was delivered.
    pub fn cut_short(&self) -> bool {
        cut_short::is_among(&self.all_errors())
    }

    fn all_errors(&self) -> Vec<Error> {
        self.of("error")
            .map(|e| {
                let text = |key: &str| e[key].as_str().unwrap_or_default().to_owned();
                (
                    e["code"].as_i64().unwrap_or(i64::MIN),
                    text("component"),
                    text("message"),
                )
            })
            .collect()
    }
}

/// A field that is a number.
#[track_caller]
pub fn number(event: &Value, field: &str) -> u64 {
    event[field]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {field} in {event}"))
}
