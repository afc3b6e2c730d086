//! Who looks at batches that wait: the thread of the session, or, in a program that uses NVTX and not
//! CUDA, one of our own that lives while somebody listens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{batch, names, process};
use crate::entry::{self, Inside};
use crate::metadata::{Joiner, Metadata};
use crate::{clock, lifecycle, probes, watch};

/// Longest time between two looks.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Shortest one: a batch that waits for a slow consumer must not keep us busy.
const SHORTEST: Duration = Duration::from_millis(1);
/// Before a thread that could not be started is tried again, ns.
const RETRY: u64 = 1_000_000_000;
/// Of address space.
const STACK: usize = 256 << 10;

/// The session's thread looks.
static BY_SESSION: AtomicBool = AtomicBool::new(false);
/// A thread of our own does.
static BY_OURS: AtomicBool = AtomicBool::new(false);
static RETRY_AT: AtomicU64 = AtomicU64::new(0);

/// The session's thread begins, or ends, to call [`look`].
pub fn by_session(looks: bool) {
    BY_SESSION.store(looks, Ordering::Release);
}

/// In a forked child: neither thread is there. Async-signal-safe.
pub fn forget() {
    BY_SESSION.store(false, Ordering::Relaxed);
    BY_OURS.store(false, Ordering::Relaxed);
    RETRY_AT.store(0, Ordering::Relaxed);
}

/// One look; how long the next one may take, at most `limit`.
pub fn look(limit: Duration) -> Duration {
    if probes::nvtx_event_batch::enabled() {
        batch::look(limit).clamp(SHORTEST.min(limit), limit)
    } else {
        // What was gathered for a consumer that left is nobody's.
        batch::flush();
        limit
    }
}

/// Somebody listens: sees to it that a thread looks. The event that begins it tells all names.
#[inline]
pub fn ensure() {
    if !BY_SESSION.load(Ordering::Relaxed) && !BY_OURS.load(Ordering::Relaxed) {
        start();
    }
}

#[cold]
fn start() {
    let now = clock::monotonic_ns();
    if process::is_ending() || now < RETRY_AT.load(Ordering::Relaxed) || !claim() {
        return;
    }
    // The program may end before a thread looks.
    names::replay();
    let started = watch::without_signals(|| {
        std::thread::Builder::new()
            .name("parcagpu".to_owned())
            .stack_size(STACK)
            .spawn(run)
    });
    if let Err(error) = started {
        BY_OURS.store(false, Ordering::Release);
        RETRY_AT.store(now + RETRY, Ordering::Relaxed);
        static TOLD: AtomicBool = AtomicBool::new(false);
        process::report_once(
            &TOLD,
            &format!("no thread for NVTX batches, which are fired later than they should: {error}"),
        );
    }
}

fn claim() -> bool {
    !BY_OURS.swap(true, Ordering::AcqRel)
}

/// What is replayed to consumers that come: in a forked child only what has no lock of its parent's.
enum Replay {
    All(Box<Metadata>),
    Names(Joiner),
}

impl Replay {
    fn new() -> Self {
        match process::generation() {
            0 => Self::All(Box::default()),
            _ => Self::Names(Joiner::default()),
        }
    }

    fn look(&mut self, now: u64) {
        match self {
            Self::All(metadata) => metadata.look(now),
            Self::Names(joiner) => {
                if joiner.look(probes::nvtx_resource_name::semaphore(), now) {
                    names::replay();
                }
            }
        }
    }
}

fn run() {
    let _inside = Inside::nested();
    let mut replay = Replay::new();
    loop {
        let wait = entry::barrier(LOOK_PERIOD, || {
            replay.look(clock::monotonic_ns());
            look(LOOK_PERIOD)
        });
        let over =
            BY_SESSION.load(Ordering::Acquire) || process::is_ending() || lifecycle::is_alone();
        if over || !probes::nvtx_event_batch::enabled() {
            BY_OURS.store(false, Ordering::Release);
            // A consumer that came just now has met an event that saw us; another event may never come.
            if over || !probes::nvtx_event_batch::enabled() || !claim() {
                return;
            }
        }
        std::thread::sleep(wait);
    }
}
