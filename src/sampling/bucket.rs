//! Token buckets: how many launches of a thread are sampled.
//!
//! Each thread has one bucket for eager launches and one for graph launches. A bucket starts with
//! one token, is refilled by `CLOCK_MONOTONIC`, and holds at most `max(1, rate)` tokens.
//!
//! Most launches are refused, and most of these long before the next token: an empty bucket knows
//! until when the coarse clock is enough to say so. It never says anything else than the fine clock
//! would, since it is not ahead of it and its step is allowed for; should the kernel's tick be late,
//! a token is handed out that much later, and is not lost.

use crate::clock;

/// Times, `CLOCK_MONOTONIC` ns.
pub trait Clock {
    /// Now.
    fn fine(&self) -> u64;
    /// Not ahead of now; behind by [`Self::step`] at most.
    fn coarse(&self) -> u64;
    /// See [`Self::coarse`].
    fn step(&self) -> u64;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic;

impl Clock for Monotonic {
    #[inline]
    fn fine(&self) -> u64 {
        clock::monotonic_ns()
    }
    #[inline]
    fn coarse(&self) -> u64 {
        clock::coarse_ns()
    }
    #[inline]
    fn step(&self) -> u64 {
        clock::coarse_step_ns()
    }
}

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    refilled_ns: u64,
    /// No token while the coarse clock is below this; 0: look at the fine one.
    empty_until_ns: u64,
}

impl Bucket {
    /// A bucket with its first token.
    pub const fn new() -> Self {
        Self {
            tokens: 1.0,
            refilled_ns: 0,
            empty_until_ns: 0,
        }
    }

    /// Takes a token if there is one. `rate` in tokens per second.
    #[inline]
    pub fn take(&mut self, clock: &impl Clock, rate: f64) -> bool {
        if self.empty_until_ns != 0 && clock.coarse() < self.empty_until_ns {
            return false;
        }
        let now_ns = clock.fine();
        if self.refilled_ns != 0 {
            let elapsed = now_ns.saturating_sub(self.refilled_ns) as f64;
            self.tokens = (self.tokens + elapsed * rate * 1e-9).min(rate.max(1.0));
        }
        self.refilled_ns = now_ns;
        if self.tokens < 1.0 {
            self.note_empty(clock.step(), rate);
            return false;
        }
        self.tokens -= 1.0;
        // The next look finds out.
        self.empty_until_ns = 0;
        true
    }

    /// The fine clock said that there is no token at `refilled_ns`.
    fn note_empty(&mut self, step_ns: u64, rate: f64) {
        // Rounded down; as a cast that saturates it is right for the lowest rates as well.
        let due = self
            .refilled_ns
            .saturating_add(((1.0 - self.tokens) / rate * 1e9) as u64);
        let until = due.saturating_sub(step_ns);
        // Where tokens come faster than the coarse clock moves it would never answer.
        self.empty_until_ns = if until > self.refilled_ns { until } else { 0 };
    }

    /// Gives a token back that was taken for a launch which was not sampled after all.
    #[inline]
    pub fn give_back(&mut self, rate: f64) {
        self.tokens = (self.tokens + 1.0).min(rate.max(1.0));
        self.empty_until_ns = 0;
    }
}

impl Default for Bucket {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, Clock};
    use std::cell::Cell;

    const MS: u64 = 1_000_000;
    const STEP: u64 = 4 * MS;

    /// A clock that stands where it is put, and counts the looks at it.
    #[derive(Default)]
    struct At {
        now: Cell<u64>,
        fine_looks: Cell<u64>,
    }

    impl Clock for At {
        fn fine(&self) -> u64 {
            self.fine_looks.set(self.fine_looks.get() + 1);
            self.now.get()
        }
        fn coarse(&self) -> u64 {
            self.now.get() / STEP * STEP
        }
        fn step(&self) -> u64 {
            STEP
        }
    }

    fn at(now: u64) -> At {
        let clock = At::default();
        clock.now.set(now);
        clock
    }

    fn taken(rate: f64, step_ns: u64, steps: u64) -> usize {
        let mut bucket = Bucket::new();
        (1..=steps)
            .filter(|i| bucket.take(&at(1_000 * MS + i * step_ns), rate))
            .count()
    }

    #[test]
    fn starts_with_one_token_and_delivers_the_rate() {
        assert_eq!(taken(100.0, MS / 100, 1), 1);
        // 10 s of a launch every 10 us at 100/s: the first token and 10 s of refill.
        let n = taken(100.0, MS / 100, 1_000_000);
        assert!((1000..=1001).contains(&n), "{n}");
    }

    #[test]
    fn slower_than_the_rate_takes_every_launch() {
        assert_eq!(taken(100.0, 200 * MS, 300), 300);
    }

    #[test]
    fn rates_below_one_hold_one_token() {
        let n = taken(0.5, 100 * MS, 1000);
        assert!((50..=51).contains(&n), "{n}");
    }

    /// What the bucket did before there was a coarse clock.
    fn fine_only(tokens: &mut f64, refilled: &mut u64, now: u64, rate: f64) -> bool {
        if *refilled != 0 {
            *tokens = (*tokens + (now - *refilled) as f64 * rate * 1e-9).min(rate.max(1.0));
        }
        *refilled = now;
        let there = *tokens >= 1.0;
        *tokens -= f64::from(u8::from(there));
        there
    }

    #[test]
    fn the_coarse_clock_changes_no_decision() {
        for rate in [0.01, 0.5, 1.0, 20.0, 100.0, 237.0, 250.0, 1e4, 1e9] {
            let (mut bucket, mut tokens, mut refilled) = (Bucket::new(), 1.0, 0);
            let (mut now, mut seed, mut different) = (1_000_000 * MS, 1u64, 0);
            for _ in 0..200_000 {
                // Some launches close together, some far apart.
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                now += (seed >> 40) % if seed & (1 << 33) == 0 { 5_000 } else { MS };
                let coarse = bucket.take(&at(now), rate);
                let fine = fine_only(&mut tokens, &mut refilled, now, rate);
                if coarse != fine {
                    // Sums of other parts differ in the last bit: one look later they agree again.
                    different += 1;
                    assert!((bucket.tokens - tokens).abs() > 0.999, "{rate} {now}");
                    (tokens, refilled) = (bucket.tokens, bucket.refilled_ns);
                }
            }
            assert!(different <= 2, "{rate}: {different}");
        }
    }

    #[test]
    fn the_fine_clock_is_looked_at_when_it_matters_only() {
        let (mut bucket, clock) = (Bucket::new(), At::default());
        let mut granted = 0;
        // 10 s of a launch every 5 us at 20/s.
        for launch in 0..2_000_000 {
            clock.now.set(1_000 * MS + launch * 5_000);
            granted += u64::from(bucket.take(&clock, 20.0));
        }
        assert!((200..=201).contains(&granted), "{granted}");
        // Of the 50 ms between two tokens up to two steps.
        let looks = clock.fine_looks.get();
        assert!(looks < 2_000_000 / 5, "{looks}");
    }

    #[test]
    fn idle_time_fills_up_to_the_capacity_only() {
        let mut bucket = Bucket::new();
        assert!(bucket.take(&at(1), 20.0));
        let hour = at(3_600_000 * MS);
        let burst = (0..100).filter(|_| bucket.take(&hour, 20.0)).count();
        assert_eq!(burst, 20);
    }

    #[test]
    fn a_token_given_back_can_be_taken_again() {
        let mut bucket = Bucket::new();
        assert!(bucket.take(&at(5), 1.0));
        assert!(!bucket.take(&at(6), 1.0));
        bucket.give_back(1.0);
        bucket.give_back(1.0);
        assert!(bucket.take(&at(7), 1.0));
        assert!(!bucket.take(&at(8), 1.0));
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_does_no_harm() {
        let mut bucket = Bucket::new();
        assert!(bucket.take(&at(1000), 1e9));
        assert!(!bucket.take(&at(1000), 1e9));
        assert!(!bucket.take(&at(10), 1e9));
        assert!(bucket.take(&at(11), 1e9));
    }
}
