//! From a call that names something to a name that is kept.

use std::ffi::CStr;

use super::collector::{self, Describe, Message, has, read_sized};
use super::names;
use super::sys::{MESSAGE_CHARS, MESSAGE_REGISTERED, ResourceAttributes, resource};
use super::text::ROOM;
use crate::entry;

/// Runs `act` with a text as a C string, as our own code; without when this thread is in it already.
///
/// # Safety
/// As for [`collector::event`].
pub unsafe fn with_text<R>(fallback: R, text: impl Describe, act: impl FnOnce(&CStr) -> R) -> R {
    entry::guarded(fallback, || {
        let mut room = [0; ROOM];
        let mut event = collector::blank();
        // SAFETY: the caller's promise.
        unsafe { text.describe(&mut event, &mut room) };
        // SAFETY: set to a terminated string, in the room or for ever.
        act(unsafe { CStr::from_ptr(event.message) })
    })
}

/// The program names something.
///
/// # Safety
/// As for [`collector::event`].
pub unsafe fn name(kind: names::Kind, id: u64, text: impl Describe + IsNull) {
    if text.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { with_text((), text, |name| names::name(kind, id, name)) };
}

/// Strings that may be missing.
pub trait IsNull {
    /// Whether there is none.
    fn is_null(&self) -> bool;
}

impl<T> IsNull for *const T {
    fn is_null(&self) -> bool {
        (*self).is_null()
    }
}

/// The program describes a resource: those that have a kind of their own are named.
///
/// # Safety
/// `attributes` is null or as NVTX says.
pub unsafe fn resource(attributes: *mut ResourceAttributes) {
    // SAFETY: the caller's promise.
    let Some(a) = (unsafe { read_sized(attributes.cast_const()) }) else {
        return;
    };
    let kind = match a.identifier_type {
        resource::NATIVE_THREAD => names::Kind::Thread,
        resource::CUDA_DEVICE | resource::CUDART_DEVICE => names::Kind::Device,
        resource::CUDA_STREAM | resource::CUDART_STREAM => names::Kind::Stream,
        _ => return,
    };
    let id = match kind {
        names::Kind::Stream => a.identifier,
        // The union is wider than the number.
        _ => a.identifier & u64::from(u32::MAX),
    };
    let named = (MESSAGE_CHARS..=MESSAGE_REGISTERED).contains(&a.message_type) && a.message != 0;
    if named && has(a.size, 24, 8) {
        let message = Message(a.message_type, a.message);
        // SAFETY: the caller's promise.
        unsafe { with_text((), message, |name| names::name(kind, id, name)) };
    }
}
