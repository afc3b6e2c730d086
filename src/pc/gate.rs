//! Keeps launches of other threads out while CUPTI starts or stops sampling.
//!
//! Every launch is counted on its way in and out. Who starts or stops shuts the gate, and is alone once nobody is
//! inside: by one sequentially consistent order of counting and shutting, each of both sees the other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parcagpu_interpose::Uncancelled;

use crate::lifecycle;

/// Longest time for the launches of other threads to return.
const EMPTY_LIMIT: Duration = Duration::from_millis(5);
/// Longest time that a launch waits at the gate for one that is not at work in CUPTI.
const WAIT_LIMIT: Duration = Duration::from_millis(200);

/// Who is inside a launch.
#[derive(Debug, Default)]
pub struct Gate {
    inside: AtomicU32,
    shut: AtomicBool,
    /// Whoever shut it found nobody inside, and is in CUPTI: a launch that went in now would hang with it.
    taken: AtomicBool,
}

impl Gate {
    /// A launch begins.
    pub fn enter(&self) {
        let mut deadline = None;
        loop {
            // Counted before looking, while who shuts it looks after shutting: one of both sees the other.
            self.inside.fetch_add(1, Ordering::SeqCst);
            if !self.shut.load(Ordering::SeqCst) {
                return;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + WAIT_LIMIT);
            let over = Instant::now() >= deadline && !self.taken.load(Ordering::SeqCst);
            // In a copy of the process nobody will open it.
            if over || lifecycle::in_forked_child() {
                return;
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            // A thread that is cancelled is so in the driver, not here.
            let _whole = Uncancelled::begin();
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// A launch ended.
    pub fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// Runs `act` while no launch but `own` of the caller's is inside; `None` if there are others all the
    /// time, or somebody else does the same.
    pub fn alone<R>(&self, own: u32, act: impl FnOnce() -> R) -> Option<R> {
        // CUPTI may come to a cancellation point.
        let _whole = Uncancelled::begin();
        if self.shut.swap(true, Ordering::SeqCst) {
            return None;
        }
        let opens = Opens(self);
        let deadline = Instant::now() + EMPTY_LIMIT;
        while !self.is_empty_but(own) {
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::yield_now();
        }
        let result = act();
        drop(opens);
        Some(result)
    }

    /// Whether nobody but `own` is inside; from then on nobody goes in any more.
    fn is_empty_but(&self, own: u32) -> bool {
        if self.inside.load(Ordering::SeqCst) != own {
            return false;
        }
        self.taken.store(true, Ordering::SeqCst);
        // One that had waited for too long may have gone in meanwhile.
        let empty = self.inside.load(Ordering::SeqCst) == own;
        if !empty {
            self.taken.store(false, Ordering::SeqCst);
        }
        empty
    }
}

struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::SeqCst);
        self.0.shut.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Gate;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn nobody_is_inside_while_somebody_is_alone() {
        let gate = Gate::default();
        let (inside, end) = (AtomicU32::new(0), AtomicBool::new(false));
        let alone = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        gate.leave();
                    }
                });
            }
            let mut alone = 0;
            let deadline = Instant::now() + Duration::from_secs(20);
            while alone < 200 && Instant::now() < deadline {
                alone += gate
                    .alone(0, || {
                        for _ in 0..50 {
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                        }
                        1
                    })
                    .unwrap_or(0);
            }
            end.store(true, Ordering::Relaxed);
            alone
        });
        assert!(alone >= 1);
    }

    #[test]
    fn a_launch_does_not_go_in_under_one_that_is_at_work() {
        let gate = Gate::default();
        let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gate.alone(0, || {
                    begun.store(true, Ordering::SeqCst);
                    // As when the machine is busy.
                    std::thread::sleep(super::WAIT_LIMIT + Duration::from_millis(100));
                    over.store(true, Ordering::SeqCst);
                })
            });
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            gate.enter();
            assert!(over.load(Ordering::SeqCst));
            gate.leave();
        });
    }

    #[test]
    fn waiting_has_a_bound_on_both_sides() {
        let gate = Gate::default();
        gate.enter();
        assert!(gate.alone(0, || ()).is_none());
        assert!(gate.alone(1, || ()).is_some());
        // Whoever shuts it does not come back: the launch goes on all the same.
        gate.shut.store(true, Ordering::SeqCst);
        gate.enter();
        assert!(gate.alone(2, || ()).is_none());
    }
}
