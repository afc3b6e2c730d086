//! Looks for processes in a thread of its own: reading the mappings of all processes takes tens of
//! milliseconds, and the ring buffer must not wait for that.
//!
//! The thread ends with the next scan after its [`ScanThread`] was dropped.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::choice::Choice;
use crate::discover::{Found, Scanner};

/// New processes are found within this time.
const SCAN_EVERY: Duration = Duration::from_secs(1);
/// And within this one when it decides whether we see their beginning: we are attached to no file that
/// they may map, only to processes.
const FOLLOW_EVERY: Duration = Duration::from_millis(250);

/// The other end of the thread.
pub struct ScanThread {
    results: Receiver<Vec<Found>>,
}

impl ScanThread {
    /// Starts scanning the processes that are meant.
    pub fn start(choice: Choice) -> Result<Self> {
        let (sender, results) = sync_channel(1);
        thread::Builder::new()
            .name("parcagpu-scan".to_owned())
            .spawn(move || scan(&choice, &sender))
            .context("failed to start the scanning thread")?;
        Ok(Self { results })
    }

    /// The latest scan, if one was finished since the last call.
    pub fn take(&self) -> Option<Vec<Found>> {
        self.results.try_iter().last()
    }
}

fn scan(choice: &Choice, results: &SyncSender<Vec<Found>>) {
    let mut scanner = Scanner::default();
    let pause = if choice.is_closed() {
        SCAN_EVERY
    } else {
        FOLLOW_EVERY
    };
    loop {
        thread::sleep(pause);
        if results.send(scanner.scan(choice)).is_err() {
            return;
        }
    }
}
