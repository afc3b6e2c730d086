//! What part of the time is sampled, so that the wanted number of samples is delivered.
//!
//! A pure function of what earlier windows brought. The controlled quantity is the probability that an
//! interval is a window; the wanted rate is that probability times the intervals in a second times what a
//! window brings, so the probability follows from the mean of the last windows. Samples are (PC, stall reason)
//! pairs over the whole process. A window brings its distinct pairs with their counts, so twice the load does
//! not bring twice the pairs, and nothing about the hardware has to be known.

use std::collections::VecDeque;

/// How long what a window brought counts, ns: long enough for loads that come in bursts.
const MEMORY: u64 = 15_000_000_000;
/// This many windows count however old they are.
const AT_LEAST: usize = 4;
/// When load sets in after a pause, the last windows say more than the mean: those of so long, ns, count
/// alone if they brought more, and are [`AT_LEAST`].
const LATELY: u64 = 2_000_000_000;
/// Bounds of the probability.
pub const BOUNDS: (f64, f64) = (0.001, 1.0);
/// The probability for a target of 0, and for one of [`FIRST_TARGET`] before anything is known.
pub const FIRST: f64 = 0.02;
/// The target, in pairs per second, that [`FIRST`] is for.
pub const FIRST_TARGET: f64 = 100.0;

/// See the module. Times are ns of any clock that does not go back.
#[derive(Debug)]
pub struct Controller {
    /// Pairs per second; 0: the probability is fixed.
    target: f64,
    /// Intervals per second.
    intervals: f64,
    /// When each window ended, and the pairs it brought.
    windows: VecDeque<(u64, u64)>,
}

impl Controller {
    /// For a target in pairs per second, 0 for a fixed probability, and intervals of `interval_ns`.
    pub fn new(target: f64, interval_ns: u64) -> Self {
        Self {
            target,
            intervals: 1e9 / interval_ns as f64,
            windows: VecDeque::new(),
        }
    }

    /// A window brought `pairs`.
    pub fn window(&mut self, now: u64, pairs: u64) {
        self.windows.push_back((now, pairs));
        while self.windows.len() > AT_LEAST && self.windows[0].0.saturating_add(MEMORY) < now {
            self.windows.pop_front();
        }
    }

    /// The probability of the next interval.
    pub fn probability(&self) -> f64 {
        if self.target <= 0.0 {
            return FIRST;
        }
        let wanted = if self.windows.is_empty() {
            FIRST * self.target / FIRST_TARGET
        } else {
            let last = self.windows[self.windows.len() - 1].0;
            let mean = self
                .mean_since(0)
                .max(self.mean_since(last.saturating_sub(LATELY)));
            // Without pairs this is infinite, and clamped.
            self.target / (self.intervals * mean)
        };
        wanted.clamp(BOUNDS.0, BOUNDS.1)
    }

    /// Pairs per window, of the windows that ended at or after `since`; 0 for too few.
    fn mean_since(&self, since: u64) -> f64 {
        let old = self.windows.partition_point(|(ended, _)| *ended < since);
        let windows = self.windows.len() - old;
        if windows < AT_LEAST && old > 0 {
            return 0.0;
        }
        let pairs: u64 = self.windows.range(old..).map(|(_, pairs)| pairs).sum();
        pairs as f64 / windows as f64
    }
}
