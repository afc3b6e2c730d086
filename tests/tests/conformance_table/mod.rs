//! What our code states, each item beside the C expression it has to equal.

use parcagpu::cupti::{result, sys};
use parcagpu_abi::{kernel, pc_sample};
use std::mem::{offset_of, size_of};
use std::ops::RangeInclusive;

type Version = (u32, u32);

/// One number and what it has to equal.
pub struct Check {
    /// The Rust item, as a path below `sys` or its crate's module; what a failure names.
    pub item: String,
    /// A C constant expression.
    pub c: String,
    /// The value our code states.
    pub value: u64,
    /// CUDA versions whose headers have it.
    pub versions: RangeInclusive<Version>,
}

const OLDEST: Version = (11, 8);
const NEWEST: Version = (99, 0);
const ALL: RangeInclusive<Version> = OLDEST..=NEWEST;

fn since(major: u32, minor: u32) -> RangeInclusive<Version> {
    (major, minor)..=NEWEST
}

fn only(major: u32, minor: u32) -> RangeInclusive<Version> {
    (major, minor)..=(major, minor)
}

fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// A struct of ours, its C name, and for each field the C fields it stands for (an array of ours may
/// be several scalars there): size, offsets and sizes of all.
macro_rules! layout {
    ($out:ident, $versions:expr, $($module:ident)::+ => $structure:ident, $c:literal, size $size:tt, {
        $($field:ident: $($part:literal)+),+ $(,)?
    }) => {{
        type Ours = $($module)::+::$structure;
        let name = stringify!($structure);
        layout!(@size $size, $out, $versions, Ours, name, $c);
        $({
            let parts = [$($part),+];
            let each = field_size(|ours: &Ours| &ours.$field) / parts.len();
            for (index, part) in parts.iter().enumerate() {
                let item = format!("{name}.{}", stringify!($field));
                $out.push(Check {
                    item: format!("{item} offset"),
                    c: format!("offsetof({}, {part})", $c),
                    value: (offset_of!(Ours, $field) + index * each) as u64,
                    versions: $versions,
                });
                $out.push(Check {
                    item: format!("{item} size"),
                    c: format!("sizeof((({} *)0)->{part})", $c),
                    value: each as u64,
                    versions: $versions,
                });
            }
        })+
    }};
    (@size same, $out:ident, $versions:expr, $ours:ty, $name:ident, $c:literal) => {
        $out.push(Check {
            item: format!("{} size", $name),
            c: format!("sizeof({})", $c),
            value: size_of::<$ours>() as u64,
            versions: $versions,
        });
    };
    (@size prefix, $out:ident, $versions:expr, $ours:ty, $name:ident, $c:literal) => {
        $out.push(Check {
            item: format!("{} no longer than {}", $name, $c),
            c: format!("sizeof({}) >= {}", $c, size_of::<$ours>()),
            value: 1,
            versions: $versions,
        });
    };
}

macro_rules! constants {
    ($out:ident, $versions:expr, { $($($part:ident)::+ = $c:literal),+ $(,)? }) => {
        $($out.push(Check {
            item: stringify!($($part)::+).replace(' ', ""),
            c: format!("(unsigned long){}", $c),
            value: { #[allow(unused_imports)] use sys::*; $($part)::+ as u64 },
            versions: $versions,
        });)+
    };
}

macro_rules! kernel_record {
    ($out:ident, $versions:expr, $c:literal, $size:tt) => {
        layout!($out, $versions, kernel => KernelRecord, $c, size $size, {
            kind: "kind",
            cache_config: "cacheConfig",
            shared_memory_config: "sharedMemoryConfig",
            registers_per_thread: "registersPerThread",
            partitioned_cache_requested: "partitionedGlobalCacheRequested",
            partitioned_cache_executed: "partitionedGlobalCacheExecuted",
            start: "start",
            end: "end",
            completed: "completed",
            device_id: "deviceId",
            context_id: "contextId",
            stream_id: "streamId",
            grid: "gridX" "gridY" "gridZ",
            block: "blockX" "blockY" "blockZ",
            static_shared_memory: "staticSharedMemory",
            dynamic_shared_memory: "dynamicSharedMemory",
            local_memory_per_thread: "localMemoryPerThread",
            local_memory_total: "localMemoryTotal",
            correlation_id: "correlationId",
            grid_id: "gridId",
            name: "name",
            reserved0: "reserved0",
            queued: "queued",
            submitted: "submitted",
            launch_type: "launchType",
            carveout_requested: "isSharedMemoryCarveoutRequested",
            carveout: "sharedMemoryCarveoutRequested",
            padding: "padding",
            shared_memory_executed: "sharedMemoryExecuted",
            graph_node_id: "graphNodeId",
            shmem_limit_config: "shmemLimitConfig",
            graph_id: "graphId",
        });
    };
}

/// The whole table.
pub fn checks() -> Vec<Check> {
    let mut out = Vec::new();
    records(&mut out);
    handles(&mut out);
    callbacks(&mut out);
    constants_of_all_versions(&mut out);
    callback_ids(&mut out);
    results(&mut out);
    out
}

fn records(out: &mut Vec<Check>) {
    kernel_record!(out, ALL, "CUpti_ActivityKernel5", same);
    // The record each version really writes has the same beginning.
    kernel_record!(out, only(11, 8), "CUpti_ActivityKernel8", prefix);
    kernel_record!(out, (12, 0)..=(12, 9), "CUpti_ActivityKernel9", prefix);
    kernel_record!(out, only(13, 0), "CUpti_ActivityKernel10", prefix);
    kernel_record!(out, (13, 1)..=(13, 2), "CUpti_ActivityKernel11", prefix);
    kernel_record!(out, since(13, 4), "CUpti_ActivityKernel13", prefix);
    layout!(out, ALL, pc_sample => StallReason, "CUpti_PCSamplingStallReason", size same, {
        index: "pcSamplingStallReasonIndex",
        samples: "samples",
    });
    layout!(out, since(12, 4), pc_sample => PcSample, "CUpti_PCSamplingPCData", size same, {
        size: "size",
        cubin_crc: "cubinCrc",
        pc_offset: "pcOffset",
        function_index: "functionIndex",
        pad: "pad",
        function_name: "functionName",
        stall_reason_count: "stallReasonCount",
        stall_reasons: "stallReason",
        correlation_id: "correlationId",
    });
}

fn callbacks(out: &mut Vec<Check>) {
    layout!(out, ALL, sys => CallbackData, "CUpti_CallbackData", size same, {
        callback_site: "callbackSite",
        function_name: "functionName",
        function_params: "functionParams",
        function_return_value: "functionReturnValue",
        symbol_name: "symbolName",
        context: "context",
        context_uid: "contextUid",
        correlation_data: "correlationData",
        correlation_id: "correlationId",
    });
    layout!(out, ALL, sys => ResourceData, "CUpti_ResourceData", size same, {
        context: "context",
        resource_handle: "resourceHandle",
        resource_descriptor: "resourceDescriptor",
    });
    layout!(out, ALL, sys => ModuleResourceData, "CUpti_ModuleResourceData", size same, {
        module_id: "moduleId",
        cubin_size: "cubinSize",
        cubin: "pCubin",
    });
    layout!(out, ALL, sys => LaunchKernelParams, "cuLaunchKernel_params", size same, {
        f: "f",
        grid: "gridDimX" "gridDimY" "gridDimZ",
        block: "blockDimX" "blockDimY" "blockDimZ",
        shared_mem_bytes: "sharedMemBytes",
        stream: "hStream",
        kernel_params: "kernelParams",
        extra: "extra",
    });
    layout!(out, ALL, sys => LaunchKernelParams, "cuLaunchKernel_ptsz_params", size same, {
        f: "f",
        stream: "hStream",
    });
    layout!(out, ALL, sys => LaunchCooperativeKernelParams, "cuLaunchCooperativeKernel_params", size same, {
        f: "f",
        grid: "gridDimX" "gridDimY" "gridDimZ",
        block: "blockDimX" "blockDimY" "blockDimZ",
        shared_mem_bytes: "sharedMemBytes",
        stream: "hStream",
        kernel_params: "kernelParams",
    });
    layout!(out, ALL, sys => LaunchKernelExParams, "cuLaunchKernelEx_params", size same, {
        config: "config",
        f: "f",
        kernel_params: "kernelParams",
        extra: "extra",
    });
    layout!(out, ALL, sys => LaunchConfig, "CUlaunchConfig", size same, {
        grid: "gridDimX" "gridDimY" "gridDimZ",
        block: "blockDimX" "blockDimY" "blockDimZ",
        shared_mem_bytes: "sharedMemBytes",
        stream: "hStream",
        attrs: "attrs",
        num_attrs: "numAttrs",
    });
    layout!(out, ALL, sys => GraphLaunchParams, "cuGraphLaunch_params", size same, {
        graph_exec: "hGraph",
        stream: "hStream",
    });
    layout!(out, ALL, sys => GraphLaunchParams, "cuGraphLaunch_ptsz_params", size same, {
        graph_exec: "hGraphExec",
        stream: "hStream",
    });
    layout!(out, ALL, sys => CUuuid, "CUuuid", size same, {
        bytes: "bytes",
    });
}

/// Handles of ours are one pointer wide, as NVIDIA's are.
fn handles(out: &mut Vec<Check>) {
    for (item, c, value) in [
        ("CUcontext", "CUcontext", size_of::<sys::CUcontext>()),
        ("CUstream", "CUstream", size_of::<sys::CUstream>()),
        (
            "SubscriberHandle",
            "CUpti_SubscriberHandle",
            size_of::<sys::SubscriberHandle>(),
        ),
    ] {
        out.push(Check {
            item: format!("{item} size"),
            c: format!("sizeof({c})"),
            value: value as u64,
            versions: ALL,
        });
    }
}

fn constants_of_all_versions(out: &mut Vec<Check>) {
    constants!(out, ALL, {
        CUPTI_SUCCESS = "CUPTI_SUCCESS",
        CUPTI_ERROR_INVALID_PARAMETER = "CUPTI_ERROR_INVALID_PARAMETER",
        CUPTI_ERROR_UNKNOWN = "CUPTI_ERROR_UNKNOWN",
        CUPTI_ERROR_MAX_LIMIT_REACHED = "CUPTI_ERROR_MAX_LIMIT_REACHED",
        CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        CUDA_SUCCESS = "CUDA_SUCCESS",
        DOMAIN_DRIVER_API = "CUPTI_CB_DOMAIN_DRIVER_API",
        DOMAIN_RUNTIME_API = "CUPTI_CB_DOMAIN_RUNTIME_API",
        DOMAIN_RESOURCE = "CUPTI_CB_DOMAIN_RESOURCE",
        API_ENTER = "CUPTI_API_ENTER",
        API_EXIT = "CUPTI_API_EXIT",
        ACTIVITY_KIND_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL",
        ACTIVITY_KIND_CONCURRENT_KERNEL = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
        ACTIVITY_FLUSH_COMPLETED = "CUPTI_ACTIVITY_FLAG_NONE",
        ACTIVITY_FLUSH_FORCED = "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
        STREAM_CAPTURE_STATUS_NONE = "CU_STREAM_CAPTURE_STATUS_NONE",
        STREAM_PER_THREAD = "CU_STREAM_PER_THREAD",
    });
    constants!(out, since(12, 3), {
        ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT = "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT",
        ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER = "CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER",
    });
    constants!(out, only(11, 8), { API_VERSION_11_8 = "CUPTI_API_VERSION" });
    // Versions between two fetched ones are bracketed by them.
    out.push(Check {
        item: "API_VERSION_12_3".into(),
        c: format!("CUPTI_API_VERSION < {}", sys::API_VERSION_12_3),
        value: 1,
        versions: OLDEST..=(12, 2),
    });
    out.push(Check {
        item: "API_VERSION_12_3".into(),
        c: format!("CUPTI_API_VERSION > {}", sys::API_VERSION_12_3),
        value: 1,
        versions: since(12, 4),
    });
}

fn callback_ids(out: &mut Vec<Check>) {
    constants!(out, ALL, {
        driver_cbid::LAUNCH = "CUPTI_DRIVER_TRACE_CBID_cuLaunch",
        driver_cbid::LAUNCH_GRID = "CUPTI_DRIVER_TRACE_CBID_cuLaunchGrid",
        driver_cbid::LAUNCH_GRID_ASYNC = "CUPTI_DRIVER_TRACE_CBID_cuLaunchGridAsync",
        driver_cbid::LAUNCH_KERNEL = "CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel",
        driver_cbid::LAUNCH_KERNEL_PTSZ = "CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz",
        driver_cbid::LAUNCH_COOPERATIVE_KERNEL = "CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel",
        driver_cbid::LAUNCH_COOPERATIVE_KERNEL_PTSZ = "CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz",
        driver_cbid::LAUNCH_COOPERATIVE_KERNEL_MULTI_DEVICE = "CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernelMultiDevice",
        driver_cbid::GRAPH_LAUNCH = "CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch",
        driver_cbid::GRAPH_LAUNCH_PTSZ = "CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz",
        driver_cbid::LAUNCH_KERNEL_EX = "CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx",
        driver_cbid::LAUNCH_KERNEL_EX_PTSZ = "CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz",
        resource_cbid::CONTEXT_CREATED = "CUPTI_CBID_RESOURCE_CONTEXT_CREATED",
        resource_cbid::CONTEXT_DESTROY_STARTING = "CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING",
        resource_cbid::MODULE_LOADED = "CUPTI_CBID_RESOURCE_MODULE_LOADED",
        resource_cbid::MODULE_UNLOAD_STARTING = "CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING",
        resource_cbid::MODULE_PROFILED = "CUPTI_CBID_RESOURCE_MODULE_PROFILED",
        runtime_cbid::LAUNCH = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunch_v3020",
        runtime_cbid::LAUNCH_KERNEL = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000",
        runtime_cbid::LAUNCH_PTSZ = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunch_ptsz_v7000",
        runtime_cbid::LAUNCH_KERNEL_PTSZ = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000",
        runtime_cbid::LAUNCH_COOPERATIVE_KERNEL = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000",
        runtime_cbid::LAUNCH_COOPERATIVE_KERNEL_PTSZ = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_ptsz_v9000",
        runtime_cbid::LAUNCH_COOPERATIVE_KERNEL_MULTI_DEVICE = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernelMultiDevice_v9000",
        runtime_cbid::GRAPH_LAUNCH = "CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000",
        runtime_cbid::GRAPH_LAUNCH_PTSZ = "CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_ptsz_v10000",
        runtime_cbid::LAUNCH_KERNEL_EX_C = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060",
        runtime_cbid::LAUNCH_KERNEL_EX_C_PTSZ = "CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060",
    });
}

fn results(out: &mut Vec<Check>) {
    for &(code, name) in result::NAMES {
        let versions = match code {
            43..=45 => since(12, 8),
            46 => since(13, 0),
            47 => since(13, 1),
            _ => ALL,
        };
        out.push(Check {
            item: format!("result::NAMES {name}"),
            c: name.into(),
            value: code.into(),
            versions,
        });
    }
}
