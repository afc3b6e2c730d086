//! Layouts of the PC Sampling API, the same from CUDA 12.4 to 13.5.
//!
//! A sample record is [`parcagpu_abi::pc_sample::PcSample`]: CUPTI fills records of our own memory.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};

use parcagpu_abi::pc_sample::PcSample;

use crate::cupti::sys::CUcontext;

/// `CUPTI_API_VERSION` of CUDA 12.4, whose records carry a correlation id and have 64 bytes.
pub const API_VERSION_12_4: u32 = 22;
/// Oldest driver, as `cuDriverGetVersion` counts: CUDA 12.8. Older ones were not tried, and the library that
/// Parca's agent was made for refuses them as well.
pub const DRIVER_12_8: u32 = 12_080;

/// Bytes of a name that `cuptiPCSamplingGetStallReasons` writes (`CUPTI_STALL_REASON_STRING_SIZE`).
pub const REASON_NAME: usize = 128;

/// `CUpti_PCSamplingEnableParams`, also of `Disable`, `Start` and `Stop`.
#[repr(C)]
#[derive(Debug)]
pub struct ContextParams {
    /// Of this struct.
    pub size: usize,
    /// Null.
    pub private: *mut c_void,
    /// Which context.
    pub context: CUcontext,
}

/// `CUpti_PCSamplingData`.
#[repr(C)]
#[derive(Debug)]
pub struct Data {
    /// Of this struct.
    pub size: usize,
    /// Room at `pcs`.
    pub capacity: usize,
    /// Samples, those of others and dropped ones included.
    pub total_samples: u64,
    /// Samples the hardware lost.
    pub dropped_samples: u64,
    /// Records at `pcs`.
    pub len: usize,
    /// Records still to be fetched.
    pub remaining: usize,
    /// Not used.
    pub range: u64,
    /// Records.
    pub pcs: *mut PcSample,
    /// Samples in code that is not the program's.
    pub foreign_samples: u64,
    /// 1 when the hardware's buffer was full.
    pub buffer_full: u8,
}

/// `CUpti_PCSamplingGetDataParams`.
#[repr(C)]
#[derive(Debug)]
pub struct GetDataParams {
    /// The first fields are those of [`ContextParams`].
    pub head: ContextParams,
    /// Where to.
    pub data: *mut Data,
}

/// `CUpti_PCSamplingConfigurationInfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfigurationInfo {
    /// One of the `ATTRIBUTE_` constants.
    pub attribute: u32,
    /// A `CUptiResult` for this one.
    pub status: u32,
    /// A union; every member we use begins at its start.
    pub data: [u64; 3],
}

/// `CUpti_PCSamplingConfigurationInfoParams`.
#[repr(C)]
#[derive(Debug)]
pub struct ConfigurationParams {
    /// The first fields are those of [`ContextParams`].
    pub head: ContextParams,
    /// Entries at `infos`.
    pub count: usize,
    /// Attributes.
    pub infos: *mut ConfigurationInfo,
}

/// `CUpti_PCSamplingGetNumStallReasonsParams`.
#[repr(C)]
#[derive(Debug)]
pub struct NumReasonsParams {
    /// The first fields are those of [`ContextParams`].
    pub head: ContextParams,
    /// Where to.
    pub count: *mut usize,
}

/// `CUpti_PCSamplingGetStallReasonsParams`.
#[repr(C)]
#[derive(Debug)]
pub struct ReasonsParams {
    /// The first fields are those of [`ContextParams`].
    pub head: ContextParams,
    /// Entries in both arrays.
    pub count: usize,
    /// Indices, in no order.
    pub indices: *mut u32,
    /// Buffers of [`REASON_NAME`] bytes.
    pub names: *mut *mut c_char,
}

/// `CUpti_ComputeCrcCallbackFunc`.
pub type ComputeCrc = unsafe extern "C" fn(cubin: *const c_void, size: usize, crc: *mut u64);

/// The period, log2 of cycles: 5..=31.
pub const ATTRIBUTE_PERIOD: u32 = 1;
/// Memory for parsed records, bytes.
pub const ATTRIBUTE_SCRATCH: u32 = 3;
/// Memory that the hardware writes to, bytes, in the host: 512 MB by default.
pub const ATTRIBUTE_HARDWARE_BUFFER: u32 = 4;
/// [`COLLECTION_CONTINUOUS`] or [`COLLECTION_SERIALIZED`].
pub const ATTRIBUTE_COLLECTION_MODE: u32 = 5;
/// 1: sampling runs between `Start` and `Stop` only.
pub const ATTRIBUTE_START_STOP: u32 = 6;
/// A [`Data`] that takes what is left when sampling ends.
pub const ATTRIBUTE_DATA_BUFFER: u32 = 8;

/// `CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS`.
pub const COLLECTION_CONTINUOUS: u64 = 1;
/// `CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED`.
pub const COLLECTION_SERIALIZED: u64 = 2;

const _: () = {
    assert!(size_of::<ContextParams>() == 24);
    assert!(offset_of!(ContextParams, context) == 16);
    assert!(size_of::<Data>() == 80);
    assert!(offset_of!(Data, capacity) == 8);
    assert!(offset_of!(Data, total_samples) == 16);
    assert!(offset_of!(Data, dropped_samples) == 24);
    assert!(offset_of!(Data, len) == 32);
    assert!(offset_of!(Data, remaining) == 40);
    assert!(offset_of!(Data, pcs) == 56);
    assert!(offset_of!(Data, foreign_samples) == 64);
    assert!(offset_of!(Data, buffer_full) == 72);
    assert!(size_of::<GetDataParams>() == 32);
    assert!(size_of::<ConfigurationInfo>() == 32);
    assert!(offset_of!(ConfigurationInfo, status) == 4);
    assert!(offset_of!(ConfigurationInfo, data) == 8);
    assert!(size_of::<ConfigurationParams>() == 40);
    assert!(size_of::<NumReasonsParams>() == 32);
    assert!(size_of::<ReasonsParams>() == 48);
    assert!(offset_of!(ReasonsParams, names) == 40);
};
