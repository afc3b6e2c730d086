//! Clocks, in nanoseconds.

use std::sync::atomic::{AtomicU64, Ordering};

fn read(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec; the call writes it and nothing else.
    unsafe { libc::clock_gettime(id, &mut t) };
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// `CLOCK_MONOTONIC`.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_MONOTONIC` as of the kernel's last tick: never ahead of [`monotonic_ns`], behind it by
/// [`coarse_step_ns`] at most unless a tick is late, and read in a quarter of the time.
#[inline]
pub fn coarse_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// How far [`coarse_ns`] moves at once.
pub fn coarse_step_ns() -> u64 {
    static STEP: AtomicU64 = AtomicU64::new(0);
    match STEP.load(Ordering::Relaxed) {
        0 => {
            let mut t = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: `t` is a valid timespec; the call writes it and nothing else.
            unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut t) };
            let step = (t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64).max(1);
            STEP.store(step, Ordering::Relaxed);
            step
        }
        step => step,
    }
}

/// `CLOCK_REALTIME`.
pub fn realtime_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

#[cfg(test)]
mod tests {
    use super::{coarse_ns, coarse_step_ns, monotonic_ns};

    #[test]
    fn the_coarse_clock_is_never_ahead() {
        assert!((1..=10_000_000).contains(&coarse_step_ns()));
        for _ in 0..100_000 {
            let coarse = coarse_ns();
            assert!(coarse <= monotonic_ns());
        }
    }
}
