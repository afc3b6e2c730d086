//! What `record` does with the events: rows of a recording, as they come.
//!
//! One thread owns a [`Recorder`]; two others resolve stacks and read cubins for it. Whatever a process does, what is
//! remembered is bounded, and what is left out is counted.

pub mod clock;
pub mod cubins;
mod notes;
mod origin;
pub mod output;
mod rows;
mod samples;
mod stackless;
pub mod stacks;
pub mod threads;
mod turns;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::recording::writer::{Beginning, Writer};
use crate::session::ProcessId;
use crate::symbols::thread::Resolver;
use crate::text::{clock_ns, count, plural};
use cubins::Cubins;
use samples::Samples;
use stackless::Stackless;
use stacks::StackBook;
use threads::Threads;

/// Processes in one recording.
const PROCESSES_MAX: usize = 4096;

/// What to keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// CPU stacks of launches.
    pub stacks: bool,
    /// Bytes of cubins.
    pub cubins: bool,
}

/// How much was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// `cuda_correlation` events.
    pub launches: u64,
    /// Kernel records.
    pub kernels: u64,
    /// PC samples, each once, as the report counts them.
    pub pc_samples: u64,
    /// The records that they came in.
    pub pc_records: u64,
    /// NVTX events.
    pub nvtx: u64,
    /// `error` events.
    pub errors: u64,
}

/// What is less than it could be.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    names_cut: u64,
    names_unreadable: u64,
    /// Events of processes past [`PROCESSES_MAX`]: a loss.
    too_many_processes: u64,
}

/// What a gap begins with that is about launches without a CPU stack.
pub const NO_STACK: &str = "launches without a CPU stack: ";

/// How many of the sampled launches have no CPU stack, and why, as far as the gaps tell.
pub fn no_stack(launches: u64, of: u64, gaps: &[(String, u64)]) -> String {
    let told = gaps.iter().filter(|(_, n)| *n > 0);
    let why: Vec<String> = told
        .filter_map(|(what, n)| Some(format!("{} {}", count(*n), what.strip_prefix(NO_STACK)?)))
        .collect();
    let why = if why.is_empty() {
        "why is not told".to_owned()
    } else {
        why.join(", ")
    };
    format!(
        "{} of {} without a CPU stack: {why}",
        count(launches),
        plural(of, "sampled launch")
    )
}

/// A process we have seen.
#[derive(Debug)]
struct Known {
    index: u64,
    threads: Threads,
    launches: u64,
    samples: Samples,
}

/// See the module.
#[derive(Debug)]
pub struct Recorder<W> {
    writer: Writer<W>,
    processes: HashMap<ProcessId, Known, ahash::RandomState>,
    book: StackBook,
    resolver: Option<Resolver>,
    cubins: Option<Cubins>,
    counts: Counts,
    gaps: Gaps,
    stackless: Stackless,
    /// PC sample records that wait for the table of their process.
    pending_samples: usize,
    flushed: Instant,
    named: Instant,
    /// Of the machine's GPUs, by UUID.
    models: BTreeMap<String, String>,
    since_look: u32,
}

impl<W: Write> Recorder<W> {
    /// Begins a recording of `command` (or how processes were chosen).
    pub fn new(out: W, command: String, keep: Keep) -> Result<Self> {
        let about = Beginning {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            kernel_release: origin::kernel_release(),
            begin_ns: clock_ns(libc::CLOCK_MONOTONIC),
        };
        let mut recorder = Self {
            writer: Writer::new(out, &about)?,
            processes: HashMap::default(),
            book: StackBook::default(),
            resolver: keep.stacks.then(Resolver::start).transpose()?,
            cubins: keep.cubins.then(Cubins::start).transpose()?,
            counts: Counts::default(),
            gaps: Gaps::default(),
            stackless: Stackless::default(),
            pending_samples: 0,
            flushed: Instant::now(),
            named: Instant::now(),
            models: origin::models(Path::new("/")),
            since_look: 0,
        };
        recorder.read_clock();
        origin::say_host(&mut recorder.writer);
        recorder.writer.flush()?;
        Ok(recorder)
    }

    /// The process of an event; `None` when there are too many.
    fn process(&mut self, id: ProcessId) -> Option<&mut Known> {
        let room = self.processes.len() < PROCESSES_MAX;
        let entry = match self.processes.entry(id) {
            Entry::Occupied(known) => return Some(known.into_mut()),
            Entry::Vacant(_) if !room => {
                self.gaps.too_many_processes += 1;
                return None;
            }
            Entry::Vacant(entry) => entry,
        };
        let index = self.writer.process(id.pid, id.start_ns);
        if let Some(resolver) = &mut self.resolver {
            resolver.look_at(index, id.pid);
        }
        Some(entry.insert(Known {
            index,
            threads: Threads::of(id.pid),
            launches: 0,
            samples: Samples::default(),
        }))
    }

    /// Waits for no stack any more; launches whose stack is not there yet have none.
    pub fn give_up_stacks(&mut self) {
        self.fetch();
        self.resolver = None;
        self.stackless.give_up();
    }

    /// How much was recorded.
    pub fn counts(&self) -> Counts {
        let samples = self.processes.values().map(|known| known.samples.count());
        Counts {
            pc_samples: samples.sum(),
            ..self.counts
        }
    }

    /// Processes seen.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Stacks and cubins that are still worked on.
    pub fn waiting(&self) -> usize {
        let stacks = self.resolver.as_ref().map_or(0, Resolver::waiting);
        stacks + self.cubins.as_ref().map_or(0, Cubins::waiting)
    }

    /// Closes the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.give_up_stacks();
        self.write();
        self.writer.finish(clock_ns(libc::CLOCK_MONOTONIC))
    }
}
