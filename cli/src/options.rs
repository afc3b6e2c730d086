//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit status:
  0  done (also when interrupted by Ctrl-C)
  1  failed on the way
  2  wrong use, or something is missing that you can provide: rights, kernel, library, process
     `run` ends with the status of its command, 128 + n if signal n killed it";

/// Shows what CUDA programs do on the GPU, through the probes of libparcagpu.so.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print every event of every probe, one line each
    #[command(after_long_help = TRACE_HELP)]
    Trace(TraceOptions),
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
                      static_shared_memory, dynamic_shared_memory, kind, name, name_state, demangled
  kernel_executed     the same, 0 where the probe does not tell; only printed for libraries without
                      activity_batch, or with --kernel-executed: both carry the same kernels
  pc_sample_batch     one line per record: cubin_crc, pc_offset, function_index, correlation_id,
                      stall_reason_count, stall_reasons [{index, samples}], name, name_state, demangled
  stall_reason_map    count, names
  gpu_config          device_id, sampling_factor, clock_khz, sm_count
  cubin_loaded        cubin_crc, address, size
  cubin_unloaded      cubin_crc
  error               code, message, message_state, component
  nvtx_event_batch    one line per event: timestamp_ns, thread, correlation_id, domain_id, kind,
                      payload_type, payload, color, device_id, range_id, message, message_state
  nvtx_resource_name  kind, id, name, name_state
name_state: whole, cut (longer than 255 bytes), null or unreadable.";

/// Which processes and how long.
#[derive(Args, Debug)]
pub struct Scope {
    /// Only this process (may be given more than once); default: all
    #[arg(long, short, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Attach to this library even if no process has it yet [default: the one found by PARCAGPU_LIB,
    /// beside this program, in ../lib, in target/release]
    #[arg(long, value_name = "FILE")]
    pub lib: Option<PathBuf>,
    /// Stop after so many seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Size of the ring buffer between kernel and this program
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring_mib: u32,
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
}
