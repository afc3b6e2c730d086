//! The command line.

pub mod help;
mod numbers;
mod record;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::code::{Code, CodeOptions};
use crate::refusal::refuse;
use crate::report::Format;
use crate::report::otlp::{Endpoint, Word};
use crate::top::metrics;
use numbers::{kernel_names, mib, pid, seconds};
pub use record::{KeepOptions, RecordOptions, RunOptions};

/// Shows what CUDA programs do on the GPU, through the probes of libparcagpu.so.
#[derive(Debug, Parser)]
#[command(name = "parcagpu", version, after_help = help::PROGRAM_HELP)]
pub struct Cli {
    #[command(subcommand)]
    /// What to do.
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print every event of every probe, one line each
    #[command(after_long_help = help::TRACE_HELP)]
    Trace(TraceOptions),
    /// Show which kernels take the time, per process, live
    #[command(after_long_help = help::TOP_HELP)]
    Top(TopOptions),
    /// Start a command with the library preloaded and show its kernels
    #[command(after_long_help = help::RUN_HELP)]
    Run(RunOptions),
    /// Keep what the probes say in a file, for later
    #[command(after_long_help = help::RECORD_HELP)]
    Record(RecordOptions),
    /// Make text, a page, a trace or a profile of a recording
    #[command(after_long_help = help::REPORT_HELP)]
    Report(ReportOptions),
    /// Print what every process with the library says about itself
    #[command(after_long_help = help::STATUS_HELP)]
    Status(StatusOptions),
    /// Check host, rights, library, driver and processes, and say what to do about each finding
    #[command(after_long_help = help::DOCTOR_HELP)]
    Doctor(DoctorOptions),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(CompletionsOptions),
    /// Print the man page of the program or of a command
    #[command(hide = true)]
    Man(ManOptions),
}

// A heading holds for what follows it: what has one stands behind what has none.

/// Which processes; each option may be given more than once, any that fits is enough.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which processes (default: all; each may be given more than once)")]
pub struct Chosen {
    /// This process
    #[arg(long, short, value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub pid: Vec<u32>,
    /// Processes of this name, as ps -o comm shows it or as their program file is called
    #[arg(long, value_name = "NAME")]
    pub comm: Vec<String>,
    /// Processes in this cgroup and below: a path as in /proc/PID/cgroup, or its folder in /sys/fs/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<String>,
    /// Processes of this container of docker, podman, containerd or Kubernetes: the beginning of its id
    #[arg(long, value_name = "ID")]
    pub container: Vec<String>,
}

/// Which processes and how long.
#[derive(Args, Debug)]
pub struct Scope {
    /// Attach to this library only, whether or not a process has it yet [default: every library with our
    /// probes that a process has, and the one found by PARCAGPU_LIB, beside this program, in ../lib, in
    /// target/release]
    #[arg(long, value_name = "FILE")]
    pub lib: Option<PathBuf>,
    /// Stop after so many seconds
    #[arg(long, value_name = "N", value_parser = seconds, allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// Size of the ring buffer between kernel and this program [default: 8, for record 32]
    #[arg(long, value_name = "MIB", value_parser = mib, allow_negative_numbers = true)]
    pub ring_mib: Option<u32>,
    /// Which processes.
    #[command(flatten)]
    pub chosen: Chosen,
}

/// `parcagpu trace`
#[derive(Args, Debug)]
pub struct TraceOptions {
    /// One JSON object per line; fields below
    #[arg(long)]
    pub json: bool,
    /// Do not demangle kernel names
    #[arg(long)]
    pub raw_names: bool,
    /// Also print metadata that was printed before
    #[arg(long)]
    pub repeats: bool,
    /// Print kernel_executed also where there is activity_batch
    #[arg(long)]
    pub kernel_executed: bool,
    /// Only these probes, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub probe: Vec<String>,
    /// Code of the GPU.
    #[command(flatten)]
    pub code: CodeArgs,
    /// Which processes and how long.
    #[command(flatten)]
    pub scope: Scope,
}

/// How the code of the GPU is looked at, for PC samples.
#[derive(Args, Clone, Debug, Default)]
pub struct CodeArgs {
    /// Keep the machine code of kernels in this folder, and look there before reading it from a process
    #[arg(long, value_name = "DIR")]
    pub cubin_cache: Option<PathBuf>,
    /// NVIDIA's disassembler, for the names of instructions [default: nvdisasm in PATH, CUDA_HOME/bin,
    /// /usr/local/cuda/bin]
    #[arg(long, value_name = "FILE")]
    pub nvdisasm: Option<PathBuf>,
}

impl CodeArgs {
    /// As the code wants them.
    pub fn options(&self) -> CodeOptions {
        CodeOptions {
            cache: self.cubin_cache.clone(),
            nvdisasm: self.nvdisasm.clone(),
            no_mnemonics: false,
        }
    }

    /// Starts looking at code; what was named and cannot be used is refused.
    pub fn start(&self) -> anyhow::Result<Code> {
        Code::start(&self.options()).map_err(|e| refuse(format!("{e:#}")))
    }
}

/// `parcagpu top`
#[derive(Args, Debug)]
pub struct TopOptions {
    /// One JSON object at the end instead of the table
    #[arg(long)]
    pub json: bool,
    /// Do not demangle kernel names
    #[arg(long)]
    pub raw_names: bool,
    /// Watch for a second (or --seconds), print one table
    #[arg(long)]
    pub once: bool,
    /// Show NVTX ranges, and the GPU time of what was launched inside them
    #[arg(long)]
    pub nvtx: bool,
    /// Show where inside the kernels the GPU's warps are, and what they wait for
    #[arg(long, conflicts_with = "nvtx")]
    pub pc: bool,
    /// Serve metrics for Prometheus at this address, under /metrics; port 0: a free one, which is told on stderr
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = metrics::address, conflicts_with = "once")]
    pub listen: Option<SocketAddr>,
    /// Metrics by kernel too: so many names over all processes, the further ones of each process in one
    #[arg(long, value_name = "N", value_parser = kernel_names, allow_negative_numbers = true, requires = "listen")]
    pub listen_kernels: Option<u32>,
    /// Code of the GPU.
    #[command(flatten)]
    pub code: CodeArgs,
    /// Which processes and how long.
    #[command(flatten)]
    pub scope: Scope,
}

/// `parcagpu report`
#[derive(Args, Debug)]
pub struct ReportOptions {
    /// The recording
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What to make [default: by the ending of OUT, else text]
    #[arg(long, short, value_enum)]
    pub format: Option<Format>,
    /// Where to; - is stdout [default: stdout; for html, perfetto, pprof and flamegraph on a terminal a
    /// file in this folder, named after the recording]
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Send it to this collector as OTLP profiles over HTTP, to /v1development/profiles
    #[arg(long, value_name = "URL", value_parser = Word, conflicts_with_all = ["format", "output"])]
    pub otlp: Option<Endpoint>,
    /// Code of the GPU.
    #[command(flatten)]
    pub code: CodeArgs,
}

/// `parcagpu status`
#[derive(Args, Debug)]
pub struct StatusOptions {
    /// As JSON, with everything that is known
    #[arg(long)]
    pub json: bool,
    /// All counters, also those that are 0
    #[arg(long, short)]
    pub verbose: bool,
    /// Which processes.
    #[command(flatten)]
    pub chosen: Chosen,
}

/// `parcagpu completions`
#[derive(Args, Debug)]
pub struct CompletionsOptions {
    /// Which shell
    pub shell: clap_complete::Shell,
}

/// `parcagpu man`
#[derive(Args, Debug)]
pub struct ManOptions {
    /// Which command [default: the program]
    pub command: Option<String>,
}

/// `parcagpu doctor`
#[derive(Args, Debug)]
pub struct DoctorOptions {
    /// Library to check [default: PARCAGPU_LIB, or the one beside this program, in ../lib, in
    /// target/release]
    #[arg(long, value_name = "FILE")]
    pub lib: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn headings_hold_for_what_they_name() {
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments() {
                let (id, heading) = (argument.get_id().as_str(), argument.get_help_heading());
                let expected = match id {
                    "pid" | "comm" | "cgroup" | "container" => "Which processes",
                    "force" | "no_stacks" | "cubins" => "Recording",
                    "format" | "otlp" if command.get_name() != "report" => "Recording",
                    _ => "",
                };
                let heading = heading.unwrap_or_default();
                assert!(
                    heading.starts_with(expected) && heading.is_empty() == expected.is_empty(),
                    "{}: {id} stands under {heading}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn help_fits_a_terminal() {
        for command in Cli::command().get_subcommands() {
            let more = command.get_after_long_help().map(ToString::to_string);
            for line in more.unwrap_or_default().lines() {
                // Others are wrapped at words, which is right for text and wrong for lists.
                let list = line.starts_with("  ");
                assert!(!list || line.chars().count() <= 100, "{line}");
            }
        }
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        let cli = Cli::parse_from(["parcagpu", "run", "--", "app", "--json", "-x"]);
        let Command::Run(run) = cli.command else {
            panic!("not run")
        };
        assert!(!run.json);
        assert_eq!(run.command, ["app", "--json", "-x"]);
    }

    #[test]
    fn what_is_recorded() {
        let cli = Cli::parse_from(["parcagpu", "record", "--cubins", "--", "app", "--force"]);
        let Command::Record(record) = cli.command else {
            panic!("not record")
        };
        assert_eq!(record.command, ["app", "--force"]);
        assert!(record.keep.cubins && !record.keep.force);
        assert!(Cli::try_parse_from(["parcagpu", "record", "--rate", "1"]).is_err());
    }
}
