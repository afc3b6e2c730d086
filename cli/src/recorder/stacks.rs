//! Which stacks were met, so that each is resolved and written once.

use std::collections::HashMap;

/// Memory for stacks that are remembered, bytes, about.
const MEMORY: usize = 24 << 20;
/// What an entry costs beside its addresses.
const ENTRY: usize = 80;

/// Stacks by process and addresses. When there are too many, all are forgotten and numbered anew: the
/// same stack may then be written twice.
#[derive(Debug)]
pub struct StackBook {
    known: HashMap<u64, HashMap<Box<[u8]>, u64>>,
    bytes: usize,
    next: u64,
}

/// A stack's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// For the first time.
    New {
        /// Its number.
        id: u64,
        /// All earlier ones were forgotten.
        forgot: bool,
    },
    /// Again.
    Known(u64),
}

impl Default for StackBook {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            bytes: 0,
            // 0 is the unknown stack.
            next: 1,
        }
    }
}

impl StackBook {
    /// A number for a stack of which nothing is known yet.
    pub fn number(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        id
    }

    /// The number of a stack of a process.
    pub fn meet(&mut self, process: u64, addresses: &[u8]) -> Met {
        let known = self.known.get(&process).and_then(|k| k.get(addresses));
        if let Some(id) = known {
            return Met::Known(*id);
        }
        let cost = addresses.len() + ENTRY;
        let full = self.bytes + cost > MEMORY;
        if full {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += cost;
        let id = self.number();
        let known = self.known.entry(process).or_default();
        known.insert(addresses.into(), id);
        Met::New { id, forgot: full }
    }

    /// A stack that could not be asked for: it is new when it comes again.
    pub fn forget(&mut self, process: u64, addresses: &[u8]) {
        let known = self.known.get_mut(&process);
        if known.and_then(|known| known.remove(addresses)).is_some() {
            self.bytes -= addresses.len() + ENTRY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_new_once_per_process() {
        let mut book = StackBook::default();
        let new = |id| Met::New { id, forgot: false };
        assert_eq!(book.meet(0, b"abc"), new(1));
        assert_eq!(book.meet(0, b"abc"), Met::Known(1));
        assert_eq!(book.meet(1, b"abc"), new(2));
        assert_eq!(book.meet(1, b"ab"), new(3));
        book.forget(0, b"abc");
        book.forget(0, b"abc");
        assert_eq!(book.bytes, 2 * ENTRY + 5);
        assert_eq!(book.meet(0, b"abc"), new(4));
    }

    #[test]
    fn memory_is_bounded() {
        let mut book = StackBook::default();
        let mut forgotten = 0;
        for i in 0..40_000u64 {
            let mut stack = [0u8; 1016];
            stack[..8].copy_from_slice(&i.to_le_bytes());
            match book.meet(0, &stack) {
                Met::New { id, forgot } if id == i + 1 => forgotten += u32::from(forgot),
                other => panic!("{other:?}"),
            }
            assert!(book.bytes <= MEMORY);
        }
        assert_eq!(forgotten, 1);
    }
}
