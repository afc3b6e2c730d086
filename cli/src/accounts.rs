//! Adds up what the events say: per process, its launches and its kernels.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::demangle::{clean, demangle};
use crate::events::{Body, Event, Kernel, Text, TextState};
use crate::session::{ProcessId, Sink};

/// Distinct kernels kept per process; calls of further ones are added up under one row.
const KERNELS_MAX: usize = 20_000;
/// Announced ids without a record kept per process.
const OUTSTANDING_MAX: usize = 1_000_000;
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
}

impl Row {
    /// Mean over the records that have times.
    pub fn mean_ns(&self) -> Option<u128> {
        let timed = self.calls - self.no_time;
        (timed > 0).then(|| self.total_ns / u128::from(timed))
    }
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
    pub outstanding: HashSet<u32>,
    /// More ids were announced without a record than are kept.
    pub outstanding_overflow: bool,
    rows: HashMap<Box<[u8]>, Row>,
    cut_rows: HashMap<Box<[u8]>, Row>,
    other: Row,
    unnamed: Row,
}

impl ProcessAccount {
    fn row(&mut self, name: &Text<'_>) -> &mut Row {
        let rows = match name.state {
            TextState::Null | TextState::Unreadable => return &mut self.unnamed,
            TextState::Cut => &mut self.cut_rows,
            TextState::Whole => &mut self.rows,
        };
        if !rows.contains_key(name.bytes) {
            if rows.len() >= KERNELS_MAX {
                return &mut self.other;
            }
            rows.insert(name.bytes.into(), Row::default());
        }
        rows.get_mut(name.bytes).expect("present or just put in")
    }

    fn kernel(&mut self, kernel: &Kernel<'_>) {
        self.records += 1;
        self.outstanding.remove(&kernel.correlation_id);
        let duration = kernel.duration();
        self.no_time += u64::from(duration.is_none());
        let row = self.row(&kernel.name);
        row.calls += 1;
        match duration {
            Some(ns) => row.total_ns += u128::from(ns),
            None => row.no_time += 1,
        }
    }

    fn launch(&mut self, id: u32) {
        self.launches += 1;
        if self.outstanding.len() < OUTSTANDING_MAX {
            self.outstanding.insert(id);
        } else {
            self.outstanding_overflow = true;
        }
    }

    /// Kernels by falling total time, then calls, then name.
    pub fn kernels(&self, raw_names: bool) -> Vec<(String, Row)> {
        let shown = |bytes: &[u8], cut: bool| {
            if raw_names {
                clean(&String::from_utf8_lossy(bytes)) + if cut { "…" } else { "" }
            } else {
                demangle(bytes, cut)
            }
        };
        let whole = self.rows.iter().map(|(n, r)| (shown(n, false), *r));
        let cut = self.cut_rows.iter().map(|(n, r)| (shown(n, true), *r));
        let special = [
            ("(no name)".to_owned(), self.unnamed),
            ("(further kernels)".to_owned(), self.other),
        ];
        let mut kernels: Vec<_> = whole
            .chain(cut)
            .chain(special)
            .filter(|(_, row)| row.calls > 0)
            .map(|(name, row)| {
                (
                    if name.is_empty() {
                        "(empty name)".to_owned()
                    } else {
                        name
                    },
                    row,
                )
            })
            .collect();
        kernels.sort_by(|(an, a), (bn, b)| {
            (b.total_ns, b.calls)
                .cmp(&(a.total_ns, a.calls))
                .then_with(|| an.cmp(bn))
        });
        kernels
    }

    /// Sum over all kernels.
    pub fn total_ns(&self) -> u128 {
        let all = self.rows.values().chain(self.cut_rows.values());
        all.map(|r| r.total_ns).sum::<u128>() + self.other.total_ns + self.unnamed.total_ns
    }
}

/// An error event, told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorNote {
    /// Of the process.
    pub pid: u32,
    /// CUPTI's or the driver's.
    pub code: i32,
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
}

impl Sink for Accounts {
    fn event(&mut self, event: &Event<'_>) {
        let id = ProcessId {
            pid: event.header.pid,
            start_ns: event.header.start_ns,
        };
        match &event.body {
            Body::Correlation { id: launch, .. } => {
                self.processes.entry(id).or_default().launch(*launch);
            }
            // Counted once: with both probes attached, activity_batch tells the same records.
            Body::Kernel(kernel) => self.processes.entry(id).or_default().kernel(kernel),
            Body::Error {
                code,
                message,
                component,
            } => {
                let component = String::from_utf8_lossy(component);
                let note = ErrorNote {
                    pid: id.pid,
                    code: *code,
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
                total_ns: 4000
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
