//! SIGINT, SIGTERM and SIGHUP end a view in order; how often and which is kept in two atomics.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);

/// After so many we end at once: we may be writing into a pipe that nobody reads.
const PATIENCE: u32 = 3;

extern "C" fn note(signal: libc::c_int) {
    LAST.store(signal, Ordering::Relaxed);
    if COUNT.fetch_add(1, Ordering::Relaxed) >= PATIENCE {
        // SAFETY: _exit may be called in a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// Takes the signals over. A child we start gets the default handling back by exec.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: sigaction is plain data, valid as zeros (empty mask, no flags).
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler only touches atomics, which is safe in a signal handler.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// How many of them came.
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// The last one, 0: none.
pub fn last() -> i32 {
    LAST.load(Ordering::Relaxed)
}
