//! Token buckets: how many launches of a thread are sampled.
//!
//! Each thread has one bucket for eager launches and one for graph launches. A bucket starts with
//! one token, is refilled by `CLOCK_MONOTONIC`, and holds at most `max(1, rate)` tokens.

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    refilled_ns: u64,
}

impl Bucket {
    /// A bucket with its first token.
    pub const fn new() -> Self {
        Self {
            tokens: 1.0,
            refilled_ns: 0,
        }
    }

    /// Takes a token if there is one. `rate` in tokens per second.
    #[inline]
    pub fn take(&mut self, now_ns: u64, rate: f64) -> bool {
        if self.refilled_ns != 0 {
            let elapsed = now_ns.saturating_sub(self.refilled_ns) as f64;
            self.tokens = (self.tokens + elapsed * rate * 1e-9).min(rate.max(1.0));
        }
        self.refilled_ns = now_ns;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// Gives a token back that was taken for a launch which was not sampled after all.
    #[inline]
    pub fn give_back(&mut self, rate: f64) {
        self.tokens = (self.tokens + 1.0).min(rate.max(1.0));
    }
}

impl Default for Bucket {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Bucket;

    const MS: u64 = 1_000_000;

    fn taken(rate: f64, step_ns: u64, steps: u64) -> usize {
        let mut bucket = Bucket::new();
        (1..=steps)
            .filter(|i| bucket.take(1_000 * MS + i * step_ns, rate))
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

    #[test]
    fn idle_time_fills_up_to_the_capacity_only() {
        let mut bucket = Bucket::new();
        assert!(bucket.take(1, 20.0));
        let hour = 3_600_000 * MS;
        let burst = (0..100).filter(|_| bucket.take(hour, 20.0)).count();
        assert_eq!(burst, 20);
    }

    #[test]
    fn a_token_given_back_can_be_taken_again() {
        let mut bucket = Bucket::new();
        assert!(bucket.take(5, 1.0));
        assert!(!bucket.take(6, 1.0));
        bucket.give_back(1.0);
        bucket.give_back(1.0);
        assert!(bucket.take(7, 1.0));
        assert!(!bucket.take(8, 1.0));
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_does_no_harm() {
        let mut bucket = Bucket::new();
        assert!(bucket.take(1000, 1e9));
        assert!(!bucket.take(1000, 1e9));
        assert!(!bucket.take(10, 1e9));
        assert!(bucket.take(11, 1e9));
    }
}
