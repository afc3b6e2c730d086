//! Reads what other processes publish about themselves: status block and semaphores.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result};
use parcagpu_abi::probe::{self, PROVIDER};
use parcagpu_abi::status::{self, ReadError, Status};

use crate::discover::Found;

/// A writer holds a text for far less than this in all.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(1);

/// Reads the status block of a process; `None` when its library has none.
pub fn read(found: &Found) -> Result<Option<Box<Status>>> {
    let Some(address) = found.library.image.status else {
        return Ok(None);
    };
    let address = address.wrapping_add(found.bias);
    let memory = open(found.pid)?;
    for _ in 1..TRIES {
        match read_once(&memory, address)? {
            Err(ReadError::Torn) => std::thread::sleep(BETWEEN),
            other => return Ok(Some(other?)),
        }
    }
    Ok(Some(read_once(&memory, address)??))
}

fn open(pid: u32) -> Result<File> {
    File::open(format!("/proc/{pid}/mem"))
        .with_context(|| format!("cannot read the memory of process {pid}"))
}

fn read_once(memory: &File, address: u64) -> io::Result<Result<Box<Status>, ReadError>> {
    let mut bytes = vec![0; size_of::<Status>()];
    let n = memory.read_at(&mut bytes, address)?;
    Ok(status::parse(&bytes[..n]))
}

/// The probes somebody listens to in this process, with the number of attachments.
pub fn semaphores(found: &Found) -> Result<Vec<(&'static str, u16)>> {
    let memory = open(found.pid)?;
    let mut raised = Vec::new();
    for probe in probe::ALL {
        let Some(note) = found.library.image.note(PROVIDER, probe.name) else {
            continue;
        };
        if note.semaphore == 0 {
            continue;
        }
        let mut value = [0; 2];
        memory.read_exact_at(&mut value, note.semaphore.wrapping_add(found.bias))?;
        let value = u16::from_le_bytes(value);
        if value != 0 {
            raised.push((probe.name, value));
        }
    }
    Ok(raised)
}
