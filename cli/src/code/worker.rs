//! A thread that does one job after the other, so that the event loop waits for none.
//!
//! It ends when its [`Worker`] is dropped and the job at hand is done; nobody waits for that.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// The other end of the thread.
#[derive(Debug)]
pub struct Worker<Job, Done> {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    at_work: usize,
}

impl<Job: Send + 'static, Done: Send + 'static> Worker<Job, Done> {
    /// Starts the thread.
    pub fn start(name: &str, mut work: impl FnMut(Job) -> Done + Send + 'static) -> Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let (results, done) = channel();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                for job in queue {
                    if results.send(work(job)).is_err() {
                        return;
                    }
                }
            })
            .with_context(|| format!("failed to start the thread {name}"))?;
        Ok(Self {
            jobs,
            done,
            at_work: 0,
        })
    }

    /// Hands a job over.
    pub fn give(&mut self, job: Job) {
        // A thread that died takes no jobs; then nothing more is done.
        if self.jobs.send(job).is_ok() {
            self.at_work += 1;
        }
    }

    /// Jobs that are not done.
    pub fn at_work(&self) -> usize {
        self.at_work
    }

    /// The next result, waiting at most so long.
    pub fn take(&mut self, limit: Duration) -> Option<Done> {
        if self.at_work == 0 {
            return None;
        }
        match self.done.recv_timeout(limit) {
            Ok(done) => {
                self.at_work -= 1;
                Some(done)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.at_work = 0;
                None
            }
        }
    }
}
