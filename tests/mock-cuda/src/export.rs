//! The driver's side of the table shared with CUPTI, and how it calls back.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::context::Context;
use crate::link::{
    API_CBIDS, ApiCall, DriverLink, KernelRun, LINK_VERSION, ModuleImage, Resource, SMALL_CBIDS,
    Tool,
};
use crate::{context, faults, hold, init, log, timeline};

/// Resource callback ids.
pub const CONTEXT_CREATED: u32 = 1;
/// A context is about to go.
pub const CONTEXT_DESTROY_STARTING: u32 = 2;
/// A stream was made.
pub const STREAM_CREATED: u32 = 3;
/// A stream is about to go.
pub const STREAM_DESTROY_STARTING: u32 = 4;
/// `cuInit` is about to return success.
pub const CU_INIT_FINISHED: u32 = 5;
/// A module's code is in place.
pub const MODULE_LOADED: u32 = 6;
/// A module's code is about to go.
pub const MODULE_UNLOAD_STARTING: u32 = 7;
/// A kernel of the module is being launched.
pub const MODULE_PROFILED: u32 = 8;
/// Synchronisation callback ids.
pub const STREAM_SYNCHRONIZED: u32 = 1;
/// A context was synchronised.
pub const CONTEXT_SYNCHRONIZED: u32 = 2;

/// The table.
pub static LINK: DriverLink = DriverLink {
    size: size_of::<DriverLink>(),
    version: LINK_VERSION,
    driver_callbacks: [const { AtomicU8::new(0) }; API_CBIDS],
    runtime_callbacks: [const { AtomicU8::new(0) }; API_CBIDS],
    resource_callbacks: [const { AtomicU8::new(0) }; SMALL_CBIDS],
    synchronize_callbacks: [const { AtomicU8::new(0) }; SMALL_CBIDS],
    kernel_activity: AtomicU32::new(0),
    pc_sampling: AtomicU32::new(0),
    pc_serialized: AtomicU32::new(0),
    graphs_broken: AtomicU32::new(0),
    graphs_instantiated: AtomicU32::new(0),
    tool: AtomicPtr::new(std::ptr::null_mut()),
    initialized: init::initialized,
    now,
    logging,
    log: log_line,
    fault,
    context_info: context::info,
    context_ready: context::ready,
    context_take: hold::take,
    context_give_back: hold::give_back,
    stream_id: context::stream_id,
};

/// CUPTI's functions, once it came.
pub fn tool() -> Option<&'static Tool> {
    // SAFETY: null or CUPTI's static table.
    unsafe { LINK.tool.load(Ordering::Acquire).as_ref() }
}

fn on(what: &AtomicU32) -> bool {
    what.load(Ordering::Acquire) != 0
}

/// Whether CUPTI wants to know of kernels.
pub fn observed() -> bool {
    on(&LINK.kernel_activity) || on(&LINK.pc_sampling)
}

/// Tells CUPTI of the kernels of a launch; waits for them where they run one at a time.
pub fn kernels(call: &mut ApiCall, runs: &[KernelRun]) {
    let Some(tool) = tool() else { return };
    if on(&LINK.kernel_activity) {
        // SAFETY: all of it lives through the call.
        unsafe { (tool.kernels)(call, runs.as_ptr(), runs.len()) };
    }
    if on(&LINK.pc_sampling) {
        // SAFETY: as above.
        unsafe { (tool.sampled)(call, runs.as_ptr(), runs.len()) };
        if on(&LINK.pc_serialized) {
            timeline::sleep_until(runs.iter().map(|run| run.end).max().unwrap_or(0));
        }
    }
}

/// Held by a launch while kernels run one at a time; what ran before in its context is done then.
pub fn turn(context: &Context) -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    if !on(&LINK.pc_serialized) {
        return None;
    }
    let turn = TURN.lock().expect("nobody panics holding it");
    timeline::sleep_until(context.ready());
    Some(turn)
}

/// Tells CUPTI that a context is gone.
pub fn context_gone(id: u32) {
    if on(&LINK.pc_sampling)
        && let Some(tool) = tool()
    {
        // SAFETY: a number only.
        unsafe { (tool.context_gone)(id) };
    }
}

/// Tells CUPTI of a module's code.
pub fn module_loaded(module: &ModuleImage) {
    if let Some(tool) = tool() {
        // SAFETY: lives through the call.
        unsafe { (tool.module_loaded)(module) };
    }
}

/// Tells CUPTI that it goes.
pub fn module_unloaded(module: &ModuleImage) {
    if let Some(tool) = tool() {
        // SAFETY: lives through the call.
        unsafe { (tool.module_unloaded)(module) };
    }
}

/// Whether a resource callback is on.
pub fn wanted(cbid: u32) -> bool {
    LINK.resource_callbacks[cbid as usize].load(Ordering::Acquire) != 0
}

/// Tells CUPTI about a resource, if it wants to know.
pub fn resource(cbid: u32, context: *mut c_void, handle: *mut c_void, module: *const ModuleImage) {
    if wanted(cbid)
        && let Some(tool) = tool()
    {
        let resource = Resource {
            cbid,
            context,
            handle,
            module,
        };
        // SAFETY: lives through the call.
        unsafe { (tool.resource)(&raw const resource) };
    }
}

/// Tells CUPTI about a finished synchronisation, if it wants to know.
pub fn synchronized(cbid: u32, context: *mut c_void, stream: *mut c_void) {
    if LINK.synchronize_callbacks[cbid as usize].load(Ordering::Acquire) != 0
        && let Some(tool) = tool()
    {
        // SAFETY: handles only.
        unsafe { (tool.synchronized)(cbid, context, stream) };
    }
}

extern "C" fn now() -> u64 {
    timeline::now()
}

extern "C" fn logging() -> i32 {
    i32::from(log::on())
}

unsafe extern "C" fn log_line(line: *const u8, size: usize) {
    // SAFETY: CUPTI passes a string of its own.
    log::append(&String::from_utf8_lossy(unsafe {
        std::slice::from_raw_parts(line, size)
    }));
}

unsafe extern "C" fn fault(name: *const u8, size: usize) -> i32 {
    // SAFETY: CUPTI passes a static name.
    let name = unsafe { std::slice::from_raw_parts(name, size) };
    std::str::from_utf8(name)
        .ok()
        .and_then(faults::check)
        .unwrap_or(i32::MIN)
}
