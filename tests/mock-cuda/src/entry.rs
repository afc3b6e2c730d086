//! Exported functions and what surrounds every call.
//!
//! `driver_api!` turns one line per function into three things: an entry whose first bytes are
//! the real driver's (hooks patch and relocate them), the `_params` struct that callbacks see, and
//! the call of the body inside [`run`]: state checks, scripted results, callbacks, log.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use crate::error::{Error, NOT_INITIALIZED, Outcome, STUB_LIBRARY};
use crate::link::{API_CBIDS, ApiCall, DOMAIN_DRIVER, DOMAIN_RUNTIME};
use crate::{context, export, faults, hold, init, log, settings};

/// Callback id of `cuInit`.
const INIT: u32 = 1;
/// Callback id of `cuGetExportTable`, which knows no table but CUPTI's.
const EXPORT_TABLE: u32 = 135;

/// Compared by every entry with the number the real driver uses; nothing ever depends on it.
pub static ENTRY_STATE: AtomicI32 = AtomicI32::new(0);

/// A function as callbacks and the log know it.
pub struct Function {
    /// Its exported name.
    pub name: &'static CStr,
    /// Its callback id.
    pub cbid: u32,
    /// Works before `cuInit`.
    pub early: bool,
}

/// Declares exported driver functions, see the module's documentation.
///
/// `fn NAME[CBID] (ARGUMENTS) |call| BODY;` where the body is an `Outcome` expression that may use
/// the arguments; `[CBID, early]` for functions that work before `cuInit`, `kernel(EXPR)` after the
/// arguments for the handle whose kernel name the callbacks carry.
#[macro_export]
macro_rules! driver_api {
    (@early) => { false };
    (@early early) => { true };
    (@symbol) => { std::ptr::null() };
    (@symbol $kernel:expr) => { $crate::module::symbol($kernel) };
    (@entry $(#[$attribute:meta])* $entry:ident) => {
        #[unsafe(naked)]
        $(#[$attribute])*
        pub unsafe extern "C" fn $entry() {
            std::arch::naked_asm!(
                // The driver's own first instructions, 20 bytes.
                "push rbp",
                "mov rbp, rsp",
                "push r12",
                "sub rsp, 8",
                "cmp dword ptr [rip + {state}], 0x321cba00",
                "je 2f",
                "2:",
                // Back to the state at entry: stack arguments stay where the ABI has them.
                "add rsp, 8",
                "pop r12",
                "pop rbp",
                "jmp {implementation}",
                state = sym $crate::entry::ENTRY_STATE,
                implementation = sym implementation,
            )
        }
    };
    ($( fn $name:ident [ $cbid:expr $(, $early:ident)? ] ( $($arg:ident : $ty:ty),* $(,)? )
        $(kernel($kernel:expr))? |$call:ident| $body:expr ; )*) => { $(
        #[allow(non_snake_case, reason = "the driver's names")]
        #[allow(clippy::undocumented_unsafe_blocks, reason = "callers' pointers, trusted as the real driver does")]
        pub mod $name {
            #[allow(unused_imports, reason = "not every function needs them")]
            use super::*;

            driver_api!(@entry #[unsafe(no_mangle)] $name);
            driver_api!(@entry copy);

            #[allow(clippy::too_many_arguments, reason = "the driver's signatures")]
            // A signal handler may end the thread in here.
            unsafe extern "C-unwind" fn implementation($($arg: $ty),*) -> i32 {
                #[repr(C)]
                struct Params { $($arg: $ty),* }
                static FUNCTION: $crate::entry::Function = $crate::entry::Function {
                    name: match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a NUL ends the name"),
                    },
                    cbid: $cbid,
                    early: driver_api!(@early $($early)?),
                };
                let params = Params { $($arg),* };
                #[allow(unused_variables, reason = "functions without arguments")]
                let log_arguments = |line: &mut String| { $( $crate::log::LogArg::write(&params.$arg, line); )* };
                $crate::entry::run(
                    &FUNCTION,
                    std::ptr::from_ref(&params).cast(),
                    || driver_api!(@symbol $($kernel)?),
                    log_arguments,
                    |$call| $body,
                )
            }
        }
    )*
        /// A second entry of every function, not exported (see `MOCK_CUDA_COPIES`).
        pub const COPIES: &[(&str, unsafe extern "C" fn())] = &[ $( (stringify!($name), $name::copy) ),* ];
    };
}

thread_local! {
    /// The runtime call that this thread is in: its correlation id is also that of the driver calls inside.
    static OUTER: Cell<Option<u32>> = const { Cell::new(None) };
}

fn callbacks(domain: u32, cbid: u32) -> &'static AtomicU8 {
    let table = if domain == DOMAIN_DRIVER {
        &export::LINK.driver_callbacks
    } else {
        &export::LINK.runtime_callbacks
    };
    &table[cbid as usize % API_CBIDS]
}

/// One driver call: `body` between the callbacks, unless a result is scripted.
pub fn run(
    function: &'static Function,
    params: *const c_void,
    symbol: impl Fn() -> *const c_char,
    log_arguments: impl Fn(&mut String),
    body: impl FnOnce(&mut ApiCall) -> Outcome,
) -> i32 {
    let result = if settings::get().stub {
        STUB_LIBRARY.0
    } else if !function.early && !init::usable() {
        NOT_INITIALIZED.0
    } else {
        let scripted = name_of(function).and_then(faults::check);
        with_callbacks(
            DOMAIN_DRIVER,
            function,
            params,
            symbol,
            |call| match scripted {
                Some(0) | None => {
                    name_of(function).into_iter().for_each(faults::raise);
                    // Callbacks come outside: CUPTI's clients call the driver from them.
                    let _inside = hold::enter(function);
                    body(call)
                }
                Some(code) => Err(Error(code)),
            },
        )
    };
    // CUPTI's own look for its driver is no call of the program's.
    if log::on() && !(function.cbid == EXPORT_TABLE && result == 0) {
        let mut line = format!("{} tid={}", name_of(function).unwrap_or("?"), log::tid());
        log_arguments(&mut line);
        line.push_str(&format!(" = {result}"));
        log::append(&line);
    }
    result
}

/// One runtime call: driver calls inside it share its correlation id.
pub fn run_runtime(
    function: &'static Function,
    params: *const c_void,
    symbol: impl Fn() -> *const c_char,
    body: impl FnOnce() -> i32,
) -> i32 {
    with_callbacks(DOMAIN_RUNTIME, function, params, symbol, |call| {
        if let Some(tool) = export::tool() {
            // SAFETY: the call is ours and lives here.
            unsafe { (tool.correlate)(call) };
        }
        let before = OUTER.replace((call.correlated != 0).then_some(call.correlation_id));
        let result = body();
        OUTER.set(before);
        if result == 0 {
            Ok(())
        } else {
            Err(Error(result))
        }
    })
}

fn name_of(function: &Function) -> Option<&'static str> {
    function.name.to_str().ok()
}

fn with_callbacks(
    domain: u32,
    function: &'static Function,
    params: *const c_void,
    symbol: impl Fn() -> *const c_char,
    body: impl FnOnce(&mut ApiCall) -> Outcome,
) -> i32 {
    let mut call = ApiCall {
        domain,
        cbid: function.cbid,
        name: function.name.as_ptr(),
        params,
        symbol: std::ptr::null(),
        context: std::ptr::null_mut(),
        context_id: 0,
        correlation_id: OUTER.get().unwrap_or(0),
        correlated: u32::from(OUTER.get().is_some()),
        correlation_data: 0,
        result: 0,
    };
    let wanted = callbacks(domain, function.cbid);
    let mut entered = false;
    if wanted.load(Ordering::Relaxed) != 0
        && let Some(tool) = export::tool()
    {
        entered = true;
        call.symbol = symbol();
        fill_context(&mut call);
        // SAFETY: the call outlives the callback.
        unsafe { (tool.enter)(&raw mut call) };
    }
    call.result = match body(&mut call) {
        Ok(()) => 0,
        Err(error) => error.0,
    };
    // Looked at again: a callback may have been turned on or off while the call ran. The first
    // `cuInit` is different: turned on from the injected library, it has no exit (measured).
    if (entered || function.cbid != INIT || domain != DOMAIN_DRIVER)
        && wanted.load(Ordering::Relaxed) != 0
        && let Some(tool) = export::tool()
    {
        call.symbol = symbol();
        fill_context(&mut call);
        // SAFETY: as above.
        unsafe { (tool.exit)(&raw mut call) };
    }
    call.result
}

fn fill_context(call: &mut ApiCall) {
    if let Some(current) = context::current() {
        call.context = current.handle().cast();
        call.context_id = current.id;
    }
}
