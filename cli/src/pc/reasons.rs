//! Stall reasons by name, and which counts are samples.
//!
//! CUPTI tells for each PC how often it was seen per reason, by index into a table of names. Each sample counts once
//! under the state its warp was in; where its scheduler issued nothing in that cycle it counts once more, under the
//! same name with `_not_issued`. Adding all up would count most samples twice. Two of the names are no states:
//! `smsp__pcsamp_sample_count` and `smsp__pcsamp_samples_data_dropped`.
//!
//! Every view shows what [`Tally`] says, by CUPTI's names without what all have in common (`long_scoreboard`), in
//! shares of the samples: each once, those whose warp issued among them, the `_not_issued` twins not.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::demangle::clean;
use crate::text::percent;

const STATE: &str = "smsp__pcsamp_warps_issue_stalled_";
const NOT_ISSUED: &str = "_not_issued";
const SAMPLE_COUNT: &str = "smsp__pcsamp_sample_count";
/// Reasons in [`Tally::words`].
const NAMED: usize = 3;
const DROPPED: &str = "smsp__pcsamp_samples_data_dropped";
/// The state of a warp that issues an instruction.
const SELECTED: &str = "selected";

/// Counts by index into the table.
pub type Counts = BTreeMap<u32, u64>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Meaning {
    State(Arc<str>),
    NotIssued(Arc<str>),
    SampleCount,
    Dropped,
    /// A gap in the table.
    Unnamed,
}

/// A process's table of stall reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    meanings: Vec<Meaning>,
}

impl Reasons {
    /// From the names that `stall_reason_map` told.
    pub fn new(names: &[String]) -> Self {
        let meaning = |name: &String| match name.as_str() {
            SAMPLE_COUNT => Meaning::SampleCount,
            DROPPED => Meaning::Dropped,
            "" => Meaning::Unnamed,
            name => {
                let short = name.strip_prefix(STATE).unwrap_or(name);
                match short.strip_suffix(NOT_ISSUED) {
                    Some(state) => Meaning::NotIssued(state.into()),
                    None => Meaning::State(short.into()),
                }
            }
        };
        Self {
            meanings: names.iter().map(meaning).collect(),
        }
    }

    /// No table has come: what counts twice cannot be told apart.
    pub fn is_empty(&self) -> bool {
        self.meanings.is_empty()
    }

    /// Name of a reason, without what all have in common.
    pub fn name(&self, index: u32) -> String {
        match self.meanings.get(index as usize) {
            Some(Meaning::State(name)) => name.to_string(),
            Some(Meaning::NotIssued(name)) => format!("{name}{NOT_ISSUED}"),
            Some(Meaning::SampleCount) => SAMPLE_COUNT.to_owned(),
            Some(Meaning::Dropped) => DROPPED.to_owned(),
            Some(Meaning::Unnamed) | None => format!("reason {index}"),
        }
    }

    /// Adds up the counts of one PC.
    pub fn tally(&self, counts: &Counts) -> Tally {
        let mut states: BTreeMap<Arc<str>, (u64, u64)> = BTreeMap::new();
        let mut tally = Tally::default();
        for (index, count) in counts {
            match self.meanings.get(*index as usize) {
                Some(Meaning::State(name)) => {
                    states.entry(Arc::clone(name)).or_default().0 += count;
                }
                Some(Meaning::NotIssued(name)) => {
                    states.entry(Arc::clone(name)).or_default().1 += count;
                }
                Some(Meaning::SampleCount) => {}
                Some(Meaning::Dropped) => tally.dropped += count,
                Some(Meaning::Unnamed) | None => {
                    states.entry(self.name(*index).into()).or_default().0 += count;
                }
            }
        }
        for (name, (all, not_issued)) in states {
            // The twin is a part of the state; alone, it is what there is.
            let samples = all.max(not_issued);
            tally.samples += samples;
            tally.not_issued += not_issued;
            if &*name == SELECTED {
                tally.issued += samples;
            }
            *tally.states.entry(name).or_default() += samples;
        }
        tally
    }
}

/// Samples by the state of their warp.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Samples, each once.
    pub samples: u64,
    /// Those whose warp issued an instruction.
    pub issued: u64,
    /// Those in whose cycle the scheduler issued nothing.
    pub not_issued: u64,
    /// Samples that the hardware dropped.
    pub dropped: u64,
    /// By state, `issued` under its own name.
    pub states: BTreeMap<Arc<str>, u64>,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.issued += other.issued;
        self.not_issued += other.not_issued;
        self.dropped += other.dropped;
        for (state, samples) in &other.states {
            *self.states.entry(Arc::clone(state)).or_default() += samples;
        }
    }

    /// Samples whose warp issued nothing.
    pub fn waiting(&self) -> u64 {
        self.samples - self.issued
    }

    /// What the warps mostly wait for, and the part of all samples each makes:
    /// `long_scoreboard 70.0 %, barrier 20.0 %`.
    pub fn words(&self) -> String {
        let shown = |(state, samples): &(&str, u64)| {
            let share = percent((*samples).into(), self.samples.into());
            format!("{} {share}", clean(state))
        };
        let waits: Vec<String> = self.waits().iter().take(NAMED).map(shown).collect();
        if waits.is_empty() {
            "nothing waited".to_owned()
        } else {
            waits.join(", ")
        }
    }

    /// States other than issuing, the most frequent first.
    pub fn waits(&self) -> Vec<(&str, u64)> {
        let mut waits: Vec<(&str, u64)> = self
            .states
            .iter()
            .map(|(state, samples)| (&**state, *samples))
            .filter(|(state, samples)| *state != SELECTED && *samples > 0)
            .collect();
        waits.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Reasons {
        let names = [
            "smsp__pcsamp_sample_count",
            "smsp__pcsamp_samples_data_dropped",
            "smsp__pcsamp_warps_issue_stalled_selected",
            "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
            "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued",
            "something_else",
            "",
        ];
        Reasons::new(&names.map(str::to_owned))
    }

    #[test]
    fn a_sample_counts_once() {
        let counts = Counts::from([(0, 100), (1, 3), (2, 4), (3, 90), (4, 85), (5, 2), (70, 1)]);
        let tally = table().tally(&counts);
        assert_eq!((tally.samples, tally.issued), (97, 4));
        assert_eq!((tally.not_issued, tally.dropped), (85, 3));
        let waits = [
            ("long_scoreboard", 90),
            ("something_else", 2),
            ("reason 70", 1),
        ];
        assert_eq!(tally.waits(), waits);
        let words = "long_scoreboard 92.8 %, something_else 2.1 %, reason 70 1.0 %";
        assert_eq!((tally.waiting(), tally.words().as_str()), (93, words));
        assert_eq!(Tally::default().words(), "nothing waited");
        let mut twice = tally.clone();
        twice.add(&tally);
        assert_eq!((twice.samples, twice.waits()[0].1), (194, 180));
    }

    #[test]
    fn a_twin_alone_is_what_there_is() {
        let tally = table().tally(&Counts::from([(4, 7)]));
        assert_eq!((tally.samples, tally.not_issued), (7, 7));
        assert_eq!(tally.waits(), [("long_scoreboard", 7)]);
    }

    #[test]
    fn without_a_table_reasons_have_numbers() {
        let none = Reasons::default();
        assert!(none.is_empty());
        assert_eq!(none.name(3), "reason 3");
        assert_eq!(none.tally(&Counts::from([(3, 2), (4, 2)])).samples, 4);
        assert_eq!(table().name(4), "long_scoreboard_not_issued");
        assert_eq!(table().name(6), "reason 6");
        assert_eq!(
            table().tally(&Counts::from([(6, 3)])).waits(),
            [("reason 6", 3)]
        );
    }
}
