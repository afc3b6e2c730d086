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

use parcagpu_interpose::{Handler, Next};

use super::holder::{self, BufferCallbacks, TRAMPOLINE, Wish};
use crate::config::YieldMode;
use crate::cupti::activity;
use crate::cupti::locate::file_of;
use crate::cupti::sys::{
    BufferCompleteFunc, BufferRequestFunc, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
    CUPTI_SUCCESS, CUptiResult, CallbackFunc, SubscriberHandle,
};
use crate::entry::{self, Inside};
use crate::machine::Turn;
use crate::{errors, lifecycle, session, watch};

type Ptr = *mut c_void;

/// Whether a call is our own, or made in a forked child, where nothing is ours to give up but the
/// subscription ([`leave_inherited`]).
pub(super) fn is_ours() -> bool {
    entry::is_inside() || lifecycle::in_forked_child()
}

/// Whether the program is to be refused: it asks for what we have and will not give.
pub(super) fn is_refused() -> bool {
    session::active().is_some_and(|session| session.config.yield_mode == YieldMode::Never)
}

/// A forked child has its parent's CUPTI in memory, with us as the subscriber. That ends when the child
/// itself subscribes.
fn leave_inherited() {
    if lifecycle::in_forked_child() && !entry::is_inside() {
        entry::guarded((), || {
            if let Some(session) = session::get() {
                session.leave_inherited();
            }
        });
    }
}

/// Gives CUPTI up for the module that `user` lies in, before its call goes through; whether it did.
/// Nothing of ours comes back until [`Wish::end`].
pub(super) fn step_aside(user: *const c_void) -> bool {
    entry::barrier(false, || {
        let _ours = Inside::nested();
        let wish = Wish::new(file_of(user).unwrap_or_else(|| PathBuf::from("a tool")));
        watch::step_aside(Turn::Begins);
        wish.keep();
        true
    })
}

/// The same for a tool that is about to end its use of CUPTI.
fn step_aside_at_end() -> bool {
    entry::barrier(false, || {
        let _ours = Inside::nested();
        let wish = Wish::of_the_last();
        watch::step_aside(Turn::Ends);
        wish.keep();
        true
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

fn address(callback: Option<CallbackFunc>) -> *const c_void {
    callback.map_or(std::ptr::null(), |callback| callback as *const c_void)
}

/// `cuptiSubscribe`.
pub struct Subscribe;

/// Of several threads that subscribe at once CUPTI takes one. Which one is known afterwards, so only
/// one of them may go in with a callback of ours.
static SHARING: AtomicBool = AtomicBool::new(false);

/// In a forked child: no other thread is on its way to CUPTI. Async-signal-safe.
pub fn forget_calls() {
    SHARING.store(false, Ordering::Relaxed);
    holder::forget_calls();
}

/// A program's call on its way to CUPTI.
#[derive(Clone, Copy)]
pub struct Subscribing {
    callback: Option<CallbackFunc>,
    shared: bool,
    wished: bool,
}

type SubscribeArguments = (*mut SubscriberHandle, Option<CallbackFunc>, Ptr);

impl Handler<SubscribeArguments, CUptiResult> for Subscribe {
    type Open = Option<Subscribing>;

    unsafe fn before(
        _frame: usize,
        (handle, callback, data): SubscribeArguments,
    ) -> Next<SubscribeArguments, CUptiResult, Option<Subscribing>> {
        leave_inherited();
        // A second subscriber of the program's gets CUPTI's refusal, and no part in the first one's.
        if is_ours() || is_refused() || holder::subscription().is_some() {
            return Next::Call((handle, callback, data), None);
        }
        let wished = step_aside(address(callback));
        let shared = !SHARING.swap(true, Ordering::AcqRel);
        let ours = if shared { Some(TRAMPOLINE) } else { callback };
        let open = Subscribing {
            callback,
            shared,
            wished,
        };
        Next::Call((handle, ours, data), Some(open))
    }

    unsafe fn after(
        open: Option<Subscribing>,
        (handle, ..): SubscribeArguments,
        result: CUptiResult,
    ) {
        let Some(open) = open else { return };
        if result == CUPTI_SUCCESS {
            // SAFETY: CUPTI has just written it.
            holder::subscribed(unsafe { *handle }, open.shared.then_some(open.callback));
        } else {
            tell_other_copy(address(open.callback), result);
        }
        if open.shared {
            SHARING.store(false, Ordering::Release);
        }
        Wish::end(open.wished);
    }
}

/// `cuptiSubscribe_v2`. What it may ask for beyond `cuptiSubscribe` is the program's business, so its
/// subscription is not shared.
pub struct SubscribeV2;

type SubscribeV2Arguments = (*mut SubscriberHandle, Option<CallbackFunc>, Ptr, Ptr);

impl Handler<SubscribeV2Arguments, CUptiResult> for SubscribeV2 {
    /// Whether it is the program's, and whether we went for it.
    type Open = Option<bool>;

    unsafe fn before(
        _frame: usize,
        arguments: SubscribeV2Arguments,
    ) -> Next<SubscribeV2Arguments, CUptiResult, Option<bool>> {
        leave_inherited();
        let pass = is_ours() || is_refused() || holder::subscription().is_some();
        let wished = (!pass).then(|| step_aside(address(arguments.1)));
        Next::Call(arguments, wished)
    }

    unsafe fn after(wished: Option<bool>, (handle, ..): SubscribeV2Arguments, result: CUptiResult) {
        let Some(wished) = wished else { return };
        if result == CUPTI_SUCCESS {
            // SAFETY: CUPTI has just written it.
            holder::subscribed(unsafe { *handle }, None);
        }
        Wish::end(wished);
    }
}

/// `cuptiUnsubscribe`.
pub struct Unsubscribe;

impl Handler<(SubscriberHandle,), CUptiResult> for Unsubscribe {
    type Open = Option<bool>;

    unsafe fn before(
        _frame: usize,
        handle: (SubscriberHandle,),
    ) -> Next<(SubscriberHandle,), CUptiResult, Option<bool>> {
        let foreign = !is_ours() && holder::subscription().is_some();
        Next::Call(handle, foreign.then(step_aside_at_end))
    }

    unsafe fn after(wished: Option<bool>, _handle: (SubscriberHandle,), result: CUptiResult) {
        let Some(wished) = wished else { return };
        if result == CUPTI_SUCCESS {
            holder::unsubscribed();
        }
        Wish::end(wished);
        watch::look_soon();
    }
}

/// `cuptiActivityRegisterCallbacks`: a tool that only takes records never subscribes. Completed buffers
/// come to us first, in case that one of ours is among them.
pub struct RegisterCallbacks;

type RegisterArguments = (Option<BufferRequestFunc>, Option<BufferCompleteFunc>);

/// A program's call on its way to CUPTI.
#[derive(Clone, Copy)]
pub struct Registering {
    wished: bool,
    /// What was registered before.
    previous: Option<BufferCallbacks>,
    /// It names both functions; CUPTI refuses it otherwise.
    whole: bool,
}

impl Handler<RegisterArguments, CUptiResult> for RegisterCallbacks {
    type Open = Option<Registering>;

    unsafe fn before(
        _frame: usize,
        (request, complete): RegisterArguments,
    ) -> Next<RegisterArguments, CUptiResult, Option<Registering>> {
        if is_ours() {
            return Next::Call((request, complete), None);
        }
        if is_refused() {
            // CUPTI itself would let it replace our callbacks.
            return Next::Return(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
        }
        let user = complete.map_or(std::ptr::null(), |complete| complete as *const c_void);
        let wished = step_aside(user);
        let previous = holder::buffer_callbacks();
        let both = request.zip(complete);
        if both.is_some() {
            // Its first buffer may come back before the call does.
            holder::registered(both);
        }
        let open = Registering {
            wished,
            previous,
            whole: both.is_some(),
        };
        let arguments = match both {
            Some((request, _)) => (Some(request), Some(activity::COMPLETE)),
            None => (request, complete),
        };
        Next::Call(arguments, Some(open))
    }

    unsafe fn after(open: Option<Registering>, _arguments: RegisterArguments, result: CUptiResult) {
        let Some(open) = open else { return };
        if result != CUPTI_SUCCESS && open.whole {
            holder::registered(open.previous);
        }
        Wish::end(open.wished);
    }
}

/// `cuptiFinalize`: whatever was subscribed and registered is gone after it, ours too.
pub struct Finalize;

impl Handler<(), CUptiResult> for Finalize {
    type Open = Option<bool>;

    unsafe fn before(_frame: usize, (): ()) -> Next<(), CUptiResult, Option<bool>> {
        Next::Call((), (!is_ours()).then(step_aside_at_end))
    }

    unsafe fn after(wished: Option<bool>, (): (), result: CUptiResult) {
        if let Some(wished) = wished {
            if result == CUPTI_SUCCESS {
                holder::finalized();
                if let Some(session) = session::get() {
                    session.finalized();
                }
            }
            Wish::end(wished);
            watch::look_soon();
        }
    }
}
