//! Whether a window of serialized mode is open, and which: one word, so that one thread ends it, and its part in the
//! switch of kernel activity is given back once.
//!
//! ```text
//! bits 63..32  the on-period of kernel activity that it joined
//! bits 31..2   windows so far: nobody ends another one than he looked at
//! bits 1..0    IDLE, REQUESTED, OPEN
//! ```

use crate::sampling::switch::Generation;
use crate::sync::atomic::{AtomicU64, Ordering};

const STATE: u64 = 3;
/// No window, and none is wanted.
const IDLE: u64 = 0;
/// The next launch opens a window.
const REQUESTED: u64 = 1;
/// Sampling is on, and every launch is announced.
const OPEN: u64 = 2;
const ONE: u64 = 1 << 2;
const COUNT: u64 = (u32::MAX as u64) & !STATE;
const JOINED_SHIFT: u32 = 32;

/// A window that is or was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(u64);

/// See the module.
#[derive(Debug)]
pub struct Hold(AtomicU64);

impl Hold {
    /// No window.
    pub fn new() -> Self {
        Self(AtomicU64::new(IDLE))
    }

    /// Asks for a window, if there is none.
    pub fn request(&self) {
        self.moves(IDLE, |word| word | REQUESTED);
    }

    /// Takes the request back.
    pub fn cancel(&self) {
        self.moves(REQUESTED, |word| word & COUNT);
    }

    /// Whether a window is wanted and not there.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == REQUESTED
    }

    /// The window that is open.
    pub fn open(&self) -> Option<Window> {
        let word = self.0.load(Ordering::Acquire);
        (word & STATE == OPEN).then_some(Window(word))
    }

    /// A window is open from now on, if it is still wanted; by one thread at a time.
    pub fn begin(&self, joined: Generation) -> bool {
        self.moves(REQUESTED, |word| {
            (word.wrapping_add(ONE) & COUNT) | OPEN | (u64::from(joined) << JOINED_SHIFT)
        })
    }

    /// Ends this window. Gives the on-period that it joined to whoever ended it, who leaves it.
    pub fn end(&self, window: Window) -> Option<Generation> {
        let word = window.0;
        self.0
            .compare_exchange(word, word & COUNT, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
            .then_some((word >> JOINED_SHIFT) as Generation)
    }

    fn moves(&self, from: u64, to: impl Fn(u64) -> u64) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        while word & STATE == from {
            match self
                .0
                .compare_exchange_weak(word, to(word), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(current) => word = current,
            }
        }
        false
    }
}

impl Default for Hold {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{COUNT, Hold};
    use std::sync::atomic::Ordering;

    #[test]
    fn a_window_is_ended_once_and_no_other_for_it() {
        let hold = Hold::new();
        assert!(!hold.begin(7), "nobody asked for it");
        hold.request();
        assert!(hold.is_requested() && hold.begin(7) && !hold.is_requested());
        let first = hold.open().unwrap();
        hold.request();
        hold.cancel();
        assert_eq!(hold.open(), Some(first), "it is open whoever asks");
        assert_eq!(hold.end(first), Some(7));
        assert_eq!(hold.end(first), None);
        // The next one is in the same on-period.
        hold.request();
        assert!(hold.begin(7));
        assert_eq!(hold.end(first), None);
        assert_eq!(hold.end(hold.open().unwrap()), Some(7));
        assert!(hold.open().is_none());
    }

    #[test]
    fn taken_back_it_does_not_begin() {
        let hold = Hold::new();
        hold.request();
        hold.cancel();
        assert!(!hold.is_requested() && !hold.begin(1));
    }

    #[test]
    fn windows_are_counted_without_end() {
        let hold = Hold::new();
        hold.0.store(COUNT, Ordering::Relaxed);
        hold.request();
        assert!(hold.begin(u32::MAX));
        assert_eq!(hold.end(hold.open().unwrap()), Some(u32::MAX));
        assert_eq!(hold.0.load(Ordering::Relaxed), 0);
    }
}
