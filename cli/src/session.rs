//! The BPF program in the kernel, what it is attached to, and the ring buffer it fills.
//!
//! One thread owns a [`Session`]. Dropping it detaches from everything, which lowers the semaphores
//! in the watched processes. The loaded object lives as long as our process: it is leaked once.

mod attach;
mod follow;
mod last_call;
mod notes;
mod said;
mod take;

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::rc::Rc;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{OpenObject, PrintLevel, RingBuffer, RingBufferBuilder};

use crate::choice::Choice;
use crate::decode::decode;
use crate::discover::{FileId, Found, Scanner};
use crate::events::Event;
use crate::preflight;
use crate::scan_thread::ScanThread;
use follow::Attached;
use last_call::LastCall;
pub use notes::{Loss, ProcessNote};
use said::{keep_message, load_refused};
use skel::{ParcagpuSkel, ParcagpuSkelBuilder};

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    rust_2018_idioms,
    unused_qualifications
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/parcagpu.skel.rs"));
}

/// Events taken at once.
const TURN: u32 = 1 << 16;

/// Takes the events.
pub trait Sink {
    /// One event.
    fn event(&mut self, event: &Event<'_>);
}

/// What to attach to.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Probes, by name.
    pub probes: Vec<&'static str>,
    /// Take `kernel_executed` also where there is `activity_batch`.
    pub kernel_executed_too: bool,
    /// Which processes.
    pub choice: Choice,
    /// Look for processes that map a library; false: only what [`Session::attach_library`] is given.
    pub discover: bool,
    /// Only this file, whatever others processes map; also earlier files at the same path.
    pub only: Option<(FileId, std::path::PathBuf)>,
    /// Size of the ring buffer, bytes; rounded up to a power of two of at least a page.
    pub ring_bytes: u32,
    /// Take the CPU stack of every launch.
    pub stacks: bool,
}

/// Names a process for good: a number may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// Its start, `CLOCK_BOOTTIME` ns.
    pub start_ns: u64,
}

/// A loaded and perhaps attached BPF program.
pub struct Session {
    // Links go first: they are what the watched processes see.
    attached: Vec<Attached>,
    ring: RingBuffer<'static>,
    skel: ParcagpuSkel<'static>,
    scanner: Scanner,
    scan_thread: Option<ScanThread>,
    wanted: Wanted,
    found: Vec<Found>,
    undecodable: Rc<RefCell<u64>>,
    /// Events taken in this call of [`Session::poll`].
    turn: Rc<Cell<u32>>,
    warned: Vec<String>,
    hold_warnings: bool,
    // Files we were told to attach to.
    own: Vec<FileId>,
    // Where events are decoded.
    last_call: Option<Rc<RefCell<LastCall>>>,
}

impl Session {
    /// Loads the program. Events go to `sink` while [`Session::poll`] runs.
    pub fn load(wanted: Wanted, sink: Rc<RefCell<dyn Sink>>) -> Result<Self> {
        let last_call = Rc::new(RefCell::new(LastCall::default()));
        let taken = Rc::clone(&last_call);
        let mut session = Self::load_raw(wanted, move |bytes| {
            let event = decode(bytes);
            if let Some(event) = &event
                && taken.borrow_mut().takes(event)
            {
                sink.borrow_mut().event(event);
            }
            event.is_some()
        })?;
        session.last_call = Some(last_call);
        Ok(session)
    }

    /// Loads the program. `take` gets the bytes of events and says whether it understood them.
    pub fn load_raw(wanted: Wanted, mut take: impl FnMut(&[u8]) -> bool + 'static) -> Result<Self> {
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep_message)));
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = ParcagpuSkelBuilder::default()
            .open(storage)
            .context("failed to open the BPF object")?;
        let ring_bytes = wanted
            .ring_bytes
            .clamp(1 << 16, 1 << 30)
            .next_power_of_two();
        open.maps.events.set_max_entries(ring_bytes)?;
        let rodata = open.maps.rodata_data.as_deref_mut().context("no .rodata")?;
        rodata.own_pid_ns =
            match preflight::own_pid_namespace().context("cannot read /proc/self/ns/pid")? {
                preflight::INITIAL_PID_NS => 0,
                inode => u32::try_from(inode)?,
            };
        rodata.filter_pids = !wanted.choice.is_all();
        rodata.take_stacks = wanted.stacks;
        rodata.room_for_copies = u64::from(ring_bytes / 4);
        let skel = open.load().map_err(|e| load_refused(&e))?;
        let undecodable = Rc::new(RefCell::new(0));
        let bad = Rc::clone(&undecodable);
        let turn = Rc::new(Cell::new(0));
        let taken = Rc::clone(&turn);
        let mut builder = RingBufferBuilder::new();
        builder.add(&skel.maps.events, move |bytes| {
            if !take(bytes) {
                *bad.borrow_mut() += 1;
            }
            taken.set(taken.get() + 1);
            // As if a signal had come: the rest stays for the next call.
            if taken.get() < TURN { 0 } else { -libc::EINTR }
        })?;
        let ring = builder.build()?;
        Ok(Self {
            attached: Vec::new(),
            ring,
            skel,
            scanner: Scanner::default(),
            scan_thread: None,
            wanted,
            found: Vec::new(),
            undecodable,
            turn,
            warned: Vec::new(),
            hold_warnings: false,
            own: Vec::new(),
            last_call: None,
        })
    }
}
