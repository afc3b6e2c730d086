//! The end of the process, as those who gather and the one who fires for the last time see it: either what was put
//! back is seen by the one, or that the end has begun by the other.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{fence, fence_after_exchange};

/// The end begins; what is looked at after this was put back before, or by one who finds that it has begun.
pub fn begin(ending: &AtomicBool) {
    ending.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Whether it has begun, asked right after something was put into a [`super::slot::Slot`].
pub fn has_begun(ending: &AtomicBool) -> bool {
    fence_after_exchange();
    ending.load(Ordering::Relaxed)
}
