//! What only the live view needs: rates, and how busy the devices were in the last seconds.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::busy::Busy;
use super::scale::Amount;
use crate::accounts::Accounts;
use crate::events::Kernel;
use crate::ledger::Ledger;
use crate::session::ProcessId;
use crate::text::clock_ns;

/// Rates are over so many looks (seconds).
const RATE_OVER: usize = 4;
/// Processes and devices whose busy time is followed.
const FOLLOWED_MAX: usize = 1024;
const SECOND: u64 = 1_000_000_000;
/// Records are at most so many seconds old when they come.
const LATE: u64 = 2;
/// Busy shares are over so many seconds.
const WINDOW: u64 = 5;

/// Counts of a process at one moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    seen: Option<u64>,
    records: u64,
}

/// See the module.
pub struct Live {
    began_ns: u64,
    busy: HashMap<(ProcessId, u32), Busy>,
    looks: HashMap<u32, VecDeque<Look>>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            began_ns: clock_ns(libc::CLOCK_REALTIME),
            busy: HashMap::new(),
            looks: HashMap::new(),
        }
    }
}

impl Live {
    /// A kernel record came.
    pub fn kernel(&mut self, process: ProcessId, kernel: &Kernel<'_>) {
        if kernel.duration().is_none() {
            return;
        }
        let key = (process, kernel.device);
        if self.busy.len() < FOLLOWED_MAX || self.busy.contains_key(&key) {
            let now = clock_ns(libc::CLOCK_REALTIME);
            let busy = self.busy.entry(key).or_default();
            busy.add(kernel.start, kernel.end, now);
        }
    }

    /// Remembers where the counts are.
    pub fn look(&mut self, accounts: &Accounts, ledger: &Ledger) {
        let at = Instant::now();
        let mut records: HashMap<u32, u64> = HashMap::new();
        for (id, account) in &accounts.processes {
            *records.entry(id.pid).or_default() += account.records;
        }
        self.looks.retain(|pid, _| ledger.entry(*pid).is_some());
        for (pid, entry) in ledger.entries() {
            let looks = self.looks.entry(pid).or_default();
            looks.push_back(Look {
                at,
                seen: entry.launches_seen(),
                records: records.get(&pid).copied().unwrap_or(0),
            });
            while looks.len() > RATE_OVER {
                looks.pop_front();
            }
        }
    }

    /// Launches and kernel records per second, lately; `None`: not known (yet).
    pub fn rates(&self, pid: u32) -> (Option<f64>, Option<f64>) {
        let looks = self.looks.get(&pid);
        let ends = looks.and_then(|l| Some((l.front()?, l.back()?)));
        let Some((first, last)) = ends else {
            return (None, None);
        };
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        if seconds < 0.5 {
            return (None, None);
        }
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        let launches = match (first.seen, last.seen) {
            (Some(from), Some(to)) => Some(rate(from, to)),
            _ => None,
        };
        (launches, Some(rate(first.records, last.records)))
    }

    /// The part of the last seconds in which a process had a kernel of the sample on a device.
    pub fn busy(&self, process: ProcessId, device: u32) -> Amount {
        let now = clock_ns(libc::CLOCK_REALTIME) / SECOND;
        let to = now.saturating_sub(LATE);
        let from = to.saturating_sub(WINDOW).max(self.began_ns / SECOND + 1);
        if from >= to {
            return Amount::Unknown;
        }
        let busy = match self.busy.get(&(process, device)) {
            Some(busy) => busy.between(from * SECOND, to * SECOND),
            None if self.busy.len() >= FOLLOWED_MAX => None,
            None => Some(0),
        };
        match busy {
            Some(ns) => Amount::Whole(ns as f64 / ((to - from) * SECOND) as f64),
            None => Amount::Unknown,
        }
    }
}
