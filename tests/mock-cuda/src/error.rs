//! `CUresult` numbers, names and texts.

use std::ffi::CStr;

/// A call's failure: its `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

/// What a call's body returns.
pub type Outcome = Result<(), Error>;

macro_rules! errors {
    ($( $id:ident = $code:literal $name:literal $text:literal, )*) => {
        $( #[allow(dead_code, reason = "the table is complete for lookups")] pub const $id: Error = Error($code); )*

        /// Name and text of a result.
        pub fn describe(code: i32) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                0 => Some((c"CUDA_SUCCESS", c"no error")),
                $( $code => Some(($name, $text)), )*
                _ => None,
            }
        }
    };
}

errors! {
    INVALID_VALUE = 1 c"CUDA_ERROR_INVALID_VALUE" c"invalid argument",
    OUT_OF_MEMORY = 2 c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory",
    NOT_INITIALIZED = 3 c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error",
    DEINITIALIZED = 4 c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down",
    STUB_LIBRARY = 34 c"CUDA_ERROR_STUB_LIBRARY" c"CUDA driver is a stub library",
    NO_DEVICE = 100 c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected",
    INVALID_DEVICE = 101 c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal",
    INVALID_IMAGE = 200 c"CUDA_ERROR_INVALID_IMAGE" c"device kernel image is invalid",
    INVALID_CONTEXT = 201 c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context",
    NO_BINARY_FOR_GPU = 209 c"CUDA_ERROR_NO_BINARY_FOR_GPU" c"no kernel image is available for execution on the device",
    INVALID_PTX = 218 c"CUDA_ERROR_INVALID_PTX" c"a PTX JIT compilation failed",
    INVALID_SOURCE = 300 c"CUDA_ERROR_INVALID_SOURCE" c"device kernel image is invalid",
    FILE_NOT_FOUND = 301 c"CUDA_ERROR_FILE_NOT_FOUND" c"file not found",
    INVALID_HANDLE = 400 c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle",
    NOT_FOUND = 500 c"CUDA_ERROR_NOT_FOUND" c"named symbol not found",
    NOT_READY = 600 c"CUDA_ERROR_NOT_READY" c"device not ready",
    ILLEGAL_ADDRESS = 700 c"CUDA_ERROR_ILLEGAL_ADDRESS" c"an illegal memory access was encountered",
    LAUNCH_OUT_OF_RESOURCES = 701 c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" c"too many resources requested for launch",
    CONTEXT_IS_DESTROYED = 709 c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed",
    LAUNCH_FAILED = 719 c"CUDA_ERROR_LAUNCH_FAILED" c"unspecified launch failure",
    NOT_SUPPORTED = 801 c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported",
    CAPTURE_UNSUPPORTED = 900 c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" c"operation not permitted when stream is capturing",
    CAPTURE_INVALIDATED = 901 c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" c"operation failed due to a previous error during capture",
    UNKNOWN = 999 c"CUDA_ERROR_UNKNOWN" c"unknown error",
}
