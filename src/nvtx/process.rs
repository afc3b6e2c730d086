//! Forks and the end of the process, as the rest of this module sees them.
//!
//! A forked child has a copy of everything but the threads. It counts one [`generation`] more; whatever
//! belongs to an older one was some thread's of the parent and is dropped or made anew when it is met.
//! No lock of the parent is ever taken in the child.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use parcagpu_abi::status::Counter;

use super::{batch, ending, timer};
use crate::{entry, errors, status};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);

/// How many forks lie between this process and the one that attached first.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Whether batches have been flushed for the last time, so that events are fired at once.
#[inline]
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// The same, asked right after something was put into a slot: one of both sees the other.
#[inline]
pub fn has_begun_to_end() -> bool {
    ending::has_begun(&ENDING)
}

/// Registers the handlers; called once.
pub fn watch() {
    // SAFETY: functions of ours, which are never unmapped; the child's does only what it may.
    unsafe {
        libc::pthread_atfork(None, None, Some(on_fork_child));
        libc::atexit(on_exit);
    }
}

/// Async-signal-safe: atomics only.
unsafe extern "C" fn on_fork_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    timer::forget();
    batch::forget();
    let block = status::block();
    for counter in [Counter::NvtxEvents, Counter::NvtxDropped] {
        block.counters[counter as usize].store(0, Ordering::Relaxed);
    }
}

extern "C" fn on_exit() {
    ending::begin(&ENDING);
    entry::guarded((), batch::finish);
}

/// Tells an error the first time, but not in a forked child, where the log's lock may be held by nobody.
pub fn report_once(told: &AtomicBool, message: &str) {
    if generation() == 0 && !told.swap(true, Ordering::Relaxed) {
        errors::report(0, "nvtx", message);
    }
}

/// Something behind a lock, empty again in a forked child. The lock is held for memory operations only.
pub struct PerProcess<T: Default + Send + 'static>(AtomicPtr<Born<T>>);

struct Born<T> {
    generation: u32,
    value: Mutex<T>,
}

impl<T: Default + Send + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default + Send + 'static> PerProcess<T> {
    /// Not there yet.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// This process's value. A parent's is left where it is: its lock may be held for ever.
    pub fn lock(&self) -> MutexGuard<'static, T> {
        let generation = generation();
        let mut here = self.0.load(Ordering::Acquire);
        // SAFETY: published by an exchange, never freed.
        if unsafe { here.as_ref() }.is_none_or(|born| born.generation != generation) {
            let fresh = Box::into_raw(Box::new(Born {
                generation,
                value: Mutex::new(T::default()),
            }));
            match self
                .0
                .compare_exchange(here, fresh, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => here = fresh,
                Err(theirs) => {
                    // SAFETY: made above and published nowhere.
                    drop(unsafe { Box::from_raw(fresh) });
                    here = theirs;
                }
            }
        }
        // SAFETY: as above; not null, since either exchange or reader saw a value.
        let born: &'static Born<T> = unsafe { &*here };
        born.value.lock().unwrap_or_else(|e| e.into_inner())
    }
}
