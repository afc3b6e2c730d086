//! Names of callbacks and results.

use std::ffi::CStr;

/// Callback ids of driver functions, those that the simulated driver has.
const DRIVER: &[(u32, &CStr)] = &[
    (1, c"cuInit"),
    (2, c"cuDriverGetVersion"),
    (3, c"cuDeviceGet"),
    (4, c"cuDeviceGetCount"),
    (5, c"cuDeviceGetName"),
    (9, c"cuDeviceGetAttribute"),
    (16, c"cuCtxGetDevice"),
    (17, c"cuCtxSynchronize"),
    (18, c"cuModuleLoad"),
    (19, c"cuModuleLoadData"),
    (20, c"cuModuleLoadDataEx"),
    (21, c"cuModuleLoadFatBinary"),
    (22, c"cuModuleUnload"),
    (23, c"cuModuleGetFunction"),
    (118, c"cuEventCreate"),
    (119, c"cuEventRecord"),
    (120, c"cuEventQuery"),
    (121, c"cuEventSynchronize"),
    (123, c"cuEventElapsedTime"),
    (124, c"cuStreamCreate"),
    (125, c"cuStreamQuery"),
    (126, c"cuStreamSynchronize"),
    (135, c"cuGetExportTable"),
    (235, c"cuCtxCreate_v2"),
    (242, c"cuMemGetInfo_v2"),
    (243, c"cuMemAlloc_v2"),
    (245, c"cuMemFree_v2"),
    (249, c"cuMemsetD8_v2"),
    (259, c"cuDeviceTotalMem_v2"),
    (276, c"cuMemcpyHtoD_v2"),
    (278, c"cuMemcpyDtoH_v2"),
    (295, c"cuStreamWaitEvent"),
    (303, c"cuCtxSetCurrent"),
    (304, c"cuCtxGetCurrent"),
    (307, c"cuLaunchKernel"),
    (322, c"cuCtxDestroy_v2"),
    (323, c"cuCtxPushCurrent_v2"),
    (324, c"cuCtxPopCurrent_v2"),
    (325, c"cuEventDestroy_v2"),
    (326, c"cuStreamDestroy_v2"),
    (367, c"cuStreamCreateWithPriority"),
    (372, c"cuGetErrorString"),
    (373, c"cuGetErrorName"),
    (386, c"cuDevicePrimaryCtxRetain"),
    (387, c"cuDevicePrimaryCtxRelease"),
    (392, c"cuDevicePrimaryCtxGetState"),
    (439, c"cuStreamQuery_ptsz"),
    (440, c"cuStreamSynchronize_ptsz"),
    (441, c"cuEventRecord_ptsz"),
    (442, c"cuLaunchKernel_ptsz"),
    (477, c"cuLaunchCooperativeKernel"),
    (478, c"cuLaunchCooperativeKernel_ptsz"),
    (482, c"cuDeviceGetUuid"),
    (483, c"cuStreamGetCtx"),
    (497, c"cuStreamEndCapture"),
    (498, c"cuStreamEndCapture_ptsz"),
    (499, c"cuStreamIsCapturing"),
    (500, c"cuStreamIsCapturing_ptsz"),
    (501, c"cuGraphCreate"),
    (502, c"cuGraphAddKernelNode"),
    (513, c"cuGraphInstantiate"),
    (514, c"cuGraphLaunch"),
    (515, c"cuGraphLaunch_ptsz"),
    (516, c"cuGraphExecDestroy"),
    (517, c"cuGraphDestroy"),
    (534, c"cuGraphGetNodes"),
    (539, c"cuStreamBeginCapture_v2"),
    (540, c"cuStreamBeginCapture_v2_ptsz"),
    (544, c"cuDevicePrimaryCtxRelease_v2"),
    (566, c"cuFuncGetModule"),
    (578, c"cuGraphInstantiate_v2"),
    (626, c"cuGetProcAddress"),
    (643, c"cuGraphInstantiateWithFlags"),
    (647, c"cuDeviceGetUuid_v2"),
    (652, c"cuLaunchKernelEx"),
    (653, c"cuLaunchKernelEx_ptsz"),
    (673, c"cuModuleGetLoadingMode"),
    (677, c"cuGetProcAddress_v2"),
    (678, c"cuLibraryLoadData"),
    (679, c"cuLibraryLoadFromFile"),
    (680, c"cuLibraryUnload"),
    (681, c"cuLibraryGetKernel"),
    (682, c"cuLibraryGetModule"),
    (683, c"cuKernelGetFunction"),
    (689, c"cuGraphAddKernelNode_v2"),
    (718, c"cuFuncGetName"),
    (719, c"cuKernelGetName"),
    (737, c"cuModuleGetFunctionCount"),
    (757, c"cuCtxCreate_v4"),
    (780, c"cuEventElapsedTime_v2"),
    (800, c"cuCtxSynchronize_v2"),
];

/// Callback ids of runtime functions that launch.
const RUNTIME: &[(u32, &CStr)] = &[
    (211, c"cudaLaunchKernel_v7000"),
    (214, c"cudaLaunchKernel_ptsz_v7000"),
    (269, c"cudaLaunchCooperativeKernel_v9000"),
    (270, c"cudaLaunchCooperativeKernel_ptsz_v9000"),
    (311, c"cudaGraphLaunch_v10000"),
    (312, c"cudaGraphLaunch_ptsz_v10000"),
    (430, c"cudaLaunchKernelExC_v11060"),
    (431, c"cudaLaunchKernelExC_ptsz_v11060"),
];

/// Results with CUPTI's names; 36 and 37 have none in the real library either.
const RESULTS: &[(i32, &CStr)] = &[
    (0, c"CUPTI_SUCCESS"),
    (1, c"CUPTI_ERROR_INVALID_PARAMETER"),
    (2, c"CUPTI_ERROR_INVALID_DEVICE"),
    (3, c"CUPTI_ERROR_INVALID_CONTEXT"),
    (7, c"CUPTI_ERROR_INVALID_OPERATION"),
    (8, c"CUPTI_ERROR_OUT_OF_MEMORY"),
    (9, c"CUPTI_ERROR_HARDWARE"),
    (10, c"CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT"),
    (11, c"CUPTI_ERROR_API_NOT_IMPLEMENTED"),
    (12, c"CUPTI_ERROR_MAX_LIMIT_REACHED"),
    (13, c"CUPTI_ERROR_NOT_READY"),
    (14, c"CUPTI_ERROR_NOT_COMPATIBLE"),
    (15, c"CUPTI_ERROR_NOT_INITIALIZED"),
    (18, c"CUPTI_ERROR_QUEUE_EMPTY"),
    (19, c"CUPTI_ERROR_INVALID_HANDLE"),
    (20, c"CUPTI_ERROR_INVALID_STREAM"),
    (21, c"CUPTI_ERROR_INVALID_KIND"),
    (23, c"CUPTI_ERROR_DISABLED"),
    (24, c"CUPTI_ERROR_INVALID_MODULE"),
    (26, c"CUPTI_ERROR_HARDWARE_BUSY"),
    (27, c"CUPTI_ERROR_NOT_SUPPORTED"),
    (33, c"CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED"),
    (34, c"CUPTI_ERROR_CUDA_COMPILER_NOT_COMPATIBLE"),
    (35, c"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
    (38, c"CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED"),
    (39, c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"),
    (
        40,
        c"CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
    ),
    (41, c"CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED"),
    (42, c"CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED"),
    (43, c"CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED"),
    (44, c"CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED"),
    (45, c"CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED"),
    (46, c"CUPTI_ERROR_INVALID_CHIP_NAME"),
    (999, c"CUPTI_ERROR_UNKNOWN"),
];

/// Name of a callback id of domain 1 or 2.
pub fn callback(domain: u32, cbid: u32) -> Option<&'static CStr> {
    let table = match domain {
        1 => DRIVER,
        2 => RUNTIME,
        _ => return None,
    };
    table
        .iter()
        .find(|entry| entry.0 == cbid)
        .map(|entry| entry.1)
}

/// Name of a result.
pub fn result(code: i32) -> Option<&'static CStr> {
    RESULTS
        .iter()
        .find(|entry| entry.0 == code)
        .map(|entry| entry.1)
}
