//! One process: its counters, its state, and what these mean in words.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use parcagpu_abi::status::{Counter, NVTX_ONLY, State, Status, UNKNOWN};

use super::launches;
use crate::status::uuid;
use crate::text::plural;

/// Counters of losses, what each counts and what became of it.
const LOSSES: &[(Counter, &str, &str)] = &[
    (Counter::RecordsDroppedByCupti, "record", "dropped by CUPTI"),
    (Counter::BuffersRefused, "buffer", "refused (pool full)"),
    (Counter::IdsExpired, "launch", "given up without a record"),
    (Counter::NvtxDropped, "NVTX event", "dropped"),
    (Counter::PcDropped, "PC sample", "dropped by the hardware"),
    (Counter::CubinsRefused, "cubin", "not kept"),
];

/// Counters of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counters(pub(super) Vec<u64>);

impl Counters {
    pub(super) fn of(status: &Status) -> Self {
        Self(Counter::ALL.iter().map(|c| status.get(*c)).collect())
    }

    /// Value of a counter; `None`: unknown.
    pub(super) fn get(&self, counter: Counter) -> Option<u64> {
        self.0
            .get(counter as usize)
            .copied()
            .filter(|n| *n != UNKNOWN)
    }

    pub(super) fn advance(&mut self, later: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&later.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

/// What is known of one process.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Its name.
    pub comm: String,
    /// See [`Entry::start_ns`].
    pub(super) start_ns: Option<u64>,
    /// Values when we came; `None`: it started later, from 0.
    pub(super) baseline: Option<Counters>,
    /// The last ones.
    pub(super) latest: Option<Counters>,
    state: Option<State>,
    reason: String,
    holder: String,
    last_error: String,
    devices: BTreeMap<u32, String>,
    // `None`: not known.
    pc_sampling: Option<bool>,
    /// Since when CUPTI has had the oldest buffer, `CLOCK_MONOTONIC` ns; 0: none is out.
    pub oldest_buffer_ns: u64,
    // Launches that came to us, once no more can.
    told: Option<u64>,
}

impl Entry {
    pub(super) fn take(&mut self, status: &Status) {
        let counters = Counters::of(status);
        match &mut self.latest {
            Some(latest) => latest.advance(&counters),
            None => self.latest = Some(counters),
        }
        self.take_devices(status);
        self.state = State::from_u32(status.state.load(Relaxed));
        self.oldest_buffer_ns = status.oldest_buffer_ns.load(Relaxed);
        self.reason = status.reason.load();
        self.holder = status.cupti_holder.load();
        self.last_error = status.last_error.load();
        let rate = status.config.pc_sampling_rate.load(Relaxed);
        self.pc_sampling = Some(!f64::from_bits(rate).is_nan());
    }

    pub(super) fn take_devices(&mut self, status: &Status) {
        let known = status.devices.iter().filter(|d| d.known.load(Relaxed) == 1);
        self.devices
            .extend(known.map(|d| (d.ordinal.load(Relaxed), uuid(d))));
    }

    /// Its state when it was last looked at; `None`: unknown.
    pub fn state(&self) -> Option<State> {
        self.state
    }

    /// How far a counter went since we came; `None`: unknown.
    pub fn since(&self, counter: Counter) -> Option<u64> {
        let latest = self.latest.as_ref()?.get(counter)?;
        match &self.baseline {
            Some(baseline) => Some(latest.saturating_sub(baseline.get(counter)?)),
            None => Some(latest),
        }
    }

    /// Eager and graph launches since we came, and until we left once that is settled; `None`: unknown.
    pub fn launches_seen(&self) -> Option<u64> {
        let both = |eager, graph| Some(self.since(eager)?.saturating_add(self.since(graph)?));
        let seen = both(Counter::EagerSeen, Counter::GraphSeen)?;
        let sampled = both(Counter::EagerSampled, Counter::GraphSampled);
        match (self.told, sampled) {
            // Rounded up: what is a sample stays one.
            (Some(told), Some(sampled)) if told < sampled => {
                let part = u128::from(seen) * u128::from(told);
                u64::try_from(part.div_ceil(u128::from(sampled))).ok()
            }
            _ => Some(seen),
        }
    }

    /// So many of its launches were told to us in all.
    pub(super) fn settle(&mut self, told: u64) {
        self.told = Some(told);
    }

    /// Losses inside the library since we came: what was lost and how, in words, and how many.
    pub fn losses(&self) -> Vec<(&'static str, &'static str, u64)> {
        LOSSES
            .iter()
            .filter_map(|(counter, noun, what)| {
                let n = self.since(*counter).filter(|n| *n > 0)?;
                Some((*noun, *what, n))
            })
            .collect()
    }

    /// Every kind of loss and how much of it there was since we came, also none; those that are known.
    pub fn losses_by_counter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LOSSES
            .iter()
            .filter_map(|(counter, _, _)| Some((counter.name(), self.since(*counter)?)))
    }

    /// [`Self::losses`] in one text, empty when there were none.
    pub fn library_losses(&self) -> String {
        let shown = |(noun, what, n)| format!("{} {what}", plural(n, noun));
        let losses: Vec<String> = self.losses().into_iter().map(shown).collect();
        losses.join(", ")
    }

    /// Start of the process, `CLOCK_BOOTTIME` ns; `None` as long as it told nothing.
    pub fn start_ns(&self) -> Option<u64> {
        self.start_ns
    }

    /// Devices of the process by ordinal, with their UUIDs.
    pub fn devices(&self) -> &BTreeMap<u32, String> {
        &self.devices
    }

    /// Why there are no PC samples.
    pub fn why_no_pc_samples(&self) -> String {
        match self.pc_sampling {
            Some(false) => {
                "PC sampling is off; it is started with the program: PARCAGPU_PC_SAMPLING_RATE=1000 PARCAGPU_PC_HW_BUFFER_MB=32"
                    .to_owned()
            }
            _ if self.state == Some(State::Active) && self.last_error.is_empty() => {
                "none yet; if it stays so, have the consumer there before the program's first CUDA call: parcagpu run --record"
                    .to_owned()
            }
            _ if self.state == Some(State::Active) => {
                format!("none yet; last error: {}", self.last_error)
            }
            _ => self.why_nothing(),
        }
    }

    fn what_it_did(&self) -> String {
        let launches = match self.launches_seen() {
            None => "how many launches it made is not known".to_owned(),
            Some(0) => "it made no launch".to_owned(),
            Some(n) => format!("it made {}, of which none came here", launches(n)),
        };
        format!("it initialised CUDA; {launches}")
    }

    /// Whether there should have been something, as far as its status says.
    pub fn is_odd(&self) -> bool {
        let launched = self.launches_seen().is_some_and(|n| n > 0);
        let failed = matches!(self.state, Some(State::Hooked | State::Stopped));
        launched || failed || !self.last_error.is_empty()
    }

    /// Why there is nothing, from the last status that was read.
    pub fn why_nothing(&self) -> String {
        let Some(state) = self.state else {
            return "its status is not known".to_owned();
        };
        if state == State::Absent && self.reason == NVTX_ONLY {
            return "it used NVTX and not CUDA (trace, run --trace and top --nvtx show its ranges)"
                .to_owned();
        }
        let mut text = match state {
            State::Absent => "it had not loaded the CUDA driver when last looked at".to_owned(),
            State::Hooked => {
                "it had loaded the CUDA driver and not initialised it when last looked at"
                    .to_owned()
            }
            State::Dormant => format!("{}; the library is dormant", self.what_it_did()),
            State::Active => self.what_it_did(),
            State::Yielded => format!("{}; the library has yielded", self.what_it_did()),
            // It counts no more, or never did.
            State::Stopped if self.launches_seen().is_none_or(|n| n == 0) => {
                "the library has stopped".to_owned()
            }
            State::Stopped => format!("{}; the library has stopped", self.what_it_did()),
        };
        if state == State::Yielded && !self.holder.is_empty() {
            text += &format!(" to {}", self.holder);
        }
        if !self.reason.is_empty() {
            text += &format!(": {}", self.reason);
        }
        if !self.last_error.is_empty() {
            text += &format!("; last error: {}", self.last_error);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_launched_after_we_left_is_no_part_of_it() {
        let counters = |seen, sampled| {
            let mut all = vec![0; Counter::ALL.len()];
            all[Counter::EagerSeen as usize] = seen;
            all[Counter::EagerSampled as usize] = sampled;
            Some(Counters(all))
        };
        let mut entry = Entry {
            baseline: counters(1_000, 10),
            latest: counters(1_209, 219),
            ..Entry::default()
        };
        assert_eq!(entry.launches_seen(), Some(209));
        entry.settle(44);
        assert_eq!(entry.launches_seen(), Some(44), "all of them were sampled");
        entry.latest = counters(1_000 + 1_621, 10 + 540);
        entry.settle(494);
        assert_eq!(entry.launches_seen(), Some(1_483));
        entry.latest = counters(1_000 + 1_621, 10 + 1_620);
        entry.settle(100);
        assert_eq!(entry.launches_seen(), Some(101), "a sample stays one");
        // Counts may be read before the last launches.
        entry.settle(2_000);
        assert_eq!(entry.launches_seen(), Some(1_621));
    }

    #[test]
    fn unknown_counters_stay_unknown() {
        let status = Status::new();
        status.counters[Counter::EagerSeen as usize].store(UNKNOWN, Relaxed);
        let mut entry = Entry::default();
        entry.take(&status);
        assert_eq!(entry.launches_seen(), None);
        assert_eq!(entry.since(Counter::EagerSampled), Some(0));
    }

    #[test]
    fn counts_start_when_we_came() {
        let status = Status::new();
        status.add(Counter::EagerSeen, 100);
        let mut entry = Entry {
            baseline: Some(Counters::of(&status)),
            ..Entry::default()
        };
        status.add(Counter::EagerSeen, 7);
        status.add(Counter::IdsExpired, 2);
        status.add(Counter::BuffersRefused, 1);
        status.set_text(&status.reason, "no consumer");
        entry.take(&status);
        assert_eq!(entry.launches_seen(), Some(7));
        assert_eq!(
            entry.library_losses(),
            "1 buffer refused (pool full), 2 launches given up without a record"
        );
        assert_eq!(
            entry.why_nothing(),
            "it had not loaded the CUDA driver when last looked at: no consumer"
        );
        status.state.store(State::Dormant as u32, Relaxed);
        entry.take(&status);
        assert_eq!(
            entry.why_nothing(),
            "it initialised CUDA; it made 7 launches, of which none came here; the library is dormant: no consumer"
        );
        assert!(entry.is_odd());
        let stopped = Status::new();
        stopped.state.store(State::Stopped as u32, Relaxed);
        stopped.set_text(&stopped.reason, "another copy is in charge");
        let mut entry = Entry::default();
        entry.take(&stopped);
        assert_eq!(
            entry.why_nothing(),
            "the library has stopped: another copy is in charge"
        );
    }
}
