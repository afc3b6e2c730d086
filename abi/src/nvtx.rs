//! NVTX events, what `nvtx_event_batch` points to.

use std::ffi::c_char;
use std::mem::{offset_of, size_of};

/// Value of [`NvtxEvent::device_id`] when the thread has no sampled launch yet.
pub const DEVICE_UNKNOWN: u32 = u32::MAX;

/// One push, pop, start, end or mark.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvtxEvent {
    /// `CLOCK_MONOTONIC`, ns.
    pub timestamp_ns: u64,
    /// Thread, as the process's PID namespace counts.
    pub tid: u32,
    /// A CUDA launch open on this thread, normally 0.
    pub correlation_id: u32,
    /// 0 is the default domain; others are named by `nvtx_resource_name`.
    pub domain_id: u32,
    /// 1 push, 2 pop, 3 start, 4 end, 5 mark.
    pub kind: u16,
    /// Bits 0-3: payload type by NVTX's numbers 0..=6; rest 0.
    pub flags: u16,
    /// ARGB.
    pub color: u32,
    /// Device of the thread's last sampled launch, or [`DEVICE_UNKNOWN`].
    pub device_id: u32,
    /// Raw bits of the payload.
    pub payload: u64,
    /// Pairs start and end.
    pub range_id: u64,
    /// UTF-8, NUL-terminated, valid while the probe fires.
    pub message: *const c_char,
}

const _: () = {
    assert!(size_of::<NvtxEvent>() == 56);
    assert!(offset_of!(NvtxEvent, tid) == 8);
    assert!(offset_of!(NvtxEvent, correlation_id) == 12);
    assert!(offset_of!(NvtxEvent, domain_id) == 16);
    assert!(offset_of!(NvtxEvent, kind) == 20);
    assert!(offset_of!(NvtxEvent, flags) == 22);
    assert!(offset_of!(NvtxEvent, color) == 24);
    assert!(offset_of!(NvtxEvent, device_id) == 28);
    assert!(offset_of!(NvtxEvent, payload) == 32);
    assert!(offset_of!(NvtxEvent, range_id) == 40);
    assert!(offset_of!(NvtxEvent, message) == 48);
};
