//! How much of the last seconds a device had a kernel running.
//!
//! Kernel times are `CLOCK_REALTIME` ns. Records come in batches, those of different streams in no order: the
//! intervals of one process are kept apart until they are settled, then go into a ring of seconds. Overlap
//! within a process counts once; processes share a device by turns, so theirs is added up.

use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
/// Seconds that are kept.
const KEPT: usize = 64;
/// Intervals that may still grow together; past it the oldest are settled.
const LOOSE_MAX: usize = 4096;
/// Times further from now than this are no times of this clock.
const FAR: u64 = 3600 * SECOND;

/// Kernels of one process on one device.
#[derive(Debug)]
pub struct Busy {
    /// Start to end, none touching another.
    loose: BTreeMap<u64, u64>,
    /// Number of a second, and its busy ns.
    settled: [(u64, u64); KEPT],
    /// A kernel had times of another clock.
    foreign: bool,
}

impl Default for Busy {
    fn default() -> Self {
        Self {
            loose: BTreeMap::new(),
            settled: [(0, 0); KEPT],
            foreign: false,
        }
    }
}

impl Busy {
    /// Takes a kernel's times; `now` is the time of its arrival on the same clock.
    pub fn add(&mut self, start: u64, end: u64, now: u64) {
        if start > end || end.abs_diff(now) > FAR {
            self.foreign = true;
            return;
        }
        // No window reaches further back.
        let (mut start, mut end) = (start.max(end.saturating_sub(KEPT as u64 * SECOND)), end);
        let touching: Vec<u64> = self
            .loose
            .range(..=end)
            .rev()
            .take_while(|(_, e)| **e >= start)
            .map(|(s, _)| *s)
            .collect();
        for s in touching {
            let e = self.loose.remove(&s).unwrap_or(s);
            start = start.min(s);
            end = end.max(e);
        }
        self.loose.insert(start, end);
        while self.loose.len() > LOOSE_MAX {
            if let Some((start, end)) = self.loose.pop_first() {
                self.settle(start, end);
            }
        }
    }

    fn settle(&mut self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let second = at / SECOND;
            let next = end.min((second + 1) * SECOND);
            let slot = &mut self.settled[second as usize % KEPT];
            if slot.0 < second {
                *slot = (second, 0);
            }
            if slot.0 == second {
                slot.1 += next - at;
            }
            at = next;
        }
    }

    /// Busy ns between two times, whole seconds of the ring; `None`: its clock is another one.
    pub fn between(&self, from: u64, to: u64) -> Option<u64> {
        if self.foreign {
            return None;
        }
        let (first, last) = (from / SECOND, to / SECOND);
        let settled = self
            .settled
            .iter()
            .filter(|(s, _)| (first..last).contains(s));
        let settled: u64 = settled.map(|(_, ns)| (*ns).min(SECOND)).sum();
        let (from, to) = (first * SECOND, last * SECOND);
        let loose = self.loose.range(..to).map(|(start, end)| {
            let (start, end) = ((*start).max(from), (*end).min(to));
            end.saturating_sub(start)
        });
        Some(settled + loose.sum::<u64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000 * SECOND;

    #[test]
    fn overlap_counts_once_in_any_order() {
        let mut busy = Busy::default();
        for (start, end) in [(50, 60), (0, 100), (200, 300), (90, 210), (400, 400)] {
            busy.add(NOW + start, NOW + end, NOW + SECOND);
        }
        assert_eq!(busy.between(NOW, NOW + SECOND), Some(300));
        assert_eq!(busy.between(NOW - SECOND, NOW), Some(0));
    }

    #[test]
    fn many_kernels_take_bounded_memory_and_are_all_counted() {
        let mut busy = Busy::default();
        let step = SECOND / 10_000;
        for i in 0..30_000u64 {
            let start = NOW + i * step;
            busy.add(start, start + step / 2, start + step);
        }
        assert!(busy.loose.len() <= LOOSE_MAX);
        assert_eq!(busy.between(NOW, NOW + 3 * SECOND), Some(3 * SECOND / 2));
        assert_eq!(
            busy.between(NOW + SECOND, NOW + 2 * SECOND),
            Some(SECOND / 2)
        );
    }

    #[test]
    fn absurd_times() {
        let mut busy = Busy::default();
        // Longer than anything that is kept.
        busy.add(1, NOW + SECOND, NOW + SECOND);
        assert_eq!(busy.between(NOW - SECOND, NOW + SECOND), Some(2 * SECOND));
        busy.add(5, 3, NOW);
        assert_eq!(busy.between(NOW, NOW + SECOND), None);
        let mut busy = Busy::default();
        busy.add(0, u64::MAX, NOW);
        assert_eq!(busy.between(NOW, NOW + SECOND), None);
    }
}
