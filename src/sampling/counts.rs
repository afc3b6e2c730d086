//! How many launches there were, counted without a word that all threads write.
//!
//! Each thread counts in a shard, a cache line that it shares with few others or none; the sums are
//! put into the status block by [`Counts::publish`]: by our thread at each look and before the last
//! flush of the process, and by a launch that is announced if the last time is a tick of the coarse
//! clock ago. So what a consumer reads at an event is exact up to a few milliseconds of launches, and
//! never less than what was announced ([`Counts::announced`]).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parcagpu_abi::status::{Counter, Status};

use super::launch::Kind;

/// Shards; threads beyond that many share.
const SHARDS: usize = 64;

/// Two cache lines, since processors fetch them in pairs.
#[repr(align(128))]
struct Shard {
    /// By [`Kind`]: launches that the bucket let through, less those that turned out to be none; may
    /// wrap below 0, as sums do.
    admitted: [AtomicU64; 2],
    /// By [`Kind`]: launches that the bucket refused, likewise.
    refused: [AtomicU64; 2],
    /// By [`Kind`]: refused launches that turned out to be none.
    void: [AtomicU64; 2],
}

/// The shards.
pub struct Counts {
    shards: [Shard; SHARDS],
    publishing: AtomicBool,
    published_at: AtomicU64,
}

thread_local! {
    // No destructor: usable while a thread ends. Past the last shard: not chosen yet.
    static SHARD: Cell<usize> = const { Cell::new(SHARDS) };
}

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

/// The counts of this process.
pub static COUNTS: Counts = Counts::new();

#[cold]
fn choose_shard() -> usize {
    let shard = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
    SHARD.set(shard);
    shard
}

fn seen(kind: Kind) -> Counter {
    match kind {
        Kind::Eager => Counter::EagerSeen,
        Kind::Graph => Counter::GraphSeen,
    }
}

fn sampled(kind: Kind) -> Counter {
    match kind {
        Kind::Eager => Counter::EagerSampled,
        Kind::Graph => Counter::GraphSampled,
    }
}

fn refused(kind: Kind) -> Counter {
    match kind {
        Kind::Eager => Counter::EagerRefused,
        Kind::Graph => Counter::GraphRefused,
    }
}

impl Counts {
    const fn new() -> Self {
        Self {
            shards: [const {
                Shard {
                    admitted: [const { AtomicU64::new(0) }; 2],
                    refused: [const { AtomicU64::new(0) }; 2],
                    void: [const { AtomicU64::new(0) }; 2],
                }
            }; SHARDS],
            publishing: AtomicBool::new(false),
            published_at: AtomicU64::new(0),
        }
    }

    #[inline]
    fn shard(&self) -> &Shard {
        let mut shard = SHARD.get();
        if shard >= SHARDS {
            shard = choose_shard();
        }
        &self.shards[shard]
    }

    /// A launch came that the bucket let through.
    #[inline]
    pub fn admit(&self, kind: Kind) {
        self.shard().admitted[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A launch came that the bucket refused.
    #[inline]
    pub fn refuse(&self, kind: Kind) {
        self.shard().refused[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A launch that was counted is none after all.
    pub fn void(&self, kind: Kind) {
        self.shard().void[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A launch is announced, `coarse_ns` by the coarse clock. Consumers compare what they were told
    /// with the launches seen, so there are at least as many of these now.
    pub fn announced(&self, kind: Kind, coarse_ns: u64, block: &Status) {
        let counter = &block.counters[sampled(kind) as usize];
        let told = counter.fetch_add(1, Ordering::AcqRel) + 1;
        if self.published_at.load(Ordering::Relaxed) != coarse_ns {
            self.published_at.store(coarse_ns, Ordering::Relaxed);
            self.publish(block);
        }
        block.counters[seen(kind) as usize].fetch_max(told, Ordering::AcqRel);
    }

    /// Puts the sums into the block; nothing if another thread is at it.
    pub fn publish(&self, block: &Status) {
        if self.publishing.swap(true, Ordering::Acquire) {
            return;
        }
        for kind in [Kind::Eager, Kind::Graph] {
            let sum = |of: fn(&Shard) -> &[AtomicU64; 2]| {
                let counters = self.shards.iter().map(|shard| &of(shard)[kind as usize]);
                counters.fold(0u64, |sum, n| sum.wrapping_add(n.load(Ordering::Relaxed)))
            };
            let void = sum(|shard| &shard.void);
            let refusals = sum(|shard| &shard.refused);
            let all = sum(|shard| &shard.admitted) + refusals;
            let (seen, refused) = (seen(kind) as usize, refused(kind) as usize);
            let told = || block.counters[sampled(kind) as usize].load(Ordering::Acquire);
            let counted = all.saturating_sub(void);
            let seen = &block.counters[seen];
            let mut before = seen.load(Ordering::Acquire);
            // Whoever announces meanwhile has raised it, or raises it afterwards.
            while let Err(now) = seen.compare_exchange_weak(
                before,
                counted.max(told()),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                before = now;
            }
            seen.fetch_max(told(), Ordering::AcqRel);
            block.counters[refused].store(refusals, Ordering::Release);
        }
        self.publishing.store(false, Ordering::Release);
    }

    /// In a forked child: nothing was counted yet. Async-signal-safe.
    pub fn reset(&self) {
        for shard in &self.shards {
            for counter in [&shard.admitted, &shard.refused, &shard.void]
                .into_iter()
                .flatten()
            {
                counter.store(0, Ordering::Relaxed);
            }
        }
        self.publishing.store(false, Ordering::Relaxed);
        self.published_at.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;
    use crate::sampling::launch::Kind;
    use parcagpu_abi::status::{Counter, Status};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn sums_are_those_of_all_threads() {
        static COUNTS: Counts = Counts::new();
        let block = Status::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for launch in 0..10_000u32 {
                        match launch % 10 {
                            0 => COUNTS.admit(Kind::Eager),
                            1 => COUNTS.refuse(Kind::Graph),
                            _ => COUNTS.refuse(Kind::Eager),
                        }
                        if launch % 100 == 0 {
                            COUNTS.void(Kind::Eager);
                        }
                    }
                });
            }
        });
        COUNTS.publish(&block);
        assert_eq!(block.get(Counter::EagerSeen), 8 * (9_000 - 100));
        assert_eq!(block.get(Counter::EagerRefused), 8 * 8_000);
        assert_eq!(block.get(Counter::GraphSeen), 8_000);
        assert_eq!(block.get(Counter::GraphRefused), 8_000);
        COUNTS.reset();
        COUNTS.publish(&block);
        assert_eq!(block.get(Counter::GraphSeen), 0);
    }

    #[test]
    fn there_are_never_more_announced_than_seen() {
        static COUNTS: Counts = Counts::new();
        static DONE: AtomicBool = AtomicBool::new(false);
        let block = Status::new();
        std::thread::scope(|scope| {
            let launchers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        for launch in 0..50_000u64 {
                            COUNTS.admit(Kind::Graph);
                            // The clock moves now and then.
                            COUNTS.announced(Kind::Graph, launch / 1_000, &block);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !DONE.load(Ordering::Relaxed) {
                    COUNTS.publish(&block);
                    let told = block.get(Counter::GraphSampled);
                    // A thread between its two steps is not announced yet.
                    assert!(block.get(Counter::GraphSeen) + 3 >= told);
                }
            });
            for launcher in launchers {
                launcher.join().unwrap();
            }
            DONE.store(true, Ordering::Relaxed);
        });
        COUNTS.publish(&block);
        assert_eq!(block.get(Counter::GraphSampled), 150_000);
        assert_eq!(block.get(Counter::GraphSeen), 150_000);
    }
}
