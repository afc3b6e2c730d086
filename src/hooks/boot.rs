//! `cuInit` and the loads of code: the moments at which the session starts.
//!
//! The session starts after the driver said that it is initialised. A load or a launch that succeeds
//! means the same, should `cuInit` have been missed. Loads also show images to [`crate::cubin`].

use std::cell::Cell;
use std::ffi::{c_char, c_void};

use crate::cubin::modules;
use crate::cupti::sys::{CUDA_SUCCESS, CUresult};
use crate::entry;
use crate::lifecycle::{self, Way};
use crate::loading;

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
    entry::guarded((), || {
        lifecycle::start(match loading::on_this_thread() {
            true => Way::Here,
            false => Way::Aside,
        });
    });
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

/// A load that succeeded: what it loaded is seen, if anybody wants that.
///
/// # Safety
/// After success the driver has written `handle`.
unsafe fn after_load(result: CUresult, handle: *mut Ptr, see: impl FnOnce(Ptr)) -> CUresult {
    after(result);
    if result == CUDA_SUCCESS && super::CUDA.wants(super::IMAGES) && !handle.is_null() {
        entry::guarded((), || {
            // SAFETY: by the caller's promise.
            see(unsafe { *handle });
        });
    }
    result
}

type LoadFile = unsafe extern "C" fn(*mut Ptr, *const c_char) -> CUresult;
type LoadData = unsafe extern "C" fn(*mut Ptr, *const c_void) -> CUresult;
type LoadDataEx = unsafe extern "C" fn(*mut Ptr, *const c_void, u32, Ptr, Ptr) -> CUresult;
type LibraryLoad<T> =
    unsafe extern "C" fn(*mut Ptr, *const T, Ptr, Ptr, u32, Ptr, Ptr, u32) -> CUresult;

/// `cuModuleLoad`.
///
/// # Safety
/// As for the original.
pub unsafe fn module_load(original: LoadFile, module: *mut Ptr, file: *const c_char) -> CUresult {
    // SAFETY: the program's own call; the driver has read the name.
    unsafe {
        let result = original(module, file);
        after_load(result, module, |handle| modules::on_file(handle, file))
    }
}

/// `cuModuleLoadData` and `cuModuleLoadFatBinary`.
///
/// # Safety
/// As for the original.
pub unsafe fn module_load_data(
    original: LoadData,
    module: *mut Ptr,
    image: *const c_void,
) -> CUresult {
    // SAFETY: the program's own call.
    unsafe {
        let result = original(module, image);
        after_load(result, module, |handle| modules::on_image(handle, image))
    }
}

/// `cuModuleLoadDataEx`.
///
/// # Safety
/// As for the original.
pub unsafe fn module_load_data_ex(
    original: LoadDataEx,
    module: *mut Ptr,
    image: *const c_void,
    count: u32,
    options: Ptr,
    values: Ptr,
) -> CUresult {
    // SAFETY: the program's own call.
    unsafe {
        let result = original(module, image, count, options, values);
        after_load(result, module, |handle| modules::on_image(handle, image))
    }
}

/// `cuLibraryLoadData`.
///
/// # Safety
/// As for the original.
#[expect(clippy::too_many_arguments, reason = "the driver's")]
pub unsafe fn library_load_data(
    original: LibraryLoad<c_void>,
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
    unsafe {
        let result = original(
            library, code, jit, jit_values, jit_count, options, values, count,
        );
        after_load(result, library, |handle| modules::on_image(handle, code))
    }
}

/// `cuLibraryLoadFromFile`.
///
/// # Safety
/// As for the original.
#[expect(clippy::too_many_arguments, reason = "the driver's")]
pub unsafe fn library_load_from_file(
    original: LibraryLoad<c_char>,
    library: *mut Ptr,
    file: *const c_char,
    jit: Ptr,
    jit_values: Ptr,
    jit_count: u32,
    options: Ptr,
    values: Ptr,
    count: u32,
) -> CUresult {
    // SAFETY: the program's own call; the driver has read the name.
    unsafe {
        let result = original(
            library, file, jit, jit_values, jit_count, options, values, count,
        );
        after_load(result, library, |handle| modules::on_file(handle, file))
    }
}

/// `cuModuleUnload` and `cuLibraryUnload`.
///
/// # Safety
/// As for the original.
pub unsafe fn unload(original: unsafe extern "C" fn(Ptr) -> CUresult, handle: Ptr) -> CUresult {
    // SAFETY: the program's own call.
    let result = unsafe { original(handle) };
    if result == CUDA_SUCCESS {
        entry::guarded((), || modules::on_unload(handle));
    }
    result
}
