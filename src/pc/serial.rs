//! Windows in serialized mode: they start and stop at launches.
//!
//! `Start` and `Stop` must not run while any thread is inside a launch, see [`crate::pc`]. So launches pass
//! a [`Gate`], and loads of code, inside which CUPTI does the same. Who starts or stops shuts it, goes on only if
//! no other launch is inside within a few milliseconds, and opens it again some microseconds later. Launches
//! that come meanwhile wait: 200 ms at most, but as long as CUPTI takes once it was called, whose lock they
//! would wait for instead. They pass the gate as long as the process lives, whether or not anybody listens:
//! one that nobody counted would be inside when the next window starts. In continuous mode none of this is
//! used.
//!
//! Every launch in a window is announced. So the window itself joins the switch of kernel activity, for as long
//! as it is open: no launch in it has to switch, and none is turned away because another one does.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::api::Functions;
use super::gate::Gate;
use super::hold::Hold;
use super::refusal;
use super::window::INTERVAL;
use crate::clock;
use crate::cupti::api::Api;
use crate::cupti::call::CuptiError;
use crate::cupti::driver::Driver;
use crate::cupti::sys::CUcontext;
use crate::sampling::switch::{Generation, Refused};
use crate::session::Session;

/// After launches stayed inside for so long, the next launch does not shut the gate for so many ns: one of
/// them may be waiting for a kernel.
const PATIENCE: u64 = 50_000_000;
/// Longest time that a window waits until it may join the switch.
const JOIN_LIMIT: Duration = Duration::from_millis(2);

/// What it takes to open and to close a window.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    functions: &'a Functions,
    driver: &'a Driver,
    session: &'a Session,
}

impl<'a> Tools<'a> {
    /// Those of a session; `None` without libcuda or the functions.
    pub fn of(session: &'a Session) -> Option<Self> {
        Some(Self {
            functions: session.api().and_then(|api: &Api| api.pc_sampling().ok())?,
            driver: session.driver()?,
            session,
        })
    }

    fn start(&self, context: CUcontext) -> Result<(), CuptiError> {
        self.driver
            .beside_captures(|| self.functions.start(context))
    }

    fn stop(&self, context: CUcontext) {
        let stopped = self.driver.beside_captures(|| self.functions.stop(context));
        if let Err(error) = stopped {
            refusal::tell(error);
        }
    }

    /// Joins the switch on behalf of the window's launches.
    fn join(&self) -> Option<Generation> {
        let deadline = Instant::now() + JOIN_LIMIT;
        loop {
            match self.session.sampler.switch.join(self.session) {
                Ok(generation) => return Some(generation),
                // Our own thread may be at it.
                Err(Refused::Busy) if Instant::now() < deadline => std::thread::yield_now(),
                Err(_) => return None,
            }
        }
    }

    fn leave(&self, joined: Generation) {
        self.session.sampler.switch.leave(joined, self.session);
    }
}

/// The window of a process; one context at a time.
#[derive(Debug, Default)]
pub struct Serial {
    gate: Gate,
    hold: Hold,
    context: AtomicUsize,
    /// `CLOCK_MONOTONIC` ns.
    opened: AtomicU64,
    /// Lowest id of a launch in the last window.
    first: AtomicU32,
    /// Before this, launches leave the gate alone.
    retry: AtomicU64,
}

impl Serial {
    /// Asks for a window.
    pub fn request(&self) {
        self.hold.request();
    }

    /// Takes the request back; false if a window is open.
    pub fn cancel(&self) -> bool {
        self.hold.cancel();
        self.hold.open().is_none()
    }

    /// A launch begins on this thread; whether it is inside a window. `is_on`: whether a context is sampled.
    pub fn before(&self, tools: Tools<'_>, is_on: impl Fn(CUcontext) -> bool) -> bool {
        self.gate.enter();
        if self.hold.is_requested()
            && self.may_shut()
            && let Some(context) = tools.driver.current_context()
            && is_on(context)
        {
            let opened = self.gate.alone(1, || self.open(tools, context));
            self.shut(opened == Some(true));
        }
        self.hold.open().is_some()
    }

    /// A launch that nobody wants to hear of, or a load, begins on this thread; [`Self::leave`] is its end.
    pub fn enter(&self) {
        self.gate.enter();
    }

    /// The end of [`Self::enter`] or [`Self::before`] without a look at the window: the thread has left its
    /// launch and cannot call CUPTI.
    pub fn leave(&self) {
        self.gate.leave();
    }

    fn may_shut(&self) -> bool {
        clock::monotonic_ns() >= self.retry.load(Ordering::Relaxed)
    }

    fn shut(&self, alone: bool) {
        let retry = match alone {
            true => 0,
            false => clock::monotonic_ns() + PATIENCE,
        };
        self.retry.store(retry, Ordering::Relaxed);
    }

    /// False if it should be tried again, but not at once.
    fn open(&self, tools: Tools<'_>, context: CUcontext) -> bool {
        if !self.hold.is_requested() {
            return true;
        }
        let Some(joined) = tools.join() else {
            return false;
        };
        if let Err(error) = tools.start(context) {
            tools.leave(joined);
            refusal::tell(error);
            self.hold.cancel();
            return true;
        }
        self.context.store(context.0.addr(), Ordering::Relaxed);
        self.first.store(u32::MAX, Ordering::Relaxed);
        self.opened.store(clock::monotonic_ns(), Ordering::Relaxed);
        // Taken back meanwhile, by somebody who found no window that he would have had to close.
        if !self.hold.begin(joined) {
            tools.stop(context);
            tools.leave(joined);
        }
        true
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

    /// A launch that was let in by [`Self::before`] returned, and has left: ends a window that is old enough.
    pub fn after(&self, tools: Tools<'_>) {
        if self.is_older(INTERVAL) && self.may_shut() {
            let closed = self.close_if_older(INTERVAL, tools);
            self.shut(closed);
        }
    }

    fn is_older(&self, age: u64) -> bool {
        self.hold.open().is_some()
            && clock::monotonic_ns().saturating_sub(self.opened.load(Ordering::Relaxed)) >= age
    }

    /// Ends a window that has been open for `age` ns; false if launches are inside all the time.
    pub fn close_if_older(&self, age: u64, tools: Tools<'_>) -> bool {
        if !self.is_older(age) {
            return true;
        }
        let closed = self.gate.alone(0, || {
            let Some(window) = self.hold.open().filter(|_| self.is_older(age)) else {
                return;
            };
            tools.stop(CUcontext(self.context.load(Ordering::Relaxed) as *mut _));
            // The context may have gone meanwhile, and the window with it.
            if let Some(joined) = self.hold.end(window) {
                tools.leave(joined);
            }
        });
        closed.is_some()
    }

    /// CUPTI was finalised, and a window with it; the switch was closed before.
    pub fn reset(&self) {
        self.hold.cancel();
        if let Some(window) = self.hold.open() {
            self.hold.end(window);
        }
    }

    /// A context is destroyed, and a window in it with it.
    pub fn destroyed(&self, session: &Session, context: CUcontext) {
        let Some(window) = self.hold.open() else {
            return;
        };
        if self.context.load(Ordering::Relaxed) == context.0.addr()
            && let Some(joined) = self.hold.end(window)
        {
            session.sampler.switch.leave(joined, session);
        }
    }
}
