//! The program's own use of CUPTI, for which we step aside.
//!
//! CUPTI has one subscriber and one pair of buffer callbacks. When the program wants them, what we hold
//! is given up first, with no buffer of ours left inside, and then the program's call goes through
//! with its own result. When the program lets go, [`crate::machine`] comes back. With
//! `PARCAGPU_YIELD=never` we keep what we have and the program gets CUPTI's own refusal.
//!
//! The hooks see our own calls too; the mark of [`crate::entry::Inside`] tells them apart.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::config::YieldMode;
use crate::cupti::locate::file_of;
use crate::cupti::sys::{
    BufferCompleteFunc, BufferRequestFunc, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
    CUPTI_SUCCESS, CUptiResult, CallbackFunc, SubscriberHandle,
};
use crate::entry::{self, Inside};
use crate::{session, watch};

type Ptr = *mut c_void;

/// Nobody else uses CUPTI, as far as we saw.
const FREE: u32 = 0;
/// Somebody else registered buffer callbacks and did not subscribe; nothing tells when that ends.
const BUFFERS: u32 = 1;
/// Somebody else subscribed.
const SUBSCRIBED: u32 = 2;

static HOLDER: AtomicU32 = AtomicU32::new(FREE);

/// Whether somebody else uses CUPTI now.
pub fn is_held() -> bool {
    HOLDER.load(Ordering::Acquire) != FREE
}

/// Whether a call is the program's.
fn is_foreign() -> bool {
    !entry::is_inside()
}

fn never() -> bool {
    session::get().is_some_and(|session| session.config.yield_mode == YieldMode::Never)
}

/// Gives CUPTI up for the module that `user` lies in, before its call goes through. The hold is
/// declared first, so that nothing of ours comes back in between.
fn step_aside(user: *const c_void, hold: u32) -> u32 {
    let before = HOLDER.fetch_max(hold, Ordering::AcqRel);
    entry::barrier((), || {
        let _ours = Inside::nested();
        let holder = file_of(user).unwrap_or_else(|| PathBuf::from("a tool"));
        watch::step_aside(&holder);
    });
    before
}

/// The program's attempt failed: things are as before.
fn not_taken(before: u32) {
    HOLDER.store(before, Ordering::Release);
}

fn subscribing(user: *const c_void, call: impl FnOnce() -> CUptiResult) -> CUptiResult {
    if !is_foreign() || never() {
        return call();
    }
    let before = step_aside(user, SUBSCRIBED);
    let result = call();
    if result != CUPTI_SUCCESS {
        not_taken(before);
    }
    result
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
    subscribing(callback as *const c_void, || unsafe {
        original(handle, callback, data)
    })
}

/// `cuptiSubscribe_v2`.
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
    // SAFETY: the caller's own call.
    subscribing(callback as *const c_void, || unsafe {
        original(handle, callback, data, params)
    })
}

/// `cuptiUnsubscribe`.
///
/// # Safety
/// As for the original.
pub unsafe fn unsubscribe(
    original: unsafe extern "C" fn(SubscriberHandle) -> CUptiResult,
    handle: SubscriberHandle,
) -> CUptiResult {
    // SAFETY: the caller's own call.
    let result = unsafe { original(handle) };
    if is_foreign() && result == CUPTI_SUCCESS {
        HOLDER.store(FREE, Ordering::Release);
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
    if !is_foreign() {
        // SAFETY: the caller's own call.
        return unsafe { original(request, complete) };
    }
    if never() {
        // CUPTI itself would let it replace our callbacks.
        return match session::active() {
            Some(_) => CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
            // SAFETY: the caller's own call.
            None => unsafe { original(request, complete) },
        };
    }
    let before = step_aside(complete as *const c_void, BUFFERS);
    // SAFETY: the caller's own call.
    let result = unsafe { original(request, complete) };
    if result != CUPTI_SUCCESS {
        not_taken(before);
    }
    result
}

/// `cuptiFinalize`: whatever was subscribed and registered is gone after it, ours too.
///
/// # Safety
/// As for the original.
pub unsafe fn finalize(original: unsafe extern "C" fn() -> CUptiResult) -> CUptiResult {
    if is_foreign() && !is_held() {
        step_aside(finalize as *const c_void, SUBSCRIBED);
    }
    // SAFETY: the caller's own call.
    let result = unsafe { original() };
    if is_foreign() {
        HOLDER.store(FREE, Ordering::Release);
    }
    result
}
