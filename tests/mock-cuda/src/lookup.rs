//! Names: `cuGetProcAddress`, error texts, export tables.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::context::give;
use crate::driver_api;
use crate::error::{INVALID_VALUE, NOT_FOUND, Outcome, describe};
use crate::link::LINK_UUID;
use crate::{export, settings};

const PER_THREAD_DEFAULT_STREAM: u64 = 2;
const STATUS_FOUND: u32 = 0;
const STATUS_NOT_FOUND: u32 = 1;
const STATUS_TOO_NEW: u32 = 2;

/// Functions whose newest version has a suffix: name, CUDA version it came with, exported symbol.
const VERSIONED: &[(&str, i32, &str)] = &[
    ("cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"),
    ("cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2"),
    ("cuCtxCreate", 13000, "cuCtxCreate_v4"),
    ("cuCtxCreate", 3020, "cuCtxCreate_v2"),
    ("cuCtxDestroy", 4000, "cuCtxDestroy_v2"),
    ("cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2"),
    ("cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2"),
    ("cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
    (
        "cuDevicePrimaryCtxRelease",
        11000,
        "cuDevicePrimaryCtxRelease_v2",
    ),
    ("cuMemAlloc", 3020, "cuMemAlloc_v2"),
    ("cuMemFree", 3020, "cuMemFree_v2"),
    ("cuMemGetInfo", 3020, "cuMemGetInfo_v2"),
    ("cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2"),
    ("cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2"),
    ("cuMemsetD8", 3020, "cuMemsetD8_v2"),
    ("cuStreamDestroy", 4000, "cuStreamDestroy_v2"),
    ("cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"),
    ("cuEventDestroy", 4000, "cuEventDestroy_v2"),
    ("cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"),
    ("cuGraphAddKernelNode", 12000, "cuGraphAddKernelNode_v2"),
    ("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"),
    ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
];

/// Functions younger than CUDA 11: name and version.
const SINCE: &[(&str, i32)] = &[
    ("cuLaunchKernelEx", 11060),
    ("cuLibraryLoadData", 12000),
    ("cuLibraryLoadFromFile", 12000),
    ("cuLibraryUnload", 12000),
    ("cuLibraryGetKernel", 12000),
    ("cuLibraryGetModule", 12000),
    ("cuKernelGetFunction", 12000),
    ("cuFuncGetName", 12030),
    ("cuKernelGetName", 12030),
];

/// The exported symbol that a name means for a program of the given CUDA version.
fn exported(name: &str, version: i32, per_thread: bool) -> Result<String, u32> {
    if settings::get().absent.iter().any(|absent| absent == name) {
        return Err(STATUS_NOT_FOUND);
    }
    if SINCE
        .iter()
        .any(|(known, since)| *known == name && version < *since)
    {
        return Err(STATUS_TOO_NEW);
    }
    let base = VERSIONED
        .iter()
        .find(|(known, since, _)| *known == name && version >= *since)
        .map_or(name, |(_, _, symbol)| symbol);
    let twin = format!("{base}_ptsz");
    Ok(if per_thread && address(&twin).is_some() {
        twin
    } else {
        base.to_owned()
    })
}

/// An internal copy of an exported function.
fn copy(symbol: &str) -> Option<*mut c_void> {
    let tables = [
        crate::init::COPIES,
        crate::context::COPIES,
        crate::memory::COPIES,
        crate::stream::COPIES,
        crate::module::COPIES,
        crate::launch::COPIES,
        crate::graph::COPIES,
        COPIES,
    ];
    let found = tables.into_iter().flatten().find(|entry| entry.0 == symbol);
    found.map(|entry| entry.1 as *mut c_void)
}

/// Our own export of that name. Asks the loader, so that the answer is what `dlsym` gives.
fn address(symbol: &str) -> Option<*mut c_void> {
    let symbol = CString::new(symbol).ok()?;
    // SAFETY: looks itself up among loaded libraries; the handle stays open for ever on purpose.
    unsafe {
        let mut own: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr((&raw const export::LINK).cast(), &raw mut own) == 0 {
            return None;
        }
        let library = libc::dlopen(own.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let found = libc::dlsym(library, symbol.as_ptr());
        libc::dlclose(library);
        // A library that this one needs may have such a name; the driver only tells its own.
        let mut home: libc::Dl_info = std::mem::zeroed();
        let ours = !found.is_null()
            && libc::dladdr(found, &raw mut home) != 0
            && home.dli_fbase == own.dli_fbase;
        ours.then_some(found)
    }
}

fn proc_address(
    symbol: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    if symbol.is_null() || out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's string and out-pointers.
    unsafe {
        let name = CStr::from_ptr(symbol).to_str().map_err(|_| NOT_FOUND)?;
        let found =
            exported(name, version, flags & PER_THREAD_DEFAULT_STREAM != 0).and_then(|symbol| {
                let find = if settings::get().copies {
                    copy
                } else {
                    address
                };
                find(&symbol)
                    .filter(|_| name.starts_with("cu"))
                    .ok_or(STATUS_NOT_FOUND)
            });
        if !status.is_null() {
            status.write(found.err().unwrap_or(STATUS_FOUND));
        }
        out.write(found.unwrap_or(std::ptr::null_mut()));
        // Measured: with a status to tell by, an unknown name is no failure.
        match found {
            Err(_) if status.is_null() => Err(NOT_FOUND),
            _ => Ok(()),
        }
    }
}

fn text(
    code: i32,
    out: *mut *const c_char,
    which: impl Fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let found = describe(code);
    // SAFETY: the caller's out-pointer, checked.
    unsafe {
        give(
            out,
            found.map_or(std::ptr::null(), |texts| which(texts).as_ptr()),
        )?
    };
    found.map(|_| ()).ok_or(INVALID_VALUE)
}

fn export_table(out: *mut *const c_void, uuid: *const [u8; 16]) -> Outcome {
    if out.is_null() || uuid.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's uuid and out-pointer.
    unsafe {
        if *uuid != LINK_UUID {
            out.write(std::ptr::null());
            return Err(NOT_FOUND);
        }
        out.write((&raw const export::LINK).cast());
    }
    Ok(())
}

driver_api! {
    fn cuGetErrorName[373, early] (code: i32, out: *mut *const c_char) |_call| text(code, out, |texts| texts.0);
    fn cuGetErrorString[372, early] (code: i32, out: *mut *const c_char) |_call| text(code, out, |texts| texts.1);
    fn cuGetProcAddress[626, early] (symbol: *const c_char, out: *mut *mut c_void, version: i32, flags: u64)
        |_call| proc_address(symbol, out, version, flags, std::ptr::null_mut());
    fn cuGetProcAddress_v2[677, early] (symbol: *const c_char, out: *mut *mut c_void, version: i32, flags: u64,
        status: *mut u32) |_call| proc_address(symbol, out, version, flags, status);
    fn cuGetExportTable[135, early] (out: *mut *const c_void, uuid: *const [u8; 16]) |_call| export_table(out, uuid);
}
