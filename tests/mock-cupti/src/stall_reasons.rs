//! The table of stall reasons: names like the real ones, indices in no order.
//!
//! Indices 0 and 1 are counters; from the highest down come pairs of a reason and its part
//! `_not_issued`, those that samples have first. So a table of more than 64 has samples with an
//! index past 63, and one below.

use crate::pc_script;
use crate::settings;

/// Reasons that samples have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Waits for memory.
    LongScoreboard = 0,
    /// Of these, while nothing was issued.
    LongScoreboardNotIssued = 1,
    /// Waits a fixed time.
    Wait = 2,
    /// Of these, while nothing was issued.
    WaitNotIssued = 3,
    /// Does not wait.
    Selected = 36,
}

/// All of them.
pub const REASONS: [Reason; 5] = [
    Reason::LongScoreboard,
    Reason::LongScoreboardNotIssued,
    Reason::Wait,
    Reason::WaitNotIssued,
    Reason::Selected,
];

const PREFIX: &str = "smsp__pcsamp_warps_issue_stalled_";
/// In the order of their indices, from the highest down; [`Reason`]'s numbers are places here.
const NAMES: [&str; 19] = [
    "long_scoreboard",
    "wait",
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "no_instructions",
    "not_selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "misc",
    "selected",
];
/// The highest index in a table with a gap.
const FAR: u32 = 200;

impl Reason {
    /// Whether it is a part of another one.
    pub fn is_part(self) -> bool {
        matches!(self, Self::LongScoreboardNotIssued | Self::WaitNotIssued)
    }

    /// Its index, if the table has it.
    pub fn index(self) -> Option<u32> {
        let total = settings::get().stall_reasons;
        let place = total.checked_sub(1 + self as usize)?;
        (place >= 2).then(|| number(place, total))
    }
}

fn number(place: usize, total: usize) -> u32 {
    if pc_script::get().sparse && place + 1 == total {
        FAR
    } else {
        place as u32
    }
}

/// The index and the name, NUL-padded to `size`, at a position of the table.
pub fn entry(position: usize, size: usize) -> (u32, Vec<u8>) {
    let total = settings::get().stall_reasons;
    let place = (position * step(total) + total / 3) % total;
    let mut name = name(place, total).into_bytes();
    if place == 2 && pc_script::get().unterminated {
        name = vec![b'x'; size];
    }
    name.resize(size, 0);
    (number(place, total), name)
}

/// A number that takes every place once.
fn step(total: usize) -> usize {
    [17, 13, 11, 7]
        .into_iter()
        .find(|step| !total.is_multiple_of(*step))
        .unwrap_or(1)
}

fn name(place: usize, total: usize) -> String {
    match place {
        0 => "smsp__pcsamp_sample_count".to_owned(),
        1 => "smsp__pcsamp_samples_data_dropped".to_owned(),
        _ => {
            let from_top = total - 1 - place;
            let part = if from_top % 2 == 1 { "_not_issued" } else { "" };
            match NAMES.get(from_top / 2) {
                Some(name) => format!("{PREFIX}{name}{part}"),
                None => format!("{PREFIX}reason_{}{part}", from_top / 2),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_one_name() {
        let total = settings::get().stall_reasons;
        let mut table: Vec<_> = (0..total).map(|at| entry(at, 128)).collect();
        assert!(
            table.windows(2).any(|pair| pair[0].0 > pair[1].0),
            "in no order"
        );
        table.sort();
        assert!(
            table
                .iter()
                .enumerate()
                .all(|(at, entry)| entry.0 == at as u32)
        );
        let named = |reason: Reason| {
            let (_, name) = &table[reason.index().unwrap() as usize];
            String::from_utf8_lossy(name)
                .trim_end_matches('\0')
                .to_owned()
        };
        assert_eq!(named(Reason::Wait), format!("{PREFIX}wait"));
        assert_eq!(
            named(Reason::WaitNotIssued),
            format!("{PREFIX}wait_not_issued")
        );
        assert_eq!(named(Reason::Selected), format!("{PREFIX}selected"));
    }
}
