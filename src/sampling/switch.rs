//! The switch: kernel activity is on while at least one sampled launch is open.
//!
//! One word holds everything, so that no thread ever waits:
//!
//! ```text
//! bits 63..32  generation: grows each time activity is switched on
//! bit  31      ON      activity is on
//! bit  30      BUSY    somebody is inside the call that switches
//! bit  29      CLOSED  the session is going away: nothing new may open
//! bits 15..0   launches open now
//! ```
//!
//! A launch that finds the switch on joins it with one exchange. The first one switches on, the last
//! one off; while either is inside CUPTI the switch is BUSY and a further launch is simply not
//! sampled. A launch still open when the session goes away finds another generation when it leaves
//! and is not announced.

use crate::sync::atomic::{AtomicU64, Ordering};

const ON: u64 = 1 << 31;
const BUSY: u64 = 1 << 30;
const CLOSED: u64 = 1 << 29;
const OPEN: u64 = 0xffff;
const GENERATION_SHIFT: u32 = 32;

/// Generation of an on-period; never 0.
pub type Generation = u32;

/// How activity is switched; implemented on CUPTI and, in tests, on a counter.
pub trait Activity {
    /// Switches on; `false` when that failed.
    fn on(&self) -> bool;
    /// Switches off.
    fn off(&self);
}

/// Why a launch could not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Somebody is switching right now.
    Busy,
    /// The session is going away or not there.
    Closed,
    /// Switching on failed.
    Failed,
}

/// See the module.
#[derive(Debug)]
pub struct Switch(AtomicU64);

fn generation(word: u64) -> Generation {
    (word >> GENERATION_SHIFT) as Generation
}

/// The word after activity went off: next generation, nobody open.
fn off_word(word: u64, closed: u64) -> u64 {
    let next = generation(word).wrapping_add(1).max(1);
    (u64::from(next) << GENERATION_SHIFT) | closed
}

impl Switch {
    /// A closed switch.
    pub fn new() -> Self {
        Self(AtomicU64::new((1 << GENERATION_SHIFT) | CLOSED))
    }

    /// Lets launches join from now on.
    pub fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Like [`Self::open`] and [`Self::join`], with nobody between them: no launch finds activity off. The switch
    /// is open afterwards, whatever becomes of the joining.
    pub fn open_joined(&self, activity: &impl Activity) -> Result<Generation, Refused> {
        let word = self.0.load(Ordering::Acquire);
        let at_rest = word & (ON | BUSY) == 0
            && self
                .0
                .compare_exchange(word, word | BUSY, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        self.open();
        match at_rest {
            true => self.switch_on(activity),
            false => Err(Refused::Busy),
        }
    }

    /// Whether activity is on.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire) & ON != 0
    }

    /// Whether somebody is inside the call that switches.
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::SeqCst) & BUSY != 0
    }

    /// Whether the on-period of a launch that joined is still going on.
    pub fn is_current(&self, joined: Generation) -> bool {
        let word = self.0.load(Ordering::Acquire);
        generation(word) == joined && word & ON != 0 && word & CLOSED == 0
    }

    /// A launch comes in.
    pub fn join(&self, activity: &impl Activity) -> Result<Generation, Refused> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word & CLOSED != 0 {
                return Err(Refused::Closed);
            }
            if word & BUSY != 0 || word & OPEN == OPEN {
                return Err(Refused::Busy);
            }
            let next = if word & ON != 0 {
                word + 1
            } else {
                word | BUSY
            };
            match self
                .0
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) if word & ON != 0 => return Ok(generation(word)),
                Ok(_) => return self.switch_on(activity),
                Err(current) => word = current,
            }
        }
    }

    /// A launch that joined in `joined` goes out; whether that on-period is still the present one.
    pub fn leave(&self, joined: Generation, activity: &impl Activity) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            // BUSY while launches are open is the session being closed: whoever does that forgets them.
            if generation(word) != joined || word & ON == 0 || word & BUSY != 0 {
                return false;
            }
            debug_assert!(word & OPEN > 0, "left more often than joined");
            let last = word & OPEN == 1;
            let next = if last { (word - 1) | BUSY } else { word - 1 };
            match self
                .0
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    if last {
                        self.switch_off(activity);
                    }
                    return true;
                }
                Err(current) => word = current,
            }
        }
    }

    /// Nothing may join any more, and activity goes off whoever is open. `false` when a launch is
    /// inside the switching call at this moment: it will see the switch closed and go on to switch
    /// off by itself; ask again.
    pub fn close(&self, activity: &impl Activity) -> bool {
        let mut word = self.0.fetch_or(CLOSED, Ordering::AcqRel) | CLOSED;
        loop {
            if word & BUSY != 0 {
                return false;
            }
            if word & ON == 0 {
                return true;
            }
            match self.0.compare_exchange_weak(
                word,
                word | BUSY,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    self.switch_off(activity);
                    return true;
                }
                Err(current) => word = current,
            }
        }
    }

    /// Runs `act` while nobody switches: activity that is on stays so until then, and where it is off, launches that
    /// come meanwhile are not sampled. `None` if somebody switches at this moment.
    pub fn apart<R>(&self, activity: &impl Activity, act: impl FnOnce() -> R) -> Option<R> {
        let word = self.0.load(Ordering::Acquire);
        if word & BUSY != 0 {
            return None;
        }
        if word & ON != 0 {
            let joined = self.join_on(word)?;
            let done = act();
            self.leave(joined, activity);
            return Some(done);
        }
        self.0
            .compare_exchange(word, word | BUSY, Ordering::AcqRel, Ordering::Acquire)
            .ok()?;
        let done = act();
        self.0.fetch_and(!BUSY, Ordering::AcqRel);
        Some(done)
    }

    /// Joins the on-period that `word` tells of, if that is still the word.
    fn join_on(&self, word: u64) -> Option<Generation> {
        if word & CLOSED != 0 || word & OPEN == OPEN {
            return None;
        }
        self.0
            .compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Acquire)
            .ok()
            .map(generation)
    }

    /// BUSY is ours and nobody is open.
    fn switch_on(&self, activity: &impl Activity) -> Result<Generation, Refused> {
        if !activity.on() {
            self.0.fetch_and(!BUSY, Ordering::AcqRel);
            return Err(Refused::Failed);
        }
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word & CLOSED != 0 {
                // The session went away meanwhile.
                self.switch_off(activity);
                return Err(Refused::Closed);
            }
            let next = ((word & !BUSY) | ON) + 1;
            match self
                .0
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(generation(word)),
                Err(current) => word = current,
            }
        }
    }

    /// BUSY is ours; joining is impossible until the word is replaced.
    fn switch_off(&self, activity: &impl Activity) {
        activity.off();
        let mut word = self.0.load(Ordering::Acquire);
        while let Err(current) = self.0.compare_exchange_weak(
            word,
            off_word(word, word & CLOSED),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            word = current;
        }
    }
}

impl Default for Switch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Activity, Refused, Switch};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    #[derive(Default)]
    struct Counted {
        on: Cell<bool>,
        switches: Cell<u32>,
        broken: Cell<bool>,
    }

    impl Activity for Counted {
        fn on(&self) -> bool {
            assert!(!self.on.replace(!self.broken.get()));
            self.switches.set(self.switches.get() + 1);
            !self.broken.get()
        }
        fn off(&self) {
            assert!(self.on.replace(false), "off twice");
        }
    }

    #[test]
    fn first_in_switches_on_and_last_out_off() {
        let (switch, activity) = (Switch::new(), Counted::default());
        assert_eq!(switch.join(&activity), Err(Refused::Closed));
        switch.open();
        let a = switch.join(&activity).unwrap();
        let b = switch.join(&activity).unwrap();
        assert_eq!(a, b);
        assert!(switch.leave(a, &activity) && activity.on.get());
        assert!(switch.leave(b, &activity) && !activity.on.get());
        let c = switch.join(&activity).unwrap();
        assert_ne!(a, c);
        assert_eq!(activity.switches.get(), 2);
    }

    #[test]
    fn a_launch_open_across_a_close_is_not_announced() {
        let (switch, activity) = (Switch::new(), Counted::default());
        switch.open();
        let old = switch.join(&activity).unwrap();
        assert!(switch.close(&activity) && !activity.on.get());
        assert_eq!(switch.join(&activity), Err(Refused::Closed));
        switch.open();
        let new = switch.join(&activity).unwrap();
        assert!(!switch.leave(old, &activity));
        assert!(
            activity.on.get(),
            "the old launch must not take the new one's place"
        );
        assert!(switch.leave(new, &activity));
    }

    #[test]
    fn failing_to_switch_on_leaves_it_off() {
        let (switch, activity) = (Switch::new(), Counted::default());
        switch.open();
        activity.broken.set(true);
        assert_eq!(switch.join(&activity), Err(Refused::Failed));
        assert!(!switch.is_on());
        activity.broken.set(false);
        assert!(switch.join(&activity).is_ok());
    }

    #[test]
    fn opening_joined_leaves_no_gap() {
        struct Meanwhile<'a>(&'a Switch, Cell<Option<Result<u32, Refused>>>);
        impl Activity for Meanwhile<'_> {
            fn on(&self) -> bool {
                self.1.set(Some(self.0.join(&Counted::default())));
                true
            }
            fn off(&self) {}
        }
        let switch = Switch::new();
        let meanwhile = Meanwhile(&switch, Cell::new(None));
        let joined = switch.open_joined(&meanwhile).unwrap();
        assert_eq!(meanwhile.1.get(), Some(Err(Refused::Busy)));
        // Who comes now joins without switching.
        assert_eq!(switch.join(&meanwhile), Ok(joined));
        assert!(switch.leave(joined, &meanwhile) && switch.is_on());
        assert!(switch.leave(joined, &meanwhile) && !switch.is_on());
        let broken = Counted::default();
        broken.broken.set(true);
        assert!(switch.close(&broken));
        assert_eq!(switch.open_joined(&broken), Err(Refused::Failed));
        assert!(switch.join(&meanwhile).is_ok(), "it is open all the same");
        assert_eq!(switch.open_joined(&broken), Err(Refused::Busy));
    }

    #[test]
    fn apart_from_launches() {
        let (switch, activity) = (Switch::new(), Counted::default());
        assert_eq!(switch.apart(&activity, || 1), Some(1));
        switch.open();
        let refused = switch.apart(&activity, || switch.join(&activity));
        assert_eq!(refused, Some(Err(Refused::Busy)));
        // A window may hold it on as good as always; it stays on until the end.
        let joined = switch.join(&activity).unwrap();
        let on = switch.apart(&activity, || {
            assert!(switch.leave(joined, &activity));
            activity.on.get()
        });
        assert_eq!(on, Some(true));
        assert!(!switch.is_on() && !activity.on.get());
        // Closed meanwhile, it stays so.
        let closed = switch.apart(&activity, || switch.close(&activity));
        assert_eq!(closed, Some(false));
        assert_eq!(switch.join(&activity), Err(Refused::Closed));
        assert!(switch.close(&activity));
    }

    #[derive(Default)]
    struct Shared {
        on: AtomicBool,
    }

    impl Activity for Shared {
        fn on(&self) -> bool {
            assert!(!self.on.swap(true, Ordering::SeqCst), "switched on twice");
            true
        }
        fn off(&self) {
            assert!(self.on.swap(false, Ordering::SeqCst), "switched off twice");
        }
    }

    #[test]
    fn threads_and_closing_keep_it_balanced() {
        let (switch, activity) = (Switch::new(), Shared::default());
        let open = AtomicI64::new(0);
        switch.open();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        if let Ok(joined) = switch.join(&activity) {
                            open.fetch_add(1, Ordering::SeqCst);
                            open.fetch_sub(1, Ordering::SeqCst);
                            switch.leave(joined, &activity);
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..2_000 {
                    while !switch.close(&activity) {
                        std::thread::yield_now();
                    }
                    switch.open();
                }
            });
        });
        while !switch.close(&activity) {}
        assert!(!switch.is_on() && !activity.on.load(Ordering::SeqCst));
    }
}
