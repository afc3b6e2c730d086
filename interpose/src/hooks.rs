//! Sets of functions to be replaced, and their installation in one library.
//!
//! Everything here runs at load time, under the watch's lock (proved by a
//! [`Token`]), with nobody running in the library yet.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::time::Instant;

use crate::code::{self, Refusal};
use crate::engine::{self, Choice, EngineKind};
use crate::image::{Image, Place};
use crate::permit;
use crate::report::{Outcome, Report};
use crate::symbols::{Function, Symbols};
use crate::transaction::{Target, transact};
use crate::watch::Token;

/// How many mapped copies of a library are hooked at the same time.
pub const COPIES: usize = 4;
/// Bytes of the first hooked function kept to tell a reload.
const KEPT: usize = 16;

/// What runs the original of one function, for each copy of its library.
pub struct Originals([AtomicPtr<()>; COPIES]);

impl Originals {
    /// No copy yet.
    #[allow(
        clippy::new_without_default,
        reason = "only for statics made by `hooks!`"
    )]
    pub const fn new() -> Originals {
        Originals([const { AtomicPtr::new(ptr::null_mut()) }; COPIES])
    }

    /// The original for a copy; not null in an entry of that copy, since it is
    /// published before the entry can be reached.
    #[inline(always)]
    pub fn get<const COPY: usize>(&self) -> *mut () {
        // Relaxed will do: the call depends on the value, and what it calls was
        // written before the jump that led here.
        self.0[COPY].load(Ordering::Relaxed)
    }
}

/// One function of a set: made by [`hooks!`](crate::hooks).
pub struct Hook {
    name: &'static str,
    entries: [*const (); COPIES],
    originals: &'static Originals,
}

// SAFETY: the pointers are addresses of functions, which any thread may use.
unsafe impl Sync for Hook {}

impl Hook {
    /// A function's exported name, its entry for each copy, and where the
    /// originals go.
    pub const fn new(
        name: &'static str,
        entries: [*const (); COPIES],
        originals: &'static Originals,
    ) -> Hook {
        Hook {
            name,
            entries,
            originals,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn entry(&self, copy: usize) -> *const () {
        self.entries[copy]
    }

    /// Says what runs the original, before the entry can be reached.
    pub(crate) fn publish(&self, copy: usize, original: *mut ()) {
        self.originals.0[copy].store(original, Ordering::Release);
    }
}

/// The functions to be replaced in every copy of one library: made by
/// [`hooks!`](crate::hooks).
pub struct HookSet {
    hooks: &'static [Hook],
    wanted: AtomicU8,
    state: UnsafeCell<State>,
}

struct State {
    copies: [Option<Copy>; COPIES],
    beyond: usize,
}

/// A hooked, mapped copy.
struct Copy {
    place: Place,
    /// A function of it, and how it looks hooked.
    function: usize,
    patched: [u8; KEPT],
}

// SAFETY: the state is only reached with a Token, of which there is one at a
// time; the rest is constant or atomic.
unsafe impl Sync for HookSet {}

/// An engine at work. Engines have locks, which a process that was forked
/// meanwhile has from its parent, held by a thread that it does not have: there
/// no engine is asked for anything.
struct Work(());

static AT_WORK: AtomicBool = AtomicBool::new(false);

impl Work {
    /// Called with the token: nobody else is at work in this process.
    fn begin() -> Option<Work> {
        // Not `then_some`: a guard that is made and not given out would end it.
        (!AT_WORK.swap(true, Ordering::Acquire)).then(|| Work(()))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        AT_WORK.store(false, Ordering::Release);
    }
}

impl HookSet {
    /// A set; all its handlers are wanted.
    pub const fn new(hooks: &'static [Hook]) -> HookSet {
        HookSet {
            hooks,
            wanted: AtomicU8::new(u8::MAX),
            state: UnsafeCell::new(State {
                copies: [const { None }; COPIES],
                beyond: 0,
            }),
        }
    }

    /// Chooses whether functions of these groups call their handlers; if not,
    /// a call goes straight to the original. Several threads may choose at
    /// once: each changes its own groups only.
    pub fn want(&self, groups: u8, on: bool) {
        match on {
            true => self.wanted.fetch_or(groups, Ordering::Relaxed),
            false => self.wanted.fetch_and(!groups, Ordering::Relaxed),
        };
    }

    /// Whether functions of one of the groups call their handlers.
    #[inline(always)]
    pub fn wants(&self, groups: u8) -> bool {
        self.wanted.load(Ordering::Relaxed) & groups != 0
    }

    #[allow(clippy::mut_from_ref, reason = "the token is the exclusive borrow")]
    fn state<'a>(&'a self, _token: &'a mut Token) -> &'a mut State {
        // SAFETY: one Token exists at a time, and it is borrowed as long as
        // the state is.
        unsafe { &mut *self.state.get() }
    }

    /// The library at that place was unmapped.
    pub(crate) fn forget(&self, place: Place, token: &mut Token) {
        for slot in &mut self.state(token).copies {
            slot.take_if(|copy| copy.place == place);
        }
    }

    /// Whether the copy at that place is not the one that was hooked, but was
    /// mapped there since. `covers` says what of it is mapped code now.
    pub(crate) fn is_stale(
        &self,
        place: Place,
        covers: impl Fn(usize, usize) -> bool,
        token: &mut Token,
    ) -> bool {
        let copies = self.state(token).copies.iter().flatten();
        let Some(copy) = copies.into_iter().find(|copy| copy.place == place) else {
            // Not hooked: nothing of us to lose.
            return false;
        };
        if !covers(copy.function, KEPT) {
            return true;
        }
        // SAFETY: mapped code, as just said, and the loader keeps it so while
        // the watch looks.
        let now = unsafe { ptr::read_unaligned(copy.function as *const [u8; KEPT]) };
        // A breakpoint on our jump is no reload.
        now != copy.patched && now[0] != 0xcc
    }

    /// Replaces what can be replaced in a library that nobody runs yet.
    pub(crate) fn install(
        &self,
        image: &Image,
        choice: Choice,
        report: &mut Report,
        token: &mut Token,
    ) {
        let started = Instant::now();
        report.outcome = self.try_install(image, choice, report, token);
        report.took = started.elapsed();
    }

    fn try_install(
        &self,
        image: &Image,
        choice: Choice,
        report: &mut Report,
        token: &mut Token,
    ) -> Outcome {
        let state = self.state(token);
        let place = image.place;
        let reload = |c: &Option<Copy>| c.as_ref().is_some_and(|c| c.place == place);
        let slot = state
            .copies
            .iter()
            .position(reload)
            .or_else(|| state.copies.iter().position(Option::is_none));
        let Some(copy) = slot else {
            state.beyond += 1;
            return Outcome::TooManyCopies(state.beyond);
        };
        state.copies[copy] = None;
        let kind = engine::kind_of(choice);
        report.reason = engine::reason(choice, kind);
        if kind == EngineKind::None {
            return Outcome::NoEngine;
        }
        let targets = match self.targets(image, kind.needs(), report) {
            Ok(targets) => targets,
            Err(outcome) => return outcome,
        };
        // Before the engine starts, which may write code of its own.
        if let Err(reason) = permit::check(targets[0].1) {
            return Outcome::NotPermitted(reason);
        }
        let Some(_work) = Work::begin() else {
            let why = "this process was forked from one that was just hooking";
            return Outcome::NotPermitted(why.to_owned());
        };
        let Some(mut engine) = engine::build(kind) else {
            return Outcome::NoEngine;
        };
        report.engine = kind;
        // SAFETY: checked functions of a library that nobody runs yet.
        let installed = match unsafe { transact(&mut *engine, &targets, copy, &mut report.refused) }
        {
            Ok(installed) => installed,
            Err(words) => {
                report.engine = EngineKind::None;
                return Outcome::RolledBack(words);
            }
        };
        let Some(&(_, function)) = installed.first() else {
            report.engine = EngineKind::None;
            return Outcome::NothingToHook;
        };
        let patched = image.read(function).unwrap_or([0; KEPT]);
        state.copies[copy] = Some(Copy {
            place,
            function,
            patched,
        });
        report.copy = Some(copy);
        report.hooked = installed.iter().map(|(hook, _)| hook.name).collect();
        Outcome::Hooked
    }

    /// Functions of the library that may be hooked; the others are reported.
    fn targets(
        &self,
        image: &Image,
        need: usize,
        report: &mut Report,
    ) -> Result<Vec<Target>, Outcome> {
        let Some(symbols) = Symbols::of(image) else {
            return Err(Outcome::Unreadable("it has no symbol table".to_owned()));
        };
        let mut targets: Vec<Target> = Vec::new();
        for hook in self.hooks {
            let known = |f: Function| {
                let same = targets.iter().find(|&&(_, address)| address == f.address);
                same.map_or(Ok(f), |(hook, _)| Err(Refusal::SameAs(hook.name)))
            };
            let found = symbols.function(hook.name).ok_or(Refusal::Missing);
            let checked = found
                .and_then(known)
                .and_then(|f| code::check(image, f, need).map(|()| f.address));
            match checked {
                Ok(address) => targets.push((hook, address)),
                Err(refusal) => report.refused.push((hook.name, refusal)),
            }
        }
        if targets.is_empty() {
            return Err(Outcome::NothingToHook);
        }
        Ok(targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_choose_the_handlers() {
        let set = HookSet::new(&[]);
        assert!(set.wants(1) && set.wants(128));
        set.want(!2, false);
        assert!(!set.wants(1) && set.wants(3));
        set.want(1, true);
        assert!(set.wants(1) && set.wants(2) && !set.wants(4));
    }
}
