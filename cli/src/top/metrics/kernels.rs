//! Kernels as labels: so many names over all processes, in the order of their coming.
//!
//! A name that has its place keeps it, so that no series ever goes down: the rest of a process only grows, as
//! nothing leaves it. A process that has one gets no more places, also when others end and leave theirs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::accounts::{Name, ProcessAccount, Row};
use crate::session::ProcessId;

/// What has no place of its own.
pub const OTHERS: &str = "(other kernels)";

/// Shown names by name, whole ones and cut ones.
#[derive(Debug, Default)]
struct Places {
    whole: HashMap<Box<[u8]>, Arc<str>>,
    cut: HashMap<Box<[u8]>, Arc<str>>,
    /// Some name had no place when it came.
    rest: bool,
}

/// Names that have a place.
#[derive(Debug)]
pub struct Kernels {
    free: usize,
    raw_names: bool,
    processes: HashMap<ProcessId, Places>,
}

impl Kernels {
    /// At most `max` names.
    pub fn new(max: u32, raw_names: bool) -> Self {
        Self {
            free: max as usize,
            raw_names,
            processes: HashMap::new(),
        }
    }

    /// Rows of a process by shown name.
    pub fn rows(&mut self, id: ProcessId, account: &ProcessAccount) -> BTreeMap<Arc<str>, Row> {
        let places = self.processes.entry(id).or_default();
        let mut rows: BTreeMap<Arc<str>, Row> = BTreeMap::new();
        for (name, row) in account.rows(None) {
            let shown = match name {
                Name::Bytes(bytes, cut) => {
                    let known = if cut {
                        &mut places.cut
                    } else {
                        &mut places.whole
                    };
                    if !known.contains_key(bytes) {
                        places.rest |= self.free == 0;
                        if !places.rest {
                            self.free -= 1;
                            known.insert(bytes.into(), name.shown(self.raw_names).into());
                        }
                    }
                    known.get(bytes).cloned()
                }
                // Two rows at most, which are there or not.
                Name::None | Name::Further => Some(name.shown(self.raw_names).into()),
            };
            let shown = shown.unwrap_or_else(|| OTHERS.into());
            rows.entry(shown).or_default().add(&row);
        }
        rows
    }

    /// Gives the places of processes back that are shown no more.
    pub fn retain(&mut self, keep: impl Fn(&ProcessId) -> bool) {
        self.processes.retain(|id, places| {
            let stays = keep(id);
            if !stays {
                self.free += places.whole.len() + places.cut.len();
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Accounts;
    use crate::events::{Body, Event, Header, Kernel, Text, TextState};
    use crate::session::Sink;

    fn kernel(pid: u32, name: &str) -> Event<'_> {
        Event {
            header: Header {
                probe: 2,
                pid,
                tid: pid,
                time_ns: 1,
                start_ns: 1,
            },
            body: Body::Kernel(Kernel {
                kind: 10,
                registers: 0,
                start: 100,
                end: 107,
                device: 0,
                context: 0,
                stream: 0,
                grid: [1; 3],
                block: [1; 3],
                static_shared_memory: 0,
                dynamic_shared_memory: 0,
                correlation_id: 1,
                graph_id: 0,
                graph_node_id: 0,
                name: Text {
                    bytes: name.as_bytes(),
                    state: TextState::Whole,
                },
            }),
        }
    }

    #[test]
    fn no_series_goes_down_and_their_number_has_an_end() {
        let mut accounts = Accounts::default();
        let mut kernels = Kernels::new(3, false);
        let mut last: BTreeMap<(u32, Arc<str>), u64> = BTreeMap::new();
        // _Z1av and a() are shown alike.
        for names in [&["_Z1av", "a()"][..], &["b", "c", "d"], &["e", "b", "d"]] {
            for pid in [1, 2] {
                names.iter().for_each(|n| accounts.event(&kernel(pid, n)));
            }
            let mut now = BTreeMap::new();
            for (id, account) in &accounts.processes {
                let rows = kernels.rows(*id, account);
                let calls: u64 = rows.values().map(|row| row.calls).sum();
                assert_eq!(calls, account.records);
                now.extend(rows.into_iter().map(|(n, r)| ((id.pid, n), r.calls)));
            }
            assert!(now.len() <= 3 + 2);
            for (name, calls) in &last {
                assert!(now[name] >= *calls, "{name:?}");
            }
            last = now;
        }
        assert_eq!(last[&(1, "a()".into())], 2);
        assert_eq!(last[&(2, OTHERS.into())], 7);
        kernels.retain(|id| id.pid != 1);
        assert_eq!(kernels.free, 2);
        // What was counted as others stays so; a process that comes then has the places.
        for pid in [2, 3] {
            accounts.event(&kernel(pid, "f"));
        }
        let mut named = |pid: u32, name: &str| {
            let (id, account) = accounts.processes.iter().find(|p| p.0.pid == pid).unwrap();
            kernels.rows(*id, account).get(name).map(|row| row.calls)
        };
        assert_eq!(named(2, OTHERS), Some(8));
        assert_eq!((named(3, "f"), named(3, OTHERS)), (Some(1), None));
    }
}
