//! PC samples added up by source line, function and reason.
//!
//! Of CUPTI's reasons two are no reasons: the count of all samples of a PC, and the samples the hardware
//! dropped. `X_not_issued` is the part of X's samples at which no warp of the scheduler issued anything; it is
//! contained in X, so adding it would count samples twice.

use std::collections::{BTreeMap, HashMap};

use super::view::View;
use crate::recording::model::{NameId, PcSample};

/// What an entry of a record's reasons says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry<'a> {
    All,
    Dropped,
    Reason(&'a str),
    NotIssued(&'a str),
}

fn entry(name: &str) -> Entry<'_> {
    if name.ends_with("_sample_count") {
        return Entry::All;
    }
    if name.ends_with("_samples_data_dropped") {
        return Entry::Dropped;
    }
    let short = name
        .strip_prefix("smsp__pcsamp_warps_issue_stalled_")
        .or_else(|| name.strip_prefix("smsp__pcsamp_"))
        .unwrap_or(name);
    match short.strip_suffix("_not_issued") {
        Some(reason) => Entry::NotIssued(reason),
        None => Entry::Reason(short),
    }
}

/// Reasons of one record: (short name, samples), and the samples that the hardware dropped.
fn reasons(view: &View<'_>, sample: &PcSample) -> (Vec<(String, u64)>, u64) {
    let names = view
        .rec
        .processes
        .get(sample.process as usize)
        .map_or(&[][..], |p| &p.stall_reasons);
    let mut by_name: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut all, mut dropped) = (0, 0);
    for (index, n) in &sample.reasons {
        let n = u64::from(*n);
        let unnamed = format!("reason {index}");
        let name = match names.get(*index as usize) {
            Some(name) if !name.is_empty() => crate::demangle::clean(name),
            _ => unnamed,
        };
        match entry(&name) {
            Entry::All => all += n,
            Entry::Dropped => dropped += n,
            Entry::Reason(reason) => by_name.entry(reason.to_owned()).or_default().0 += n,
            Entry::NotIssued(reason) => by_name.entry(reason.to_owned()).or_default().1 += n,
        }
    }
    let mut reasons: Vec<_> = by_name
        .into_iter()
        .map(|(name, (n, not_issued))| (name, n.max(not_issued)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let told: u64 = reasons.iter().map(|(_, n)| n).sum();
    if all > told {
        reasons.push(("reason not told".to_owned(), all - told));
    }
    (reasons, dropped)
}

/// A place in GPU code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Function, mangled.
    pub function: NameId,
    /// Source file; 0: not known.
    pub file: NameId,
    /// 0: not known.
    pub line: u32,
    /// Offset in the function and mnemonic, only where the line is not known.
    pub instruction: Option<(u64, NameId)>,
}

impl Place {
    fn of(sample: &PcSample) -> Self {
        Self {
            function: sample.function,
            file: sample.file,
            line: sample.line,
            instruction: (sample.line == 0).then_some((sample.pc_offset, sample.mnemonic)),
        }
    }

    /// `file:line`, or `+0x140 LDG.E` where the line is not known.
    pub fn text(&self, view: &View<'_>) -> String {
        match self.instruction {
            None => format!("{}:{}", view.name(self.file), self.line),
            Some((pc, mnemonic)) => format!("+{pc:#x} {}", view.name(mnemonic))
                .trim_end()
                .to_owned(),
        }
    }
}

/// What waited at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceRow {
    /// Where.
    pub place: Place,
    /// Samples.
    pub samples: u64,
    /// (reason, samples), most first.
    pub reasons: Vec<(String, u64)>,
}

impl PlaceRow {
    /// Samples at which the warp waited for something, rather than being picked or ready.
    pub fn waiting(&self) -> u64 {
        self.reasons
            .iter()
            .filter(|(reason, _)| is_wait(reason))
            .map(|(_, n)| n)
            .sum()
    }
}

/// Whether a warp in this state waits: `selected` issues, `not_selected` could have.
pub fn is_wait(reason: &str) -> bool {
    !matches!(reason, "selected" | "not_selected" | "reason not told")
}

/// All PC samples.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    /// By falling number of samples.
    pub places: Vec<PlaceRow>,
    /// Samples.
    pub samples: u64,
    /// Samples that the hardware dropped.
    pub dropped: u64,
}

/// Adds up all PC samples.
pub fn stalls(view: &View<'_>) -> Stalls {
    let mut out = Stalls::default();
    let mut places: HashMap<Place, HashMap<String, u64>> = HashMap::new();
    for sample in &view.rec.pc_samples {
        let (reasons, dropped) = reasons(view, sample);
        out.dropped += dropped;
        let row = places.entry(Place::of(sample)).or_default();
        for (reason, n) in reasons {
            out.samples += n;
            *row.entry(reason).or_default() += n;
        }
    }
    out.places = places
        .into_iter()
        .map(|(place, reasons)| {
            let mut reasons: Vec<_> = reasons.into_iter().collect();
            reasons.sort_by(|(an, a), (bn, b)| b.cmp(a).then_with(|| an.cmp(bn)));
            PlaceRow {
                place,
                samples: reasons.iter().map(|(_, n)| n).sum(),
                reasons,
            }
        })
        .filter(|row| row.samples > 0)
        .collect();
    out.places
        .sort_by(|a, b| b.samples.cmp(&a.samples).then(a.place.cmp(&b.place)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::model::{Process, Recording};

    fn recording(names: &[&str], samples: Vec<PcSample>) -> Recording {
        Recording {
            processes: vec![Process {
                stall_reasons: names.iter().map(|n| (*n).to_owned()).collect(),
                ..Process::default()
            }],
            pc_samples: samples,
            ..Recording::default()
        }
    }

    #[test]
    fn a_sample_counts_once() {
        let rec = recording(
            &[
                "smsp__pcsamp_sample_count",
                "smsp__pcsamp_samples_data_dropped",
                "smsp__pcsamp_warps_issue_stalled_wait",
                "smsp__pcsamp_warps_issue_stalled_wait_not_issued",
                "smsp__pcsamp_warps_issue_stalled_selected",
            ],
            vec![PcSample {
                reasons: vec![(0, 12), (1, 4), (2, 7), (3, 6), (4, 3), (63, 1)],
                line: 5,
                ..PcSample::default()
            }],
        );
        let stalls = stalls(&View::new(&rec));
        assert_eq!((stalls.samples, stalls.dropped), (12, 4));
        let row = &stalls.places[0];
        assert_eq!((row.samples, row.waiting()), (12, 8));
        assert_eq!(
            row.reasons,
            [
                ("wait", 7),
                ("selected", 3),
                ("reason 63", 1),
                ("reason not told", 1)
            ]
            .map(|(n, s)| (n.to_owned(), s))
        );
    }

    #[test]
    fn lines_are_added_up_and_sorted() {
        let sample = |line, n| PcSample {
            line,
            reasons: vec![(0, n)],
            ..PcSample::default()
        };
        let rec = recording(
            &["wait"],
            vec![sample(1, 2), sample(2, 3), sample(1, 5), sample(3, 0)],
        );
        let stalls = stalls(&View::new(&rec));
        let lines: Vec<_> = stalls
            .places
            .iter()
            .map(|p| (p.place.line, p.samples))
            .collect();
        assert_eq!(lines, [(1, 7), (2, 3)]);
    }
}
