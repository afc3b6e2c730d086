//! A trace for the Perfetto UI: processes, threads, streams of devices, NVTX ranges, launches with arrows to
//! their kernels, graphs.
//!
//! Tracks under a process: one per device and under it one per stream; one per launched graph; per thread its
//! NVTX ranges and its launches. What overlaps on one of them continues in `(2)`, `(3)`, ... Events are
//! written in order of time; at the same time a launch comes before its kernels, so that its arrow begins there.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use anyhow::Result;

use super::coverage::share;
use super::lanes::{Lanes, Span, nest};
use super::perfetto_packets::Packets;
use super::perfetto_proto::{DebugAnnotation, TrackDescriptor};
use super::view::{View, gpu_ns};
use crate::recording::model::{Kernel, Launch, Range, RangeKind};
use crate::text::count;

/// A kernel that began this long before its launch returned did not begin before it: a clock was set.
const CALL_MAX_NS: u64 = 1_000_000_000;

/// What happens on a track.
#[derive(Clone, Copy, Debug)]
enum What {
    Kernel { index: u32, arrow: bool },
    Launch { index: u32, arrow: bool },
    Graph { index: u32 },
    Range { index: u32 },
    Mark { index: u32 },
    Note { name: u64 },
    End,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    time: u64,
    track: u64,
    what: What,
}

/// Writes the trace.
pub fn write(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let mut builder = Builder {
        view,
        packets: Packets::new(out),
        events: Vec::new(),
        tracks: HashMap::new(),
        last_track: 0,
    };
    let (begin, end) = extent(view);
    builder.packets.clocks(begin, view.rec.clocks.offset_ns)?;
    builder.notes(begin, end)?;
    builder.launches_and_kernels()?;
    builder.ranges()?;
    builder.write_events()
}

/// First and last moment of anything.
pub fn extent(view: &View<'_>) -> (u64, u64) {
    let rec = view.rec;
    let kernels = view.timed().flat_map(|(k, _)| [k.start_ns, k.end_ns]);
    let launches = rec.launches.iter().map(|l| l.time_ns);
    let ranges = rec
        .ranges
        .iter()
        .flat_map(|r| [Some(r.start_ns), r.end_ns])
        .flatten();
    let about = [rec.about.begin_ns, rec.about.end_ns];
    let times = kernels
        .chain(launches)
        .chain(ranges)
        .chain(about)
        .filter(|t| *t != 0);
    let (mut first, mut last) = (u64::MAX, 0);
    for time in times {
        first = first.min(time);
        last = last.max(time);
    }
    (first.min(last), last)
}

/// What a track is of; children are found by these words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Track {
    Recording,
    Process(u32),
    Thread(u32, u32),
    Device(u32, u32),
    Stream(u32, u32, u32, u32, usize),
    Graph(u32, u32, usize),
    Launches(u32, u32),
    Domain(u32, u32, u32),
    Ranges(u32, u32, usize),
}

struct Builder<'v, 'r, 'w> {
    view: &'v View<'r>,
    packets: Packets<'w>,
    events: Vec<Event>,
    tracks: HashMap<Track, u64>,
    last_track: u64,
}

impl Builder<'_, '_, '_> {
    /// The track's number; describes it, and those above it, when it is new.
    fn track(&mut self, track: Track) -> Result<u64> {
        if let Some(known) = self.tracks.get(&track) {
            return Ok(*known);
        }
        let parent = match track {
            Track::Recording | Track::Process(_) => None,
            Track::Thread(p, _)
            | Track::Device(p, _)
            | Track::Graph(p, ..)
            | Track::Ranges(p, ..) => Some(Track::Process(p)),
            Track::Stream(p, device, ..) => Some(Track::Device(p, device)),
            Track::Launches(p, tid) | Track::Domain(p, tid, _) => Some(Track::Thread(p, tid)),
        };
        let parent_uuid = match parent {
            Some(parent) => Some(self.track(parent)?),
            None => None,
        };
        self.last_track += 1;
        let mut descriptor = TrackDescriptor {
            uuid: Some(self.last_track),
            parent_uuid,
            ..TrackDescriptor::default()
        };
        self.describe(&track, &mut descriptor);
        self.packets.describe(descriptor)?;
        self.tracks.insert(track, self.last_track);
        Ok(self.last_track)
    }

    fn describe(&self, track: &Track, descriptor: &mut TrackDescriptor) {
        use super::perfetto_proto::{ProcessDescriptor, ThreadDescriptor};
        let view = self.view;
        let process = |p: u32| view.rec.processes.get(p as usize);
        let pid = |p: u32| i32::try_from(view.pid(p)).ok();
        let lane = |lane: usize| match lane {
            0 => String::new(),
            n => format!(" ({})", n + 1),
        };
        let name = match *track {
            Track::Recording => "parcagpu".to_owned(),
            Track::Process(p) => {
                let comm = process(p).map_or("?", |p| &p.comm);
                descriptor.process = Some(ProcessDescriptor {
                    pid: pid(p),
                    process_name: Some(crate::demangle::clean(comm)),
                });
                return;
            }
            Track::Thread(p, tid) => {
                let named = process(p).and_then(|p| p.threads.get(&tid));
                descriptor.thread = Some(ThreadDescriptor {
                    pid: pid(p),
                    tid: Some(tid.into()),
                    thread_name: named.map(|name| crate::demangle::clean(name)),
                });
                return;
            }
            Track::Device(p, device) => view.device(p, device),
            Track::Stream(p, device, context, stream, n) => {
                view.stream(p, device, context, stream) + &lane(n)
            }
            Track::Graph(_, graph, n) => format!("graph {graph}{}", lane(n)),
            Track::Launches(..) => "launches".to_owned(),
            Track::Domain(_, _, domain) => match view.name(domain) {
                "" => "NVTX".to_owned(),
                domain => format!("NVTX {domain}"),
            },
            Track::Ranges(_, domain, n) => match view.name(domain) {
                "" => format!("NVTX ranges across threads{}", lane(n)),
                domain => format!("NVTX {domain} ranges across threads{}", lane(n)),
            },
        };
        descriptor.name = Some(name);
    }

    fn event(&mut self, time: u64, track: u64, what: What) {
        self.events.push(Event { time, track, what });
    }

    fn slice(&mut self, start: u64, end: u64, track: u64, what: What) {
        self.event(start, track, what);
        self.event(end, track, What::End);
    }

    /// What share was sampled, over the whole length of the recording and of every process.
    fn notes(&mut self, begin: u64, end: u64) -> Result<()> {
        let track = self.track(Track::Recording)?;
        let notes = self.view.notes();
        let names: Vec<u64> = notes
            .iter()
            .map(|note| self.packets.event_name(note))
            .collect();
        for name in &names {
            self.event(begin, track, What::Note { name: *name });
        }
        for _ in &names {
            self.event(end, track, What::End);
        }
        for (i, process) in (0..).zip(&self.view.rec.processes) {
            let track = self.track(Track::Process(i))?;
            let mut note = format!(
                "sampled: {}",
                share(process.launches_sampled, process.launches_seen)
            );
            for (what, n) in &process.losses {
                note += &format!("; lost: {} {}", count(*n), crate::demangle::clean(what));
            }
            let name = self.packets.event_name(&note);
            self.slice(begin, end, track, What::Note { name });
        }
        Ok(())
    }

    fn launches_and_kernels(&mut self) -> Result<()> {
        let rec = self.view.rec;
        let begins = self.call_begins();
        for (i, launch) in (0..).zip(&rec.launches) {
            let track = self.track(Track::Launches(launch.process, launch.tid))?;
            let (begin, arrow) = begins[i as usize];
            self.slice(
                begin,
                launch.time_ns,
                track,
                What::Launch { index: i, arrow },
            );
        }
        let mut order: Vec<u32> = (0..)
            .zip(&rec.kernels)
            .filter(|(_, k)| gpu_ns(k).is_some())
            .map(|(i, _)| i)
            .collect();
        order.sort_by_key(|i| rec.kernels[*i as usize].start_ns);
        let mut streams: HashMap<_, Lanes> = HashMap::new();
        let mut graphs: BTreeMap<(u32, u32, u32), Span<u32>> = BTreeMap::new();
        for index in order {
            let k = &rec.kernels[index as usize];
            let key = (k.process, k.device, k.context, k.stream);
            let lane = streams.entry(key).or_default().place(k.start_ns, k.end_ns);
            let track = self.track(Track::Stream(key.0, key.1, key.2, key.3, lane))?;
            let arrow = k
                .launch
                .and_then(|l| begins.get(l as usize))
                .is_some_and(|(begin, arrow)| *arrow && *begin <= k.start_ns);
            self.slice(k.start_ns, k.end_ns, track, What::Kernel { index, arrow });
            if k.graph_id != 0 {
                let whole = graphs
                    .entry((k.process, k.graph_id, k.correlation_id))
                    .or_insert(Span {
                        start: k.start_ns,
                        end: k.end_ns,
                        what: index,
                    });
                whole.end = whole.end.max(k.end_ns);
            }
        }
        self.graphs(graphs)
    }

    /// Where each launch's slice begins, and whether an arrow leaves it.
    ///
    /// Recorded is when the call returned. A kernel that had begun by then shows that the call was under way, so
    /// its slice reaches back to there; never into the call before it on the thread.
    fn call_begins(&self) -> Vec<(u64, bool)> {
        let rec = self.view.rec;
        let mut begins: Vec<(u64, bool)> =
            rec.launches.iter().map(|l| (l.time_ns, false)).collect();
        for (kernel, _) in self.view.timed() {
            let Some((begin, arrow)) = kernel.launch.and_then(|l| begins.get_mut(l as usize))
            else {
                continue;
            };
            *arrow = true;
            if begin.saturating_sub(kernel.start_ns) < CALL_MAX_NS {
                *begin = kernel.start_ns.min(*begin);
            }
        }
        let mut order: Vec<usize> = (0..begins.len()).collect();
        order.sort_by_key(|i| rec.launches[*i].time_ns);
        let mut returned: HashMap<(u32, u32), u64> = HashMap::new();
        for i in order {
            let launch = &rec.launches[i];
            let before = returned
                .insert((launch.process, launch.tid), launch.time_ns)
                .unwrap_or(0);
            begins[i].0 = begins[i].0.max(before);
        }
        begins
    }

    /// One slice per launch of a graph, from its first kernel to its last.
    fn graphs(&mut self, graphs: BTreeMap<(u32, u32, u32), Span<u32>>) -> Result<()> {
        let mut graphs: Vec<_> = graphs.into_iter().collect();
        graphs.sort_by_key(|(_, span)| span.start);
        let mut lanes: HashMap<(u32, u32), Lanes> = HashMap::new();
        for ((process, graph, _), span) in graphs {
            let lane = lanes
                .entry((process, graph))
                .or_default()
                .place(span.start, span.end);
            let track = self.track(Track::Graph(process, graph, lane))?;
            self.slice(
                span.start,
                span.end,
                track,
                What::Graph { index: span.what },
            );
        }
        Ok(())
    }

    fn ranges(&mut self) -> Result<()> {
        let mut pushed: BTreeMap<(u32, u32, u32), Vec<Span<u32>>> = BTreeMap::new();
        let mut across: BTreeMap<(u32, u32), Vec<Span<u32>>> = BTreeMap::new();
        for (index, range) in (0..).zip(&self.view.rec.ranges) {
            let key = (range.process, range.tid, range.domain);
            let end = range.end_ns.map_or(u64::MAX, |end| end.max(range.start_ns));
            let span = Span {
                start: range.start_ns,
                end,
                what: index,
            };
            match range.kind {
                RangeKind::Mark => {
                    let track = self.track(Track::Domain(key.0, key.1, key.2))?;
                    self.event(range.start_ns, track, What::Mark { index });
                }
                RangeKind::Pushed => pushed.entry(key).or_default().push(span),
                RangeKind::Started => across.entry((key.0, key.2)).or_default().push(span),
            }
        }
        for ((process, tid, domain), spans) in pushed {
            let track = self.track(Track::Domain(process, tid, domain))?;
            let sorted = nest(spans);
            let mut open: Vec<u64> = Vec::new();
            for (span, _) in sorted.nested {
                while let Some(end) = open.pop_if(|end| *end <= span.start) {
                    self.event(end, track, What::End);
                }
                self.event(span.start, track, What::Range { index: span.what });
                open.push(span.end);
            }
            // A range that is open at the end stays without one.
            while let Some(end) = open.pop() {
                if end != u64::MAX {
                    self.event(end, track, What::End);
                }
            }
            across
                .entry((process, domain))
                .or_default()
                .extend(sorted.crossing);
        }
        for ((process, domain), mut spans) in across {
            spans.sort_by_key(|s| s.start);
            let mut lanes = Lanes::default();
            for span in spans {
                let lane = lanes.place(span.start, span.end);
                let track = self.track(Track::Ranges(process, domain, lane))?;
                self.event(span.start, track, What::Range { index: span.what });
                if span.end != u64::MAX {
                    self.event(span.end, track, What::End);
                }
            }
        }
        Ok(())
    }

    fn write_events(mut self) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        // Stable: at the same time the order of making stands, on which nesting and arrows rely.
        events.sort_by_key(|e| e.time);
        let rec = self.view.rec;
        for event in events {
            let Event { time, track, what } = event;
            match what {
                What::End => self.packets.end(time, track)?,
                What::Note { name } => {
                    self.packets
                        .begin(time, track, "note", name, vec![], None)?
                }
                What::Kernel { index, arrow } => self.kernel(time, track, index, arrow)?,
                What::Launch { index, arrow } => {
                    let launch = &rec.launches[index as usize];
                    let notes = self.launch_notes(launch);
                    let name = self.packets.event_name(self.view.kernel_name(launch.name));
                    let flow = arrow.then_some(u64::from(index) + 1);
                    self.packets
                        .begin(time, track, "launch", name, notes, flow)?;
                }
                What::Graph { index } => {
                    let kernel = &rec.kernels[index as usize];
                    let name = format!("graph {}", kernel.graph_id);
                    let name = self.packets.event_name(&name);
                    let notes = vec![self.packets.uint("correlation_id", kernel.correlation_id)];
                    self.packets
                        .begin(time, track, "graph", name, notes, None)?;
                }
                What::Range { index } | What::Mark { index } => {
                    let range = &rec.ranges[index as usize];
                    let notes = self.range_notes(range);
                    let name = self.packets.event_name(range_name(self.view, range));
                    if let What::Mark { .. } = what {
                        self.packets.instant(time, track, "nvtx", name, notes)?;
                    } else {
                        self.packets.begin(time, track, "nvtx", name, notes, None)?;
                    }
                }
            }
        }
        self.packets.flush()
    }

    fn kernel(&mut self, time: u64, track: u64, index: u32, arrow: bool) -> Result<()> {
        let kernel = &self.view.rec.kernels[index as usize];
        let notes = self.kernel_notes(kernel);
        let name = self.packets.event_name(self.view.kernel_name(kernel.name));
        let flow = kernel
            .launch
            .filter(|_| arrow)
            .map(|launch| u64::from(launch) + 1);
        let category = if kernel.graph_id == 0 {
            "kernel"
        } else {
            "graph kernel"
        };
        self.packets.begin(time, track, category, name, notes, flow)
    }

    fn kernel_notes(&mut self, k: &Kernel) -> Vec<DebugAnnotation> {
        let view = self.view;
        let caller = view
            .launch(k)
            .and_then(|launch| view.caller(launch.stack))
            .map(|frame| view.frame(frame));
        let packets = &mut self.packets;
        let dim = |[x, y, z]: [i32; 3]| format!("{x}x{y}x{z}");
        let mut notes = vec![
            packets.uint("correlation_id", k.correlation_id),
            packets.text("grid", &dim(k.grid)),
            packets.text("block", &dim(k.block)),
            packets.uint("registers_per_thread", k.registers),
            packets.int("static_shared_memory", k.static_shared_memory),
            packets.int("dynamic_shared_memory", k.dynamic_shared_memory),
        ];
        if k.graph_id != 0 {
            notes.push(packets.uint("graph_id", k.graph_id));
            notes.push(packets.uint("graph_node_id", k.graph_node_id));
        }
        if let Some(caller) = caller {
            notes.push(packets.text("launched_by", &caller));
        }
        notes
    }

    fn launch_notes(&mut self, launch: &Launch) -> Vec<DebugAnnotation> {
        let view = self.view;
        let packets = &mut self.packets;
        let mut notes = vec![
            packets.uint("correlation_id", launch.correlation_id),
            packets.int("cbid", launch.cbid),
        ];
        if launch.stack != 0 {
            let stack = packets.stack(launch.stack, || {
                let frames: Vec<String> = view.stack(launch.stack).map(|f| view.frame(f)).collect();
                frames.join(" < ")
            });
            notes.push(stack);
        }
        notes
    }

    fn range_notes(&mut self, range: &Range) -> Vec<DebugAnnotation> {
        let packets = &mut self.packets;
        let mut notes = Vec::new();
        if range.kind != RangeKind::Pushed {
            notes.push(packets.uint("thread", range.tid));
        }
        if range.domain != 0 {
            notes.push(packets.text("domain", self.view.name(range.domain)));
        }
        if range.color != 0 {
            notes.push(packets.text("color", &format!("{:#010x}", range.color)));
        }
        notes
    }
}

/// Message of a range, never empty.
pub fn range_name<'v>(view: &'v View<'_>, range: &Range) -> &'v str {
    match view.name(range.name) {
        "" => "(no message)",
        name => name,
    }
}
