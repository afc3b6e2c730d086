//! Kinds of records and callbacks that the program switches in CUPTI, on and off.
//!
//! For the first that is switched on we step aside, as [`super::coexist`] says.

use std::ffi::c_void;

use parcagpu_interpose::{Handler, Next};

use super::coexist;
use super::holder::{self, Wish};
use crate::cupti::sys::{
    ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, CUPTI_SUCCESS,
    CUcontext, CUptiResult, Domain, SubscriberHandle,
};
use crate::session::{self, Session};

type Ptr = *mut c_void;

/// A kind that the program switches.
#[derive(Clone, Copy)]
pub struct Switching {
    kind: u32,
    on: bool,
    wished: bool,
}

/// On: we go first, so that its records go into its buffers. `Err` is the answer to the program in place of
/// CUPTI's.
fn switching(kind: u32, on: bool) -> Result<Option<Switching>, CUptiResult> {
    if coexist::is_ours() {
        return Ok(None);
    }
    if on && coexist::is_refused() {
        return Err(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
    }
    let pinned = session::get().is_some_and(Session::kernels_are_pinned);
    if !on && kind == ACTIVITY_KIND_CONCURRENT_KERNEL && pinned {
        // Switched off, it could never be switched on again, for the tool neither. Records that come from
        // now on are taken by us.
        holder::switched(kind, false);
        return Err(CUPTI_SUCCESS);
    }
    let wished = on && coexist::step_aside(switching_user());
    if on {
        holder::switched(kind, true);
    }
    Ok(Some(Switching { kind, on, wished }))
}

fn switched(open: Option<Switching>, result: CUptiResult) {
    let Some(open) = open else { return };
    // An attempt to switch on that failed has nothing on; whatever happened, off is off.
    if !open.on || result != CUPTI_SUCCESS {
        holder::switched(open.kind, false);
    }
    Wish::end(open.wished);
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
            pub struct $name;

            impl Handler<($($ty,)*), CUptiResult> for $name {
                type Open = Option<Switching>;

                #[allow(unused_variables, reason = "only the kind matters")]
                unsafe fn before(
                    _frame: usize,
                    arguments: ($($ty,)*),
                ) -> Next<($($ty,)*), CUptiResult, Option<Switching>> {
                    let ($($arg,)*) = arguments;
                    match switching($kind, $on) {
                        Ok(open) => Next::Call(arguments, open),
                        Err(refusal) => Next::Return(refusal),
                    }
                }

                unsafe fn after(
                    open: Option<Switching>,
                    _arguments: ($($ty,)*),
                    result: CUptiResult,
                ) {
                    switched(open, result);
                }
            }
        )*
    };
}

kinds! {
    /// `cuptiActivityEnable` and `cuptiActivityEnableAndDump`.
    Enable(true, kind; kind: u32);
    /// `cuptiActivityDisable`.
    Disable(false, kind; kind: u32);
    /// `cuptiActivityEnableContext`.
    EnableContext(true, kind; context: CUcontext, kind: u32);
    /// `cuptiActivityDisableContext`.
    DisableContext(false, kind; context: CUcontext, kind: u32);
    /// `cuptiActivityEnable_v2` and `cuptiActivityEnableAndDump_v2`.
    EnableV2(true, kind; subscriber: SubscriberHandle, kind: u32, config: Ptr);
    /// `cuptiActivityDisable_v2`.
    DisableV2(false, kind; subscriber: SubscriberHandle, kind: u32, config: Ptr);
}

macro_rules! callbacks {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) => ($domain:expr, $cbid:expr);)*) => {
        $(
            $(#[$doc])*
            pub struct $name;

            impl Handler<(u32, SubscriberHandle, $($ty,)*), CUptiResult> for $name {
                type Open = ();

                unsafe fn before(
                    _frame: usize,
                    arguments: (u32, SubscriberHandle, $($ty,)*),
                ) -> Next<(u32, SubscriberHandle, $($ty,)*), CUptiResult, ()> {
                    Next::Call(arguments, ())
                }

                unsafe fn after(
                    _open: (),
                    (on, _, $($arg,)*): (u32, SubscriberHandle, $($ty,)*),
                    result: CUptiResult,
                ) {
                    if !coexist::is_ours() && result == CUPTI_SUCCESS {
                        holder::switched_callbacks($domain, $cbid, on != 0);
                    }
                }
            }
        )*
    };
}

callbacks! {
    /// `cuptiEnableCallback`.
    EnableCallback(domain: Domain, cbid: u32) => (Some(domain), Some(cbid));
    /// `cuptiEnableDomain`.
    EnableDomain(domain: Domain) => (Some(domain), None);
    /// `cuptiEnableAllDomains`.
    EnableAllDomains() => (None, None);
}
