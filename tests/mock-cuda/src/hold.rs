//! Who is inside a context.
//!
//! A driver call holds its context, together with others, while it works. `cuptiPCSamplingStart`,
//! `Stop` and `Disable` want it for themselves when they already have CUPTI's PC sampling lock,
//! which a launch asks for while it holds the context: measured, they never return when a call is
//! inside, and neither does the call. Here the one that comes too late is told who is inside, and
//! nobody waits.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::context::{self, Context};
use crate::entry::Function;
use crate::handle::Object;
use crate::link::Intruder;
use crate::settings::{self, Holds};
use crate::{log, timeline};

/// Set while one has the context for itself; the rest counts calls.
const TAKEN: u32 = 1 << 31;
/// How often a call looks whether the context is free again, ns.
const LOOK: u64 = 20_000;

/// The calls inside one context.
pub struct Hold {
    state: AtomicU32,
    tid: AtomicI32,
    function: AtomicPtr<c_char>,
}

/// A call inside; leaves when dropped.
pub struct Inside(&'static Hold);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hold {
    /// Nobody inside.
    pub fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            tid: AtomicI32::new(0),
            function: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Goes in; waits while one has the context for itself.
    pub fn enter(&'static self, function: &'static CStr) -> Inside {
        let free = |state| (state & TAKEN == 0).then_some(state + 1);
        while self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, free)
            .is_err()
        {
            timeline::sleep_until(timeline::now() + LOOK);
        }
        self.tid.store(log::tid(), Ordering::Relaxed);
        self.function
            .store(function.as_ptr().cast_mut(), Ordering::Relaxed);
        Inside(self)
    }

    /// Takes it for oneself; calls still get in for so many ns.
    fn take(&self, window: u64) -> Result<(), Intruder> {
        let inside = |state| Intruder {
            calls: state,
            tid: self.tid.load(Ordering::Relaxed),
            function: self.function.load(Ordering::Relaxed),
        };
        match self.state.load(Ordering::Acquire) {
            0 => timeline::sleep_until(timeline::now() + window),
            state => return Err(inside(state)),
        }
        self.state
            .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(inside)
    }

    fn give_back(&self) {
        self.state.fetch_and(!TAKEN, Ordering::AcqRel);
    }
}

/// For a call's body: holds the current context if the function is one that does.
pub fn enter(function: &'static Function) -> Option<Inside> {
    if needs(function.cbid)? > settings::get().holds {
        return None;
    }
    let context: &'static Context = context::current()?;
    Some(context.hold.enter(function.name))
}

/// From which setting on a function holds its context; none for those that have nothing to do with it.
fn needs(cbid: u32) -> Option<Holds> {
    match cbid {
        // Launches of kernels and graphs.
        307 | 442 | 477 | 478 | 514 | 515 | 652 | 653 => Some(Holds::Launches),
        // Modules, libraries and what is found in them: libraries are loaded when first used.
        18..=23 | 678..=683 => Some(Holds::Launches),
        // Waiting and asking whether one would have to.
        17 | 120 | 121 | 125 | 126 | 439 | 440 | 800 => Some(Holds::All),
        // Initialisation, look-ups, devices, names, capture states, and contexts: the destruction of
        // one holds it by itself.
        1..=16 | 135 | 235 | 259 | 303 | 304 | 322 | 323 | 324 | 372 | 373 | 386 | 387 | 392 => {
            None
        }
        482 | 483 | 499 | 500 | 544 | 566 | 626 | 647 | 673 | 677 | 718 | 719 | 737 | 757 => None,
        _ => Some(Holds::Calls),
    }
}

/// For CUPTI: see [`crate::link::DriverLink::context_take`].
pub unsafe extern "C" fn take(handle: *mut c_void, window: u64, intruder: *mut Intruder) -> i32 {
    // SAFETY: CUPTI passes on what its client got from the driver; the out-pointer is CUPTI's.
    unsafe {
        match Object::<Context>::get(handle.cast()).map(|context| context.hold.take(window)) {
            Ok(Ok(())) => 0,
            Ok(Err(who)) => {
                intruder.write(who);
                1
            }
            Err(_) => 2,
        }
    }
}

/// For CUPTI: the end of [`take`].
pub unsafe extern "C" fn give_back(handle: *mut c_void) {
    // SAFETY: as in `take`. The context cannot have gone: its destruction would have had to get in.
    if let Ok(context) = unsafe { Object::<Context>::get(handle.cast()) } {
        context.hold.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> &'static Hold {
        Box::leak(Box::new(Hold::new()))
    }

    #[test]
    fn nobody_gets_a_context_that_is_in_use() {
        let hold = fresh();
        let inside = (
            hold.enter(c"cuLaunchKernel"),
            hold.enter(c"cuLaunchKernelEx"),
        );
        let who = hold.take(0).unwrap_err();
        assert_eq!((who.calls, who.tid), (2, log::tid()));
        drop(inside);
        assert!(hold.take(0).is_ok());
    }

    #[test]
    fn calls_wait_for_the_one_that_has_it() {
        let hold = fresh();
        hold.take(0).unwrap();
        let waiting = std::thread::spawn(|| drop(hold.enter(c"cuLaunchKernel")));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!waiting.is_finished());
        hold.give_back();
        waiting.join().unwrap();
        assert!(hold.take(0).is_ok());
    }

    #[test]
    fn a_call_that_comes_in_between_is_seen() {
        let hold = fresh();
        let taking = std::thread::spawn(|| hold.take(2_000_000_000).is_err());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let _inside = hold.enter(c"cuLaunchKernel");
        assert!(taking.join().unwrap());
    }
}
