//! What `report` makes of a recording. Every output is written by one function from the same [`view::View`], so
//! that names, times and what is said of the sample are the same in all of them.

mod command;
mod coverage;
mod folded;
mod html;
mod jsonl;
mod lanes;
pub mod otlp;
mod output;
mod perfetto;
mod pprof;
mod pprof_proto;
mod stalls;
mod summary;
mod sums;
mod view;

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use crate::recording::model::Recording;
use crate::recording::resolve::Naming;

pub use command::{check_beside, make_beside, report};
pub use output::write_to;

/// An output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text: slowest kernels, who launched them, where warps wait
    Text,
    /// One page for a browser: timeline, tables, flame graph
    Html,
    /// For the Perfetto UI
    Perfetto,
    /// For pprof: GPU time by CPU stack, PC samples by source line
    Pprof,
    /// Folded stacks with GPU time, ns
    Folded,
    /// Flame graph as SVG
    Flamegraph,
    /// One JSON object per line and record
    Jsonl,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Text,
        Self::Html,
        Self::Perfetto,
        Self::Pprof,
        Self::Folded,
        Self::Flamegraph,
        Self::Jsonl,
    ];

    /// Endings of file names, and what is made for them.
    const ENDINGS: [(&str, Self); 9] = [
        (".txt", Self::Text),
        (".html", Self::Html),
        (".pftrace", Self::Perfetto),
        (".perfetto-trace", Self::Perfetto),
        (".pb.gz", Self::Pprof),
        (".pprof", Self::Pprof),
        (".folded", Self::Folded),
        (".svg", Self::Flamegraph),
        (".jsonl", Self::Jsonl),
    ];

    /// The endings that [`Self::of`] knows, for people.
    pub fn endings() -> String {
        Self::ENDINGS.map(|(ending, _)| ending).join(", ")
    }

    /// By the ending of a file's name.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        Self::ENDINGS
            .iter()
            .find(|(ending, _)| name.ends_with(ending))
            .map(|(_, format)| *format)
    }

    /// The ending of a file that is named for it.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Html => "html",
            Self::Perfetto => "pftrace",
            Self::Pprof => "pb.gz",
            Self::Folded => "folded",
            Self::Flamegraph => "svg",
            Self::Jsonl => "jsonl",
        }
    }

    /// Whether PC samples are in it.
    pub fn shows_pc_samples(self) -> bool {
        matches!(self, Self::Text | Self::Html | Self::Pprof | Self::Jsonl)
    }

    /// Which instructions have a name in it.
    pub fn naming(self) -> Naming {
        match self {
            Self::Text | Self::Html => Naming::WithoutLine,
            Self::Jsonl => Naming::All,
            Self::Perfetto | Self::Pprof | Self::Folded | Self::Flamegraph => Naming::None,
        }
    }

    /// Whether it is lines of text.
    pub fn is_lines(self) -> bool {
        matches!(self, Self::Text | Self::Folded | Self::Jsonl)
    }
}

/// Writes a recording in a format; lines of [`Format::Text`] are cut at `width`, 0: never.
pub fn write(
    recording: &Recording,
    format: Format,
    width: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let view = view::View::new(recording);
    match format {
        Format::Text => summary::write(&view, width, out),
        Format::Html => html::write(&view, out),
        Format::Perfetto => perfetto::write(&view, out),
        Format::Pprof => pprof::write(&view, out),
        Format::Folded => folded::write_folded(&view, out),
        Format::Flamegraph => folded::write_svg(&view, out),
        Format::Jsonl => jsonl::write(&view, out),
    }
}
