//! `parcagpu trace`: one line per event.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::rc::Rc;

use parcagpu_abi::probe;
use serde_json::{Map, Value, json};

use crate::accounts::Accounts;
use crate::demangle::{Demangler, clean};
use crate::events::{Body, Event, Text, TextState};
use crate::session::{Session, Sink};
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
    demangler: Demangler,
}

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
            demangler: Demangler::default(),
        }))
    }

    /// Writes out what is buffered; false once nobody reads.
    pub fn flush(&mut self) -> bool {
        if let Err(e) = self.out.flush() {
            self.failed(&e);
        }
        !self.broken
    }

    fn failed(&mut self, error: &io::Error) {
        if !self.broken && error.kind() != ErrorKind::BrokenPipe {
            eprintln!("warning: failed to write the trace: {error}");
        }
        self.broken = true;
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
                "{} of metadata told before were not printed (--repeats prints them)",
                plural(self.repeats, "repetition")
            ));
        }
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
        self.counts[event.header.probe] += 1;
        if !self.style.repeats && self.is_repeat(event) {
            self.repeats += 1;
            return;
        }
        if self.broken {
            return;
        }
        let line = if self.style.json {
            json_line(event, &mut self.demangler).to_string()
        } else {
            let h = event.header;
            format!(
                "{} {:>7} {:>7} {:<18} {}",
                time_of_day(h.time_ns.wrapping_add(self.realtime_offset)),
                h.pid,
                h.tid,
                h.probe().name,
                self.fields(&event.body)
            )
        };
        if let Err(e) = writeln!(self.out, "{line}") {
            self.failed(&e);
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
    fn fields(&mut self, body: &Body<'_>) -> String {
        match body {
            Body::Correlation { id, cbid, name } => {
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

fn nvtx_kind(kind: u16) -> &'static str {
    match kind {
        1 => "push",
        2 => "pop",
        3 => "start",
        4 => "end",
        5 => "mark",
        _ => "unknown",
    }
}

fn resource_kind(kind: u32) -> &'static str {
    match kind {
        1 => "os_thread",
        2 => "cuda_stream",
        3 => "cuda_device",
        4 => "cuda_kernel",
        5 => "nvtx_domain",
        _ => "unknown",
    }
}

/// The JSON form of an event; its fields are listed in `parcagpu trace --help`.
pub fn json_line(event: &Event<'_>, demangler: &mut Demangler) -> Value {
    let h = event.header;
    let mut line = Map::new();
    line.insert("time_ns".into(), h.time_ns.into());
    line.insert("pid".into(), h.pid.into());
    line.insert("tid".into(), h.tid.into());
    line.insert("probe".into(), h.probe().name.into());
    let mut put = |fields: Value| {
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
    };
    let mut named = |text: &Text<'_>| {
        json!({
            "name": text.lossy(),
            "name_state": text.state.name(),
            "demangled": demangler.name(text.bytes, text.state == TextState::Cut),
        })
    };
    match &event.body {
        Body::Correlation { id, cbid, name } => {
            put(json!({"correlation_id": id, "cbid": cbid}));
            put(named(name));
        }
        Body::Kernel(k) => {
            put(json!({
                "correlation_id": k.correlation_id, "start_ns": k.start, "end_ns": k.end,
                "device_id": k.device, "context_id": k.context, "stream_id": k.stream,
                "graph_id": k.graph_id, "graph_node_id": k.graph_node_id,
                "grid": k.grid, "block": k.block, "registers": k.registers,
                "static_shared_memory": k.static_shared_memory,
                "dynamic_shared_memory": k.dynamic_shared_memory, "kind": k.kind,
            }));
            put(named(&k.name));
        }
        Body::PcSample {
            crc,
            pc_offset,
            function_index,
            correlation_id,
            reasons,
            reason_count,
            name,
        } => {
            put(json!({
                "cubin_crc": crc, "pc_offset": pc_offset, "function_index": function_index,
                "correlation_id": correlation_id, "stall_reason_count": reason_count,
                "stall_reasons": reasons.iter()
                    .map(|(index, samples)| json!({"index": index, "samples": samples}))
                    .collect::<Vec<_>>(),
            }));
            put(named(name));
        }
        Body::StallReasons { count, names } => put(json!({"count": count, "names": names})),
        Body::GpuConfig {
            device,
            sampling_factor,
            clock_khz,
            sm_count,
        } => put(json!({
            "device_id": device, "sampling_factor": sampling_factor,
            "clock_khz": clock_khz, "sm_count": sm_count,
        })),
        Body::CubinLoaded { crc, address, size } => {
            put(json!({"cubin_crc": crc, "address": address, "size": size}));
        }
        Body::CubinUnloaded { crc } => put(json!({"cubin_crc": crc})),
        Body::Error {
            code,
            message,
            component,
        } => put(json!({
            "code": code, "message": message.lossy(), "message_state": message.state.name(),
            "component": String::from_utf8_lossy(component),
        })),
        Body::Nvtx {
            timestamp_ns,
            tid,
            correlation_id,
            domain,
            kind,
            flags,
            color,
            device,
            payload,
            range_id,
            message,
        } => put(json!({
            "timestamp_ns": timestamp_ns, "thread": tid, "correlation_id": correlation_id,
            "domain_id": domain, "kind": nvtx_kind(*kind), "payload_type": flags & 15,
            "payload": payload, "color": color, "device_id": device, "range_id": range_id,
            "message": message.lossy(), "message_state": message.state.name(),
        })),
        Body::ResourceName { kind, id, name } => put(json!({
            "kind": resource_kind(*kind), "id": id, "name": name.lossy(),
            "name_state": name.state.name(),
        })),
    }
    Value::Object(line)
}
