//! PC sample records, with the layout of `CUpti_PCSamplingPCData` since CUDA 12.4.

use std::ffi::c_char;
use std::mem::{offset_of, size_of};

/// Entries readable at [`PcSample::stall_reasons`], whatever the count says.
pub const STALL_REASON_SLOTS: usize = 64;
/// Bytes of one name in the table of `stall_reason_map`, zero-padded.
pub const STALL_REASON_NAME_LEN: usize = 64;

/// How often a PC was seen for one reason.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallReason {
    /// Index into the table of `stall_reason_map`.
    pub index: u32,
    /// Samples with this reason.
    pub samples: u32,
}

/// One sampled PC; consumers read the first 60 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PcSample {
    /// Size of this record as CUPTI filled it.
    pub size: u64,
    /// Checksum of the cubin, the value `cubin_loaded` announced.
    pub cubin_crc: u64,
    /// Offset within the function, bytes.
    pub pc_offset: u64,
    /// Index of the function's symbol in the cubin.
    pub function_index: u32,
    /// Padding.
    pub pad: u32,
    /// Mangled name of the function.
    pub function_name: *const c_char,
    /// Entries in use at `stall_reasons`.
    pub stall_reason_count: u64,
    /// At least [`STALL_REASON_SLOTS`] readable entries.
    pub stall_reasons: *const StallReason,
    /// The launch's id, 0 in continuous mode.
    pub correlation_id: u32,
    /// Padding.
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<StallReason>() == 8);
    assert!(size_of::<PcSample>() == 64);
    assert!(offset_of!(PcSample, cubin_crc) == 8);
    assert!(offset_of!(PcSample, pc_offset) == 16);
    assert!(offset_of!(PcSample, function_index) == 24);
    assert!(offset_of!(PcSample, function_name) == 32);
    assert!(offset_of!(PcSample, stall_reason_count) == 40);
    assert!(offset_of!(PcSample, stall_reasons) == 48);
    assert!(offset_of!(PcSample, correlation_id) == 56);
};
