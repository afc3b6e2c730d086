//! The subscriber and its callbacks.
//!
//! One subscriber per process. Which functions call back is kept in the driver's table, so that a
//! function without a callback costs the driver one look. Callbacks run on the thread that makes
//! the call, with the lock of `MOCK_CUPTI_LOCK` held.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use crate::api::{
    INVALID_PARAMETER, MULTIPLE_SUBSCRIBERS, SUCCESS, call_client, driver, next_correlation,
};
use crate::cupti_api;
use crate::link::{
    ApiCall, DOMAIN_DRIVER, DOMAIN_RUNTIME, DriverLink, ModuleImage, Resource, Tool,
};
use crate::{activity, names, odd_modules, pc_contexts, settings};

/// `CUpti_CallbackFunc`.
pub type Callback = Option<unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void)>;

/// Who gets the callbacks.
pub struct Subscriber {
    callback: Callback,
    userdata: *mut c_void,
    name: Vec<u8>,
}

/// Null: nobody. Subscribers are never freed: a callback may be running.
static SUBSCRIBER: AtomicPtr<Subscriber> = AtomicPtr::new(std::ptr::null_mut());

/// What the driver calls.
pub static TOOL: Tool = Tool {
    correlate,
    enter,
    exit,
    kernels: activity::kernels,
    sampled: pc_contexts::sampled,
    module_loaded: pc_contexts::module_loaded,
    module_unloaded: pc_contexts::module_unloaded,
    context_gone: pc_contexts::context_gone,
    resource,
    synchronized,
};

const DOMAIN_RESOURCE: u32 = 3;
const DOMAIN_SYNCHRONIZE: u32 = 4;

/// Ids per domain in CUDA 13.0, exclusive.
const SENTINELS: [u32; 7] = [0, 807, 523, 24, 3, 50, 4];

/// `CUpti_CallbackData`.
#[repr(C)]
struct CallbackData {
    site: u32,
    function_name: *const c_char,
    function_params: *const c_void,
    return_value: *const c_void,
    symbol_name: *const c_char,
    context: *mut c_void,
    context_uid: u32,
    correlation_data: *mut u64,
    correlation_id: u32,
}

/// `CUpti_ResourceData`.
#[repr(C)]
struct ResourceData {
    context: *mut c_void,
    handle: *mut c_void,
    descriptor: *const c_void,
}

/// `CUpti_ModuleResourceData`.
#[repr(C)]
struct ModuleData {
    id: u32,
    size: usize,
    cubin: *const c_void,
}

/// `CUpti_SynchronizeData`.
#[repr(C)]
struct SynchronizeData {
    context: *mut c_void,
    stream: *mut c_void,
}

/// `CUpti_SubscriberParams` of 13.0.
#[repr(C)]
pub struct SubscriberParams {
    size: usize,
    name: *const c_char,
    old_name: *mut c_char,
    old_size: usize,
}

const _: () = {
    assert!(size_of::<CallbackData>() == 72);
    assert!(size_of::<ResourceData>() == 24);
    assert!(size_of::<ModuleData>() == 24);
    assert!(size_of::<SynchronizeData>() == 16);
    assert!(size_of::<SubscriberParams>() == 32);
};

fn subscriber() -> Option<&'static Subscriber> {
    // SAFETY: null or a leaked subscriber.
    unsafe { SUBSCRIBER.load(Ordering::Acquire).as_ref() }
}

fn deliver(domain: u32, cbid: u32, data: *const c_void) {
    if let Some(subscriber) = subscriber()
        && let Some(callback) = subscriber.callback
    {
        // SAFETY: the client's own function and data; `data` lives through the call.
        call_client(|| unsafe { callback(subscriber.userdata, domain, cbid, data) });
    }
}

unsafe extern "C" fn correlate(call: *mut ApiCall) {
    // SAFETY: the driver's call, alive on its stack.
    let call = unsafe { &mut *call };
    if call.correlated == 0 {
        call.correlation_id = next_correlation();
        call.correlated = 1;
    }
}

unsafe extern "C" fn enter(call: *mut ApiCall) {
    // SAFETY: as in `correlate`.
    unsafe { api_callback(call, 0) };
}

unsafe extern "C" fn exit(call: *mut ApiCall) {
    // SAFETY: as in `correlate`.
    unsafe { api_callback(call, 1) };
}

unsafe fn api_callback(call: *mut ApiCall, site: u32) {
    // SAFETY: as in `correlate`.
    unsafe {
        correlate(call);
        let call = &mut *call;
        let has_name = !call.symbol.is_null();
        let data = CallbackData {
            site,
            function_name: call.name,
            function_params: call.params,
            return_value: if site == 1 {
                (&raw const call.result).cast()
            } else {
                std::ptr::null()
            },
            symbol_name: if has_name {
                settings::get().name(call.symbol)
            } else {
                call.symbol
            },
            context: call.context,
            context_uid: call.context_id,
            correlation_data: &raw mut call.correlation_data,
            correlation_id: call.correlation_id,
        };
        deliver(call.domain, call.cbid, (&raw const data).cast());
    }
}

unsafe extern "C" fn resource(resource: *const Resource) {
    // SAFETY: the driver's struct, alive through the call.
    let (resource, module) = unsafe { (&*resource, (*resource).module.as_ref()) };
    resource_callback(resource.cbid, resource.context, resource.handle, module);
}

fn resource_callback(
    cbid: u32,
    context: *mut c_void,
    handle: *mut c_void,
    module: Option<&ModuleImage>,
) {
    let module = module.map(|module| {
        let (cubin, size) = odd_modules::told(module);
        let id = module.id;
        ModuleData { id, size, cubin }
    });
    let descriptor = module
        .as_ref()
        .map_or(std::ptr::null(), |module| std::ptr::from_ref(module).cast());
    let data = ResourceData {
        context,
        handle,
        descriptor,
    };
    deliver(DOMAIN_RESOURCE, cbid, (&raw const data).cast());
}

unsafe extern "C" fn synchronized(cbid: u32, context: *mut c_void, stream: *mut c_void) {
    let data = SynchronizeData { context, stream };
    deliver(DOMAIN_SYNCHRONIZE, cbid, (&raw const data).cast());
}

/// A call that switches callbacks takes its time; whether no other began meanwhile. CUPTI's documentation wants the
/// client to make one at a time.
fn is_alone() -> bool {
    static INSIDE: AtomicBool = AtomicBool::new(false);
    if INSIDE.swap(true, Ordering::SeqCst) {
        return false;
    }
    let time = settings::get().switch_time;
    if !time.is_zero() {
        std::thread::sleep(time);
    }
    INSIDE.store(false, Ordering::SeqCst);
    true
}

fn table(driver: &DriverLink, domain: u32) -> Option<&[AtomicU8]> {
    match domain {
        DOMAIN_DRIVER => Some(&driver.driver_callbacks),
        DOMAIN_RUNTIME => Some(&driver.runtime_callbacks),
        DOMAIN_RESOURCE => Some(&driver.resource_callbacks),
        DOMAIN_SYNCHRONIZE => Some(&driver.synchronize_callbacks),
        _ => None,
    }
}

fn known(handle: *mut c_void) -> bool {
    !handle.is_null() && handle == SUBSCRIBER.load(Ordering::Acquire).cast()
}

fn valid(domain: u32, cbid: u32) -> bool {
    (1..SENTINELS.len() as u32).contains(&domain) && (1..SENTINELS[domain as usize]).contains(&cbid)
}

fn set(domain: u32, cbids: std::ops::Range<u32>, on: bool) {
    let Some(driver) = driver() else { return };
    let Some(table) = table(driver, domain) else {
        return;
    };
    for cbid in cbids {
        table[cbid as usize].store(u8::from(on), Ordering::Release);
    }
}

fn silence() {
    for domain in 1..SENTINELS.len() as u32 {
        set(domain, 1..SENTINELS[domain as usize], false);
    }
}

fn subscribe(out: *mut *mut c_void, callback: Callback, userdata: *mut c_void, name: &[u8]) -> i32 {
    if out.is_null() {
        return INVALID_PARAMETER;
    }
    let new = Box::into_raw(Box::new(Subscriber {
        callback,
        userdata,
        name: name.to_vec(),
    }));
    if SUBSCRIBER
        .compare_exchange(
            std::ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .is_err()
    {
        // SAFETY: nobody else has seen it.
        drop(unsafe { Box::from_raw(new) });
        return MULTIPLE_SUBSCRIBERS;
    }
    // SAFETY: the client's out-pointer, checked.
    unsafe { out.write(new.cast()) };
    SUCCESS
}

/// Everything off, for `cuptiFinalize`.
pub fn detach() {
    silence();
    SUBSCRIBER.store(std::ptr::null_mut(), Ordering::Release);
}

cupti_api! {
    /// Becomes the one subscriber.
    fn cuptiSubscribe(subscriber: *mut *mut c_void, callback: Callback, userdata: *mut c_void) {
        subscribe(subscriber, callback, userdata, b"")
    }

    /// As `cuptiSubscribe`, with names; several subscribers are not supported before 13.2.
    fn cuptiSubscribe_v2(out: *mut *mut c_void, callback: Callback, userdata: *mut c_void,
        params: *mut SubscriberParams) {
        let Some(params) = (unsafe { params.as_mut() }) else {
            return subscribe(out, callback, userdata, b"");
        };
        if params.size < size_of::<SubscriberParams>() {
            return INVALID_PARAMETER;
        }
        let name = if params.name.is_null() { b"" } else { unsafe { CStr::from_ptr(params.name) }.to_bytes() };
        let holder = subscriber();
        let result = subscribe(out, callback, userdata, name);
        if result == MULTIPLE_SUBSCRIBERS && !params.old_name.is_null() && params.old_size > 0 {
            let old = holder.map_or(&b""[..], |holder| &holder.name);
            let size = old.len().min(params.old_size - 1);
            unsafe {
                std::ptr::copy_nonoverlapping(old.as_ptr(), params.old_name.cast(), size);
                *params.old_name.add(size) = 0;
            }
        }
        result
    }

    /// Leaves; all callbacks are off, activity and its buffers stay as they are.
    fn cuptiUnsubscribe(subscriber: *mut c_void) {
        if !known(subscriber) {
            return INVALID_PARAMETER;
        }
        detach();
        SUCCESS
    }

    /// Turns one callback on or off.
    fn cuptiEnableCallback(enable: u32, subscriber: *mut c_void, domain: u32, cbid: u32) {
        if !known(subscriber) || !valid(domain, cbid) {
            return INVALID_PARAMETER;
        }
        if !is_alone() && settings::get().strict {
            eprintln!("simulated CUPTI: cuptiEnableCallback beside another one: the results are undefined");
            std::process::abort();
        }
        set(domain, cbid..cbid + 1, enable != 0);
        SUCCESS
    }

    /// Turns all callbacks of a domain on or off.
    fn cuptiEnableDomain(enable: u32, subscriber: *mut c_void, domain: u32) {
        if !known(subscriber) || !(1..SENTINELS.len() as u32).contains(&domain) {
            return INVALID_PARAMETER;
        }
        set(domain, 1..SENTINELS[domain as usize], enable != 0);
        SUCCESS
    }

    /// Turns everything on or off.
    fn cuptiEnableAllDomains(enable: u32, subscriber: *mut c_void) {
        if !known(subscriber) {
            return INVALID_PARAMETER;
        }
        for domain in 1..SENTINELS.len() as u32 {
            set(domain, 1..SENTINELS[domain as usize], enable != 0);
        }
        SUCCESS
    }

    /// Whether a callback is on.
    fn cuptiGetCallbackState(enable: *mut u32, subscriber: *mut c_void, domain: u32, cbid: u32) {
        if enable.is_null() || !known(subscriber) || !valid(domain, cbid) {
            return INVALID_PARAMETER;
        }
        let on = driver().and_then(|driver| table(driver, domain)).map(|table| table[cbid as usize].load(Ordering::Acquire));
        unsafe { enable.write(u32::from(on.unwrap_or(0))) };
        SUCCESS
    }

    /// Name of a function by its id.
    fn cuptiGetCallbackName[driverless](domain: u32, cbid: u32, name: *mut *const c_char) {
        match (name.is_null(), names::callback(domain, cbid)) {
            (false, Some(found)) => {
                unsafe { name.write(found.as_ptr()) };
                SUCCESS
            }
            _ => INVALID_PARAMETER,
        }
    }
}
