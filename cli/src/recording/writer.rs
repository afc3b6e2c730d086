//! Writes a recording as it comes, in bounded memory.
//!
//! Rows are staged and written together: when a table is full, and whenever the owner says [`Writer::flush`],
//! which it does every second. One flush is one write of whole blocks, in the order in which they refer to one
//! another.

use std::collections::HashMap;
use std::io::{self, Write};

use super::block;
use super::columns::{put, put_bytes, put_table};
use super::format::{EVERYBODY, Kind, MAGIC, NAME_MAX, Note, PAYLOAD_MAX, VERSION};
use super::interner::Interner;

/// Rows of a table that are staged, at most.
const STAGED_MAX: usize = 1 << 14;
/// Bytes of texts that are kept to be found again.
const NAMES_LIMIT: usize = 32 << 20;
/// Frames and notes remembered, to be written once.
const REMEMBERED_MAX: usize = 1 << 18;
/// Largest part of a cubin in one block, bytes.
pub const CUBIN_PART: usize = 1 << 20;

/// Rows of a table, see [`Kind`].
type Rows<const N: usize> = Vec<[u64; N]>;

/// How a file begins.
#[derive(Clone, Debug, Default)]
pub struct Beginning {
    /// Version of the program.
    pub version: String,
    /// The command, or how processes were chosen.
    pub command: String,
    /// Release of the host's kernel.
    pub kernel_release: String,
    /// `CLOCK_MONOTONIC` ns.
    pub begin_ns: u64,
}

/// What is staged for the next flush.
#[derive(Debug, Default)]
struct Staged {
    frames: Rows<4>,
    stacks: Rows<3>,
    stack_frames: Rows<1>,
    processes: Rows<2>,
    notes: Rows<5>,
    clocks: Rows<3>,
    launches: Rows<7>,
    kernels: Rows<19>,
    pc_samples: Rows<7>,
    reasons: Rows<2>,
    nvtx: Rows<8>,
    errors: Rows<5>,
}

/// See the module.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    names: Interner,
    frames: HashMap<[u64; 4], u64>,
    frames_written: u64,
    processes: u64,
    notes: HashMap<(u64, Note, u64), (u64, u64)>,
    staged: Staged,
    blocks: Vec<u8>,
    payload: Vec<u8>,
    bytes: u64,
    failed: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    /// Writes the beginning of the file.
    pub fn new(out: W, about: &Beginning) -> io::Result<Self> {
        let mut writer = Self {
            out,
            names: Interner::new(NAMES_LIMIT),
            frames: HashMap::new(),
            frames_written: 0,
            processes: 0,
            notes: HashMap::new(),
            staged: Staged::default(),
            blocks: Vec::new(),
            payload: Vec::new(),
            bytes: 0,
            failed: None,
        };
        writer.blocks.extend(MAGIC);
        writer.blocks.extend(VERSION.to_le_bytes());
        writer.blocks.extend([0; 4]);
        for text in [&about.version, &about.command, &about.kernel_release] {
            let mut end = text.len().min(NAME_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            put_bytes(&mut writer.payload, &text.as_bytes()[..end]);
        }
        put(&mut writer.payload, about.begin_ns);
        block::put(&mut writer.blocks, Kind::About, &writer.payload);
        writer.flush()?;
        Ok(writer)
    }

    /// The number of a text of the process; `cut` when it is not whole.
    pub fn name(&mut self, text: &[u8], cut: bool) -> u64 {
        self.names.id(text, cut).into()
    }

    /// A new process; its number. How many there may be is the owner's business.
    pub fn process(&mut self, pid: u32, start_ns: u64) -> u64 {
        self.staged.processes.push([pid.into(), start_ns]);
        self.processes += 1;
        self.processes - 1
    }

    /// Says something about a process, or about all ([`EVERYBODY`]); nothing is written when it was said before.
    pub fn note(&mut self, process: u64, note: Note, key: u64, value: u64, text: &str) {
        let text = self.name(text.as_bytes(), false);
        let (about, said) = ((process, note, key), (value, text));
        if self.notes.get(&about) == Some(&said) {
            return;
        }
        if self.notes.len() < REMEMBERED_MAX || self.notes.contains_key(&about) {
            self.notes.insert(about, said);
        }
        self.staged
            .notes
            .push([process, note as u64, key, value, text]);
        self.flush_at(self.staged.notes.len());
    }

    /// A loss that concerns a process or [`EVERYBODY`]; nothing as long as nothing was lost.
    pub fn loss(&mut self, process: u64, key: u64, what: &str, count: u64) {
        if count > 0 {
            self.note(process, Note::Loss, key, count, what);
        }
    }

    /// Something that is less than it could be, without making a sum wrong; nothing as long as it is not.
    pub fn gap(&mut self, key: u64, what: &str, count: u64) {
        if count > 0 {
            self.note(EVERYBODY, Note::Gap, key, count, what);
        }
    }

    /// The number of a frame of function, module, file and line.
    pub fn frame(&mut self, frame: [u64; 4]) -> u64 {
        if let Some(id) = self.frames.get(&frame) {
            return *id;
        }
        let id = self.frames_written;
        self.frames_written += 1;
        self.staged.frames.push(frame);
        if self.frames.len() < REMEMBERED_MAX {
            self.frames.insert(frame, id);
        }
        id
    }

    /// What a stack is made of, leaf first.
    pub fn stack(&mut self, stack: u64, frames: &[u64]) {
        self.staged.stacks.push([stack, 0, frames.len() as u64]);
        self.staged.stack_frames.extend(frames.iter().map(|f| [*f]));
        self.flush_at(self.staged.stack_frames.len().max(self.staged.stacks.len()));
    }

    /// A stack that is the same as an earlier one.
    pub fn same_stack(&mut self, stack: u64, earlier: u64) {
        self.staged.stacks.push([stack, earlier, 0]);
        self.flush_at(self.staged.stacks.len());
    }

    /// A reading of the clocks.
    pub fn clock(&mut self, monotonic_ns: u64, offset_ns: i64, uncertainty_ns: u64) {
        let row = [monotonic_ns, offset_ns.cast_unsigned(), uncertainty_ns];
        self.staged.clocks.push(row);
    }

    /// A row of [`Kind::Launches`].
    pub fn launch(&mut self, row: [u64; 7]) {
        self.staged.launches.push(row);
        self.flush_at(self.staged.launches.len());
    }

    /// A row of [`Kind::Kernels`].
    pub fn kernel(&mut self, row: [u64; 19]) {
        self.staged.kernels.push(row);
        self.flush_at(self.staged.kernels.len());
    }

    /// A row of [`Kind::PcSamples`], without the number of reasons, which takes the last place.
    pub fn pc_sample(&mut self, row: [u64; 6], reasons: &[(u32, u32)]) {
        let [time, process, crc, offset, function, id] = row;
        let count = reasons.len() as u64;
        let row = [time, process, crc, offset, function, id, count];
        self.staged.pc_samples.push(row);
        let reasons = reasons.iter().map(|(i, n)| [u64::from(*i), u64::from(*n)]);
        self.staged.reasons.extend(reasons);
        self.flush_at(self.staged.reasons.len().max(self.staged.pc_samples.len()));
    }

    /// A row of [`Kind::Nvtx`].
    pub fn nvtx(&mut self, row: [u64; 8]) {
        self.staged.nvtx.push(row);
        self.flush_at(self.staged.nvtx.len());
    }

    /// A row of [`Kind::Errors`].
    pub fn error(&mut self, row: [u64; 5]) {
        self.staged.errors.push(row);
        self.flush_at(self.staged.errors.len());
    }

    /// A part of a cubin of `size` bytes. Parts come in order, at most [`CUBIN_PART`] bytes each.
    pub fn cubin(&mut self, crc: u64, offset: u64, size: u64, part: &[u8]) {
        self.payload.clear();
        for n in [crc, offset, size] {
            put(&mut self.payload, n);
        }
        self.payload.extend_from_slice(part);
        block::put(&mut self.blocks, Kind::Cubin, &self.payload);
        self.write_blocks();
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn flush_at(&mut self, rows: usize) {
        // Names are bounded with what refers to them.
        if rows >= STAGED_MAX || self.names.fresh() >= STAGED_MAX {
            self.write_staged();
        }
    }

    /// Writes what is staged. The error is the first that ever happened; nothing was written since.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write_staged();
        match &self.failed {
            Some(e) => Err(io::Error::new(e.kind(), e.to_string())),
            None => Ok(()),
        }
    }

    fn write_staged(&mut self) {
        if self.names.refused() > 0 {
            let refused = self.names.refused();
            // Its text is the last one kept, or one with it.
            self.gap(u64::MAX, "names not kept: too many", refused);
        }
        self.put_names();
        let mut staged = std::mem::take(&mut self.staged);
        self.put(Kind::Processes, &mut staged.processes, [true, false]);
        self.put(
            Kind::Frames,
            &mut staged.frames,
            [false, false, false, false],
        );
        self.put_nested(
            Kind::Stacks,
            &mut staged.stacks,
            &mut staged.stack_frames,
            [true, false, false],
            [true],
        );
        self.put(Kind::Clocks, &mut staged.clocks, [true, true, false]);
        self.put(Kind::Launches, &mut staged.launches, LAUNCH_DELTAS);
        self.put(Kind::Kernels, &mut staged.kernels, KERNEL_DELTAS);
        self.put_nested(
            Kind::PcSamples,
            &mut staged.pc_samples,
            &mut staged.reasons,
            PC_DELTAS,
            [true, false],
        );
        self.put(Kind::Nvtx, &mut staged.nvtx, NVTX_DELTAS);
        self.put(
            Kind::Errors,
            &mut staged.errors,
            [true, false, false, false, false],
        );
        self.put(
            Kind::Notes,
            &mut staged.notes,
            [false, false, true, false, false],
        );
        self.staged = staged;
        self.write_blocks();
    }

    /// Writes what is staged and the end of the file.
    pub fn finish(mut self, end_ns: u64) -> io::Result<W> {
        self.flush()?;
        self.payload.clear();
        put(&mut self.payload, end_ns);
        block::put(&mut self.blocks, Kind::End, &self.payload);
        self.write_blocks();
        match self.failed {
            Some(e) => Err(e),
            None => Ok(self.out),
        }
    }

    fn put_names(&mut self) {
        let names = self.names.take_fresh();
        let mut rest = &names[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|name| {
                bytes += name.len() + 3;
                bytes < PAYLOAD_MAX - 16
            });
            let (now, later) = rest.split_at(fits.count().min(super::format::ROWS_MAX));
            rest = later;
            self.payload.clear();
            put(&mut self.payload, now.len() as u64);
            for name in now {
                put_bytes(&mut self.payload, name.as_bytes());
            }
            block::put(&mut self.blocks, Kind::Names, &self.payload);
        }
    }

    /// Puts a table and leaves it empty.
    fn put<const N: usize>(&mut self, kind: Kind, rows: &mut Rows<N>, delta: [bool; N]) {
        for part in rows.chunks(STAGED_MAX) {
            self.payload.clear();
            put_table(&mut self.payload, part, delta);
            block::put(&mut self.blocks, kind, &self.payload);
        }
        rows.clear();
    }

    /// Puts rows whose last column says how many of the inner rows belong to them; leaves both empty.
    fn put_nested<const N: usize, const M: usize>(
        &mut self,
        kind: Kind,
        rows: &mut Rows<N>,
        inner: &mut Rows<M>,
        delta: [bool; N],
        inner_delta: [bool; M],
    ) {
        let (mut rows_left, mut inner_left) = (&rows[..], &inner[..]);
        while !rows_left.is_empty() {
            // A row has at most a few hundred inner rows.
            let mut count = 0;
            let fits = rows_left.iter().take_while(|row| {
                count += row[N - 1];
                count <= STAGED_MAX as u64 * 2
            });
            let fits = fits.count().clamp(1, STAGED_MAX).min(rows_left.len());
            let (now, later) = rows_left.split_at(fits);
            let count: u64 = now.iter().map(|row| row[N - 1]).sum();
            let count = usize::try_from(count).expect("as many as there are");
            let (inner_now, inner_later) = inner_left.split_at(count);
            (rows_left, inner_left) = (later, inner_later);
            self.payload.clear();
            put_table(&mut self.payload, now, delta);
            put_table(&mut self.payload, inner_now, inner_delta);
            block::put(&mut self.blocks, kind, &self.payload);
        }
        rows.clear();
        inner.clear();
    }

    fn write_blocks(&mut self) {
        if self.failed.is_none() && !self.blocks.is_empty() {
            let written = self.out.write_all(&self.blocks);
            match written.and_then(|()| self.out.flush()) {
                Ok(()) => self.bytes += self.blocks.len() as u64,
                Err(e) => self.failed = Some(e),
            }
        }
        self.blocks.clear();
    }
}

const LAUNCH_DELTAS: [bool; 7] = [true, false, false, true, false, false, false];
const KERNEL_DELTAS: [bool; 19] = {
    let mut deltas = [false; 19];
    // Start, correlation id, graph node.
    deltas[0] = true;
    deltas[6] = true;
    deltas[8] = true;
    deltas
};
const PC_DELTAS: [bool; 7] = [true, false, false, true, false, true, false];
const NVTX_DELTAS: [bool; 8] = [true, false, false, false, false, true, false, false];
