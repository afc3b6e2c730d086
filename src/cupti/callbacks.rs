//! The subscriber's callback: launches as CUPTI reports them.
//!
//! Runs on the launching thread, inside the driver, possibly while CUPTI holds a lock of its own. A
//! callback that comes when the session is not active returns at once.

use std::cell::Cell;
use std::ffi::c_void;

use super::launch_functions::{DRIVER, LaunchFunction, RUNTIME, is_capturing};
use super::sys::{
    API_ENTER, API_EXIT, CUDA_SUCCESS, CUresult, CallbackData, CallbackFunc, DOMAIN_DRIVER_API,
    DOMAIN_RESOURCE, DOMAIN_RUNTIME_API, Domain, ModuleResourceData, ResourceData,
    resource_cbid as resource,
};
use crate::config::ApiCallbacks;
use crate::cubin::modules;
use crate::entry;
use crate::hooks::{self, installed};
use crate::nvtx;
use crate::pc::Pass;
use crate::sampling::launch::{Outcome, announced_name};
use crate::session::{self, Session};

/// Our callback.
pub const CALLBACK: CallbackFunc = on_callback;

/// Every callback the session switches on, with its domain.
pub fn wanted(level: ApiCallbacks) -> impl Iterator<Item = (Domain, u32)> {
    let of = |domain, functions: &'static [LaunchFunction]| {
        functions.iter().map(move |f| (domain, f.cbid))
    };
    let runtime: &'static [LaunchFunction] = match level {
        ApiCallbacks::Driver => &[],
        ApiCallbacks::Runtime => RUNTIME,
    };
    of(DOMAIN_DRIVER_API, DRIVER).chain(of(DOMAIN_RUNTIME_API, runtime))
}

/// The module events.
pub const MODULES: [u32; 3] = [
    resource::MODULE_LOADED,
    resource::MODULE_UNLOAD_STARTING,
    resource::MODULE_PROFILED,
];

/// The events that PC sampling needs.
pub const CONTEXTS: [u32; 3] = [
    resource::CONTEXT_CREATED,
    resource::CONTEXT_DESTROY_STARTING,
    resource::MODULE_UNLOAD_STARTING,
];

/// Whether launches with this callback are sampled by their hook: their callbacks are on only while a
/// sampled launch is open.
pub fn decided_in_hook((domain, cbid): (Domain, u32)) -> bool {
    domain == DOMAIN_DRIVER_API && installed::decides(cbid)
}

/// A runtime call that is open on this thread.
#[derive(Clone, Copy, Default)]
struct RuntimeCall {
    open: bool,
    id: u32,
    captured: bool,
}

thread_local! {
    // No destructor: usable while a thread ends.
    static RUNTIME_CALL: Cell<RuntimeCall> = const {
        Cell::new(RuntimeCall { open: false, id: 0, captured: false })
    };
    // The launch of this thread that is inside the gate of PC sampling.
    static PASS: Cell<Option<Pass>> = const { Cell::new(None) };
}

unsafe extern "C" fn on_callback(
    _userdata: *mut c_void,
    domain: Domain,
    cbid: u32,
    data: *const c_void,
) {
    let Some(session) = session::active() else {
        return;
    };
    if data.is_null() {
        return;
    }
    entry::guarded((), || {
        let on_api = match domain {
            DOMAIN_DRIVER_API => on_driver,
            DOMAIN_RUNTIME_API => on_runtime,
            // SAFETY: for this domain CUPTI gives resource data, valid during the call.
            DOMAIN_RESOURCE => return on_resource(session, cbid, unsafe { &*data.cast() }),
            _ => return,
        };
        // SAFETY: for the two API domains CUPTI gives callback data, valid during the call.
        on_api(session, cbid, unsafe { &*data.cast() });
    });
}

fn on_resource(session: &Session, cbid: u32, data: &ResourceData) {
    let pc = session.pc.as_ref();
    match (cbid, pc) {
        (resource::CONTEXT_CREATED, Some(pc)) => return pc.created(session, data.context),
        (resource::CONTEXT_DESTROY_STARTING, Some(pc)) => {
            return pc.destroyed(session, data.context);
        }
        (resource::MODULE_UNLOAD_STARTING, Some(pc)) => pc.unloading(session, data.context),
        _ => {}
    }
    if data.resource_descriptor.is_null() {
        return;
    }
    let module = || {
        // SAFETY: for module events it points to module data.
        unsafe { &*data.resource_descriptor.cast::<ModuleResourceData>() }
    };
    match cbid {
        resource::MODULE_LOADED => {
            modules::on_cupti_load(module());
        }
        resource::MODULE_PROFILED => modules::on_cupti_profiled(module()),
        resource::MODULE_UNLOAD_STARTING => modules::on_cupti_unload(module()),
        _ => {}
    }
}

fn on_driver(session: &Session, cbid: u32, data: &CallbackData) {
    let Some(function) = DRIVER.iter().find(|f| f.cbid == cbid) else {
        return;
    };
    let call = RUNTIME_CALL.get();
    if call.open && call.id == data.correlation_id {
        // The runtime call reports; what only this call knows is kept for it.
        if data.callback_site == API_EXIT && result_of(data) == CUDA_SUCCESS {
            let captured = is_capturing(session, function, data);
            RUNTIME_CALL.set(RuntimeCall { captured, ..call });
        }
        return;
    }
    let captured = || is_capturing(session, function, data);
    if installed::decides(cbid) {
        on_hooked(session, function, -(cbid as i32), data, captured);
    } else {
        on_launch(session, function, -(cbid as i32), data, captured);
    }
}

/// A launch whose hook has decided already.
fn on_hooked(
    session: &Session,
    function: &LaunchFunction,
    cbid: i32,
    data: &CallbackData,
    captured: impl FnOnce() -> bool,
) {
    let Some(generation) = hooks::launch::sampled() else {
        return;
    };
    if data.correlation_data.is_null() {
        return;
    }
    let launch = function.launch(data.correlation_id, cbid);
    match data.callback_site {
        API_ENTER => {
            // SAFETY: the slot is CUPTI's for this call and ours to write.
            unsafe { data.correlation_data.write(u64::from(generation)) };
            session.sampler.begin(launch);
            hooks::launch::entered(launch.id);
        }
        API_EXIT => {
            // SAFETY: as above.
            let slot = unsafe { data.correlation_data.replace(0) };
            if slot != u64::from(generation) {
                return;
            }
            let outcome = match session.sampler.switch.is_current(generation) {
                true => outcome_of(data, captured),
                false => Outcome::Stale,
            };
            let name = announced_name(data.symbol_name, data.function_name);
            note_context(session, data);
            session.sampler.end(launch, name, outcome);
            hooks::launch::reported();
        }
        _ => {}
    }
}

/// NVTX events say which device their thread used last, and PC sampling needs to know of contexts.
fn note_context(session: &Session, data: &CallbackData) {
    if let Some(pc) = &session.pc {
        pc.launched(data.context, data.context_uid);
    }
    nvtx::launch::in_context(data.context_uid, || session.api()?.device_of(data.context));
}

fn outcome_of(data: &CallbackData, captured: impl FnOnce() -> bool) -> Outcome {
    match result_of(data) {
        CUDA_SUCCESS if captured() => Outcome::Captured,
        CUDA_SUCCESS => Outcome::Launched,
        _ => Outcome::Failed,
    }
}

fn on_runtime(session: &Session, cbid: u32, data: &CallbackData) {
    let Some(function) = RUNTIME.iter().find(|f| f.cbid == cbid) else {
        return;
    };
    let open = data.callback_site == API_ENTER;
    let call = RUNTIME_CALL.replace(RuntimeCall {
        open,
        id: data.correlation_id,
        captured: false,
    });
    on_launch(session, function, cbid as i32, data, || call.captured);
}

/// Lets a launch that no hook sees through the gate of PC sampling.
fn pass(session: &Session) -> Option<Pass> {
    let pc = session.pc.as_ref()?;
    if let Some(open) = PASS.take() {
        // Its exit was never told.
        pc.after_launch(session, open);
    }
    let pass = pc.before_launch(session);
    if pass != Pass::Free {
        hooks::launch::watch_thread();
    }
    PASS.set(Some(pass));
    Some(pass)
}

/// How the launch that this thread leaves by ending was let through.
pub fn thread_ends() -> Pass {
    PASS.take().unwrap_or(Pass::Free)
}

fn on_launch(
    session: &Session,
    function: &LaunchFunction,
    cbid: i32,
    data: &CallbackData,
    captured: impl FnOnce() -> bool,
) {
    if data.correlation_data.is_null() {
        return;
    }
    let launch = function.launch(data.correlation_id, cbid);
    match data.callback_site {
        API_ENTER => {
            let all = pass(session).is_some_and(|pass| pass == Pass::Window);
            if let (Some(pc), Some(pass)) = (&session.pc, PASS.get()) {
                pc.entered(pass, launch.id);
            }
            let slot = session.sampler.enter(launch, all, session);
            hooks::launch::entered_in_callback(slot);
            // SAFETY: the slot is CUPTI's for this call and ours to write.
            unsafe { data.correlation_data.write(slot) };
        }
        API_EXIT => {
            // SAFETY: as above. Cleared, so that no later call finds it.
            let slot = unsafe { data.correlation_data.replace(0) };
            hooks::launch::left_in_callback();
            if result_of(data) != CUDA_SUCCESS {
                function.kind.uncount();
            }
            let outcome = || outcome_of(data, captured);
            let name = announced_name(data.symbol_name, data.function_name);
            if slot != 0 {
                note_context(session, data);
            }
            session.sampler.exit(launch, slot, name, outcome, session);
            if let (Some(pc), Some(pass)) = (&session.pc, PASS.take()) {
                pc.after_launch(session, pass);
            }
        }
        _ => {}
    }
}

/// Result of the call at its exit; `CUresult` and `cudaError_t` are both 32 bits with 0 for success.
fn result_of(data: &CallbackData) -> CUresult {
    if data.function_return_value.is_null() {
        return CUDA_SUCCESS;
    }
    // SAFETY: at exit it points to the result.
    unsafe { data.function_return_value.cast::<CUresult>().read() }
}
