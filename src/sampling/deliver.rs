//! Kernel records on their way to the probes.
//!
//! Records are gathered by up to 128 and fired as one `activity_batch`; `kernel_executed` carries the
//! same ones singly. A [`Batch`] lives on the stack of the thread that walks a buffer and borrows the
//! records, so nothing is copied.

use std::ffi::c_void;
use std::mem::size_of;

use parcagpu_abi::kernel::KernelRecord;
use parcagpu_abi::probe::BATCH_MAX;
use parcagpu_abi::status::{Counter, UNKNOWN};

use crate::probes::{self, touch};
use crate::status;

/// Records to be fired together.
pub struct Batch {
    records: [*const c_void; BATCH_MAX],
    len: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self {
            records: [std::ptr::null(); BATCH_MAX],
            len: 0,
        }
    }

    /// Adds a record; fires when the batch is full.
    ///
    /// # Safety
    /// `record` points to a kernel record that stays readable until the batch is fired or dropped;
    /// its name is null or a terminated string.
    pub unsafe fn push(&mut self, record: *const KernelRecord) {
        self.records[self.len] = record.cast();
        self.len += 1;
        if self.len == BATCH_MAX {
            self.fire();
        }
    }

    /// Fires what is gathered.
    pub fn fire(&mut self) {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return;
        }
        status::block().add(Counter::RecordsMatched, len as u64);
        let (batch, single) = (
            probes::activity_batch::enabled(),
            probes::kernel_executed::enabled(),
        );
        if !batch && !single {
            return;
        }
        let records = &self.records[..len];
        for record in records {
            let record = record.cast::<KernelRecord>();
            // SAFETY: by the promise of `push` the record and its name are readable.
            unsafe {
                touch::bytes(record, size_of::<KernelRecord>());
                touch::string((*record).name);
            }
        }
        if batch {
            // SAFETY: the slice is readable.
            unsafe { touch::bytes(records.as_ptr(), size_of_val(records)) };
            probes::activity_batch::fire(records.as_ptr(), len as u32);
        }
        if single {
            for record in records {
                // SAFETY: by the promise of `push`.
                fire_single(unsafe { &*record.cast::<KernelRecord>() });
            }
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// A batch of nothing, at the end of a process whose last flush brought no record: consumers take the last figures of
/// the status block with an event, and this is one.
pub fn last_word() {
    static NOTHING: [usize; 1] = [0];
    let counts = [Counter::EagerSeen, Counter::GraphSeen].map(|c| status::block().get(c));
    if counts.iter().any(|n| (1..UNKNOWN).contains(n)) && probes::activity_batch::enabled() {
        probes::activity_batch::fire((&raw const NOTHING).cast(), 0);
    }
}

fn fire_single(record: &KernelRecord) {
    let name = if record.name.is_null() {
        c"".as_ptr()
    } else {
        record.name
    };
    probes::kernel_executed::fire(
        record.start,
        record.end,
        record.correlation_id,
        record.device_id,
        record.stream_id,
        record.graph_id,
        record.graph_node_id,
        name,
    );
}
