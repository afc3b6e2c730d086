//! The USDT probes: names, arguments, limits. `probes.d` states the same for readers of D.

/// USDT provider of every probe.
pub const PROVIDER: &str = "parcagpu";

/// Most pointers in one `activity_batch` or `pc_sample_batch`.
pub const BATCH_MAX: usize = 128;
/// Most pointers in one `nvtx_event_batch`.
pub const NVTX_BATCH_MAX: usize = 256;

/// One probe of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Name in the ELF note.
    pub name: &'static str,
    /// C type and name of each argument. In the note every argument is 8 bytes wide.
    pub args: &'static [(&'static str, &'static str)],
}

macro_rules! probes {
    ($($(#[$doc:meta])* $id:ident $name:literal ($($ty:literal $arg:literal),*);)*) => {
        $($(#[$doc])* pub const $id: Probe = Probe { name: $name, args: &[$(($ty, $arg)),*] };)*
        /// All probes, in the order of `probes.d`.
        pub const ALL: &[Probe] = &[$($id),*];
    };
}

probes! {
    /// A sampled launch returned; fired on the launching thread. `cbid` > 0: runtime API, < 0: driver API.
    CUDA_CORRELATION "cuda_correlation" ("uint32_t" "correlationId", "int32_t" "cbid", "char *" "name");
    /// One kernel of a sampled launch; times in ns as CUPTI gives them.
    KERNEL_EXECUTED "kernel_executed" (
        "uint64_t" "start", "uint64_t" "end", "uint32_t" "correlationId", "uint32_t" "deviceId",
        "uint32_t" "streamId", "uint32_t" "graphId", "uint64_t" "graphNodeId", "char *" "name");
    /// Up to 128 pointers to kernel records, see [`crate::kernel::KernelRecord`]; none at the end of a process that has
    /// no more of them, so that consumers see the last counters of the status block.
    ACTIVITY_BATCH "activity_batch" ("const void **" "ptrs", "uint32_t" "count");
    /// Up to 128 pointers to PC samples, see [`crate::pc_sample::PcSample`].
    PC_SAMPLE_BATCH "pc_sample_batch" ("const void **" "records", "uint32_t" "count");
    /// Table of 64-byte zero-padded names; always readable for 64 entries.
    STALL_REASON_MAP "stall_reason_map" ("char *" "names", "uint32_t" "count");
    /// What turns PC samples into time.
    GPU_CONFIG "gpu_config" (
        "uint32_t" "deviceId", "uint32_t" "samplingFactor", "uint32_t" "clockKHz", "uint32_t" "smCount");
    /// A module's machine code; readable and unchanged at that address until `cubin_unloaded`.
    CUBIN_LOADED "cubin_loaded" ("uint64_t" "cubinCrc", "char *" "cubin", "uint64_t" "cubinSize");
    /// The last module with that code is gone.
    CUBIN_UNLOADED "cubin_unloaded" ("uint64_t" "cubinCrc");
    /// Something went wrong or was switched off.
    ERROR "error" ("int32_t" "code", "char *" "message", "char *" "component");
    /// Up to 256 pointers to NVTX events, see [`crate::nvtx::NvtxEvent`].
    NVTX_EVENT_BATCH "nvtx_event_batch" ("const void **" "ptrs", "uint32_t" "count");
    /// Name of an OS thread (1), CUDA stream (2), CUDA device (3) or NVTX domain (5).
    NVTX_RESOURCE_NAME "nvtx_resource_name" ("uint32_t" "kind", "uint64_t" "id", "char *" "name");
}
