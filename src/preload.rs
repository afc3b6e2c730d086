//! What happens when the library is loaded by `LD_PRELOAD`.
//!
//! The constructor names this library in `CUDA_INJECTION64_PATH`, if nobody is named there, so that
//! the driver loads it when CUDA is initialised. Nothing else is done until then.

use std::os::unix::ffi::OsStrExt;

use crate::cupti::locate::file_of;
use crate::{config, entry, status};

/// Name of the variable by which the driver finds a library to load in `cuInit`.
const INJECTION: &str = "CUDA_INJECTION64_PATH";

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    entry::barrier((), || {
        let pid = std::process::id();
        status::block()
            .pid
            .store(pid, std::sync::atomic::Ordering::Relaxed);
        if config::disabled() || std::env::var_os(INJECTION).is_some() || !is_preloaded() {
            return;
        }
        if let Some(path) = file_of(constructor as *const std::ffi::c_void) {
            // SAFETY: constructors of preloaded libraries run before the program has threads.
            unsafe { std::env::set_var(INJECTION, path) };
        }
    });
}

/// Whether the loader was told to preload this file. A library that is loaded by the driver, or that
/// a program links, is not.
fn is_preloaded() -> bool {
    let Some(path) = file_of(constructor as *const std::ffi::c_void) else {
        return false;
    };
    let name = path.file_name().unwrap_or_default().as_bytes();
    std::env::var_os("LD_PRELOAD").is_some_and(|list| {
        list.as_bytes()
            .split(|b| *b == b':' || *b == b' ')
            .any(|entry| entry.rsplit(|b| *b == b'/').next() == Some(name))
    })
}
