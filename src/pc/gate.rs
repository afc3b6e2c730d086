//! Keeps launches of other threads out while CUPTI starts or stops sampling.
//!
//! Every launch is counted on its way in and out. Who starts or stops shuts the [`Door`], and is alone once nobody is
//! inside. Both wait with a bound.

use std::time::{Duration, Instant};

use parcagpu_interpose::Uncancelled;

use super::door::Door;
use crate::lifecycle;

/// Longest time for the launches of other threads to return.
const EMPTY_LIMIT: Duration = Duration::from_millis(5);
/// Longest time that a launch waits at the gate for one that is not at work in CUPTI.
const WAIT_LIMIT: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug, Default)]
pub struct Gate(Door);

impl Gate {
    /// A launch begins.
    pub fn enter(&self) {
        if self.0.try_enter(false) {
            return;
        }
        let deadline = Instant::now() + WAIT_LIMIT;
        // A thread that is cancelled is so in the driver, not here.
        let _whole = Uncancelled::begin();
        while !self.0.try_enter(Instant::now() >= deadline) {
            // Nobody will open it there.
            if lifecycle::in_forked_child() {
                return self.0.enter_anyway();
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// A launch ended.
    pub fn leave(&self) {
        self.0.leave();
    }

    /// Runs `act` while no launch but `own` of the caller's is inside; `None` if there are others all the
    /// time, or somebody else does the same.
    pub fn alone<R>(&self, own: u32, act: impl FnOnce() -> R) -> Option<R> {
        // CUPTI may come to a cancellation point.
        let _whole = Uncancelled::begin();
        if !self.0.shut() {
            return None;
        }
        let _opens = Opens(&self.0);
        let deadline = Instant::now() + EMPTY_LIMIT;
        while !self.0.take(own) {
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::yield_now();
        }
        Some(act())
    }
}

struct Opens<'a>(&'a Door);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
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
        assert!(gate.0.shut());
        gate.enter();
        assert!(gate.alone(2, || ()).is_none());
    }
}
