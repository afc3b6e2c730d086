//! Reads what other processes publish about themselves: status block and semaphores.

use std::io;
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
    Ok(status::parse(&bytes[..n]))
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
