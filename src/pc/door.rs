//! Who is inside a launch, and who keeps others out: one word, so that neither can miss the other.
//!
//! ```text
//! bit  33      TAKEN   whoever shut it found nobody inside, and is in CUPTI
//! bit  32      SHUT    somebody wants to be alone
//! bits 31..0   launches inside
//! ```
//!
//! Nothing here waits; [`crate::pc::gate`] does, with bounds.

use crate::sync::atomic::{AtomicU64, Ordering};

const TAKEN: u64 = 1 << 33;
const SHUT: u64 = 1 << 32;

/// See the module.
#[derive(Debug)]
pub struct Door(AtomicU64);

impl Door {
    /// Open, and nobody inside.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Goes in if it is open. `overdue`: also if it is shut, unless somebody is alone behind it.
    pub fn try_enter(&self, overdue: bool) -> bool {
        // Counted first: who takes the door looks at the same word.
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        let keeps_out = if overdue { TAKEN } else { SHUT };
        if before & keeps_out == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Goes in, whoever is behind it: in a copy of the process that is nobody.
    pub fn enter_anyway(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Goes out.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Shuts it; false if somebody else has.
    pub fn shut(&self) -> bool {
        self.0.fetch_or(SHUT, Ordering::AcqRel) & SHUT == 0
    }

    /// By whoever shut it: whether nobody but `own` of the caller's is inside. Nobody goes in from then on.
    pub fn take(&self, own: u32) -> bool {
        let shut = SHUT | u64::from(own);
        self.0
            .compare_exchange(shut, shut | TAKEN, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// By whoever shut it: opens it.
    pub fn open(&self) {
        self.0.fetch_and(!(TAKEN | SHUT), Ordering::AcqRel);
    }
}

impl Default for Door {
    fn default() -> Self {
        Self::new()
    }
}
