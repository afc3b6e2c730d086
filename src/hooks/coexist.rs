//! The program's own calls of CUPTI, for which we step aside.
//!
//! When the program wants CUPTI, what we hold is given up first, with no buffer of ours left inside,
//! and then its call goes through with its own result. [`super::holder`] knows when it lets go, and
//! [`crate::machine`] comes back then. With `PARCAGPU_YIELD=never` we keep what we have and the program
//! gets error 39.
//!
//! The hooks see our own calls too; the mark of [`crate::entry::Inside`] tells them apart.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::holder::{self, TRAMPOLINE, Wish};
use crate::config::YieldMode;
use crate::cupti::locate::file_of;
use crate::cupti::sys::{
    BufferCompleteFunc, BufferRequestFunc, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
    CUPTI_SUCCESS, CUcontext, CUptiResult, CallbackFunc, Domain, SubscriberHandle,
};
use crate::entry::{self, Inside};
use crate::machine::Turn;
use crate::{errors, lifecycle, session, watch};

type Ptr = *mut c_void;

/// Whether a call is our own, or made in a forked child, where nothing is ours to give up.
fn is_ours() -> bool {
    entry::is_inside() || lifecycle::in_forked_child()
}

/// Whether the program is to be refused: it asks for what we have and will not give.
fn is_refused() -> bool {
    session::active().is_some_and(|session| session.config.yield_mode == YieldMode::Never)
}

/// Gives CUPTI up for the module that `user` lies in, before its call goes through. As long as the
/// result lives, nothing of ours comes back.
fn step_aside(user: *const c_void) -> Option<Wish> {
    entry::barrier(None, || {
        let _ours = Inside::nested();
        let wish = Wish::new(file_of(user).unwrap_or_else(|| PathBuf::from("a tool")));
        watch::step_aside(Turn::Begins);
        Some(wish)
    })
}

/// The same for a tool that is about to end its use of CUPTI.
fn step_aside_at_end() -> Option<Wish> {
    entry::barrier(None, || {
        let _ours = Inside::nested();
        let wish = Wish::of_the_last();
        watch::step_aside(Turn::Ends);
        Some(wish)
    })
}

/// The program was refused although we had gone: it uses another copy of libcupti than we did.
fn tell_other_copy(user: *const c_void, result: CUptiResult) {
    if result != CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED {
        return;
    }
    entry::barrier((), || {
        let (Some(api), Some(user)) = (session::get().and_then(|s| s.api()), file_of(user)) else {
            return;
        };
        errors::report(
            result as i32,
            "yield",
            &format!(
                "{} is refused by CUPTI: it brings a copy of libcupti of its own, and {} was in use \
                 before; only one copy can be used in a process",
                user.display(),
                api.path.display()
            ),
        );
    });
}

/// `cuptiSubscribe`.
///
/// # Safety
/// As for the original.
pub unsafe fn subscribe(
    original: unsafe extern "C" fn(*mut SubscriberHandle, CallbackFunc, Ptr) -> CUptiResult,
    handle: *mut SubscriberHandle,
    callback: CallbackFunc,
    data: Ptr,
) -> CUptiResult {
    // SAFETY: the caller's own call.
    let with = |callback| unsafe { original(handle, callback, data) };
    // A second subscriber of the program's gets CUPTI's refusal, and no part in the first one's.
    if is_ours() || is_refused() || holder::subscription().is_some() {
        return with(callback);
    }
    let _wish = step_aside(callback as *const c_void);
    // Of several threads that subscribe at once CUPTI takes one. Which one is known afterwards, so only
    // one of them may go in with a callback of ours.
    static SHARING: AtomicBool = AtomicBool::new(false);
    let shared = !SHARING.swap(true, Ordering::AcqRel);
    let result = with(if shared { TRAMPOLINE } else { callback });
    if result == CUPTI_SUCCESS {
        // SAFETY: CUPTI has just written it.
        holder::subscribed(unsafe { *handle }, shared.then_some(callback));
    } else {
        tell_other_copy(callback as *const c_void, result);
    }
    if shared {
        SHARING.store(false, Ordering::Release);
    }
    result
}

/// `cuptiSubscribe_v2`. What it may ask for beyond `cuptiSubscribe` is the program's business, so its
/// subscription is not shared.
///
/// # Safety
/// As for the original.
pub unsafe fn subscribe_v2(
    original: unsafe extern "C" fn(*mut SubscriberHandle, CallbackFunc, Ptr, Ptr) -> CUptiResult,
    handle: *mut SubscriberHandle,
    callback: CallbackFunc,
    data: Ptr,
    params: Ptr,
) -> CUptiResult {
    let pass = is_ours() || is_refused() || holder::subscription().is_some();
    let _wish = (!pass).then(|| step_aside(callback as *const c_void));
    // SAFETY: the caller's own call.
    let result = unsafe { original(handle, callback, data, params) };
    if !pass && result == CUPTI_SUCCESS {
        // SAFETY: CUPTI has just written it.
        holder::subscribed(unsafe { *handle }, None);
    }
    result
}

/// `cuptiUnsubscribe`.
///
/// # Safety
/// As for the original.
pub unsafe fn unsubscribe(
    original: unsafe extern "C" fn(SubscriberHandle) -> CUptiResult,
    handle: SubscriberHandle,
) -> CUptiResult {
    let foreign = !is_ours() && holder::subscription().is_some();
    let _wish = foreign.then(step_aside_at_end);
    // SAFETY: the caller's own call.
    let result = unsafe { original(handle) };
    if foreign && result == CUPTI_SUCCESS {
        holder::unsubscribed();
    }
    result
}

/// `cuptiActivityRegisterCallbacks`: a tool that only takes records never subscribes.
///
/// # Safety
/// As for the original.
pub unsafe fn register_callbacks(
    original: unsafe extern "C" fn(BufferRequestFunc, BufferCompleteFunc) -> CUptiResult,
    request: BufferRequestFunc,
    complete: BufferCompleteFunc,
) -> CUptiResult {
    let foreign = !is_ours();
    if foreign && is_refused() {
        // CUPTI itself would let it replace our callbacks.
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    }
    let _wish = foreign.then(|| step_aside(complete as *const c_void));
    // SAFETY: the caller's own call.
    let result = unsafe { original(request, complete) };
    if foreign && result == CUPTI_SUCCESS {
        holder::registered(request, complete);
    }
    result
}

/// `cuptiFinalize`: whatever was subscribed and registered is gone after it, ours too.
///
/// # Safety
/// As for the original.
pub unsafe fn finalize(original: unsafe extern "C" fn() -> CUptiResult) -> CUptiResult {
    let foreign = !is_ours();
    let _wish = foreign.then(step_aside_at_end);
    // SAFETY: the caller's own call.
    let result = unsafe { original() };
    if foreign {
        holder::finalized();
    }
    result
}

/// A kind is switched by the program. On: we go first, so that its records go into its buffers.
fn switching(kind: u32, on: bool, call: impl FnOnce() -> CUptiResult) -> CUptiResult {
    if is_ours() {
        return call();
    }
    if on && is_refused() {
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    }
    let _wish = on.then(|| {
        let wish = step_aside(switching_user());
        holder::switched(kind, true);
        wish
    });
    let result = call();
    // An attempt to switch on that failed has nothing on; whatever happened, off is off.
    if !on || result != CUPTI_SUCCESS {
        holder::switched(kind, false);
    }
    result
}

/// A kind is not switched by a function of its user's that we know of; the tool's completion callback
/// tells whose it is.
fn switching_user() -> *const c_void {
    holder::buffer_callbacks().map_or(std::ptr::null(), |(_, complete)| complete as *const c_void)
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident($on:literal, $kind:ident; $($arg:ident: $ty:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As for the original.
            pub unsafe fn $name(
                original: unsafe extern "C" fn($($ty),*) -> CUptiResult,
                $($arg: $ty),*
            ) -> CUptiResult {
                // SAFETY: the caller's own call.
                switching($kind, $on, || unsafe { original($($arg),*) })
            }
        )*
    };
}

kinds! {
    /// `cuptiActivityEnable` and `cuptiActivityEnableAndDump`.
    enable(true, kind; kind: u32);
    /// `cuptiActivityDisable`.
    disable(false, kind; kind: u32);
    /// `cuptiActivityEnableContext`.
    enable_context(true, kind; context: CUcontext, kind: u32);
    /// `cuptiActivityDisableContext`.
    disable_context(false, kind; context: CUcontext, kind: u32);
    /// `cuptiActivityEnable_v2` and `cuptiActivityEnableAndDump_v2`.
    enable_v2(true, kind; subscriber: SubscriberHandle, kind: u32, config: Ptr);
    /// `cuptiActivityDisable_v2`.
    disable_v2(false, kind; subscriber: SubscriberHandle, kind: u32, config: Ptr);
}

fn callbacks_switched(
    domain: Option<Domain>,
    cbid: Option<u32>,
    on: u32,
    result: CUptiResult,
) -> CUptiResult {
    if !is_ours() && result == CUPTI_SUCCESS {
        holder::switched_callbacks(domain, cbid, on != 0);
    }
    result
}

/// `cuptiEnableCallback`.
///
/// # Safety
/// As for the original.
pub unsafe fn enable_callback(
    original: unsafe extern "C" fn(u32, SubscriberHandle, Domain, u32) -> CUptiResult,
    on: u32,
    handle: SubscriberHandle,
    domain: Domain,
    cbid: u32,
) -> CUptiResult {
    // SAFETY: the caller's own call.
    let result = unsafe { original(on, handle, domain, cbid) };
    callbacks_switched(Some(domain), Some(cbid), on, result)
}

/// `cuptiEnableDomain`.
///
/// # Safety
/// As for the original.
pub unsafe fn enable_domain(
    original: unsafe extern "C" fn(u32, SubscriberHandle, Domain) -> CUptiResult,
    on: u32,
    handle: SubscriberHandle,
    domain: Domain,
) -> CUptiResult {
    // SAFETY: the caller's own call.
    let result = unsafe { original(on, handle, domain) };
    callbacks_switched(Some(domain), None, on, result)
}

/// `cuptiEnableAllDomains`.
///
/// # Safety
/// As for the original.
pub unsafe fn enable_all_domains(
    original: unsafe extern "C" fn(u32, SubscriberHandle) -> CUptiResult,
    on: u32,
    handle: SubscriberHandle,
) -> CUptiResult {
    // SAFETY: the caller's own call.
    let result = unsafe { original(on, handle) };
    callbacks_switched(None, None, on, result)
}
