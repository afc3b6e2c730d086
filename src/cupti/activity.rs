//! CUPTI's buffer callbacks: handing out buffers, and walking the records of those that come back.
//!
//! They run on any thread: CUPTI's own, ours inside a flush, or one of the program's. They take no
//! lock while they call CUPTI or fire a probe, and they serve a buffer whatever the state of the
//! session is, since CUPTI keeps buffers beyond the end of a subscription.

use std::ffi::c_void;

use parcagpu_abi::kernel::KernelRecord;
use parcagpu_abi::status::Counter;

use super::api::Api;
use super::pool::BUFFER_SIZE;
use super::sys::{
    ACTIVITY_KIND_CONCURRENT_KERNEL, ACTIVITY_KIND_KERNEL, BufferCompleteFunc, BufferRequestFunc,
    CUcontext,
};
use crate::entry::Outside;
use crate::hooks::holder;
use crate::sampling::correlation::Verdict;
use crate::sampling::deliver::Batch;
use crate::session::{self, Session};
use crate::{clock, entry, lifecycle, probes, status};

/// CUPTI asks for a buffer.
pub const REQUEST: BufferRequestFunc = request;
/// CUPTI returns a buffer.
pub const COMPLETE: BufferCompleteFunc = complete;

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let ours = entry::barrier(None, || {
        // As in `complete`.
        let session = session::get().filter(|_| !lifecycle::in_forked_child())?;
        status::block().add(Counter::BuffersRequested, 1);
        let ours = session.pool.request(clock::monotonic_ns());
        if ours.is_none() {
            status::block().add(Counter::BuffersRefused, 1);
        }
        ours
    });
    // SAFETY: CUPTI gives three places to write to. No buffer: it drops records and counts them.
    unsafe {
        *buffer = ours.unwrap_or(std::ptr::null_mut());
        *size = if ours.is_some() { BUFFER_SIZE } else { 0 };
        *max_records = 0;
    }
}

unsafe extern "C" fn complete(
    context: CUcontext,
    stream: u32,
    buffer: *mut u8,
    size: usize,
    valid: usize,
) {
    // A forked child may find our locks held by nobody, and delivers nothing of ours.
    let ours = !lifecycle::in_forked_child()
        && session::get().is_some_and(|session| session.pool.is_ours(buffer));
    if !ours {
        // A tool's own: all that CUPTI completes comes here first.
        if let Some((_, complete)) = holder::buffer_callbacks() {
            let _outside = Outside::new();
            // SAFETY: the tool's own function with CUPTI's own arguments.
            return holder::in_callback(|| unsafe {
                complete(context, stream, buffer, size, valid);
            });
        }
        status::block().add(Counter::BuffersForeign, 1);
        return;
    }
    entry::barrier((), || {
        let Some(session) = session::get() else {
            return;
        };
        // Not there once CUPTI has ended itself, which gives buffers back then.
        let api = session.api();
        // Where kernel activity cannot be switched off, records come that nobody wants.
        if let Some(api) = api
            && (!session.kernels_are_pinned() || probes::kernels_wanted())
        {
            // SAFETY: a buffer of ours that CUPTI just completed.
            unsafe { walk(session, api, buffer, valid.min(BUFFER_SIZE)) };
        }
        // Counted before it is given back, so that what is out is never understated.
        status::block().add(Counter::BuffersReturned, 1);
        session.pool.give_back(buffer);
        match api.map(|api| api.num_dropped(context, stream)) {
            Some(Ok(dropped)) => {
                status::block().add(Counter::RecordsDroppedByCupti, dropped as u64)
            }
            Some(Err(error)) => error.tell("cupti"),
            None => {}
        }
    });
}

/// Hands the kernel records of sampled launches to the probes.
///
/// # Safety
/// `buffer` is a completed buffer with `valid` bytes of records, and nobody else uses it.
unsafe fn walk(session: &Session, api: &Api, buffer: *mut u8, valid: usize) {
    let mut batch = Batch::new();
    let mut record: *mut c_void = std::ptr::null_mut();
    let (mut received, mut unmatched) = (0, 0);
    loop {
        // SAFETY: the caller's buffer, and the record this call gave last.
        match unsafe { api.next_record(buffer, valid, &mut record) } {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                error.tell("cupti");
                break;
            }
        }
        // SAFETY: every record begins with its kind.
        let kind = unsafe { record.cast::<u32>().read() };
        if kind != ACTIVITY_KIND_KERNEL && kind != ACTIVITY_KIND_CONCURRENT_KERNEL {
            continue;
        }
        received += 1;
        let kernel = record.cast::<KernelRecord>();
        // SAFETY: kernel records of every accepted version begin with these 160 bytes; records lie
        // 8-aligned in the buffer, which is ours alone.
        let kernel_ref = unsafe { &mut *kernel };
        if kernel_ref.name.is_null() {
            // Consumers read the record as it is; an empty name is one they can read.
            kernel_ref.name = c"".as_ptr();
        }
        match session.sampler.correlation.on_record(kernel_ref) {
            // SAFETY: the buffer outlives the batch, which is fired below.
            Verdict::Deliver => unsafe { batch.push(kernel) },
            Verdict::Held => {}
            Verdict::Unmatched => unmatched += 1,
        }
    }
    batch.fire();
    let block = status::block();
    block.add(Counter::RecordsReceived, received);
    block.add(Counter::RecordsUnmatched, unmatched);
}
