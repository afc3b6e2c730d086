//! What `record` does with the events: rows of a recording, as they come.
//!
//! One thread owns a [`Recorder`]; two others resolve stacks and read cubins for it. Whatever a process does, what is
//! remembered is bounded, and what is left out is counted.

pub mod clock;
pub mod cubins;
mod origin;
pub mod output;
mod rows;
mod samples;
mod stackless;
pub mod stacks;
pub mod threads;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use parcagpu_abi::probe;

use crate::ledger::Ledger;
use crate::recording::format::{EVERYBODY, Note};
use crate::recording::writer::{Beginning, Writer};
use crate::session::{ProcessId, Session};
use crate::symbols::Frames;
use crate::symbols::thread::{Answer, Found, Resolver};
use crate::text::{clock_ns, count, plural};
use clock::Reading;
use cubins::{Cubins, Said};
use samples::Samples;
use stackless::{Stackless, Why};
use stacks::StackBook;
use threads::Threads;

/// Processes in one recording.
const PROCESSES_MAX: usize = 4096;
/// What is staged is written this often.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// Names of threads are read again this often, and so many at a time.
const NAMES_EVERY: Duration = Duration::from_secs(10);
const NAMES_AT_ONCE: usize = 1000;
/// Events between two looks at the clock.
const LOOK_AFTER: u32 = 256;

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

    fn read_clock(&mut self) {
        let r = Reading::take();
        self.writer
            .clock(r.monotonic_ns, r.offset_ns, r.uncertainty_ns);
    }

    /// After each event: a flood must not keep us from writing.
    fn look_at_the_clock(&mut self) {
        self.since_look += 1;
        if self.since_look >= LOOK_AFTER {
            self.since_look = 0;
            self.fetch();
            if self.flushed.elapsed() >= FLUSH_EVERY {
                self.write();
            }
        }
    }

    fn write(&mut self) {
        self.flushed = Instant::now();
        self.read_clock();
        self.say_gaps();
        // The error stays until somebody asks for it.
        let _ = self.writer.flush();
    }

    /// Takes what the threads have done.
    fn fetch(&mut self) {
        while let Some(answer) = self.resolver.as_mut().and_then(Resolver::answer) {
            self.write_stack(answer);
        }
        while let Some(said) = self.cubins.as_mut().and_then(Cubins::next_said) {
            if let Said::Part {
                crc,
                offset,
                size,
                bytes,
            } = said
            {
                self.writer.cubin(crc, offset, size, &bytes);
            }
        }
    }

    fn write_stack(&mut self, answer: Answer) {
        let nowhere = |frames: &Vec<Frames>| frames.iter().all(|at| at.is_empty());
        let nothing = match &answer.found {
            Found::Frames(frames) => nowhere(frames).then_some(Why::Nowhere),
            Found::SameAs(_) => None,
            Found::Gone => Some(Why::Gone),
        };
        self.stackless.answered(answer.stack, nothing);
        let frames = match answer.found {
            _ if nothing.is_some() => return,
            Found::Frames(frames) => frames,
            Found::SameAs(earlier) => return self.writer.same_stack(answer.stack, earlier),
            Found::Gone => return,
        };
        let mut stack = Vec::with_capacity(frames.len());
        for frame in frames.iter().flat_map(|frames| frames.iter()) {
            let mut name = |text: &str| self.writer.name(text.as_bytes(), false);
            let row = [
                name(&frame.function),
                name(&frame.module),
                name(&frame.file),
                frame.line.into(),
            ];
            stack.push(self.writer.frame(row));
        }
        self.writer.stack(answer.stack, &stack);
    }

    /// Between events, ten times a second or so: the error of writing, if there was one.
    pub fn tick(&mut self) -> io::Result<()> {
        self.fetch();
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.write();
            return self.writer.flush();
        }
        Ok(())
    }

    /// Writes what is known of the processes; `ledger` is up to date.
    pub fn say_notes(&mut self, session: &Session, ledger: &Ledger) {
        for (id, known) in &self.processes {
            let Some(entry) = ledger.entry(id.pid) else {
                continue;
            };
            if entry.start_ns().is_some_and(|start| start != id.start_ns) {
                continue;
            }
            let (w, p) = (&mut self.writer, known.index);
            w.note(p, Note::Comm, 0, 0, &entry.comm);
            // The count may have been read before the last launches.
            let seen = entry.launches_seen().map(|n| n.max(known.launches));
            let seen = seen.map_or(0, |n| n.saturating_add(1));
            w.note(p, Note::LaunchesSeen, 0, seen, "");
            for (ordinal, uuid) in entry.devices() {
                w.note(p, Note::DeviceUuid, (*ordinal).into(), 0, uuid);
                if let Some(model) = self.models.get(uuid) {
                    w.note(p, Note::DeviceModel, (*ordinal).into(), 0, model);
                }
            }
            for (i, (noun, what, n)) in (0..).zip(entry.losses()) {
                // By its text: the list has only those that are not 0.
                let text = format!("{noun}: {what}");
                let key = u64::from(crc32fast::hash(text.as_bytes())).max(i);
                w.loss(p, key, &text, n);
            }
        }
        self.say_losses(session);
        self.read_thread_names();
    }

    fn say_losses(&mut self, session: &Session) {
        let losses = session.losses().unwrap_or_default();
        for ((i, probe), loss) in (0..).zip(probe::ALL).zip(losses) {
            let name = probe.name;
            let dropped = format!("{name} events dropped: ring buffer full");
            self.writer.loss(EVERYBODY, 2 * i, &dropped, loss.dropped);
            let unreadable = format!("{name} records unreadable");
            self.writer
                .loss(EVERYBODY, 2 * i + 1, &unreadable, loss.unreadable);
        }
        let undecodable = session.undecodable();
        self.writer
            .loss(EVERYBODY, 100, "events not understood", undecodable);
        let processes = self.gaps.too_many_processes;
        self.writer
            .loss(EVERYBODY, 101, "events of further processes", processes);
    }

    fn say_gaps(&mut self) {
        for (key, (what, count)) in (0..).zip(self.gaps()) {
            self.writer.gap(key, &what, count);
        }
    }

    /// What is less than it could be, and how many; also what is 0. Launches without a stack are told by
    /// [`NO_STACK`] and the reason.
    pub fn gaps(&self) -> Vec<(String, u64)> {
        let missed = self.cubins.as_ref().map_or(0, Cubins::missed);
        let mut gaps = vec![
            ("names cut".to_owned(), self.gaps.names_cut),
            ("names unreadable".to_owned(), self.gaps.names_unreadable),
            ("cubins not kept".to_owned(), missed),
        ];
        let stackless = self.stackless.counts();
        gaps.extend(stackless.map(|(why, n)| (format!("{NO_STACK}{why}"), n)));
        gaps
    }

    /// Waits for no stack any more; launches whose stack is not there yet have none.
    pub fn give_up_stacks(&mut self) {
        self.fetch();
        self.resolver = None;
        self.stackless.give_up();
    }

    fn read_thread_names(&mut self) {
        if self.named.elapsed() < NAMES_EVERY {
            return;
        }
        self.named = Instant::now();
        let mut left = NAMES_AT_ONCE;
        for known in self.processes.values_mut() {
            for tid in known.threads.met().into_iter().take(left) {
                left -= 1;
                if let Some(name) = known.threads.read_name(tid) {
                    self.writer
                        .note(known.index, Note::Thread, tid.into(), 0, name);
                }
            }
        }
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
