//! The contexts of the process, as CUPTI's events and launches tell of them.
//!
//! CUPTI tells of creation and destruction while we are the subscriber, and of nothing before and after. So a
//! context is *confirmed* when CUPTI told of it, or of a launch in it, under the present subscription; only
//! confirmed ones are handed to CUPTI, since another may not exist any more. The lock is held for bookkeeping
//! only.
//!
//! One context at a time is sampled. With a second one CUPTI ends itself in the middle of the program, which
//! crashes if another thread is inside (measured on an H200 with CUDA 13.0, four threads with contexts that come and
//! go: two at a time, segmentation fault 2 of 2, once with all calls of PC sampling one after the other; one at a
//! time: none in 8).

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::cupti::sys::CUcontext;

/// How far a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Known, nothing was done.
    Found,
    /// A thread is setting it up.
    SettingUp,
    /// Sampled.
    On,
    /// CUPTI refused; told.
    Refused,
}

#[derive(Debug)]
struct Entry {
    context: usize,
    /// CUPTI's id, which no second context gets; `None` until a launch told it.
    uid: Option<u32>,
    phase: Phase,
    confirmed: bool,
    /// What it has was sampled while nobody listened.
    stale: bool,
}

#[derive(Debug, Default)]
struct Known {
    entries: Vec<Entry>,
    /// The context that CUPTI samples, or may; 0: none. It stays so when its entry is in doubt or refused, and
    /// until its end is over.
    sampled: usize,
}

impl Known {
    fn begin(&mut self, at: usize) -> CUcontext {
        let entry = &mut self.entries[at];
        entry.phase = Phase::SettingUp;
        self.sampled = entry.context;
        CUcontext(entry.context as *mut _)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Contexts {
    known: Mutex<Known>,
    /// Counts changes after which a launch has to tell its context again; never 0.
    era: AtomicU32,
    /// The context that our thread is handing to CUPTI; 0: none. Set with the lock held.
    used: AtomicUsize,
    /// Called when none is sampled any more, with the lock held: before another one can be taken.
    ended: fn(),
}

thread_local! {
    // Era, id and address of the context that the last launch of this thread told. No destructor.
    static LAST: Cell<(u32, u32, usize)> = const { Cell::new((0, 0, 0)) };
}

impl Contexts {
    /// None. `ended` is called each time that the sampled one is so no more; it does not wait.
    pub fn new(ended: fn()) -> Self {
        Self {
            known: Mutex::new(Known::default()),
            era: AtomicU32::new(1),
            used: AtomicUsize::new(0),
            ended,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn let_go(&self, known: &mut Known, context: usize) {
        if context != 0 && known.sampled == context {
            (self.ended)();
            known.sampled = 0;
        }
    }

    /// Another context is at this address now, so the earlier one is gone.
    fn is_new_at(&self, known: &mut Known, context: usize) {
        known.entries.retain(|entry| entry.context != context);
        self.let_go(known, context);
    }

    /// CUPTI tells of a new context.
    pub fn created(&self, context: CUcontext) {
        let context = context.0.addr();
        let mut known = self.lock();
        self.is_new_at(&mut known, context);
        known.entries.push(Entry {
            context,
            uid: None,
            phase: Phase::Found,
            confirmed: true,
            stale: false,
        });
    }

    /// A sampled launch was in this context.
    pub fn launched(&self, context: CUcontext, uid: u32) {
        let context = context.0.addr();
        let now = (self.era.load(Ordering::Relaxed), uid, context);
        if LAST.get() == now || context == 0 {
            return;
        }
        LAST.set(now);
        let mut known = self.lock();
        // An address is used again once its context is gone.
        let another =
            |entry: &Entry| entry.context == context && entry.uid.is_some_and(|id| id != uid);
        if known.entries.iter().any(another) {
            self.is_new_at(&mut known, context);
        }
        let mut entries = known.entries.iter_mut();
        match entries.find(|entry| entry.context == context) {
            Some(entry) => {
                entry.uid = Some(uid);
                entry.confirmed = true;
            }
            None => known.entries.push(Entry {
                context,
                uid: Some(uid),
                phase: Phase::Found,
                confirmed: true,
                stale: false,
            }),
        }
    }

    /// CUPTI tells that a context goes: it is forgotten, unless a thread is setting it up. Gives how far it
    /// was.
    pub fn destroyed(&self, context: CUcontext) -> Option<Phase> {
        let entries = &mut self.lock().entries;
        let at = entries
            .iter()
            .position(|entry| entry.context == context.0.addr())?;
        match entries[at].phase {
            Phase::SettingUp => Some(Phase::SettingUp),
            _ => Some(entries.swap_remove(at).phase),
        }
    }

    /// Forgets a context, whoever is at work on it. Gives how far it was, if it was known.
    pub fn forget(&self, context: CUcontext) -> Option<Phase> {
        let entries = &mut self.lock().entries;
        let mut known = entries.iter();
        let at = known.position(|entry| entry.context == context.0.addr())?;
        Some(entries.swap_remove(at).phase)
    }

    /// Whether this is the context that CUPTI samples, or may.
    pub fn is_sampled(&self, context: CUcontext) -> bool {
        self.lock().sampled == context.0.addr()
    }

    /// CUPTI does not sample a context any more, if it did: another one may be.
    pub fn release(&self, context: CUcontext) {
        let mut known = self.lock();
        self.let_go(&mut known, context.0.addr());
    }

    /// The subscription ended: what happens to contexts from now on nobody tells.
    pub fn doubt_all(&self) {
        for entry in &mut self.lock().entries {
            entry.confirmed = false;
            entry.stale = true;
        }
        self.era.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a context that is to be set up while none is sampled: one that launches, else, if `idle_too`, any. The
    /// caller tells the outcome with [`Self::settle`].
    pub fn to_set_up(&self, idle_too: bool) -> Option<CUcontext> {
        let mut known = self.lock();
        if known.sampled != 0 {
            return None;
        }
        let waits = |entry: &Entry| entry.phase == Phase::Found && entry.confirmed;
        let launches = |entry: &Entry| waits(entry) && entry.uid.is_some();
        let entries = &known.entries;
        let at = entries.iter().position(launches);
        let at = at.or_else(|| entries.iter().position(waits).filter(|_| idle_too))?;
        Some(known.begin(at))
    }

    /// Takes this context, if it is to be set up and none is sampled.
    pub fn take(&self, context: CUcontext) -> bool {
        let mut known = self.lock();
        let waits =
            |entry: &Entry| entry.context == context.0.addr() && entry.phase == Phase::Found;
        let at = known.entries.iter().position(waits);
        let at = at.filter(|_| known.sampled == 0);
        at.map(|at| known.begin(at)).is_some()
    }

    /// Whether a context has launches and waits for the end of the one that is sampled.
    pub fn is_any_left_out(&self) -> bool {
        let known = self.lock();
        let waits = |entry: &Entry| entry.phase == Phase::Found && entry.confirmed;
        known.sampled != 0 && known.entries.iter().any(|e| waits(e) && e.uid.is_some())
    }

    /// How setting up a context that was taken ended. `begun`: CUPTI samples it, or may. False: it is not known
    /// any more, since it is being destroyed by a thread that did not wait.
    pub fn settle(&self, context: CUcontext, phase: Phase, begun: bool) -> bool {
        let mut known = self.lock();
        let mut entries = known.entries.iter();
        let at = entries.position(|entry| entry.context == context.0.addr());
        if let Some(at) = at {
            // Behind the others, which come first the next time.
            let mut entry = known.entries.remove(at);
            entry.phase = phase;
            known.entries.push(entry);
        }
        // At once: a moment later it could be another context at this address that is let go.
        if !begun {
            self.let_go(&mut known, context.0.addr());
        }
        at.is_some()
    }

    /// CUPTI gives nothing of a context that it samples still.
    pub fn refuse(&self, context: CUcontext) {
        let mut known = self.lock();
        let mut entries = known.entries.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.context == context.0.addr()) {
            entry.phase = Phase::Refused;
        }
    }

    /// Whether a context is sampled and certain to exist.
    pub fn is_on(&self, context: CUcontext) -> bool {
        self.lock().entries.iter().any(|entry| {
            entry.context == context.0.addr() && entry.phase == Phase::On && entry.confirmed
        })
    }

    /// The contexts that are sampled and certain to exist, each with whether what it has was sampled while
    /// nobody listened; the caller fetches it.
    pub fn on(&self, into: &mut Vec<(CUcontext, bool)>) {
        into.clear();
        let mut known = self.lock();
        let on = known
            .entries
            .iter_mut()
            .filter(|entry| entry.phase == Phase::On && entry.confirmed);
        into.extend(on.map(|entry| {
            let stale = std::mem::take(&mut entry.stale);
            (CUcontext(entry.context as *mut _), stale)
        }));
    }

    /// Begins to use a context of the list that [`Self::on`] gave, if it is still there: until
    /// [`Self::unused`], nobody may end it who asks [`Self::is_used`]. One at a time.
    pub fn use_it(&self, context: CUcontext) -> bool {
        let known = self.lock();
        let there = known.entries.iter().any(|entry| {
            entry.context == context.0.addr() && entry.phase == Phase::On && entry.confirmed
        });
        if there {
            self.used.store(context.0.addr(), Ordering::Release);
        }
        there
    }

    /// The end of [`Self::use_it`].
    pub fn unused(&self) {
        self.used.store(0, Ordering::Release);
    }

    /// Whether our thread is using a context that was forgotten before this was asked.
    pub fn is_used(&self, context: CUcontext) -> bool {
        self.used.load(Ordering::Acquire) == context.0.addr()
    }

    /// Whether what a context has was sampled while nobody listened; the caller fetches it.
    pub fn take_stale(&self, context: CUcontext) -> bool {
        let mut known = self.lock();
        let mut entries = known.entries.iter_mut();
        let entry = entries.find(|entry| entry.context == context.0.addr());
        entry.is_some_and(|entry| std::mem::take(&mut entry.stale))
    }

    /// CUPTI was finalised: whatever was set up is gone, and found anew by launches.
    pub fn forget_all(&self) {
        let mut known = self.lock();
        let sampled = known.sampled;
        self.let_go(&mut known, sampled);
        *known = Known::default();
        self.era.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody listened for a while, under the same subscription.
    pub fn all_stale(&self) {
        for entry in &mut self.lock().entries {
            entry.stale = true;
        }
    }
}

#[cfg(test)]
mod tests;
