//! Adds up what the events say: per process, its launches and its kernels.

use std::collections::BTreeMap;

use ahash::{AHashMap, AHashSet};

use crate::demangle::{clean, demangle};
use crate::events::{Body, Event, Kernel, Text, TextState};
use crate::session::{ProcessId, Sink};

/// Distinct kernels kept per process; calls of further ones are added up under one row.
const KERNELS_MAX: usize = 20_000;
/// And of all processes together.
const KERNELS_OF_ALL_MAX: usize = 200_000;
/// Announced ids without a record kept, of all processes together.
const OUTSTANDING_MAX: usize = 1_000_000;
/// Processes kept; further ones are added up under number 0.
const PROCESSES_MAX: usize = 4096;
/// Distinct error events kept.
const ERRORS_MAX: usize = 64;

/// One kernel of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Records, with or without times.
    pub calls: u64,
    /// Records without usable times; not in `total_ns`.
    pub no_time: u64,
    /// Sum of the durations.
    pub total_ns: u128,
    /// The part of it that belongs to graph launches.
    pub graph_ns: u128,
}

impl Row {
    /// Mean over the records that have times.
    pub fn mean_ns(&self) -> Option<u128> {
        let timed = self.calls - self.no_time;
        (timed > 0).then(|| self.total_ns / u128::from(timed))
    }

    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.no_time += other.no_time;
        self.total_ns += other.total_ns;
        self.graph_ns += other.graph_ns;
    }

    fn take(&mut self, kernel: &Kernel<'_>) {
        self.calls += 1;
        match kernel.duration().map(u128::from) {
            Some(ns) => {
                self.total_ns += ns;
                self.graph_ns += if kernel.graph_id == 0 { 0 } else { ns };
            }
            None => self.no_time += 1,
        }
    }
}

/// What a kernel is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name<'a> {
    /// By these bytes, which are all or (`true`) the beginning.
    Bytes(&'a [u8], bool),
    /// Not at all.
    None,
    /// Many names: kernels past the limit.
    Further,
}

impl Name<'_> {
    /// For people.
    pub fn shown(&self, raw_names: bool) -> String {
        let text = match *self {
            Self::None => return "(no name)".to_owned(),
            Self::Further => return "(further kernels)".to_owned(),
            Self::Bytes(bytes, cut) if raw_names => {
                clean(&String::from_utf8_lossy(bytes)) + if cut { "…" } else { "" }
            }
            Self::Bytes(bytes, cut) => demangle(bytes, cut),
        };
        if text.is_empty() {
            "(empty name)".to_owned()
        } else {
            text
        }
    }
}

/// A kernel's rows by device ordinal: one, mostly.
type PerDevice = Vec<(u32, Row)>;

/// Devices told apart; a process has seldom more.
const DEVICES_MAX: usize = 64;

fn on_device(rows: &mut PerDevice, device: u32) -> &mut Row {
    let at = match rows.iter().position(|(d, _)| *d == device) {
        Some(at) => at,
        None if rows.len() < DEVICES_MAX => {
            rows.push((device, Row::default()));
            rows.len() - 1
        }
        None => rows.len() - 1,
    };
    &mut rows[at].1
}

/// One process.
#[derive(Debug, Default)]
pub struct ProcessAccount {
    /// `cuda_correlation` events.
    pub launches: u64,
    /// Kernel records.
    pub records: u64,
    /// Kernel records without usable times.
    pub no_time: u64,
    /// Announced ids that have no record yet; a lower bound if `outstanding_overflow`.
    pub outstanding: AHashSet<u32>,
    /// More ids were announced without a record than are kept.
    pub outstanding_overflow: bool,
    rows: AHashMap<Box<[u8]>, PerDevice>,
    cut_rows: AHashMap<Box<[u8]>, PerDevice>,
    other: PerDevice,
    unnamed: PerDevice,
}

/// What all processes together still may keep.
#[derive(Clone, Copy, Debug)]
struct Room {
    rows: usize,
    ids: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            rows: KERNELS_OF_ALL_MAX,
            ids: OUTSTANDING_MAX,
        }
    }
}

impl ProcessAccount {
    fn row(&mut self, name: &Text<'_>, room: &mut Room) -> &mut PerDevice {
        let rows = match name.state {
            TextState::Null | TextState::Unreadable => return &mut self.unnamed,
            TextState::Cut => &mut self.cut_rows,
            TextState::Whole => &mut self.rows,
        };
        if !rows.contains_key(name.bytes) {
            if rows.len() >= KERNELS_MAX || room.rows == 0 {
                return &mut self.other;
            }
            room.rows -= 1;
            rows.insert(name.bytes.into(), PerDevice::new());
        }
        rows.get_mut(name.bytes).expect("present or just put in")
    }

    fn kernel(&mut self, kernel: &Kernel<'_>, room: &mut Room) {
        self.records += 1;
        room.ids += usize::from(self.outstanding.remove(&kernel.correlation_id));
        self.no_time += u64::from(kernel.duration().is_none());
        on_device(self.row(&kernel.name, room), kernel.device).take(kernel);
    }

    fn launch(&mut self, id: u32, room: &mut Room) {
        self.launches += 1;
        if room.ids > 0 {
            room.ids -= usize::from(self.outstanding.insert(id));
        } else {
            self.outstanding_overflow = true;
        }
    }

    /// Kernels of one device, or of all, in no order.
    pub fn rows(&self, device: Option<u32>) -> impl Iterator<Item = (Name<'_>, Row)> {
        let whole = self.rows.iter().map(|(n, r)| (Name::Bytes(n, false), r));
        let cut = self.cut_rows.iter().map(|(n, r)| (Name::Bytes(n, true), r));
        let special = [(Name::None, &self.unnamed), (Name::Further, &self.other)];
        whole
            .chain(cut)
            .chain(special)
            .filter_map(move |(name, rows)| {
                let mut sum = Row::default();
                for (_, row) in rows.iter().filter(|(d, _)| device.is_none_or(|w| w == *d)) {
                    sum.add(row);
                }
                (sum.calls > 0).then_some((name, sum))
            })
    }

    /// Sums by device ordinal.
    pub fn devices(&self) -> BTreeMap<u32, Row> {
        let mut devices: BTreeMap<u32, Row> = BTreeMap::new();
        let all = self.rows.values().chain(self.cut_rows.values());
        for (device, row) in all.chain([&self.unnamed, &self.other]).flatten() {
            devices.entry(*device).or_default().add(row);
        }
        devices
    }

    /// Kernels by falling total time, then calls, then name.
    pub fn kernels(&self, raw_names: bool) -> Vec<(String, Row)> {
        let mut kernels: Vec<(String, Row)> = self
            .rows(None)
            .map(|(name, row)| (name.shown(raw_names), row))
            .collect();
        kernels.sort_by(|(an, a), (bn, b)| {
            (b.total_ns, b.calls)
                .cmp(&(a.total_ns, a.calls))
                .then_with(|| an.cmp(bn))
        });
        kernels
    }

    /// Sum over all kernels.
    pub fn sum(&self) -> Row {
        let mut sum = Row::default();
        self.devices().values().for_each(|row| sum.add(row));
        sum
    }

    /// Sum of the times of all kernels.
    pub fn total_ns(&self) -> u128 {
        self.sum().total_ns
    }
}

/// An error event, told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorNote {
    /// Of the process.
    pub pid: u32,
    /// CUPTI's or the driver's.
    pub code: i32,
    /// Part of the library.
    pub component: String,
    /// `component: message`
    pub text: String,
}

/// All processes.
#[derive(Debug, Default)]
pub struct Accounts {
    /// By process.
    pub processes: BTreeMap<ProcessId, ProcessAccount>,
    /// Distinct errors in order of their first coming.
    pub errors: Vec<ErrorNote>,
    only_counts: bool,
    room: Room,
}

impl Accounts {
    /// Accounts that count launches and records of a process, and tell no kernels apart.
    pub fn that_count() -> Self {
        Self {
            only_counts: true,
            ..Self::default()
        }
    }

    fn account(&mut self, id: ProcessId) -> (&mut ProcessAccount, &mut Room) {
        let known = self.processes.len() < PROCESSES_MAX || self.processes.contains_key(&id);
        let further = ProcessId {
            pid: 0,
            start_ns: 0,
        };
        let id = if known { id } else { further };
        (self.processes.entry(id).or_default(), &mut self.room)
    }

    /// Announced launches without a record, of all processes.
    pub fn outstanding(&self) -> usize {
        let all = self.processes.values();
        all.map(|account| account.outstanding.len()).sum()
    }
}

impl Sink for Accounts {
    fn event(&mut self, event: &Event<'_>) {
        let id = event.header.process();
        match &event.body {
            Body::Correlation { .. } if self.only_counts => self.account(id).0.launches += 1,
            Body::Correlation { id: launch, .. } => {
                let (account, room) = self.account(id);
                account.launch(*launch, room);
            }
            Body::Kernel(_) if self.only_counts => self.account(id).0.records += 1,
            // Counted once: with both probes attached, activity_batch tells the same records.
            Body::Kernel(kernel) => {
                let (account, room) = self.account(id);
                account.kernel(kernel, room);
            }
            Body::Error {
                code,
                message,
                component,
            } => {
                let component = String::from_utf8_lossy(component);
                let note = ErrorNote {
                    pid: id.pid,
                    code: *code,
                    component: clean(&component),
                    text: clean(&format!("{component}: {}", message.lossy())),
                };
                if self.errors.len() < ERRORS_MAX && !self.errors.contains(&note) {
                    self.errors.push(note);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Header, Stack};

    fn kernel_event(name: &[u8], state: TextState, id: u32, end: u64) -> Event<'_> {
        let name = Text { bytes: name, state };
        Event {
            header: Header {
                probe: 2,
                pid: 7,
                tid: 7,
                time_ns: 1,
                start_ns: 1,
            },
            body: Body::Kernel(Kernel {
                kind: 10,
                registers: 0,
                start: end.min(100),
                end,
                device: 0,
                context: 0,
                stream: 0,
                grid: [1; 3],
                block: [1; 3],
                static_shared_memory: 0,
                dynamic_shared_memory: 0,
                correlation_id: id,
                graph_id: 0,
                graph_node_id: 0,
                name,
            }),
        }
    }

    fn launch_event<'a>(id: u32) -> Event<'a> {
        Event {
            header: Header {
                probe: 0,
                pid: 7,
                tid: 7,
                time_ns: 1,
                start_ns: 1,
            },
            body: Body::Correlation {
                id,
                cbid: -307,
                name: Text {
                    bytes: b"k",
                    state: TextState::Whole,
                },
                stack: Stack::NotTaken,
            },
        }
    }

    #[test]
    fn records_without_time_are_in_no_total_or_mean() {
        let mut accounts = Accounts::default();
        for (id, end) in [(1, 1100), (2, 3100), (3, 0)] {
            accounts.event(&launch_event(id));
            accounts.event(&kernel_event(b"k", TextState::Whole, id, end));
        }
        accounts.event(&launch_event(4));
        let account = accounts.processes.values().next().unwrap();
        let kernels = account.kernels(false);
        assert_eq!(kernels.len(), 1);
        assert_eq!(
            kernels[0].1,
            Row {
                calls: 3,
                no_time: 1,
                total_ns: 4000,
                graph_ns: 0,
            }
        );
        assert_eq!(kernels[0].1.mean_ns(), Some(2000));
        assert_eq!(
            (account.launches, account.records, account.no_time),
            (4, 3, 1)
        );
        assert_eq!(account.outstanding.len(), 1);
    }

    #[test]
    fn processes_names_and_ids_without_end_take_bounded_room() {
        let mut accounts = Accounts::default();
        for pid in 0..6_000u32 {
            let mut launch = launch_event(pid);
            launch.header.pid = pid + 1;
            accounts.event(&launch);
            for n in 0..50u32 {
                let name = format!("kernel_{pid}_{n}");
                let mut event = kernel_event(name.as_bytes(), TextState::Whole, n, 200);
                event.header.pid = pid + 1;
                accounts.event(&event);
            }
        }
        assert_eq!(accounts.processes.len(), PROCESSES_MAX + 1);
        let rows: usize = accounts.processes.values().map(|a| a.rows.len()).sum();
        assert_eq!(rows, KERNELS_OF_ALL_MAX);
        let records: u64 = accounts.processes.values().map(|a| a.records).sum();
        let calls: u64 = accounts.processes.values().map(|a| a.sum().calls).sum();
        assert_eq!((records, calls), (300_000, 300_000), "nothing is forgotten");
        for id in 0..OUTSTANDING_MAX as u32 + 10 {
            accounts.event(&launch_event(10_000 + id));
        }
        assert!(accounts.outstanding() <= OUTSTANDING_MAX);
        let of_launcher = accounts.processes.iter().find(|(id, _)| id.pid == 7);
        assert!(of_launcher.unwrap().1.outstanding_overflow);
    }

    #[test]
    fn a_graph_launch_has_many_records_and_one_id() {
        let mut accounts = Accounts::default();
        accounts.event(&launch_event(u32::MAX));
        for _ in 0..10 {
            accounts.event(&kernel_event(b"n", TextState::Whole, u32::MAX, 200));
        }
        let account = accounts.processes.values().next().unwrap();
        assert!(account.outstanding.is_empty());
        assert_eq!((account.launches, account.records), (1, 10));
    }

    #[test]
    fn cut_null_and_empty_names_are_rows_of_their_own() {
        let mut accounts = Accounts::default();
        accounts.event(&kernel_event(b"abc", TextState::Whole, 1, 200));
        accounts.event(&kernel_event(b"abc", TextState::Cut, 2, 300));
        accounts.event(&kernel_event(b"", TextState::Null, 3, 400));
        accounts.event(&kernel_event(b"", TextState::Whole, 4, 0));
        let kernels = accounts.processes.values().next().unwrap().kernels(false);
        let names: Vec<&str> = kernels.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["(no name)", "abc…", "abc", "(empty name)"]);
        assert_eq!(kernels[3].1.mean_ns(), None);
    }
}
