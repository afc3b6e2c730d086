//! Resolves stacks in a thread of its own: reading debug information takes long, and the ring buffer must not
//! wait for that.
//!
//! Stacks that come faster than they are resolved are refused, so that what waits is bounded. The thread ends
//! when its [`Resolver`] is dropped.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use anyhow::{Context, Result};

use super::Frames;
use super::files::Files;
use super::process::Process;

/// Stacks that wait to be resolved, or to be fetched.
const WAITING_MAX: usize = 4096;
/// Processes whose mappings are remembered; more of them begin anew.
const PROCESSES_MAX: usize = 64;

/// A stack to resolve.
#[derive(Debug)]
struct Question {
    /// `None`: only have a look at the process.
    stack: Option<u64>,
    /// Tells processes apart for good.
    process: u64,
    pid: u32,
    addresses: Box<[u64]>,
}

/// What became of a stack.
#[derive(Debug)]
pub struct Answer {
    /// Its number.
    pub stack: u64,
    /// Frames by address, leaf first; `None`: the process was gone.
    pub frames: Option<Vec<Frames>>,
}

/// The other end of the thread.
#[derive(Debug)]
pub struct Resolver {
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
    waiting: usize,
    refused: u64,
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
            refused: 0,
        })
    }

    /// Has the mappings of a new process read, before it is gone.
    pub fn look_at(&mut self, process: u64, pid: u32) {
        let look = Question {
            stack: None,
            process,
            pid,
            addresses: Box::default(),
        };
        // It is looked at with its first stack otherwise.
        let _ = self.questions.try_send(look);
    }

    /// Has a stack resolved.
    pub fn ask(&mut self, stack: u64, process: u64, pid: u32, addresses: Box<[u64]>) {
        let question = Question {
            stack: Some(stack),
            process,
            pid,
            addresses,
        };
        match self.questions.try_send(question) {
            Ok(()) => self.waiting += 1,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.refused += 1,
        }
    }

    /// An answer, if there is one.
    pub fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.try_recv().ok()?;
        self.waiting -= 1;
        Some(answer)
    }

    /// Stacks asked for and not answered.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Stacks that are never resolved: too many came at once.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

fn work(inbox: &Receiver<Question>, outbox: &SyncSender<Answer>) {
    let mut files = Files::default();
    let mut processes: HashMap<u64, Process> = HashMap::new();
    for question in inbox {
        let Question {
            stack,
            process,
            pid,
            addresses,
        } = question;
        if !processes.contains_key(&process) && processes.len() >= PROCESSES_MAX {
            processes.clear();
        }
        let process = processes
            .entry(process)
            .or_insert_with(|| Process::new(pid));
        let Some(stack) = stack else {
            continue;
        };
        let frames = (!process.is_unknown()).then(|| process.resolve(&mut files, &addresses));
        if outbox.send(Answer { stack, frames }).is_err() {
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
        resolver.ask(5, 3, pid, Box::new([wait as *const () as u64, libc + 2]));
        resolver.ask(6, 4, u32::MAX, Box::new([1, 2]));
        assert_eq!(resolver.waiting(), 2);
        let first = wait(&mut resolver);
        assert_eq!((first.stack, first.frames.unwrap().len()), (5, 1));
        let second = wait(&mut resolver);
        assert_eq!((second.stack, second.frames.is_none()), (6, true));
        assert_eq!((resolver.waiting(), resolver.refused()), (0, 0));
    }
}
