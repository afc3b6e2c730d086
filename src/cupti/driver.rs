//! The few functions of libcuda that we call ourselves, in the copy that the process has mapped.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::sys::{CUDA_SUCCESS, CUcontext, CUresult, CUstream, CUuuid, STREAM_CAPTURE_STATUS_NONE};

/// `cuGetProcAddress_v2`; its predecessor has the first four arguments and reads no more.
type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CUresult;
type IsCapturing = unsafe extern "C" fn(CUstream, *mut c_int) -> CUresult;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `..._PER_THREAD_DEFAULT_STREAM`.
const PROC_ADDRESS_STREAM: [u64; 2] = [1, 2];

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `..._MINOR`.
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_CLOCK_RATE`, kHz, and `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const CLOCK_RATE: c_int = 13;
const MULTIPROCESSOR_COUNT: c_int = 16;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_MODE_RELAXED: c_int = 2;

/// libcuda as the process has it.
#[derive(Clone, Copy)]
pub struct Driver {
    /// From `dlopen`, never closed.
    handle: usize,
    get_version: Option<unsafe extern "C" fn(*mut c_int) -> CUresult>,
    is_capturing: Option<IsCapturing>,
    is_capturing_ptsz: Option<IsCapturing>,
    get_proc_address: Option<GetProcAddress>,
    device_count: Option<unsafe extern "C" fn(*mut c_int) -> CUresult>,
    device_get: Option<unsafe extern "C" fn(*mut c_int, c_int) -> CUresult>,
    current_device: Option<unsafe extern "C" fn(*mut c_int) -> CUresult>,
    attribute: Option<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> CUresult>,
    device_uuid: Option<unsafe extern "C" fn(*mut CUuuid, c_int) -> CUresult>,
    current_context: Option<unsafe extern "C" fn(*mut CUcontext) -> CUresult>,
    exchange_capture_mode: Option<unsafe extern "C" fn(*mut c_int) -> CUresult>,
}

/// # Safety
/// `T` is the type of function `name` in the library behind `handle`.
unsafe fn symbol<T>(handle: *mut c_void, name: &CStr) -> Option<T> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: the handle is open and the name terminated.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: by the caller's promise; a function pointer has the size of an address.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

impl Driver {
    /// The mapped libcuda; `None` when there is none.
    pub fn find() -> Option<Self> {
        let handle = [c"libcuda.so.1", c"libcuda.so"]
            .into_iter()
            // SAFETY: NOLOAD only looks whether it is mapped. The reference it takes is kept.
            .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) })
            .find(|handle| !handle.is_null())?;
        // SAFETY: the types are the driver API's.
        unsafe {
            Some(Self {
                handle: handle as usize,
                get_version: symbol(handle, c"cuDriverGetVersion"),
                is_capturing: symbol(handle, c"cuStreamIsCapturing"),
                is_capturing_ptsz: symbol(handle, c"cuStreamIsCapturing_ptsz"),
                get_proc_address: symbol(handle, c"cuGetProcAddress_v2")
                    .or_else(|| symbol(handle, c"cuGetProcAddress")),
                device_count: symbol(handle, c"cuDeviceGetCount"),
                device_get: symbol(handle, c"cuDeviceGet"),
                current_device: symbol(handle, c"cuCtxGetDevice"),
                attribute: symbol(handle, c"cuDeviceGetAttribute"),
                device_uuid: symbol(handle, c"cuDeviceGetUuid_v2")
                    .or_else(|| symbol(handle, c"cuDeviceGetUuid")),
                current_context: symbol(handle, c"cuCtxGetCurrent"),
                exchange_capture_mode: symbol(handle, c"cuThreadExchangeStreamCaptureMode"),
            })
        }
    }

    /// Version as `1000 * major + 10 * minor`; works before `cuInit`.
    pub fn version(&self) -> Option<u32> {
        let mut version = 0;
        // SAFETY: writes one int.
        let code = unsafe { self.get_version?(&mut version) };
        (code == CUDA_SUCCESS && version > 0).then_some(version as u32)
    }

    /// Whether launches into this stream are recorded into a graph instead of run. Does not disturb
    /// the capture (measured). `per_thread`: handle 0 means the thread's own default stream; the
    /// legacy default stream cannot capture and is not asked.
    pub fn is_capturing(&self, stream: CUstream, per_thread: bool) -> bool {
        let query = match (stream.0 as usize, per_thread) {
            (0 | 1, false) | (1, true) => return false,
            (_, true) => self.is_capturing_ptsz.or(self.is_capturing),
            (_, false) => self.is_capturing,
        };
        let mut status = STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the driver accepted a launch into this stream just now; writes one int.
        query.is_some_and(|query| unsafe { query(stream, &mut status) } == CUDA_SUCCESS)
            && status != STREAM_CAPTURE_STATUS_NONE
    }

    /// Whether `cuGetProcAddress` gives another function for `base` than the one that is exported as
    /// `name`. Unknown counts as no.
    pub fn hands_out_another(&self, name: &str, base: &str, per_thread: bool) -> bool {
        let (Some(get), Some(version)) = (self.get_proc_address, self.version()) else {
            return false;
        };
        let (Ok(name), Ok(base)) = (CString::new(name), CString::new(base)) else {
            return false;
        };
        // SAFETY: the handle is open and the name terminated.
        let exported = unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) };
        let (mut given, mut status) = (std::ptr::null_mut(), 0);
        let flags = PROC_ADDRESS_STREAM[usize::from(per_thread)];
        // SAFETY: writes an address and an int.
        let code = unsafe {
            get(
                base.as_ptr(),
                &mut given,
                version as c_int,
                flags,
                &mut status,
            )
        };
        code == CUDA_SUCCESS && !given.is_null() && !exported.is_null() && given != exported
    }

    /// SM version of the current context's device, such as 90.
    pub fn current_sm(&self) -> Option<u32> {
        let (mut device, mut major, mut minor) = (0, 0, 0);
        // SAFETY: each writes its first argument.
        let codes = unsafe {
            [
                self.current_device?(&mut device),
                self.attribute?(&mut major, COMPUTE_CAPABILITY_MAJOR, device),
                self.attribute?(&mut minor, COMPUTE_CAPABILITY_MINOR, device),
            ]
        };
        (codes == [CUDA_SUCCESS; 3]).then_some((major * 10 + minor) as u32)
    }

    /// Clock in kHz and number of SMs of a device.
    pub fn speed(&self, ordinal: u32) -> Option<(u32, u32)> {
        let (mut device, mut clock, mut sms) = (0, 0, 0);
        // SAFETY: each writes its first argument.
        let codes = unsafe {
            [
                self.device_get?(&mut device, ordinal as c_int),
                self.attribute?(&mut clock, CLOCK_RATE, device),
                self.attribute?(&mut sms, MULTIPROCESSOR_COUNT, device),
            ]
        };
        (codes == [CUDA_SUCCESS; 3]).then_some((clock as u32, sms as u32))
    }

    /// The context that is current on this thread, if any.
    pub fn current_context(&self) -> Option<CUcontext> {
        let mut context = CUcontext(std::ptr::null_mut());
        // SAFETY: writes one handle.
        let code = unsafe { self.current_context?(&mut context) };
        (code == CUDA_SUCCESS && !context.0.is_null()).then_some(context)
    }

    /// Runs `act` with this thread in the relaxed capture mode: what it does neither fails because of a
    /// stream capture somewhere in the process nor spoils it.
    pub fn beside_captures<R>(&self, act: impl FnOnce() -> R) -> R {
        let Some(exchange) = self.exchange_capture_mode else {
            return act();
        };
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: reads and writes one int.
        let changed = unsafe { exchange(&mut mode) } == CUDA_SUCCESS;
        let result = act();
        if changed {
            // SAFETY: as above; the thread's own mode goes back.
            unsafe { exchange(&mut mode) };
        }
        result
    }

    /// UUIDs by ordinal; empty before `cuInit`.
    pub fn uuids(&self) -> Vec<CUuuid> {
        let (Some(count), Some(get), Some(uuid)) =
            (self.device_count, self.device_get, self.device_uuid)
        else {
            return Vec::new();
        };
        let mut devices = 0;
        // SAFETY: writes one int.
        if unsafe { count(&mut devices) } != CUDA_SUCCESS {
            return Vec::new();
        }
        (0..devices)
            .map_while(|ordinal| {
                let (mut device, mut bytes) = (0, CUuuid::default());
                // SAFETY: each writes its first argument.
                let code = unsafe {
                    match get(&mut device, ordinal) {
                        CUDA_SUCCESS => uuid(&mut bytes, device),
                        code => code,
                    }
                };
                (code == CUDA_SUCCESS).then_some(bytes)
            })
            .collect()
    }
}
