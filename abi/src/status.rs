//! The status block: what a process that carries the library says about itself.
//!
//! The library exports one [`Status`] as the data symbol `parcagpu_status`; consumers read it with
//! one read of `/proc/PID/mem`. Every field is an atomic, so nobody locks. Texts are written between
//! two increments of [`Status::text_seq`]: odd means a text is being written, and another number after
//! the copy than in it that one was, meanwhile: read again.
//!
//! Compatibility: [`VERSION`] changes only when a field moves; fields are added at the end and
//! [`Status::size`] says how far the writer goes.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Name of the exported symbol.
pub const SYMBOL: &str = "parcagpu_status";
/// `PARCAGPU` read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PARCAGPU");
/// Layout version.
pub const VERSION: u32 = 1;
/// Where [`Status::text_seq`] is in the block.
pub const SEQUENCE: u64 = offset_of!(Status, text_seq) as u64;
/// Devices the block has room for.
pub const DEVICES: usize = 32;

/// Where the process is in its life.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Loaded; CUDA was not initialised in this process (yet).
    Absent = 0,
    /// The driver is mapped and hooked.
    Hooked = 1,
    /// CUDA is initialised and nobody listens.
    Dormant = 2,
    /// Somebody listens and CUPTI is ours.
    Active = 3,
    /// Somebody listens, but another tool holds CUPTI.
    Yielded = 4,
    /// Over: exit, forked child, switched off, or nothing can work. The reason says which.
    Stopped = 5,
}

impl State {
    /// The state of a number read from a block; `None` for a number this version does not know.
    pub fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Absent,
            1 => Self::Hooked,
            2 => Self::Dormant,
            3 => Self::Active,
            4 => Self::Yielded,
            5 => Self::Stopped,
            _ => return None,
        })
    }

    /// Lower-case name as printed by `parcagpu status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Hooked => "hooked",
            Self::Dormant => "dormant",
            Self::Active => "active",
            Self::Yielded => "yielded",
            Self::Stopped => "stopped",
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $id:ident $name:literal;)*) => {
        /// Index into [`Status::counters`].
        #[repr(usize)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $($(#[$doc])* $id),* }

        /// Names of the counters, by index.
        pub const COUNTER_NAMES: &[&str] = &[$($name),*];

        impl Counter {
            /// All counters, by index.
            pub const ALL: &[Counter] = &[$(Counter::$id),*];
            /// The name as printed.
            pub fn name(self) -> &'static str { COUNTER_NAMES[self as usize] }
        }
    };
}

counters! {
    /// Eager launches seen while active, without those the driver refused and those known to have gone
    /// into a capture ([`UNKNOWN`] where launches are not observed).
    EagerSeen "eager_launches_seen";
    /// Eager launches announced by `cuda_correlation`.
    EagerSampled "eager_launches_sampled";
    /// Eager launches the bucket refused.
    EagerRefused "eager_launches_refused";
    /// Graph launches seen while active.
    GraphSeen "graph_launches_seen";
    /// Graph launches announced by `cuda_correlation`.
    GraphSampled "graph_launches_sampled";
    /// Graph launches the bucket refused.
    GraphRefused "graph_launches_refused";
    /// Launches not sampled because the stream was capturing; the token went back.
    CapturedLaunches "captured_launches";
    /// Launches not sampled because the switch was busy; the token went back.
    SwitchBusy "switch_busy";
    /// Kernel records CUPTI delivered.
    RecordsReceived "records_received";
    /// Kernel records of sampled launches, handed to the probes.
    RecordsMatched "records_matched";
    /// Kernel records of launches that were not sampled; never handed on.
    RecordsUnmatched "records_unmatched";
    /// Records CUPTI says it dropped.
    RecordsDroppedByCupti "records_dropped_by_cupti";
    /// Announced ids that got at least one record.
    IdsMatched "ids_matched";
    /// Announced ids given up without a record.
    IdsExpired "ids_expired";
    /// Activity buffers CUPTI asked for.
    BuffersRequested "buffers_requested";
    /// Activity buffers CUPTI gave back.
    BuffersReturned "buffers_returned";
    /// Requests refused because the pool was at its cap.
    BuffersRefused "buffers_refused";
    /// Completed buffers that were not ours; neither read nor freed.
    BuffersForeign "buffers_foreign";
    /// NVTX events taken.
    NvtxEvents "nvtx_events";
    /// NVTX events dropped.
    NvtxDropped "nvtx_dropped";
    /// PC samples handed to the probe, as the hardware counts them.
    PcSamples "pc_samples";
    /// PC samples the hardware lost in the windows.
    PcDropped "pc_samples_dropped";
    /// Cubins kept for consumers.
    CubinsKept "cubins_kept";
    /// Bytes of those cubins.
    CubinBytes "cubin_bytes";
    /// Cubins not kept because of the cap.
    CubinsRefused "cubins_refused";
    /// Error events, distinct.
    Errors "errors";
    /// Panics stopped at an entry point.
    Panics "panics_stopped";
    /// Times a consumer made the session active.
    Activations "activations";
    /// (PC, stall reason) pairs handed to the probe: what PARCAGPU_PC_SAMPLING_RATE counts.
    PcPairs "pc_pairs";
    /// Windows whose samples were handed to the probe.
    PcWindows "pc_windows";
    /// Times CUPTI said that the hardware's buffer was full, which loses samples.
    PcBufferFull "pc_buffer_full";
    /// Contexts whose PCs are sampled.
    PcContexts "pc_contexts";
    /// Looks at consumers that the library's thread has begun.
    Looks "looks";
    /// The look at which the present state began.
    LookOfState "look_of_state";
}

/// Reason of [`State::Absent`] once an NVTX client has come.
pub const NVTX_ONLY: &str = "NVTX is used, CUDA is not";

/// Value of a counter whose truth is not known.
pub const UNKNOWN: u64 = u64::MAX;

/// Room for counters; those past [`Counter::ALL`] are 0.
pub const COUNTER_SLOTS: usize = 64;

/// A device of the process.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    /// 1 when the UUID is filled in.
    pub known: AtomicU32,
    /// Ordinal as the process counts.
    pub ordinal: AtomicU32,
    /// The UUID as `cuDeviceGetUuid` gives it.
    pub uuid: [AtomicU8; 16],
}

/// A text of at most `N` bytes, UTF-8, NUL-padded; the last byte is always NUL.
#[repr(transparent)]
#[derive(Debug)]
pub struct Text<const N: usize>([AtomicU8; N]);

impl<const N: usize> Text<N> {
    #[expect(clippy::declare_interior_mutable_const, reason = "array initialiser")]
    const ZERO: AtomicU8 = AtomicU8::new(0);

    const fn new() -> Self {
        Self([Self::ZERO; N])
    }

    /// Writes a text, cut where it is too long. For use in [`Status::set_together`].
    pub fn store(&self, text: &str) {
        let mut end = text.len().min(N - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        for (i, slot) in self.0.iter().enumerate() {
            let byte = if i < end { text.as_bytes()[i] } else { 0 };
            slot.store(byte, Ordering::Relaxed);
        }
    }

    /// The text as it stands; torn if a writer is at work (see [`Status::text_seq`]).
    pub fn load(&self) -> String {
        let bytes: Vec<u8> = self
            .0
            .iter()
            .map(|b| b.load(Ordering::Relaxed))
            .take_while(|b| *b != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The configuration in force. Rates are the bits of an `f64`.
#[repr(C)]
#[derive(Debug)]
pub struct Configuration {
    /// Eager samples per second and thread, `f64` bits.
    pub rate_limit: AtomicU64,
    /// Graph samples per second and thread, `f64` bits.
    pub graph_rate_limit: AtomicU64,
    /// PC samples per second wanted, `f64` bits; NaN: off.
    pub pc_sampling_rate: AtomicU64,
    /// log2 of the hardware period in cycles; 0: CUPTI's choice.
    pub sampling_factor: AtomicU32,
    /// MiB, 0: CUPTI's choice.
    pub pc_hw_buffer_mb: AtomicU32,
    /// 0 continuous, 1 serialized.
    pub pc_sampling_mode: AtomicU32,
    /// 0 driver, 1 runtime.
    pub api_callbacks: AtomicU32,
    /// 0 auto, 1 gum, 2 detour, 3 none.
    pub hook_engine: AtomicU32,
    /// 0 auto, 1 never.
    pub yield_mode: AtomicU32,
    /// Cap for copies of cubins, MiB.
    pub cubin_memory_mb: AtomicU32,
    /// Debug level: 0, 1, 2.
    pub debug: AtomicU32,
}

/// The block.
#[repr(C)]
#[derive(Debug)]
pub struct Status {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of this block as the writer knows it.
    pub size: u32,
    /// Odd while a text is being written.
    pub text_seq: AtomicU32,
    /// A [`State`].
    pub state: AtomicU32,
    /// PID of the process that wrote the block, in its own namespace; a forked child that has not
    /// started over still shows its parent's until its own handler ran.
    pub pid: AtomicU32,
    /// Cupti's version as `cuptiGetVersion` gives it, 0 when not loaded.
    pub cupti_version: AtomicU32,
    /// The driver's version as `cuDriverGetVersion` gives it, 0 when not known.
    pub driver_version: AtomicU32,
    /// Code of the last error event.
    pub last_error_code: AtomicI32,
    /// Start of the session, `CLOCK_REALTIME` ns; 0 when there was none.
    pub started_ns: AtomicU64,
    /// When the present state began, `CLOCK_REALTIME` ns.
    pub state_since_ns: AtomicU64,
    /// When the oldest buffer CUPTI holds was handed to it, `CLOCK_MONOTONIC` ns; 0: none is out.
    /// A buffer stays out while a kernel in it runs.
    pub oldest_buffer_ns: AtomicU64,
    /// The configuration in force.
    pub config: Configuration,
    /// See [`Counter`].
    pub counters: [AtomicU64; COUNTER_SLOTS],
    /// Why the state is what it is.
    pub reason: Text<256>,
    /// Hook engine in use.
    pub engine: Text<16>,
    /// Why not another engine.
    pub engine_reason: Text<128>,
    /// File of libcupti.
    pub cupti_path: Text<256>,
    /// Module that holds CUPTI when we do not.
    pub cupti_holder: Text<128>,
    /// Last error event: `component: message`.
    pub last_error: Text<256>,
    /// Devices by ordinal.
    pub devices: [Device; DEVICES],
}

const _: () = {
    assert!(size_of::<Status>() <= 4096);
    assert!(size_of::<Device>() == 24);
    assert!(size_of::<Configuration>() == 56);
    assert!(COUNTER_NAMES.len() <= COUNTER_SLOTS);
    assert!(offset_of!(Status, state) == 20);
    assert!(offset_of!(Status, config) == 64);
    assert!(offset_of!(Status, counters) == 120);
    assert!(offset_of!(Status, reason) == 632);
    assert!(offset_of!(Status, devices) == 1672);
};

impl Status {
    /// A block that says "absent" and nothing else.
    pub const fn new() -> Self {
        #[expect(clippy::declare_interior_mutable_const, reason = "array initialiser")]
        const COUNTER: AtomicU64 = AtomicU64::new(0);
        #[expect(clippy::declare_interior_mutable_const, reason = "array initialiser")]
        const BYTE: AtomicU8 = AtomicU8::new(0);
        #[expect(clippy::declare_interior_mutable_const, reason = "array initialiser")]
        const DEVICE: Device = Device {
            known: AtomicU32::new(0),
            ordinal: AtomicU32::new(0),
            uuid: [BYTE; 16],
        };
        Self {
            magic: MAGIC,
            version: VERSION,
            size: size_of::<Self>() as u32,
            text_seq: AtomicU32::new(0),
            state: AtomicU32::new(State::Absent as u32),
            pid: AtomicU32::new(0),
            cupti_version: AtomicU32::new(0),
            driver_version: AtomicU32::new(0),
            last_error_code: AtomicI32::new(0),
            started_ns: AtomicU64::new(0),
            state_since_ns: AtomicU64::new(0),
            oldest_buffer_ns: AtomicU64::new(0),
            config: Configuration {
                rate_limit: AtomicU64::new(0),
                graph_rate_limit: AtomicU64::new(0),
                pc_sampling_rate: AtomicU64::new(0),
                sampling_factor: AtomicU32::new(0),
                pc_hw_buffer_mb: AtomicU32::new(0),
                pc_sampling_mode: AtomicU32::new(0),
                api_callbacks: AtomicU32::new(0),
                hook_engine: AtomicU32::new(0),
                yield_mode: AtomicU32::new(0),
                cubin_memory_mb: AtomicU32::new(0),
                debug: AtomicU32::new(0),
            },
            counters: [COUNTER; COUNTER_SLOTS],
            reason: Text::new(),
            engine: Text::new(),
            engine_reason: Text::new(),
            cupti_path: Text::new(),
            cupti_holder: Text::new(),
            last_error: Text::new(),
            devices: [DEVICE; DEVICES],
        }
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Reads a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Announced ids of both kinds that have neither a record nor been given up.
    pub fn ids_outstanding(&self) -> u64 {
        // A block read from another process may hold any numbers.
        let sum = |a, b| self.get(a).saturating_add(self.get(b));
        sum(Counter::EagerSampled, Counter::GraphSampled)
            .saturating_sub(sum(Counter::IdsMatched, Counter::IdsExpired))
    }

    /// Replaces a text of this block. Writers must not run at the same time.
    pub fn set_text<const N: usize>(&self, field: &Text<N>, text: &str) {
        self.set_together(|| field.store(text));
    }

    /// Runs `write`, what it writes to this block is read whole or not at all. Writers must not run at the same time.
    pub fn set_together(&self, write: impl FnOnce()) {
        // Odd already where a forked child has no thread that goes on with what its parent's was writing.
        let writing = self.text_seq.fetch_or(1, Ordering::AcqRel) | 1;
        fence(Ordering::Release);
        write();
        self.text_seq
            .store(writing.wrapping_add(1), Ordering::Release);
    }
}

impl Default for Status {
    fn default() -> Self {
        Self::new()
    }
}

/// Why bytes were not accepted as a status block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// Fewer bytes than a block has.
    TooShort,
    /// The magic number is not there.
    NotABlock,
    /// A layout this version does not know.
    Version(u32),
    /// A text was being written; read again.
    Torn,
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooShort => f.write_str("status block is cut short"),
            Self::NotABlock => f.write_str("no status block at the symbol's address"),
            Self::Version(v) => write!(f, "status block of unknown layout version {v}"),
            Self::Torn => f.write_str("status block was being written"),
        }
    }
}

impl std::error::Error for ReadError {}

/// Takes a copy of a block out of bytes read from another process. A block written by a newer
/// library may be longer and one by an older may be shorter than ours; missing fields are zero.
pub fn parse(bytes: &[u8]) -> Result<Box<Status>, ReadError> {
    let header = offset_of!(Status, started_ns);
    if bytes.len() < header {
        return Err(ReadError::TooShort);
    }
    let mut copy = vec![0u8; size_of::<Status>()];
    let claimed = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
    let n = copy.len().min(bytes.len()).min(claimed.max(header));
    copy[..n].copy_from_slice(&bytes[..n]);
    let mut status = Box::new(Status::new());
    // SAFETY: `Status` is repr(C) and consists of integers and atomics only, every bit pattern of
    // which is valid, and `copy` has exactly its size.
    unsafe {
        std::ptr::copy_nonoverlapping(
            copy.as_ptr(),
            std::ptr::from_mut::<Status>(&mut status).cast::<u8>(),
            copy.len(),
        );
    }
    if status.magic != MAGIC {
        return Err(ReadError::NotABlock);
    }
    if status.version != VERSION {
        return Err(ReadError::Version(status.version));
    }
    if status.text_seq.load(Ordering::Relaxed) % 2 == 1 {
        return Err(ReadError::Torn);
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(status: &Status) -> Vec<u8> {
        let p = std::ptr::from_ref(status).cast::<u8>();
        // SAFETY: the block is `size_of::<Status>()` initialised bytes without padding that matters.
        unsafe { std::slice::from_raw_parts(p, size_of::<Status>()) }.to_vec()
    }

    #[test]
    fn round_trip_keeps_texts_and_counters() {
        let status = Status::new();
        status.set_text(&status.reason, "no libcupti for driver 13.0");
        status.add(Counter::EagerSampled, 7);
        status.add(Counter::IdsMatched, 5);
        let read = parse(&bytes_of(&status)).unwrap();
        assert_eq!(read.reason.load(), "no libcupti for driver 13.0");
        assert_eq!(read.ids_outstanding(), 2);
    }

    #[test]
    fn long_text_is_cut_on_a_character() {
        let status = Status::new();
        let long = "é".repeat(200);
        status.set_text(&status.last_error, &long);
        let text = status.last_error.load();
        assert_eq!(text, "é".repeat(127));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(parse(&[0; 8]).unwrap_err(), ReadError::TooShort);
        assert_eq!(parse(&[0; 4096]).unwrap_err(), ReadError::NotABlock);
        let mut bytes = bytes_of(&Status::new());
        bytes[8] = 9;
        assert_eq!(parse(&bytes).unwrap_err(), ReadError::Version(9));
        let status = Status::new();
        status.text_seq.store(1, Ordering::Relaxed);
        assert_eq!(parse(&bytes_of(&status)).unwrap_err(), ReadError::Torn);
    }
}
