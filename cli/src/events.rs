//! Events as the BPF program tells them. Texts stay bytes; they may be anything.

use parcagpu_abi::probe::{self, Probe};

use crate::session::ProcessId;

/// What is common to all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Index into [`probe::ALL`].
    pub probe: usize,
    /// Process, in our PID namespace.
    pub pid: u32,
    /// Thread, in our PID namespace.
    pub tid: u32,
    /// When the probe fired, `CLOCK_MONOTONIC` ns.
    pub time_ns: u64,
    /// Start of the process, `CLOCK_BOOTTIME` ns; with `pid` it names the process.
    pub start_ns: u64,
}

impl Header {
    /// The probe that fired.
    pub fn probe(&self) -> &'static Probe {
        &probe::ALL[self.probe]
    }

    /// The process, named for good.
    pub fn process(&self) -> ProcessId {
        ProcessId {
            pid: self.pid,
            start_ns: self.start_ns,
        }
    }
}

/// Whether a text is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextState {
    /// Whole.
    Whole,
    /// Longer than what is here.
    Cut,
    /// The pointer was null.
    Null,
    /// The memory could not be read.
    Unreadable,
}

impl TextState {
    /// Name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Cut => "cut",
            Self::Null => "null",
            Self::Unreadable => "unreadable",
        }
    }

    /// From the flags of the BPF program.
    pub fn from_flags(flags: u32) -> Self {
        match flags {
            f if f & 2 != 0 => Self::Null,
            f if f & 4 != 0 => Self::Unreadable,
            f if f & 1 != 0 => Self::Cut,
            _ => Self::Whole,
        }
    }
}

/// A text of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    /// Its bytes, without the NUL.
    pub bytes: &'a [u8],
    /// Whether they are all.
    pub state: TextState,
}

impl Text<'_> {
    /// For people; what is not UTF-8 becomes U+FFFD.
    pub fn lossy(&self) -> String {
        String::from_utf8_lossy(self.bytes).into_owned()
    }
}

/// The CPU stack of a launch: addresses in the process, leaf first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack<'a> {
    /// It was not asked for.
    NotTaken,
    /// The kernel could not take it.
    Failed,
    /// Addresses of 8 bytes each, as far as frame pointers lead.
    Taken(&'a [u8]),
    /// Registers and what lies on the stack.
    Copied {
        /// Of the probe's site.
        registers: Registers,
        /// From the stack pointer on.
        bytes: &'a [u8],
    },
}

/// What unwinding begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Instruction.
    pub ip: u64,
    /// Stack.
    pub sp: u64,
    /// Frame.
    pub fp: u64,
    /// Where to return to, where that is a register.
    pub link: u64,
}

impl<'a> Stack<'a> {
    /// The addresses; none where there are none yet.
    pub fn addresses(self) -> impl Iterator<Item = u64> + 'a {
        let bytes = match self {
            Self::Taken(bytes) => bytes,
            Self::NotTaken | Self::Failed | Self::Copied { .. } => &[],
        };
        let (addresses, _) = bytes.as_chunks();
        addresses.iter().map(|address| u64::from_le_bytes(*address))
    }
}

/// A kernel record; what `kernel_executed` does not tell is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel<'a> {
    /// CUPTI's kind: 3 or 10, 0 from `kernel_executed`.
    pub kind: u32,
    /// Registers per thread.
    pub registers: u16,
    /// CUPTI's clock, ns.
    pub start: u64,
    /// CUPTI's clock, ns.
    pub end: u64,
    /// Device ordinal.
    pub device: u32,
    /// CUPTI's context id.
    pub context: u32,
    /// CUPTI's stream id.
    pub stream: u32,
    /// Blocks.
    pub grid: [i32; 3],
    /// Threads per block.
    pub block: [i32; 3],
    /// Bytes.
    pub static_shared_memory: i32,
    /// Bytes.
    pub dynamic_shared_memory: i32,
    /// Id of the launch.
    pub correlation_id: u32,
    /// 0 outside graphs.
    pub graph_id: u32,
    /// 0 outside graphs.
    pub graph_node_id: u64,
    /// Mangled.
    pub name: Text<'a>,
}

impl Kernel<'_> {
    /// How long it ran, ns; `None` when the record has no usable times.
    pub fn duration(&self) -> Option<u64> {
        if self.start == 0 || self.end == 0 {
            return None;
        }
        self.end.checked_sub(self.start)
    }
}

/// What an event says, by probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// `cuda_correlation`.
    Correlation {
        /// Id of the launch.
        id: u32,
        /// > 0 runtime API, < 0 driver API.
        cbid: i32,
        /// Kernel or function.
        name: Text<'a>,
        /// CPU stack, leaf first.
        stack: Stack<'a>,
    },
    /// `kernel_executed`, or one record of `activity_batch`.
    Kernel(Kernel<'a>),
    /// One record of `pc_sample_batch`.
    PcSample {
        /// Checksum of the cubin.
        crc: u64,
        /// Offset in the function.
        pc_offset: u64,
        /// Symbol index.
        function_index: u32,
        /// 0: no launch.
        correlation_id: u32,
        /// Index and samples.
        reasons: Vec<(u32, u32)>,
        /// Reasons the record has, also those not readable.
        reason_count: u64,
        /// Function.
        name: Text<'a>,
    },
    /// `stall_reason_map`.
    StallReasons {
        /// Names in the process's table; `names` has at most 64.
        count: u32,
        /// By index.
        names: Vec<String>,
    },
    /// `gpu_config`.
    GpuConfig {
        /// Device ordinal.
        device: u32,
        /// log2 of cycles.
        sampling_factor: u32,
        /// kHz.
        clock_khz: u32,
        /// SMs.
        sm_count: u32,
    },
    /// `cubin_loaded`.
    CubinLoaded {
        /// Checksum.
        crc: u64,
        /// In the process.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// `cubin_unloaded`.
    CubinUnloaded {
        /// Checksum.
        crc: u64,
    },
    /// `error`.
    Error {
        /// CUPTI's or the driver's code.
        code: i32,
        /// What happened.
        message: Text<'a>,
        /// Where.
        component: &'a [u8],
    },
    /// One event of `nvtx_event_batch`.
    Nvtx {
        /// `CLOCK_MONOTONIC` ns.
        timestamp_ns: u64,
        /// As the process's PID namespace counts.
        tid: u32,
        /// Launch open on the thread, normally 0.
        correlation_id: u32,
        /// 0: default.
        domain: u32,
        /// 1 push, 2 pop, 3 start, 4 end, 5 mark.
        kind: u16,
        /// Payload type in bits 0-3.
        flags: u16,
        /// ARGB.
        color: u32,
        /// Device or unknown.
        device: u32,
        /// Raw bits.
        payload: u64,
        /// Pairs start and end.
        range_id: u64,
        /// Message.
        message: Text<'a>,
    },
    /// `nvtx_resource_name`.
    ResourceName {
        /// 1 OS thread, 2 stream, 3 device, 5 domain.
        kind: u32,
        /// Of the resource.
        id: u64,
        /// Its name.
        name: Text<'a>,
    },
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Who and when.
    pub header: Header,
    /// What.
    pub body: Body<'a>,
}
