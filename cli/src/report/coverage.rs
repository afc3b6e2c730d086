//! How much a recording has of what happened, in numbers and in words.

use std::collections::HashSet;

use super::view::{View, gpu_ns};
use crate::demangle::clean;
use crate::recorder::{NO_STACK, no_stack as without_stack};
use crate::recording::model::{Process, Recording};
use crate::recording::tables::ANY;
use crate::text::{count, duration, percent, plural};

/// What share of the launches, kernels and events a recording has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Processes seen.
    pub processes: usize,
    /// Launches sampled.
    pub sampled: u64,
    /// Launches that the processes made; `None`: at least one process did not say.
    pub seen: Option<u64>,
    /// Nothing is missing: sums are totals.
    pub whole: bool,
    /// The file ends before its end, or is damaged: how many launches there were is not known.
    pub cut: bool,
    /// Kernel records, with and without times.
    pub kernels: u64,
    /// Kernel records without usable times: counted, never time.
    pub no_time: u64,
    /// Kernel records whose launch was not announced.
    pub no_launch: u64,
    /// Sampled launches without a kernel record.
    pub no_kernel: u64,
    /// Sampled launches without a CPU stack, where stacks were taken.
    pub no_stack: u64,
    /// (what, how many), over all processes.
    pub losses: Vec<(String, u64)>,
}

/// Limits are for a thread and a second, so one launch in ten may be sampled here and all of them there.
const NOT_ALIKE: &str = "each thread is sampled at most so many times a second: kernels of a thread, or a time, \
                         of many launches have too small a share beside those of one of few";

impl Coverage {
    /// Of a whole recording.
    pub fn of(rec: &Recording) -> Self {
        // Each process has in one sum what was lost on the way to us and belongs to none alone.
        let own = rec
            .processes
            .iter()
            .flat_map(|p| &p.losses)
            .filter(|(what, _)| what != ANY);
        let mut losses: Vec<(String, u64)> = Vec::new();
        for (what, n) in rec.losses.iter().chain(own) {
            match losses.iter_mut().find(|(known, _)| known == what) {
                Some((_, sum)) => *sum = sum.saturating_add(*n),
                None => losses.push((what.clone(), *n)),
            }
        }
        let cut = rec.truncated || rec.damage.is_some();
        let seen = |p: &Process| p.launches_seen.map(|n| n.max(p.launches_sampled));
        let with_kernel: HashSet<u32> = rec.kernels.iter().filter_map(|k| k.launch).collect();
        let add = |sum: u64, n: u64| sum.saturating_add(n);
        let no_time = rec.kernels.iter().filter(|k| gpu_ns(k).is_none()).count() as u64;
        let no_launch = rec.kernels.iter().filter(|k| k.launch.is_none()).count() as u64;
        Self {
            processes: rec.processes.len(),
            sampled: rec
                .processes
                .iter()
                .map(|p| p.launches_sampled)
                .fold(0, add),
            seen: rec
                .processes
                .iter()
                .try_fold(0, |sum, p| seen(p).map(|n| add(sum, n)))
                .filter(|_| !cut),
            cut,
            whole: !cut
                && losses.is_empty()
                && no_time == 0
                && rec.processes.iter().all(Process::is_whole),
            kernels: rec.kernels.len() as u64,
            no_time,
            no_launch,
            no_stack: no_stack(rec),
            no_kernel: rec.launches.len().saturating_sub(with_kernel.len()) as u64,
            losses,
        }
    }

    /// `all 1,000 launches`, `400 of 8,000 launches (5.0 %)`, `400 launches, of how many is not known`
    pub fn share(&self) -> String {
        share(self.sampled, self.seen)
    }

    /// What sums over the recording are, in one sentence.
    pub fn sentence(&self) -> String {
        if self.processes == 0 && self.cut {
            return "what was sampled is not known: the file has no process".to_owned();
        }
        if self.processes == 0 {
            return "nothing was sampled: no process with the library was seen".to_owned();
        }
        let share = self.share();
        if self.seen != Some(self.sampled) {
            let lost = if self.losses.is_empty() {
                ""
            } else {
                ", of which some was lost"
            };
            format!("sampled: {share}; sums are of the sample{lost}")
        } else if self.whole {
            format!("sampled: {share}")
        } else {
            format!("sampled: {share}, but some is missing; sums are lower bounds")
        }
    }

    /// See [`View::notes`].
    pub fn notes(&self, view: &View<'_>) -> Vec<String> {
        let rec = view.rec;
        let mut notes = vec![self.sentence()];
        if self.seen != Some(self.sampled) && self.sampled > 0 {
            notes.push(NOT_ALIKE.to_owned());
        }
        if rec.processes.len() > 1 {
            for (i, p) in (0..).zip(&rec.processes) {
                if !p.is_whole() && notes.len() <= 20 {
                    let share = share(p.launches_sampled, p.launches_seen);
                    notes.push(format!("{}: {share}", view.process_name(i)));
                }
            }
        }
        match &rec.damage {
            Some(damage) => notes.push(format!(
                "the file is damaged, what followed was lost: {}",
                clean(damage)
            )),
            None if rec.truncated => {
                notes.push(cut(view));
            }
            None => {}
        }
        for (what, n) in &self.losses {
            notes.push(format!("lost: {} {}", count(*n), clean(what)));
        }
        if self.no_time > 0 {
            notes.push(format!(
                "{} without times: counted, but no GPU time",
                plural(self.no_time, "kernel record")
            ));
        }
        if self.no_launch > 0 {
            notes.push(format!(
                "{} without an announced launch: no stack, no thread",
                plural(self.no_launch, "kernel record")
            ));
        }
        if self.no_kernel > 0 {
            notes.push(format!(
                "{} without a kernel record",
                plural(self.no_kernel, "sampled launch")
            ));
        }
        if self.no_stack > 0 {
            let of = rec.launches.len() as u64;
            notes.push(clean(&without_stack(self.no_stack, of, &rec.gaps)));
        }
        notes
    }
}

fn no_stack(rec: &Recording) -> u64 {
    let without = rec.launches.iter().filter(|l| {
        let frames = rec.stacks.get(l.stack as usize);
        frames.is_none_or(Vec::is_empty)
    });
    // Where no launch has one, and none was missed, they were not taken.
    let missed = |(what, n): &(String, u64)| *n > 0 && what.starts_with(NO_STACK);
    match without.count() {
        all if all == rec.launches.len() && !rec.gaps.iter().any(missed) => 0,
        some => some as u64,
    }
}

/// What a file has that ends before its end.
fn cut(view: &View<'_>) -> String {
    let why = "the file ends in the middle (the recorder was killed, or its disk was full)";
    if view.rec.processes.is_empty() {
        return format!(
            "{why}, before any event: when it began and of what it is, is all there is"
        );
    }
    let length = duration(view.length_ns().into());
    format!("{why}: it has the first {length}, what followed was lost")
}

/// See [`Coverage::share`].
pub fn share(sampled: u64, seen: Option<u64>) -> String {
    let launches = |n: u64| plural(n, "launch");
    match seen {
        None => format!("{}, of how many is not known", launches(sampled)),
        Some(seen) if seen > sampled => format!(
            "{} of {} ({})",
            count(sampled),
            launches(seen),
            percent(u128::from(sampled), u128::from(seen))
        ),
        Some(_) => format!("all {}", launches(sampled)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::model::Launch;

    #[test]
    fn a_sample_is_never_called_all() {
        assert_eq!(share(1, Some(1)), "all 1 launch");
        assert_eq!(share(400, Some(8000)), "400 of 8,000 launches (5.0 %)");
        assert_eq!(share(2, None), "2 launches, of how many is not known");
    }

    #[test]
    fn a_cut_file_says_nothing_of_all() {
        let process = Process {
            launches_seen: Some(5),
            launches_sampled: 5,
            ..Process::default()
        };
        let of = |processes| {
            Coverage::of(&Recording {
                processes,
                truncated: true,
                ..Recording::default()
            })
        };
        let some = of(vec![process]);
        assert_eq!((some.seen, some.whole), (None, false));
        assert!(some.sentence().contains("of how many is not known"));
        assert!(of(vec![]).sentence().contains("not known"));
    }

    #[test]
    fn launches_without_a_stack_are_counted_where_stacks_were_taken() {
        let gap = |n| vec![(format!("{NO_STACK}too many at once"), n)];
        let of_gaps = |stacks: &[u32], gaps| {
            let launches = stacks.iter().map(|stack| Launch {
                stack: *stack,
                ..Launch::default()
            });
            Coverage::of(&Recording {
                launches: launches.collect(),
                stacks: vec![vec![], vec![0], vec![]],
                gaps,
                ..Recording::default()
            })
            .no_stack
        };
        let of = |stacks: &[u32]| of_gaps(stacks, Vec::new());
        assert_eq!((of_gaps(&[0, 0], gap(2)), of_gaps(&[0, 0], gap(0))), (2, 0));
        let words = without_stack(2, 7, &gap(2));
        assert_eq!(
            words,
            "2 of 7 sampled launches without a CPU stack: 2 too many at once"
        );
        assert_eq!(of(&[1, 0, 2, 9, 1]), 3);
        assert_eq!((of(&[1, 1]), of(&[0, 0]), of(&[])), (0, 0, 0));
    }

    #[test]
    fn what_is_missing_is_said() {
        let process = |launches_seen, losses: &[(&str, u64)]| Process {
            launches_seen,
            launches_sampled: 5,
            losses: losses.iter().map(|(w, n)| ((*w).to_owned(), *n)).collect(),
            ..Process::default()
        };
        let coverage = |processes: Vec<Process>| {
            Coverage::of(&Recording {
                processes,
                ..Recording::default()
            })
        };
        assert!(coverage(vec![process(Some(5), &[])]).whole);
        let lossy = coverage(vec![
            process(Some(5), &[("x", 1)]),
            process(Some(5), &[("x", 2)]),
        ]);
        assert!(lossy.sentence().contains("lower bounds"));
        assert_eq!(lossy.losses, [("x".to_owned(), 3)]);
        let unknown = coverage(vec![process(None, &[]), process(Some(5), &[])]);
        assert!(unknown.sentence().contains("not known"));
        assert_eq!(coverage(vec![process(Some(9), &[])]).seen, Some(9));
    }
}
