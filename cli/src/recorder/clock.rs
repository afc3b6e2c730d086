//! How far `CLOCK_REALTIME` is ahead of `CLOCK_MONOTONIC`.

use crate::text::clock_ns;

/// Readings of which the tightest is taken.
const READINGS: usize = 64;

/// One reading: the wall clock was read between two looks at the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// `CLOCK_MONOTONIC` ns, the middle.
    pub monotonic_ns: u64,
    /// What to add for `CLOCK_REALTIME` ns.
    pub offset_ns: i64,
    /// Half the distance between the two looks: how far off `offset_ns` may be.
    pub uncertainty_ns: u64,
}

impl Reading {
    /// The tightest of many.
    pub fn take() -> Self {
        let readings = (0..READINGS).map(|_| {
            let before = clock_ns(libc::CLOCK_MONOTONIC);
            let wall = clock_ns(libc::CLOCK_REALTIME);
            let after = clock_ns(libc::CLOCK_MONOTONIC);
            Self::of(before, wall, after)
        });
        readings
            .min_by_key(|r| r.uncertainty_ns)
            .expect("there is one at least")
    }

    fn of(before: u64, wall: u64, after: u64) -> Self {
        let middle = before + (after - before) / 2;
        Self {
            monotonic_ns: middle,
            offset_ns: wall.wrapping_sub(middle).cast_signed(),
            uncertainty_ns: (after - before).div_ceil(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_two_looks() {
        let reading = Reading::of(100, 1_000, 121);
        assert_eq!(
            (
                reading.monotonic_ns,
                reading.offset_ns,
                reading.uncertainty_ns
            ),
            (110, 890, 11)
        );
        assert_eq!(Reading::of(1_000, 10, 1_000).offset_ns, -990);
        let now = Reading::take();
        let wall = clock_ns(libc::CLOCK_REALTIME);
        let moved = now.monotonic_ns.wrapping_add_signed(now.offset_ns);
        assert!(wall.abs_diff(moved) < 60_000_000_000, "{wall} {moved}");
    }
}
