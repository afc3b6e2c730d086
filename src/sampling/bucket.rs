//! Token buckets: how many launches of a thread are sampled, and which.
//!
//! Each thread has one bucket for eager launches and one for graph launches. A bucket starts with
//! one token, is refilled by `CLOCK_MONOTONIC`, and holds at most `max(1, rate)` tokens.
//!
//! A token is not for the first launch that comes when it is there: that would be the one behind a pause, the
//! same kernel in every round of a loop that waits for the GPU, and the sample would be of that one alone. So
//! launches are counted, and after each sampled one a random number of them is let pass: as many on average as
//! come for a token. A thread that launches no faster than tokens come has every launch sampled.
//!
//! Most launches are refused, and these look at the coarse clock only: an empty bucket knows until when that is
//! enough to say so. It never says anything else than the fine clock
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

/// Time after which it is looked how fast launches come, ns, for the first time and later, and that over which it is
/// averaged.
const FIRST_REVIEW: u64 = 20_000_000;
const REVIEW: u64 = 250_000_000;
const AVERAGE: u64 = 1_000_000_000;
/// Launches that pass for a token, in tokens' worth: a little more than one, so that a token is there when its launch
/// comes.
const SPACING: f64 = 1.02;
/// Fewer tokens at most do not make up for launches that came too early for theirs.
const FEW: f64 = 8.0;

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    refilled_ns: u64,
    /// No token while the coarse clock is below this; 0: look at the fine one.
    empty_until_ns: u64,
    /// Launches to let pass.
    skip: u32,
    /// Launches since `since_ns`, by the coarse clock; 0: none came yet.
    seen: u32,
    since_ns: u64,
    /// Launches that come for one token, on average; 0: not known.
    per_token: f64,
    /// Of the random numbers; 0: none was drawn yet.
    seed: u64,
}

impl Bucket {
    /// A bucket with its first token.
    pub const fn new() -> Self {
        Self {
            tokens: 1.0,
            refilled_ns: 0,
            empty_until_ns: 0,
            skip: 0,
            seen: 0,
            since_ns: 0,
            per_token: 0.0,
            seed: 0,
        }
    }

    /// Whether this launch is sampled: takes a token if there is one, and if it is this launch's. `rate` in tokens per
    /// second.
    #[inline]
    pub fn take(&mut self, clock: &impl Clock, rate: f64) -> bool {
        let coarse = clock.coarse();
        self.seen = self.seen.saturating_add(1);
        let period = match self.per_token > 0.0 {
            true => REVIEW,
            false => FIRST_REVIEW,
        };
        if coarse.saturating_sub(self.since_ns) >= period {
            self.review(coarse, rate);
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.empty_until_ns != 0 && coarse < self.empty_until_ns {
            self.skip = self.draw(self.retry(rate));
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
            self.skip = self.draw(self.retry(rate));
            return false;
        }
        self.tokens -= 1.0;
        // The next look finds out.
        self.empty_until_ns = 0;
        self.skip = self.draw(self.per_token * SPACING);
        true
    }

    /// How fast launches come.
    #[cold]
    fn review(&mut self, now_ns: u64, rate: f64) {
        let elapsed = now_ns.saturating_sub(self.since_ns) as f64;
        // The first launch of all says nothing.
        if self.since_ns != 0 {
            let fresh = f64::from(self.seen) / (elapsed * 1e-9 * rate);
            let weight = match self.per_token > 0.0 {
                true => (elapsed / AVERAGE as f64).min(1.0),
                false => 1.0,
            };
            self.per_token += (fresh - self.per_token) * weight;
        }
        (self.since_ns, self.seen) = (now_ns, 0);
        let most = (2.0 * self.per_token * SPACING) as u32;
        self.skip = self.skip.min(most);
    }

    /// Launches until the next try when one came too early for its token.
    fn retry(&self, rate: f64) -> f64 {
        match rate < FEW {
            true => self.per_token / 4.0,
            false => self.per_token / 2.0,
        }
    }

    /// A random number of launches to let pass, so that on average every `gap`th comes up.
    fn draw(&mut self, gap: f64) -> u32 {
        // As a cast that saturates it is right for any gap.
        let most = (2.0 * (gap - 1.0)).round() as u32;
        if most == 0 {
            return 0;
        }
        // SplitMix64.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (self.refilled_ns << 20);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (((mixed >> 32) * (u64::from(most) + 1)) >> 32) as u32
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
        self.skip = 0;
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
        assert!((950..=1001).contains(&n), "{n}");
    }

    #[test]
    fn slower_than_the_rate_takes_every_launch() {
        assert_eq!(taken(100.0, 200 * MS, 300), 300);
    }

    #[test]
    fn rates_below_one_hold_one_token() {
        let n = taken(0.5, 100 * MS, 1000);
        assert!((33..=51).contains(&n), "{n}");
    }

    #[test]
    fn never_more_than_there_are_tokens() {
        for rate in [0.01, 0.5, 1.0, 20.0, 100.0, 237.0, 250.0, 1e4, 1e9] {
            let (mut bucket, mut tokens, mut before) = (Bucket::new(), 1.0, 0);
            let (mut now, mut seed) = (1_000_000 * MS, 1u64);
            for _ in 0..200_000 {
                // Some launches close together, some far apart.
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                now += (seed >> 40) % if seed & (1 << 33) == 0 { 5_000 } else { MS };
                if before != 0 {
                    tokens = f64::min(tokens + (now - before) as f64 * rate * 1e-9, rate.max(1.0));
                }
                before = now;
                if bucket.take(&at(now), rate) {
                    tokens -= 1.0;
                    assert!(tokens > -1e-3, "{rate} {now}");
                }
            }
        }
    }

    /// Launches of a round, us after its begin, and how long a round takes: what share of the samples each has.
    fn shares(launches: &[u64], round_us: u64, rate: f64, seconds: u64) -> (u64, Vec<f64>) {
        let mut bucket = Bucket::new();
        let mut counts = vec![0u64; launches.len()];
        for round in 0..seconds * 1_000_000 / round_us {
            for (launch, count) in launches.iter().zip(&mut counts) {
                let now = 1_000_000 * MS + (round * round_us + launch) * 1000;
                *count += u64::from(bucket.take(&at(now), rate));
            }
        }
        let all: u64 = counts.iter().sum();
        let share = |count: &u64| *count as f64 / all as f64;
        (all, counts.iter().map(share).collect())
    }

    #[test]
    fn launches_behind_a_pause_come_up_no_more_than_others() {
        // Two kernels, then the GPU is waited for.
        for rate in [20.0, 100.0, 1000.0] {
            let (all, shares) = shares(&[0, 4], 135, rate, 60);
            assert!(all as f64 > 0.93 * 60.0 * rate, "{rate}: {all}");
            assert!((shares[0] - 0.5).abs() < 0.05, "{rate}: {shares:?}");
        }
        // Steps of 200 ms: 500 launches in 50 ms, then the GPU is waited for.
        let launches: Vec<u64> = (0..500).map(|i| i * 100).collect();
        let (all, shares) = shares(&launches, 200_000, 100.0, 120);
        assert!(all > 10_500, "{all}");
        for tenth in shares.chunks(50).map(|part| part.iter().sum::<f64>()) {
            assert!((tenth - 0.1).abs() < 0.02, "{tenth}");
        }
    }

    #[test]
    fn a_thread_that_becomes_slow_has_every_launch_sampled() {
        let (mut bucket, mut now) = (Bucket::new(), 1_000_000 * MS);
        for _ in 0..500_000 {
            now += 5_000;
            bucket.take(&at(now), 100.0);
        }
        let mut refused = 0;
        for _ in 0..100 {
            now += 200 * MS;
            refused += u64::from(!bucket.take(&at(now), 100.0));
        }
        // The first seconds.
        assert!(refused <= 30, "{refused}");
        let late = (0..100).filter(|_| {
            now += 200 * MS;
            bucket.take(&at(now), 100.0)
        });
        assert_eq!(late.count(), 100);
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
        assert!((180..=201).contains(&granted), "{granted}");
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
