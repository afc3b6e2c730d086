//! The contexts of the process, as CUPTI's events and launches tell of them.
//!
//! CUPTI tells of creation and destruction while we are the subscriber, and of nothing before and after. So a
//! context is *confirmed* when CUPTI told of it, or of a launch in it, under the present subscription; only
//! confirmed ones are handed to CUPTI, since another may not exist any more. The lock is held for bookkeeping
//! only.

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

/// See the module.
#[derive(Debug)]
pub struct Contexts {
    entries: Mutex<Vec<Entry>>,
    /// Counts changes after which a launch has to tell its context again; never 0.
    era: AtomicU32,
    /// The context that our thread is handing to CUPTI; 0: none. Set with the lock held.
    used: AtomicUsize,
}

thread_local! {
    // Era, id and address of the context that the last launch of this thread told. No destructor.
    static LAST: Cell<(u32, u32, usize)> = const { Cell::new((0, 0, 0)) };
}

impl Contexts {
    /// None.
    pub fn new() -> Self {
        Self {
            entries: Mutex::new(Vec::new()),
            era: AtomicU32::new(1),
            used: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// CUPTI tells of a new context.
    pub fn created(&self, context: CUcontext) {
        let context = context.0.addr();
        let mut entries = self.lock();
        entries.retain(|entry| entry.context != context);
        entries.push(Entry {
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
        let mut entries = self.lock();
        // An address is used again once its context is gone.
        entries.retain(|entry| entry.context != context || entry.uid.is_none_or(|id| id == uid));
        match entries.iter_mut().find(|entry| entry.context == context) {
            Some(entry) => {
                entry.uid = Some(uid);
                entry.confirmed = true;
            }
            None => entries.push(Entry {
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
        let mut entries = self.lock();
        let at = entries
            .iter()
            .position(|entry| entry.context == context.0.addr())?;
        match entries[at].phase {
            Phase::SettingUp => Some(Phase::SettingUp),
            _ => Some(entries.swap_remove(at).phase),
        }
    }

    /// Forgets a context, whoever is at work on it.
    pub fn forget(&self, context: CUcontext) {
        self.lock()
            .retain(|entry| entry.context != context.0.addr());
    }

    /// The subscription ended: what happens to contexts from now on nobody tells.
    pub fn doubt_all(&self) {
        for entry in self.lock().iter_mut() {
            entry.confirmed = false;
            entry.stale = true;
        }
        self.era.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a context that is to be set up; the caller tells the outcome with [`Self::settle`].
    pub fn to_set_up(&self) -> Option<CUcontext> {
        let mut entries = self.lock();
        let entry = entries
            .iter_mut()
            .find(|entry| entry.phase == Phase::Found && entry.confirmed)?;
        entry.phase = Phase::SettingUp;
        Some(CUcontext(entry.context as *mut _))
    }

    /// Takes this context, if it is to be set up.
    pub fn take(&self, context: CUcontext) -> bool {
        let mut entries = self.lock();
        let entry = entries
            .iter_mut()
            .find(|entry| entry.context == context.0.addr() && entry.phase == Phase::Found);
        entry.map(|entry| entry.phase = Phase::SettingUp).is_some()
    }

    /// How setting a context up ended; nothing if it is gone by now.
    pub fn settle(&self, context: CUcontext, phase: Phase) {
        let mut entries = self.lock();
        if let Some(entry) = entries
            .iter_mut()
            .find(|entry| entry.context == context.0.addr())
        {
            entry.phase = phase;
        }
    }

    /// Whether a context is sampled and certain to exist.
    pub fn is_on(&self, context: CUcontext) -> bool {
        self.lock().iter().any(|entry| {
            entry.context == context.0.addr() && entry.phase == Phase::On && entry.confirmed
        })
    }

    /// The contexts that are sampled and certain to exist, each with whether what it has was sampled while
    /// nobody listened; the caller fetches it.
    pub fn on(&self, into: &mut Vec<(CUcontext, bool)>) {
        into.clear();
        let mut entries = self.lock();
        let on = entries
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
        let entries = self.lock();
        let there = entries.iter().any(|entry| {
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
        let mut entries = self.lock();
        let entry = entries
            .iter_mut()
            .find(|entry| entry.context == context.0.addr());
        entry.is_some_and(|entry| std::mem::take(&mut entry.stale))
    }

    /// CUPTI was finalised: whatever was set up is gone, and found anew by launches.
    pub fn forget_all(&self) {
        self.lock().clear();
        self.era.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody listened for a while, under the same subscription.
    pub fn all_stale(&self) {
        for entry in self.lock().iter_mut() {
            entry.stale = true;
        }
    }
}

impl Default for Contexts {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{Contexts, Phase};
    use crate::cupti::sys::CUcontext;

    fn context(at: usize) -> CUcontext {
        CUcontext(at as *mut _)
    }

    fn on(contexts: &Contexts) -> Vec<usize> {
        let mut list = Vec::new();
        contexts.on(&mut list);
        list.iter().map(|(context, _)| context.0.addr()).collect()
    }

    #[test]
    fn a_context_is_set_up_once_and_forgotten_when_it_goes() {
        let contexts = Contexts::new();
        contexts.created(context(8));
        contexts.launched(context(8), 1);
        assert!(contexts.take(context(8)));
        assert!(!contexts.take(context(8)));
        assert!(contexts.to_set_up().is_none());
        assert!(on(&contexts).is_empty());
        contexts.settle(context(8), Phase::On);
        assert_eq!(on(&contexts), [8]);
        assert_eq!(contexts.destroyed(context(8)), Some(Phase::On));
        assert_eq!(contexts.destroyed(context(8)), None);
        assert!(on(&contexts).is_empty());
    }

    #[test]
    fn one_that_goes_is_waited_for() {
        let contexts = Contexts::new();
        contexts.created(context(8));
        contexts.settle(context(8), Phase::On);
        let mut list = Vec::new();
        contexts.on(&mut list);
        assert!(contexts.use_it(list[0].0));
        assert_eq!(contexts.destroyed(context(8)), Some(Phase::On));
        assert!(contexts.is_used(context(8)));
        contexts.unused();
        assert!(!contexts.is_used(context(8)));
        assert!(!contexts.use_it(list[0].0), "it is gone");
        assert!(!contexts.is_used(context(8)));
    }

    #[test]
    fn after_a_subscription_only_a_launch_confirms() {
        let contexts = Contexts::new();
        contexts.launched(context(8), 1);
        contexts.launched(context(16), 2);
        while let Some(context) = contexts.to_set_up() {
            contexts.settle(context, Phase::On);
        }
        assert_eq!(on(&contexts), [8, 16]);
        contexts.doubt_all();
        assert!(on(&contexts).is_empty());
        contexts.launched(context(16), 2);
        let mut list = Vec::new();
        for stale in [true, false] {
            contexts.on(&mut list);
            assert_eq!(list.len(), 1);
            assert_eq!((list[0].0.0.addr(), list[0].1), (16, stale));
        }
        // The first one is gone, and another is at its address.
        contexts.launched(context(8), 3);
        assert_eq!(on(&contexts), [16]);
        assert_eq!(
            contexts.to_set_up().map(|context| context.0.addr()),
            Some(8)
        );
    }
}
