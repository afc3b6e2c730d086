//! Notices that sampled launches get no kernel records at all.
//!
//! An old CUPTI on a new GPU lets every call succeed and delivers nothing. That must not look like a
//! program without kernels.

use parcagpu_abi::status::Counter;

use crate::errors;
use crate::session::Session;
use crate::status;

const SECOND: u64 = 1_000_000_000;
/// Sampled launches from which silence means something.
const ENOUGH: u64 = 20;
/// Silence that is told when CUPTI never asked for a buffer, ns.
const NO_BUFFER: u64 = 3 * SECOND;
/// Silence that is told when CUPTI holds a buffer: a kernel that runs holds it back, ns.
const HELD_BACK: u64 = 60 * SECOND;

/// One look at it per tick.
#[derive(Debug)]
pub struct Silence {
    since: u64,
    told: bool,
}

impl Silence {
    /// At the start of an active period; `now` is `CLOCK_MONOTONIC` ns.
    pub fn new(now: u64) -> Self {
        Self {
            since: now,
            told: false,
        }
    }

    /// Tells once, by an `error` event.
    pub fn look(&mut self, session: &Session, now: u64) {
        let block = status::block();
        let announced = block.get(Counter::EagerSampled) + block.get(Counter::GraphSampled);
        if self.told || block.get(Counter::RecordsReceived) > 0 {
            self.told = true;
            return;
        }
        if announced < ENOUGH {
            self.since = now;
            return;
        }
        let held = session.pool.outstanding() > 0;
        let limit = if held { HELD_BACK } else { NO_BUFFER };
        if now - self.since < limit {
            return;
        }
        self.told = true;
        let Some(api) = session.api() else {
            return;
        };
        let why = if held {
            "a kernel that does not end, or a CUPTI that does not support this GPU or driver"
        } else {
            "this CUPTI does not support this GPU or driver"
        };
        errors::report(
            0,
            "cupti",
            &format!(
                "{announced} launches were sampled and no kernel record came: {why} ({}, version {})",
                api.path.display(),
                api.version
            ),
        );
    }
}
