//! Slices side by side: what overlaps goes into different lanes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Gives slices, offered by start, the lowest lane that is free.
#[derive(Debug, Default)]
pub struct Lanes {
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    free: BinaryHeap<Reverse<usize>>,
    count: usize,
}

impl Lanes {
    /// Lane of a slice that starts no earlier than those before it.
    pub fn place(&mut self, start: u64, end: u64) -> usize {
        while let Some(Reverse((until, lane))) = self.busy.peek().copied()
            && until <= start
        {
            self.busy.pop();
            self.free.push(Reverse(lane));
        }
        let lane = self.free.pop().map_or_else(
            || {
                self.count += 1;
                self.count - 1
            },
            |Reverse(lane)| lane,
        );
        self.busy.push(Reverse((end, lane)));
        lane
    }
}

/// A slice among others that may lie inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<T> {
    /// Begin.
    pub start: u64,
    /// End; never before `start`.
    pub end: u64,
    /// What it is.
    pub what: T,
}

/// What becomes of spans that should nest.
#[derive(Debug, Default)]
pub struct Nested<T> {
    /// Those that do, outer before inner, with their depth.
    pub nested: Vec<(Span<T>, usize)>,
    /// Those that overlap one of the nested without lying inside it.
    pub crossing: Vec<Span<T>>,
}

/// Sorts spans by nesting.
pub fn nest<T: Copy>(mut spans: Vec<Span<T>>) -> Nested<T> {
    spans.sort_by_key(|s| (s.start, Reverse(s.end)));
    let mut open: Vec<u64> = Vec::new();
    let mut out = Nested {
        nested: Vec::new(),
        crossing: Vec::new(),
    };
    for span in spans {
        while open.last().is_some_and(|end| *end <= span.start) {
            open.pop();
        }
        if open.last().is_some_and(|end| span.end > *end) {
            out.crossing.push(span);
            continue;
        }
        out.nested.push((span, open.len()));
        open.push(span.end);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_slices_are_in_different_lanes() {
        let mut lanes = Lanes::default();
        let slices = [(0, 10), (0, 5), (5, 5), (5, 8), (9, 20), (10, 12), (20, 21)];
        let placed: Vec<_> = slices.map(|(s, e)| lanes.place(s, e)).into();
        assert_eq!(placed, [0, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn only_what_lies_inside_nests() {
        let span = |start, end| Span {
            start,
            end,
            what: (),
        };
        let out = nest(vec![
            span(4, 6),
            span(0, 10),
            span(5, 12),
            span(0, 10),
            span(10, 11),
        ]);
        let nested: Vec<_> = out
            .nested
            .iter()
            .map(|(s, d)| (s.start, s.end, *d))
            .collect();
        assert_eq!(nested, [(0, 10, 0), (0, 10, 1), (4, 6, 2), (10, 11, 0)]);
        assert_eq!(out.crossing, [span(5, 12)]);
    }
}
