//! Looks for processes in a thread of its own: reading the mappings of all processes takes tens of
//! milliseconds, and the ring buffer must not wait for that.
//!
//! The thread ends with the next scan after its [`ScanThread`] was dropped.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::discover::{Found, Scanner};

/// New processes are found within this time.
const SCAN_EVERY: Duration = Duration::from_secs(1);

/// The other end of the thread.
pub struct ScanThread {
    results: Receiver<Vec<Found>>,
}

impl ScanThread {
    /// Starts scanning these processes, or all when none is named.
    pub fn start(pids: Vec<u32>) -> Result<Self> {
        let (sender, results) = sync_channel(1);
        thread::Builder::new()
            .name("parcagpu-scan".to_owned())
            .spawn(move || scan(&pids, &sender))
            .context("failed to start the scanning thread")?;
        Ok(Self { results })
    }

    /// The latest scan, if one was finished since the last call.
    pub fn take(&self) -> Option<Vec<Found>> {
        self.results.try_iter().last()
    }
}

fn scan(pids: &[u32], results: &SyncSender<Vec<Found>>) {
    let mut scanner = Scanner::default();
    loop {
        thread::sleep(SCAN_EVERY);
        if results.send(scanner.scan_chosen(pids)).is_err() {
            return;
        }
    }
}
