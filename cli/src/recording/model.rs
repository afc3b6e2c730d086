//! A recording in memory: what every output of `report` is made from.
//!
//! One time axis: nanoseconds of `CLOCK_REALTIME`, as CUPTI gives kernel times. Times of eBPF and NVTX
//! (`CLOCK_MONOTONIC`) were moved onto it by [`Clocks`]. Processes, threads, names, stacks and frames are
//! indices into the tables of the [`Recording`]; index 0 of [`Recording::names`] is the empty name and
//! index 0 of [`Recording::stacks`] the unknown stack.

use std::collections::BTreeMap;

/// Index into [`Recording::names`].
pub type NameId = u32;
/// Index into [`Recording::stacks`].
pub type StackId = u32;
/// Index into [`Recording::processes`].
pub type ProcessIndex = u32;

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// How it came about.
    pub about: About,
    /// How the clocks were brought together.
    pub clocks: Clocks,
    /// Texts, each once.
    pub names: Vec<String>,
    /// Frames, each once.
    pub frames: Vec<Frame>,
    /// CPU stacks, leaf first, as indices into `frames`.
    pub stacks: Vec<Vec<u32>>,
    /// Processes, by first event.
    pub processes: Vec<Process>,
    /// Sampled launches, by time.
    pub launches: Vec<Launch>,
    /// Kernels of sampled launches, by start.
    pub kernels: Vec<Kernel>,
    /// PC samples, by time.
    pub pc_samples: Vec<PcSample>,
    /// NVTX ranges and marks, by start.
    pub ranges: Vec<Range>,
    /// `error` events.
    pub errors: Vec<ErrorEvent>,
    /// The file ended in the middle: what follows was lost.
    pub truncated: bool,
    /// Why the file ended in the middle, when not for being cut: what is wrong with it, and where.
    pub damage: Option<String>,
    /// What was lost on the way and belongs to no process alone, in words and numbers; each process has
    /// these among its own too.
    pub losses: Vec<(String, u64)>,
    /// What is less than it could be without making any sum wrong: names cut, stacks not taken.
    pub gaps: Vec<(String, u64)>,
}

/// How a recording came about.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Version of the program that wrote it.
    pub version: String,
    /// The command that was run, or how processes were chosen.
    pub command: String,
    /// Release of the host's kernel.
    pub kernel_release: String,
    /// Name of the host, empty if not known.
    pub host: String,
    /// How far the host's local time was ahead of UTC, s; `None`: not known.
    pub utc_offset_s: Option<i32>,
    /// First and last moment, ns.
    pub begin_ns: u64,
    /// See `begin_ns`.
    pub end_ns: u64,
}

/// What moved `CLOCK_MONOTONIC` onto the axis.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// Added to `CLOCK_MONOTONIC` ns, at the beginning.
    pub offset_ns: i64,
    /// Half the width of the reading that gave it, ns.
    pub uncertainty_ns: u64,
    /// How far the offset had moved by the end, ns (steps and slewing of the wall clock).
    pub drift_ns: i64,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// In our PID namespace.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Names of threads by number in our PID namespace, where known.
    pub threads: BTreeMap<u32, String>,
    /// Names that NVTX gave streams, by CUPTI's stream id.
    pub streams: BTreeMap<u32, String>,
    /// Names that NVTX gave streams, by handle: nothing tells which of CUPTI's ids a handle has.
    pub stream_handles: BTreeMap<u64, String>,
    /// Devices by ordinal.
    pub devices: BTreeMap<u32, Device>,
    /// Launches the library saw; `None`: not known.
    pub launches_seen: Option<u64>,
    /// The part of them that was sampled and announced to us.
    pub launches_sampled: u64,
    /// What was lost on the way, in words and numbers, e.g. ("records dropped by CUPTI", 3).
    pub losses: Vec<(String, u64)>,
    /// Stall reasons by index.
    pub stall_reasons: Vec<String>,
    /// Cubins by checksum; empty bytes where they were not kept.
    pub cubins: BTreeMap<u64, Vec<u8>>,
}

impl Process {
    /// Whether every launch was seen and sampled, so that sums are totals.
    pub fn is_whole(&self) -> bool {
        self.losses.is_empty() && self.launches_seen == Some(self.launches_sampled)
    }
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `GPU-...`, empty if not known.
    pub uuid: String,
    /// What the driver calls it (`NVIDIA H200`), empty if not known.
    pub model: String,
    /// Name that NVTX gave it, empty if none.
    pub name: String,
    /// Period of PC sampling, log2 of cycles; 0: not known.
    pub sampling_factor: u32,
    /// kHz; 0: not known.
    pub clock_khz: u32,
    /// SMs; 0: not known.
    pub sm_count: u32,
}

impl Device {
    /// GPU time that one PC sample stands for, ns; `None` while not known.
    pub fn ns_per_sample(&self) -> Option<f64> {
        (self.clock_khz != 0 && self.sampling_factor != 0)
            .then(|| 2f64.powi(self.sampling_factor as i32) * 1e6 / f64::from(self.clock_khz))
    }
}

/// One frame of a CPU stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Function, demangled; or `[file+0xoffset]`.
    pub function: NameId,
    /// Object file; for Python frames empty.
    pub module: NameId,
    /// Source file; 0: not known.
    pub file: NameId,
    /// 0: not known.
    pub line: u32,
}

/// A sampled launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// When it returned, ns.
    pub time_ns: u64,
    /// Who.
    pub process: ProcessIndex,
    /// Thread, in our PID namespace.
    pub tid: u32,
    /// Joins it to its kernels, within the process.
    pub correlation_id: u32,
    /// > 0 runtime API, < 0 driver API.
    pub cbid: i32,
    /// Kernel or function, mangled.
    pub name: NameId,
    /// CPU stack of the launch.
    pub stack: StackId,
}

/// A kernel record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// ns; 0 when the record has no usable times.
    pub start_ns: u64,
    /// ns; never before `start_ns`.
    pub end_ns: u64,
    /// Who.
    pub process: ProcessIndex,
    /// Ordinal.
    pub device: u32,
    /// CUPTI's context id.
    pub context: u32,
    /// CUPTI's stream id.
    pub stream: u32,
    /// Joins it to its launch, within the process.
    pub correlation_id: u32,
    /// 0 outside graphs.
    pub graph_id: u32,
    /// 0 outside graphs.
    pub graph_node_id: u64,
    /// Blocks.
    pub grid: [i32; 3],
    /// Threads per block.
    pub block: [i32; 3],
    /// Registers per thread.
    pub registers: u16,
    /// Bytes.
    pub static_shared_memory: i32,
    /// Bytes.
    pub dynamic_shared_memory: i32,
    /// Mangled.
    pub name: NameId,
    /// Index of its launch in [`Recording::launches`]; `None`: its announcement was lost.
    pub launch: Option<u32>,
}

/// A PC sample record: where warps were, and why they waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcSample {
    /// When it was delivered, ns; not when it was taken.
    pub time_ns: u64,
    /// Who.
    pub process: ProcessIndex,
    /// Checksum of the cubin.
    pub crc: u64,
    /// Offset in the function.
    pub pc_offset: u64,
    /// Mangled.
    pub function: NameId,
    /// 0: no launch.
    pub correlation_id: u32,
    /// (stall reason, samples).
    pub reasons: Vec<(u32, u32)>,
    /// Source file; 0: not known.
    pub file: NameId,
    /// 0: not known.
    pub line: u32,
    /// SASS mnemonic; 0: not known.
    pub mnemonic: NameId,
}

/// An NVTX range, or a mark if it has no length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// ns.
    pub start_ns: u64,
    /// ns; `None`: still open at the end of the recording.
    pub end_ns: Option<u64>,
    /// Who.
    pub process: ProcessIndex,
    /// Thread that began it, in our PID namespace.
    pub tid: u32,
    /// How it was made.
    pub kind: RangeKind,
    /// Domain; 0: default.
    pub domain: NameId,
    /// Message.
    pub name: NameId,
    /// ARGB; 0: none.
    pub color: u32,
}

/// How a range was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RangeKind {
    /// push and pop: nests on its thread.
    #[default]
    Pushed,
    /// start and end: may end on another thread and overlap others.
    Started,
    /// A moment.
    Mark,
}

/// An `error` event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorEvent {
    /// ns.
    pub time_ns: u64,
    /// Who.
    pub process: ProcessIndex,
    /// CUPTI's or the driver's code.
    pub code: i32,
    /// Where.
    pub component: String,
    /// What.
    pub message: String,
}
