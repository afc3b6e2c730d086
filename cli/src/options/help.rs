//! What `--help` says below the options: examples, fields of JSON, exit codes.

/// One meaning for each exit status, in all commands.
macro_rules! exit_status {
    () => {
        "Exit status:
  0  done, also when ended by Ctrl-C
  1  failed on the way, by no fault of yours: a full disk, say
  2  wrong use, or something is missing or wrong that you can put right:
     rights, kernel, library, process, file; doctor: one of its checks fails

run, and record of a command, end with the command's status: 128 + n if signal n killed it, 127 if
it is not there, 126 if it cannot be run, 130 if two Ctrl-C left it running; a command that ended
with 0 gives 1 where its results could not be written."
    };
}

/// The table of exit statuses.
pub const EXIT_STATUS: &str = exit_status!();

/// Of the program.
pub const PROGRAM_HELP: &str = concat!(
    "\
Also: `parcagpu man [COMMAND] | man -l -`, and
`parcagpu completions bash > /usr/share/bash-completion/completions/parcagpu` (or zsh, fish, elvish).

",
    exit_status!()
);

/// `parcagpu trace`
pub const TRACE_HELP: &str = concat!(
    "\
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
name_state: whole, cut (longer than 255 bytes), null or unreadable.",
    "\n\n",
    exit_status!()
);

/// `parcagpu top`
pub const TOP_HELP: &str = concat!(
    "\
Examples:
  parcagpu top                        live on a terminal (? shows the keys), else lines, a table
  parcagpu top --pid 1234 --seconds 30
  parcagpu top --json --once
  parcagpu top --nvtx                 ranges of the program instead of kernels
  parcagpu top --pc                   where inside the kernels the GPU waits, and for what
  parcagpu top --listen 127.0.0.1:9464
                                      and metrics for Prometheus, at /metrics

On a terminal: processes, devices (by UUID, so that processes that number them differently meet), \
kernels and NVTX ranges, sorted by any column. A time or share is plain where everything was \
sampled, ~ marks an estimate (sampled times multiplied by launches to sampled launches), - what is \
not known.
TERM=dumb gets lines, NO_COLOR=1 no colours.

CALLS counts kernel records. A record without times counts as a call, never in TOTAL or MEAN. \
\"1,240 of 310,000 launches\" says how many launches were sampled: shares are then of the sample. \
Each thread is sampled at most so many times a second, so kernels of a thread of many launches have too small a share \
beside those of one of few.

With --listen, as long as it runs (Ctrl-C, or --seconds, ends it), by pid and comm, all of it behind \
parcagpu_:
  launches_seen_total, launches_sampled_total
                               their quotient is the sampled share
  sample_complete              1: every launch was sampled and nothing was lost, so that sums are
                               totals; 0: they are of the sample. No metric is an estimate
  kernels_recorded_total, kernels_without_time_total, sampled_gpu_time_seconds_total
                               by device (ordinal) and uuid
  kernel_executions_recorded_total, kernel_sampled_gpu_time_seconds_total
                               by kernel, with --listen-kernels
  pc_samples_total             by stall_reason, with --pc
  losses_total                 in the library, by kind
  errors_total                 by component
  library_state                1 for the state that it is in
  events_dropped_total, records_unreadable_total (by probe), events_undecodable_total
                               on the way to this program
Counts begin when this program does. What is not known has no series. A process is shown for five minutes after its \
end; those past 4,096 are added up under pid 0. OpenMetrics is spoken with those that ask for it. There are no \
passwords: listen on a loopback address.

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
place: line, no_line_info, no_row, no_function, outside, pending, unread, not_announced.",
    "\n\n",
    exit_status!()
);

/// `parcagpu run`
pub const RUN_HELP: &str = concat!(
    "\
Examples:
  parcagpu run -- python train.py
  parcagpu run --rate 100 -- ./app        sample as a long-running profiler would
  parcagpu run --trace --json --output trace.jsonl -- ./app
  parcagpu run --record a.pgpu -- ./app   keep everything in a file too

Every launch is sampled unless --rate, or PARCAGPU_RATE_LIMIT and PARCAGPU_GRAPH_RATE_LIMIT where \
they are set, say otherwise; --rate wins over both. The command's output is left alone: what this \
program has to say goes to stderr, or to --output. It watches only the processes that the command \
starts: they get a private copy of the library, removed at the end. Ctrl-C goes to the command; a \
second one ends the waiting for it.",
    "\n\n",
    exit_status!()
);

/// `parcagpu record`
pub const RECORD_HELP: &str = concat!(
    "\
Examples:
  parcagpu record -- python train.py              start a command, sample every launch of it
  parcagpu record --pc -- ./app                   and where its kernels wait, with -lineinfo by line
  parcagpu record --pid 1234 --seconds 10 -o a.pgpu
  parcagpu record                                 all processes that have the library, until Ctrl-C
  parcagpu record --format html,perfetto -- ./app parcagpu.html and parcagpu.pftrace too
  parcagpu record --otlp http://127.0.0.1:4318 -- ./app
                                                  sent to a collector too

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
Ctrl-C. `parcagpu report` makes pages, traces and profiles of the file.",
    "\n\n",
    exit_status!()
);

/// `parcagpu report`
pub const REPORT_HELP: &str = concat!(
    "\
Examples:
  parcagpu report run.pgpu                        slowest kernels, their callers, where warps wait
  parcagpu report run.pgpu -o run.html            a page for any browser, no network needed
  parcagpu report run.pgpu -o run.pftrace         open it in the Perfetto UI
  parcagpu report run.pgpu -o run.pb.gz           go tool pprof -http : run.pb.gz
  parcagpu report run.pgpu -o run.svg             flame graph
  parcagpu report run.pgpu --format jsonl | jq .
  parcagpu report run.pgpu --otlp http://127.0.0.1:4318
                                                  to a collector, as OTLP profiles

The format is the one of --format, else that of OUT's ending: .txt, .html, .pftrace, .pb.gz, \
.folded, .svg, .jsonl. GPU time is the sum over kernels, so kernels side by side count both; it is \
the same in all formats. A kernel record without times counts as a call and never as time. Each \
output says first what share of the launches was sampled: of a sample, sums are of the sample. \
Limits are for a thread and a second, so kernels of a thread, or a time, of many launches have too small a share in \
it beside those of one of few; a recording of a command (record -- COMMAND) has every launch.
Shares of PC samples are of all that are shown, waiting or not, here and in top.

--otlp sends the recording to an OpenTelemetry collector in one request (protobuf, gzip) to URL, or \
/v1development/profiles below it. Each process is a resource (service.name: its command name) with the profiles \
gpu_time, kernels and pc_samples, the latter with the attribute stall_reason; what share was sampled stands in \
pprof.profile.comment. http only. Exit status 1 where the collector does not answer within 30 s, refuses, or rejects a part. The signal is in development: the collector has to be started with --feature-gates=service.profilesSupport.

pprof has the sample types kernels, gpu_time and pc_samples, and the labels process and \
stall_reason.

JSON lines: one object per record, its kind in the field type. Times are ns of CLOCK_REALTIME; \
what is not known is null.
  recording  version, command, kernel_release, host, utc_offset_s, begin_ns, end_ns,
             clock_offset_ns, clock_uncertainty_ns, clock_drift_ns, truncated, damage,
             launches_sampled, launches_seen, whole, kernels, kernels_without_times,
             kernels_without_launch, launches_without_kernel, launches_without_stack, gpu_ns,
             pc_samples (each once; a pc_sample has several), losses [{what, count}], notes
  process    pid, comm, threads, streams, devices [{device, model, name, uuid, sampling_factor,
             clock_khz, sm_count}], launches_sampled, launches_seen, whole, losses
  stack      id, frames [{function, module, file, line}], innermost first
  launch     time_ns (when it returned), pid, tid, correlation_id, cbid, name, demangled,
             stack (an id)
  kernel     start_ns, end_ns, gpu_ns, pid, device, context, stream, correlation_id, graph_id,
             graph_node_id, grid, block, registers, static_shared_memory, dynamic_shared_memory,
             name, demangled, launch_told
  pc_sample  time_ns (of delivery), pid, cubin_crc, pc_offset, function, demangled, correlation_id,
             stall_reasons [{index, name, samples}] (..._not_issued is part of the reason of that
             name), file, line, mnemonic
  range      kind (push, start, mark), start_ns, end_ns (null: open), pid, tid, domain, name, color
  error      time_ns, pid, code, component, message",
    "\n\n",
    exit_status!()
);

/// `parcagpu status`
pub const STATUS_HELP: &str = concat!(
    "\
Examples:
  parcagpu status
  parcagpu status --pid 1234 --verbose
  parcagpu status --container 3f4e8a0b5c6d --json

Needs no BPF, and no rights for processes of your own user; CAP_SYS_PTRACE for those of others. \
Who is attached is found among the open descriptors of all processes (root, Linux 6.16 or newer; \
older kernels tell it for some consumers); whom nobody tells of is counted, with the reason. JSON: an array, one object per process and library; a \
counter that is not known is null.",
    "\n\n",
    exit_status!()
);

/// `parcagpu doctor`
pub const DOCTOR_HELP: &str = concat!(
    "\
Examples:
  parcagpu doctor
  parcagpu doctor --json | jq '.findings[] | select(.level != \"ok\")'

Each line is ok, warn (works, within a limit that is named) or fail, with what to do about it \
behind an arrow. Nothing is changed, and no program is disturbed: the BPF program is tried on a \
private copy of the library. No GPU is a warning, not a failure. JSON: findings [{check, level, \
text, cure (or null)}], ok, warn, fail.",
    "\n\n",
    exit_status!()
);
