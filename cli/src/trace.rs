//! `parcagpu trace`: one line per event.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, Write};
use std::rc::Rc;

use anyhow::{Context, Result};
use parcagpu_abi::probe::{self, Probe};

use crate::accounts::Accounts;
use crate::code::{Code, Place};
use crate::demangle::{Demangler, clean};
use crate::events::{Body, Event, Text, TextState};
use crate::json::{self, nvtx_kind, resource_kind};
use crate::pc::reasons::Reasons;
use crate::pc::samples::function_name;
use crate::session::{ProcessId, Session, Sink};
use crate::stdout;
use crate::text::{clock_ns, count, duration, plural, time_of_day};

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

/// Repeats are only recognised among this many; past it everything is printed again.
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

    /// Whether this is metadata that was told before.
    fn is_repeat(&mut self, event: &Event<'_>) -> bool {
        let h = event.header;
        let key = |what: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            what(&mut hasher);
            hasher.finish()
        };
        let hash = match &event.body {
            Body::StallReasons { names, .. } => key(&|s| names.hash(s)),
            Body::GpuConfig {
                device,
                sampling_factor,
                clock_khz,
                sm_count,
            } => key(&|s| (device, sampling_factor, clock_khz, sm_count).hash(s)),
            Body::CubinLoaded { crc, .. } => *crc,
            Body::CubinUnloaded { crc } => {
                let loaded = probe::ALL.iter().position(|p| *p == probe::CUBIN_LOADED);
                self.told
                    .remove(&(h.pid, h.start_ns, loaded.unwrap_or(0), *crc));
                return false;
            }
            Body::Error {
                code,
                message,
                component,
            } => key(&|s| (code, message.bytes, component).hash(s)),
            Body::ResourceName { kind, id, name } => key(&|s| (kind, id, name.bytes).hash(s)),
            _ => return false,
        };
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        !self.told.insert((h.pid, h.start_ns, h.probe, hash))
    }

    fn name(&mut self, text: &Text<'_>) -> String {
        match text.state {
            TextState::Null => "(null)".to_owned(),
            TextState::Unreadable => "(unreadable)".to_owned(),
            state if self.style.raw_names => {
                clean(&text.lossy()) + if state == TextState::Cut { "…" } else { "" }
            }
            state => self.demangler.name(text.bytes, state == TextState::Cut),
        }
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

impl Tracer {
    /// A PC sample with what is known of its code.
    fn sample_fields(&mut self, event: &Event<'_>, place: &Place) -> String {
        let Body::PcSample {
            crc,
            pc_offset,
            correlation_id,
            reasons,
            name,
            ..
        } = &event.body
        else {
            return self.fields(&event.body);
        };
        let none = Reasons::default();
        let known = self.reasons.get(&event.header.process()).unwrap_or(&none);
        let reasons: Vec<String> = reasons
            .iter()
            .map(|(i, n)| format!("{}:{n}", clean(&known.name(*i).replace(' ', "_"))))
            .collect();
        let spot = match &place.line {
            Some(line) => format!("{}:{}", clean(&line.file), line.line),
            None => format!("({})", place.knowledge.words()),
        };
        let name = match &place.function {
            Some(whole) => self.name(&Text {
                bytes: whole,
                state: TextState::Whole,
            }),
            None => self.name(name),
        };
        format!(
            "crc={crc:#010x} pc={pc_offset:#x} id={correlation_id} reasons={} at={spot} {} {name}",
            reasons.join(","),
            place.mnemonic.as_deref().unwrap_or("?"),
        )
    }

    fn fields(&mut self, body: &Body<'_>) -> String {
        match body {
            Body::Correlation { id, cbid, name, .. } => {
                format!("id={id} cbid={cbid} {}", self.name(name))
            }
            Body::Kernel(k) => {
                let time = k
                    .duration()
                    .map_or("no time".to_owned(), |ns| duration(ns.into()));
                let graph = if k.graph_id == 0 && k.graph_node_id == 0 {
                    String::new()
                } else {
                    format!(" graph={} node={}", k.graph_id, k.graph_node_id)
                };
                format!(
                    "id={} device={} stream={}{graph} grid={} block={} {time} {}",
                    k.correlation_id,
                    k.device,
                    k.stream,
                    triple(k.grid),
                    triple(k.block),
                    self.name(&k.name)
                )
            }
            Body::PcSample {
                crc,
                pc_offset,
                correlation_id,
                reasons,
                name,
                ..
            } => {
                let reasons: Vec<String> =
                    reasons.iter().map(|(i, n)| format!("{i}:{n}")).collect();
                format!(
                    "crc={crc:#010x} pc={pc_offset:#x} id={correlation_id} reasons={} {}",
                    reasons.join(","),
                    self.name(name)
                )
            }
            Body::StallReasons { count, names } => {
                format!("count={count} {}", clean(&names.join(",")))
            }
            Body::GpuConfig {
                device,
                sampling_factor,
                clock_khz,
                sm_count,
            } => format!(
                "device={device} factor={sampling_factor} clock={clock_khz}kHz sms={sm_count}"
            ),
            Body::CubinLoaded { crc, address, size } => {
                format!("crc={crc:#010x} address={address:#x} size={size}")
            }
            Body::CubinUnloaded { crc } => format!("crc={crc:#010x}"),
            Body::Error {
                code,
                message,
                component,
            } => format!(
                "code={code} {}: {}",
                clean(&String::from_utf8_lossy(component)),
                clean(&message.lossy())
            ),
            Body::Nvtx {
                tid,
                domain,
                kind,
                range_id,
                message,
                ..
            } => format!(
                "{} thread={tid} domain={domain} range={range_id} {}",
                nvtx_kind(*kind),
                clean(&message.lossy())
            ),
            Body::ResourceName { kind, id, name } => {
                format!("{} id={id} {}", resource_kind(*kind), clean(&name.lossy()))
            }
        }
    }
}

fn triple([x, y, z]: [i32; 3]) -> String {
    format!("{x}x{y}x{z}")
}
