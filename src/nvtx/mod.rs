//! NVTX: the program's own words on the timeline. This library is an NVTX injection library.
//!
//! Every linked object of the program that contains NVTX is a client with a table of function pointers
//! of its own. A client calls [`initialize`] once or, when old, once per racing thread; we put our
//! functions into its table and keep nothing of it. From then on NVTX calls arrive on the program's
//! threads.
//!
//! * [`sys`], [`client`]: the client's tables and layouts, and how they are patched
//! * [`shim`]: one function per slot: ours first, then the next tool's
//! * [`collector`], [`batch`], [`slot`], [`text`]: from a call to an event in a batch of its thread
//! * [`timer`]: batches that are 100 ms old
//! * [`domains`], [`strings`], [`ranges`], [`names`], [`naming`]: what handles stand for, in all clients alike
//! * [`next`]: another injection library that gets every call after us
//! * [`launch`]: the CUDA launch that a thread has open
//! * [`process`], [`ending`]: forks and the end of the process
//!
//! Events are taken only while `nvtx_event_batch` has a consumer; names always. Nothing here calls CUDA
//! or NVTX, and no thread of the program waits for one that waits.

pub mod batch;
pub mod client;
pub mod collector;
pub mod domains;
pub mod ending;
pub mod launch;
pub mod names;
pub mod naming;
pub mod next;
pub mod process;
pub mod ranges;
pub mod shim;
pub mod slot;
pub mod strings;
pub mod sys;
pub mod table;
pub mod text;
pub mod timer;

use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::config::{self, Config};
use crate::cupti::locate::file_of;
use crate::entry::{self, Inside};
use crate::environment::Ours;
use crate::patience::Patience;
use crate::{errors, lifecycle, log, status};
use parcagpu_abi::status::{NVTX_ONLY, State};
use sys::GetExportTable;

/// Variable by which an NVTX client finds its tool.
const INJECTION: &str = "NVTX_INJECTION64_PATH";
/// How long a client waits for the one that came first and is loading the next tool.
const SET_UP_LIMIT: Duration = Duration::from_secs(2);

const FRESH: u8 = 0;
const SETTING_UP: u8 = 1;
const READY: u8 = 2;
static SET_UP: AtomicU8 = AtomicU8::new(FRESH);

/// A client attaches. Always 1: after 0 it would unmap a library whose threads may be running.
///
/// # Safety
/// `get` is null or the function that NVTX clients give their tool.
pub unsafe fn initialize(get: Option<GetExportTable>) -> c_int {
    // The tool we chain to may have a client of its own, which comes here from inside our own call.
    let again = entry::is_inside();
    entry::barrier((), || {
        let _inside = Inside::nested();
        if lifecycle::is_off() {
            if let (Some(get), Some(other)) = (get, other_copy()) {
                // SAFETY: the caller's promise.
                unsafe { other(get) };
            }
            return;
        }
        set_up(again);
        if let Some(get) = get {
            // SAFETY: the caller's promise.
            unsafe { client::patch(get) };
        }
        // A view that shows no kernel can then say what there is.
        status::explain(State::Absent, NVTX_ONLY);
    });
    1
}

/// The same function of the copy of this library that is in charge of the process, if another is.
fn other_copy() -> Option<unsafe extern "C" fn(GetExportTable) -> c_int> {
    if config::disabled() {
        return None;
    }
    // In the program's scope, as `lifecycle::is_off` looks for it.
    // SAFETY: the program's own handle, which is always open, and a terminated name.
    let status = unsafe {
        let program = libc::dlopen(std::ptr::null(), libc::RTLD_LAZY);
        libc::dlsym(program, c"parcagpu_status".as_ptr())
    };
    let file = file_of(status)?;
    let file = CString::new(file.into_os_string().into_vec()).ok()?;
    // Not by the name alone: a libcupti in front of it has such a function too.
    // SAFETY: a terminated name of a library that is there; the handle is not closed, so it stays.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: an open handle and a terminated name.
    let function = unsafe { libc::dlsym(handle, c"InitializeInjectionNvtx2".as_ptr()) };
    let ours = crate::InitializeInjectionNvtx2 as *const c_void;
    if function.is_null() || function.cast_const() == ours {
        return None;
    }
    // SAFETY: the function of that name has this type.
    Some(unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(GetExportTable) -> c_int>(function)
    })
}

fn set_up(again: bool) {
    if SET_UP
        .compare_exchange(FRESH, SETTING_UP, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        entry::silence_panics();
        log::remember_stderr();
        let (config, problems) = Config::from_environment();
        log::set_level(config.debug);
        for problem in &problems {
            errors::report(0, "configuration", &problem.0);
        }
        lifecycle::watch_forks();
        process::watch();
        if let Some(path) = &config.nvtx_next {
            load_next(path);
        }
        SET_UP.store(READY, Ordering::Release);
        return;
    }
    let mut patience = Patience::new(SET_UP_LIMIT);
    while !again && SET_UP.load(Ordering::Acquire) != READY && !patience.is_over() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// In a forked child: what another thread of the parent's was setting up is set up anew. Async-signal-safe.
pub fn forget_set_up() {
    let _ = SET_UP.compare_exchange(SETTING_UP, FRESH, Ordering::Relaxed, Ordering::Relaxed);
}

fn load_next(path: &Path) {
    match next::load(path) {
        Ok(()) => crate::debug_log!(1, "NVTX calls go on to {}", path.display()),
        Err(why) => errors::report(
            0,
            "nvtx",
            &format!("PARCAGPU_NVTX_NEXT={}: {why}", path.display()),
        ),
    }
}

/// Names this library to NVTX clients that have not looked for a tool yet, unless the user named one.
pub fn offer() {
    static OFFERED: Ours = Ours::new();
    if let Some(path) = lifecycle::own_path() {
        OFFERED.set(INJECTION, path.as_os_str());
    }
}
