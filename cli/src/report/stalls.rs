//! PC samples added up by source line, function and state of the warp.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::view::View;
use crate::demangle::clean;
use crate::pc::reasons::{Counts, Reasons, SELECTED};
use crate::recording::model::{NameId, PcSample};
use crate::text::plural;

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
    /// Samples at which the warp did not issue an instruction.
    pub fn waiting(&self) -> u64 {
        self.reasons
            .iter()
            .filter(|(reason, _)| is_wait(reason))
            .map(|(_, n)| n)
            .sum()
    }
}

/// Whether a warp in this state waits rather than issues.
pub fn is_wait(state: &str) -> bool {
    state != SELECTED
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
    /// Samples without a line whose code is in the recording.
    pub no_line: u64,
    /// Samples without a line whose code is not.
    pub no_code: u64,
}

impl Stalls {
    /// What is missing, and what to do about it.
    pub fn notes(&self) -> Vec<String> {
        let samples = |n: u64| plural(n, "PC sample");
        let mut notes = Vec::new();
        if self.no_code > 0 {
            notes.push(format!(
                "{} without a source line: the code is not in the recording (record with --cubins)",
                samples(self.no_code)
            ));
        }
        if self.no_line > 0 {
            notes.push(format!(
                "{} without a source line: the code tells none (compile with -lineinfo)",
                samples(self.no_line)
            ));
        }
        if self.dropped > 0 {
            notes.push(format!(
                "lost: {} dropped by the hardware",
                samples(self.dropped)
            ));
        }
        notes
    }
}

/// Adds up all PC samples.
pub fn stalls(view: &View<'_>) -> Stalls {
    let tables: Vec<Reasons> = view
        .rec
        .processes
        .iter()
        .map(|p| Reasons::new(&p.stall_reasons))
        .collect();
    let none = Reasons::default();
    let mut out = Stalls::default();
    let mut places: HashMap<Place, BTreeMap<Arc<str>, u64>> = HashMap::new();
    for sample in &view.rec.pc_samples {
        let mut counts = Counts::new();
        for (index, n) in &sample.reasons {
            *counts.entry(*index).or_default() += u64::from(*n);
        }
        let table = tables.get(sample.process as usize).unwrap_or(&none);
        let tally = table.tally(&counts);
        out.dropped += tally.dropped;
        out.samples += tally.samples;
        if sample.line == 0 {
            let process = view.rec.processes.get(sample.process as usize);
            let kept = process.and_then(|p| p.cubins.get(&sample.crc));
            match kept.is_some_and(|bytes| !bytes.is_empty()) {
                true => out.no_line += tally.samples,
                false => out.no_code += tally.samples,
            }
        }
        let row = places.entry(Place::of(sample)).or_default();
        for (state, n) in tally.states {
            *row.entry(state).or_default() += n;
        }
    }
    out.places = places
        .into_iter()
        .map(|(place, reasons)| {
            let mut reasons: Vec<(String, u64)> = reasons
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .map(|(state, n)| (clean(&state), n))
                .collect();
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
                reasons: vec![(0, 11), (1, 4), (2, 3), (2, 4), (3, 6), (4, 3), (63, 1)],
                line: 5,
                ..PcSample::default()
            }],
        );
        let stalls = stalls(&View::new(&rec));
        assert_eq!((stalls.samples, stalls.dropped), (11, 4));
        let row = &stalls.places[0];
        assert_eq!((row.samples, row.waiting()), (11, 8));
        let reasons = [("wait", 7), ("selected", 3), ("reason 63", 1)];
        assert_eq!(row.reasons, reasons.map(|(n, s)| (n.to_owned(), s)));
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
