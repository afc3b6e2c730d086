//! Records of samples, in the client's buffer.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::{INVALID_OPERATION, OUT_OF_MEMORY, SUCCESS, driver};
use crate::pc_contexts::{Contexts, DATA_BUFFER};
use crate::pc_samples::Counts;
use crate::pc_sys::{PcData, SamplingData};
use crate::stall_reasons::REASONS;
use crate::{pc_script, settings};

/// Bytes from one record of the client's to the next.
fn record_size() -> usize {
    if settings::get().version < 22 { 56 } else { 64 }
}

fn clear(data: &mut SamplingData, full: bool) {
    (data.total_samples, data.dropped_samples) = (0, 0);
    (data.total_pcs, data.remaining_pcs) = (0, 0);
    data.foreign_samples = 0;
    if data.size >= size_of::<SamplingData>() {
        data.buffer_full = u8::from(full);
    }
}

/// Records of a context, as many as the client has room for, unless the hardware buffer is full.
///
/// # Safety
///
/// The client's buffer has passed [`fit`].
pub unsafe fn fetch(contexts: &mut Contexts, id: u32, data: &mut SamplingData) -> i32 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let full = CALLS.fetch_add(1, Ordering::Relaxed) < pc_script::get().full;
    clear(data, full);
    if full {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the caller's promise.
    unsafe { give(contexts, id, data) }
}

/// What is left when sampling of a context ends, into the buffer that the client named for it.
pub fn leave(contexts: &mut Contexts, id: u32) {
    let address = contexts
        .sampled
        .get(&id)
        .map_or(0, |sampling| sampling.attributes[DATA_BUFFER as usize]);
    let data: *mut SamplingData = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: null or the client's struct, which it leaves alone until now.
    unsafe {
        if let Some(data) = data.as_mut()
            && fit(data)
        {
            clear(data, false);
            give(contexts, id, data);
        }
    }
}

unsafe fn give(contexts: &mut Contexts, id: u32, data: &mut SamplingData) -> i32 {
    let script = pc_script::get();
    let Some(mut sampling) = contexts.sampled.remove(&id) else {
        return INVALID_OPERATION;
    };
    sampling.pass(driver().map_or(0, |driver| (driver.now)()));
    data.range_id = sampling.range;
    while data.total_pcs < data.capacity
        && let Some((place, counts)) = sampling.samples.next()
    {
        let function = sampling.samples.function(&place);
        // SAFETY: the client's array of `capacity` records.
        unsafe {
            let record = data.pcs.byte_add(data.total_pcs * record_size());
            (*record).cubin_crc = function.checksum;
            (*record).offset = place.1;
            (*record).symbol = function.symbol;
            (*record).name = function.name.cast_mut();
            (*record).reason_count =
                reasons(&counts, sampling.wanted.as_deref(), (*record).reasons);
            if (*record).size >= size_of::<PcData>() {
                (*record).correlation_id = place.2;
            }
        }
        data.total_pcs += 1;
        data.total_samples += whole(&counts);
    }
    data.remaining_pcs = sampling.samples.places();
    if data.total_pcs > 0 {
        data.dropped_samples = script.dropped;
        data.foreign_samples = script.foreign;
        data.total_samples += script.dropped + script.foreign;
    }
    contexts.sampled.insert(id, sampling);
    SUCCESS
}

/// Samples that are no part of others.
fn whole(counts: &Counts) -> u64 {
    let whole = REASONS.iter().zip(counts).filter(|(r, _)| !r.is_part());
    whole.map(|(_, count)| u64::from(*count)).sum()
}

/// Writes the reasons of one record; how many.
unsafe fn reasons(counts: &Counts, wanted: Option<&[u32]>, to: *mut [u32; 2]) -> usize {
    let known = REASONS.iter().zip(counts).filter(|(_, count)| **count > 0);
    let mut written = 0;
    for (index, count) in known.filter_map(|(reason, count)| Some((reason.index()?, *count))) {
        if wanted.is_none_or(|wanted| wanted.contains(&index)) {
            // SAFETY: the client has room for every reason that it wants.
            unsafe { to.add(written).write([index, count]) };
            written += 1;
        }
    }
    written
}

/// Whether every record that may be filled is fit for it.
///
/// # Safety
///
/// The client's array is as long as it says.
pub unsafe fn fit(data: &SamplingData) -> bool {
    !data.pcs.is_null()
        && data.capacity > 0
        && (0..data.capacity).all(|at| {
            // SAFETY: the client's array of `capacity` records.
            let record = unsafe { &*data.pcs.byte_add(at * record_size()).cast::<[usize; 7]>() };
            record[0] == record_size() && record[6] != 0
        })
}
