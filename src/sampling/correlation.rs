//! Sampled launches whose kernel records are still to come.
//!
//! A launch is entered before it reaches the driver, since its record can be back before the launch
//! call returns, and it is *pending* until it was announced; a record that is faster than the
//! announcement is held and handed on by the launching thread. An eager launch is done with its one
//! record; a graph launch has one per node, and nothing says which is the last.
//!
//! Memory is bounded by two generations: new ids go into the young one; when that is full, or five
//! minutes old, the old one is dropped and the young one becomes old. What was announced and never
//! got a record is counted when it is dropped. An entry is 8 bytes, a full pair of generations
//! about 8 MiB. Our thread sees to it before a launch finds the young one full ([`Correlation::tidy`]):
//! dropping a generation takes a millisecond or two.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use dashmap::{DashMap, Entry};
use parcagpu_abi::kernel::KernelRecord;
use parcagpu_abi::status::Counter;

use crate::status;

/// Ids waiting in one generation.
const GENERATION_MAX: isize = 3 << 16;
/// From here on our thread does not wait until it is full.
const NEARLY_FULL: isize = GENERATION_MAX / 4 * 3;
/// Records held for one launch that is not announced yet; more are counted as unmatched.
const HELD_MAX: usize = 4096;

/// Entered, not yet announced.
const PENDING: u32 = 1;
/// More than one record may come.
const MANY: u32 = 2;
/// At least one record came.
const SEEN: u32 = 4;
/// Records are held for it.
const HELD: u32 = 8;
/// Launches with this id that wait for their record: the same id may be handed out twice.
const COUNT_SHIFT: u32 = 8;
const ONE: u32 = 1 << COUNT_SHIFT;

/// Spreads consecutive ids over shards and slots.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte) ^ self.0 as u32);
        }
    }
    fn write_u32(&mut self, id: u32) {
        self.0 = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Ids = DashMap<u32, u32, BuildHasherDefault<IdHasher>>;

/// A copy of a record that waits for its launch to be announced. The name it points to is CUPTI's,
/// shared by records and not freed while CUPTI is loaded.
pub struct Held(pub KernelRecord);
// SAFETY: plain data and a pointer to an immutable string.
unsafe impl Send for Held {}

/// What to do with a kernel record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it to the probes.
    Deliver,
    /// A copy is held until the launch is announced.
    Held,
    /// Its launch was not sampled.
    Unmatched,
}

/// What became of an entry that was looked for.
enum Found {
    No,
    Kept,
    Removed,
}

/// See the module.
pub struct Correlation {
    generations: [Ids; 2],
    /// Ids in each; for a moment one less or more than there are.
    lens: [AtomicIsize; 2],
    young: AtomicUsize,
    held: Mutex<HashMap<u32, Vec<Held>>>,
    rotating: Mutex<()>,
}

impl Correlation {
    /// An empty set.
    pub fn new() -> Self {
        Self {
            generations: [Ids::default(), Ids::default()],
            lens: [AtomicIsize::new(0), AtomicIsize::new(0)],
            young: AtomicUsize::new(0),
            held: Mutex::default(),
            rotating: Mutex::default(),
        }
    }

    /// A sampled launch goes to the driver. `many`: a graph launch.
    pub fn begin(&self, id: u32, many: bool) {
        let young = self.young.load(Ordering::Acquire);
        let kind = if many { MANY } else { 0 };
        match self.generations[young].entry(id) {
            Entry::Occupied(mut entry) => {
                let value = entry.get_mut();
                *value = (*value | PENDING | kind).saturating_add(ONE);
                return;
            }
            Entry::Vacant(entry) => {
                entry.insert(PENDING | kind | ONE);
            }
        }
        if self.lens[young].fetch_add(1, Ordering::Relaxed) >= GENERATION_MAX {
            self.rotate();
        }
    }

    /// By our thread, now and then.
    pub fn tidy(&self) {
        let young = self.young.load(Ordering::Acquire);
        if self.lens[young].load(Ordering::Relaxed) >= NEARLY_FULL {
            self.rotate();
        }
    }

    /// The launch failed or is not to be announced.
    pub fn cancel(&self, id: u32) {
        self.with(id, |entry| {
            if let Entry::Occupied(mut entry) = entry {
                if entry.get() & HELD != 0 {
                    self.take_held(id);
                }
                if entry.get() >> COUNT_SHIFT <= 1 {
                    entry.remove();
                    return Found::Removed;
                }
                let value = entry.get_mut();
                *value = (*value & !(PENDING | HELD)) - ONE;
                Found::Kept
            } else {
                Found::No
            }
        });
    }

    /// The launch was announced; gives the records that came before. Allocates only when there are
    /// some.
    pub fn announce(&self, id: u32) -> Vec<Held> {
        let mut held = Vec::new();
        self.with(id, |entry| {
            let Entry::Occupied(mut entry) = entry else {
                return Found::No;
            };
            let value = entry.get_mut();
            *value &= !PENDING;
            if *value & HELD == 0 {
                return Found::Kept;
            }
            *value &= !HELD;
            held = self.take_held(id);
            let matched = held.len().min(match *value & MANY {
                0 => (*value >> COUNT_SHIFT) as usize,
                _ => usize::from(*value & SEEN == 0),
            });
            status::block().add(Counter::IdsMatched, matched as u64);
            if *value & MANY != 0 {
                *value |= SEEN;
                return Found::Kept;
            }
            let left = (*value >> COUNT_SHIFT) - matched as u32;
            if left == 0 {
                entry.remove();
                return Found::Removed;
            }
            *value = (*value & (ONE - 1)) | (left << COUNT_SHIFT);
            Found::Kept
        });
        held
    }

    /// A kernel record arrived.
    pub fn on_record(&self, record: &KernelRecord) -> Verdict {
        let id = record.correlation_id;
        let mut verdict = Verdict::Unmatched;
        self.with(id, |entry| {
            let Entry::Occupied(mut entry) = entry else {
                return Found::No;
            };
            let value = entry.get_mut();
            if *value & PENDING != 0 {
                if self.hold(record) {
                    *value |= HELD;
                    verdict = Verdict::Held;
                }
                return Found::Kept;
            }
            verdict = Verdict::Deliver;
            if *value & (MANY | SEEN) != MANY | SEEN {
                status::block().add(Counter::IdsMatched, 1);
            }
            if *value & MANY != 0 {
                *value |= SEEN;
                return Found::Kept;
            }
            if *value >> COUNT_SHIFT <= 1 {
                entry.remove();
                return Found::Removed;
            }
            *value -= ONE;
            Found::Kept
        });
        verdict
    }

    /// Drops the old generation; called when the young one is full, and by our thread.
    pub fn rotate(&self) {
        let Ok(_rotating) = self.rotating.try_lock() else {
            return;
        };
        let young = self.young.load(Ordering::Acquire);
        let old = &self.generations[1 - young];
        let (mut expired, mut dropped) = (0u64, 0);
        old.retain(|_, value| {
            dropped += 1;
            if *value & (SEEN | PENDING) == 0 {
                expired += u64::from(*value >> COUNT_SHIFT);
            }
            false
        });
        status::block().add(Counter::IdsExpired, expired);
        self.forget_held(&self.generations[young]);
        self.lens[1 - young].fetch_sub(dropped, Ordering::Relaxed);
        self.young.store(1 - young, Ordering::Release);
    }

    /// Drops held records whose launch is not in `kept`. The lock is not held while a shard of `kept`
    /// is: elsewhere it is taken inside one.
    fn forget_held(&self, kept: &Ids) {
        let lock = || self.held.lock().unwrap_or_else(|e| e.into_inner());
        let ids: Vec<u32> = lock().keys().copied().collect();
        for id in ids {
            if !kept.contains_key(&id) {
                lock().remove(&id);
            }
        }
    }

    /// Runs `act` on the id's entry in the generation that has it, the young one first.
    fn with(&self, id: u32, mut act: impl FnMut(Entry<'_, u32, u32>) -> Found) {
        let young = self.young.load(Ordering::Acquire);
        for at in [young, 1 - young] {
            match act(self.generations[at].entry(id)) {
                Found::No => {}
                Found::Kept => return,
                Found::Removed => {
                    self.lens[at].fetch_sub(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn hold(&self, record: &KernelRecord) -> bool {
        let mut held = self.held.lock().unwrap_or_else(|e| e.into_inner());
        let records = held.entry(record.correlation_id).or_default();
        if records.len() >= HELD_MAX {
            return false;
        }
        records.push(Held(*record));
        true
    }

    fn take_held(&self, id: u32) -> Vec<Held> {
        self.held
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .remove(&id)
            .unwrap_or_default()
    }
}

impl Default for Correlation {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{Correlation, GENERATION_MAX, NEARLY_FULL, Verdict};
    use parcagpu_abi::kernel::KernelRecord;
    use std::sync::atomic::Ordering;

    fn record(id: u32) -> KernelRecord {
        // SAFETY: all-zero is a valid record: integers and a null pointer.
        let mut record: KernelRecord = unsafe { std::mem::zeroed() };
        record.correlation_id = id;
        record
    }

    fn entries(c: &Correlation) -> usize {
        c.generations[0].len() + c.generations[1].len()
    }

    #[test]
    fn an_eager_launch_has_one_record() {
        let c = Correlation::new();
        c.begin(5, false);
        assert!(c.announce(5).is_empty());
        assert_eq!(c.on_record(&record(5)), Verdict::Deliver);
        assert_eq!(c.on_record(&record(5)), Verdict::Unmatched);
        assert_eq!(entries(&c), 0);
    }

    #[test]
    fn a_graph_launch_has_many() {
        let c = Correlation::new();
        c.begin(5, true);
        c.announce(5);
        for _ in 0..24 {
            assert_eq!(c.on_record(&record(5)), Verdict::Deliver);
        }
    }

    #[test]
    fn a_record_that_is_faster_than_the_announcement_is_held() {
        let c = Correlation::new();
        c.begin(u32::MAX, false);
        assert_eq!(c.on_record(&record(u32::MAX)), Verdict::Held);
        assert_eq!(c.announce(u32::MAX).len(), 1);
        assert_eq!(c.on_record(&record(u32::MAX)), Verdict::Unmatched);
        c.begin(0, true);
        assert_eq!(c.on_record(&record(0)), Verdict::Held);
        assert_eq!(c.announce(0).len(), 1);
        assert_eq!(c.on_record(&record(0)), Verdict::Deliver);
    }

    #[test]
    fn a_cancelled_launch_hands_on_nothing() {
        let c = Correlation::new();
        c.begin(5, true);
        assert_eq!(c.on_record(&record(5)), Verdict::Held);
        c.cancel(5);
        assert_eq!(c.on_record(&record(5)), Verdict::Unmatched);
        assert!(c.announce(5).is_empty());
        assert!(c.held.lock().unwrap().is_empty());
    }

    #[test]
    fn the_same_id_twice_gets_two_records() {
        let c = Correlation::new();
        for _ in 0..2 {
            c.begin(7, false);
            c.announce(7);
        }
        assert_eq!(c.on_record(&record(7)), Verdict::Deliver);
        assert_eq!(c.on_record(&record(7)), Verdict::Deliver);
        assert_eq!(c.on_record(&record(7)), Verdict::Unmatched);
    }

    #[test]
    fn ids_without_records_are_dropped_and_counted() {
        let c = Correlation::new();
        let n = 5 * GENERATION_MAX as u32;
        for id in 0..n {
            c.begin(id, false);
            c.announce(id);
        }
        assert!(entries(&c) <= 2 * GENERATION_MAX as usize + 2);
        assert_eq!(c.on_record(&record(0)), Verdict::Unmatched);
        assert_eq!(c.on_record(&record(n - 1)), Verdict::Deliver);
        let left = entries(&c) as u64;
        c.rotate();
        c.rotate();
        assert_eq!(entries(&c), 0);
        let expired = crate::status::block().get(parcagpu_abi::status::Counter::IdsExpired);
        assert!(
            expired >= u64::from(n) - 1,
            "{expired} of {n}, {left} were left"
        );
    }

    #[test]
    fn ids_whose_records_come_make_no_generation_full() {
        let c = Correlation::new();
        // Waits for its record for a long time.
        c.begin(0, false);
        c.announce(0);
        for id in 1..=3 * GENERATION_MAX as u32 {
            c.begin(id, false);
            c.announce(id);
            assert_eq!(c.on_record(&record(id)), Verdict::Deliver);
        }
        assert_eq!(c.on_record(&record(0)), Verdict::Deliver);
        assert!(c.lens.iter().all(|len| len.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_nearly_full_generation_is_dropped_by_our_thread() {
        let c = Correlation::new();
        for id in 0..NEARLY_FULL as u32 {
            c.tidy();
            assert_eq!(c.young.load(Ordering::Relaxed), 0);
            c.begin(id, true);
            c.announce(id);
        }
        c.tidy();
        assert_eq!(c.young.load(Ordering::Relaxed), 1);
        assert_eq!(c.on_record(&record(0)), Verdict::Deliver);
    }

    #[test]
    fn records_and_announcements_race_without_loss() {
        let c = Correlation::new();
        let delivered = std::sync::atomic::AtomicUsize::new(0);
        let add = |n| delivered.fetch_add(n, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 0..20_000 {
                    c.begin(id, false);
                    add(c.announce(id).len());
                }
            });
            scope.spawn(|| {
                for id in 0..20_000 {
                    loop {
                        match c.on_record(&record(id)) {
                            Verdict::Deliver => {
                                add(1);
                                break;
                            }
                            Verdict::Held => break,
                            Verdict::Unmatched => std::hint::spin_loop(),
                        }
                    }
                }
            });
        });
        assert_eq!(delivered.into_inner(), 20_000);
    }
}
