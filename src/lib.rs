//! `libparcagpu.so`: what lives inside the profiled process.
//!
//! Nothing leaves the process but through the USDT probes of provider `parcagpu`. The library is a
//! guest: it does nothing until CUDA is initialised, next to nothing until a consumer attaches to a
//! probe, and it neither prints nor aborts nor blocks.
//!
//! * [`hooks`], [`lifecycle`], [`loading`]: how it comes up, and what happens on fork and exit
//! * [`session`], [`machine`], [`watch`]: dormant, active, yielded; and our one thread
//! * [`cupti`]: the library the records come from
//! * [`cubin`]: the machine code of loaded modules
//! * [`sampling`], [`policy`], [`silence`]: which launches are sampled, and their records
//! * [`nvtx`]: the program's own ranges and marks
//! * [`probes`], [`metadata`], [`errors`], [`status`]: what consumers see
//! * [`sync`], [`sheltered`], [`patience`]: what lock-free parts are made of, locks that a forked child can take, and
//!   waiting with a bound
//! * [`config`], [`environment`], [`entry`], [`log`], [`clock`]: variables read and set, the way in from C,
//!   debug lines, time

pub mod clock;
pub mod config;
pub mod cubin;
pub mod cupti;
pub mod entry;
pub mod environment;
pub mod errors;
pub mod hooks;
pub mod lifecycle;
pub mod loading;
pub mod log;
pub mod machine;
pub mod metadata;
pub mod nvtx;
pub mod patience;
pub mod pc;
pub mod policy;
pub mod probes;
pub mod sampling;
pub mod session;
pub mod sheltered;
pub mod silence;
pub mod status;
pub mod sync;
pub mod watch;

/// Called by the driver, inside the first `cuInit`, when `CUDA_INJECTION64_PATH` names this library.
/// Idempotent and thread-safe; always 1, since a library that did nothing is no reason for the driver
/// to complain.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> std::ffi::c_int {
    // Inside cuInit the driver is not ready; where that is hooked, the hook starts when it is.
    if !hooks::boot::is_initialising() {
        entry::guarded((), || lifecycle::start(lifecycle::Way::Here));
    }
    1
}

/// Called by every NVTX client of the program, when `NVTX_INJECTION64_PATH` names this library. Idempotent
/// and thread-safe; always 1, since a client unmaps a library that says 0.
///
/// # Safety
/// `get` is null or a client's function that gives its tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    get: Option<nvtx::sys::GetExportTable>,
) -> std::ffi::c_int {
    // SAFETY: the caller's promise.
    unsafe { nvtx::initialize(get) }
}

/// Called for every extension module of every NVTX client. Nothing is served, and 1 says so: after 0 the
/// Python package would make no calls at all. Without this function a client would find that of a libcupti
/// that we link.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjectionNvtxExtension(
    _info: *mut std::ffi::c_void,
) -> std::ffi::c_int {
    1
}
