//! The recording added up: kernels, stacks, graph nodes, NVTX ranges. Every output's totals come from here
//! or from [`View::timed`], which this uses.

use std::collections::HashMap;
use std::hash::Hash;

use super::view::View;
use crate::recording::model::{Kernel, NameId, RangeKind};

/// Some kernel records added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Records, with or without times.
    pub calls: u64,
    /// Records without times; not in `total_ns`.
    pub no_time: u64,
    /// GPU time, ns.
    pub total_ns: u128,
    /// Shortest and longest, ns; 0 while there is none with a time.
    pub min_ns: u64,
    /// See `min_ns`.
    pub max_ns: u64,
}

impl Sum {
    /// Takes a record in.
    pub fn add(&mut self, ns: Option<u64>) {
        self.calls += 1;
        let Some(ns) = ns else {
            self.no_time += 1;
            return;
        };
        let first = self.calls - self.no_time == 1;
        self.min_ns = if first { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.total_ns += u128::from(ns);
    }

    /// Over the records that have times.
    pub fn mean_ns(&self) -> Option<u128> {
        self.total_ns
            .checked_div(u128::from(self.calls - self.no_time))
    }
}

/// GPU time of the whole recording, ns.
pub fn total_ns(view: &View<'_>) -> u128 {
    view.timed().map(|(_, ns)| u128::from(ns)).sum()
}

/// Kernels of one name.
#[derive(Clone, Debug)]
pub struct KernelRow {
    /// Mangled.
    pub name: NameId,
    /// Its records.
    pub sum: Sum,
    /// Stacks that launched it, by falling GPU time; 0: not known.
    pub stacks: Vec<(u32, Sum)>,
}

/// Kernels by falling GPU time, over all processes.
pub fn kernels(view: &View<'_>) -> Vec<KernelRow> {
    let mut rows: HashMap<NameId, (Sum, HashMap<u32, Sum>)> = HashMap::new();
    for kernel in &view.rec.kernels {
        let ns = super::view::gpu_ns(kernel);
        let (sum, stacks) = rows.entry(kernel.name).or_default();
        sum.add(ns);
        stacks.entry(stack(view, kernel)).or_default().add(ns);
    }
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|(name, (sum, stacks))| KernelRow {
            name,
            sum,
            stacks: sorted(stacks),
        })
        .collect();
    rows.sort_by(|a, b| by_time(&a.sum, &b.sum).then(a.name.cmp(&b.name)));
    rows
}

/// Who launched what, by falling GPU time: ((process, stack, kernel), sum).
pub fn launched(view: &View<'_>) -> Vec<((u32, u32, NameId), Sum)> {
    let mut rows: HashMap<(u32, u32, NameId), Sum> = HashMap::new();
    for kernel in &view.rec.kernels {
        let key = (kernel.process, stack(view, kernel), kernel.name);
        rows.entry(key)
            .or_default()
            .add(super::view::gpu_ns(kernel));
    }
    sorted(rows)
}

/// Nodes of graphs, by falling GPU time: ((process, graph, node, kernel), sum).
pub fn graph_nodes(view: &View<'_>) -> Vec<((u32, u32, u64, NameId), Sum)> {
    let mut rows: HashMap<_, Sum> = HashMap::new();
    for kernel in view.rec.kernels.iter().filter(|k| k.graph_id != 0) {
        let key = (
            kernel.process,
            kernel.graph_id,
            kernel.graph_node_id,
            kernel.name,
        );
        rows.entry(key)
            .or_default()
            .add(super::view::gpu_ns(kernel));
    }
    sorted(rows)
}

fn stack(view: &View<'_>, kernel: &Kernel) -> u32 {
    view.launch(kernel).map_or(0, |launch| launch.stack)
}

fn by_time(a: &Sum, b: &Sum) -> std::cmp::Ordering {
    (b.total_ns, b.calls).cmp(&(a.total_ns, a.calls))
}

fn sorted<K: Ord + Hash>(rows: HashMap<K, Sum>) -> Vec<(K, Sum)> {
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(ak, a), (bk, b)| by_time(a, b).then_with(|| ak.cmp(bk)));
    rows
}

/// NVTX ranges of one name and domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeRow {
    /// 0: default.
    pub domain: NameId,
    /// Message.
    pub name: NameId,
    /// Ranges, open ones too; marks.
    pub count: u64,
    /// Those still open at the end; not in `total_ns`.
    pub open: u64,
    /// Of these, marks.
    pub marks: u64,
    /// From begin to end on the CPU, ns; of nested ranges of the same name each counts.
    pub total_ns: u128,
    /// What the beginning thread launched while the range was open; each kernel once per thread.
    pub kernels: Sum,
}

/// Ranges by falling GPU time, then CPU time.
///
/// A kernel counts for a range if its launch returned on the thread that began the range, while it was open.
pub fn ranges(view: &View<'_>) -> Vec<RangeRow> {
    let launches = Launches::of(view);
    type Spans = HashMap<(u32, u32), Vec<(u64, u64)>>;
    let mut rows: HashMap<(NameId, NameId), (RangeRow, Spans)> = HashMap::new();
    for range in &view.rec.ranges {
        let (row, spans) = rows.entry((range.domain, range.name)).or_default();
        row.count += 1;
        if range.kind == RangeKind::Mark {
            row.marks += 1;
            continue;
        }
        match range.end_ns {
            Some(end) => row.total_ns += u128::from(end.saturating_sub(range.start_ns)),
            None => row.open += 1,
        }
        spans
            .entry((range.process, range.tid))
            .or_default()
            .push((range.start_ns, range.end_ns.unwrap_or(u64::MAX)));
    }
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|((domain, name), (row, spans))| {
            let mut kernels = Sum::default();
            for (thread, spans) in spans {
                for (start, end) in united(spans) {
                    launches.add_between(thread, start, end, &mut kernels);
                }
            }
            RangeRow {
                domain,
                name,
                kernels,
                ..row
            }
        })
        .collect();
    rows.sort_by(|a, b| {
        by_time(&a.kernels, &b.kernels)
            .then(b.total_ns.cmp(&a.total_ns))
            .then((a.domain, a.name).cmp(&(b.domain, b.name)))
    });
    rows
}

/// Spans without overlap, so that a kernel inside nested ranges of one name counts once.
fn united(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

/// GPU time of launches by thread and time, as running sums: any span costs two searches.
struct Launches {
    threads: HashMap<(u32, u32), Vec<(u64, Sum)>>,
}

impl Launches {
    fn of(view: &View<'_>) -> Self {
        let mut per_launch: HashMap<u32, Sum> = HashMap::new();
        for kernel in &view.rec.kernels {
            if let Some(launch) = kernel.launch {
                per_launch
                    .entry(launch)
                    .or_default()
                    .add(super::view::gpu_ns(kernel));
            }
        }
        let mut threads: HashMap<_, Vec<(u64, Sum)>> = HashMap::new();
        for (i, launch) in (0..).zip(&view.rec.launches) {
            let sum = per_launch.get(&i).copied().unwrap_or_default();
            let thread = threads.entry((launch.process, launch.tid)).or_default();
            thread.push((launch.time_ns, sum));
        }
        for sums in threads.values_mut() {
            sums.sort_by_key(|(time, _)| *time);
            let mut running = Sum::default();
            for (_, sum) in sums {
                running.calls += sum.calls;
                running.no_time += sum.no_time;
                running.total_ns += sum.total_ns;
                *sum = running;
            }
        }
        Self { threads }
    }

    fn add_between(&self, thread: (u32, u32), start: u64, end: u64, into: &mut Sum) {
        let Some(sums) = self.threads.get(&thread) else {
            return;
        };
        let before = |bound: usize| {
            bound
                .checked_sub(1)
                .map_or(Sum::default(), |last| sums[last].1)
        };
        let from = before(sums.partition_point(|(time, _)| *time < start));
        let to = before(sums.partition_point(|(time, _)| *time <= end));
        into.calls += to.calls - from.calls;
        into.no_time += to.no_time - from.no_time;
        into.total_ns += to.total_ns - from.total_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::model::{Launch, Range, Recording};

    #[test]
    fn sums_count_what_has_no_time_without_adding_it() {
        let mut sum = Sum::default();
        assert_eq!(sum.mean_ns(), None);
        for ns in [None, Some(30), Some(10), None] {
            sum.add(ns);
        }
        assert_eq!((sum.calls, sum.no_time, sum.total_ns), (4, 2, 40));
        assert_eq!((sum.min_ns, sum.max_ns, sum.mean_ns()), (10, 30, Some(20)));
    }

    #[test]
    fn nested_ranges_of_one_name_count_a_kernel_once() {
        let launch = |time_ns, tid| Launch {
            time_ns,
            tid,
            ..Launch::default()
        };
        let kernel = |launch, ns: u64| Kernel {
            start_ns: 1000,
            end_ns: 1000 + ns,
            launch: Some(launch),
            ..Kernel::default()
        };
        let range = |start_ns, end_ns, name| Range {
            start_ns,
            end_ns,
            tid: 1,
            name,
            ..Range::default()
        };
        let rec = Recording {
            launches: vec![launch(5, 1), launch(15, 1), launch(15, 2), launch(40, 1)],
            kernels: vec![kernel(0, 1), kernel(1, 10), kernel(2, 100), kernel(3, 1000)],
            ranges: vec![
                range(10, Some(30), 1),
                range(12, Some(20), 1),
                range(14, Some(16), 2),
                range(0, None, 3),
            ],
            names: vec![String::new(), "a".into(), "b".into(), "c".into()],
            ..Recording::default()
        };
        let rows = ranges(&View::new(&rec));
        let of = |name| rows.iter().find(|r| r.name == name).unwrap();
        assert_eq!((of(1).count, of(1).total_ns), (2, 28));
        assert_eq!(of(1).kernels.total_ns, 10);
        assert_eq!(of(2).kernels.total_ns, 10);
        assert_eq!((of(3).open, of(3).kernels.total_ns), (1, 1011));
    }
}
