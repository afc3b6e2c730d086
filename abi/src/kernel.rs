//! The prefix of a CUPTI kernel record (`CUpti_ActivityKernel5`).
//!
//! Measured identical in every CUPTI from CUDA 11.7 to 13.5. Newer records are longer, so an array
//! of records is never stepped through with this size.

use std::ffi::c_char;
use std::mem::{offset_of, size_of};

/// `CUPTI_ACTIVITY_KIND_KERNEL`.
pub const KIND_KERNEL: u32 = 3;
/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`.
pub const KIND_CONCURRENT_KERNEL: u32 = 10;

/// First 160 bytes of a kernel record; what `activity_batch` points to.
///
/// Times are CUPTI's: nanoseconds of its default clock (`CLOCK_REALTIME` on Linux), 0 when unknown.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelRecord {
    /// 3 (`KERNEL`) or 10 (`CONCURRENT_KERNEL`).
    pub kind: u32,
    /// Requested and executed cache configuration.
    pub cache_config: u8,
    /// Shared memory configuration.
    pub shared_memory_config: u8,
    /// Registers per thread.
    pub registers_per_thread: u16,
    /// Partitioned global cache, requested.
    pub partitioned_cache_requested: u32,
    /// Partitioned global cache, executed.
    pub partitioned_cache_executed: u32,
    /// Start on the GPU, ns; 0 together with `end` means unknown.
    pub start: u64,
    /// End on the GPU, ns.
    pub end: u64,
    /// End including child kernels, ns; 0 means unknown.
    pub completed: u64,
    /// Device ordinal as the process counts.
    pub device_id: u32,
    /// CUPTI's context id.
    pub context_id: u32,
    /// CUPTI's stream id.
    pub stream_id: u32,
    /// Grid dimensions in blocks.
    pub grid: [i32; 3],
    /// Block dimensions in threads.
    pub block: [i32; 3],
    /// Static shared memory, bytes.
    pub static_shared_memory: i32,
    /// Dynamic shared memory, bytes.
    pub dynamic_shared_memory: i32,
    /// Local memory per thread, bytes.
    pub local_memory_per_thread: u32,
    /// Local memory in all, bytes.
    pub local_memory_total: u32,
    /// Equals the id of the launch's API callback; every kernel of a graph launch carries the launch's id.
    pub correlation_id: u32,
    /// Grid id of the launch.
    pub grid_id: i64,
    /// Mangled kernel name, NUL-terminated; may be null.
    pub name: *const c_char,
    /// Undefined.
    pub reserved0: u64,
    /// Time queued, 0 unless latency timestamps are on.
    pub queued: u64,
    /// Time submitted, 0 unless latency timestamps are on.
    pub submitted: u64,
    /// Launch type: 0 regular, 1 cooperative, 2 cooperative multi-device.
    pub launch_type: u8,
    /// Whether a shared memory carve-out was asked for.
    pub carveout_requested: u8,
    /// The carve-out asked for, percent.
    pub carveout: u8,
    /// Padding.
    pub padding: u8,
    /// Shared memory size set by the driver.
    pub shared_memory_executed: u32,
    /// Node of the graph this kernel came from, 0 outside graphs.
    pub graph_node_id: u64,
    /// Shared memory limit configuration.
    pub shmem_limit_config: u32,
    /// Graph this kernel came from, 0 outside graphs.
    pub graph_id: u32,
}

const _: () = {
    assert!(size_of::<KernelRecord>() == 160);
    assert!(offset_of!(KernelRecord, start) == 16);
    assert!(offset_of!(KernelRecord, end) == 24);
    assert!(offset_of!(KernelRecord, device_id) == 40);
    assert!(offset_of!(KernelRecord, stream_id) == 48);
    assert!(offset_of!(KernelRecord, grid) == 52);
    assert!(offset_of!(KernelRecord, block) == 64);
    assert!(offset_of!(KernelRecord, correlation_id) == 92);
    assert!(offset_of!(KernelRecord, grid_id) == 96);
    assert!(offset_of!(KernelRecord, name) == 104);
    assert!(offset_of!(KernelRecord, queued) == 120);
    assert!(offset_of!(KernelRecord, launch_type) == 136);
    assert!(offset_of!(KernelRecord, shared_memory_executed) == 140);
    assert!(offset_of!(KernelRecord, graph_node_id) == 144);
    assert!(offset_of!(KernelRecord, graph_id) == 156);
};
