//! Where there is no terminal: a line per second and process in which something happened.

use std::collections::HashMap;
use std::io::Write;

use crate::accounts::Accounts;
use crate::demangle::clean;
use crate::ledger::{Ledger, coverage};
use crate::session::ProcessId;
use crate::text::{clock_ns, count, duration, time_of_day};

/// Counts of the last line of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    launches: u64,
    records: u64,
    total_ns: u128,
}

/// See the module.
pub struct Lines {
    on: bool,
    told: HashMap<ProcessId, Told>,
}

impl Lines {
    /// Prints only if `on`.
    pub fn new(on: bool) -> Self {
        Self {
            on,
            told: HashMap::new(),
        }
    }

    /// Prints what is new; false once nobody reads.
    pub fn print(&mut self, accounts: &Accounts, ledger: &Ledger) -> bool {
        if !self.on {
            return true;
        }
        let text = self.text(accounts, ledger);
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .is_ok()
    }

    fn text(&mut self, accounts: &Accounts, ledger: &Ledger) -> String {
        let time = time_of_day(clock_ns(libc::CLOCK_REALTIME));
        let mut text = String::new();
        for (id, account) in &accounts.processes {
            let now = Told {
                launches: account.launches,
                records: account.records,
                total_ns: account.total_ns(),
            };
            let before = self.told.insert(*id, now).unwrap_or_default();
            if before == now {
                continue;
            }
            let entry = ledger.entry(id.pid);
            text += &format!(
                "{} PID {} ({}): +{} sampled launches, +{} kernel records of {}; so far {}\n",
                &time[..8],
                id.pid,
                clean(entry.map_or("?", |e| e.comm.as_str())),
                count(now.launches - before.launches),
                count(now.records - before.records),
                duration(now.total_ns - before.total_ns),
                coverage(account.launches, entry.and_then(|e| e.launches_seen()))
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::ProcessAccount;

    #[test]
    fn only_what_changed_is_printed() {
        let mut accounts = Accounts::default();
        let id = ProcessId {
            pid: 7,
            start_ns: 1,
        };
        let mut account = ProcessAccount::default();
        (account.launches, account.records) = (1_200, 1_000);
        accounts.processes.insert(id, account);
        let mut lines = Lines::new(true);
        let ledger = Ledger::default();
        let first = lines.text(&accounts, &ledger);
        assert!(
            first.contains("PID 7 (?): +1,200 sampled launches, +1,000 kernel records"),
            "{first}"
        );
        assert_eq!(lines.text(&accounts, &ledger), "");
        accounts.processes.get_mut(&id).unwrap().launches = 1_201;
        assert!(lines.text(&accounts, &ledger).contains("+1 sampled"));
    }
}
