//! An append-only table without locks: what handles are indices of.
//!
//! Entries are never moved or freed, so that readers hold plain references and a forked child finds
//! everything as its parent left it.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const CHUNK: usize = 1024;
/// Entries that a table can be told to have at most.
const MOST: u32 = (CHUNK * CHUNK) as u32;

type Chunk<T> = [AtomicPtr<T>; CHUNK];

/// See the module.
pub struct Table<T: Sync + 'static> {
    chunks: [AtomicPtr<Chunk<T>>; CHUNK],
    len: AtomicU32,
    max: u32,
}

impl<T: Sync + 'static> Table<T> {
    /// An empty one with room for `max` entries, at most 2^20.
    pub const fn new(max: u32) -> Self {
        assert!(max <= MOST);
        Self {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNK],
            len: AtomicU32::new(0),
            max,
        }
    }

    /// Whether no more entries are taken.
    pub fn is_full(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= self.max
    }

    /// Adds an entry; its index, `None` when the table is full.
    pub fn push(&self, entry: T) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let index = self.len.fetch_add(1, Ordering::Relaxed);
        if index >= self.max {
            self.len.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let place = &self.chunk(index as usize / CHUNK)[index as usize % CHUNK];
        place.store(Box::into_raw(Box::new(entry)), Ordering::Release);
        Some(index)
    }

    fn chunk(&self, i: usize) -> &'static Chunk<T> {
        let slot = &self.chunks[i];
        let mut chunk = slot.load(Ordering::Acquire);
        if chunk.is_null() {
            let fresh = Box::into_raw(Box::new(
                [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNK],
            ));
            match slot.compare_exchange(chunk, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => chunk = fresh,
                Err(theirs) => {
                    // SAFETY: made above and published nowhere.
                    drop(unsafe { Box::from_raw(fresh) });
                    chunk = theirs;
                }
            }
        }
        // SAFETY: published by an exchange, never freed.
        unsafe { &*chunk }
    }

    /// An entry by its index; `None` for an index that was not given out.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&'static T> {
        let chunk = self
            .chunks
            .get(index as usize / CHUNK)?
            .load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: chunks and entries are published by a release and never freed.
        unsafe {
            (&*chunk)[index as usize % CHUNK]
                .load(Ordering::Acquire)
                .as_ref()
        }
    }

    /// All entries that are there.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> {
        let len = self.len.load(Ordering::Acquire).min(self.max);
        (0..len).filter_map(|i| self.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn entries_stay_where_they_are() {
        static TABLE: Table<u32> = Table::new(5000);
        std::thread::scope(|scope| {
            for t in 0..4 {
                scope.spawn(move || {
                    for i in 0..1000 {
                        let index = TABLE.push(t * 1000 + i).expect("there is room");
                        assert_eq!(TABLE.get(index), Some(&(t * 1000 + i)));
                    }
                });
            }
        });
        let mut all: Vec<u32> = TABLE.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..4000).collect::<Vec<_>>());
        assert_eq!(TABLE.get(4000), None);
        assert_eq!(TABLE.get(u32::MAX), None);
    }

    #[test]
    fn a_full_table_refuses() {
        static TABLE: Table<u32> = Table::new(2);
        assert_eq!(TABLE.push(1), Some(0));
        assert_eq!(TABLE.push(2), Some(1));
        assert_eq!((TABLE.push(3), TABLE.is_full()), (None, true));
        assert_eq!(TABLE.iter().count(), 2);
    }
}
