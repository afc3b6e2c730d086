//! How many PC samples a process had, as the report counts them: a record's counts overlap, and which do is known by
//! the table of stall reasons only, which may come after the records.

use crate::pc::reasons::{Counts, Reasons};

/// Records of all processes that wait for a table; past it they are counted as if none came.
const PENDING_MAX: usize = 1 << 14;

/// Of one process.
#[derive(Debug, Default)]
pub struct Samples {
    table: Reasons,
    count: u64,
    pending: Vec<Box<[(u32, u32)]>>,
}

impl Samples {
    /// A record: stall reasons and how often. `pending` is the number of records that wait, of all processes.
    pub fn add(&mut self, reasons: &[(u32, u32)], pending: &mut usize) {
        if self.table.is_empty() && *pending < PENDING_MAX {
            *pending += 1;
            self.pending.push(reasons.into());
        } else {
            self.count += self.samples(reasons);
        }
    }

    /// The table has come.
    pub fn learn(&mut self, names: &[String], pending: &mut usize) {
        self.table = Reasons::new(names);
        let waited = std::mem::take(&mut self.pending);
        *pending -= waited.len();
        self.count += self.sum(&waited);
    }

    fn samples(&self, reasons: &[(u32, u32)]) -> u64 {
        let mut counts = Counts::new();
        for (index, n) in reasons {
            *counts.entry(*index).or_default() += u64::from(*n);
        }
        self.table.tally(&counts).samples
    }

    fn sum(&self, records: &[Box<[(u32, u32)]>]) -> u64 {
        records.iter().map(|reasons| self.samples(reasons)).sum()
    }

    /// Samples so far, each once as far as is known.
    pub fn count(&self) -> u64 {
        self.count + self.sum(&self.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_count_once_whenever_the_table_comes() {
        let names = ["wait", "wait_not_issued"].map(str::to_owned);
        let (mut samples, mut pending) = (Samples::default(), 0);
        let add = |samples: &mut Samples, pending: &mut usize| {
            samples.add(&[(0, 5), (1, 3)], pending);
        };
        add(&mut samples, &mut pending);
        assert_eq!(
            (samples.count(), pending),
            (8, 1),
            "without a table nothing overlaps"
        );
        samples.learn(&names, &mut pending);
        assert_eq!((samples.count(), pending), (5, 0));
        add(&mut samples, &mut pending);
        samples.learn(&names, &mut pending);
        assert_eq!((samples.count(), pending), (10, 0));
        let mut more = Samples::default();
        pending = PENDING_MAX;
        add(&mut more, &mut pending);
        assert_eq!((more.count(), more.pending.len()), (8, 0));
    }
}
