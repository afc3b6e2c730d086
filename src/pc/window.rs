//! Which intervals are windows.
//!
//! Not a coin for each: the probabilities of the intervals are added up, and each unit of the sum has exactly
//! one window, at a point drawn anew. So every interval has its chance, nothing can lock onto a period of the
//! program, and the number of windows strays from the wanted one by less than two.
//!
//! Where a window brings many times what is wanted in a second, and load comes and goes, the mean of the last few
//! says little. So there is an account as well: what was delivered beyond the target is waited for.
//!
//! On a busy machine our thread comes late, and intervals are longer than they should be. Such a one counts as many.

use super::controller::Controller;

/// Length of an interval, and of a window, ns, at least: how often our thread looks.
pub const INTERVAL: u64 = 100_000_000;

/// Intervals whose pairs can be saved up.
const SAVED: f64 = 20.0;

/// The windows of a process. Times are `CLOCK_MONOTONIC` ns.
#[derive(Debug)]
pub struct Windows {
    controller: Controller,
    /// Pairs that are due in an interval; 0: no matter how many.
    due: f64,
    /// Pairs that may be delivered, below 0: too many were.
    account: f64,
    /// Sum of the probabilities of all intervals so far.
    sum: f64,
    /// The sum at which the next window comes.
    next: f64,
    /// When the present interval began; 0: there was none.
    began: u64,
    random: u64,
}

impl Windows {
    /// Windows for a target in pairs per second; `seed` makes processes differ. The first interval is one, so
    /// that a short program shows something and the controller knows what a window brings.
    pub fn new(target: f64, seed: u64) -> Self {
        Self {
            controller: Controller::new(target, INTERVAL),
            due: target * INTERVAL as f64 * 1e-9,
            account: 0.0,
            sum: 0.0,
            next: 0.0,
            began: 0,
            random: seed | 1,
        }
    }

    /// Whether the interval that begins now is a window.
    pub fn begins(&mut self, now: u64) -> bool {
        let intervals = match self.began {
            0 => 1.0,
            began => (now.saturating_sub(began) as f64 / INTERVAL as f64).min(SAVED),
        };
        self.began = now;
        // One that is missed is made up for, more are not: load may be gone by then.
        self.sum = (self.sum + self.controller.probability() * intervals).min(self.next + 1.0);
        self.account = (self.account + self.due * intervals).min(SAVED * self.due);
        if self.sum < self.next || self.account < 0.0 {
            return false;
        }
        // The sum grows without end in a process that lives for months.
        let unit = self.next.floor();
        self.sum -= unit;
        self.next = 1.0 + self.draw();
        true
    }

    /// A window that ended brought `pairs`.
    pub fn ended(&mut self, now: u64, pairs: u64) {
        self.controller.window(now, pairs);
        if self.due > 0.0 {
            self.account -= pairs as f64;
        }
    }

    /// The probability in force.
    pub fn probability(&self) -> f64 {
        self.controller.probability()
    }

    /// In [0, 1): Marsaglia's xorshift64.
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{INTERVAL, Windows};

    const SECOND: u64 = 1_000_000_000;
    const PER_SECOND: u64 = SECOND / INTERVAL;

    /// Pairs delivered per second between two moments, s, of a load that brings `load(interval)` pairs in a
    /// window.
    fn rate(target: f64, load: impl Fn(u64) -> u64, from: u64, to: u64) -> f64 {
        let mut delivered = 0;
        for seed in 1..=8u64 {
            let mut windows = Windows::new(target, seed * 0x9E37_79B9);
            for interval in 0..to * PER_SECOND {
                if windows.begins((interval + 1) * INTERVAL) {
                    let pairs = load(interval);
                    if interval >= from * PER_SECOND {
                        delivered += pairs;
                    }
                    windows.ended((interval + 2) * INTERVAL, pairs);
                }
            }
        }
        delivered as f64 / 8.0 / (to - from) as f64
    }

    #[test]
    fn steady_load_is_held_within_a_quarter_after_fifteen_seconds() {
        // Pairs per window: a few kernels; a model in training.
        for (target, pairs) in [
            (100.0, 230),
            (1000.0, 230),
            (100.0, 40),
            (1000.0, 2000),
            (50.0, 500),
        ] {
            let rate = rate(target, |_| pairs, 15, 75);
            assert!(
                (rate / target - 1.0).abs() < 0.25,
                "{pairs} for {target}: {rate}"
            );
        }
    }

    #[test]
    fn late_looks_do_not_lower_the_rate() {
        for (target, pairs) in [(100.0, 230), (1000.0, 230), (50.0, 500)] {
            for stretched in [11, 14, 20] {
                let (mut windows, mut now, mut delivered) = (Windows::new(target, 77), INTERVAL, 0);
                while now < 135 * SECOND {
                    let begins = windows.begins(now);
                    now += INTERVAL * stretched / 10;
                    if begins {
                        windows.ended(now, pairs);
                        delivered += if now > 15 * SECOND { pairs } else { 0 };
                    }
                }
                let rate = delivered as f64 / 120.0;
                assert!(
                    (rate / target - 1.0).abs() < 0.25,
                    "{pairs} for {target}, {stretched}: {rate}"
                );
            }
        }
    }

    #[test]
    fn where_less_comes_everything_is_taken() {
        assert_eq!(rate(1000.0, |_| 20, 15, 30), 200.0);
        // One launch a second, of five pairs.
        let sparse = rate(100.0, |i| if i % PER_SECOND == 3 { 5 } else { 0 }, 15, 60);
        assert_eq!(sparse, 5.0);
    }

    #[test]
    fn bursts_neither_silence_nor_flood() {
        // Half a second of load in every two, and ten seconds of it in every forty.
        let short = rate(100.0, |i| if i % 20 < 5 { 400 } else { 0 }, 15, 135);
        assert!((short / 100.0 - 1.0).abs() < 0.4, "{short}");
        let long = rate(100.0, |i| if i % 400 < 100 { 400 } else { 0 }, 40, 240);
        assert!((25.0..200.0).contains(&long), "{long}");
    }

    #[test]
    fn windows_of_many_pairs_do_not_add_up_to_a_flood() {
        // Training for a second in every four, 1,800 pairs in a window, as PyTorch on an H200.
        for target in [100.0, 1000.0] {
            let rate = rate(target, |i| if i % 40 < 10 { 1800 } else { 0 }, 15, 315);
            assert!((0.5..1.25).contains(&(rate / target)), "{target}: {rate}");
        }
    }

    #[test]
    fn a_program_in_step_with_the_windows_is_not_missed() {
        // Every tenth interval has all the load; the wanted probability is a tenth.
        let rate = rate(100.0, |i| if i % 10 == 0 { 1000 } else { 0 }, 30, 330);
        assert!((rate / 100.0 - 1.0).abs() < 0.4, "{rate}");
    }

    #[test]
    fn without_a_target_the_probability_is_fixed() {
        let mut windows = Windows::new(0.0, 7);
        let taken = (0..10_000u64)
            .filter(|i| {
                let begins = windows.begins((i + 1) * INTERVAL);
                if begins {
                    windows.ended((i + 2) * INTERVAL, 100_000);
                }
                begins
            })
            .count();
        assert!((195..=205).contains(&taken), "{taken}");
        assert_eq!(windows.probability(), 0.02);
    }

    #[test]
    fn the_bounds_hold_and_the_first_interval_is_a_window() {
        let mut windows = Windows::new(1.0, 3);
        assert!(windows.begins(INTERVAL));
        windows.ended(2 * INTERVAL, u64::MAX >> 20);
        assert_eq!(windows.probability(), 0.001);
        for target in [1e-9, 1e300, f64::MIN_POSITIVE] {
            let windows = Windows::new(target, 3);
            assert!((0.001..=1.0).contains(&windows.probability()));
        }
    }
}
