//! What is fuzzed: a function for every reader of bytes that we did not write.
//!
//! A target takes any bytes, runs a reader on them and asserts what holds whatever they are. It neither
//! keeps state that makes a later run differ nor prints. The same functions are run by cargo-fuzz
//! (`scripts/fuzz`) and, over the seeds and some mutations of them, by an ordinary test of this package.
//!
//! * [`code`]: machine code that a program gives to the driver, its lines and instructions
//! * [`nvtx`]: what a program says through NVTX
//! * [`process`]: what the command reads of other processes: files, lines of /proc, the status block, maps of JITs
//! * [`events`]: what comes out of the ring buffer, and names of kernels
//! * [`loaded`]: symbol tables of a library in memory
//! * [`recording`]: files of `parcagpu record`, and what is drawn from them
//! * [`environment`][]: variables

pub mod code;
pub mod environment;
pub mod events;
pub mod loaded;
pub mod nvtx;
pub mod process;
pub mod recording;

/// A reader under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Also the name of its fuzz target, of its folder of seeds and of its folder of regressions.
    pub name: &'static str,
    /// Runs it; panics when something is wrong.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident = $run:path;)*) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $run }),*];
    };
}

targets! {
    cubin = code::cubin;
    fatbin = code::fatbin;
    lines = code::lines;
    sass = code::sass;
    nvtx = nvtx::nvtx;
    environment = environment::environment;
    elf = process::elf;
    maps = process::maps;
    status = process::status;
    events = events::events;
    names = events::names;
    symbols = loaded::symbols;
    jit = process::jit;
    recording = recording::recording;
    report = recording::report;
}

/// Takes numbers off the front of the bytes; zero when they are used up.
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// At most `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        front
    }
}
