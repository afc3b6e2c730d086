//! What the BPF program keeps in its maps: losses, and what processes said about themselves.

use std::collections::HashMap;

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags};
use parcagpu_abi::{probe, status};

use super::{ProcessId, Session};

/// What a process said about itself when it last fired a probe.
#[derive(Debug)]
pub struct ProcessNote {
    /// Its name.
    pub comm: String,
    /// Its status block; only header, configuration and counters are sure to be there.
    pub status: Option<Box<status::Status>>,
}

/// Losses of one probe between the process and us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Events that found the ring buffer full.
    pub dropped: u64,
    /// Records whose memory could not be read.
    pub unreadable: u64,
}

impl Session {
    /// Losses per probe, by index into [`probe::ALL`].
    pub fn losses(&self) -> Result<Vec<Loss>> {
        let sum = |slot: u32| -> Result<u64> {
            let per_cpu = self
                .skel
                .maps
                .losses
                .lookup_percpu(&slot.to_le_bytes(), MapFlags::ANY)?
                .unwrap_or_default();
            Ok(per_cpu
                .iter()
                .filter_map(|v| Some(u64::from_le_bytes(v.get(..8)?.try_into().ok()?)))
                .sum())
        };
        (0..u32::try_from(probe::ALL.len())?)
            .map(|i| {
                Ok(Loss {
                    dropped: sum(2 * i)?,
                    unreadable: sum(2 * i + 1)?,
                })
            })
            .collect()
    }

    /// Events whose bytes were not understood.
    pub fn undecodable(&self) -> u64 {
        *self.undecodable.borrow()
    }

    /// What processes said when they last fired `cuda_correlation`, `activity_batch` or `error`.
    pub fn processes(&self) -> HashMap<ProcessId, ProcessNote> {
        let map = &self.skel.maps.processes;
        map.keys()
            .filter_map(|key| {
                let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
                Some((process_id(&key)?, process_note(&value)?))
            })
            .collect()
    }
}

fn process_id(key: &[u8]) -> Option<ProcessId> {
    Some(ProcessId {
        start_ns: u64::from_le_bytes(key.get(..8)?.try_into().ok()?),
        pid: u32::from_le_bytes(key.get(8..12)?.try_into().ok()?),
    })
}

fn process_note(value: &[u8]) -> Option<ProcessNote> {
    let comm = value.get(..16)?;
    let end = comm.iter().position(|b| *b == 0).unwrap_or(16);
    let mut block = value.get(16..)?.to_vec();
    // Texts and counters are read at different times, so the sequence number of the texts says
    // nothing about this copy; a torn text is possible and only ever shown.
    if let Some(sequence) = block.get_mut(16..20) {
        sequence.fill(0);
    }
    Some(ProcessNote {
        comm: String::from_utf8_lossy(&comm[..end]).into_owned(),
        status: status::parse(&block).ok(),
    })
}
