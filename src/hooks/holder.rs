//! What the program itself does with CUPTI.
//!
//! CUPTI has one subscriber and one pair of buffer callbacks. The hooks of [`super::coexist`] write down
//! here who took them and which activity kinds he has on. A tool that traces leaves its subscription
//! in place when a trace ends (torch.profiler does, for the rest of the process) and switches its
//! kinds off. From then on, until it wants something again, records can be had beside it: its
//! subscription was made with a callback of ours, which passes everything on that the tool asked for,
//! and its buffer callbacks are known, so that they can be put back.

use std::cell::Cell;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::config::ApiCallbacks;
use crate::cupti::sys::{
    BufferCompleteFunc, BufferRequestFunc, CallbackFunc, DOMAIN_DRIVER_API, Domain,
    SubscriberHandle,
};
use crate::cupti::{callbacks, launch_functions};
use crate::sheltered::Sheltered;
use crate::{clock, entry, session};

/// How long a tool has to be quiet after its last kind went off.
const QUIET: u64 = 2_000_000_000;
/// Kinds that fit the set; higher ones are not kernel records and are not told apart.
const KINDS: u32 = 64;

/// The tool's subscription.
struct Subscription {
    present: AtomicBool,
    /// Made through [`TRAMPOLINE`], so that we can share it.
    shared: AtomicBool,
    handle: AtomicPtr<c_void>,
    callback: AtomicPtr<()>,
    /// Bit `i`: the tool has the callback of launch function `i` on.
    launches: AtomicU64,
}

static SUBSCRIPTION: Subscription = Subscription {
    present: AtomicBool::new(false),
    shared: AtomicBool::new(false),
    handle: AtomicPtr::new(std::ptr::null_mut()),
    callback: AtomicPtr::new(std::ptr::null_mut()),
    launches: AtomicU64::new(0),
};

/// Activity kinds the tool has on, by number.
static ACTIVE_KINDS: AtomicU64 = AtomicU64::new(0);
/// When its last kind went off, `CLOCK_MONOTONIC` ns; 0: it never had one on.
static QUIET_SINCE: AtomicU64 = AtomicU64::new(0);
static REQUEST: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static COMPLETE: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Calls of the program's on their way to CUPTI, for which we have gone already.
static WISHES: AtomicU32 = AtomicU32::new(0);
static TURNS: AtomicU32 = AtomicU32::new(0);
static NAME: Sheltered<PathBuf> = Sheltered::new();

/// While it exists, CUPTI counts as held.
pub struct Wish(());

/// A tool's buffer callbacks.
pub type BufferCallbacks = (BufferRequestFunc, BufferCompleteFunc);

impl Wish {
    /// The module `of` is about to ask for CUPTI.
    pub fn new(of: PathBuf) -> Self {
        if !is_held() {
            TURNS.fetch_add(1, Ordering::AcqRel);
        }
        WISHES.fetch_add(1, Ordering::AcqRel);
        if let Some(mut name) = NAME.lock() {
            *name = Some(of);
        }
        Self(())
    }

    /// Who asked last is about to end what he does with CUPTI.
    pub fn of_the_last() -> Self {
        WISHES.fetch_add(1, Ordering::AcqRel);
        Self(())
    }

    /// It goes on until [`Self::end`].
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// The call that a wish was kept for has returned.
    pub fn end(kept: bool) {
        if kept {
            drop(Self(()));
        }
    }
}

impl Drop for Wish {
    fn drop(&mut self) {
        // One that was begun before a fork counts no more.
        let _ = WISHES.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
    }
}

/// In a forked child: no other thread is on its way to CUPTI. Async-signal-safe.
pub fn forget_calls() {
    WISHES.store(0, Ordering::Relaxed);
}

/// How often CUPTI came to be held.
pub fn turns() -> u32 {
    TURNS.load(Ordering::Acquire)
}

/// The module that asked for CUPTI last.
pub fn name() -> String {
    let name = NAME.lock();
    name.as_ref().and_then(|name| name.as_ref()).map_or_else(
        || "another tool".to_owned(),
        |path| path.to_string_lossy().into_owned(),
    )
}

/// Whether the program uses CUPTI at this moment, or may at any.
pub fn is_held() -> bool {
    if WISHES.load(Ordering::Acquire) != 0 || ACTIVE_KINDS.load(Ordering::Acquire) != 0 {
        return true;
    }
    let subscribed = SUBSCRIPTION.present.load(Ordering::Acquire);
    let buffers = !COMPLETE.load(Ordering::Acquire).is_null();
    if !subscribed && !buffers {
        return false;
    }
    // Runtime callbacks are not told apart, so they are not shared.
    let runtime = session::get().is_some_and(|s| s.config.api_callbacks == ApiCallbacks::Runtime);
    if subscribed && (runtime || !SUBSCRIPTION.shared.load(Ordering::Acquire)) {
        return true;
    }
    // A tool that never had a kind on may be one that takes callbacks or counters only; what would
    // disturb it is not known.
    match QUIET_SINCE.load(Ordering::Acquire) {
        0 => true,
        since => clock::monotonic_ns().saturating_sub(since) < QUIET,
    }
}

/// The tool's subscription, to be shared while [`is_held`] says no.
pub fn subscription() -> Option<SubscriberHandle> {
    SUBSCRIPTION
        .present
        .load(Ordering::Acquire)
        .then(|| SubscriberHandle(SUBSCRIPTION.handle.load(Ordering::Acquire)))
}

/// What a tool subscribes with in place of its own callback, so that its subscription can be shared.
pub const TRAMPOLINE: CallbackFunc = trampoline;

/// A tool has subscribed; with [`TRAMPOLINE`] in place of its own callback in `shared`, if that is given.
pub fn subscribed(handle: SubscriberHandle, shared: Option<Option<CallbackFunc>>) {
    let callback = shared
        .flatten()
        .map_or(std::ptr::null_mut(), |callback| callback as *mut ());
    SUBSCRIPTION.callback.store(callback, Ordering::Release);
    SUBSCRIPTION.launches.store(0, Ordering::Release);
    // Quiet since its last trace is not quiet since now: it is about to begin the next one.
    if QUIET_SINCE.load(Ordering::Acquire) != 0 {
        QUIET_SINCE.store(clock::monotonic_ns().max(1), Ordering::Release);
    }
    SUBSCRIPTION.handle.store(handle.0, Ordering::Release);
    SUBSCRIPTION
        .shared
        .store(shared.is_some(), Ordering::Release);
    SUBSCRIPTION.present.store(true, Ordering::Release);
}

/// The tool's subscription is gone.
pub fn unsubscribed() {
    SUBSCRIPTION.present.store(false, Ordering::Release);
    SUBSCRIPTION.launches.store(0, Ordering::Release);
}

/// The tool named its buffer callbacks.
pub fn registered(callbacks: Option<BufferCallbacks>) {
    let (request, complete) = callbacks.map_or(
        (std::ptr::null_mut(), std::ptr::null_mut()),
        |(request, complete)| (request as *mut (), complete as *mut ()),
    );
    REQUEST.store(request, Ordering::Release);
    COMPLETE.store(complete, Ordering::Release);
}

/// The tool's buffer callbacks, to be put back when it wants CUPTI again.
pub fn buffer_callbacks() -> Option<BufferCallbacks> {
    let (request, complete) = (
        REQUEST.load(Ordering::Acquire),
        COMPLETE.load(Ordering::Acquire),
    );
    if request.is_null() || complete.is_null() {
        return None;
    }
    // SAFETY: both were stored from functions of these types; a tool's functions stay mapped as long
    // as they are registered with CUPTI.
    Some(unsafe {
        (
            std::mem::transmute::<*mut (), BufferRequestFunc>(request),
            std::mem::transmute::<*mut (), BufferCompleteFunc>(complete),
        )
    })
}

/// The tool finalised CUPTI: nothing of it is left.
pub fn finalized() {
    unsubscribed();
    registered(None);
    ACTIVE_KINDS.store(0, Ordering::Release);
}

/// The tool switched a kind.
pub fn switched(kind: u32, on: bool) {
    let bit = 1 << kind.min(KINDS - 1);
    let before = match on {
        true => ACTIVE_KINDS.fetch_or(bit, Ordering::AcqRel),
        false => ACTIVE_KINDS.fetch_and(!bit, Ordering::AcqRel),
    };
    if !on && before == bit {
        QUIET_SINCE.store(clock::monotonic_ns().max(1), Ordering::Release);
    }
}

/// The tool switched callbacks: one, a domain, or all.
pub fn switched_callbacks(domain: Option<Domain>, cbid: Option<u32>, on: bool) {
    if domain.is_some_and(|domain| domain != DOMAIN_DRIVER_API) {
        return;
    }
    let bits = cbid.map_or(u64::MAX, |cbid| {
        launch_functions::launch_bit(cbid).unwrap_or(0)
    });
    match on {
        true => SUBSCRIPTION.launches.fetch_or(bits, Ordering::AcqRel),
        false => SUBSCRIPTION.launches.fetch_and(!bits, Ordering::AcqRel),
    };
}

/// Whether the tool wants this callback, as opposed to us alone.
pub fn wants_callback(domain: Domain, cbid: u32) -> bool {
    if domain != DOMAIN_DRIVER_API || !SUBSCRIPTION.present.load(Ordering::Acquire) {
        return SUBSCRIPTION.present.load(Ordering::Acquire);
    }
    launch_functions::launch_bit(cbid)
        .is_none_or(|bit| SUBSCRIPTION.launches.load(Ordering::Acquire) & bit != 0)
}

thread_local! {
    /// An address on the stack above the tool's callback that runs on this thread; 0: none does.
    static CALLBACK_FRAME: Cell<usize> = const { Cell::new(0) };
}

/// Whether a callback of the tool's that CUPTI called is open on this thread. CUPTI must not be flushed
/// from inside one.
pub fn is_in_callback() -> bool {
    let here = 0_u8;
    // One that was left by a jump is none.
    CALLBACK_FRAME.get() > std::ptr::from_ref(&here).addr()
}

/// Calls a function of the tool's on CUPTI's behalf.
pub fn in_callback(call: impl FnOnce()) {
    let here = 0_u8;
    let outer = CALLBACK_FRAME.replace(std::ptr::from_ref(&here).addr());
    call();
    CALLBACK_FRAME.set(outer);
}

/// What a tool's subscription calls: us, if we share it, and the tool.
unsafe extern "C" fn trampoline(
    userdata: *mut c_void,
    domain: Domain,
    cbid: u32,
    data: *const c_void,
) {
    // SAFETY: CUPTI's arguments, passed on as they came.
    unsafe { callbacks::CALLBACK(userdata, domain, cbid, data) };
    // A driver call that we make ourselves is not the tool's business.
    if entry::is_inside() {
        return;
    }
    let callback = SUBSCRIPTION.callback.load(Ordering::Acquire);
    if !callback.is_null() && wants_callback(domain, cbid) {
        // SAFETY: stored from a function of this type, which the tool keeps while it is subscribed.
        let callback: CallbackFunc =
            unsafe { std::mem::transmute::<*mut (), CallbackFunc>(callback) };
        // SAFETY: as above.
        in_callback(|| unsafe { callback(userdata, domain, cbid, data) });
    }
}

#[cfg(test)]
mod tests {
    use super::{is_held, subscribed, switched, switched_callbacks, unsubscribed, wants_callback};
    use crate::cupti::sys::{DOMAIN_DRIVER_API, DOMAIN_RESOURCE, SubscriberHandle, driver_cbid};

    // One test, since there is one holder in a process.
    #[test]
    fn a_tool_holds_cupti_until_it_was_quiet_for_a_while_or_left() {
        assert!(!is_held());
        subscribed(
            SubscriberHandle(std::ptr::null_mut()),
            Some(Some(super::TRAMPOLINE)),
        );
        assert!(is_held(), "never had a kind on");

        let launch = driver_cbid::LAUNCH_KERNEL;
        assert!(!wants_callback(DOMAIN_DRIVER_API, launch));
        switched_callbacks(Some(DOMAIN_RESOURCE), None, true);
        assert!(!wants_callback(DOMAIN_DRIVER_API, launch));
        assert!(wants_callback(DOMAIN_DRIVER_API, 1), "cuInit is no launch");
        switched_callbacks(Some(DOMAIN_DRIVER_API), Some(launch), true);
        assert!(wants_callback(DOMAIN_DRIVER_API, launch));
        assert!(!wants_callback(
            DOMAIN_DRIVER_API,
            driver_cbid::GRAPH_LAUNCH
        ));
        switched_callbacks(None, None, false);
        assert!(!wants_callback(DOMAIN_DRIVER_API, launch));

        switched(10, true);
        switched(3, true);
        switched(10, false);
        assert!(is_held(), "one kind is on");
        let before = crate::clock::monotonic_ns();
        switched(3, false);
        let held = is_held();
        let took = crate::clock::monotonic_ns() - before;
        assert!(held || took >= super::QUIET, "went off just now");
        super::QUIET_SINCE.store(1, std::sync::atomic::Ordering::Release);
        assert!(!is_held());
        subscribed(
            SubscriberHandle(std::ptr::null_mut()),
            Some(Some(super::TRAMPOLINE)),
        );
        assert!(is_held(), "subscribed anew just now");
        super::QUIET_SINCE.store(1, std::sync::atomic::Ordering::Release);
        assert!(!is_held());
        subscribed(SubscriberHandle(std::ptr::null_mut()), None);
        assert!(is_held(), "a subscription that cannot be shared");
        unsubscribed();
        assert!(!is_held());
    }
}
