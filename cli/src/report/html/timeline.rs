//! What the timeline draws: lanes, and their slices packed as numbers of 7 bits a byte.
//!
//! Per slice: start after the start of the one before it in its lane, duration + 1 (0: open at the end), index
//! of its name, index of its details. Times are ns.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::super::lanes::{Lanes, Span, nest};
use super::super::perfetto::{extent, range_name};
use super::super::view::View;
use super::{left_out, number};
use crate::demangle::clean;
use crate::recording::model::{Kernel, NameId, RangeKind};
use crate::text::count;

/// Slices of each kind that a browser draws without effort.
const KERNELS_MAX: usize = 1_000_000;
const LAUNCHES_MAX: usize = 300_000;
const RANGES_MAX: usize = 300_000;
const LANES_MAX: usize = 2_000;
const DETAILS_MAX: usize = 200_000;

#[derive(Clone, Copy)]
struct Slice {
    start: u64,
    /// `None`: open at the end.
    end: Option<u64>,
    name: u32,
    details: u32,
}

struct Lane {
    process: u32,
    label: String,
    kind: &'static str,
    slices: Vec<Slice>,
}

/// Texts, each once; index 0 is empty.
struct Texts {
    known: HashMap<String, u32>,
    list: Vec<String>,
    max: usize,
}

impl Texts {
    fn new(max: usize) -> Self {
        Self {
            known: HashMap::from([(String::new(), 0)]),
            list: vec![String::new()],
            max,
        }
    }

    fn get(&mut self, text: &str) -> u32 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        if self.list.len() >= self.max {
            return 0;
        }
        let index = u32::try_from(self.list.len()).unwrap_or(0);
        self.known.insert(text.to_owned(), index);
        self.list.push(text.to_owned());
        index
    }
}

/// Everything that is drawn.
pub struct Timeline {
    begin: u64,
    end: u64,
    lanes: Vec<Lane>,
    names: Texts,
    details: Texts,
    cut: Vec<String>,
    /// All slices, lane after lane.
    pub packed: Vec<u8>,
}

/// Builds it.
pub fn timeline(view: &View<'_>) -> Timeline {
    let (begin, end) = extent(view);
    let mut t = Timeline {
        begin,
        end,
        lanes: Vec::new(),
        names: Texts::new(usize::MAX),
        details: Texts::new(DETAILS_MAX),
        cut: Vec::new(),
        packed: Vec::new(),
    };
    t.kernels(view);
    t.launches(view);
    t.ranges(view);
    // Stable: within a process streams stay above threads.
    t.lanes.sort_by_key(|lane| lane.process);
    if t.lanes.len() > LANES_MAX {
        t.cut
            .extend(left_out(LANES_MAX, t.lanes.len(), "the first", "lanes"));
        t.lanes.truncate(LANES_MAX);
    }
    t.pack();
    t
}

/// Keeps the `max` longest.
fn longest<T>(all: &mut Vec<T>, max: usize, ns: impl Fn(&T) -> u64) -> usize {
    let before = all.len();
    if before > max {
        all.select_nth_unstable_by_key(max, |x| std::cmp::Reverse(ns(x)));
        all.truncate(max);
    }
    before
}

impl Timeline {
    fn kernels(&mut self, view: &View<'_>) {
        let mut all: Vec<(&Kernel, u64)> = view.timed().collect();
        let before = longest(&mut all, KERNELS_MAX, |(_, ns)| *ns);
        self.cut
            .extend(left_out(all.len(), before, "the longest", "kernels"));
        all.sort_by_key(|(k, _)| k.start_ns);
        // By process, device, context and stream.
        type Stream = (Lanes, Vec<Vec<Slice>>);
        let mut streams: BTreeMap<(u32, u32, u32, u32), Stream> = BTreeMap::new();
        let mut name_of: HashMap<NameId, u32> = HashMap::new();
        for (k, _) in all {
            let name = *name_of
                .entry(k.name)
                .or_insert_with(|| self.names.get(view.kernel_name(k.name)));
            let details = self.details.get(&kernel_details(view, k));
            let (lanes, slices) = streams
                .entry((k.process, k.device, k.context, k.stream))
                .or_default();
            let lane = lanes.place(k.start_ns, k.end_ns);
            slices.resize_with(slices.len().max(lane + 1), Vec::new);
            slices[lane].push(Slice {
                start: k.start_ns,
                end: Some(k.end_ns),
                name,
                details,
            });
        }
        for ((process, device, context, stream), (_, lanes)) in streams {
            let label = view.stream(process, device, context, stream);
            self.stacked(process, &label, "kernel", lanes);
        }
    }

    /// Lanes of one thing: the label stands at the first.
    fn stacked(&mut self, process: u32, label: &str, kind: &'static str, lanes: Vec<Vec<Slice>>) {
        for (i, slices) in lanes.into_iter().enumerate() {
            self.lanes.push(Lane {
                process,
                label: if i == 0 {
                    label.to_owned()
                } else {
                    String::new()
                },
                kind,
                slices,
            });
        }
    }

    fn launches(&mut self, view: &View<'_>) {
        let all = &view.rec.launches;
        let step = all.len().div_ceil(LAUNCHES_MAX).max(1);
        if step > 1 {
            self.cut.push(format!(
                "of {} launches 1 in {step}",
                count(all.len() as u64)
            ));
        }
        let mut threads: BTreeMap<(u32, u32), Vec<Slice>> = BTreeMap::new();
        for launch in all.iter().step_by(step) {
            let caller = view.caller(launch.stack).map(|f| view.frame(f));
            let details = caller.map_or(0, |caller| {
                self.details.get(&format!("launched by {caller}"))
            });
            let name = self.names.get(view.kernel_name(launch.name));
            threads
                .entry((launch.process, launch.tid))
                .or_default()
                .push(Slice {
                    start: launch.time_ns,
                    end: Some(launch.time_ns),
                    name,
                    details,
                });
        }
        for ((process, tid), mut slices) in threads {
            slices.sort_by_key(|s| s.start);
            let label = format!("{} launches", thread_name(view, process, tid));
            self.stacked(process, &label, "launch", vec![slices]);
        }
    }

    fn ranges(&mut self, view: &View<'_>) {
        let mut all: Vec<Span<usize>> = view
            .rec
            .ranges
            .iter()
            .enumerate()
            .map(|(what, r)| Span {
                start: r.start_ns,
                end: r.end_ns.map_or(u64::MAX, |end| end.max(r.start_ns)),
                what,
            })
            .collect();
        let before = longest(&mut all, RANGES_MAX, |s| s.end - s.start);
        self.cut
            .extend(left_out(all.len(), before, "the longest", "ranges"));
        let mut pushed: BTreeMap<(u32, u32, NameId), Vec<Span<usize>>> = BTreeMap::new();
        let mut other: BTreeMap<(u32, NameId), Vec<Span<usize>>> = BTreeMap::new();
        for span in all {
            let r = &view.rec.ranges[span.what];
            if r.kind == RangeKind::Started {
                other.entry((r.process, r.domain)).or_default().push(span);
            } else {
                pushed
                    .entry((r.process, r.tid, r.domain))
                    .or_default()
                    .push(span);
            }
        }
        let domain = |domain| match view.name(domain) {
            "" => String::new(),
            name => format!(" {name}"),
        };
        for ((process, tid, d), spans) in pushed {
            let nested = nest(spans);
            let mut lanes: Vec<Vec<Slice>> = Vec::new();
            for (span, depth) in nested.nested {
                lanes.resize_with(lanes.len().max(depth + 1), Vec::new);
                lanes[depth].push(self.range(view, span));
            }
            other
                .entry((process, d))
                .or_default()
                .extend(nested.crossing);
            let label = format!("{} NVTX{}", thread_name(view, process, tid), domain(d));
            self.stacked(process, &label, "range", lanes);
        }
        for ((process, d), mut spans) in other {
            spans.sort_by_key(|s| s.start);
            let mut free = Lanes::default();
            let mut lanes: Vec<Vec<Slice>> = Vec::new();
            for span in spans {
                let lane = free.place(span.start, span.end);
                lanes.resize_with(lanes.len().max(lane + 1), Vec::new);
                lanes[lane].push(self.range(view, span));
            }
            let label = format!("NVTX{} ranges across threads", domain(d));
            self.stacked(process, &label, "range", lanes);
        }
    }

    fn range(&mut self, view: &View<'_>, span: Span<usize>) -> Slice {
        let range = &view.rec.ranges[span.what];
        Slice {
            start: span.start,
            end: (span.end != u64::MAX).then_some(span.end),
            name: self.names.get(range_name(view, range)),
            details: match range.kind {
                RangeKind::Mark => self.details.get("mark"),
                _ => 0,
            },
        }
    }

    fn pack(&mut self) {
        for lane in &self.lanes {
            let mut before = self.begin;
            for slice in &lane.slices {
                let duration = slice
                    .end
                    .map_or(0, |end| (end - slice.start).saturating_add(1));
                for n in [
                    slice.start.saturating_sub(before),
                    duration,
                    slice.name.into(),
                    slice.details.into(),
                ] {
                    put(&mut self.packed, n);
                }
                before = slice.start;
            }
        }
    }

    /// The lanes and texts; `packed` travels beside it.
    pub fn json(&self) -> Value {
        let lanes: Vec<Value> = self
            .lanes
            .iter()
            .map(|lane| {
                json!({
                    "process": lane.process, "label": lane.label, "kind": lane.kind,
                    "n": lane.slices.len(),
                })
            })
            .collect();
        json!({
            "length": number((self.end - self.begin).into()), "lanes": lanes, "names": self.names.list,
            "details": self.details.list, "cut": self.cut,
        })
    }
}

/// 7 bits a byte, lowest first, the top bit set on all but the last.
fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn thread_name(view: &View<'_>, process: u32, tid: u32) -> String {
    let name = view
        .rec
        .processes
        .get(process as usize)
        .and_then(|p| p.threads.get(&tid));
    match name {
        Some(name) if !name.is_empty() => format!("{} ({tid})", clean(name)),
        _ => format!("thread {tid}"),
    }
}

fn kernel_details(view: &View<'_>, k: &Kernel) -> String {
    let dim = |[x, y, z]: [i32; 3]| format!("{x}×{y}×{z}");
    let mut text = format!(
        "grid {}, block {}, {} registers, shared memory {} + {} B",
        dim(k.grid),
        dim(k.block),
        k.registers,
        k.static_shared_memory,
        k.dynamic_shared_memory
    );
    if k.graph_id != 0 {
        text += &format!("\ngraph {}, node {}", k.graph_id, k.graph_node_id);
    }
    let caller = view.launch(k).and_then(|l| view.caller(l.stack));
    if let Some(frame) = caller {
        text += &format!("\nlaunched by {}", view.frame(frame));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_by_seven_bits() {
        let mut out = Vec::new();
        for n in [0, 127, 128, 300, u64::MAX] {
            put(&mut out, n);
        }
        assert_eq!(out[..6], [0, 127, 0x80, 1, 0xac, 2]);
        assert_eq!(out.len(), 6 + 10);
    }

    #[test]
    fn the_longest_are_kept() {
        let mut all = vec![3, 9, 1, 7];
        assert_eq!(longest(&mut all, 2, |n| *n), 4);
        all.sort_unstable();
        assert_eq!(all, [7, 9]);
    }
}
