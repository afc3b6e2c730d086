//! CUPTI and driver types, constants and layouts, for CUDA 11.8 to 13.x.
//!
//! Nothing here is linked: these are the shapes of what [`super::api`] finds by name at run time.
//! Sizes and offsets hold for every version named; `tests/tests/conformance_layout.rs` compiles them
//! against the real headers.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// `CUptiResult`.
pub type CUptiResult = u32;
/// `CUresult`.
pub type CUresult = u32;

/// `CUcontext`, opaque: never followed by us.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUcontext(pub *mut c_void);

// SAFETY: an opaque word, which CUPTI and the driver accept from any thread.
unsafe impl Send for CUcontext {}

/// `CUstream`, opaque: never followed by us. Small values name the default streams.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct CUstream(pub *mut c_void);

/// `CUpti_SubscriberHandle`, opaque: never followed by us.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct SubscriberHandle(pub *mut c_void);

/// `CUPTI_SUCCESS`.
pub const CUPTI_SUCCESS: CUptiResult = 0;
/// `CUPTI_ERROR_INVALID_PARAMETER`.
pub const CUPTI_ERROR_INVALID_PARAMETER: CUptiResult = 1;
/// `CUPTI_ERROR_UNKNOWN`.
pub const CUPTI_ERROR_UNKNOWN: CUptiResult = 999;
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: `cuptiActivityGetNextRecord` found no further record.
pub const CUPTI_ERROR_MAX_LIMIT_REACHED: CUptiResult = 12;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`: somebody else holds CUPTI.
pub const CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: CUptiResult = 39;

/// `CUDA_SUCCESS`.
pub const CUDA_SUCCESS: CUresult = 0;

/// `CUpti_CallbackDomain`.
pub type Domain = u32;
/// `CUPTI_CB_DOMAIN_DRIVER_API`.
pub const DOMAIN_DRIVER_API: Domain = 1;
/// `CUPTI_CB_DOMAIN_RUNTIME_API`.
pub const DOMAIN_RUNTIME_API: Domain = 2;
/// `CUPTI_CB_DOMAIN_RESOURCE`.
pub const DOMAIN_RESOURCE: Domain = 3;

/// `CUPTI_API_ENTER`.
pub const API_ENTER: u32 = 0;
/// `CUPTI_API_EXIT`.
pub const API_EXIT: u32 = 1;

/// `CUPTI_ACTIVITY_KIND_KERNEL`.
pub const ACTIVITY_KIND_KERNEL: u32 = parcagpu_abi::kernel::KIND_KERNEL;
/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`.
pub const ACTIVITY_KIND_CONCURRENT_KERNEL: u32 = parcagpu_abi::kernel::KIND_CONCURRENT_KERNEL;

/// `CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT`, a `size_t`: buffers in GPU memory per context.
pub const ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT: u32 = 2;
/// `CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER`, a `u8`, CUDA 12.3 and later.
pub const ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER: u32 = 9;

/// Flush flag: deliver only buffers whose records are all complete.
pub const ACTIVITY_FLUSH_COMPLETED: u32 = 0;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: deliver everything; running kernels get zero times for good.
pub const ACTIVITY_FLUSH_FORCED: u32 = 1;

/// `CUPTI_API_VERSION` of CUDA 11.8, the oldest accepted.
pub const API_VERSION_11_8: u32 = 18;
/// `CUPTI_API_VERSION` of CUDA 12.3, the first with per-thread activity buffers.
pub const API_VERSION_12_3: u32 = 21;

/// Callback ids of the driver API (`CUpti_driver_api_trace_cbid`).
pub mod driver_cbid {
    /// `cuLaunch`.
    pub const LAUNCH: u32 = 115;
    /// `cuLaunchGrid`.
    pub const LAUNCH_GRID: u32 = 116;
    /// `cuLaunchGridAsync`.
    pub const LAUNCH_GRID_ASYNC: u32 = 117;
    /// `cuLaunchKernel`.
    pub const LAUNCH_KERNEL: u32 = 307;
    /// `cuLaunchKernel_ptsz`.
    pub const LAUNCH_KERNEL_PTSZ: u32 = 442;
    /// `cuLaunchCooperativeKernel`.
    pub const LAUNCH_COOPERATIVE_KERNEL: u32 = 477;
    /// `cuLaunchCooperativeKernel_ptsz`.
    pub const LAUNCH_COOPERATIVE_KERNEL_PTSZ: u32 = 478;
    /// `cuLaunchCooperativeKernelMultiDevice`.
    pub const LAUNCH_COOPERATIVE_KERNEL_MULTI_DEVICE: u32 = 480;
    /// `cuGraphLaunch`.
    pub const GRAPH_LAUNCH: u32 = 514;
    /// `cuGraphLaunch_ptsz`.
    pub const GRAPH_LAUNCH_PTSZ: u32 = 515;
    /// `cuLaunchKernelEx`.
    pub const LAUNCH_KERNEL_EX: u32 = 652;
    /// `cuLaunchKernelEx_ptsz`.
    pub const LAUNCH_KERNEL_EX_PTSZ: u32 = 653;
}

/// Callback ids of the runtime API (`CUpti_runtime_api_trace_cbid`).
pub mod runtime_cbid {
    /// `cudaLaunch_v3020`.
    pub const LAUNCH: u32 = 13;
    /// `cudaLaunchKernel_v7000`.
    pub const LAUNCH_KERNEL: u32 = 211;
    /// `cudaLaunch_ptsz_v7000`.
    pub const LAUNCH_PTSZ: u32 = 213;
    /// `cudaLaunchKernel_ptsz_v7000`.
    pub const LAUNCH_KERNEL_PTSZ: u32 = 214;
    /// `cudaLaunchCooperativeKernel_v9000`.
    pub const LAUNCH_COOPERATIVE_KERNEL: u32 = 269;
    /// `cudaLaunchCooperativeKernel_ptsz_v9000`.
    pub const LAUNCH_COOPERATIVE_KERNEL_PTSZ: u32 = 270;
    /// `cudaLaunchCooperativeKernelMultiDevice_v9000`.
    pub const LAUNCH_COOPERATIVE_KERNEL_MULTI_DEVICE: u32 = 272;
    /// `cudaGraphLaunch_v10000`.
    pub const GRAPH_LAUNCH: u32 = 311;
    /// `cudaGraphLaunch_ptsz_v10000`.
    pub const GRAPH_LAUNCH_PTSZ: u32 = 312;
    /// `cudaLaunchKernelExC_v11060`.
    pub const LAUNCH_KERNEL_EX_C: u32 = 430;
    /// `cudaLaunchKernelExC_ptsz_v11060`.
    pub const LAUNCH_KERNEL_EX_C_PTSZ: u32 = 431;
}

/// Callback ids of resource events (`CUpti_CallbackIdResource`).
pub mod resource_cbid {
    /// `CUPTI_CBID_RESOURCE_CONTEXT_CREATED`.
    pub const CONTEXT_CREATED: u32 = 1;
    /// `CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING`.
    pub const CONTEXT_DESTROY_STARTING: u32 = 2;
    /// `CUPTI_CBID_RESOURCE_MODULE_LOADED`.
    pub const MODULE_LOADED: u32 = 6;
    /// `CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING`.
    pub const MODULE_UNLOAD_STARTING: u32 = 7;
    /// `CUPTI_CBID_RESOURCE_MODULE_PROFILED`: a module that was loaded before we came, told at its first
    /// launch after that.
    pub const MODULE_PROFILED: u32 = 8;
}

/// `CUpti_CallbackFunc`.
pub type CallbackFunc =
    unsafe extern "C" fn(userdata: *mut c_void, domain: Domain, cbid: u32, cbdata: *const c_void);
/// `CUpti_BuffersCallbackRequestFunc`.
pub type BufferRequestFunc =
    unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub type BufferCompleteFunc = unsafe extern "C" fn(
    context: CUcontext,
    stream_id: u32,
    buffer: *mut u8,
    size: usize,
    valid_size: usize,
);

/// `CUpti_CallbackData`: what a driver or runtime callback is given.
#[repr(C)]
#[derive(Debug)]
pub struct CallbackData {
    /// [`API_ENTER`] or [`API_EXIT`].
    pub callback_site: u32,
    /// Name of the API function.
    pub function_name: *const c_char,
    /// The function's parameter struct.
    pub function_params: *const c_void,
    /// The function's result, valid at exit only.
    pub function_return_value: *const c_void,
    /// Mangled kernel name for launches, may be null.
    pub symbol_name: *const c_char,
    /// Current context.
    pub context: CUcontext,
    /// Unique id of that context.
    pub context_uid: u32,
    /// Slot shared by enter and exit of one call.
    pub correlation_data: *mut u64,
    /// Equals the id of the activity record.
    pub correlation_id: u32,
}

/// `CUpti_ResourceData`: what a resource callback is given.
#[repr(C)]
#[derive(Debug)]
pub struct ResourceData {
    /// Context of the event.
    pub context: CUcontext,
    /// Stream, for stream events.
    pub resource_handle: *mut c_void,
    /// For module events a [`ModuleResourceData`].
    pub resource_descriptor: *const c_void,
}

/// `CUpti_ModuleResourceData`.
#[repr(C)]
#[derive(Debug)]
pub struct ModuleResourceData {
    /// CUPTI's id of the module.
    pub module_id: u32,
    /// Bytes at `cubin`.
    pub cubin_size: usize,
    /// The machine code, in the driver's memory.
    pub cubin: *const c_char,
}

/// `cuLaunchKernel_params`, also of the per-thread-stream twin.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchKernelParams {
    /// Function.
    pub f: *const c_void,
    /// Grid dimensions in blocks.
    pub grid: [u32; 3],
    /// Block dimensions in threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_mem_bytes: u32,
    /// Stream.
    pub stream: CUstream,
    /// Kernel parameters.
    pub kernel_params: *mut *mut c_void,
    /// Extra options.
    pub extra: *mut *mut c_void,
}

/// `cuLaunchCooperativeKernel_params`.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchCooperativeKernelParams {
    /// Function.
    pub f: *const c_void,
    /// Grid dimensions in blocks.
    pub grid: [u32; 3],
    /// Block dimensions in threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_mem_bytes: u32,
    /// Stream.
    pub stream: CUstream,
    /// Kernel parameters.
    pub kernel_params: *mut *mut c_void,
}

/// `cuLaunchKernelEx_params`.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchKernelExParams {
    /// Launch configuration.
    pub config: *const LaunchConfig,
    /// Function.
    pub f: *const c_void,
    /// Kernel parameters.
    pub kernel_params: *mut *mut c_void,
    /// Extra options.
    pub extra: *mut *mut c_void,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchConfig {
    /// Grid dimensions in blocks.
    pub grid: [u32; 3],
    /// Block dimensions in threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_mem_bytes: u32,
    /// Stream.
    pub stream: CUstream,
    /// Attributes.
    pub attrs: *mut c_void,
    /// Number of attributes.
    pub num_attrs: u32,
}

/// `cuGraphLaunch_params`.
#[repr(C)]
#[derive(Debug)]
pub struct GraphLaunchParams {
    /// Executable graph.
    pub graph_exec: *mut c_void,
    /// Stream.
    pub stream: CUstream,
}

const _: () = {
    assert!(size_of::<CallbackData>() == 72);
    assert!(offset_of!(CallbackData, function_name) == 8);
    assert!(offset_of!(CallbackData, function_params) == 16);
    assert!(offset_of!(CallbackData, function_return_value) == 24);
    assert!(offset_of!(CallbackData, symbol_name) == 32);
    assert!(offset_of!(CallbackData, context) == 40);
    assert!(offset_of!(CallbackData, context_uid) == 48);
    assert!(offset_of!(CallbackData, correlation_data) == 56);
    assert!(offset_of!(CallbackData, correlation_id) == 64);
    assert!(size_of::<ResourceData>() == 24);
    assert!(offset_of!(ResourceData, resource_descriptor) == 16);
    assert!(size_of::<ModuleResourceData>() == 24);
    assert!(offset_of!(ModuleResourceData, cubin_size) == 8);
    assert!(offset_of!(ModuleResourceData, cubin) == 16);
    assert!(size_of::<LaunchKernelParams>() == 64);
    assert!(offset_of!(LaunchKernelParams, stream) == 40);
    assert!(size_of::<LaunchCooperativeKernelParams>() == 56);
    assert!(offset_of!(LaunchCooperativeKernelParams, stream) == 40);
    assert!(size_of::<LaunchKernelExParams>() == 32);
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(offset_of!(LaunchConfig, stream) == 32);
    assert!(size_of::<GraphLaunchParams>() == 16);
    assert!(offset_of!(GraphLaunchParams, stream) == 8);
};

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUuuid {
    /// The bytes as `nvidia-smi` prints them.
    pub bytes: [u8; 16],
}

/// `CUstreamCaptureStatus`: no capture is going on.
pub const STREAM_CAPTURE_STATUS_NONE: c_int = 0;
/// Handle `CU_STREAM_PER_THREAD`.
pub const STREAM_PER_THREAD: usize = 2;
