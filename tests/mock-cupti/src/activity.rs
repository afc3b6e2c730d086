//! Kernel records and the client's buffers.
//!
//! The simulated driver knows a kernel's times when it is launched, so a record is written at once
//! and its buffer remembers when the last kernel in it ends. A buffer goes back to the client when
//! it is full and complete (from CUPTI's own thread), or by a flush (from the flushing thread);
//! one running kernel holds its whole buffer back, and a forced flush takes its times away for good.
//! Buffers and records outlive disabling and unsubscribing: they go to whoever's callback is
//! registered when they are complete.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock};
use std::time::Duration;

use crate::api::{
    INVALID_KIND, INVALID_PARAMETER, MAX_LIMIT_REACHED, NOT_COMPATIBLE, SIZE_NOT_SUFFICIENT,
    SUCCESS, call_client, driver, in_callback,
};
use crate::callbacks::TOOL;
use crate::cupti_api;
use crate::link::{ApiCall, KernelRun};
use crate::record::{self, KernelRecord};
use crate::settings;

/// `CUpti_BuffersCallbackRequestFunc`.
pub type Request = Option<unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize)>;
/// `CUpti_BuffersCallbackCompleteFunc`.
pub type Complete = Option<unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize)>;

const KIND_KERNEL: u32 = 3;
const KIND_CONCURRENT_KERNEL: u32 = 10;
const KIND_GRAPH_TRACE: u32 = 51;
/// First number that is no kind in CUDA 13.0.
const KINDS: u32 = 56;
const ATTRIBUTE_PER_THREAD: u32 = 9;
const FLUSH_FORCED: u32 = 1;

/// A buffer of the client's, in our hands.
struct Buffer {
    memory: *mut u8,
    size: usize,
    limit: usize,
    records: usize,
    /// When the last kernel in it ends.
    complete_at: u64,
}

// SAFETY: the memory is ours until the completion callback gives it back, whichever thread calls it.
unsafe impl Send for Buffer {}

type Slot = Arc<Mutex<Option<Buffer>>>;

/// Every slot that may hold a buffer being filled: one per thread, or one in all.
static SLOTS: Mutex<Vec<Slot>> = Mutex::new(Vec::new());
/// Buffers that take no more records.
static CLOSED: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());
static CLOSED_CHANGED: Condvar = Condvar::new();
static CLIENT: Mutex<(Request, Complete)> = Mutex::new((None, None));
static DROPPED: AtomicUsize = AtomicUsize::new(0);
static PER_THREAD: AtomicU8 = AtomicU8::new(1);
static LATENCY: AtomicU8 = AtomicU8::new(0);
static ENABLED: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A thread's own slot. When the thread ends, CUPTI returns its buffer (measured).
struct OwnSlot(Slot);

impl Drop for OwnSlot {
    fn drop(&mut self) {
        let last = self.0.lock().expect("nobody panics holding it").take();
        if let Some(buffer) = last {
            close(buffer);
        }
    }
}

thread_local! {
    static OWN: OnceCell<OwnSlot> = const { OnceCell::new() };
}

/// The slot of all threads, without a buffer per thread.
static SHARED: OnceLock<Slot> = OnceLock::new();

fn slots() -> std::sync::MutexGuard<'static, Vec<Slot>> {
    SLOTS.lock().expect("nobody panics holding it")
}

fn new_slot() -> Slot {
    let slot = Slot::default();
    slots().push(Arc::clone(&slot));
    slot
}

fn slot() -> Slot {
    let own = (PER_THREAD.load(Ordering::Relaxed) != 0)
        .then(|| {
            OWN.try_with(|own| Arc::clone(&own.get_or_init(|| OwnSlot(new_slot())).0))
                .ok()
        })
        .flatten();
    // A thread whose thread-local storage is gone shares, too.
    own.unwrap_or_else(|| Arc::clone(SHARED.get_or_init(new_slot)))
}

/// Kernels that a launch put on the GPU while activity was on.
pub unsafe extern "C" fn kernels(call: *mut ApiCall, runs: *const KernelRun, count: usize) {
    // SAFETY: the driver's call and array, alive through this call.
    let (call, runs) = unsafe {
        (TOOL.correlate)(call);
        (&*call, std::slice::from_raw_parts(runs, count))
    };
    let Some(driver) = driver() else { return };
    let kind = driver.kernel_activity.load(Ordering::Acquire);
    let script = &settings::get().records;
    if kind == 0 || script.none {
        return;
    }
    for run in runs {
        let number = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = |every: u64| every != 0 && number.is_multiple_of(every);
        if hit(script.withhold) {
            continue;
        }
        let mut record = record::kernel(kind, call.correlation_id, run);
        if hit(script.zero_times) {
            (record.start, record.end, record.completed) = (0, 0, 0);
        }
        if LATENCY.load(Ordering::Relaxed) != 0 {
            let now = (driver.now)();
            (record.queued, record.submitted) = (now, now);
        }
        for _ in 0..1 + u32::from(hit(script.duplicate)) {
            store(&record, run.end);
        }
    }
}

fn store(record: &KernelRecord, complete_at: u64) {
    let size = settings::get().record_size;
    let slot = slot();
    loop {
        let full = {
            let mut current = slot.lock().expect("nobody panics holding it");
            match &mut *current {
                Some(buffer) if buffer.records < buffer.limit => {
                    // SAFETY: the buffer has room for one more record of `size` bytes.
                    unsafe {
                        record::write(buffer.memory.add(buffer.records * size), record, size)
                    };
                    buffer.records += 1;
                    buffer.complete_at = buffer.complete_at.max(complete_at);
                    return;
                }
                full => full.take(),
            }
        };
        // The client's callbacks run without locks of ours.
        if let Some(full) = full {
            close(full);
        }
        let Some(buffer) = request(size) else {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut current = slot.lock().expect("nobody panics holding it");
        if current.is_none() {
            *current = Some(buffer);
        } else {
            drop(current);
            close(buffer);
        }
    }
}

fn request(record_size: usize) -> Option<Buffer> {
    let request = CLIENT.lock().expect("nobody panics holding it").0?;
    let (mut memory, mut size, mut limit) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: the client's function; out-pointers to our locals.
    call_client(|| unsafe { request(&raw mut memory, &raw mut size, &raw mut limit) });
    if memory.is_null() {
        return None;
    }
    let fit = size / record_size;
    let cap = |fit: usize, cap: usize| if cap == 0 { fit } else { fit.min(cap) };
    let limit = cap(cap(fit, limit), settings::get().buffer_records);
    let buffer = Buffer {
        memory,
        size,
        limit,
        records: 0,
        complete_at: 0,
    };
    if limit == 0 || !memory.addr().is_multiple_of(8) {
        complete(buffer);
        return None;
    }
    Some(buffer)
}

/// Gives a buffer back to the client.
fn complete(buffer: Buffer) {
    let complete = CLIENT.lock().expect("nobody panics holding it").1;
    if let Some(complete) = complete {
        let valid = buffer.records * settings::get().record_size;
        // SAFETY: the client's function and memory.
        call_client(|| unsafe {
            complete(std::ptr::null_mut(), 0, buffer.memory, buffer.size, valid);
        });
    }
}

/// Leaves a buffer to CUPTI's thread.
fn close(buffer: Buffer) {
    static WORKER: Once = Once::new();
    CLOSED
        .lock()
        .expect("nobody panics holding it")
        .push(buffer);
    CLOSED_CHANGED.notify_all();
    WORKER.call_once(|| {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are initialised by the calls before they are used. The new thread
        // inherits the mask: the program's signals are not for it.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let started = std::thread::Builder::new()
                .name("cupti-worker".to_owned())
                .spawn(work);
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
            if started.is_err() {
                eprintln!("simulated CUPTI: no worker thread");
            }
        }
    });
}

fn work() {
    let Some(driver) = driver() else { return };
    let mut closed = CLOSED.lock().expect("nobody panics holding it");
    loop {
        let now = (driver.now)();
        if let Some(at) = closed.iter().position(|buffer| buffer.complete_at <= now) {
            let buffer = closed.remove(at);
            drop(closed);
            complete(buffer);
            closed = CLOSED.lock().expect("nobody panics holding it");
            continue;
        }
        let next = closed
            .iter()
            .map(|buffer| buffer.complete_at - now)
            .min()
            .unwrap_or(1_000_000_000);
        closed = CLOSED_CHANGED
            .wait_timeout(closed, Duration::from_nanos(next))
            .expect("nobody panics holding it")
            .0;
    }
}

/// Delivers what is complete, or everything.
pub fn flush(forced: bool) {
    let Some(driver) = driver() else { return };
    let now = (driver.now)();
    let mut ready = Vec::new();
    {
        let mut closed = CLOSED.lock().expect("nobody panics holding it");
        let (due, waiting) = closed
            .drain(..)
            .partition(|buffer| forced || buffer.complete_at <= now);
        ready.extend::<Vec<_>>(due);
        *closed = waiting;
    }
    let mut held_back = Vec::new();
    // Measured: once a buffer per thread is asked for, the shared one is not looked at any more.
    let per_thread = PER_THREAD.load(Ordering::Relaxed) != 0;
    let forgotten =
        |slot: &Slot| per_thread && SHARED.get().is_some_and(|shared| Arc::ptr_eq(shared, slot));
    slots().retain(|slot| {
        if forgotten(slot) {
            return true;
        }
        let mut current = slot.lock().expect("nobody panics holding it");
        match &*current {
            Some(buffer) if forced || buffer.complete_at <= now => ready.extend(current.take()),
            // Measured: with a buffer per thread, each flush beside a long kernel leaves one more
            // buffer outstanding; with a shared one there is only that one.
            Some(_) if per_thread => held_back.extend(current.take()),
            _ => {}
        }
        let empty = current.is_none();
        drop(current);
        // Slots of threads that ended have no other owner.
        Arc::strong_count(slot) > 1 || !empty
    });
    held_back.into_iter().for_each(close);
    for buffer in ready {
        if buffer.complete_at > now {
            // SAFETY: our own records in the client's memory.
            unsafe {
                record::forget_running(
                    buffer.memory,
                    buffer.records,
                    settings::get().record_size,
                    now,
                )
            };
        }
        complete(buffer);
    }
}

/// At process end: complete buffers, from a thread of ours.
pub fn flush_at_exit() {
    if let Ok(thread) = std::thread::Builder::new().spawn(|| flush(false)) {
        let _ = thread.join();
    }
}

fn enable(kind: u32, on: bool) -> i32 {
    if !(1..KINDS).contains(&kind) {
        return if on { NOT_COMPATIBLE } else { SUCCESS };
    }
    let Some(driver) = driver() else {
        return SUCCESS;
    };
    if kind == KIND_GRAPH_TRACE && on && driver.graphs_instantiated.load(Ordering::Relaxed) > 0 {
        // Measured on hardware: the process dies.
        eprintln!("simulated CUPTI: GRAPH_TRACE enabled after graphs were instantiated");
        std::process::abort();
    }
    let bit = match kind {
        KIND_KERNEL => 1,
        KIND_CONCURRENT_KERNEL => 2,
        _ => return SUCCESS,
    };
    // Measured: beside PC sampling, kernel activity goes on if it was on, and cannot be turned on.
    let is_on = ENABLED.load(Ordering::Acquire) & bit != 0;
    if on && !is_on && driver.pc_sampling.load(Ordering::Acquire) > 0 {
        return NOT_COMPATIBLE;
    }
    let enabled = if on {
        ENABLED.fetch_or(bit, Ordering::AcqRel) | bit
    } else {
        ENABLED.fetch_and(!bit, Ordering::AcqRel) & !bit
    };
    let kind = match enabled {
        0 => 0,
        1 => KIND_KERNEL,
        _ => KIND_CONCURRENT_KERNEL,
    };
    driver.kernel_activity.store(kind, Ordering::Release);
    SUCCESS
}

/// Kernel activity off, for `cuptiFinalize`.
pub fn disable_all() {
    enable(KIND_KERNEL, false);
    enable(KIND_CONCURRENT_KERNEL, false);
}

/// Values of attributes 0..=10: size in bytes and default.
static ATTRIBUTES: Mutex<[(usize, u64); 11]> = Mutex::new([
    (8, 3_200_000),
    (8, 8_388_608),
    (8, 250),
    (8, 25_000),
    (8, 250),
    (1, 0),
    (8, 3),
    (8, 3),
    (1, 0),
    (1, 1),
    (8, 16_777_216),
]);

unsafe fn attribute(which: u32, size: *mut usize, value: *mut c_void, store: bool) -> i32 {
    let mut attributes = ATTRIBUTES.lock().expect("nobody panics holding it");
    let Some((room, current)) = attributes.get_mut(which as usize) else {
        return INVALID_PARAMETER;
    };
    if size.is_null() || value.is_null() {
        return INVALID_PARAMETER;
    }
    // SAFETY: the client's size, and room for as many bytes.
    unsafe {
        if *size < *room {
            return SIZE_NOT_SUFFICIENT;
        }
        *size = *room;
        if store {
            let mut bytes = [0; 8];
            std::ptr::copy_nonoverlapping(value.cast(), bytes.as_mut_ptr(), *room);
            *current = u64::from_le_bytes(bytes);
            if which == ATTRIBUTE_PER_THREAD {
                PER_THREAD.store(bytes[0], Ordering::Relaxed);
            }
        } else {
            std::ptr::copy_nonoverlapping(current.to_le_bytes().as_ptr(), value.cast(), *room);
        }
    }
    SUCCESS
}

cupti_api! {
    /// Names the client's buffer callbacks; the last registration counts.
    fn cuptiActivityRegisterCallbacks[driverless](request: Request, complete: Complete) {
        if request.is_none() || complete.is_none() {
            return INVALID_PARAMETER;
        }
        *CLIENT.lock().expect("nobody panics holding it") = (request, complete);
        SUCCESS
    }

    /// Turns a kind of records on.
    fn cuptiActivityEnable(kind: u32) { enable(kind, true) }

    /// Turns a kind of records off.
    fn cuptiActivityDisable(kind: u32) { enable(kind, false) }

    /// As `cuptiActivityEnable`; contexts are not told apart.
    fn cuptiActivityEnableContext(context: *mut c_void, kind: u32) {
        if context.is_null() { INVALID_PARAMETER } else { enable(kind, true) }
    }

    /// As `cuptiActivityDisable`; contexts are not told apart.
    fn cuptiActivityDisableContext(context: *mut c_void, kind: u32) {
        if context.is_null() { INVALID_PARAMETER } else { enable(kind, false) }
    }

    /// Walks a buffer.
    fn cuptiActivityGetNextRecord[driverless](buffer: *mut u8, valid: usize, record: *mut *mut u8) {
        if buffer.is_null() || record.is_null() {
            return INVALID_PARAMETER;
        }
        let size = settings::get().record_size;
        unsafe {
            let next = if (*record).is_null() { buffer } else { (*record).add(size) };
            let offset = next.addr().wrapping_sub(buffer.addr());
            if offset >= valid || valid - offset < size {
                return MAX_LIMIT_REACHED;
            }
            if !matches!(next.cast::<u32>().read(), KIND_KERNEL | KIND_CONCURRENT_KERNEL) {
                return INVALID_KIND;
            }
            record.write(next);
        }
        SUCCESS
    }

    /// Records lost since the last call.
    fn cuptiActivityGetNumDroppedRecords(context: *mut c_void, stream: u32, dropped: *mut usize) {
        if dropped.is_null() {
            return INVALID_PARAMETER;
        }
        unsafe { dropped.write(DROPPED.swap(0, Ordering::Relaxed)) };
        SUCCESS
    }

    /// Returns complete buffers, or with flag 1 all of them. Not to be called from a callback.
    fn cuptiActivityFlushAll(flag: u32) {
        if settings::get().strict && in_callback() {
            eprintln!("simulated CUPTI: cuptiActivityFlushAll called from a callback");
            std::process::abort();
        }
        flush(flag & FLUSH_FORCED != 0);
        SUCCESS
    }

    /// As `cuptiActivityFlushAll`.
    fn cuptiActivityFlush(context: *mut c_void, stream: u32, flag: u32) {
        flush(flag & FLUSH_FORCED != 0);
        SUCCESS
    }

    /// Full and complete buffers come back by themselves in any case.
    fn cuptiActivityFlushPeriod(milliseconds: u32) { SUCCESS }

    /// Reads an attribute.
    fn cuptiActivityGetAttribute(which: u32, size: *mut usize, value: *mut c_void) {
        unsafe { attribute(which, size, value, false) }
    }

    /// Sets an attribute.
    fn cuptiActivitySetAttribute(which: u32, size: *mut usize, value: *mut c_void) {
        unsafe { attribute(which, size, value, true) }
    }

    /// Fills `queued` and `submitted` of later records.
    fn cuptiActivityEnableLatencyTimestamps(enable: u8) {
        LATENCY.store(enable, Ordering::Relaxed);
        SUCCESS
    }
}
