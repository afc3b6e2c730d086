//! Brings together what was told apart: the clocks, kernels and their launches, both ends of ranges.

use std::collections::{BTreeMap, HashMap};

use super::model::{Clocks, Kernel, Launch, Range, RangeKind};

/// The readings of the clocks: from `CLOCK_MONOTONIC` to `CLOCK_REALTIME`.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// Monotonic ns and what to add, in order.
    readings: Vec<(u64, i64)>,
    uncertainty_ns: u64,
}

impl Axis {
    /// From rows of [`super::format::Kind::Clocks`].
    pub fn new(rows: Vec<[u64; 3]>) -> Self {
        let uncertainty_ns = rows.iter().map(|row| row[2]).max().unwrap_or(0);
        let mut readings: Vec<_> = rows
            .into_iter()
            .map(|[time, offset, _]| (time, offset.cast_signed()))
            .collect();
        readings.sort_by_key(|(time, _)| *time);
        Self {
            readings,
            uncertainty_ns,
        }
    }

    /// What readers are told.
    pub fn clocks(&self) -> Clocks {
        let first = self.readings.first().map_or(0, |r| r.1);
        let last = self.readings.last().map_or(0, |r| r.1);
        Clocks {
            offset_ns: first,
            uncertainty_ns: self.uncertainty_ns,
            drift_ns: last.wrapping_sub(first),
        }
    }

    /// Moves a time onto the axis: between two readings in a straight line, outside with the nearest one.
    pub fn realtime(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add_signed(self.offset_at(monotonic_ns))
    }

    fn offset_at(&self, time: u64) -> i64 {
        let after = self.readings.partition_point(|(at, _)| *at <= time);
        let next = self.readings.get(after);
        let Some((at, offset)) = after.checked_sub(1).map(|i| self.readings[i]) else {
            return next.map_or(0, |r| r.1);
        };
        let Some((next_at, next_offset)) = next else {
            return offset;
        };
        let step = i128::from(*next_offset) - i128::from(offset);
        let part = step * i128::from(time - at) / i128::from(next_at - at).max(1);
        i64::try_from(i128::from(offset) + part).unwrap_or(offset)
    }
}

/// Finds each kernel's launch; both are in order of time. A correlation id used twice belongs to the launch
/// nearest in time.
pub fn kernels(kernels: &mut [Kernel], launches: &[Launch]) {
    let key = |launch: &Launch| (launch.process, launch.correlation_id);
    let mut order: Vec<u32> = (0..u32::try_from(launches.len()).unwrap_or(u32::MAX)).collect();
    order.sort_by_key(|i| key(&launches[*i as usize]));
    for kernel in kernels {
        let wanted = (kernel.process, kernel.correlation_id);
        let first = order.partition_point(|i| key(&launches[*i as usize]) < wanted);
        kernel.launch = order[first..]
            .iter()
            .copied()
            .take_while(|i| key(&launches[*i as usize]) == wanted)
            // Ids come again after 2^32 launches: a few at most, unless somebody makes them up.
            .take(16)
            .min_by_key(|i| launches[*i as usize].time_ns.abs_diff(kernel.start_ns));
    }
}

/// Makes ranges and marks of rows of [`super::format::Kind::Nvtx`]. Ends whose begin is not there are left out.
pub fn ranges(
    rows: &[[u64; 8]],
    axis: &Axis,
    domains: &BTreeMap<(u32, u32), String>,
    names: &mut Vec<String>,
) -> Vec<Range> {
    let mut order: Vec<&[u64; 8]> = rows.iter().collect();
    order.sort_by_key(|row| row[0]);
    let mut domain_names = DomainNames {
        domains,
        names,
        ids: HashMap::new(),
    };
    let mut ranges: Vec<Range> = Vec::new();
    let mut pushed: HashMap<(u32, u32, u32), Vec<usize>> = HashMap::new();
    let mut started: HashMap<(u32, u64), usize> = HashMap::new();
    for [time, process, tid, kind, domain, range_id, color, name] in order {
        let time = axis.realtime(*time);
        // All were checked when they were read.
        let narrow = |n: &u64| u32::try_from(*n).unwrap_or(0);
        let (process, tid, domain) = (narrow(process), narrow(tid), narrow(domain));
        let mut begin = |kind, end_ns| {
            ranges.push(Range {
                start_ns: time,
                end_ns,
                process,
                tid,
                kind,
                domain: domain_names.id(process, domain),
                name: narrow(name),
                color: narrow(color),
            });
            ranges.len() - 1
        };
        let ended = match kind {
            1 => {
                let index = begin(RangeKind::Pushed, None);
                pushed
                    .entry((process, tid, domain))
                    .or_default()
                    .push(index);
                None
            }
            2 => pushed.get_mut(&(process, tid, domain)).and_then(Vec::pop),
            3 => {
                let index = begin(RangeKind::Started, None);
                started.insert((process, *range_id), index);
                None
            }
            4 => started.remove(&(process, *range_id)),
            5 => {
                begin(RangeKind::Mark, Some(time));
                None
            }
            _ => None,
        };
        if let Some(index) = ended {
            ranges[index].end_ns = Some(time.max(ranges[index].start_ns));
        }
    }
    ranges.sort_by_key(|range| range.start_ns);
    ranges
}

/// Names of domains, as indices.
struct DomainNames<'a> {
    domains: &'a BTreeMap<(u32, u32), String>,
    names: &'a mut Vec<String>,
    ids: HashMap<(u32, u32), u32>,
}

impl DomainNames<'_> {
    fn id(&mut self, process: u32, domain: u32) -> u32 {
        if domain == 0 {
            return 0;
        }
        *self.ids.entry((process, domain)).or_insert_with(|| {
            let name = self.domains.get(&(process, domain));
            let name = name.map_or_else(|| format!("domain {domain}"), String::clone);
            self.names.push(name);
            u32::try_from(self.names.len() - 1).unwrap_or(0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_readings() {
        let offset = |n: i64| n.cast_unsigned();
        let axis = Axis::new(vec![[2_000, offset(110), 7], [1_000, offset(100), 3]]);
        assert_eq!(axis.realtime(0), 100);
        assert_eq!(axis.realtime(1_000), 1_100);
        assert_eq!(axis.realtime(1_500), 1_605);
        assert_eq!(axis.realtime(9_000), 9_110);
        let clocks = axis.clocks();
        assert_eq!(
            (clocks.offset_ns, clocks.drift_ns, clocks.uncertainty_ns),
            (100, 10, 7)
        );
        assert_eq!(Axis::default().realtime(5), 5);
        let wild = Axis::new(vec![[1, offset(i64::MIN), 0], [1, offset(i64::MAX), 0]]);
        wild.realtime(0);
        wild.realtime(u64::MAX);
    }

    #[test]
    fn a_kernel_finds_the_launch_of_its_process() {
        let launch = |process, correlation_id, time_ns| Launch {
            process,
            correlation_id,
            time_ns,
            ..Launch::default()
        };
        let launches = [launch(1, 5, 10), launch(0, 5, 20), launch(0, 5, 900)];
        let kernel = |process, correlation_id, start_ns| Kernel {
            process,
            correlation_id,
            start_ns,
            ..Kernel::default()
        };
        let mut all = [
            kernel(0, 5, 30),
            kernel(0, 5, 901),
            kernel(1, 5, 11),
            kernel(1, 6, 11),
        ];
        kernels(&mut all, &launches);
        assert_eq!(all.map(|k| k.launch), [Some(1), Some(2), Some(0), None]);
    }

    #[test]
    fn ranges_have_two_ends() {
        let row = |time, tid, kind, id, name| [time, 0, tid, kind, 2, id, 0xff, name];
        let rows = [
            // Delivered out of order.
            row(40, 1, 2, 0, 0),
            row(10, 1, 1, 0, 1),
            row(20, 1, 1, 0, 2),
            row(30, 1, 2, 0, 0),
            row(15, 1, 3, 9, 3),
            row(50, 2, 4, 9, 0),
            row(60, 2, 5, 0, 4),
            row(70, 2, 1, 0, 5),
            row(80, 3, 2, 0, 0),
        ];
        let domains = BTreeMap::from([((0, 2), "mine".to_owned())]);
        let mut names = vec![String::new(); 6];
        let ranges = ranges(&rows, &Axis::default(), &domains, &mut names);
        let seen: Vec<_> = ranges
            .iter()
            .map(|r| (r.start_ns, r.end_ns, r.name, r.kind))
            .collect();
        assert_eq!(
            seen,
            [
                (10, Some(40), 1, RangeKind::Pushed),
                (15, Some(50), 3, RangeKind::Started),
                (20, Some(30), 2, RangeKind::Pushed),
                (60, Some(60), 4, RangeKind::Mark),
                (70, None, 5, RangeKind::Pushed),
            ]
        );
        assert_eq!(names[ranges[0].domain as usize], "mine");
        assert_eq!((names.len(), ranges[0].color), (7, 0xff));
    }
}
