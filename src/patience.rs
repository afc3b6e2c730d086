//! Waiting with a bound, on machines that may stand still.
//!
//! A process can be stopped, and so can the machine under it. When it goes on, a deadline on the clock has passed,
//! and whoever was waited for has had no time to come. So what counts is time in which the waiting thread ran or
//! could have: a step that took longer than it should counts as one of 25 ms.

use std::time::{Duration, Instant};

/// Longest time between two looks that counts in full.
const LONGEST: Duration = Duration::from_millis(25);
/// How long to wait at most until the next look.
const STEP: Duration = Duration::from_millis(10);

/// What is left of a bound.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    /// All of it.
    pub fn new(limit: Duration) -> Self {
        Self {
            left: limit,
            looked: Instant::now(),
        }
    }

    /// Whether it is at its end. To be asked again and again, after [`Self::step`] at the latest.
    pub fn is_over(&mut self) -> bool {
        self.passed(Instant::now())
    }

    fn passed(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.left = self.left.saturating_sub(since.min(LONGEST));
        self.left.is_zero()
    }

    /// How long to wait for what is waited for until [`Self::is_over`] is asked again.
    pub fn step(&self) -> Duration {
        self.left.min(STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, Patience, STEP};
    use std::time::Duration;

    #[test]
    fn short_steps_count_as_they_are() {
        let mut patience = Patience::new(Duration::from_millis(100));
        let begun = patience.looked;
        for step in 1..10 {
            assert!(!patience.passed(begun + STEP * step), "{step}");
        }
        assert!(patience.passed(begun + STEP * 10));
        assert_eq!(patience.step(), Duration::ZERO);
    }

    #[test]
    fn standing_still_takes_little_of_it() {
        let limit = Duration::from_millis(100);
        let mut patience = Patience::new(limit);
        let begun = patience.looked;
        assert!(!patience.passed(begun + Duration::from_secs(3600)));
        assert_eq!(patience.left, limit - LONGEST);
        // It still has an end.
        assert!((1..10).any(|hour| patience.passed(begun + Duration::from_secs(3601) * hour)));
    }
}
