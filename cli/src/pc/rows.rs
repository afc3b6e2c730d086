//! Kernels, their lines, and what they wait for: the rows of every view of PC samples.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::reasons::Tally;
use super::samples::{Function, ProcessSamples, State};
use crate::code::{Code, Knowledge};
use crate::demangle::{clean, demangle};

/// A line of a kernel, or what is known in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spot {
    /// Path and line.
    Line(Arc<str>, u32),
    /// No line, and why.
    Unknown(Knowledge),
}

/// Samples of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRow {
    /// Where.
    pub spot: Spot,
    /// What its warps did.
    pub tally: Tally,
    /// Instructions by SASS mnemonic, the most frequent first; those not known are missing.
    pub mnemonics: Vec<(Arc<str>, u64)>,
}

/// Samples of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRow {
    /// As it is shown.
    pub name: String,
    /// What its warps did.
    pub tally: Tally,
    /// The most frequent first.
    pub lines: Vec<LineRow>,
}

/// Samples of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// All of them.
    pub tally: Tally,
    /// The most frequent first.
    pub kernels: Vec<KernelRow>,
    /// Samples without a line, by reason.
    pub unknown: BTreeMap<Knowledge, u64>,
    /// Samples of instructions that were not kept one by one; in `tally`, in no kernel.
    pub further: u64,
    /// SM time that a sample stands for, ns.
    pub ns_per_sample: Option<f64>,
    /// Whether it is known which stall reason means that the warp issued.
    pub reasons_known: bool,
}

impl Rows {
    /// Makes the rows. What is not known yet of the code is asked for, so that a later call knows more.
    pub fn new(process: &ProcessSamples, code: &mut Code, raw_names: bool) -> Self {
        let mut kernels: HashMap<String, Kernel> = HashMap::new();
        let mut rows = Self {
            ns_per_sample: process.ns_per_sample(),
            reasons_known: !process.reasons.is_empty(),
            ..Self::default()
        };
        for (number, offsets) in &process.points {
            let function = process.function(*number);
            let mut kernel = Kernel::default();
            let mut whole = None;
            for (offset, counts) in offsets {
                let place = code.resolve(function.crc, &function.name(), *offset);
                let tally = process.reasons.tally(counts);
                whole = whole.or(place.function);
                let spot = match place.line {
                    Some(line) => Spot::Line(line.file, line.line),
                    None => {
                        *rows.unknown.entry(place.knowledge).or_default() += tally.samples;
                        Spot::Unknown(place.knowledge)
                    }
                };
                kernel.tally.add(&tally);
                let (line, mnemonics) = kernel.lines.entry(spot).or_default();
                line.add(&tally);
                if let Some(mnemonic) = place.mnemonic {
                    *mnemonics.entry(mnemonic).or_default() += tally.samples;
                }
            }
            rows.tally.add(&kernel.tally);
            let name = shown(function, whole.as_deref(), raw_names);
            // Several functions may be shown by one name.
            kernels.entry(name).or_default().merge(kernel);
        }
        let further = process.reasons.tally(&process.further);
        rows.further = further.samples;
        rows.tally.add(&further);
        rows.kernels = kernels
            .into_iter()
            .map(|(name, kernel)| kernel.row(name))
            .collect();
        rows.kernels.sort_by(|a, b| {
            let samples = b.tally.samples.cmp(&a.tally.samples);
            samples.then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    /// SM time of so many samples, ns.
    pub fn time_ns(&self, samples: u64) -> Option<u64> {
        // Far below 2^53 samples; the fraction of a nanosecond does not count.
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate"
        )]
        self.ns_per_sample.map(|ns| (ns * samples as f64) as u64)
    }
}

#[derive(Default)]
struct Kernel {
    tally: Tally,
    lines: HashMap<Spot, (Tally, BTreeMap<Arc<str>, u64>)>,
}

impl Kernel {
    fn merge(&mut self, other: Self) {
        self.tally.add(&other.tally);
        for (spot, (tally, mnemonics)) in other.lines {
            let line = self.lines.entry(spot).or_default();
            line.0.add(&tally);
            for (mnemonic, samples) in mnemonics {
                *line.1.entry(mnemonic).or_default() += samples;
            }
        }
    }

    fn row(self, name: String) -> KernelRow {
        let mut lines: Vec<LineRow> = self
            .lines
            .into_iter()
            .map(|(spot, (tally, mnemonics))| {
                let mut mnemonics: Vec<_> = mnemonics.into_iter().collect();
                mnemonics.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
                LineRow {
                    spot,
                    tally,
                    mnemonics,
                }
            })
            .collect();
        lines.sort_by(|a, b| {
            let samples = b.tally.samples.cmp(&a.tally.samples);
            samples.then_with(|| a.spot.cmp(&b.spot))
        });
        KernelRow {
            name,
            tally: self.tally,
            lines,
        }
    }
}

/// The whole name where the code has it, else what the sample has of it.
fn shown(function: &Function, whole: Option<&[u8]>, raw_names: bool) -> String {
    let (name, cut) = match (whole, function.state) {
        (Some(whole), _) => (whole, false),
        (None, State::None) => return "(no name)".to_owned(),
        (None, state) => (&*function.name, state == State::Cut),
    };
    match name {
        b"" => "(empty name)".to_owned(),
        name if raw_names => clean(&String::from_utf8_lossy(name)) + if cut { "…" } else { "" },
        name => demangle(name, cut),
    }
}
