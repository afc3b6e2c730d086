//! When kernel activity is left on between samples.
//!
//! Switching around one launch costs some 15 us, activity left on some 2 us for every launch
//! (measured on an H200). So where buckets let most launches through, activity stays on: either
//! because a rate is set so high that it asks for everything, or because that is what happens.

use parcagpu_abi::status::Counter;

use crate::sampling::switch::Generation;
use crate::session::Session;
use crate::status;

/// A rate from which every launch is meant: no thread launches as often.
const EVERYTHING: f64 = 100_000.0;
/// Shares of launches that were sampled above which activity is left on, and below which no longer.
const SHARE_ON: f64 = 0.25;
const SHARE_OFF: f64 = 0.10;
/// Launches per look below which a share says nothing.
const ENOUGH: u64 = 100;
const LOOK_PERIOD: u64 = 1_000_000_000;

/// Joins the switch on behalf of all launches.
#[derive(Debug, Default)]
pub struct KeepOn {
    joined: Option<Generation>,
    always: bool,
    next_look: u64,
    seen: u64,
    sampled: u64,
}

impl KeepOn {
    /// At the start of an active period: lets launches join the switch.
    pub fn start(&mut self, session: &Session) {
        let config = &session.config;
        self.always = config.rate_limit.max(config.graph_rate_limit) >= EVERYTHING;
        (self.seen, self.sampled) = counts();
        let switch = &session.sampler.switch;
        match self.always {
            // Before any launch: one that switches turns those of other threads away meanwhile.
            true => self.joined = switch.open_joined(session).ok(),
            false => switch.open(),
        }
    }

    /// Looks once a second; `now` is `CLOCK_MONOTONIC` ns.
    pub fn look(&mut self, session: &Session, now: u64) {
        if self.always {
            // A launch may have been switching when the period started.
            self.join(session);
            return;
        }
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_PERIOD;
        let now = counts();
        let share = share((self.seen, self.sampled), now);
        (self.seen, self.sampled) = now;
        let Some(share) = share else {
            return;
        };
        if share >= SHARE_ON {
            self.join(session);
        } else if share < SHARE_OFF
            && let Some(joined) = self.joined.take()
        {
            session.sampler.switch.leave(joined, session);
        }
    }

    fn join(&mut self, session: &Session) {
        if self.joined.is_none() {
            self.joined = session.sampler.switch.join(session).ok();
        }
    }
}

/// The part of launches that were sampled between two looks; `None` where there were too few. Launches
/// that turn out to be none are taken back, at times more of them than came since.
fn share(before: (u64, u64), now: (u64, u64)) -> Option<f64> {
    let all = now.0.saturating_sub(before.0);
    let taken = now.1.saturating_sub(before.1);
    (all >= ENOUGH).then(|| taken as f64 / all as f64)
}

fn counts() -> (u64, u64) {
    let block = status::block();
    let sum = |a, b| block.get(a) + block.get(b);
    (
        sum(Counter::EagerSeen, Counter::GraphSeen),
        sum(Counter::EagerSampled, Counter::GraphSampled),
    )
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn launches_that_are_taken_back_are_no_share() {
        assert_eq!(share((1000, 10), (2000, 260)), Some(0.25));
        assert_eq!(share((1000, 10), (1099, 99)), None);
        assert_eq!(share((1000, 10), (990, 10)), None, "fewer than before");
    }
}
