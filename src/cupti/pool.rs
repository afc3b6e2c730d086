//! Activity buffers: memory CUPTI fills with records.
//!
//! Bounded: at the cap CUPTI is refused, drops records and says how many. Buffers come from libc's
//! `aligned_alloc`, so that a tool which takes over CUPTI with one of ours still inside may `free`
//! it. The lock is held for bookkeeping only.

use crate::sync::{Mutex, MutexGuard};

/// Bytes of one buffer: some 600 kernel records.
pub const BUFFER_SIZE: usize = 128 * 1024;
/// Buffers in all, 32 MiB.
const CAP: usize = 256;
/// Free buffers kept for the next request.
const KEEP: usize = 8;
/// CUPTI asks for 8; whole pages let the kernel take a buffer back in one piece.
const ALIGN: usize = 4096;

#[derive(Default)]
struct Inner {
    free: Vec<usize>,
    /// Address and time of request (`CLOCK_MONOTONIC` ns) of the buffers CUPTI holds.
    out: Vec<(usize, u64)>,
}

/// The buffers of this process.
pub struct Pool(Mutex<Inner>);

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self(Mutex::new(Inner {
            free: Vec::new(),
            out: Vec::new(),
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A buffer of [`BUFFER_SIZE`] bytes for CUPTI; `None` at the cap or without memory.
    pub fn request(&self, now_ns: u64) -> Option<*mut u8> {
        let mut inner = self.inner();
        if inner.out.len() >= CAP {
            return None;
        }
        let address = match inner.free.pop() {
            Some(address) => address,
            None => {
                // SAFETY: the size is a multiple of the alignment.
                let p = unsafe { libc::aligned_alloc(ALIGN, BUFFER_SIZE) };
                if p.is_null() {
                    return None;
                }
                p as usize
            }
        };
        inner.out.push((address, now_ns));
        Some(address as *mut u8)
    }

    /// Whether CUPTI has this buffer from us.
    pub fn is_ours(&self, buffer: *mut u8) -> bool {
        let inner = self.inner();
        inner.out.iter().any(|(a, _)| *a == buffer as usize)
    }

    /// Takes a buffer back that CUPTI returned; `false` when it is not ours.
    pub fn give_back(&self, buffer: *mut u8) -> bool {
        let mut inner = self.inner();
        let Some(at) = inner.out.iter().position(|(a, _)| *a == buffer as usize) else {
            return false;
        };
        inner.out.swap_remove(at);
        if inner.free.len() < KEEP {
            inner.free.push(buffer as usize);
        } else {
            // SAFETY: it came from aligned_alloc and nobody holds it any more.
            unsafe { libc::free(buffer.cast()) };
        }
        true
    }

    /// Buffers CUPTI holds.
    pub fn outstanding(&self) -> usize {
        self.inner().out.len()
    }

    /// When the oldest buffer CUPTI holds was asked for, `CLOCK_MONOTONIC` ns.
    pub fn oldest(&self) -> Option<u64> {
        self.inner().out.iter().map(|(_, at)| *at).min()
    }

    /// Frees what is not in use.
    pub fn trim(&self) {
        let free = std::mem::take(&mut self.inner().free);
        for address in free {
            // SAFETY: it came from aligned_alloc and nobody holds it.
            unsafe { libc::free(address as *mut libc::c_void) };
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // What CUPTI has is CUPTI's.
        self.trim();
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{BUFFER_SIZE, CAP, Pool};

    #[test]
    fn refuses_at_the_cap_and_recovers() {
        let pool = Pool::new();
        let buffers: Vec<_> = (0..CAP).map(|i| pool.request(i as u64).unwrap()).collect();
        assert!(pool.request(0).is_none());
        assert_eq!(pool.oldest(), Some(0));
        assert!(pool.give_back(buffers[0]));
        assert_eq!(pool.oldest(), Some(1));
        let again = pool.request(7).unwrap();
        for buffer in &buffers[1..] {
            assert!(pool.give_back(*buffer));
        }
        assert_eq!(pool.outstanding(), 1);
        assert!(pool.give_back(again));
    }

    #[test]
    fn a_foreign_buffer_is_neither_taken_nor_freed() {
        let pool = Pool::new();
        let mut foreign = vec![0u8; 8];
        assert!(!pool.is_ours(foreign.as_mut_ptr()));
        assert!(!pool.give_back(foreign.as_mut_ptr()));
        let ours = pool.request(1).unwrap();
        // SAFETY: the buffer has that many bytes.
        unsafe { ours.write_bytes(0xff, BUFFER_SIZE) };
        assert!(pool.give_back(ours));
        assert!(!pool.give_back(ours), "given back twice");
        pool.trim();
    }
}
