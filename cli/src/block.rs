//! Reads what other processes publish about themselves: status block and semaphores.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use parcagpu_abi::probe::{self, PROVIDER};
use parcagpu_abi::status::{self, ReadError, Status};

use crate::discover::Found;
use crate::memory::Memory;

/// A writer holds a text for some microseconds, unless it has to wait for a processor meanwhile.
const TRIES: u32 = 250;
/// For who looks again soon, and has events to take meanwhile: a process may leave it so for ever.
const TRIES_OF_A_GLANCE: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(1);

/// Reads the status block of a process; `None` when its library has none.
pub fn read(found: &Found) -> Result<Option<Box<Status>>> {
    try_to_read(found, TRIES)
}

/// [`read`] that gives up soon.
pub fn glance(found: &Found) -> Result<Option<Box<Status>>> {
    try_to_read(found, TRIES_OF_A_GLANCE)
}

fn try_to_read(found: &Found, tries: u32) -> Result<Option<Box<Status>>> {
    let Some(address) = found.library.image.status else {
        return Ok(None);
    };
    let address = address.wrapping_add(found.bias);
    let mut memory = Memory::of(found.pid);
    let once = |memory: &mut Memory| {
        read_once(memory, address)
            .with_context(|| format!("cannot read the memory of process {}", found.pid))
    };
    for _ in 1..tries {
        match once(&mut memory)? {
            Err(ReadError::Torn) => std::thread::sleep(BETWEEN),
            other => return Ok(Some(other?)),
        }
    }
    Ok(Some(once(&mut memory)??))
}

fn read_once(memory: &mut Memory, address: u64) -> io::Result<Result<Box<Status>, ReadError>> {
    let mut bytes = vec![0; size_of::<Status>()];
    let n = memory.read_at(&mut bytes, address)?;
    let status = status::parse(&bytes[..n]);
    // A writer may have come while it was copied. Of a process that is gone by now it is the last there is.
    let (mut now, at) = ([0; 4], address.wrapping_add(status::SEQUENCE));
    if let Ok(copy) = &status
        && memory.read_exact_at(&mut now, at).is_ok()
        && u32::from_le_bytes(now) != copy.text_seq.load(Ordering::Relaxed)
    {
        return Ok(Err(ReadError::Torn));
    }
    Ok(status)
}

/// The probes somebody listens to in this process, with the number of attachments.
pub fn semaphores(found: &Found) -> Result<Vec<(&'static str, u16)>> {
    let mut memory = Memory::of(found.pid);
    let mut raised = Vec::new();
    for probe in probe::ALL {
        let Some(note) = found.library.image.note(PROVIDER, probe.name) else {
            continue;
        };
        if note.semaphore == 0 {
            continue;
        }
        let mut value = [0; 2];
        memory
            .read_exact_at(&mut value, note.semaphore.wrapping_add(found.bias))
            .with_context(|| format!("cannot read the memory of process {}", found.pid))?;
        let value = u16::from_le_bytes(value);
        if value != 0 {
            raised.push((probe.name, value));
        }
    }
    Ok(raised)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A block across two pages, which are copied one after the other.
    #[repr(C, align(4096))]
    struct Across([u8; 4096 - 64], Status);

    #[test]
    fn a_copy_is_of_one_moment() {
        const COPIES: usize = 100_000;
        let (across, over) = (Across([0; _], Status::new()), AtomicBool::new(false));
        let status = &across.1;
        let set = |state: u32| {
            status.set_together(|| {
                status.state.store(state, Ordering::Relaxed);
                status.reason.store(&state.to_string().repeat(100));
            });
        };
        set(1);
        let mut memory = Memory::of(std::process::id());
        let (whole, mixed) = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for state in [2, 1] {
                        set(state);
                        for _ in 0..200 {
                            std::hint::spin_loop();
                        }
                    }
                }
            });
            let address = (&raw const *status) as u64;
            // No panic before the writer is told that it is over.
            let copies = std::iter::repeat_with(|| read_once(&mut memory, address));
            let (mut whole, mut mixed) = (0, 0);
            for copy in copies.take(COPIES).flatten().flatten() {
                whole += 1;
                let state = copy.state.load(Ordering::Relaxed).to_string();
                mixed += usize::from(copy.reason.load() != state.repeat(100));
            }
            over.store(true, Ordering::Relaxed);
            (whole, mixed)
        });
        assert!(whole > 0 && across.0[0] == 0);
        assert_eq!(mixed, 0, "of {whole}");
    }
}
