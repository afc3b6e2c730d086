//! `cuInit` and the loads of code: the moments at which the session starts.
//!
//! The session starts after the driver said that it is initialised. A load or a launch that succeeds
//! means the same, should `cuInit` have been missed. Loads also show images to [`crate::cubin`].

use std::cell::Cell;
use std::ffi::{c_char, c_void};

use parcagpu_interpose::{Handler, Next};

use super::{installed, launch};
use crate::cubin::modules::{self, Leaving};
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

fn after(result: CUresult) {
    if result == CUDA_SUCCESS {
        driver_works();
    }
}

/// `cuInit`.
pub struct Init;

impl Handler<(u32,), CUresult> for Init {
    /// Whether this thread was inside another one.
    type Open = bool;

    unsafe fn before(_frame: usize, flags: (u32,)) -> Next<(u32,), CUresult, bool> {
        // This hook is a way in; the driver need not look for another.
        entry::barrier((), installed::withdraw);
        Next::Call(flags, IN_INIT.replace(true))
    }

    unsafe fn after(outer: bool, _flags: (u32,), result: CUresult) {
        IN_INIT.set(outer);
        after(result);
    }
}

/// A load that succeeded: what it loaded is seen, if anybody wants that.
///
/// # Safety
/// After success the driver has written `handle`.
unsafe fn after_load(result: CUresult, handle: *mut Ptr, see: impl FnOnce(Ptr)) {
    after(result);
    if result == CUDA_SUCCESS && super::CUDA.wants(super::IMAGES) && !handle.is_null() {
        entry::guarded((), || {
            // SAFETY: by the caller's promise.
            see(unsafe { *handle });
        });
    }
}

macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident($handle:ident: *mut Ptr, $image:ident: $image_ty:ty $(, $rest:ty)*) => $see:path;)*) => {
        $(
            $(#[$doc])*
            pub struct $name;

            impl Handler<(*mut Ptr, $image_ty, $($rest),*), CUresult> for $name {
                type Open = bool;

                unsafe fn before(
                    frame: usize,
                    arguments: (*mut Ptr, $image_ty, $($rest),*),
                ) -> Next<(*mut Ptr, $image_ty, $($rest),*), CUresult, bool> {
                    Next::Call(arguments, launch::before_load(frame))
                }

                unsafe fn after(
                    counted: bool,
                    arguments: (*mut Ptr, $image_ty, $($rest),*),
                    result: CUresult,
                ) {
                    launch::after_load(counted);
                    let ($handle, $image) = (arguments.0, arguments.1);
                    #[allow(unused_unsafe, reason = "files are named by strings that have to be good")]
                    // SAFETY: the driver accepted the arguments.
                    unsafe {
                        after_load(result, $handle, |handle| $see(handle, $image))
                    }
                }
            }
        )*
    };
}

loads! {
    /// `cuModuleLoad`.
    ModuleLoad(module: *mut Ptr, file: *const c_char) => modules::on_file;
    /// `cuModuleLoadData` and `cuModuleLoadFatBinary`.
    ModuleLoadData(module: *mut Ptr, image: *const c_void) => modules::on_image;
    /// `cuModuleLoadDataEx`.
    ModuleLoadDataEx(module: *mut Ptr, image: *const c_void, u32, Ptr, Ptr) => modules::on_image;
    /// `cuLibraryLoadData`.
    LibraryLoadData(library: *mut Ptr, image: *const c_void, Ptr, Ptr, u32, Ptr, Ptr, u32) => modules::on_image;
    /// `cuLibraryLoadFromFile`.
    LibraryLoadFromFile(library: *mut Ptr, file: *const c_char, Ptr, Ptr, u32, Ptr, Ptr, u32) => modules::on_file;
}

/// `cuModuleUnload` and `cuLibraryUnload`.
pub struct Unload;

impl Handler<(Ptr,), CUresult> for Unload {
    type Open = (Option<Leaving>, bool);

    /// As soon as the driver has let the handle go, another thread may get the same one for another
    /// module: it stands for nothing any more before that.
    unsafe fn before(frame: usize, handle: (Ptr,)) -> Next<(Ptr,), CUresult, Self::Open> {
        let leaving = entry::guarded(None, || modules::on_unload(handle.0));
        Next::Call(handle, (leaving, launch::before_load(frame)))
    }

    unsafe fn after((leaving, counted): Self::Open, _handle: (Ptr,), result: CUresult) {
        launch::after_load(counted);
        if let Some(leaving) = leaving {
            entry::guarded((), || modules::on_unloaded(leaving, result == CUDA_SUCCESS));
        }
    }
}
