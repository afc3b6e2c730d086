//! When metadata is fired again: the joining rule.
//!
//! A semaphore counts attachments, and it rises before the consumer's program is in place, so
//! neither "rose" nor "now" can be relied on. Any change of a probe's semaphore to a non-zero value,
//! up or down, is taken as a possible join: the probe's whole set is fired at the next look and
//! again 1 s and 5 s later. While the semaphore is non-zero the set is fired every 10 s. A value
//! that is non-zero at the first look counts as a join. Consumers deduplicate by key.

use crate::cubin::registry;
use crate::{errors, nvtx, pc, probes};

const SECOND: u64 = 1_000_000_000;
/// Delays after a possible join, ns; 0 is "the next look".
const AFTER_JOIN: [u64; 3] = [0, SECOND, 5 * SECOND];
const PERIOD: u64 = 10 * SECOND;

/// The rule for one probe; looked at ten times a second. Times are `CLOCK_MONOTONIC` ns.
#[derive(Debug, Default)]
pub struct Joiner {
    last: u16,
    due: [Option<u64>; AFTER_JOIN.len()],
    periodic: u64,
}

impl Joiner {
    /// One look: whether the set is to be fired now.
    pub fn look(&mut self, semaphore: u16, now: u64) -> bool {
        let mut fire = false;
        for due in &mut self.due {
            if due.is_some_and(|at| at <= now) {
                *due = None;
                fire = true;
            }
        }
        let joined = semaphore != 0 && semaphore != self.last;
        self.last = semaphore;
        if semaphore == 0 {
            self.due = [None; AFTER_JOIN.len()];
            return false;
        }
        if joined {
            self.due = AFTER_JOIN.map(|delay| Some(now + delay));
            self.periodic = now + PERIOD;
        }
        if self.periodic <= now {
            fire = true;
        }
        if fire {
            self.periodic = now + PERIOD;
        }
        fire
    }
}

struct Set {
    semaphore: fn() -> u16,
    fire: fn(),
}

/// The sets of this process.
const SETS: [Set; 5] = [
    Set {
        semaphore: probes::error::semaphore,
        fire: errors::replay,
    },
    Set {
        semaphore: probes::cubin_loaded::semaphore,
        fire: registry::replay,
    },
    Set {
        semaphore: probes::stall_reason_map::semaphore,
        fire: pc::metadata::replay_reasons,
    },
    Set {
        semaphore: probes::gpu_config::semaphore,
        fire: pc::metadata::replay_configs,
    },
    Set {
        semaphore: probes::nvtx_resource_name::semaphore,
        fire: nvtx::names::replay,
    },
];

/// All metadata probes; owned by our thread.
#[derive(Default)]
pub struct Metadata {
    joiners: [Joiner; SETS.len()],
}

impl Metadata {
    /// One look at every metadata probe.
    pub fn look(&mut self, now: u64) {
        for (set, joiner) in SETS.iter().zip(&mut self.joiners) {
            if joiner.look((set.semaphore)(), now) {
                (set.fire)();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Joiner, SECOND};

    const LOOK: u64 = SECOND / 10;

    fn fired(values: impl Fn(u64) -> u16, looks: u64) -> Vec<u64> {
        let mut joiner = Joiner::default();
        (0..looks)
            .filter(|i| joiner.look(values(*i), i * LOOK))
            .collect()
    }

    #[test]
    fn a_join_fires_at_the_next_look_then_after_one_and_five_seconds_then_every_ten() {
        assert_eq!(fired(|i| u16::from(i >= 3), 300), [4, 13, 53, 153, 253]);
    }

    #[test]
    fn a_value_at_load_is_a_join() {
        assert_eq!(fired(|_| 2, 20), [1, 10]);
    }

    #[test]
    fn a_fall_to_a_non_zero_value_is_a_join_and_to_zero_is_not() {
        assert_eq!(
            fired(|i| if i < 60 { 2 } else { 1 }, 72),
            [1, 10, 50, 61, 70]
        );
        assert_eq!(fired(|i| u16::from(i < 3), 200), [1]);
    }
}
