//! What processes say they saw and sampled, so that a sample is never shown as a total.
//!
//! The numbers come from two places: the BPF program copies the status block whenever a launch or a
//! batch is told (this survives the end of the process), and we read `/proc/PID/mem` of processes
//! that live. Counters only grow, so the larger value is the later one.

mod entry;

use std::collections::BTreeMap;

use anyhow::Result;
use parcagpu_abi::probe;
use parcagpu_abi::status::{Counter, Status};

use crate::accounts::Accounts;
use crate::block;
use crate::discover::{self, Found};
use crate::session::{Loss, Session};
use crate::text::{count, plural};
use entry::Counters;
pub use entry::Entry;

/// What helps where nothing was seen and something should have been.
pub const DOCTOR: &str =
    "parcagpu doctor says what is missing on this host and what to do about it";

/// Whether the environment switches the library off.
pub fn switched_off() -> bool {
    let set = std::env::var("PARCAGPU_DISABLE").unwrap_or_default();
    let set = set.trim().to_ascii_lowercase();
    !matches!(set.as_str(), "" | "0" | "off" | "false" | "no")
}

/// Nothing was seen of a command that has ended.
pub fn nothing_at_all() -> String {
    if switched_off() {
        return "nothing seen: PARCAGPU_DISABLE switches the library off".to_owned();
    }
    format!(
        "nothing seen: no process of the command was met with the library in it: it ended at once without a launch, \
         or the library did not get in (a static or setuid program, or one that drops LD_PRELOAD)\n{DOCTOR}"
    )
}

/// Processes kept; numbers are given again and again, a host has seldom more.
const ENTRIES_MAX: usize = 16_384;

/// All processes, by number.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<u32, Entry>,
}

impl Ledger {
    /// Remembers where the processes stand that had the library before us.
    pub fn begin(&mut self, session: &Session) {
        for found in session.found() {
            if let Ok(Some(status)) = block::read(found) {
                let entry = self.entries.entry(found.pid).or_default();
                entry.comm = discover::comm(found.pid);
                entry.baseline = Some(Counters::of(&status));
                entry.take(&status);
            }
        }
    }

    /// Processes in which launches were sampled before we came.
    pub fn sampled_before(&self) -> impl Iterator<Item = u32> {
        let sampled = |entry: &Entry| {
            let counters = [Counter::EagerSampled, Counter::GraphSampled];
            let before = entry.baseline.as_ref();
            before.is_some_and(|b| counters.iter().any(|c| b.get(*c).is_none_or(|n| n > 0)))
        };
        let entries = self.entries.iter();
        entries.filter_map(move |(pid, entry)| sampled(entry).then_some(*pid))
    }

    /// Brings all entries up to date.
    pub fn refresh(&mut self, session: &Session) {
        self.refresh_by(session, block::read);
    }

    /// Does so for a view that goes on.
    pub fn glance(&mut self, session: &Session) {
        self.refresh_by(session, block::glance);
    }

    fn refresh_by(
        &mut self,
        session: &Session,
        read: impl Fn(&Found) -> Result<Option<Box<Status>>>,
    ) {
        for found in session.found() {
            if let Ok(Some(status)) = read(found) {
                let Some(entry) = self.enter(found.pid) else {
                    continue;
                };
                // It changes with exec.
                let comm = discover::comm(found.pid);
                if !comm.is_empty() {
                    entry.comm = comm;
                }
                entry.take(&status);
            }
        }
        for (id, note) in session.processes() {
            let Some(entry) = self.enter(id.pid) else {
                continue;
            };
            if entry.start_ns.is_some_and(|start| start > id.start_ns) {
                continue;
            }
            if entry.start_ns.is_some_and(|start| start < id.start_ns) {
                // The number was given to another process.
                *entry = Entry::default();
            }
            entry.start_ns = Some(id.start_ns);
            entry.comm.clone_from(&note.comm);
            if let Some(status) = &note.status {
                entry.take_devices(status);
                let counters = Counters::of(status);
                match &mut entry.latest {
                    Some(latest) => latest.advance(&counters),
                    None => entry.latest = Some(counters),
                }
            }
        }
    }

    /// The end: how many launches there were while `accounts` were told of theirs. A process that goes on counts
    /// further while we leave it, so of its counts only the share is taken; unless launches were lost on the way.
    pub fn settle(&mut self, accounts: &Accounts, session: &Session) {
        let lost = session.losses().is_ok_and(|losses| {
            let launches = probe::ALL
                .iter()
                .position(|p| *p == probe::CUDA_CORRELATION);
            launches.is_some_and(|at| losses[at] != Loss::default())
        });
        if lost || session.undecodable() > 0 {
            return;
        }
        for (id, account) in &accounts.processes {
            if let Some(entry) = self.entries.get_mut(&id.pid)
                && entry.start_ns.is_none_or(|start| start == id.start_ns)
            {
                entry.settle(account.launches);
            }
        }
    }

    fn enter(&mut self, pid: u32) -> Option<&mut Entry> {
        let room = self.entries.len() < ENTRIES_MAX || self.entries.contains_key(&pid);
        room.then(|| self.entries.entry(pid).or_default())
    }

    /// All processes known, by number.
    pub fn entries(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.iter().map(|(pid, entry)| (*pid, entry))
    }

    /// One process by its number, and when it started.
    #[cfg(test)]
    pub fn that_knows(pid: u32, start_ns: Option<u64>) -> Self {
        let mut entry = Entry::default();
        entry.start_ns = start_ns;
        let entries = [(pid, entry)].into();
        Self { entries }
    }

    /// One process.
    pub fn entry(&self, pid: u32) -> Option<&Entry> {
        self.entries.get(&pid)
    }
}

/// Says how much of the truth a view shows: `told` launches came to us, `seen` there were.
pub fn coverage(told: u64, seen: Option<u64>) -> String {
    match seen {
        None => format!(
            "{}; how many there were is unknown; shares are of the sample",
            launches(told)
        ),
        Some(seen) if seen > told => {
            format!(
                "{} of {}; shares are of the sample",
                count(told),
                launches(seen)
            )
        }
        // More told than seen: the count was read before the last launches.
        Some(_) if told == 0 => "no launches".to_owned(),
        Some(_) => format!("all {}", launches(told)),
    }
}

fn launches(n: u64) -> String {
    plural(n, "launch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_called_a_sample() {
        assert_eq!(
            coverage(1_240, Some(310_000)),
            "1,240 of 310,000 launches; shares are of the sample"
        );
        assert_eq!(coverage(10_000, Some(10_000)), "all 10,000 launches");
        assert_eq!(coverage(1, Some(1)), "all 1 launch");
        assert_eq!(coverage(0, Some(0)), "no launches");
        assert!(coverage(5, None).contains("unknown"));
    }
}
