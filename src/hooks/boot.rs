//! `cuInit` and the loads of code: the moments at which the session starts.
//!
//! The session starts after the driver said that it is initialised. A load or a launch that succeeds
//! means the same, should `cuInit` have been missed.

use std::cell::Cell;
use std::ffi::{c_char, c_void};

use crate::cupti::sys::{CUDA_SUCCESS, CUresult};
use crate::{entry, lifecycle};

type Ptr = *mut c_void;

thread_local! {
    // No destructor: usable while a thread ends.
    static IN_INIT: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a `cuInit` that is hooked, so that the session starts when it returns.
pub fn is_initialising() -> bool {
    IN_INIT.get()
}

/// The driver works: start, if nothing has started yet.
pub fn driver_works() {
    entry::guarded((), lifecycle::start);
}

fn after(result: CUresult) -> CUresult {
    if result == CUDA_SUCCESS {
        driver_works();
    }
    result
}

/// `cuInit`.
///
/// # Safety
/// As for the original.
pub unsafe fn init(original: unsafe extern "C" fn(u32) -> CUresult, flags: u32) -> CUresult {
    let outer = IN_INIT.replace(true);
    // SAFETY: the program's own call.
    let result = unsafe { original(flags) };
    IN_INIT.set(outer);
    after(result)
}

/// `cuModuleLoad`.
///
/// # Safety
/// As for the original.
pub unsafe fn module_load(
    original: unsafe extern "C" fn(*mut Ptr, *const c_char) -> CUresult,
    module: *mut Ptr,
    file: *const c_char,
) -> CUresult {
    // SAFETY: the program's own call.
    after(unsafe { original(module, file) })
}

/// `cuModuleLoadData` and `cuModuleLoadFatBinary`.
///
/// # Safety
/// As for the original.
pub unsafe fn module_load_data(
    original: unsafe extern "C" fn(*mut Ptr, *const c_void) -> CUresult,
    module: *mut Ptr,
    image: *const c_void,
) -> CUresult {
    // SAFETY: the program's own call.
    after(unsafe { original(module, image) })
}

/// `cuModuleLoadDataEx`.
///
/// # Safety
/// As for the original.
pub unsafe fn module_load_data_ex(
    original: unsafe extern "C" fn(*mut Ptr, *const c_void, u32, Ptr, Ptr) -> CUresult,
    module: *mut Ptr,
    image: *const c_void,
    count: u32,
    options: Ptr,
    values: Ptr,
) -> CUresult {
    // SAFETY: the program's own call.
    after(unsafe { original(module, image, count, options, values) })
}

/// `cuLibraryLoadData` and `cuLibraryLoadFromFile`.
///
/// # Safety
/// As for the original.
#[expect(clippy::too_many_arguments, reason = "the driver's")]
pub unsafe fn library_load(
    original: unsafe extern "C" fn(
        *mut Ptr,
        *const c_void,
        Ptr,
        Ptr,
        u32,
        Ptr,
        Ptr,
        u32,
    ) -> CUresult,
    library: *mut Ptr,
    code: *const c_void,
    jit: Ptr,
    jit_values: Ptr,
    jit_count: u32,
    options: Ptr,
    values: Ptr,
    count: u32,
) -> CUresult {
    // SAFETY: the program's own call.
    after(unsafe {
        original(
            library, code, jit, jit_values, jit_count, options, values, count,
        )
    })
}
