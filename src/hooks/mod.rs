//! The functions of the driver and of CUPTI that this library replaces.
//!
//! The lists below are all there is: a line names the function, its type and its handler. They are put
//! in by [`parcagpu_interpose`] when the loader maps the library, before anybody runs in it, and stay
//! in; [`want`] turns handlers off when there is nothing to do, and a hook is then one load
//! and a tail call.
//!
//! * [`boot`]: `cuInit` and the loads, which bring the session up
//! * [`launch`]: the launches, where sampling is decided
//! * [`coexist`], [`switches`], [`holder`]: the program's own use of CUPTI, for which we step aside
//! * [`installed`]: what was put in, and what is done where it was not

pub mod boot;
pub mod coexist;
pub mod holder;
pub mod installed;
pub mod launch;
pub mod switches;

use std::ffi::{c_char, c_void};

use parcagpu_interpose::{hooks, watch};

use crate::cupti::sys::{
    BufferCompleteFunc, BufferRequestFunc, CUcontext, CUptiResult, CUresult, CallbackFunc,
    LaunchConfig, SubscriberHandle, driver_cbid as cbid,
};

/// Handlers that bring the session up; wanted until it is there.
pub const BOOT: u8 = 1;
/// Handlers that sample; wanted while the session is active.
pub const SAMPLE: u8 = 2;
/// Handlers that see images; wanted while a consumer of cubins has no better source.
pub const IMAGES: u8 = 4;
/// Handlers that see images go; wanted as long as one that was seen is loaded.
pub const UNLOADS: u8 = 8;
/// Handlers that count launches and loads; wanted where PCs are sampled in serialized mode.
pub const GATE: u8 = 16;

/// Turns groups of handlers in libcuda on or off.
pub fn want(groups: u8, on: bool) {
    CUDA.want(groups, on);
}

type Ptr = *mut c_void;

hooks! {
    /// What is replaced in libcuda.
    pub static CUDA: HookSet = [
        fn cuInit(flags: u32) -> CUresult => boot::Init, when BOOT;
        fn cuModuleLoad(module: *mut Ptr, file: *const c_char) -> CUresult => boot::ModuleLoad, when BOOT | IMAGES | GATE;
        fn cuModuleLoadData(module: *mut Ptr, image: *const c_void) -> CUresult => boot::ModuleLoadData, when BOOT | IMAGES | GATE;
        fn cuModuleLoadDataEx(module: *mut Ptr, image: *const c_void, count: u32, options: Ptr, values: Ptr) -> CUresult
            => boot::ModuleLoadDataEx, when BOOT | IMAGES | GATE;
        fn cuModuleLoadFatBinary(module: *mut Ptr, image: *const c_void) -> CUresult => boot::ModuleLoadData, when BOOT | IMAGES | GATE;
        fn cuLibraryLoadData(library: *mut Ptr, code: *const c_void, jit: Ptr, jit_values: Ptr, jit_count: u32, options: Ptr, values: Ptr, count: u32) -> CUresult
            => boot::LibraryLoadData, when BOOT | IMAGES | GATE;
        fn cuLibraryLoadFromFile(library: *mut Ptr, file: *const c_char, jit: Ptr, jit_values: Ptr, jit_count: u32, options: Ptr, values: Ptr, count: u32) -> CUresult
            => boot::LibraryLoadFromFile, when BOOT | IMAGES | GATE;
        fn cuModuleUnload(module: Ptr) -> CUresult => boot::Unload, when UNLOADS | GATE;
        fn cuLibraryUnload(library: Ptr) -> CUresult => boot::Unload, when UNLOADS | GATE;
        fn cuLaunchKernel(f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr, extra: *mut Ptr) -> CUresult
            => launch::Eager<{ cbid::LAUNCH_KERNEL }>, when BOOT | SAMPLE | GATE;
        fn cuLaunchKernel_ptsz(f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr, extra: *mut Ptr) -> CUresult
            => launch::Eager<{ cbid::LAUNCH_KERNEL_PTSZ }>, when BOOT | SAMPLE | GATE;
        fn cuLaunchKernelEx(config: *const LaunchConfig, f: Ptr, params: *mut Ptr, extra: *mut Ptr) -> CUresult
            => launch::Eager<{ cbid::LAUNCH_KERNEL_EX }>, when BOOT | SAMPLE | GATE;
        fn cuLaunchKernelEx_ptsz(config: *const LaunchConfig, f: Ptr, params: *mut Ptr, extra: *mut Ptr) -> CUresult
            => launch::Eager<{ cbid::LAUNCH_KERNEL_EX_PTSZ }>, when BOOT | SAMPLE | GATE;
        fn cuLaunchCooperativeKernel(f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr) -> CUresult
            => launch::Eager<{ cbid::LAUNCH_COOPERATIVE_KERNEL }>, when BOOT | SAMPLE | GATE;
        fn cuLaunchCooperativeKernel_ptsz(f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr) -> CUresult
            => launch::Eager<{ cbid::LAUNCH_COOPERATIVE_KERNEL_PTSZ }>, when BOOT | SAMPLE | GATE;
        fn cuGraphLaunch(graph: Ptr, stream: Ptr) -> CUresult => launch::Graph<{ cbid::GRAPH_LAUNCH }>, when BOOT | SAMPLE | GATE;
        fn cuGraphLaunch_ptsz(graph: Ptr, stream: Ptr) -> CUresult => launch::Graph<{ cbid::GRAPH_LAUNCH_PTSZ }>, when BOOT | SAMPLE | GATE;
    ];
}

hooks! {
    /// What is replaced in libcupti. Our own calls pass through it as well.
    pub static CUPTI: HookSet = [
        fn cuptiSubscribe(handle: *mut SubscriberHandle, callback: Option<CallbackFunc>, data: Ptr) -> CUptiResult
            => coexist::Subscribe;
        fn cuptiSubscribe_v2(handle: *mut SubscriberHandle, callback: Option<CallbackFunc>, data: Ptr, params: Ptr) -> CUptiResult
            => coexist::SubscribeV2;
        fn cuptiUnsubscribe(handle: SubscriberHandle) -> CUptiResult => coexist::Unsubscribe;
        fn cuptiActivityRegisterCallbacks(request: Option<BufferRequestFunc>, complete: Option<BufferCompleteFunc>) -> CUptiResult
            => coexist::RegisterCallbacks;
        fn cuptiFinalize() -> CUptiResult => coexist::Finalize;
        fn cuptiActivityEnable(kind: u32) -> CUptiResult => switches::Enable;
        fn cuptiActivityEnableAndDump(kind: u32) -> CUptiResult => switches::Enable;
        fn cuptiActivityDisable(kind: u32) -> CUptiResult => switches::Disable;
        fn cuptiActivityEnableContext(context: CUcontext, kind: u32) -> CUptiResult => switches::EnableContext;
        fn cuptiActivityDisableContext(context: CUcontext, kind: u32) -> CUptiResult => switches::DisableContext;
        fn cuptiActivityEnable_v2(subscriber: SubscriberHandle, kind: u32, config: Ptr) -> CUptiResult => switches::EnableV2;
        fn cuptiActivityEnableAndDump_v2(subscriber: SubscriberHandle, kind: u32, config: Ptr) -> CUptiResult => switches::EnableV2;
        fn cuptiActivityDisable_v2(subscriber: SubscriberHandle, kind: u32, config: Ptr) -> CUptiResult => switches::DisableV2;
        fn cuptiEnableCallback(on: u32, handle: SubscriberHandle, domain: u32, cbid: u32) -> CUptiResult => switches::EnableCallback;
        fn cuptiEnableDomain(on: u32, handle: SubscriberHandle, domain: u32) -> CUptiResult => switches::EnableDomain;
        fn cuptiEnableAllDomains(on: u32, handle: SubscriberHandle) -> CUptiResult => switches::EnableAllDomains;
    ];
}

watch! {
    /// Which libraries are looked for.
    pub static WATCH: Watch = { "libcuda.so" => CUDA, "libcupti.so" => CUPTI };
    choice = installed::choice;
    report = installed::report;
}
