//! What surrounds every CUPTI call: the driver behind it, scripted results, the lock, the log.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex};

use crate::link::{DriverLink, LINK_UUID, LINK_VERSION};
use crate::{callbacks, settings};

/// `CUptiResult`.
pub const SUCCESS: i32 = 0;
/// Wrong argument.
pub const INVALID_PARAMETER: i32 = 1;
/// Not a context.
pub const INVALID_CONTEXT: i32 = 3;
/// Not now.
pub const INVALID_OPERATION: i32 = 7;
/// No room.
pub const OUT_OF_MEMORY: i32 = 8;
/// The caller's size is too small.
pub const SIZE_NOT_SUFFICIENT: i32 = 10;
/// No further record.
pub const MAX_LIMIT_REACHED: i32 = 12;
/// Not this kind of record.
pub const NOT_COMPATIBLE: i32 = 14;
/// Not a stream.
pub const INVALID_STREAM: i32 = 20;
/// Not a kind of record.
pub const INVALID_KIND: i32 = 21;
/// Somebody has subscribed already.
pub const MULTIPLE_SUBSCRIBERS: i32 = 39;
/// Anything else; also: the driver is not the simulated one.
pub const UNKNOWN: i32 = 999;

static FINALIZED: AtomicBool = AtomicBool::new(false);
static LINK: AtomicPtr<DriverLink> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
    /// Callbacks of the client's that are open on this thread.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
    /// How often this thread holds the lock.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// The driver's table; `None` when the process's driver is not the simulated one, or there is none.
pub fn driver() -> Option<&'static DriverLink> {
    let known = LINK.load(Ordering::Acquire);
    let link = if known.is_null() {
        find_driver()
    } else {
        known
    };
    // SAFETY: null or the driver's static table; the driver is never unloaded (its handle stays open).
    unsafe { link.as_ref() }
}

fn find_driver() -> *mut DriverLink {
    // SAFETY: the symbol has this signature in every driver; an unknown UUID makes it fail.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY);
        if library.is_null() {
            return std::ptr::null_mut();
        }
        let symbol = libc::dlsym(library, c"cuGetExportTable".as_ptr());
        if symbol.is_null() {
            return std::ptr::null_mut();
        }
        let export_table = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*mut *mut DriverLink, *const [u8; 16]) -> i32,
        >(symbol);
        let mut link = std::ptr::null_mut();
        if export_table(&raw mut link, &LINK_UUID) != 0 || link.is_null() {
            return std::ptr::null_mut();
        }
        if (*link).size != size_of::<DriverLink>() || (*link).version != LINK_VERSION {
            return std::ptr::null_mut();
        }
        (*link)
            .tool
            .store((&raw const callbacks::TOOL).cast_mut(), Ordering::Release);
        LINK.store(link, Ordering::Release);
        link
    }
}

/// The lock that `MOCK_CUPTI_LOCK` puts around every call and callback.
struct Gate {
    taken: Mutex<bool>,
    free: Condvar,
}

static GATE: Gate = Gate {
    taken: Mutex::new(false),
    free: Condvar::new(),
};

/// Holds the lock until dropped.
pub struct Held(());

/// Takes the lock, if one is asked for. Its holder passes: a client may call CUPTI from a callback,
/// as it may the real one.
pub fn hold() -> Option<Held> {
    if !settings::get().lock {
        return None;
    }
    if HELD.get() > 0 {
        HELD.set(HELD.get() + 1);
        return Some(Held(()));
    }
    let mut taken = GATE.taken.lock().expect("nobody panics holding it");
    while *taken {
        taken = GATE.free.wait(taken).expect("nobody panics holding it");
    }
    *taken = true;
    HELD.set(1);
    Some(Held(()))
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(HELD.get().saturating_sub(1));
        if HELD.get() == 0 {
            *GATE.taken.lock().expect("nobody panics holding it") = false;
            GATE.free.notify_one();
        }
    }
}

/// Calls the client: with the lock held, if one is asked for.
pub fn call_client(call: impl FnOnce()) {
    let _held = hold();
    CALLBACKS.set(CALLBACKS.get() + 1);
    call();
    CALLBACKS.set(CALLBACKS.get() - 1);
}

/// Whether the client calls from one of its callbacks.
pub fn in_callback() -> bool {
    CALLBACKS.get() > 0
}

/// Remembers that `cuptiFinalize` was called.
pub fn finalize() {
    FINALIZED.store(true, Ordering::Release);
}

/// The calling thread's last failure, cleared.
pub fn take_last_error() -> i32 {
    LAST_ERROR.replace(0)
}

/// One call. `driverless` calls work without any driver, as they do up to CUDA 13.1.
pub fn call(
    name: &str,
    driverless: bool,
    log_arguments: impl Fn(&mut String),
    body: impl FnOnce() -> i32,
) -> i32 {
    if settings::get().strict && FINALIZED.load(Ordering::Acquire) {
        eprintln!("simulated CUPTI: {name} called after cuptiFinalize");
        std::process::abort();
    }
    let held = hold();
    let driver = driver();
    // SAFETY: a static name.
    let scripted = driver.map_or(i32::MIN, |driver| unsafe {
        (driver.fault)(name.as_ptr(), name.len())
    });
    let result = match (scripted, driver) {
        (i32::MIN | 0, None) if !driverless => UNKNOWN,
        (i32::MIN | 0, _) => body(),
        (code, _) => code,
    };
    drop(held);
    if result != SUCCESS && result != MAX_LIMIT_REACHED {
        LAST_ERROR.set(result);
    }
    if let Some(driver) = driver
        && (driver.logging)() != 0
    {
        // SAFETY: plain system call.
        let mut line = format!("{name} tid={}", unsafe { libc::gettid() });
        log_arguments(&mut line);
        let _ = write!(line, " = {result}");
        // SAFETY: our own string.
        unsafe { (driver.log)(line.as_ptr(), line.len()) };
    }
    result
}

/// An argument in the log: pointers are `null` or `ptr`.
pub trait LogArg {
    /// Writes the value.
    fn write(&self, line: &mut String);
}

macro_rules! log_numbers {
    ($($ty:ty),*) => { $(
        impl LogArg for $ty {
            fn write(&self, line: &mut String) {
                let _ = write!(line, " {self}");
            }
        }
    )* };
}
log_numbers!(i32, u32, u64, usize, u8);

impl<T> LogArg for *const T {
    fn write(&self, line: &mut String) {
        line.push_str(if self.is_null() { " null" } else { " ptr" });
    }
}

impl<T> LogArg for *mut T {
    fn write(&self, line: &mut String) {
        self.cast_const().write(line);
    }
}

impl<T> LogArg for Option<T> {
    fn write(&self, line: &mut String) {
        line.push_str(if self.is_none() { " null" } else { " ptr" });
    }
}

/// Declares exported CUPTI functions: `fn NAME(ARGUMENTS) BODY`, the body an `i32`; `[driverless]`
/// after the name for those that work without a driver.
#[macro_export]
macro_rules! cupti_api {
    (@flag) => { false };
    (@flag driverless) => { true };
    ($( $(#[$doc:meta])* fn $name:ident $([ $flag:ident ])? ( $($arg:ident : $ty:ty),* $(,)? ) $body:block )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the real function: pointers are null or good for their use.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "CUPTI's names")]
        #[allow(clippy::undocumented_unsafe_blocks, reason = "callers' pointers, trusted as the real library does")]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
            #[allow(unused_variables, reason = "functions without arguments")]
            let log_arguments = |line: &mut String| { $( $crate::api::LogArg::write(&$arg, line); )* };
            $crate::api::call(stringify!($name), cupti_api!(@flag $($flag)?), log_arguments, || $body)
        }
    )* };
}

/// Next correlation id; wraps, and skips nothing.
pub fn next_correlation() -> u32 {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    (NEXT.fetch_add(1, Ordering::Relaxed) as u32).wrapping_add(settings::get().first_correlation)
}
