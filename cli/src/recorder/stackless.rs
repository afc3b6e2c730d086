//! Launches that have no CPU stack, each counted once, by what kept it from having one.
//!
//! A stack is resolved after its launches have come, and many launches share one: which of them have none is known
//! only with the answer. What waits for an answer is bounded by the [`Resolver`](crate::symbols::thread::Resolver);
//! what led nowhere is remembered as long as the [`StackBook`](super::stacks::StackBook) knows its number.

use std::collections::HashMap;

/// What kept a launch from having a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The kernel could not read it.
    NotTaken,
    /// It has no frame outside the library.
    Nowhere,
    /// Its process ended before its mappings were read.
    Gone,
    /// It came when too many waited.
    TooMany,
    /// The end did not wait for it.
    Late,
}

/// All of them, and what is said of each.
const ALL: [(Why, &str); 5] = [
    (Why::NotTaken, "not taken by the kernel"),
    (
        Why::Nowhere,
        "not followed out of the library (mostly for coming too fast)",
    ),
    (Why::Gone, "of processes that were gone"),
    (Why::TooMany, "too many at once"),
    (Why::Late, "not resolved in time"),
];

/// See the module.
#[derive(Debug, Default)]
pub struct Stackless {
    counts: [u64; ALL.len()],
    /// Launches of stacks that are asked for, by the stack's number.
    waiting: HashMap<u64, u64>,
    /// Stacks that were answered with nothing.
    nothing: HashMap<u64, Why>,
}

impl Stackless {
    /// A launch that never gets one.
    pub fn count(&mut self, why: Why) {
        self.add(why, 1);
    }

    fn add(&mut self, why: Why, launches: u64) {
        self.counts[why as usize] += launches;
    }

    /// A launch whose stack is asked for.
    pub fn asked(&mut self, stack: u64) {
        self.waiting.insert(stack, 1);
    }

    /// A launch with a stack that was asked for earlier.
    pub fn again(&mut self, stack: u64) {
        if let Some(launches) = self.waiting.get_mut(&stack) {
            *launches += 1;
        } else if let Some(why) = self.nothing.get(&stack) {
            self.add(*why, 1);
        }
    }

    /// The answer for a stack: frames, or why there are none.
    pub fn answered(&mut self, stack: u64, nothing: Option<Why>) {
        let launches = self.waiting.remove(&stack).unwrap_or(0);
        if let Some(why) = nothing {
            self.add(why, launches);
            self.nothing.insert(stack, why);
        }
    }

    /// No launch comes with an earlier number any more.
    pub fn forget(&mut self) {
        self.nothing.clear();
    }

    /// Nothing is answered any more.
    pub fn give_up(&mut self) {
        let launches = std::mem::take(&mut self.waiting).into_values().sum();
        self.add(Why::Late, launches);
    }

    /// What kept launches from having one, in words, and how many.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ALL.into_iter()
            .map(|(why, words)| (words, self.counts[why as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launch_counts_once() {
        let mut all = Stackless::default();
        all.count(Why::NotTaken);
        for stack in 1..=4 {
            all.asked(stack);
            all.again(stack);
        }
        all.answered(1, None);
        all.again(1);
        all.answered(2, Some(Why::Gone));
        all.again(2);
        all.answered(3, Some(Why::Nowhere));
        all.forget();
        all.give_up();
        let counts: Vec<u64> = all.counts().map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 2, 3, 0, 2]);
        assert!(all.waiting.is_empty());
    }

    #[test]
    fn each_reason_has_its_words() {
        for (i, (why, _)) in ALL.iter().enumerate() {
            assert_eq!(*why as usize, i);
        }
    }
}
