//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::code::{Code, CodeOptions};
use crate::refusal::refuse;
use crate::report::Format;

const EXIT_CODES: &str = "\
Also: `parcagpu man [COMMAND] | man -l -`, and
`parcagpu completions bash > /usr/share/bash-completion/completions/parcagpu` (or zsh, fish, elvish).

Exit status:
  0  done (also when interrupted by Ctrl-C)
  1  failed on the way
  2  wrong use, or something is missing that you can provide: rights, kernel, library, process
     `run` ends with the status of its command, 128 + n if signal n killed it";

/// Shows what CUDA programs do on the GPU, through the probes of libparcagpu.so.
#[derive(Debug, Parser)]
#[command(name = "parcagpu", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    /// What to do.
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print every event of every probe, one line each
    #[command(after_long_help = TRACE_HELP)]
    Trace(TraceOptions),
    /// Show which kernels take the time, per process, live
    #[command(after_long_help = TOP_HELP)]
    Top(TopOptions),
    /// Start a command with the library preloaded and show its kernels
    #[command(after_long_help = RUN_HELP)]
    Run(RunOptions),
    /// Keep what the probes say in a file, for later
    #[command(after_long_help = RECORD_HELP)]
    Record(RecordOptions),
    /// Make text, a page, a trace or a profile of a recording
    #[command(after_long_help = REPORT_HELP)]
    Report(ReportOptions),
    /// Print what every process with the library says about itself
    #[command(after_long_help = STATUS_HELP)]
    Status(StatusOptions),
    /// Check host, rights, library, driver and processes, and say what to do about each finding
    #[command(after_long_help = DOCTOR_HELP)]
    Doctor(DoctorOptions),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(CompletionsOptions),
    /// Print the man page of the program or of a command
    #[command(hide = true)]
    Man(ManOptions),
}

const TRACE_HELP: &str = "\
Examples:
  parcagpu trace                                  all processes that have the library
  parcagpu trace --pid 1234 --json --seconds 10
  parcagpu trace --lib /opt/libparcagpu.so        attach before the first program starts

A line \"attached to N ...\" on stderr says that events are being taken from now on.

JSON: one object per line. All have time_ns (CLOCK_MONOTONIC), pid, tid, probe. Further fields:
  cuda_correlation    correlation_id, cbid, name, name_state, demangled
  activity_batch      one line per record: correlation_id, start_ns, end_ns, device_id, context_id,
                      stream_id, graph_id, graph_node_id, grid, block, registers,
                      static_shared_memory, dynamic_shared_memory, kind, name, name_state,
                      demangled
  kernel_executed     the same, 0 where the probe does not tell; only printed for libraries without
                      activity_batch, or with --kernel-executed: both carry the same kernels
  pc_sample_batch     one line per record: cubin_crc, pc_offset, function_index, correlation_id,
                      stall_reason_count, stall_reasons [{index, samples, name}], name, name_state,
                      demangled, function (whole name), place (line, or why there is none), file,
                      line, mnemonic; null: not known, or not yet
  stall_reason_map    count, names
  gpu_config          device_id, sampling_factor, clock_khz, sm_count
  cubin_loaded        cubin_crc, address, size
  cubin_unloaded      cubin_crc
  error               code, message, message_state, component
  nvtx_event_batch    one line per event: timestamp_ns, thread, correlation_id, domain_id, kind,
                      payload_type, payload, color, device_id, range_id, message, message_state
  nvtx_resource_name  kind, id, name, name_state
name_state: whole, cut (longer than 255 bytes), null or unreadable.";

const TOP_HELP: &str = "\
Examples:
  parcagpu top                        live on a terminal (? shows the keys), else lines, a table
  parcagpu top --pid 1234 --seconds 30
  parcagpu top --json --once
  parcagpu top --nvtx                 ranges of the program instead of kernels
  parcagpu top --pc                   where inside the kernels the GPU waits, and for what

On a terminal: processes, devices (by UUID, so that processes that number them differently meet), \
kernels and NVTX ranges, sorted by any column. A time or share is plain where everything was \
sampled, ~ marks an estimate (sampled times multiplied by launches to sampled launches), - what is \
not known.
TERM=dumb gets lines, NO_COLOR=1 no colours.

CALLS counts kernel records. A record without times counts as a call, never in TOTAL or MEAN. \
\"1,240 of 310,000 launches\" says how many launches were sampled: shares are then of the sample.

With --nvtx: COUNT and TOTAL are of ranges that have ended. A kernel counts for every range that \
its launching thread had open: pushed by it, or begun or ended by it. Ranges begun before this \
program came are not counted.
JSON has a further field nvtx, one object per process: pid, unmatched_ends, and ranges [{domain \
(null: default), range, count, open, total_ns, mean_ns, kernels, no_time, gpu_ns}].

With --pc (of programs started with PARCAGPU_PC_SAMPLING_RATE): every so many cycles each SM tells \
where one of its warps is and what it waits for. ISSUED is the part of samples whose warp issued \
an instruction; the rest waited. SM TIME is samples times the period: 132 SMs at work for a second \
have 132 s, and only while the library samples. Lines are known for code built with -lineinfo or \
-G; instructions are named where nvdisasm is installed.
JSON has a further field pc, one object per process: pid, samples, issued, not_issued, sm_time_ns, \
states {name: samples}, ns_per_sample, reasons_known, dropped, records, unreadable, in_no_row, \
unknown {place: samples}, and kernels [{kernel, samples, issued, not_issued, sm_time_ns, states, \
lines [{file, line, place, samples, issued, not_issued, sm_time_ns, states, mnemonics {name: \
samples}}]}]; code_troubles and why_no_mnemonics stand beside it.
place: line, no_line_info, no_row, no_function, outside, pending, unread, not_announced.";

const RUN_HELP: &str = "\
Examples:
  parcagpu run -- python train.py
  parcagpu run --rate 100 -- ./app        sample as a long-running profiler would
  parcagpu run --trace --json --output trace.jsonl -- ./app
  parcagpu run --record a.pgpu -- ./app   keep everything in a file too

Every launch is sampled unless --rate, or PARCAGPU_RATE_LIMIT and PARCAGPU_GRAPH_RATE_LIMIT where \
they are set, say otherwise; --rate wins over both. The command's output is left alone: what this \
program has to say goes to stderr, or to --output. It watches only the processes that the command \
starts: they get a private copy of the library, removed at the end. Ctrl-C goes to the command; a \
second one ends the waiting for it. Exit status: the command's, 128 + n if signal n killed it, 127 \
if it is not there, 126 if it cannot be run.";

const RECORD_HELP: &str = "\
Examples:
  parcagpu record -- python train.py              start a command, sample every launch of it
  parcagpu record --pc -- ./app                   and where its kernels wait (built with -lineinfo: lines)
  parcagpu record --pid 1234 --seconds 10 -o a.pgpu
  parcagpu record                                 all processes that have the library, until Ctrl-C
  parcagpu record --format html,perfetto -- ./app parcagpu.html and parcagpu.pftrace too

The file is complete up to the last second at any moment, also when this program is killed. It \
holds launches with their CPU stacks, kernels, PC samples, NVTX ranges, errors, the names of all \
of these, and what was lost.

Stacks need nothing of a program: its functions are found by the tables that compilers leave for \
exceptions (.eh_frame), else by frame pointers; up to 16 KiB of stack count. Where launches come \
faster than stacks are taken, some are walked by frame pointers alone, which most programs are \
built without, or are not known; that is counted. Names come from symbol tables, debug information \
and /tmp/perf-PID.map (Python 3.12 and later: run with python -X perf); what has no name is shown \
as [file+0xoffset].

A command is started as by `parcagpu run`, which see: private copy of the library, exit status, \
Ctrl-C. `parcagpu report` makes pages, traces and profiles of the file.";

const REPORT_HELP: &str = "\
Examples:
  parcagpu report run.pgpu                        slowest kernels, their callers, where warps wait
  parcagpu report run.pgpu -o run.html            a page for any browser, no network needed
  parcagpu report run.pgpu -o run.pftrace         open it in the Perfetto UI
  parcagpu report run.pgpu -o run.pb.gz           go tool pprof -http : run.pb.gz
  parcagpu report run.pgpu -o run.svg             flame graph
  parcagpu report run.pgpu --format jsonl | jq .

The format is the one of --format, else that of OUT's ending: .txt, .html, .pftrace, .pb.gz, \
.folded, .svg, .jsonl. GPU time is the sum over kernels, so kernels side by side count both; it is \
the same in all formats. A kernel record without times counts as a call and never as time. Each \
output says first what share of the launches was sampled: of a sample, sums are of the sample.

pprof has the sample types kernels, gpu_time and pc_samples, and the labels process and \
stall_reason.

JSON lines: one object per record, its kind in the field type. Times are ns of CLOCK_REALTIME; \
what is not known is null.
  recording  version, command, kernel_release, host, utc_offset_s, begin_ns, end_ns, clock_offset_ns,
             clock_uncertainty_ns, clock_drift_ns, truncated, damage, launches_sampled, launches_seen, whole, kernels,
             kernels_without_times, kernels_without_launch, launches_without_kernel, gpu_ns,
             pc_samples, losses [{what, count}], notes
  process    pid, comm, threads, streams, devices [{device, model, name, uuid, sampling_factor, clock_khz,
             sm_count}], launches_sampled, launches_seen, whole, losses
  stack      id, frames [{function, module, file, line}], innermost first
  launch     time_ns (when it returned), pid, tid, correlation_id, cbid, name, demangled,
             stack (an id)
  kernel     start_ns, end_ns, gpu_ns, pid, device, context, stream, correlation_id, graph_id,
             graph_node_id, grid, block, registers, static_shared_memory, dynamic_shared_memory,
             name, demangled, launch_told
  pc_sample  time_ns (of delivery), pid, cubin_crc, pc_offset, function, demangled, correlation_id,
             stall_reasons [{index, name, samples}], file, line, mnemonic
  range      kind (push, start, mark), start_ns, end_ns (null: open), pid, tid, domain, name, color
  error      time_ns, pid, code, component, message";

const STATUS_HELP: &str = "\
Examples:
  parcagpu status
  parcagpu status --pid 1234 --verbose
  parcagpu status --container 3f4e8a0b5c6d --json

Needs no BPF, and no rights for processes of your own user; CAP_SYS_PTRACE for those of others. \
Who is attached is found among the open descriptors of all processes (root, Linux 6.16 or newer; \
older kernels tell it for some consumers). JSON: an array, one object per process and library; a \
counter that is not known is null.";

const DOCTOR_HELP: &str = "\
Examples:
  parcagpu doctor
  parcagpu doctor --json | jq '.findings[] | select(.level != \"ok\")'

Each line is ok, warn (works, within a limit that is named) or fail, with what to do about it \
behind an arrow. Nothing is changed, and no program is disturbed: the BPF program is tried on a \
private copy of the library. No GPU is a warning, not a failure. JSON: findings [{check, level, \
text, cure (or null)}], ok, warn, fail.

Exit status:
  0  nothing fails (there may be warnings)
  1  something does not work
  2  wrong use";

/// Which processes; each option may be given more than once, any that fits is enough.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which processes (default: all; each may be given more than once)")]
pub struct Chosen {
    /// This process
    #[arg(long, short, value_name = "PID")]
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
    /// Which processes.
    #[command(flatten)]
    pub chosen: Chosen,
    /// Attach to this library only, whether or not a process has it yet [default: every library with our
    /// probes that a process has, and the one found by PARCAGPU_LIB, beside this program, in ../lib, in
    /// target/release]
    #[arg(long, value_name = "FILE")]
    pub lib: Option<PathBuf>,
    /// Stop after so many seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Size of the ring buffer between kernel and this program [default: 8, for record 32]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring_mib: Option<u32>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (0.0..=1e9).contains(&s) => Ok(s),
        _ => Err("not a number of seconds".to_owned()),
    }
}

/// `parcagpu trace`
#[derive(Args, Debug)]
pub struct TraceOptions {
    /// Which processes and how long.
    #[command(flatten)]
    pub scope: Scope,
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
    /// Which processes and how long.
    #[command(flatten)]
    pub scope: Scope,
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
    /// Code of the GPU.
    #[command(flatten)]
    pub code: CodeArgs,
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
}

/// `parcagpu record`
#[derive(Args, Debug)]
pub struct RecordOptions {
    /// Which processes and how long.
    #[command(flatten)]
    pub scope: Scope,
    /// The file
    #[arg(long, short, value_name = "FILE", default_value = "parcagpu.pgpu")]
    pub output: PathBuf,
    /// What goes in.
    #[command(flatten)]
    pub keep: KeepOptions,
    /// Launches of the command sampled per second and thread [default: PARCAGPU_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate, requires = "command")]
    pub rate: Option<f64>,
    /// Graph launches of the command sampled per second and thread [default: as --rate, else
    /// PARCAGPU_GRAPH_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate, requires = "command")]
    pub graph_rate: Option<f64>,
    /// Sample where the command's kernels are, too, and what they wait for: sets PARCAGPU_PC_SAMPLING_RATE=1000
    /// and PARCAGPU_PC_HW_BUFFER_MB=32 where they are not set, and keeps the machine code as --cubins does
    #[arg(long, requires = "command")]
    pub pc: bool,
    /// Start this command and record what it does
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `parcagpu run`
#[derive(Args, Debug)]
pub struct RunOptions {
    /// Launches sampled per second and thread [default: PARCAGPU_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// Graph launches sampled per second and thread [default: as --rate, else PARCAGPU_GRAPH_RATE_LIMIT, else all]
    #[arg(long, value_name = "N", value_parser = rate)]
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
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
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
    /// What goes into the recording.
    #[command(flatten)]
    pub keep: KeepOptions,
    /// Size of the ring buffer between kernel and this program
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring_mib: u32,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(r) if r > 0.0 && r <= 1e9 => Ok(r),
        _ => Err("not a rate above 0".to_owned()),
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
    /// Code of the GPU.
    #[command(flatten)]
    pub code: CodeArgs,
}

/// `parcagpu status`
#[derive(Args, Debug)]
pub struct StatusOptions {
    /// Which processes.
    #[command(flatten)]
    pub chosen: Chosen,
    /// As JSON, with everything that is known
    #[arg(long)]
    pub json: bool,
    /// All counters, also those that are 0
    #[arg(long, short)]
    pub verbose: bool,
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
    fn rates_and_seconds_are_checked() {
        assert!(rate("0").is_err() && rate("NaN").is_err() && rate("-1").is_err());
        assert_eq!(rate("2.5"), Ok(2.5));
        assert!(seconds("inf").is_err() && seconds("-1").is_err());
    }
}
