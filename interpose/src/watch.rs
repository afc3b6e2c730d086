//! Learns that a watched library is mapped, before anybody runs in it.
//!
//! Two ways in, both called by the dynamic loader on the thread that loads, so
//! no thread of ours is needed and no caller of `dlopen` changes:
//!
//! * `__gmon_start__`, exported by [`watch!`](crate::watch). The start-up code
//!   linked into nearly every library (crti) calls it, if it exists, after the
//!   library was relocated and before its constructors. Costs nothing else, so
//!   it is always on.
//! * `r_brk`, the loader's empty function for debuggers, replaced by a jump
//!   ([`rendezvous`]). It sees every namespace, but replacing it costs start-up
//!   time and a page of ld.so, so it is done only when needed: at the first
//!   `dlmopen`, or when we were ourselves loaded late (then `__gmon_start__` is
//!   not bound to us).
//!
//! A library that the start-up code cannot tell us of (it has no `_init`) may
//! be found long after it was loaded; it is then left alone, like one that was
//! there before us.
//!
//! Lifetime: a [`Watch`] is a static and is never taken down.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{Choice, EngineKind};
use crate::entry::{Uncancelled, errno, set_errno};
use crate::hooks::HookSet;
use crate::image::{Image, Place};
use crate::report::{Outcome, Report};
use crate::symbols::Symbols;

pub(crate) mod exports;
mod objects;
mod rendezvous;

use objects::{Objects, Origin, Scope, Seen};

/// Mapped copies of watched libraries that are remembered; more are ignored.
const MOST_KNOWN: usize = 32;

/// Libraries to look for, and what to replace in them.
pub struct Rule {
    prefix: &'static str,
    hooks: &'static HookSet,
}

impl Rule {
    /// Libraries whose file name starts with `prefix`, such as `libm.so`.
    pub const fn new(prefix: &'static str, hooks: &'static HookSet) -> Rule {
        Rule { prefix, hooks }
    }
}

/// Watches the libraries of this process: made by [`watch!`](crate::watch).
pub struct Watch {
    rules: &'static [Rule],
    choice: fn() -> Choice,
    report: fn(&Report),
    /// The rendezvous has missed nothing: what it shows and we do not know has
    /// just been mapped. (What has no start-up code came in unseen before.)
    complete: AtomicBool,
    state: UnsafeCell<State>,
}

struct State {
    /// The loader's counts of libraries mapped and unmapped at the last look.
    adds: u64,
    subs: u64,
    origin: Option<Origin>,
    /// Our constructor ran: from here on, more than one thread.
    started: bool,
    known: [Option<Known>; MOST_KNOWN],
}

#[derive(Clone, Copy)]
struct Known {
    place: Place,
    rule: usize,
    /// In the program's own namespace.
    base: bool,
}

/// Who noticed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `__gmon_start__`, called by some library's `_init`.
    InitCall,
    /// The loader, right after it mapped something.
    Rendezvous,
    /// Our own constructor.
    Constructor,
}

// SAFETY: the state is only reached by the holder of the one Token.
unsafe impl Sync for Watch {}

/// Proof that this thread, and no other, looks at libraries.
pub(crate) struct Token(());

/// Process and thread id of the looker, 0 for none.
static LOOKING: AtomicU64 = AtomicU64::new(0);
/// How long to wait for another thread's look.
const PATIENCE: Duration = Duration::from_millis(200);
/// For the rendezvous, which has no argument.
static ACTIVE: AtomicPtr<Watch> = AtomicPtr::new(std::ptr::null_mut());

impl Token {
    /// `None` if this thread looks already: an engine may load a library.
    ///
    /// Other threads are nearly always kept out by the loader's lock; at
    /// program start, and when a program calls `__gmon_start__` itself, they
    /// are not, and the wait is bounded in case the other waits for us. A child
    /// forked while another thread looked takes over: that thread is not there.
    fn take() -> Option<Token> {
        let process = u64::from(std::process::id());
        // By number, as glibc before 2.30 has no function for it.
        // SAFETY: asks for a number.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let me = process << 32 | thread.cast_unsigned();
        let started = Instant::now();
        loop {
            let holder = LOOKING.load(Ordering::Relaxed);
            if holder == me {
                return None;
            }
            let free = holder == 0 || holder >> 32 != process;
            if free {
                let taken =
                    LOOKING.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some(Token(()));
                }
            } else if started.elapsed() > PATIENCE {
                return None;
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        LOOKING.store(0, Ordering::Release);
    }
}

impl Watch {
    /// What to look for; `choice` is asked whenever a library was found, and
    /// `report` told what came of it. Both run under the loader's lock, before
    /// the library is ready: they must not load libraries nor call into it.
    pub const fn new(rules: &'static [Rule], choice: fn() -> Choice, report: fn(&Report)) -> Watch {
        Watch {
            rules,
            choice,
            report,
            complete: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                adds: 0,
                subs: 0,
                origin: None,
                started: false,
                known: [None; MOST_KNOWN],
            }),
        }
    }

    /// `__gmon_start__` was called.
    pub fn on_init_call(&'static self) {
        self.look(Way::InitCall);
    }

    /// Our constructor runs.
    pub fn start(&'static self) {
        self.look(Way::Constructor);
        if !self.gets_init_calls() {
            self.complete.store(true, Ordering::Relaxed);
            self.arm();
        }
    }

    /// Not if we were loaded late (unless by RTLD_GLOBAL), nor if the program
    /// has a `__gmon_start__` of its own (built with -pg), which then comes
    /// before ours.
    fn gets_init_calls(&self) -> bool {
        let Some(mut token) = Token::take() else {
            return true;
        };
        self.state(&mut token).origin == Some(Origin::Start)
            && objects::is_ours(exports::bound_init_call())
    }

    /// Why libraries go unseen that only the rendezvous shows: those of other
    /// namespaces, and all of them where we were loaded late. `None` if nothing
    /// needed it so far, or it works.
    pub fn blind_spot(&self) -> Option<String> {
        rendezvous::failure()
    }

    fn arm(&'static self) {
        ACTIVE.store((&raw const *self).cast_mut(), Ordering::Release);
        let saved = errno();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if !rendezvous::was_tried() && (self.choice)() != Choice::None {
                rendezvous::arm();
            }
        }));
        set_errno(saved);
    }

    /// `dlmopen` was called; returns the real one's address.
    pub fn on_dlmopen(&'static self) -> *const () {
        // Not a moment to look around: the loader's lock is not held.
        self.arm();
        let saved = errno();
        let real = exports::real_dlmopen();
        set_errno(saved);
        real
    }

    fn look(&'static self, way: Way) {
        let saved = errno();
        // The program's `dlopen` may be the last thing a thread does.
        let _whole = Uncancelled::begin();
        // A panic of ours is no business of the loader's. What it may leave
        // half-done is a report not made or a library not remembered.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(mut token) = Token::take() {
                self.look_with(way, &mut token);
            }
        }));
        set_errno(saved);
    }

    #[allow(clippy::mut_from_ref, reason = "the token is the exclusive borrow")]
    fn state<'a>(&'a self, _token: &'a mut Token) -> &'a mut State {
        // SAFETY: one Token exists at a time, and it is borrowed as long as
        // the state is.
        unsafe { &mut *self.state.get() }
    }

    fn look_with(&'static self, way: Way, token: &mut Token) {
        let state = self.state(token);
        let origin = *state.origin.get_or_insert_with(objects::origin);
        let objects = if way == Way::Rendezvous {
            rendezvous::objects(|name| self.rule_for(name))
        } else {
            let since = (way == Way::InitCall).then_some((state.adds, state.subs));
            objects::in_base(since, |name| self.rule_for(name))
        };
        let Some(objects) = objects else { return };
        let unmapped = way == Way::Rendezvous || objects.subs != state.subs;
        if way != Way::Rendezvous {
            (state.adds, state.subs) = (objects.adds, objects.subs);
        }
        if unmapped {
            self.forget_unmapped(&objects, token);
        }
        for seen in objects.seen.iter().flatten() {
            self.consider(seen, way, origin, unmapped, token);
        }
        let state = self.state(token);
        match way {
            Way::Constructor => state.started = true,
            Way::Rendezvous => self.complete.store(true, Ordering::Relaxed),
            Way::InitCall => {}
        }
    }

    fn rule_for(&self, path: &[u8]) -> Option<usize> {
        let name = path.rsplit(|&byte| byte == b'/').next()?;
        self.rules
            .iter()
            .position(|rule| name.starts_with(rule.prefix.as_bytes()))
    }

    fn forget_unmapped(&self, objects: &Objects, token: &mut Token) {
        let gone = |known: &Known| {
            let in_sight = known.base || objects.scope == Scope::All;
            let mut seen = objects.seen.iter().flatten();
            in_sight && !seen.any(|seen| seen.place == known.place)
        };
        for index in 0..MOST_KNOWN {
            if let Some(known) = self.state(token).known[index].take_if(|known| gone(known)) {
                self.rules[known.rule].hooks.forget(known.place, token);
            }
        }
    }

    fn consider(&self, seen: &Seen, way: Way, origin: Origin, unmapped: bool, token: &mut Token) {
        let hooks = self.rules[seen.rule].hooks;
        let known = self.state(token).known.iter();
        let known = known.flatten().any(|known| known.place == seen.place);
        if known && !(unmapped && hooks.is_stale(seen.place, |a, n| seen.covers(a, n), token)) {
            return;
        }
        let full = self.state(token).known.iter().all(Option::is_some);
        if full && !known {
            return;
        }
        let mut report = Report {
            library: String::from_utf8_lossy(seen.name).into_owned(),
            base: seen.place.base,
            outcome: Outcome::LateLoad,
            copy: None,
            engine: EngineKind::None,
            reason: "",
            hooked: Vec::new(),
            refused: Vec::new(),
            took: Duration::ZERO,
        };
        match Image::open(seen.place) {
            Err(why) => report.outcome = Outcome::Unreadable(why),
            Ok(image) => {
                if self.is_new(seen, &image, way, origin, token) {
                    hooks.install(&image, (self.choice)(), &mut report, token);
                }
            }
        }
        if !known {
            let free = self.state(token).known.iter_mut().find(|k| k.is_none());
            if let Some(slot) = free {
                *slot = Some(Known {
                    place: seen.place,
                    rule: seen.rule,
                    base: seen.base,
                });
            }
        }
        (self.report)(&report);
    }

    /// Whether nobody can be running in a library that was just noticed.
    fn is_new(
        &self,
        seen: &Seen,
        image: &Image,
        way: Way,
        origin: Origin,
        token: &mut Token,
    ) -> bool {
        let state = self.state(token);
        // It calls us by itself while it is being loaded, so that is now.
        let tells = || Symbols::of(image).is_some_and(|s| s.calls_gmon_start());
        match (way, origin) {
            // What is there when we come late has been running.
            (Way::Constructor, Origin::Late) => false,
            (Way::InitCall, Origin::Late) if !state.started => false,
            // Program start: one thread, which is here.
            (Way::InitCall, Origin::Start) if !state.started => true,
            (Way::Constructor, Origin::Start) => true,
            (Way::InitCall, _) => tells(),
            (Way::Rendezvous, _) => self.complete.load(Ordering::Relaxed) || !seen.base || tells(),
        }
    }
}
