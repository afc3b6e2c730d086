//! CUPTI's structs of PC sampling; their size fields say what the client knows of.
#![allow(missing_docs, reason = "CUPTI's own fields")]

use std::ffi::{c_char, c_void};

/// `CUpti_PCSampling{Enable,Disable,Start,Stop}Params`.
#[repr(C)]
pub struct ContextParams {
    pub size: usize,
    pub private: *mut c_void,
    pub context: *mut c_void,
}

/// `CUpti_PCSamplingGetDataParams`.
#[repr(C)]
pub struct GetDataParams {
    pub head: ContextParams,
    pub data: *mut SamplingData,
}

/// `CUpti_PCSamplingData`.
#[repr(C)]
pub struct SamplingData {
    pub size: usize,
    pub capacity: usize,
    pub total_samples: u64,
    pub dropped_samples: u64,
    pub total_pcs: usize,
    pub remaining_pcs: usize,
    pub range_id: u64,
    pub pcs: *mut PcData,
    pub foreign_samples: u64,
    pub buffer_full: u8,
}

/// `CUpti_PCSamplingPCData`; up to 12.3 it ends before `correlation_id`.
#[repr(C)]
pub struct PcData {
    pub size: usize,
    pub cubin_crc: u64,
    pub offset: u64,
    pub symbol: u32,
    pub pad: u32,
    pub name: *mut c_char,
    pub reason_count: usize,
    pub reasons: *mut [u32; 2],
    pub correlation_id: u32,
}

/// `CUpti_PCSamplingConfigurationInfo`.
#[repr(C)]
pub struct ConfigurationInfo {
    pub attribute: u32,
    pub status: i32,
    pub data: [u64; 3],
}

/// `CUpti_PCSamplingConfigurationInfoParams`.
#[repr(C)]
pub struct ConfigurationParams {
    pub head: ContextParams,
    pub count: usize,
    pub infos: *mut ConfigurationInfo,
}

/// `CUpti_PCSamplingGetNumStallReasonsParams`.
#[repr(C)]
pub struct NumReasonsParams {
    pub head: ContextParams,
    pub count: *mut usize,
}

/// `CUpti_PCSamplingGetStallReasonsParams`.
#[repr(C)]
pub struct ReasonsParams {
    pub head: ContextParams,
    pub count: usize,
    pub indices: *mut u32,
    pub names: *mut *mut u8,
}

/// `CUpti_GetCubinCrcParams`.
#[repr(C)]
pub struct CubinCrcParams {
    pub size: usize,
    pub cubin_size: usize,
    pub cubin: *const u8,
    pub crc: u64,
}

const _: () = {
    assert!(size_of::<ContextParams>() == 24);
    assert!(size_of::<GetDataParams>() == 32);
    assert!(size_of::<SamplingData>() == 80);
    assert!(size_of::<PcData>() == 64);
    assert!(size_of::<ConfigurationInfo>() == 32);
    assert!(size_of::<ConfigurationParams>() == 40);
    assert!(size_of::<NumReasonsParams>() == 32);
    assert!(size_of::<ReasonsParams>() == 48);
    assert!(size_of::<CubinCrcParams>() == 32);
};
