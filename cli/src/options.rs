//! The command line.

pub mod help;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::code::{Code, CodeOptions};
use crate::refusal::refuse;
use crate::report::Format;
use crate::report::otlp::{Endpoint, Word};
use crate::top::metrics;

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

/// Numbers of processes: the kernel gives none above 2^22.
const PID_MAX: u32 = 1 << 22;
/// Size of a ring buffer, MiB.
const MIB_MAX: u32 = 1024;
/// Kernels as labels of metrics.
const KERNEL_NAMES_MAX: u32 = 10_000;
/// Seconds between two tables: more are not read.
const PAUSE_MIN: f64 = 0.1;
/// Of seconds and rates.
const NUMBER_MAX: f64 = 1e9;

fn pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid) if (1..=PID_MAX).contains(&pid) => Ok(pid),
        _ => Err(format!(
            "not the number of a process, 1 to {PID_MAX} (--comm takes names)"
        )),
    }
}

fn mib(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mib) if (1..=MIB_MAX).contains(&mib) => Ok(mib),
        _ => Err(format!("not a whole number of MiB, 1 to {MIB_MAX}")),
    }
}

fn kernel_names(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n) if (1..=KERNEL_NAMES_MAX).contains(&n) => Ok(n),
        _ => Err(format!("not a number of names, 1 to {KERNEL_NAMES_MAX}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (0.0..=NUMBER_MAX).contains(&s) => Ok(s),
        _ => Err(format!("not a number of seconds, 0 to {NUMBER_MAX}")),
    }
}

fn pause(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (PAUSE_MIN..=NUMBER_MAX).contains(&s) => Ok(s),
        _ => Err(format!(
            "not a number of seconds, {PAUSE_MIN} to {NUMBER_MAX}"
        )),
    }
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

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(r) if r > 0.0 && r <= NUMBER_MAX => Ok(r),
        _ => Err(format!(
            "not a number of launches per second, above 0 and up to {NUMBER_MAX}"
        )),
    }
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

    #[test]
    fn numbers_are_checked_and_the_error_says_which_are_possible() {
        assert!(rate("0").is_err() && rate("NaN").is_err() && rate("-1").is_err());
        assert_eq!(rate("2.5"), Ok(2.5));
        assert!(seconds("inf").is_err() && seconds("-1").is_err());
        assert!(pid("0").is_err() && pid("-1").is_err() && pid("4194305").is_err());
        assert_eq!((pid("7"), mib("1024")), (Ok(7), Ok(1024)));
        assert!(mib("0").is_err() && mib("1.5").is_err());
        let said = |words: &[&str]| {
            let error = Cli::try_parse_from(["parcagpu"].iter().chain(words)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        let cases: [(&[&str], &str); 12] = [
            (
                &["top", "--pid", "abc"],
                "'abc' for '--pid <PID>': not the number of a process, 1 to 4194304",
            ),
            (&["status", "--pid", "-1"], "'-1' for '--pid <PID>'"),
            (
                &["trace", "--seconds", "-1"],
                "'-1' for '--seconds <N>': not a number of seconds, 0 to 1000000000",
            ),
            (
                &["record", "--seconds", "soon"],
                "'soon' for '--seconds <N>'",
            ),
            (
                &["run", "--every", "-2", "--", "x"],
                "'-2' for '--every <SECONDS>': not a number of seconds, 0.1 to",
            ),
            (
                &["run", "--rate", "-2", "--", "x"],
                "'-2' for '--rate <N>': not a number of launches per second, above 0",
            ),
            (
                &["record", "--graph-rate", "0", "--", "x"],
                "'0' for '--graph-rate <N>'",
            ),
            (
                &["top", "--ring-mib", "-5"],
                "'-5' for '--ring-mib <MIB>': not a whole number of MiB, 1 to 1024",
            ),
            (
                &["run", "--ring-mib", "big", "--", "x"],
                "'big' for '--ring-mib <MIB>'",
            ),
            (
                &["report", "x", "--format", "pdf"],
                "[possible values: text, html,",
            ),
            (&["completions", "cmd"], "[possible values: bash,"),
            (&["tops"], "unrecognized subcommand 'tops'"),
        ];
        for (words, expected) in cases {
            let said = said(words);
            assert!(said.contains(expected), "{words:?}: {said}");
        }
    }
}
