//! `parcagpu run` and `parcagpu record`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::Scope;
use super::numbers::{mib, pause, rate};
use crate::report::Format;
use crate::report::otlp::{Endpoint, Word};

/// What goes into a recording.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Recording")]
pub struct KeepOptions {
    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,
    /// Do not take the CPU stacks of launches
    #[arg(long)]
    pub no_stacks: bool,
    /// Keep the machine code of kernels too, to resolve PC samples with
    #[arg(long)]
    pub cubins: bool,
    /// Make these of it at the end, beside it, as parcagpu report does
    #[arg(long, value_enum, value_name = "FORMATS", value_delimiter = ',')]
    pub format: Vec<Format>,
    /// Send it at the end to this collector as OTLP profiles, as parcagpu report does
    #[arg(long, value_name = "URL", value_parser = Word)]
    pub otlp: Option<Endpoint>,
}

/// `parcagpu record`
#[derive(Args, Debug)]
pub struct RecordOptions {
    /// The file
    #[arg(long, short, value_name = "FILE", default_value = "parcagpu.pgpu")]
    pub output: PathBuf,
    /// Launches of the command sampled per second and thread [default: PARCAGPU_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true, requires = "command")]
    pub rate: Option<f64>,
    /// Graph launches of the command sampled per second and thread [default: as --rate, else
    /// PARCAGPU_GRAPH_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true, requires = "command")]
    pub graph_rate: Option<f64>,
    /// Sample where the command's kernels are, too, and what they wait for: sets PARCAGPU_PC_SAMPLING_RATE=1000
    /// and PARCAGPU_PC_HW_BUFFER_MB=32 where they are not set, and keeps the machine code as --cubins does
    #[arg(long, requires = "command")]
    pub pc: bool,
    /// Start this command and record what it does
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// Which processes and how long.
    #[command(flatten)]
    pub scope: Scope,
    /// What goes in.
    #[command(flatten)]
    pub keep: KeepOptions,
}

/// `parcagpu run`
#[derive(Args, Debug)]
pub struct RunOptions {
    /// Launches sampled per second and thread [default: PARCAGPU_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Graph launches sampled per second and thread [default: as --rate, else PARCAGPU_GRAPH_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true)]
    pub graph_rate: Option<f64>,
    /// Sample where the kernels are, too, and what they wait for; see parcagpu record --help
    #[arg(long)]
    pub pc: bool,
    /// Print every event as it comes
    #[arg(long, conflicts_with_all = ["top", "every"])]
    pub trace: bool,
    /// Print the table of kernels at the end (this is the default)
    #[arg(long)]
    pub top: bool,
    /// Print the table every so many seconds too
    #[arg(long, value_name = "SECONDS", value_parser = pause, allow_negative_numbers = true)]
    pub every: Option<f64>,
    /// Library to preload [default: PARCAGPU_LIB, or the one beside this program, in ../lib, in
    /// target/release]
    #[arg(long, value_name = "FILE")]
    pub lib: Option<PathBuf>,
    /// Results as JSON: one object per line with --trace, else one object at the end
    #[arg(long)]
    pub json: bool,
    /// Do not demangle kernel names
    #[arg(long)]
    pub raw_names: bool,
    /// Write the results to this file instead of stderr
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Record everything in this file too; see parcagpu record --help
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Size of the ring buffer between kernel and this program
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = mib, allow_negative_numbers = true)]
    pub ring_mib: u32,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
    /// What goes into the recording.
    #[command(flatten)]
    pub keep: KeepOptions,
}
