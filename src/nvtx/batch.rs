//! Events of each thread, gathered into batches of up to 256.
//!
//! A thread that makes NVTX calls has a place, which holds its batch. Whoever works on the batch has
//! taken it out: the thread while it adds an event, our thread while it fires one that is 100 ms old. Nobody
//! waits for the other: a thread that finds its place empty begins a new batch. Batches of one thread may
//! so overtake each other; consumers order by time.
//!
//! Places form a list that only grows; a place is given back at the end of its thread, with its batch
//! fired. After that, and after the end of the process has begun, events are fired one by one. A
//! forked child drops what its parent had gathered.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parcagpu_abi::nvtx::NvtxEvent;
use parcagpu_abi::probe::NVTX_BATCH_MAX;
use parcagpu_abi::status::Counter;

use super::process;
use super::slot::Slot;
use super::text::ROOM;
use crate::patience::Patience;
use crate::probes::{self, touch};
use crate::{clock, status};

/// Age of the oldest event at which a batch is fired, ns.
pub const AGE: u64 = 100_000_000;
/// Bytes of texts in a batch; registered strings are not among them.
const TEXT: usize = 32 << 10;
/// How long the end of the process waits for batches that others have taken: on a busy machine they may have to wait
/// for a processor.
const LAST_BATCHES: Duration = Duration::from_millis(400);

/// Events with the texts they point to.
struct Batch {
    generation: u32,
    len: usize,
    text_len: usize,
    events: [NvtxEvent; NVTX_BATCH_MAX],
    text: [u8; TEXT],
}

impl Batch {
    fn new() -> Box<Self> {
        // SAFETY: numbers and null pointers, for all of which zero is a value. Zeroed in place, since the
        // program's stack may be small.
        let mut batch: Box<Self> = unsafe { Box::new_zeroed().assume_init() };
        batch.generation = process::generation();
        batch
    }

    fn add(&mut self, event: NvtxEvent, describe: impl FnOnce(&mut NvtxEvent, &mut [u8]) -> usize) {
        let place = &mut self.events[self.len];
        *place = event;
        self.text_len += describe(place, &mut self.text[self.text_len..]);
        self.len += 1;
    }

    fn is_full(&self) -> bool {
        self.len == NVTX_BATCH_MAX || TEXT - self.text_len < ROOM
    }

    fn oldest(&self) -> u64 {
        match self.len {
            0 => 0,
            _ => self.events[0].timestamp_ns,
        }
    }

    /// Hands the events to those who listen; empty afterwards.
    fn fire(&mut self) {
        if self.len > 0 && self.generation == process::generation() {
            fire(&self.events[..self.len]);
        }
        self.generation = process::generation();
        (self.len, self.text_len) = (0, 0);
    }
}

/// Threads other than the owners that have taken a batch, or are about to.
static VISITORS: AtomicU32 = AtomicU32::new(0);

fn fire(events: &[NvtxEvent]) {
    if !probes::nvtx_event_batch::enabled() {
        return;
    }
    let mut pointers = [std::ptr::null::<c_void>(); NVTX_BATCH_MAX];
    for (pointer, event) in pointers.iter_mut().zip(events) {
        *pointer = (&raw const *event).cast();
        // SAFETY: a terminated string of the batch, or one that is never freed.
        unsafe { touch::string(event.message) };
    }
    // SAFETY: both are readable slices.
    unsafe {
        touch::bytes(events.as_ptr(), size_of_val(events));
        touch::bytes(pointers.as_ptr(), size_of_val(&pointers));
    }
    status::block().add(Counter::NvtxEvents, events.len() as u64);
    probes::nvtx_event_batch::fire(pointers.as_ptr(), events.len() as u32);
}

/// A thread's batch and who has it.
struct Place {
    next: *const Place,
    /// 0: nobody's; else the owner's generation + 1.
    owner: AtomicU64,
    /// Empty while somebody works on it, or when there is none.
    batch: Slot<Batch>,
    /// Time of the batch's oldest event; 0: empty, or not known.
    oldest: AtomicU64,
    /// The owner has taken the batch, or is about to.
    at_work: AtomicBool,
}

static PLACES: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: published by an exchange, never freed or changed.
    let first: Option<&'static Place> = unsafe { PLACES.load(Ordering::Acquire).as_ref() };
    // SAFETY: `next` was in the list before the place was.
    std::iter::successors(first, |place| unsafe { place.next.as_ref() })
}

impl Place {
    /// A free one, or a new one.
    fn claim() -> &'static Self {
        let owner = u64::from(process::generation()) + 1;
        let free = places().find(|place| {
            let was = place.owner.load(Ordering::Relaxed);
            // An owner of an older generation is a thread of the parent.
            was != owner
                && place
                    .owner
                    .compare_exchange(was, owner, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        });
        let place = free.unwrap_or_else(|| Self::add(owner));
        // A forked child's copy of a thread that was at work.
        place.at_work.store(false, Ordering::Relaxed);
        place
    }

    fn add(owner: u64) -> &'static Self {
        let place = Box::leak(Box::new(Self {
            next: PLACES.load(Ordering::Acquire),
            owner: AtomicU64::new(owner),
            batch: Slot::new(),
            oldest: AtomicU64::new(0),
            at_work: AtomicBool::new(false),
        }));
        loop {
            let next = place.next.cast_mut();
            match PLACES.compare_exchange(next, place, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return place,
                Err(other) => place.next = other,
            }
        }
    }

    fn take(&self) -> Option<Box<Batch>> {
        self.batch.take()
    }

    /// The owner begins to work on its batch. Whoever finds the place empty afterwards finds this as well.
    fn begin(&self) -> Option<Box<Batch>> {
        self.at_work.store(true, Ordering::Relaxed);
        self.take()
    }

    /// The owner puts its batch back.
    fn put(&self, batch: Box<Batch>) {
        self.oldest.store(batch.oldest(), Ordering::Relaxed);
        self.batch.put(batch);
        // The end of the process may have found the place empty, and does not come again; that it has begun is
        // known to whoever puts something in afterwards.
        if process::has_begun_to_end()
            && let Some(mut last) = self.take()
        {
            last.fire();
        }
        self.at_work.store(false, Ordering::Release);
    }

    /// Whether its owner, another thread than this one, is at work on its batch.
    fn is_awaited(&self) -> bool {
        self.at_work.load(Ordering::Acquire)
            && self.owner.load(Ordering::Relaxed) == u64::from(process::generation()) + 1
            && ME.get().place.is_none_or(|mine| !std::ptr::eq(mine, self))
    }

    /// Our thread: fires a batch that began before `before`.
    fn fire_older(&self, before: u64) {
        let oldest = self.oldest.load(Ordering::Relaxed);
        if oldest == 0 || oldest > before {
            return;
        }
        VISITORS.fetch_add(1, Ordering::AcqRel);
        if let Some(mut batch) = self.take() {
            batch.fire();
            // If the owner has begun a new one, this says when.
            let _ = self
                .oldest
                .compare_exchange(oldest, 0, Ordering::Relaxed, Ordering::Relaxed);
            // An empty one.
            self.batch.offer(batch);
        }
        VISITORS.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Clone, Copy)]
struct Me {
    /// Of the place and the thread id; `u32::MAX`: neither is known.
    generation: u32,
    tid: u32,
    /// `None`: events are fired one by one.
    place: Option<&'static Place>,
}

/// Its destructor ends a thread's batch.
struct Farewell;

thread_local! {
    // No destructor, so that it stays readable while a thread ends.
    static ME: Cell<Me> = const { Cell::new(Me { generation: u32::MAX, tid: 0, place: None }) };
    static FAREWELL: Farewell = const { Farewell };
}

impl Drop for Farewell {
    fn drop(&mut self) {
        crate::entry::barrier((), || {
            let me = ME.get();
            ME.set(Me { place: None, ..me });
            if let Some(place) = me.place.filter(|_| me.generation == process::generation()) {
                if let Some(mut batch) = place.begin() {
                    batch.fire();
                }
                place.oldest.store(0, Ordering::Relaxed);
                place.at_work.store(false, Ordering::Release);
                place.owner.store(0, Ordering::Release);
            }
        });
    }
}

#[inline]
fn me() -> Me {
    let me = ME.get();
    if me.generation == process::generation() {
        me
    } else {
        introduce()
    }
}

/// First event of a thread, or of the one thread of a forked child.
#[cold]
fn introduce() -> Me {
    // A thread whose destructors have run cannot register another.
    let alive = FAREWELL.try_with(|_| ()).is_ok();
    let me = Me {
        generation: process::generation(),
        // SAFETY: no preconditions.
        tid: unsafe { libc::syscall(libc::SYS_gettid) } as u32,
        place: alive.then(Place::claim),
    };
    ME.set(me);
    me
}

/// Adds an event of this thread. `describe` completes it, with room for a text, and says how much of
/// that it used.
pub fn add(mut event: NvtxEvent, describe: impl FnOnce(&mut NvtxEvent, &mut [u8]) -> usize) {
    let me = me();
    event.tid = me.tid;
    let Some(place) = me.place.filter(|_| !process::is_ending()) else {
        let mut room = [0; ROOM];
        describe(&mut event, &mut room);
        fire(&[event]);
        return;
    };
    let mut batch = place.begin().unwrap_or_else(Batch::new);
    if batch.generation != process::generation() {
        batch.fire();
    }
    let now = event.timestamp_ns;
    batch.add(event, describe);
    if batch.is_full() || now.saturating_sub(batch.oldest()) >= AGE {
        batch.fire();
    }
    place.put(batch);
}

/// Fires what is older than [`AGE`]; how long until the next batch is due, at most `limit`.
pub fn look(limit: Duration) -> Duration {
    let now = clock::monotonic_ns();
    let mut next = limit.as_nanos() as u64;
    for place in places() {
        place.fire_older(now.saturating_sub(AGE));
        let oldest = place.oldest.load(Ordering::Relaxed);
        if oldest != 0 {
            next = next.min((oldest + AGE).saturating_sub(now));
        }
    }
    Duration::from_nanos(next)
}

/// Fires everything; without a consumer, drops it.
pub fn flush() {
    for place in places() {
        place.fire_older(u64::MAX);
    }
}

/// In a forked child: threads that had taken a batch are not there. Async-signal-safe.
pub fn forget() {
    VISITORS.store(0, Ordering::Relaxed);
}

/// The end of the process, which has begun: fires everything, and waits with a bound for what others have taken, and
/// fire themselves.
pub fn finish() {
    flush();
    let mut patience = Patience::new(LAST_BATCHES);
    let others = || VISITORS.load(Ordering::Acquire) > 0 || places().any(Place::is_awaited);
    while others() && !patience.is_over() {
        std::thread::sleep(Duration::from_micros(100));
    }
    // What was put back meanwhile by a thread that did not know yet.
    flush();
}
