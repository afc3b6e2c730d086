//! The BPF program in the kernel, what it is attached to, and the ring buffer it fills.
//!
//! One thread owns a [`Session`]. Dropping it detaches from everything, which lowers the semaphores
//! in the watched processes. The loaded object lives as long as our process: it is leaked once.

mod attach;
mod last_call;
mod said;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, OpenObject, PrintLevel, RingBuffer, RingBufferBuilder,
};
use parcagpu_abi::probe::{self, Probe};
use parcagpu_abi::status;

use crate::choice::Choice;
use crate::decode::decode;
use crate::discover::{self, FileId, Found, Library, Scanner};
use crate::elf::Image;
use crate::events::Event;
use crate::preflight;
use crate::scan_thread::ScanThread;
use crate::text::clock_ns;
use attach::{Target, attach_to};
use last_call::LastCall;
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

struct Attached {
    id: FileId,
    /// The library again, for probes that are wanted later.
    file: fs::File,
    image: Image,
    /// Number and start of the one process; `None`: all.
    process: Option<(u32, u64)>,
    links: Vec<Link>,
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

    /// Attaches to a file that may not be mapped anywhere yet, for all processes.
    pub fn attach_library(&mut self, library: &Library) -> Result<()> {
        self.own.push(library.id);
        if self.is_attached(&library.id, None) {
            return Ok(());
        }
        self.attach(library, None)
    }

    /// Looks for processes and attaches to nothing.
    pub fn look_around(&mut self) {
        let mut found = self.scanner.scan(&self.wanted.choice);
        found.retain(|f| self.is_meant(f));
        self.found = found;
    }

    /// Whether a process's library is the one that was asked for, if one was.
    fn is_meant(&self, found: &Found) -> bool {
        self.wanted.only.as_ref().is_none_or(|(id, path)| {
            found.library.id == *id || std::path::Path::new(&found.library.path) == path
        })
    }

    /// Looks for processes, attaches where we are not yet, and forgets files that nobody maps.
    /// The number of new attachments. With chosen processes, one that is gone is no error here.
    pub fn rescan(&mut self) -> Result<usize> {
        let found = self.scanner.scan(&self.wanted.choice);
        self.take_over(found)
    }

    /// Does the same with what the scanning thread found since the last call; starts that thread.
    pub fn rescan_aside(&mut self) -> Result<()> {
        let thread = match &self.scan_thread {
            Some(thread) => thread,
            None => self
                .scan_thread
                .insert(ScanThread::start(self.wanted.choice.clone())?),
        };
        if let Some(found) = thread.take() {
            self.take_over(found)?;
        }
        Ok(())
    }

    fn take_over(&mut self, found: Vec<Found>) -> Result<usize> {
        self.found = found.into_iter().filter(|f| self.is_meant(f)).collect();
        if !self.wanted.discover {
            self.found.retain(|f| self.own.contains(&f.library.id));
            return Ok(0);
        }
        self.leave_the_gone();
        let mut new = 0;
        for found in self.found.clone() {
            let process = (!self.wanted.choice.is_all()).then_some((found.pid, found.started));
            if self.is_attached(&found.library.id, process) {
                continue;
            }
            match self.attach(&found.library, process) {
                Ok(()) => new += 1,
                // A process may end while we attach to it.
                Err(_) if !discover::is_alive(found.pid) => {}
                Err(e) => self.warn_once(&format!(
                    "{} (process {}): {e:#}",
                    found.library.path, found.pid
                )),
            }
            if found.deleted {
                self.warn_once(&format!(
                    "process {} maps a copy of {} that was deleted or replaced on disk; attached to that copy",
                    found.pid, found.library.path
                ));
            }
        }
        Ok(new)
    }

    fn warn_once(&mut self, message: &str) {
        if !self.warned.iter().any(|w| w == message) {
            if !self.hold_warnings {
                eprintln!("warning: {message}");
            }
            self.warned.push(message.to_owned());
        }
    }

    /// Keeps warnings from stderr, which is a terminal that something is drawn on.
    pub fn hold_warnings(&mut self) {
        self.hold_warnings = true;
        self.warned.clear();
    }

    /// Prints the warnings that were held.
    pub fn release_warnings(&mut self) {
        self.hold_warnings = false;
        for message in &self.warned {
            eprintln!("warning: {message}");
        }
    }

    /// Warnings so far.
    pub fn warnings(&self) -> &[String] {
        &self.warned
    }

    fn is_attached(&self, id: &FileId, process: Option<(u32, u64)>) -> bool {
        self.attached
            .iter()
            .any(|a| a.id == *id && (a.process.is_none() || a.process == process))
    }

    /// Lets go of chosen processes that ended, left what was chosen or unloaded the library: their numbers
    /// may be given to others.
    fn leave_the_gone(&mut self) {
        let here: HashSet<(u32, u64)> = self.found.iter().map(|f| (f.pid, f.started)).collect();
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|a| a.process.is_none_or(|p| here.contains(&p)));
        self.attached = stay;
        for (pid, _) in go.iter().filter_map(|a| a.process) {
            if !self.found.iter().any(|f| f.pid == pid) {
                // Absent is as good.
                let _ = self.skel.maps.wanted_pids.delete(&pid.to_le_bytes());
            }
        }
    }

    fn attach(&mut self, library: &Library, process: Option<(u32, u64)>) -> Result<()> {
        if let Some((pid, _)) = process {
            let map = &self.skel.maps.wanted_pids;
            map.update(&pid.to_le_bytes(), &[1], MapFlags::ANY)
                .context("too many processes")?;
        }
        let probes: Vec<Probe> = probe::ALL
            .iter()
            .filter(|p| self.wanted.probes.contains(&p.name))
            .copied()
            .collect();
        let target = Target {
            file: &library.file,
            image: &library.image,
            process,
        };
        let links = attach_to(&mut self.skel, &self.wanted, &target, &probes)?;
        self.attached.push(Attached {
            id: library.id,
            file: library.file.try_clone()?,
            image: library.image.clone(),
            process,
            links,
        });
        Ok(())
    }

    /// Wants further probes from now on, also of what we are attached to already.
    pub fn attach_more(&mut self, probes: &[Probe]) -> Result<()> {
        let mut new = probes.to_vec();
        new.retain(|p| !self.wanted.probes.contains(&p.name));
        self.wanted.probes.extend(new.iter().map(|p| p.name));
        for attached in &mut self.attached {
            let target = Target {
                file: &attached.file,
                image: &attached.image,
                process: attached.process,
            };
            let links = attach_to(&mut self.skel, &self.wanted, &target, &new)?;
            attached.links.extend(links);
        }
        Ok(())
    }

    /// Looks at one process between two scans; one that is gone stays as it was found.
    pub fn look_at(&mut self, pid: u32) {
        let Ok(found) = self.scanner.scan_process(pid) else {
            return;
        };
        for found in found {
            if !self.own.contains(&found.library.id) {
                continue;
            }
            // After exec the library lies elsewhere.
            let other = |f: &Found| f.pid != pid || f.library.id != found.library.id;
            self.found.retain(other);
            self.found.push(found);
        }
    }

    /// Processes were chosen by number and nothing else, and all have ended.
    pub fn chosen_are_gone(&self) -> bool {
        let choice = &self.wanted.choice;
        let pids = choice.given();
        choice.is_closed() && !pids.is_empty() && !pids.iter().any(|pid| discover::is_alive(*pid))
    }

    /// Processes that map a library, as of the last scan.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Processes that we were not allowed to look into when we looked around.
    pub fn refused(&self) -> usize {
        self.scanner.refused()
    }

    /// Files (or, with chosen processes, files per process) we are attached to.
    pub fn attachments(&self) -> usize {
        self.attached.len()
    }

    /// Hands what is there to the sink, waiting for at most `timeout` for something to come. Where events
    /// come faster than they are taken this ends all the same, after [`TURN`] of them.
    pub fn poll(&self, timeout: Duration) -> Result<()> {
        self.turn.set(0);
        let quiet = |result: libbpf_rs::Result<()>| match result {
            Err(e) if e.kind() != ErrorKind::Interrupted => {
                Err(e).context("failed to read the ring buffer")
            }
            _ => Ok(()),
        };
        quiet(self.ring.poll(timeout))?;
        if self.is_behind() {
            return Ok(());
        }
        // A batch whose last record could not be read wakes nobody.
        quiet(self.ring.consume())
    }

    /// Whether the last [`Self::poll`] left something.
    pub fn is_behind(&self) -> bool {
        self.turn.get() >= TURN
    }

    /// Hands all that is there to the sink, once nothing more comes.
    pub fn drain(&self) -> Result<()> {
        loop {
            self.poll(Duration::ZERO)?;
            if !self.is_behind() {
                return Ok(());
            }
        }
    }

    /// Launches of these processes were sampled before we came; kernels of such are left out.
    pub fn were_sampled(&self, pids: impl IntoIterator<Item = u32>) {
        let launches = self.wanted.probes.contains(&probe::CUDA_CORRELATION.name);
        if let Some(last_call) = self.last_call.as_ref().filter(|_| launches) {
            last_call.borrow_mut().were_sampled(pids);
        }
    }

    /// From now on no launch is taken that is announced later, and no kernel of such.
    pub fn last_call(&self) {
        if let Some(last_call) = &self.last_call {
            last_call
                .borrow_mut()
                .begin(clock_ns(libc::CLOCK_MONOTONIC));
        }
    }

    /// Whether records of the launches that were taken may still come.
    pub fn waits_for_records(&self) -> bool {
        let told = |probe: Probe| self.wanted.probes.contains(&probe.name);
        let comes = told(probe::ACTIVITY_BATCH) || told(probe::KERNEL_EXECUTED);
        let waits = |call: &Rc<RefCell<LastCall>>| call.borrow_mut().waits(discover::is_alive);
        comes && self.last_call.as_ref().is_some_and(waits)
    }

    /// Leaves all processes; what is in the ring buffer stays.
    pub fn detach(&mut self) {
        self.attached.clear();
    }

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
