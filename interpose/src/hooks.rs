//! Sets of functions to be replaced, and their installation in one library.
//!
//! Everything here runs at load time, under the watch's lock (proved by a
//! [`Token`]), with nobody running in the library yet.

use std::cell::UnsafeCell;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::code::{self, Refusal};
use crate::engine::{self, Choice, EngineKind, PrepareError};
use crate::image::{Image, Place};
use crate::permit;
use crate::symbols::{Function, Symbols};
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

    /// Chooses which groups of functions call their handlers; a call of
    /// another function goes straight to the original.
    pub fn want(&self, groups: u8) {
        self.wanted.store(groups, Ordering::Relaxed);
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
        let Some(mut engine) = engine::build(kind) else {
            return Outcome::NoEngine;
        };
        report.engine = kind;
        let addresses: Vec<usize> = targets.iter().map(|&(_, address)| address).collect();
        // SAFETY: checked functions of a library that nobody runs yet.
        unsafe { engine.forget_unmapped(&addresses) };
        let mut installed = Vec::new();
        let mut failure = None;
        for (hook, address) in targets {
            // SAFETY: as above; `hooks!` made the entry with the declared type.
            match unsafe { engine.prepare(address, hook.entries[copy]) } {
                Ok(original) => {
                    hook.originals.0[copy].store(original, Ordering::Release);
                    installed.push((hook, address));
                }
                Err(PrepareError::Refused(words)) => {
                    report.refused.push((hook.name, Refusal::Engine(words)));
                }
                Err(PrepareError::Fatal(words)) => {
                    failure = Some(words);
                    break;
                }
            }
        }
        let failure = match failure {
            None => engine.commit().err(),
            Some(words) => {
                engine.cancel();
                Some(words)
            }
        };
        if let Some(words) = failure {
            for (hook, _) in installed {
                hook.originals.0[copy].store(ptr::null_mut(), Ordering::Release);
            }
            report.engine = EngineKind::None;
            return Outcome::RolledBack(words);
        }
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
    ) -> Result<Vec<(&'static Hook, usize)>, Outcome> {
        let Some(symbols) = Symbols::of(image) else {
            return Err(Outcome::Unreadable("it has no symbol table".to_owned()));
        };
        let mut targets: Vec<(&'static Hook, usize)> = Vec::new();
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

/// What came of a library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The functions in [`Report::hooked`] are replaced.
    Hooked,
    /// The library was there before us, so threads may be running in it: left
    /// alone for ever.
    LateLoad,
    /// This process may not make code writable; why.
    NotPermitted(String),
    /// No engine is chosen or built in; [`Report::reason`] says which.
    NoEngine,
    /// More than [`COPIES`] copies are mapped; how many were left alone so far.
    TooManyCopies(usize),
    /// The library's memory makes no sense to us; why.
    Unreadable(String),
    /// Every function was refused or is missing.
    NothingToHook,
    /// The engine failed half-way; everything is as it was. Its words.
    RolledBack(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Hooked => f.write_str("hooked"),
            Outcome::LateLoad => f.write_str("not hooked: it was loaded before us"),
            Outcome::NotPermitted(why) => write!(f, "not hooked: {why}"),
            Outcome::NoEngine => f.write_str("not hooked: no engine"),
            Outcome::TooManyCopies(n) => write!(f, "not hooked: {n} more than {COPIES} copies"),
            Outcome::Unreadable(why) => write!(f, "not hooked: {why}"),
            Outcome::NothingToHook => f.write_str("not hooked: no function that can be"),
            Outcome::RolledBack(why) => write!(f, "not hooked: {why}"),
        }
    }
}

/// Told once for every mapped copy of a watched library.
#[derive(Clone, Debug)]
pub struct Report {
    /// The library as the loader names it.
    pub library: String,
    /// Its base address.
    pub base: usize,
    /// What came of it.
    pub outcome: Outcome,
    /// Which entry functions serve it, if hooked.
    pub copy: Option<usize>,
    /// The engine that changed it.
    pub engine: EngineKind,
    /// Why not another engine; empty if none was looked for.
    pub reason: &'static str,
    /// Names of the replaced functions.
    pub hooked: Vec<&'static str>,
    /// Functions left alone, and why.
    pub refused: Vec<(&'static str, Refusal)>,
    /// How long it took.
    pub took: Duration,
}
