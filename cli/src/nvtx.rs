//! Adds up NVTX ranges: how often, how long, and the GPU time of what was launched inside them.
//!
//! A kernel belongs to every range that its launching thread had open when it launched: pushed by that
//! thread, or begun or ended by it. Events come in batches up to a second late and not in order, kernels later
//! still. So events and launches of a process wait for [`LATENESS`], are put in the order of their times
//! and applied; a kernel is counted when its launch has been applied. The time that counts is that of the process's own
//! batches: while it is stopped they wait as well, and when it goes on its launches are told first.

mod threads;

use std::collections::{BTreeMap, HashMap};

use crate::demangle::clean;
use crate::events::{Body, Event, Kernel, Text, TextState};
use crate::session::{ProcessId, Sink};
use threads::ThreadNumbers;

/// How long events wait for earlier ones, ns.
const LATENESS: u64 = 1_000_000_000;
/// A process that told nothing for so long has nothing in its batches, or is gone, ns.
const QUIET: u64 = 10_000_000_000;
/// How often waiting events are looked at, ns.
const STEP: u64 = 100_000_000;
/// Rows per process; further ranges are added up under one.
const ROWS_MAX: usize = 20_000;
/// Processes kept; further ones are added up under number 0.
const PROCESSES_MAX: usize = 4096;
/// Launches remembered per process for kernels to come, at least.
const LAUNCHES_MAX: usize = 500_000;
/// Launches of other threads remembered per open start/end range.
const OTHERS_MAX: usize = 10_000;
/// Kind of a domain in `nvtx_resource_name`.
const DOMAIN: u32 = 5;

/// A range by domain and text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// 0: default.
    pub domain: u32,
    /// What the program calls it.
    pub name: String,
}

/// Ranges of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Ranges that have ended.
    pub count: u64,
    /// Ranges that have not.
    pub open: u64,
    /// Time between begin and end, of those that have ended.
    pub total_ns: u128,
    /// Kernel records of launches inside.
    pub kernels: u64,
    /// Of those, records without usable times.
    pub no_time: u64,
    /// Sum of the others' durations.
    pub gpu_ns: u128,
}

type RowId = usize;

#[derive(Debug)]
enum What {
    Push(Key),
    Pop(u32),
    Start(u64, Key),
    End(u64),
    Launch(u32),
}

#[derive(Debug)]
struct Waiting {
    time: u64,
    thread: u32,
    what: What,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    row: RowId,
    since: u64,
}

/// A start/end range.
#[derive(Debug)]
struct OpenAnywhere {
    open: Open,
    began_by: u32,
    /// Launches of other threads meanwhile, one of which may end it: thread and launch.
    others: Vec<(u32, u32)>,
}

/// Pushed ranges of a thread, by domain.
type Stacks = HashMap<u32, Vec<Open>>;

/// Kernels of one launch.
#[derive(Clone, Debug, Default)]
struct Launch {
    /// Ranges that it is inside of; `None` as long as it waits.
    rows: Option<Vec<RowId>>,
    kernels: u64,
    no_time: u64,
    gpu_ns: u128,
}

/// One process.
#[derive(Debug, Default)]
pub struct Process {
    /// Names of domains.
    pub domains: HashMap<u32, String>,
    /// Ends of ranges whose begin was not seen: begun before we came, mostly.
    pub unmatched_ends: u64,
    /// Its latest event but for launches, `CLOCK_MONOTONIC` ns.
    latest: u64,
    waiting: Vec<Waiting>,
    rows: Vec<(Key, Row)>,
    ids: HashMap<Key, RowId>,
    threads: HashMap<u32, Stacks>,
    anywhere: HashMap<u64, OpenAnywhere>,
    launches: HashMap<u32, Launch>,
    older: HashMap<u32, Launch>,
}

impl Process {
    /// Names and rows by falling GPU time, then total time.
    pub fn rows(&self) -> Vec<(&Key, Row)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(key, row)| (key, *row)).collect();
        rows.sort_by(|(ak, a), (bk, b)| {
            (b.gpu_ns, b.total_ns, b.count)
                .cmp(&(a.gpu_ns, a.total_ns, a.count))
                .then_with(|| ak.cmp(bk))
        });
        rows
    }

    fn row(&mut self, key: Key) -> RowId {
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let key = if self.rows.len() < ROWS_MAX {
            key
        } else {
            Key {
                domain: 0,
                name: "(further ranges)".to_owned(),
            }
        };
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = self.rows.len();
        self.rows.push((key.clone(), Row::default()));
        self.ids.insert(key, id);
        id
    }

    fn wait(&mut self, time: u64, thread: u32, what: What) {
        self.waiting.push(Waiting { time, thread, what });
    }

    /// Applies what happened before `until`, in order.
    fn apply(&mut self, until: u64) {
        self.waiting.sort_by_key(|w| w.time);
        let ready = self.waiting.partition_point(|w| w.time < until);
        let waiting: Vec<_> = self.waiting.drain(..ready).collect();
        for Waiting { time, thread, what } in waiting {
            match what {
                What::Push(key) => {
                    let domain = key.domain;
                    let open = self.open(key, time);
                    let stacks = self.threads.entry(thread).or_default();
                    stacks.entry(domain).or_default().push(open);
                }
                What::Pop(domain) => {
                    let stacks = self.threads.get_mut(&thread);
                    let stack = stacks.and_then(|s| s.get_mut(&domain));
                    let popped = stack.and_then(Vec::pop);
                    self.close(popped, time);
                }
                What::Start(id, key) => {
                    let open = self.open(key, time);
                    let range = OpenAnywhere {
                        open,
                        began_by: thread,
                        others: Vec::new(),
                    };
                    self.anywhere.insert(id, range);
                }
                What::End(id) => self.end(id, thread, time),
                What::Launch(id) => self.launch(id, thread),
            }
        }
    }

    fn open(&mut self, key: Key, since: u64) -> Open {
        let row = self.row(key);
        self.rows[row].1.open += 1;
        Open { row, since }
    }

    fn close(&mut self, open: Option<Open>, time: u64) {
        let Some(open) = open else {
            self.unmatched_ends += 1;
            return;
        };
        let row = &mut self.rows[open.row].1;
        row.open -= 1;
        row.count += 1;
        row.total_ns += u128::from(time.saturating_sub(open.since));
    }

    fn end(&mut self, id: u64, thread: u32, time: u64) {
        let range = self.anywhere.remove(&id);
        self.close(range.as_ref().map(|r| r.open), time);
        let Some(range) = range else {
            return;
        };
        for (_, launch) in range.others.iter().filter(|(by, _)| *by == thread) {
            self.put_inside(*launch, range.open.row);
        }
    }

    fn known(&mut self, id: u32) -> Option<&mut Launch> {
        match self.launches.get_mut(&id) {
            Some(launch) => Some(launch),
            None => self.older.get_mut(&id),
        }
    }

    /// A launch turns out to have been inside a range.
    fn put_inside(&mut self, id: u32, row: RowId) {
        let Some(launch) = self.known(id) else {
            return;
        };
        let rows = launch.rows.get_or_insert_default();
        if rows.contains(&row) {
            return;
        }
        rows.push(row);
        let seen = launch.clone();
        add(
            &mut self.rows[row].1,
            seen.kernels,
            seen.no_time,
            seen.gpu_ns,
        );
    }

    fn launch(&mut self, id: u32, thread: u32) {
        let stacks = self.threads.get(&thread).into_iter();
        let open = stacks.flat_map(HashMap::values).flatten();
        let mut rows: Vec<RowId> = open.map(|range| range.row).collect();
        for range in self.anywhere.values_mut() {
            if range.began_by == thread {
                rows.push(range.open.row);
            } else if range.others.len() < OTHERS_MAX {
                range.others.push((thread, id));
            }
        }
        rows.sort_unstable();
        rows.dedup();
        let launch = self.remember(id);
        launch.rows = Some(Vec::new());
        for row in rows {
            self.put_inside(id, row);
        }
    }

    /// Two halves, of which the older one is dropped when the newer one is full.
    fn remember(&mut self, id: u32) -> &mut Launch {
        if self.launches.len() >= LAUNCHES_MAX {
            self.older = std::mem::take(&mut self.launches);
        }
        let before = self.older.remove(&id);
        self.launches
            .entry(id)
            .or_insert_with(|| before.unwrap_or_default())
    }

    fn kernel(&mut self, kernel: &Kernel<'_>) {
        let duration = kernel.duration();
        let (no_time, gpu_ns) = match duration {
            Some(ns) => (0, u128::from(ns)),
            None => (1, 0),
        };
        let launch = self.remember(kernel.correlation_id);
        launch.kernels += 1;
        launch.no_time += no_time;
        launch.gpu_ns += gpu_ns;
        for row in launch.rows.clone().unwrap_or_default() {
            add(&mut self.rows[row].1, 1, no_time, gpu_ns);
        }
    }
}

fn add(row: &mut Row, kernels: u64, no_time: u64, gpu_ns: u128) {
    row.kernels += kernels;
    row.no_time += no_time;
    row.gpu_ns += gpu_ns;
}

/// All processes.
#[derive(Debug, Default)]
pub struct Ranges {
    /// By process.
    pub processes: BTreeMap<ProcessId, Process>,
    /// Latest event, `CLOCK_MONOTONIC` ns.
    latest: u64,
    /// Up to where events were looked at.
    looked: u64,
    threads: ThreadNumbers,
}

impl Ranges {
    /// Nothing more comes: what waits is applied.
    pub fn finish(&mut self) {
        for process in self.processes.values_mut() {
            process.apply(u64::MAX);
        }
    }

    fn process(&mut self, id: ProcessId) -> &mut Process {
        let known = self.processes.len() < PROCESSES_MAX || self.processes.contains_key(&id);
        let further = ProcessId {
            pid: 0,
            start_ns: 0,
        };
        let id = if known { id } else { further };
        self.processes.entry(id).or_default()
    }

    fn look(&mut self, now: u64) {
        self.latest = self.latest.max(now);
        if self.latest < self.looked.saturating_add(STEP) {
            return;
        }
        self.looked = self.latest;
        let quiet = self.latest.saturating_sub(QUIET);
        for process in self.processes.values_mut() {
            process.apply(process.latest.max(quiet).saturating_sub(LATENESS));
        }
    }
}

fn name_of(text: &Text<'_>) -> String {
    let name = clean(&text.lossy());
    match text.state {
        TextState::Cut => name + "…",
        TextState::Null | TextState::Unreadable => "(unreadable)".to_owned(),
        TextState::Whole if name.is_empty() => "(no name)".to_owned(),
        TextState::Whole => name,
    }
}

impl Sink for Ranges {
    fn event(&mut self, event: &Event<'_>) {
        let h = event.header;
        let id = h.process();
        match &event.body {
            Body::Nvtx {
                timestamp_ns,
                tid,
                domain,
                kind,
                range_id,
                message,
                ..
            } => {
                let key = || Key {
                    domain: *domain,
                    name: name_of(message),
                };
                let what = match kind {
                    1 => What::Push(key()),
                    2 => What::Pop(*domain),
                    3 => What::Start(*range_id, key()),
                    4 => What::End(*range_id),
                    _ => return,
                };
                self.process(id).wait(*timestamp_ns, *tid, what);
            }
            Body::Correlation { id: launch, .. } => {
                let thread = self.threads.inside(h.pid, h.tid);
                self.process(id)
                    .wait(h.time_ns, thread, What::Launch(*launch));
            }
            Body::Kernel(kernel) => self.process(id).kernel(kernel),
            Body::ResourceName {
                kind: DOMAIN,
                id: domain,
                name,
            } => {
                let process = self.processes.entry(id).or_default();
                if let Ok(domain) = u32::try_from(*domain) {
                    process.domains.insert(domain, name_of(name));
                }
            }
            _ => return,
        }
        if !matches!(event.body, Body::Correlation { .. }) {
            let process = self.process(id);
            process.latest = process.latest.max(h.time_ns);
        }
        self.look(h.time_ns);
    }
}

#[cfg(test)]
mod tests;
