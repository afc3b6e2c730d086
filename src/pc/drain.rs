//! Fetching records from CUPTI and handing them to the probe.

use std::ffi::c_void;
use std::mem::size_of;

use parcagpu_abi::pc_sample::{PcSample, STALL_REASON_SLOTS, StallReason};
use parcagpu_abi::probe::BATCH_MAX;
use parcagpu_abi::status::Counter;

use super::api::Functions;
use super::sys::Data;
use crate::cubin::registry;
use crate::cupti::call::CuptiError;
use crate::cupti::sys::CUcontext;
use crate::probes::{self, touch};
use crate::status;

/// Records that are fetched at once.
const AT_ONCE: usize = 1024;
/// Most calls for one context in one turn: beyond, CUPTI keeps the rest for the next.
const CALLS_MAX: usize = 64;

/// Memory that CUPTI fills: records of 64 bytes, each with room for every stall reason.
///
/// Everything is on the heap, and stays where it is while CUPTI knows it.
pub struct Records {
    data: Box<Data>,
    pcs: Box<[PcSample]>,
    reasons: Box<[StallReason]>,
    slots: usize,
}

// SAFETY: the pointers lead to the boxes of the same struct, or to names that are CUPTI's.
unsafe impl Send for Records {}

impl Records {
    /// Room for `capacity` records with `slots` stall reasons, 64 at least.
    pub fn new(capacity: usize, slots: usize) -> Self {
        let slots = slots.max(STALL_REASON_SLOTS);
        let mut records = Self {
            data: Box::new(Data {
                size: size_of::<Data>(),
                capacity,
                total_samples: 0,
                dropped_samples: 0,
                len: 0,
                remaining: 0,
                range: 0,
                pcs: std::ptr::null_mut(),
                foreign_samples: 0,
                buffer_full: 0,
            }),
            pcs: vec![
                PcSample {
                    size: size_of::<PcSample>() as u64,
                    cubin_crc: 0,
                    pc_offset: 0,
                    function_index: 0,
                    pad: 0,
                    function_name: std::ptr::null(),
                    stall_reason_count: 0,
                    stall_reasons: std::ptr::null(),
                    correlation_id: 0,
                    padding: 0,
                };
                capacity
            ]
            .into_boxed_slice(),
            // Pages that no record needs are never touched.
            // SAFETY: a stall reason is two integers, for which zeroes are good.
            reasons: unsafe { Box::new_zeroed_slice(capacity * slots).assume_init() },
            slots,
        };
        for (pc, reasons) in records.pcs.iter_mut().zip(records.reasons.chunks(slots)) {
            pc.stall_reasons = reasons.as_ptr();
        }
        records.data.pcs = records.pcs.as_mut_ptr();
        records
    }

    /// The struct that CUPTI fills, without records.
    pub fn empty(&mut self) -> &mut Data {
        let data = &mut *self.data;
        data.total_samples = 0;
        data.dropped_samples = 0;
        data.foreign_samples = 0;
        data.len = 0;
        data.remaining = 0;
        data.buffer_full = 0;
        data
    }

    fn len(&self) -> usize {
        self.data.len.min(self.pcs.len())
    }

    /// Puts what CUPTI wrote into the form that consumers read: reasons without samples or without a name go,
    /// and what is left of the 64 entries is zero. Ids below `known` were never announced and go as well. Gives
    /// the number of (PC, reason) pairs.
    fn tidy(&mut self, known: u32) -> u64 {
        let mut pairs = 0;
        let len = self.len();
        let slots = self.slots;
        for (pc, reasons) in self.pcs[..len]
            .iter_mut()
            .zip(self.reasons.chunks_mut(slots))
        {
            let given = (pc.stall_reason_count as usize).min(slots);
            let mut kept = 0;
            for i in 0..given {
                let reason = reasons[i];
                // An index past the table has no name.
                if reason.samples != 0 && (reason.index as usize) < STALL_REASON_SLOTS {
                    reasons[kept] = reason;
                    kept += 1;
                }
            }
            if pc.correlation_id < known {
                pc.correlation_id = 0;
            }
            reasons[kept.min(STALL_REASON_SLOTS)..].fill(StallReason::default());
            kept = kept.min(STALL_REASON_SLOTS);
            pairs += kept as u64;
            pc.stall_reason_count = kept as u64;
            pc.stall_reasons = reasons.as_ptr();
        }
        pairs
    }

    /// Fires the records; those without a reason left say nothing.
    fn fire(&self) {
        if !probes::pc_sample_batch::enabled() {
            return;
        }
        let mut told = self.pcs[..self.len()]
            .iter()
            .filter(|pc| pc.stall_reason_count > 0)
            .peekable();
        while told.peek().is_some() {
            let mut batch = [std::ptr::null::<c_void>(); BATCH_MAX];
            let mut len = 0;
            for (place, pc) in batch.iter_mut().zip(&mut told) {
                // SAFETY: a record of ours, 64 reasons of ours, and a name of CUPTI's.
                unsafe {
                    touch::bytes(pc, size_of::<PcSample>());
                    touch::bytes(
                        pc.stall_reasons,
                        STALL_REASON_SLOTS * size_of::<StallReason>(),
                    );
                    touch::string(pc.function_name);
                }
                *place = std::ptr::from_ref(pc).cast();
                len += 1;
            }
            // SAFETY: the array is on this stack.
            unsafe { touch::bytes(batch.as_ptr(), size_of_val(&batch)) };
            probes::pc_sample_batch::fire(batch.as_ptr(), len);
        }
    }
}

impl std::ops::AddAssign for Brought {
    fn add_assign(&mut self, other: Self) {
        self.pairs += other.pairs;
        self.samples += other.samples;
        self.total += other.total;
    }
}

/// What a turn brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// (PC, stall reason) pairs that were delivered.
    pub pairs: u64,
    /// Samples of the program's code.
    pub samples: u64,
    /// All samples, also those of code that is not the program's and lost ones.
    pub total: u64,
}

/// The memory for draining; used by one thread at a time.
#[derive(Default)]
pub struct Drain {
    records: Option<Records>,
}

impl Drain {
    /// Fetches what a context has; fires it if `deliver`, else drops it. `slots`: stall reasons there are; `known`:
    /// the lowest id that was announced.
    pub fn turn(
        &mut self,
        functions: &Functions,
        context: CUcontext,
        slots: usize,
        known: u32,
        deliver: bool,
    ) -> Result<Brought, CuptiError> {
        if self.records.as_ref().is_none_or(|r| r.slots < slots) {
            self.records = Some(Records::new(AT_ONCE, slots));
        }
        let Some(records) = &mut self.records else {
            return Ok(Brought::default());
        };
        let mut brought = Brought::default();
        for _ in 0..CALLS_MAX {
            let data = records.empty();
            // SAFETY: `Records` says the room it has.
            let outcome = unsafe { functions.get_data(context, data) };
            let remaining = data.remaining;
            settle(records, known, deliver, &mut brought);
            outcome?;
            if remaining == 0 {
                break;
            }
        }
        Ok(brought)
    }

    /// The same for records that CUPTI left behind when sampling of a context ended.
    pub fn left_behind(&self, mut records: Records, known: u32, deliver: bool) -> Brought {
        let mut brought = Brought::default();
        settle(&mut records, known, deliver, &mut brought);
        brought
    }
}

/// Delivers or drops what is in `records`, and counts it.
///
/// Names are not freed, although CUPTI's documentation leaves them to the client: records of later calls point
/// to the same memory (384 of 386 names had been met before, measured with CUDA 13.0), so there is one for each
/// function of the process at most, and nobody can tell when the last record with it was seen.
fn settle(records: &mut Records, known: u32, deliver: bool, brought: &mut Brought) {
    let block = status::block();
    let data = &records.data;
    let others = data.foreign_samples + data.dropped_samples;
    let samples = data.total_samples.saturating_sub(others);
    let (total, dropped) = (data.total_samples, data.dropped_samples);
    if data.buffer_full != 0 {
        block.add(Counter::PcBufferFull, 1);
    }
    brought.total += total;
    brought.samples += samples;
    if deliver {
        let pairs = records.tidy(known);
        if probes::cubin_loaded::enabled() {
            registry::look_for(records.pcs[..records.len()].iter().map(|pc| pc.cubin_crc));
        }
        records.fire();
        brought.pairs += pairs;
        block.add(Counter::PcSamples, samples);
        block.add(Counter::PcPairs, pairs);
        block.add(Counter::PcDropped, dropped);
    }
    records.data.len = 0;
}

#[cfg(test)]
mod tests {
    use super::{Records, STALL_REASON_SLOTS, StallReason};

    fn write(records: &mut Records, at: usize, reasons: &[(u32, u32)]) {
        records.data.len = records.data.len.max(at + 1);
        records.pcs[at].stall_reason_count = reasons.len() as u64;
        for (i, (index, samples)) in reasons.iter().enumerate() {
            records.reasons[at * records.slots + i] = StallReason {
                index: *index,
                samples: *samples,
            };
        }
    }

    #[test]
    fn reasons_without_samples_or_name_go_and_the_rest_is_zero() {
        let mut records = Records::new(4, 40);
        assert_eq!(records.slots, STALL_REASON_SLOTS);
        write(&mut records, 0, &[(1, 0), (2, 5), (64, 9), (3, 7)]);
        write(&mut records, 1, &[]);
        assert_eq!(records.tidy(0), 2);
        assert_eq!(records.pcs[0].stall_reason_count, 2);
        let first = &records.reasons[..STALL_REASON_SLOTS];
        assert_eq!((first[0].index, first[0].samples), (2, 5));
        assert_eq!((first[1].index, first[1].samples), (3, 7));
        assert!(first[2..].iter().all(|r| *r == StallReason::default()));
        assert_eq!(records.pcs[1].stall_reason_count, 0);
    }

    #[test]
    fn more_reasons_than_slots_are_cut() {
        let mut records = Records::new(1, 100);
        let many: Vec<(u32, u32)> = (0..100).map(|i| (i % 64, 1)).collect();
        write(&mut records, 0, &many);
        assert_eq!(records.tidy(0), 64);
        assert_eq!(records.pcs[0].stall_reason_count, 64);
        // A count that goes past the memory is not believed.
        records.pcs[0].stall_reason_count = u64::MAX;
        assert_eq!(records.tidy(0), 64);
    }
}
