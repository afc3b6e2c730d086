//! `cuInit`, the injection protocol, and what fork leaves.
//!
//! The first successful `cuInit` loads the library named by `CUDA_INJECTION64_PATH` and calls its
//! `InitializeInjection` before it returns, whatever comes of it. Measured: other calls made from in
//! there return 3; a `cuInit` returns 0, but then the outer one and every later one return 3. A
//! forked child of an initialised process gets 3 from every call, `cuInit` included.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::driver_api;
use crate::error::{INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, Outcome};
use crate::{export, log, settings, timeline};

const FRESH: u32 = 0;
const RUNNING: u32 = 1;
const DONE: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(FRESH);
/// Thread that runs the first `cuInit`: it may call in again from the injected library.
static INITIALIZER: AtomicI32 = AtomicI32::new(0);
/// The injected library is being asked.
static INJECTING: AtomicBool = AtomicBool::new(false);
/// It called `cuInit`.
static SPOILED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether calls other than the early ones may do their work.
pub fn usable() -> bool {
    STATE.load(Ordering::Acquire) == DONE && !lost()
}

/// For CUPTI: whether `cuInit` has returned success.
pub extern "C" fn initialized() -> i32 {
    i32::from(usable())
}

driver_api! {
    fn cuInit[1, early] (flags: u32) |_call| init(flags);
    fn cuDriverGetVersion[2, early] (version: *mut i32) |_call| {
        if version.is_null() {
            Err(INVALID_VALUE)
        } else {
            // SAFETY: the caller's pointer, as in the real call.
            unsafe { *version = settings::get().version };
            Ok(())
        }
    };
}

fn init(flags: u32) -> Outcome {
    if lost() {
        return Err(NOT_INITIALIZED);
    }
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if settings::get().devices == 0 {
        return Err(NO_DEVICE);
    }
    if STATE
        .compare_exchange(FRESH, RUNNING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        while STATE.load(Ordering::Acquire) == RUNNING
            && INITIALIZER.load(Ordering::Acquire) != log::tid()
        {
            timeline::sleep_until(timeline::now() + 50_000);
        }
        if INJECTING.load(Ordering::Acquire) && INITIALIZER.load(Ordering::Acquire) == log::tid() {
            SPOILED.store(true, Ordering::Release);
        }
        return Ok(());
    }
    INITIALIZER.store(log::tid(), Ordering::Release);
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    if settings::get().init_reenters {
        reenter();
    }
    INJECTING.store(true, Ordering::Release);
    inject();
    INJECTING.store(false, Ordering::Release);
    STATE.store(DONE, Ordering::Release);
    if lost() {
        return Err(NOT_INITIALIZED);
    }
    export::resource(
        export::CU_INIT_FINISHED,
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        std::ptr::null(),
    );
    Ok(())
}

/// Whether nothing will ever work again in this process.
fn lost() -> bool {
    FORKED.load(Ordering::Relaxed)
        || SPOILED.load(Ordering::Relaxed) && !INJECTING.load(Ordering::Relaxed)
}

unsafe extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

fn inject() {
    let path = settings::text("CUDA_INJECTION64_PATH");
    if path.is_empty() {
        return;
    }
    let Ok(path) = CString::new(path) else { return };
    // SAFETY: loading and calling what the user named is the protocol; failures are ignored.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY);
        if library.is_null() {
            return;
        }
        let symbol = libc::dlsym(library, c"InitializeInjection".as_ptr());
        if !symbol.is_null() {
            let initialize =
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(symbol);
            initialize();
        }
    }
}

/// Older drivers look up their own functions: through the handle of the library, then in the
/// default scope. A hook that answers either with itself must not recurse.
fn reenter() {
    // SAFETY: both symbols, when found, are `cuInit`.
    unsafe {
        let own = libc::dlopen(
            c"libcuda.so.1".as_ptr(),
            libc::RTLD_LAZY | libc::RTLD_NOLOAD,
        );
        for scope in [own, libc::RTLD_DEFAULT] {
            let symbol = libc::dlsym(scope, c"cuInit".as_ptr());
            if !symbol.is_null() {
                let init =
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> i32>(symbol);
                init(0);
            }
        }
    }
}
