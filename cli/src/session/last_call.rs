//! The beginning and the end of watching programs that go on: their kernels are told later than their launches.
//!
//! Kernels of launches from before we came are left out; another consumer may have been there. From the last call on
//! no launch is taken any more, while the records of those that were are waited for. So what a view shows at its end
//! is whole: each launch with its kernels, no kernel of another.

use ahash::{AHashMap, AHashSet};

use super::ProcessId;
use crate::events::{Body, Event};

/// Launches whose records are waited for, and launches that are left out.
const IDS_MAX: usize = 1 << 17;
/// Processes told apart; a host has seldom more.
const PROCESSES_MAX: usize = 1 << 16;
/// A launch without a record for so long has none to come, ns: the library tells within a second.
const LATE: u64 = 2_000_000_000;

/// Kernels from before we came are told within this time, ns. Later all are taken: ids wrap around.
const OLD: u64 = 10_000_000_000;

/// What was told of a process.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// When it told something for the first time, `CLOCK_MONOTONIC` ns.
    since: u64,
    /// Lowest and highest id of a launch that was taken.
    ids: Option<(u32, u32)>,
}

/// Whether an id comes before another; they wrap around.
fn is_before(id: u32, other: u32) -> bool {
    id.wrapping_sub(other).cast_signed() < 0
}

/// See the module.
#[derive(Debug, Default)]
pub struct LastCall {
    /// Processes in which launches were sampled before we came.
    before: AHashSet<u32>,
    /// `CLOCK_MONOTONIC` ns.
    at: Option<u64>,
    /// Launches without a record, and when they were announced.
    open: AHashMap<(ProcessId, u32), u64>,
    told: AHashMap<ProcessId, Told>,
    /// Launches since the last call whose id is lower than that of one before it.
    left_out: AHashSet<(ProcessId, u32)>,
}

impl LastCall {
    /// Launches of these processes were sampled before we came: by another consumer, who may be there still.
    pub fn were_sampled(&mut self, pids: impl IntoIterator<Item = u32>) {
        self.before.extend(pids);
    }

    /// Whether a view is to have the event.
    pub fn takes(&mut self, event: &Event<'_>) -> bool {
        let header = &event.header;
        let process = header.process();
        let late = self.at.is_some_and(|at| header.time_ns > at);
        match &event.body {
            Body::Correlation { id, .. } if late => {
                if !self.is_later(process, *id) && self.left_out.len() < IDS_MAX {
                    self.left_out.insert((process, *id));
                }
                false
            }
            Body::Correlation { id, .. } => {
                self.announced((process, *id), header.time_ns);
                true
            }
            Body::Kernel(kernel) => {
                let launch = (process, kernel.correlation_id);
                self.open.remove(&launch);
                if self.before.contains(&header.pid) && self.is_earlier(launch, header.time_ns) {
                    return false;
                }
                let later = || self.is_later(process, kernel.correlation_id);
                self.at.is_none() || !(later() || self.left_out.contains(&launch))
            }
            Body::PcSample { .. } => !late,
            Body::Nvtx { timestamp_ns, .. } => self.at.is_none_or(|at| *timestamp_ns <= at),
            _ => true,
        }
    }

    fn announced(&mut self, launch: (ProcessId, u32), time_ns: u64) {
        if self.open.len() >= IDS_MAX {
            self.open.retain(|_, told| *told + LATE > time_ns);
            if self.open.len() >= IDS_MAX {
                // Those that come next are waited for.
                self.open.clear();
            }
        }
        self.open.insert(launch, time_ns);
        let (process, id) = launch;
        let told = self.told(process, time_ns);
        let (lowest, highest) = told.ids.unwrap_or((id, id));
        told.ids = Some((
            if is_before(id, lowest) { id } else { lowest },
            if is_before(highest, id) { id } else { highest },
        ));
    }

    fn told(&mut self, process: ProcessId, time_ns: u64) -> &mut Told {
        if self.told.len() >= PROCESSES_MAX {
            self.told.clear();
        }
        self.told.entry(process).or_insert(Told {
            since: time_ns,
            ids: None,
        })
    }

    /// Whether a kernel's launch was before we came: a launch of ours is announced before its kernels.
    fn is_earlier(&mut self, (process, id): (ProcessId, u32), time_ns: u64) -> bool {
        let told = self.told(process, time_ns);
        let old = time_ns.saturating_sub(told.since) < OLD;
        old && told.ids.is_none_or(|(lowest, _)| is_before(id, lowest))
    }

    /// Whether a launch is later than all that were taken; where none was told, nothing can be said.
    fn is_later(&self, process: ProcessId, id: u32) -> bool {
        let highest = self.told.get(&process).and_then(|told| told.ids);
        highest.is_some_and(|(_, highest)| is_before(highest, id))
    }

    /// No launch after `now` (`CLOCK_MONOTONIC` ns) is taken.
    pub fn begin(&mut self, now: u64) {
        self.at = Some(now);
        self.open.retain(|_, told| *told + LATE > now);
    }

    /// Whether records may still come of processes that are alive.
    pub fn waits(&mut self, is_alive: impl Fn(u32) -> bool) -> bool {
        let mut asked: AHashMap<u32, bool> = AHashMap::new();
        self.open.retain(|(process, _), _| {
            *asked
                .entry(process.pid)
                .or_insert_with(|| is_alive(process.pid))
        });
        !self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{IDS_MAX, LastCall};
    use crate::events::{Body, Event, Header, Kernel, Stack, Text, TextState};

    const EMPTY: Text<'_> = Text {
        bytes: b"",
        state: TextState::Whole,
    };

    fn launch(pid: u32, id: u32, time_ns: u64) -> Event<'static> {
        let header = Header {
            probe: 0,
            pid,
            tid: pid,
            time_ns,
            start_ns: 1,
        };
        let body = Body::Correlation {
            id,
            cbid: 1,
            name: EMPTY,
            stack: Stack::NotTaken,
        };
        Event { header, body }
    }

    fn record(pid: u32, id: u32, time_ns: u64) -> Event<'static> {
        let mut event = launch(pid, id, time_ns);
        event.body = Body::Kernel(Kernel {
            kind: 10,
            registers: 0,
            start: 1,
            end: 2,
            device: 0,
            context: 1,
            stream: 7,
            grid: [1; 3],
            block: [1; 3],
            static_shared_memory: 0,
            dynamic_shared_memory: 0,
            correlation_id: id,
            graph_id: 0,
            graph_node_id: 0,
            name: EMPTY,
        });
        event
    }

    #[test]
    fn launches_of_before_with_all_their_records_and_no_others() {
        let mut call = LastCall::default();
        call.were_sampled([1]);
        assert!(call.takes(&record(3, 5, 9)), "nobody was there before us");
        // Told by somebody who was there before us.
        assert!(!call.takes(&record(1, 5, 9)));
        assert!(call.takes(&launch(1, 7, 10)) && call.takes(&launch(1, 9, 11)));
        assert!(!call.takes(&record(1, 6, 11)) && call.takes(&record(1, 7, 11)));
        // It began before the other.
        assert!(call.takes(&launch(1, 6, 12)) && call.takes(&record(1, 6, 13)));
        assert!(call.takes(&launch(2, 9, 12)) && call.takes(&record(1, 7, 13)));
        call.begin(20);
        // 8 began before 9 and was announced after it.
        assert!(!call.takes(&launch(1, 8, 21)) && !call.takes(&launch(1, 10, 22)));
        assert!(call.waits(|_| true) && call.waits(|pid| pid == 1));
        assert!(!call.takes(&record(1, 8, 23)) && !call.takes(&record(1, 10, 23)));
        assert!(call.takes(&record(1, 9, 24)) && call.takes(&record(1, 9, 24)));
        assert!(!call.waits(|_| true), "process 2 was dead a moment ago");
    }

    #[test]
    fn ids_wrap_around() {
        let mut call = LastCall::default();
        call.were_sampled([1]);
        assert!(call.takes(&launch(1, u32::MAX, 10)) && call.takes(&launch(1, 0, 11)));
        assert!(!call.takes(&record(1, u32::MAX - 1, 12)));
        assert!(call.takes(&record(1, u32::MAX, 12)) && call.takes(&record(1, 0, 12)));
        // Half of all ids later.
        assert!(call.takes(&record(1, u32::MAX / 2 + 5, 11 + super::OLD)));
    }

    #[test]
    fn what_never_comes_is_not_waited_for() {
        let mut call = LastCall::default();
        call.takes(&launch(1, 1, 10));
        call.begin(super::LATE + 11);
        assert!(!call.waits(|_| true));
        let mut call = LastCall::default();
        for id in 0..=IDS_MAX as u32 {
            call.takes(&launch(1, id, 10));
        }
        assert!(call.open.len() <= IDS_MAX);
    }
}
