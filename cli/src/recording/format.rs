//! The file of a recording.
//!
//! A file is [`MAGIC`], the version (`u32`) and four zero bytes, then blocks to its end. All fixed numbers are
//! little-endian. A block is a header of [`HEADER`] bytes and its payload:
//!
//! | at | width | what |
//! |---|---|---|
//! | 0 | 1 | [`Kind`]; readers skip kinds they do not know |
//! | 1 | 1 | 1: the payload is an LZ4 block, 0: it is stored as it is |
//! | 2 | 2 | 0 |
//! | 4 | 4 | bytes of the payload in the file |
//! | 8 | 4 | bytes of the payload unpacked, at most [`PAYLOAD_MAX`] |
//! | 12 | 4 | CRC-32 of the first twelve bytes and of the payload in the file |
//!
//! Most payloads are tables of numbers, column by column ([`super::columns`]). Texts stand once in blocks of
//! names and are numbered in the order of the file from 1 on; 0 is the empty text. Processes and frames are
//! numbered from 0 on, stacks carry their number. A block refers only to names, processes and frames of blocks
//! before it, so that a file cut anywhere is readable up to there; [`Kind::End`] closes a file that is whole.
//!
//! Times of kernels are `CLOCK_REALTIME` ns as CUPTI gives them. All other times are `CLOCK_MONOTONIC` ns; blocks
//! of [`Kind::Clocks`] say what to add.

/// What a file begins with.
pub const MAGIC: [u8; 8] = *b"PARCAREC";
/// Version of the layout; another one is refused.
pub const VERSION: u32 = 1;
/// Bytes of a block's header.
pub const HEADER: usize = 16;
/// Largest unpacked payload.
pub const PAYLOAD_MAX: usize = 8 << 20;
/// Rows in a table, at most.
pub const ROWS_MAX: usize = 1 << 16;
/// Longest text in bytes.
pub const NAME_MAX: usize = 4096;
/// The process of notes that are about all.
pub const EVERYBODY: u64 = u32::MAX as u64;
/// Largest cubin kept, bytes.
pub const CUBIN_MAX: u64 = 256 << 20;

/// What a block holds.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Three texts (program version, command, kernel release), each a length and its bytes, then begin, ns of
    /// `CLOCK_MONOTONIC`. Comes first.
    About = 1,
    /// Count; then per name its length and its bytes, UTF-8.
    Names = 2,
    /// Rows: function, module, file, line.
    Frames = 3,
    /// Rows: number, number of an earlier stack that is the same or 0, frames in it; then rows of all their
    /// frames, leaf first.
    Stacks = 4,
    /// Rows: pid, start (`CLOCK_BOOTTIME` ns).
    Processes = 5,
    /// Rows: process or [`EVERYBODY`], [`Note`], key, value, text. The last word on a key counts.
    Notes = 6,
    /// Rows: time, what to add to `CLOCK_MONOTONIC` (two's complement), half the width of the reading.
    Clocks = 7,
    /// Rows: time, process, thread, correlation id, callback id (zigzag), name, stack.
    Launches = 8,
    /// Rows: start, length, process, device, context, stream, correlation id, graph, graph node, grid x y z,
    /// block x y z, registers, static and dynamic shared memory, name.
    Kernels = 9,
    /// Rows: time, process, cubin's checksum, offset, function, correlation id, reasons; then rows of all their
    /// reasons: index, samples.
    PcSamples = 10,
    /// Rows: time, process, thread, kind (as in `nvtx_event`), domain, range id, colour, message.
    Nvtx = 11,
    /// Rows: time, process, code (zigzag), component, message.
    Errors = 12,
    /// Checksum, offset, bytes in all; then bytes. Parts of one cubin come in order. Once for all processes.
    Cubin = 13,
    /// End, ns of `CLOCK_MONOTONIC`. Nothing follows.
    End = 14,
}

impl Kind {
    /// The kind of a number; `None`: not known to this version.
    pub fn from_u8(n: u8) -> Option<Self> {
        const ALL: [Kind; 14] = [
            Kind::About,
            Kind::Names,
            Kind::Frames,
            Kind::Stacks,
            Kind::Processes,
            Kind::Notes,
            Kind::Clocks,
            Kind::Launches,
            Kind::Kernels,
            Kind::PcSamples,
            Kind::Nvtx,
            Kind::Errors,
            Kind::Cubin,
            Kind::End,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == n)
    }
}

/// What a note says about a process.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Note {
    /// Text: its name.
    Comm = 1,
    /// Text: name of the thread `key`.
    Thread = 2,
    /// Text: name of the stream with handle `key`.
    Stream = 3,
    /// Text: UUID of the device `key`.
    DeviceUuid = 4,
    /// Text: name of the device `key`.
    DeviceName = 5,
    /// Value: log2 of the period of PC sampling on device `key`.
    SamplingFactor = 6,
    /// Value: clock of device `key`, kHz.
    Clock = 7,
    /// Value: SMs of device `key`.
    SmCount = 8,
    /// Value: 1 + launches the library saw; 0: not known.
    LaunchesSeen = 9,
    /// Value: how many; text: of what. Key: any number that tells losses apart.
    Loss = 10,
    /// Text: name of the stall reason `key`.
    StallReason = 11,
    /// Text: name of the NVTX domain `key`.
    Domain = 12,
    /// Value: size of the cubin with checksum `key`.
    Cubin = 13,
    /// Value: how many; text: of what. Like [`Note::Loss`], of what makes no sum wrong.
    Gap = 14,
    /// Of [`EVERYBODY`]. Text: name of the host.
    Host = 15,
    /// Of [`EVERYBODY`]. Value: how far the host's local time was ahead of UTC at the beginning, s, plus
    /// [`UTC_OFFSET_ZERO`]; text: the zone's abbreviation.
    UtcOffset = 16,
    /// Text: what the driver calls the device `key`.
    DeviceModel = 17,
}

/// Value of [`Note::UtcOffset`] for UTC.
pub const UTC_OFFSET_ZERO: u64 = 100_000;

impl Note {
    /// The note of a number; `None`: not known to this version.
    pub fn from_u64(n: u64) -> Option<Self> {
        const ALL: [Note; 17] = [
            Note::Comm,
            Note::Thread,
            Note::Stream,
            Note::DeviceUuid,
            Note::DeviceName,
            Note::SamplingFactor,
            Note::Clock,
            Note::SmCount,
            Note::LaunchesSeen,
            Note::Loss,
            Note::StallReason,
            Note::Domain,
            Note::Cubin,
            Note::Gap,
            Note::Host,
            Note::UtcOffset,
            Note::DeviceModel,
        ];
        ALL.into_iter().find(|note| *note as u64 == n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_kinds_and_notes() {
        for n in 0..=u8::MAX {
            assert!(Kind::from_u8(n).is_none_or(|kind| kind as u8 == n));
            assert!(Note::from_u64(n.into()).is_none_or(|note| note as u8 == n));
        }
        assert_eq!((0..=u8::MAX).filter_map(Kind::from_u8).count(), 14);
        assert_eq!((0..=255).filter_map(Note::from_u64).count(), 17);
    }
}
