//! Resolves stacks in a thread of its own: reading debug information takes long, and the ring buffer must not
//! wait for that.
//!
//! Stacks that come faster than they are resolved are refused, so that what waits is bounded. The thread ends
//! when its [`Resolver`] is dropped.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};

use super::Frames;
use super::files::Files;
use super::process::Process;
use super::unwind::Copy;
use crate::events::Registers;

/// Stacks that wait to be resolved, or to be fetched.
const WAITING_MAX: usize = 4096;
/// Processes whose mappings are remembered; more of them begin anew.
const PROCESSES_MAX: usize = 64;

/// Copies of stacks among them, in bytes.
const COPIES_MAX: usize = 16 << 20;
/// Stacks found in copies that are remembered, of all processes; more of them begin anew.
const STACKS_MAX: usize = 1 << 14;

/// What is known of a stack.
#[derive(Debug)]
enum Shape {
    /// Addresses, leaf first.
    Addresses(Box<[u64]>),
    /// What lay on it.
    Copy(Copy),
}

/// A stack to resolve.
#[derive(Debug)]
struct Question {
    /// `None`: only have a look at the process.
    stack: Option<(u64, Shape)>,
    /// Tells processes apart for good.
    process: u64,
    pid: u32,
}

/// What became of a stack.
#[derive(Debug)]
pub struct Answer {
    /// Its number.
    pub stack: u64,
    /// What it is.
    pub found: Found,
    /// Bytes of its copy.
    copied: usize,
}

/// What a stack is.
#[derive(Debug)]
pub enum Found {
    /// Frames by address, leaf first; none: it leads nowhere.
    Frames(Vec<Frames>),
    /// The same as an earlier one that has frames.
    SameAs(u64),
    /// Not known: the process was gone.
    Gone,
}

/// The other end of the thread.
#[derive(Debug)]
pub struct Resolver {
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
    waiting: usize,
    /// Bytes of copies that wait.
    copied: usize,
}

impl Resolver {
    /// Starts the thread.
    pub fn start() -> Result<Self> {
        let (questions, inbox) = sync_channel(WAITING_MAX);
        let (outbox, answers) = sync_channel(WAITING_MAX);
        thread::Builder::new()
            .name("parcagpu-stacks".to_owned())
            .spawn(move || work(&inbox, &outbox))
            .context("failed to start the thread that resolves stacks")?;
        Ok(Self {
            questions,
            answers,
            waiting: 0,
            copied: 0,
        })
    }

    /// Has the mappings of a new process read, before it is gone.
    pub fn look_at(&mut self, process: u64, pid: u32) {
        let look = Question {
            stack: None,
            process,
            pid,
        };
        // It is looked at with its first stack otherwise.
        let _ = self.questions.try_send(look);
    }

    /// Has a stack resolved; false: too many wait, there will be no answer.
    pub fn ask(&mut self, stack: u64, process: u64, pid: u32, addresses: Box<[u64]>) -> bool {
        self.put(stack, process, pid, Shape::Addresses(addresses), 0)
    }

    /// Has the callers found in a copy of a stack, and resolved; false: too many wait, there will be no answer.
    pub fn ask_copy(
        &mut self,
        stack: u64,
        process: u64,
        pid: u32,
        registers: Registers,
        bytes: &[u8],
    ) -> bool {
        let size = bytes.len();
        if self.copied + size > COPIES_MAX {
            return false;
        }
        let bytes = bytes.into();
        self.put(
            stack,
            process,
            pid,
            Shape::Copy(Copy { registers, bytes }),
            size,
        )
    }

    fn put(&mut self, stack: u64, process: u64, pid: u32, shape: Shape, copied: usize) -> bool {
        let question = Question {
            stack: Some((stack, shape)),
            process,
            pid,
        };
        let taken = self.questions.try_send(question).is_ok();
        if taken {
            self.waiting += 1;
            self.copied += copied;
        }
        taken
    }

    /// An answer, if there is one.
    pub fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.try_recv().ok()?;
        self.waiting -= 1;
        self.copied -= answer.copied;
        Some(answer)
    }

    /// Stacks asked for and not answered.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

/// What the thread knows.
#[derive(Default)]
struct Knowledge {
    files: Files,
    processes: HashMap<u64, Process>,
    /// Stacks found in copies, by process and addresses; 0: it leads nowhere.
    stacks: HashMap<(u64, Vec<u64>), u64>,
}

impl Knowledge {
    fn process(&mut self, process: u64, pid: u32) -> &mut Process {
        if !self.processes.contains_key(&process) && self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let new = || Process::new(pid);
        self.processes.entry(process).or_insert_with(new)
    }

    fn find(&mut self, stack: u64, process: u64, pid: u32, shape: &Shape) -> Found {
        if self.process(process, pid).is_unknown() {
            return Found::Gone;
        }
        let known = self.processes.get_mut(&process).expect("looked at above");
        let copy = match shape {
            Shape::Addresses(addresses) => {
                return Found::Frames(known.resolve(&mut self.files, addresses));
            }
            Shape::Copy(copy) => copy,
        };
        let key = (process, known.unwind(&mut self.files, copy));
        match self.stacks.get(&key) {
            Some(0) => return Found::Frames(Vec::new()),
            Some(earlier) => return Found::SameAs(*earlier),
            None => {}
        }
        let frames = known.resolve(&mut self.files, &key.1);
        if self.stacks.len() >= STACKS_MAX {
            self.stacks.clear();
        }
        let nowhere = frames.iter().all(|at| at.is_empty());
        self.stacks.insert(key, if nowhere { 0 } else { stack });
        Found::Frames(frames)
    }
}

fn work(inbox: &Receiver<Question>, outbox: &SyncSender<Answer>) {
    let mut knowledge = Knowledge::default();
    for question in inbox {
        let Question {
            stack,
            process,
            pid,
        } = question;
        let Some((stack, shape)) = stack else {
            knowledge.process(process, pid);
            continue;
        };
        // Tables of files may be made to do harm.
        let found = catch_unwind(AssertUnwindSafe(|| {
            knowledge.find(stack, process, pid, &shape)
        }));
        let found = found.unwrap_or_else(|_| {
            knowledge = Knowledge::default();
            Found::Frames(Vec::new())
        });
        let copied = match &shape {
            Shape::Copy(copy) => copy.bytes.len(),
            Shape::Addresses(_) => 0,
        };
        let answer = Answer {
            stack,
            found,
            copied,
        };
        if outbox.send(answer).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn wait(resolver: &mut Resolver) -> Answer {
        let began = Instant::now();
        loop {
            if let Some(answer) = resolver.answer() {
                return answer;
            }
            assert!(began.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn stacks_are_answered_in_order() {
        let mut resolver = Resolver::start().unwrap();
        let pid = std::process::id();
        let libc = libc::getpid as *const () as u64;
        resolver.look_at(3, pid);
        assert!(resolver.ask(5, 3, pid, Box::new([wait as *const () as u64, libc + 2])));
        assert!(resolver.ask(6, 4, u32::MAX, Box::new([1, 2])));
        assert_eq!(resolver.waiting(), 2);
        let first = wait(&mut resolver);
        assert!(matches!(first.found, Found::Frames(f) if f.len() == 1) && first.stack == 5);
        let second = wait(&mut resolver);
        assert!(matches!(second.found, Found::Gone) && second.stack == 6);
        assert_eq!(resolver.waiting(), 0);
    }
}
