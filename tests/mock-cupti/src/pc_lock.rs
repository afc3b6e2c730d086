//! CUPTI's lock of PC sampling, and contexts that are wanted beside it.
//!
//! Every call of PC sampling takes the lock; so does a launch, inside its context, once sampling is
//! on somewhere. Start, stop and disable then want the context for themselves (see the driver's
//! module `hold`). Measured on hardware: with any call inside that context, none of the two ever
//! returns, whichever thread calls. Here that ends the process with a message, or really does hang.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::api::{INVALID_CONTEXT, driver};
use crate::link::{DriverLink, Intruder};
use crate::pc_contexts::Contexts;
use crate::pc_script;

static LOCK: Mutex<Option<Contexts>> = Mutex::new(None);

/// The lock, held until dropped.
pub struct Locked(MutexGuard<'static, Option<Contexts>>);

/// Takes the lock.
pub fn lock() -> Locked {
    Locked(LOCK.lock().expect("nobody panics holding it"))
}

impl Locked {
    /// What it guards.
    pub fn contexts(&mut self) -> &mut Contexts {
        self.0.get_or_insert_default()
    }

    /// Takes a context for the caller, `name`, alone.
    pub fn take(&self, handle: *mut c_void, name: &str) -> Result<Alone, i32> {
        let driver = driver().ok_or(INVALID_CONTEXT)?;
        let mut intruder = Intruder {
            calls: 0,
            tid: 0,
            function: c"".as_ptr(),
        };
        let window = pc_script::get().window_ns;
        // SAFETY: the client's handle, checked by the driver; our own local.
        match unsafe { (driver.context_take)(handle, window, &raw mut intruder) } {
            0 => Ok(Alone { driver, handle }),
            1 => never_returns(name, &intruder),
            _ => Err(INVALID_CONTEXT),
        }
    }
}

/// A context that no other call is in; given back when dropped.
pub struct Alone {
    driver: &'static DriverLink,
    handle: *mut c_void,
}

impl Alone {
    /// Waits for the kernels that are queued.
    pub fn synchronize(&self) {
        loop {
            // SAFETY: the handle was good when the context was taken, and it cannot go meanwhile.
            let ready = unsafe { (self.driver.context_ready)(self.handle) };
            match ready.saturating_sub((self.driver.now)()) {
                0 => return,
                left => std::thread::sleep(Duration::from_nanos(left)),
            }
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { (self.driver.context_give_back)(self.handle) };
    }
}

fn never_returns(name: &str, intruder: &Intruder) -> ! {
    // SAFETY: static names of the driver's.
    let (function, tid) = unsafe { (CStr::from_ptr(intruder.function), libc::gettid()) };
    let others = match intruder.calls {
        0 | 1 => String::new(),
        calls => format!(" and {} more", calls - 1),
    };
    eprintln!(
        "simulated CUPTI: {name} on thread {tid} never returns: {} on thread {}{others} is inside its context",
        function.to_string_lossy(),
        intruder.tid
    );
    if pc_script::get().abort {
        std::process::abort()
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
