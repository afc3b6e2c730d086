//! A trace for the Perfetto UI: processes, threads, streams of devices, NVTX ranges, launches with arrows to
//! their kernels, graphs.
//!
//! Tracks under a process: one per device and under it one per stream; one per launched graph; per thread its
//! NVTX ranges and its launches. What overlaps on one of them continues in `(2)`, `(3)`, ... Events are
//! written in order of time; at the same time a launch comes before its kernels, so that its arrow begins there.

mod packets;
mod proto;
mod slices;
mod tracks;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use anyhow::Result;

use super::coverage::share;
use super::lanes::{Lanes, Span, nest};
use super::view::{View, gpu_ns};
use crate::recording::model::{Range, RangeKind};
use crate::text::count;
use packets::Packets;
use slices::{Event, What};
use tracks::Track;

/// A kernel that began this long before its launch returned did not begin before it: a clock was set.
const CALL_MAX_NS: u64 = 1_000_000_000;

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

struct Builder<'v, 'r, 'w> {
    view: &'v View<'r>,
    packets: Packets<'w>,
    events: Vec<Event>,
    tracks: HashMap<Track, u64>,
    last_track: u64,
}

impl Builder<'_, '_, '_> {
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
}

/// Message of a range, never empty.
pub fn range_name<'v>(view: &'v View<'_>, range: &Range) -> &'v str {
    match view.name(range.name) {
        "" => "(no message)",
        name => name,
    }
}
