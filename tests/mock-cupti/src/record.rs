//! Kernel records as they lie in a buffer.

use std::ffi::c_char;

use crate::link::KernelRun;
use crate::settings;

/// `CUpti_ActivityKernel10` (CUDA 13.0), of which older records are prefixes.
#[repr(C)]
pub struct KernelRecord {
    kind: u32,
    cache_config: u8,
    shared_memory_config: u8,
    registers_per_thread: u16,
    partitioned_requested: u32,
    partitioned_executed: u32,
    /// Nanoseconds.
    pub start: u64,
    /// Nanoseconds.
    pub end: u64,
    /// Nanoseconds.
    pub completed: u64,
    device_id: u32,
    context_id: u32,
    stream_id: u32,
    grid: [u32; 3],
    block: [u32; 3],
    static_shared: u32,
    dynamic_shared: u32,
    local_per_thread: u32,
    local_total: u32,
    correlation_id: u32,
    grid_id: i64,
    name: *const c_char,
    reserved0: u64,
    /// Nanoseconds, 0 unless asked for.
    pub queued: u64,
    /// Nanoseconds, 0 unless asked for.
    pub submitted: u64,
    launch_type: u8,
    carveout_requested: u8,
    carveout: u8,
    padding: u8,
    shared_executed: u32,
    graph_node_id: u64,
    shmem_limit_config: u32,
    graph_id: u32,
    access_policy: u64,
    channel_id: u32,
    channel_type: u32,
    cluster: [u32; 3],
    cluster_policy: u32,
    local_total_v2: u64,
    max_potential_cluster: u32,
    max_active_clusters: u32,
    device_launched: u8,
    padding3: [u8; 7],
}

const _: () = {
    assert!(size_of::<KernelRecord>() == 216);
    assert!(std::mem::offset_of!(KernelRecord, correlation_id) == 92);
    assert!(std::mem::offset_of!(KernelRecord, name) == 104);
    assert!(std::mem::offset_of!(KernelRecord, graph_node_id) == 144);
    assert!(std::mem::offset_of!(KernelRecord, graph_id) == 156);
    assert!(std::mem::offset_of!(KernelRecord, channel_id) == 168);
    assert!(std::mem::offset_of!(KernelRecord, device_launched) == 208);
};

/// The record of one run.
pub fn kernel(kind: u32, correlation_id: u32, run: &KernelRun) -> KernelRecord {
    KernelRecord {
        kind,
        cache_config: 0,
        shared_memory_config: 0,
        registers_per_thread: 16,
        partitioned_requested: 0,
        partitioned_executed: 0,
        start: run.start,
        end: run.end,
        completed: run.end,
        device_id: run.device,
        context_id: run.context_id,
        stream_id: run.stream_id,
        grid: run.grid,
        block: run.block,
        static_shared: 0,
        dynamic_shared: run.shared,
        local_per_thread: 0,
        local_total: 0,
        correlation_id,
        grid_id: run.grid_id,
        name: settings::get().name(run.name),
        reserved0: 0,
        queued: 0,
        submitted: 0,
        launch_type: run.launch_type as u8,
        carveout_requested: 0,
        carveout: 0,
        padding: 0,
        shared_executed: 32768,
        graph_node_id: run.graph_node_id,
        shmem_limit_config: 0,
        graph_id: run.graph_id,
        access_policy: 0,
        channel_id: 1,
        channel_type: 1,
        cluster: [0; 3],
        cluster_policy: 0,
        local_total_v2: 0,
        max_potential_cluster: 0,
        max_active_clusters: 0,
        device_launched: 0,
        padding3: [0; 7],
    }
}

/// Writes a record in the form of `size` bytes: cut short, or with zeroes behind it.
///
/// # Safety
///
/// `to` is aligned to 8 and good for `size` bytes.
pub unsafe fn write(to: *mut u8, record: &KernelRecord, size: usize) {
    let own = size.min(size_of::<KernelRecord>());
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(record).cast(), to, own);
        std::ptr::write_bytes(to.add(own), 0, size - own);
    }
}

/// Takes the times away from the kernels that are still running.
///
/// # Safety
///
/// `memory` holds `count` records of `size` bytes.
pub unsafe fn forget_running(memory: *mut u8, count: usize, size: usize, now: u64) {
    for index in 0..count {
        // SAFETY: the caller's promise; times lie in the part that every record has.
        unsafe {
            let record = memory.add(index * size).cast::<KernelRecord>();
            if (*record).end > now {
                ((*record).start, (*record).end, (*record).completed) = (0, 0, 0);
            }
        }
    }
}
