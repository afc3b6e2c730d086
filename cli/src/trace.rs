//! `parcagpu trace`: one line per event.

mod fields;
mod repeats;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, Write};
use std::rc::Rc;

use anyhow::{Context, Result};
use parcagpu_abi::probe::{self, Probe};

use crate::accounts::Accounts;
use crate::code::{Code, Place};
use crate::demangle::{Demangler, clean};
use crate::events::{Body, Event};
use crate::json;
use crate::pc::reasons::Reasons;
use crate::pc::samples::function_name;
use crate::session::{ProcessId, Session, Sink};
use crate::stdout;
use crate::text::{clock_ns, count, plural, time_of_day};

/// How to print.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// One JSON object per line.
    pub json: bool,
    /// Names as the compiler made them.
    pub raw_names: bool,
    /// Also metadata that was told before.
    pub repeats: bool,
}

/// Prints events and counts them.
pub struct Tracer {
    out: BufWriter<Box<dyn Write>>,
    style: Style,
    counts: Vec<u64>,
    repeats: u64,
    told: HashSet<(u32, u64, usize, u64)>,
    realtime_offset: u64,
    broken: bool,
    error: Option<io::Error>,
    demangler: Demangler,
    /// Attached for our own use: neither printed nor counted.
    unprinted: Vec<Probe>,
    /// What resolves PC samples.
    code: Option<Code>,
    reasons: HashMap<ProcessId, Reasons>,
}

/// Index of `pc_sample_batch` in [`probe::ALL`].
const PC_SAMPLE: usize = 3;
const _: () = assert!(matches!(
    probe::ALL[PC_SAMPLE].name.as_bytes(),
    b"pc_sample_batch"
));

/// Repeats, and tables of stall reasons, are only kept of so many; past it everything is printed again.
const TOLD_MAX: usize = 100_000;

impl Tracer {
    /// Writes to `out`.
    pub fn new(out: Box<dyn Write>, style: Style) -> Rc<RefCell<Self>> {
        let offset = clock_ns(libc::CLOCK_REALTIME).wrapping_sub(clock_ns(libc::CLOCK_MONOTONIC));
        Rc::new(RefCell::new(Self {
            out: BufWriter::with_capacity(1 << 16, out),
            style,
            counts: vec![0; probe::ALL.len()],
            repeats: 0,
            told: HashSet::new(),
            realtime_offset: offset,
            broken: false,
            error: None,
            demangler: Demangler::default(),
            unprinted: Vec::new(),
            code: None,
            reasons: HashMap::new(),
        }))
    }

    /// Tells PC samples with their lines and instructions from now on. `unprinted`: probes that were attached for
    /// that only.
    pub fn resolve_with(&mut self, code: Code, unprinted: Vec<Probe>) {
        self.code = Some(code);
        self.unprinted = unprinted;
    }

    /// What was not known of the code, for stderr.
    fn code_notes(&self) -> Vec<String> {
        let sampled = self.counts[PC_SAMPLE] > 0;
        let Some(code) = self.code.as_ref().filter(|_| sampled) else {
            return Vec::new();
        };
        let troubles = code.troubles().iter().map(|t| clean(t));
        let why = code.why_no_mnemonics();
        troubles
            .chain(why.map(|why| format!("no instructions named: {why} (--nvdisasm FILE)")))
            .collect()
    }

    fn place(&mut self, event: &Event<'_>) -> Option<Place> {
        let Body::PcSample {
            crc,
            pc_offset,
            function_index,
            name,
            ..
        } = &event.body
        else {
            return None;
        };
        let function = function_name(name, *function_index);
        Some(self.code.as_mut()?.resolve(*crc, &function, *pc_offset))
    }

    fn learn(&mut self, event: &Event<'_>) {
        if let Some(code) = &mut self.code {
            code.event(event);
        }
        if let Body::StallReasons { names, .. } = &event.body
            && (self.reasons.len() < TOLD_MAX || self.reasons.contains_key(&event.header.process()))
        {
            self.reasons
                .insert(event.header.process(), Reasons::new(names));
        }
    }

    /// Writes out what is buffered; false once nobody reads.
    pub fn flush(&mut self) -> bool {
        if let Err(e) = self.out.flush() {
            self.failed(e);
        }
        !self.broken
    }

    fn failed(&mut self, error: io::Error) {
        if !self.broken {
            self.error = stdout::heard(Err(error)).err();
        }
        self.broken = true;
    }

    /// Why not all was written, other than for want of a reader.
    pub fn error(&mut self) -> Result<()> {
        match self.error.take() {
            Some(error) => Err(error).context("failed to write the trace"),
            None => Ok(()),
        }
    }

    /// Events taken so far, repeats included.
    pub fn events(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Events per probe and losses, for stderr.
    pub fn summary(&self, session: &Session) -> String {
        let losses = session.losses().unwrap_or_default();
        let mut lines = vec![format!("{} in all", plural(self.events(), "event"))];
        for (i, probe) in probe::ALL.iter().enumerate() {
            let loss = losses.get(i).copied().unwrap_or_default();
            if self.counts[i] == 0 && loss.dropped == 0 && loss.unreadable == 0 {
                continue;
            }
            let mut line = format!("  {:<20}{:>14}", probe.name, count(self.counts[i]));
            if loss.unreadable > 0 {
                line += &format!(
                    "  ({} could not be read)",
                    plural(loss.unreadable, "record")
                );
            }
            lines.push(line);
        }
        if self.repeats > 0 {
            lines.push(format!(
                "not printed: {} of metadata told before (--repeats prints them)",
                plural(self.repeats, "repetition")
            ));
        }
        lines.extend(self.code_notes());
        lines.push(loss_line(session));
        lines.join("\n")
    }
}

/// Prints and adds up.
pub struct Both(pub Rc<RefCell<Tracer>>, pub Rc<RefCell<Accounts>>);

impl Sink for Both {
    fn event(&mut self, event: &Event<'_>) {
        self.0.borrow_mut().event(event);
        self.1.borrow_mut().event(event);
    }
}

impl Sink for Tracer {
    fn event(&mut self, event: &Event<'_>) {
        self.learn(event);
        if self.unprinted.contains(event.header.probe()) {
            return;
        }
        self.counts[event.header.probe] += 1;
        if !self.style.repeats && self.is_repeat(event) {
            self.repeats += 1;
            return;
        }
        if self.broken {
            return;
        }
        let place = self.place(event);
        let line = if self.style.json {
            let mut line = json::line(event, &mut self.demangler);
            if let Some(place) = place {
                let none = Reasons::default();
                let reasons = self.reasons.get(&event.header.process()).unwrap_or(&none);
                json::add_place(&mut line, &place, reasons);
            }
            line.to_string()
        } else {
            let h = event.header;
            // A batch fires up to 100 ms after its events.
            let time = match &event.body {
                Body::Nvtx { timestamp_ns, .. } => *timestamp_ns,
                _ => h.time_ns,
            };
            format!(
                "{} {:>7} {:>7} {:<18} {}",
                time_of_day(time.wrapping_add(self.realtime_offset)),
                h.pid,
                h.tid,
                h.probe().name,
                match place {
                    Some(place) => self.sample_fields(event, &place),
                    None => self.fields(&event.body),
                }
            )
        };
        if let Err(e) = writeln!(self.out, "{line}") {
            self.failed(e);
        }
    }
}

/// What was lost between the processes and us, in one line.
pub fn loss_line(session: &Session) -> String {
    let losses = match session.losses() {
        Ok(losses) => losses,
        Err(e) => return format!("dropped events: unknown ({e:#})"),
    };
    let dropped: u64 = losses.iter().map(|l| l.dropped).sum();
    let mut line = format!(
        "{} dropped because the ring buffer was full",
        plural(dropped, "event")
    );
    let unreadable: u64 = losses.iter().map(|l| l.unreadable).sum();
    if unreadable > 0 {
        line += &format!(", {} unreadable", plural(unreadable, "record"));
    }
    if session.undecodable() > 0 {
        line += &format!(
            ", {} not understood",
            plural(session.undecodable(), "event")
        );
    }
    line
}
