//! PC samples added up by source line, function and state of the warp.

use std::collections::{BTreeMap, HashMap};

use super::view::View;
use crate::demangle::clean;
use crate::pc::reasons::{Counts, Reasons, Tally};
use crate::recording::model::{NameId, PcSample, ProcessIndex};
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

/// What warps did at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceRow {
    /// Where.
    pub place: Place,
    /// States of the warps found there.
    pub tally: Tally,
}

/// What warps did in the parts of a function that have no line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unplaced {
    /// Function, mangled.
    pub function: NameId,
    /// Instructions.
    pub instructions: u64,
    /// That with the most waiting samples, and these.
    pub most: (Place, u64),
    /// States of the warps found there.
    pub tally: Tally,
}

/// States and samples, the most frequent first; issuing is one of them.
pub fn states(tally: &Tally) -> Vec<(String, u64)> {
    let mut states: Vec<(String, u64)> = tally
        .states
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(state, n)| (clean(state), *n))
        .collect();
    states.sort_by(|(an, a), (bn, b)| b.cmp(a).then_with(|| an.cmp(bn)));
    states
}

/// All PC samples.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    /// By falling number of samples.
    pub places: Vec<PlaceRow>,
    /// All of them.
    pub tally: Tally,
    /// Samples without a line whose code is in the recording.
    pub no_line: u64,
    /// Samples without a line whose code is not.
    pub no_code: u64,
    /// Samples of processes whose table of stall reasons is not in the recording.
    pub no_table: u64,
}

impl Stalls {
    /// Functions that have instructions without a line, by falling number of waiting samples.
    pub fn unplaced(&self) -> Vec<Unplaced> {
        let mut rows: BTreeMap<NameId, Unplaced> = BTreeMap::new();
        for PlaceRow { place, tally } in &self.places {
            if place.instruction.is_none() {
                continue;
            }
            let row = rows.entry(place.function).or_insert_with(|| Unplaced {
                function: place.function,
                ..Unplaced::default()
            });
            row.instructions += 1;
            row.tally.add(tally);
            if tally.waiting() > row.most.1 {
                row.most = (*place, tally.waiting());
            }
        }
        let mut rows: Vec<Unplaced> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.tally.waiting()));
        rows
    }

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
        if self.no_table > 0 {
            notes.push(format!(
                "{} may count twice: the names of the stall reasons had not come",
                samples(self.no_table)
            ));
        }
        if self.tally.dropped > 0 {
            notes.push(format!(
                "lost: {} dropped by the hardware",
                samples(self.tally.dropped)
            ));
        }
        notes
    }
}

/// Stall reasons of each process.
pub fn reason_tables(view: &View<'_>) -> Vec<Reasons> {
    let processes = view.rec.processes.iter();
    processes.map(|p| Reasons::new(&p.stall_reasons)).collect()
}

/// Adds up all PC samples.
pub fn stalls(view: &View<'_>) -> Stalls {
    let mut all = add_up(view, |_| 0);
    all.remove(&0).unwrap_or_default()
}

/// Adds up the PC samples of each process.
pub fn by_process(view: &View<'_>) -> BTreeMap<ProcessIndex, Stalls> {
    add_up(view, |sample| sample.process)
}

fn add_up(view: &View<'_>, group: impl Fn(&PcSample) -> u32) -> BTreeMap<u32, Stalls> {
    let tables = reason_tables(view);
    let none = Reasons::default();
    let mut groups: BTreeMap<u32, (Stalls, HashMap<Place, Tally>)> = BTreeMap::new();
    for sample in &view.rec.pc_samples {
        let (out, places) = groups.entry(group(sample)).or_default();
        let mut counts = Counts::new();
        for (index, n) in &sample.reasons {
            *counts.entry(*index).or_default() += u64::from(*n);
        }
        let table = tables.get(sample.process as usize).unwrap_or(&none);
        let tally = table.tally(&counts);
        if table.is_empty() {
            out.no_table += tally.samples;
        }
        if sample.line == 0 {
            let process = view.rec.processes.get(sample.process as usize);
            let kept = process.and_then(|p| p.cubins.get(&sample.crc));
            match kept.is_some_and(|bytes| !bytes.is_empty()) {
                true => out.no_line += tally.samples,
                false => out.no_code += tally.samples,
            }
        }
        out.tally.add(&tally);
        places.entry(Place::of(sample)).or_default().add(&tally);
    }
    let sorted = |(group, (mut out, places)): (u32, (Stalls, HashMap<Place, Tally>))| {
        out.places = places
            .into_iter()
            .map(|(place, tally)| PlaceRow { place, tally })
            .filter(|row| row.tally.samples > 0)
            .collect();
        out.places.sort_by(|a, b| {
            b.tally
                .samples
                .cmp(&a.tally.samples)
                .then(a.place.cmp(&b.place))
        });
        (group, out)
    };
    groups.into_iter().map(sorted).collect()
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
        assert_eq!((stalls.tally.samples, stalls.tally.dropped), (11, 4));
        let row = &stalls.places[0];
        assert_eq!((row.tally.samples, row.tally.waiting()), (11, 8));
        let reasons = [("wait", 7), ("selected", 3), ("reason 63", 1)];
        assert_eq!(states(&row.tally), reasons.map(|(n, s)| (n.to_owned(), s)));
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
            .map(|p| (p.place.line, p.tally.samples))
            .collect();
        assert_eq!(lines, [(1, 7), (2, 3)]);
    }
    #[test]
    fn what_has_no_line_is_one_row_per_function() {
        let sample = |function, pc_offset, n| PcSample {
            function,
            pc_offset,
            reasons: vec![(0, n), (1, 1)],
            ..PcSample::default()
        };
        let mut lined = sample(1, 64, 100);
        lined.line = 3;
        let mut rec = recording(
            &["wait", "selected"],
            vec![sample(1, 0, 2), sample(2, 16, 9), sample(1, 32, 5), lined],
        );
        rec.names = ["", "a", "b"].map(str::to_owned).to_vec();
        let view = View::new(&rec);
        let all = stalls(&view);
        let rows: Vec<_> = all
            .unplaced()
            .into_iter()
            .map(|r| {
                (
                    r.function,
                    r.instructions,
                    r.tally.waiting(),
                    r.most.0.text(&view),
                )
            })
            .collect();
        let one = (2, 1, 9, "+0x10".to_owned());
        assert_eq!(rows, [one, (1, 2, 7, "+0x20".to_owned())]);
    }
}
