//! Ids of start/end ranges: unique in the process across clients and domains, never 0.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::process::PerProcess;
use super::sys::RangeId;

static LAST: AtomicU64 = AtomicU64::new(0);

/// Open ranges for which the next tool's id is remembered.
const OPEN_MAX: usize = 1 << 16;
static THEIRS: PerProcess<HashMap<u64, u64>> = PerProcess::new();

/// An id that was not given out before. A forked child counts on, so that its ranges are not taken for
/// its parent's.
#[inline]
pub fn fresh() -> RangeId {
    RangeId(LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Remembers the next tool's id until the range ends.
pub fn keep_theirs(ours: RangeId, theirs: RangeId) {
    let mut open = THEIRS.lock();
    if theirs.0 != 0 && open.len() < OPEN_MAX {
        open.insert(ours.0, theirs.0);
    }
}

/// The next tool's id of a range that ends; 0 when there is none.
pub fn take_theirs(ours: RangeId) -> RangeId {
    RangeId(THEIRS.lock().remove(&ours.0).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::{fresh, keep_theirs, take_theirs};
    use crate::nvtx::sys::RangeId;

    #[test]
    fn ids_are_paired_once() {
        let (a, b) = (fresh(), fresh());
        assert!(a.0 != 0 && a != b);
        keep_theirs(a, RangeId(77));
        assert_eq!((take_theirs(a), take_theirs(a)), (RangeId(77), RangeId(0)));
        assert_eq!(take_theirs(b), RangeId(0));
    }
}
