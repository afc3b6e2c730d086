//! Where machine code comes from: CUPTI while it is ours alone, else the images that hooks see.

use super::{Machine, Phase, SECOND, Subscription, report};
use crate::cubin::{modules, registry};
use crate::cupti::callbacks::MODULES;
use crate::cupti::sys::{DOMAIN_RESOURCE, resource_cbid};
use crate::session::Session;
use crate::{hooks, probes};

/// How long CUPTI is asked at first.
const FIRST: u64 = 2 * SECOND;
/// Shortest and longest pause after that, and how long it is asked then; at the next look it ends.
const PAUSE: (u64, u64) = (SECOND, 60 * SECOND);
const AGAIN: u64 = SECOND / 20;
/// How long it is asked when a sample came of code that nobody knows, and the first pause after it was asked in
/// vain: some code is never told, such as what no longer fits into memory.
const MISSED: u64 = SECOND / 2;
const MISSED_PAUSE: u64 = 5 * SECOND;
/// How often a moment is looked for in which no launch switches.
const TRIES: u32 = 100;
/// Refusals in a row until they are told.
const TOLD_AFTER: u32 = 10;

/// When CUPTI is asked for modules that were loaded before the subscription.
///
/// It tells of one at every launch from it, not once, which makes each launch dearer. So it is asked for a
/// while when a consumer of code comes, and then now and then, ever more rarely while nothing new is found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    on: bool,
    /// Of the present state; 0: off until a consumer comes.
    until: u64,
    pause: u64,
    /// Modules that had been found when it was last switched.
    found: u64,
    /// From when on missing code is a reason.
    missed: u64,
    missed_pause: u64,
    /// Refusals in a row.
    failures: u32,
}

impl Earlier {
    /// It is on from now on.
    pub(super) fn begin(now: u64) -> Self {
        Self {
            on: true,
            until: now + FIRST,
            pause: PAUSE.0,
            found: modules::earlier_found(),
            missed: 0,
            missed_pause: MISSED_PAUSE,
            failures: 0,
        }
    }

    /// Whether it is to be switched now. `wanted`: there is a consumer of code; `missed`: code is missing.
    fn is_due(&mut self, now: u64, wanted: bool, missed: bool) -> bool {
        if !wanted {
            if !self.on {
                // For the next consumer it is asked anew.
                (self.until, self.pause) = (0, PAUSE.0);
            }
            return self.on;
        }
        now >= self.until || missed && !self.on && now >= self.missed
    }

    /// It was switched. `found`: modules that it has told of, ever.
    fn switched(&mut self, now: u64, found: u64) {
        self.failures = 0;
        self.on = !self.on;
        if self.on {
            let missed = now < self.until;
            if missed {
                self.missed = now + MISSED + self.missed_pause;
                self.missed_pause = (self.missed_pause * 2).min(PAUSE.1);
            }
            self.until = now
                + match self.until {
                    0 => FIRST,
                    _ if missed => MISSED,
                    _ => AGAIN,
                };
            return;
        }
        if found == self.found {
            self.pause = (self.pause * 2).min(PAUSE.1);
        } else {
            (self.pause, self.missed) = (PAUSE.0, now);
            self.missed_pause = MISSED_PAUSE;
        }
        self.found = found;
        self.until = now + self.pause;
    }

    /// CUPTI refused. It is tried again at the next look; whether it is time to tell.
    fn refused(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures == TOLD_AFTER
    }
}

impl Machine {
    /// A consumer of cubins gets them from CUPTI while we have it to ourselves, else from the images that
    /// hooks see.
    pub(super) fn look_at_cubins(&mut self, now: u64) {
        let wanted = probes::cubin_loaded::enabled() || probes::cubin_unloaded::enabled();
        let session = self.session;
        if let (Phase::Active(subscription), Some(api)) = (&mut self.phase, session.api())
            && !subscription.shared
        {
            let Subscription {
                handle,
                modules,
                modules_refused,
                callbacks,
                ..
            } = subscription;
            let enable = |cbid, on| api.insist_on_callback(*handle, DOMAIN_RESOURCE, cbid, on);
            match modules {
                None if wanted => {
                    let all = || MODULES.into_iter().try_for_each(|cbid| enable(cbid, true));
                    match apart(session, all) {
                        Some(Ok(())) => {
                            callbacks.extend(MODULES.map(|cbid| (DOMAIN_RESOURCE, cbid)));
                            *modules = Some(Earlier::begin(now));
                        }
                        Some(Err(error)) => {
                            *modules_refused = modules_refused.saturating_add(1);
                            if *modules_refused == TOLD_AFTER {
                                report("cubin", error);
                            }
                        }
                        // At the next look.
                        None => {}
                    }
                }
                None => {}
                Some(earlier) => {
                    let missed = registry::take_missed();
                    if earlier.is_due(now, wanted, missed) {
                        let switch = || enable(resource_cbid::MODULE_PROFILED, !earlier.on);
                        match apart(session, switch) {
                            Some(Ok(())) => earlier.switched(now, modules::earlier_found()),
                            Some(Err(error)) if earlier.refused() => report("cubin", error),
                            Some(Err(_)) | None => {}
                        }
                    }
                }
            }
        }
        let from_cupti =
            matches!(&self.phase, Phase::Active(subscription) if subscription.modules.is_some());
        let from_images = wanted && !from_cupti;
        hooks::want(hooks::IMAGES, from_images);
        hooks::want(hooks::UNLOADS, from_images || registry::has_handles());
    }
}

/// Calls CUPTI while no launch switches callbacks: by its documentation such calls must not meet. `None` if launches
/// switch all the time.
fn apart<R>(session: &Session, mut act: impl FnMut() -> R) -> Option<R> {
    (0..TRIES).find_map(|_| {
        let done = session.sampler.switch.apart(session, &mut act);
        if done.is_none() {
            std::thread::yield_now();
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::{Earlier, FIRST, MISSED, MISSED_PAUSE, PAUSE, SECOND, TOLD_AFTER};

    /// When it was switched, as ns and state, looking ten times a second.
    fn switches(
        seconds: u64,
        found: impl Fn(u64) -> u64,
        missed: impl Fn(u64) -> bool,
    ) -> Vec<(u64, bool)> {
        let mut earlier = Earlier {
            on: true,
            until: FIRST,
            pause: PAUSE.0,
            found: 0,
            missed: 0,
            missed_pause: MISSED_PAUSE,
            failures: 0,
        };
        let mut switches = Vec::new();
        for now in (1..seconds * 10).map(|look| look * SECOND / 10) {
            if earlier.is_due(now, true, missed(now)) {
                earlier.switched(now, found(now));
                switches.push((now, earlier.on));
            }
        }
        switches
    }

    #[test]
    fn what_is_refused_is_tried_again_and_told_once() {
        let mut earlier = Earlier::begin(0);
        assert!(earlier.is_due(FIRST, true, false));
        let told: Vec<u32> = (1..30).filter(|_| earlier.refused()).collect();
        assert_eq!(told, [TOLD_AFTER]);
        assert!(earlier.on && earlier.is_due(FIRST + 1, true, false));
        earlier.switched(FIRST + 2, 0);
        assert!(!earlier.on && !earlier.is_due(FIRST + 3, true, false) && !earlier.refused());
    }

    #[test]
    fn ever_more_rarely_while_nothing_is_found() {
        let switches = switches(600, |_| 7, |_| false);
        assert_eq!(
            switches[..3],
            [
                (FIRST, false),
                (FIRST + SECOND, true),
                (FIRST + SECOND + SECOND / 10, false)
            ]
        );
        let off: u64 = switches
            .chunks_exact(2)
            .map(|pair| pair[1].0 - pair[0].0)
            .sum();
        assert!(
            off > 530 * SECOND,
            "off for {off} of 600 s, the last pause left out"
        );
        let pauses = switches.chunks_exact(2).map(|pair| pair[1].0 - pair[0].0);
        assert!(pauses.clone().is_sorted() && pauses.max() == Some(PAUSE.1));
    }

    #[test]
    fn as_often_as_at_first_once_something_is_found() {
        let switches = switches(400, |now| u64::from(now > 300 * SECOND), |_| false);
        let after = switches.iter().filter(|switch| switch.0 > 300 * SECOND);
        let after: Vec<_> = after.collect();
        let found = after.iter().position(|switch| !switch.1).expect("an end");
        assert_eq!(after[found + 1].0 - after[found].0, PAUSE.0);
    }

    #[test]
    fn off_without_a_consumer_and_anew_for_the_next() {
        let mut earlier = Earlier::begin(0);
        assert!(!earlier.is_due(SECOND, true, false));
        assert!(earlier.is_due(SECOND, false, false));
        earlier.switched(SECOND, 0);
        for _ in 0..3 {
            assert!(!earlier.is_due(9 * SECOND, false, true));
        }
        let mut came = |now| {
            assert!(earlier.is_due(now, true, false));
            earlier.switched(now, 0);
            assert!(earlier.on && !earlier.is_due(now + FIRST - 1, true, true));
            assert!(earlier.is_due(now + FIRST, true, false));
            earlier.switched(now + FIRST, 0);
            assert!(!earlier.is_due(now + FIRST + 1, true, false));
            // It leaves while nothing is asked.
            assert!(!earlier.is_due(now + FIRST + 2, false, false));
        };
        came(10 * SECOND);
        came(20 * SECOND);
    }

    #[test]
    fn code_that_is_never_told_is_asked_for_ever_more_rarely() {
        let switches = switches(3600, |_| 0, |_| true);
        let on = switches.iter().filter(|switch| switch.1).count();
        assert!((60..200).contains(&on), "{on}");
    }

    #[test]
    fn at_once_when_code_is_missing_but_not_all_the_time() {
        let switches = switches(600, |_| 0, |now| now > 500 * SECOND);
        let after: Vec<_> = switches.iter().filter(|s| s.0 > 500 * SECOND).collect();
        assert_eq!(*after[0], (500 * SECOND + SECOND / 10, true));
        assert_eq!(*after[1], (after[0].0 + MISSED, false));
        let on = after.iter().filter(|switch| switch.1).count() as u64;
        assert!(on <= 100 * SECOND / MISSED_PAUSE + 2, "{on}");
    }
}
