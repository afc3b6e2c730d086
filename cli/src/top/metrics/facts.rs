//! The page as of now, from what was added up: a counter only grows, what is not known has no series, and no
//! number is an estimate.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parcagpu_abi::probe;
use parcagpu_abi::status::State;

use super::families::{
    BUILD, COMPLETE, DROPPED, ERRORS, Families, KERNELS, LOST, NO_TIME, OF_KERNEL, PC, SAMPLED,
    SEEN, STATE, TIME, TIME_OF_KERNEL, UNDECODABLE, UNREADABLE,
};
use super::kernels::Kernels;
use super::page::{Label, Page};
use crate::accounts::{Accounts, ProcessAccount};
use crate::demangle::clean;
use crate::ledger::{Entry, Ledger};
use crate::pc::samples::Samples;
use crate::session::{Loss, ProcessId};
use crate::top::scale::Scale;

/// States of the library, by their numbers.
const STATES: [State; 6] = [
    State::Absent,
    State::Hooked,
    State::Dormant,
    State::Active,
    State::Yielded,
    State::Stopped,
];

/// What a page is made from.
pub struct Facts<'a> {
    /// Launches, kernels, errors.
    pub accounts: &'a Accounts,
    /// PC samples, where they are taken.
    pub samples: Option<&'a Samples>,
    /// What processes say.
    pub ledger: &'a Ledger,
    /// Losses on the way to us, by index into [`probe::ALL`].
    pub losses: &'a [Loss],
    /// Events that were not understood.
    pub undecodable: u64,
    /// Processes that have the library now.
    pub here: &'a HashSet<u32>,
}

/// What is shown: the processes that `shown` says, and of the processes that had a number one after the other the last.
pub fn page(
    facts: &Facts<'_>,
    kernels: Option<&mut Kernels>,
    shown: impl Fn(&ProcessId) -> bool,
) -> Page {
    let mut families = Families::default();
    let none: Arc<[Label]> = [].into();
    let version = vec![("version", env!("CARGO_PKG_VERSION").into())];
    families.gauge(BUILD, &none, version, 1);
    let mut processes: BTreeMap<u32, (ProcessId, Option<&ProcessAccount>)> = BTreeMap::new();
    for (pid, entry) in facts.ledger.entries() {
        let start_ns = entry.start_ns().unwrap_or(0);
        let id = ProcessId { pid, start_ns };
        processes.insert(pid, (id, None));
    }
    // By number, then by start.
    for (id, account) in &facts.accounts.processes {
        let known = processes.get(&id.pid);
        // The number is another's by now, of which no launch was told yet.
        if known.is_none_or(|(last, _)| last.start_ns <= id.start_ns) {
            processes.insert(id.pid, (*id, Some(account)));
        }
    }
    processes.retain(|_, (id, _)| shown(id));
    let mut kernels = kernels;
    for (id, account) in processes.values() {
        let entry = facts.ledger.entry(id.pid);
        process(&mut families, facts, *id, *account, entry);
        if let (Some(kernels), Some(account)) = (&mut kernels, account) {
            by_kernel(
                &mut families,
                &labels(*id, entry),
                kernels.rows(*id, account),
            );
        }
    }
    on_the_way(&mut families, facts, &none);
    families.page()
}

fn labels(id: ProcessId, entry: Option<&Entry>) -> Arc<[Label]> {
    let comm = match (id.pid, entry) {
        (0, _) => "(further processes)".to_owned(),
        (_, entry) => entry.map_or_else(String::new, |e| clean(&e.comm)),
    };
    [("pid", id.pid.to_string().into()), ("comm", comm.into())].into()
}

fn process(
    families: &mut Families,
    facts: &Facts<'_>,
    id: ProcessId,
    account: Option<&ProcessAccount>,
    entry: Option<&Entry>,
) {
    let of = labels(id, entry);
    let seen = entry.and_then(Entry::launches_seen);
    // One that has done nothing has a state and no more.
    let active = account.is_some() || seen.is_some_and(|n| n > 0);
    if let Some(seen) = seen.filter(|_| active) {
        // More told than seen: the count was read before the last launches.
        let seen = seen.max(account.map_or(0, |a| a.launches));
        families.count(SEEN, &of, vec![], seen);
    }
    if active {
        families.count(SAMPLED, &of, vec![], account.map_or(0, |a| a.launches));
        let dropped = facts.losses.iter().map(|l| l.dropped).sum();
        let whole = Scale::of(account, entry, dropped) == Scale::Whole;
        families.gauge(COMPLETE, &of, vec![], whole.into());
    }
    if let Some(account) = account {
        for (ordinal, row) in account.devices() {
            let uuid = entry.and_then(|e| e.devices().get(&ordinal));
            let device = vec![
                ("device", ordinal.to_string().into()),
                ("uuid", uuid.map_or("", |u| u).into()),
            ];
            families.count(KERNELS, &of, device.clone(), row.calls);
            families.count(NO_TIME, &of, device.clone(), row.no_time);
            families.time(TIME, &of, device, row.total_ns);
        }
    }
    if let Some(entry) = entry {
        let losses = entry.losses_by_counter();
        for (kind, n) in losses.filter(|(_, n)| active || *n > 0) {
            families.count(LOST, &of, vec![("kind", kind.into())], n);
        }
        if let Some(now) = entry.state().filter(|_| facts.here.contains(&id.pid)) {
            for state in STATES {
                let label = vec![("state", state.name().into())];
                families.gauge(STATE, &of, label, (state == now).into());
            }
        }
    }
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for error in facts.accounts.errors.iter().filter(|e| e.pid == id.pid) {
        *errors.entry(&error.component).or_default() += 1;
    }
    for (component, n) in errors {
        families.count(ERRORS, &of, vec![("component", component.into())], n);
    }
    pc_samples(families, facts, id, &of);
}

fn pc_samples(families: &mut Families, facts: &Facts<'_>, id: ProcessId, of: &Arc<[Label]>) {
    let samples = facts.samples.and_then(|s| s.processes.get(&id));
    // Without the table what counts twice cannot be told apart.
    let Some(samples) = samples.filter(|s| !s.reasons.is_empty()) else {
        return;
    };
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    for (state, n) in samples.reasons.tally(&samples.all).states {
        *states.entry(clean(&state)).or_default() += n;
    }
    for (state, n) in states {
        families.count(PC, of, vec![("stall_reason", state.into())], n);
    }
    let unreadable = vec![("kind", "pc_records_unreadable".into())];
    families.count(LOST, of, unreadable, samples.unreadable);
}

fn by_kernel(
    families: &mut Families,
    of: &Arc<[Label]>,
    rows: BTreeMap<Arc<str>, crate::accounts::Row>,
) {
    for (kernel, row) in rows {
        let label = vec![("kernel", kernel)];
        families.count(OF_KERNEL, of, label.clone(), row.calls);
        families.time(TIME_OF_KERNEL, of, label, row.total_ns);
    }
}

fn on_the_way(families: &mut Families, facts: &Facts<'_>, none: &Arc<[Label]>) {
    for (probe, loss) in probe::ALL.iter().zip(facts.losses) {
        let label = vec![("probe", probe.name.into())];
        families.count(DROPPED, none, label.clone(), loss.dropped);
        families.count(UNREADABLE, none, label, loss.unreadable);
    }
    families.count(UNDECODABLE, none, vec![], facts.undecodable);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pc::reasons::{Counts, Reasons};
    use crate::pc::samples::ProcessSamples;
    use crate::top::metrics::page::Format;

    fn id(pid: u32, start_ns: u64) -> ProcessId {
        ProcessId { pid, start_ns }
    }

    fn account(launches: u64) -> ProcessAccount {
        let mut account = ProcessAccount::default();
        account.launches = launches;
        account
    }

    fn text(accounts: &Accounts, samples: &Samples, shown: impl Fn(&ProcessId) -> bool) -> String {
        let facts = Facts {
            accounts,
            samples: Some(samples),
            ledger: &Ledger::default(),
            losses: &[Loss::default(); 3],
            undecodable: 0,
            here: &HashSet::new(),
        };
        let page = page(&facts, None, shown);
        Format::Prometheus.write(Arc::new(page)).unwrap()
    }

    #[test]
    fn of_one_number_the_last_process_is_shown_and_nothing_that_is_not_known() {
        let mut accounts = Accounts::default();
        accounts.processes.insert(id(7, 1), account(100));
        accounts.processes.insert(id(7, 2), account(3));
        accounts.processes.insert(id(8, 1), account(4));
        let told = text(&accounts, &Samples::default(), |id| id.pid != 8);
        let sampled = "parcagpu_launches_sampled_total{pid=\"7\",comm=\"\"} 3\n";
        assert!(told.contains(sampled), "{told}");
        assert!(!told.contains("} 100") && !told.contains("pid=\"8\""));
        assert!(told.contains("parcagpu_sample_complete{pid=\"7\",comm=\"\"} 0\n"));
        assert!(!told.contains("launches_seen") && !told.contains("library_state"));
        assert_eq!(told.matches("parcagpu_events_dropped_total{").count(), 3);
    }

    #[test]
    fn what_a_process_did_is_not_told_of_the_next_one_with_its_number() {
        let mut accounts = Accounts::default();
        accounts.processes.insert(id(7, 1), account(100));
        let told = |start_ns| {
            let facts = Facts {
                accounts: &accounts,
                samples: None,
                ledger: &Ledger::that_knows(7, start_ns),
                losses: &[],
                undecodable: 0,
                here: &HashSet::new(),
            };
            Format::Prometheus
                .write(page(&facts, None, |_| true).into())
                .unwrap()
        };
        let sampled = "parcagpu_launches_sampled_total{pid=\"7\"";
        assert!(told(Some(1)).contains(sampled) && told(None).contains(sampled));
        assert!(!told(Some(2)).contains(sampled), "{}", told(Some(2)));
    }

    #[test]
    fn pc_samples_wait_for_the_table_of_reasons() {
        let mut process = ProcessSamples::default();
        process.all = Counts::from([(0, 7), (1, 5)]);
        let mut samples = Samples::default();
        samples.processes.insert(id(7, 1), process);
        let mut accounts = Accounts::default();
        accounts.processes.insert(id(7, 1), account(1));
        assert!(!text(&accounts, &samples, |_| true).contains("pc_samples"));
        let process = samples.processes.get_mut(&id(7, 1)).unwrap();
        process.reasons = Reasons::new(&["wait".to_owned(), "wait_not_issued".to_owned()]);
        let told = text(&accounts, &samples, |_| true);
        let wait = "pc_samples_total{pid=\"7\",comm=\"\",stall_reason=\"wait\"} 7\n";
        assert!(told.contains(wait), "{told}");
        assert_eq!(told.matches("stall_reason=").count(), 1);
    }

    #[test]
    fn a_host_full_of_processes_is_a_page_of_bounded_size() {
        let mut accounts = Accounts::default();
        for pid in 0..4_096 {
            accounts.processes.insert(id(pid, 1), account(u64::MAX));
        }
        let told = text(&accounts, &Samples::default(), |_| true);
        assert!(told.contains("pid=\"0\",comm=\"(further processes)\""));
        assert!(told.lines().count() < 10_000 && told.len() < 2 << 20);
    }
}
