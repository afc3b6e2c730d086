//! The page as of now, from what was added up: a counter only grows, what is not known has no series, and no
//! number is an estimate.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parcagpu_abi::probe;
use parcagpu_abi::status::State;

use super::kernels::Kernels;
use super::page::{Family, Label, Page, Series, Value};
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

/// Families, by the order in which they are asked for first.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn family(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        let at = self.0.iter().position(|f| f.name == name);
        let at = at.unwrap_or_else(|| {
            self.0.push(Family {
                name,
                help,
                counter: true,
                seconds: false,
                series: Vec::new(),
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    fn count(
        &mut self,
        (name, help): (&'static str, &'static str),
        of: &Arc<[Label]>,
        own: Vec<Label>,
        n: u64,
    ) {
        let of = Arc::clone(of);
        let value = Value::Count(n);
        self.family(name, help)
            .series
            .push(Series { of, own, value });
    }

    fn gauge(
        &mut self,
        name: (&'static str, &'static str),
        of: &Arc<[Label]>,
        own: Vec<Label>,
        n: u64,
    ) {
        self.count(name, of, own, n);
        self.family(name.0, name.1).counter = false;
    }

    fn time(
        &mut self,
        (name, help): (&'static str, &'static str),
        of: &Arc<[Label]>,
        own: Vec<Label>,
        ns: u128,
    ) {
        let of = Arc::clone(of);
        let value = Value::Nanoseconds(ns);
        let family = self.family(name, help);
        family.seconds = true;
        family.series.push(Series { of, own, value });
    }
}

const SEEN: (&str, &str) = (
    "launches_seen",
    "Kernel and graph launches that the library saw since this program came.",
);
const SAMPLED: (&str, &str) = (
    "launches_sampled",
    "Launches that were sampled and told to this program.",
);
const COMPLETE: (&str, &str) = (
    "sample_complete",
    "1 where every launch was sampled and nothing was lost: sums of sampled kernels are totals.",
);
const KERNELS: (&str, &str) = ("kernels_recorded", "Kernel records of sampled launches.");
const NO_TIME: (&str, &str) = (
    "kernels_without_time",
    "Kernel records without usable times; part of parcagpu_kernels_recorded_total.",
);
const TIME: (&str, &str) = (
    "sampled_gpu_time",
    "GPU time of the kernels of sampled launches, added up; kernels side by side count both.",
);
const LOST: (&str, &str) = ("losses", "What was lost in the library, by kind.");
const STATE: (&str, &str) = ("library_state", "1 for the state that the library is in.");
const ERRORS: (&str, &str) = (
    "errors",
    "Distinct errors that the library told; 64 over all processes are told apart.",
);
const PC: (&str, &str) = (
    "pc_samples",
    "Samples of where warps are, by what they wait for; selected: they issue an instruction.",
);
const OF_KERNEL: (&str, &str) = (
    "kernel_executions_recorded",
    "Kernel records of sampled launches, by kernel.",
);
const TIME_OF_KERNEL: (&str, &str) = (
    "kernel_sampled_gpu_time",
    "GPU time of the kernels of sampled launches, by kernel.",
);
const DROPPED: (&str, &str) = (
    "events_dropped",
    "Events that found this program's ring buffer full, by probe.",
);
const UNREADABLE: (&str, &str) = (
    "records_unreadable",
    "Records whose memory could not be read, by probe.",
);
const UNDECODABLE: (&str, &str) = (
    "events_undecodable",
    "Events that this program did not understand.",
);
const BUILD: (&str, &str) = ("build_info", "Version of this program.");

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
        processes.insert(id.pid, (*id, Some(account)));
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
    Page(families.0)
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
