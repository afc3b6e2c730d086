//! Windows in serialized mode: they start and stop at launches.
//!
//! `Start` and `Stop` must not run while any thread is inside a launch, see [`crate::pc`]. So launches pass
//! a gate. Who starts or stops shuts it, goes on only if no other launch is inside within a few milliseconds,
//! and opens it again some microseconds later; launches that come meanwhile wait, 200 ms at most. In
//! continuous mode none of this is used.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::api::Functions;
use super::refusal;
use super::window::INTERVAL;
use crate::clock;
use crate::cupti::driver::Driver;
use crate::cupti::sys::CUcontext;

/// Longest time for the launches of other threads to return.
const EMPTY_LIMIT: Duration = Duration::from_millis(5);
/// Longest time that a launch waits at the gate.
const WAIT_LIMIT: Duration = Duration::from_millis(200);

/// Who is inside a launch.
#[derive(Debug, Default)]
pub struct Gate {
    inside: AtomicU32,
    shut: AtomicBool,
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
            if Instant::now() >= deadline {
                return;
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
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
        if self.shut.swap(true, Ordering::SeqCst) {
            return None;
        }
        let opens = Opens(&self.shut);
        let deadline = Instant::now() + EMPTY_LIMIT;
        while self.inside.load(Ordering::SeqCst) != own {
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::yield_now();
        }
        let result = act();
        drop(opens);
        Some(result)
    }
}

struct Opens<'a>(&'a AtomicBool);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// No window, and none is wanted.
const IDLE: u8 = 0;
/// The next launch opens a window.
const REQUESTED: u8 = 1;
/// Sampling is on, and every launch is announced.
const OPEN: u8 = 2;

/// The window of a process; one context at a time.
#[derive(Debug, Default)]
pub struct Serial {
    gate: Gate,
    state: AtomicU8,
    context: AtomicUsize,
    /// `CLOCK_MONOTONIC` ns.
    opened: AtomicU64,
    /// Lowest id of a launch in the last window.
    first: AtomicU32,
}

impl Serial {
    /// Asks for a window.
    pub fn request(&self) {
        let _ = self
            .state
            .compare_exchange(IDLE, REQUESTED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Takes the request back; false if a window is open.
    pub fn cancel(&self) -> bool {
        let _ = self
            .state
            .compare_exchange(REQUESTED, IDLE, Ordering::AcqRel, Ordering::Acquire);
        self.state.load(Ordering::Acquire) != OPEN
    }

    /// A launch begins on this thread; whether it is inside a window. `is_on`: whether a context is sampled.
    pub fn before(
        &self,
        functions: &Functions,
        driver: &Driver,
        is_on: impl Fn(CUcontext) -> bool,
    ) -> bool {
        self.gate.enter();
        if self.state.load(Ordering::Acquire) == REQUESTED
            && let Some(context) = driver.current_context()
            && is_on(context)
        {
            self.gate.alone(1, || self.open(functions, driver, context));
        }
        self.state.load(Ordering::Acquire) == OPEN
    }

    fn open(&self, functions: &Functions, driver: &Driver, context: CUcontext) {
        if self.state.load(Ordering::Acquire) != REQUESTED {
            return;
        }
        match driver.beside_captures(|| functions.start(context)) {
            Ok(()) => {
                self.context.store(context.0.addr(), Ordering::Relaxed);
                self.first.store(u32::MAX, Ordering::Relaxed);
                self.opened.store(clock::monotonic_ns(), Ordering::Relaxed);
                self.state.store(OPEN, Ordering::Release);
            }
            Err(error) => {
                refusal::tell(error);
                self.state.store(IDLE, Ordering::Release);
            }
        }
    }

    /// A launch in the window has this id.
    pub fn entered(&self, id: u32) {
        self.first.fetch_min(id, Ordering::Relaxed);
    }

    /// The lowest id of a launch that was announced: kernels that were queued before the window opened are
    /// sampled as well, and nobody knows their launches.
    pub fn known(&self, serialized: bool) -> u32 {
        match serialized {
            true => self.first.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// The launch returned.
    pub fn after(&self, functions: &Functions, driver: &Driver) {
        self.gate.leave();
        self.close_if_older(INTERVAL, functions, driver);
    }

    /// Ends a window that has been open for `age` ns.
    pub fn close_if_older(&self, age: u64, functions: &Functions, driver: &Driver) {
        let is_due = || {
            self.state.load(Ordering::Acquire) == OPEN
                && clock::monotonic_ns().saturating_sub(self.opened.load(Ordering::Relaxed)) >= age
        };
        if !is_due() {
            return;
        }
        self.gate.alone(0, || {
            if !is_due() {
                return;
            }
            let context = CUcontext(self.context.load(Ordering::Relaxed) as *mut _);
            if let Err(error) = driver.beside_captures(|| functions.stop(context)) {
                refusal::tell(error);
            }
            self.state.store(IDLE, Ordering::Release);
        });
    }

    /// A context is destroyed, and a window in it with it.
    pub fn destroyed(&self, context: CUcontext) {
        if self.context.load(Ordering::Relaxed) == context.0.addr() {
            let _ = self
                .state
                .compare_exchange(OPEN, IDLE, Ordering::AcqRel, Ordering::Acquire);
        }
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
