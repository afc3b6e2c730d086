//! A consumer that reads as Parca's agent does: `bpf/parca_agent.bpf.c` loaded with libbpf.
//!
//! Owned by one thread, which polls. Dropping it detaches.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::agent_code::{Code, Told};
use crate::cut_short::{self, Error};
use crate::program::{Running, WATCHDOG};
use anyhow::{Context, Result};
use libbpf_rs::{
    Link, MapCore, MapFlags, Object, ObjectBuilder, RingBuffer, RingBufferBuilder, UsdtOpts,
};
use parcagpu_abi::probe::{ALL, PROVIDER, Probe};

/// `enum kind` of the BPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cuda_correlation`
    Correlation,
    /// One record of `activity_batch`
    Record,
    /// `kernel_executed`
    Kernel,
    /// `error`
    Error,
}

/// One event; fields that a probe does not have are 0.
#[derive(Clone, Debug)]
pub struct Event {
    /// Which probe.
    pub kind: Kind,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Correlation id.
    pub id: u32,
    /// Callback id, activity kind, or error code.
    pub code: i32,
    /// Device ordinal.
    pub device: u32,
    /// Stream id.
    pub stream: u32,
    /// Graph id.
    pub graph: u32,
    /// When the probe fired, `CLOCK_MONOTONIC` ns.
    pub time_ns: u64,
    /// Start on the GPU, ns of `CLOCK_REALTIME`.
    pub start: u64,
    /// End on the GPU.
    pub end: u64,
    /// Graph node id.
    pub node: u64,
    /// Whether a CPU stack was taken.
    pub has_stack: bool,
    /// Name or message, if names are read; `None`: unreadable.
    pub name: Option<Vec<u8>>,
    /// Component of an error.
    pub component: Vec<u8>,
}

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Names, which make events large.
    pub names: bool,
    /// CPU stacks at launches.
    pub stacks: bool,
    /// Bytes of the ring buffer, a power of two.
    pub ring: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            names: true,
            stacks: false,
            ring: 16 << 20,
        }
    }
}

/// What was lost on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events that found the ring full.
    pub dropped: u64,
    /// Records or tables that could not be read, or are of no kernel.
    pub unreadable: u64,
    /// Batches of more than 128.
    pub too_long: u64,
    /// Batches of none, but for one of kernels in each process: its last word.
    pub empty: u64,
}

/// See the module.
pub struct Agent {
    links: Vec<Link>,
    ring: RingBuffer<'static>,
    object: Object,
    events: Rc<RefCell<Vec<Event>>>,
    code: Rc<RefCell<Code>>,
}

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/parca_agent.bpf.o"));
const EVENT_SIZE: usize = 72;

impl Agent {
    /// Loads the program; nothing is attached.
    pub fn load(options: Options) -> Result<Self> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut map in open.maps_mut() {
            if map.name() == "events" {
                map.set_max_entries(options.ring)?;
            }
        }
        let object = open.load().context("failed to load the BPF program")?;
        let wanted = [options.names, options.stacks];
        for (key, value) in (0u32..).zip(wanted) {
            map(&object, "wanted").update(
                &key.to_le_bytes(),
                &u64::from(value).to_le_bytes(),
                MapFlags::ANY,
            )?;
        }
        let events = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&events);
        let code = Rc::new(RefCell::new(Code::default()));
        let code_sink = Rc::clone(&code);
        let ring = {
            let ring_map = map(&object, "events");
            let mut builder = RingBufferBuilder::new();
            builder.add(&ring_map, move |bytes| {
                match Told::decode(bytes) {
                    Some(told) => code_sink.borrow_mut().take(told),
                    None => sink.borrow_mut().push(decode(bytes)),
                }
                0
            })?;
            builder.build()?
        };
        Ok(Self {
            links: Vec::new(),
            ring,
            object,
            events,
            code,
        })
    }

    /// As Parca's agent: `cuda_correlation`, `activity_batch`, `error`, of every process that maps
    /// the file (`pid` -1) or of one.
    pub fn parca(library: &Path, pid: i32, options: Options) -> Result<Self> {
        let mut agent = Self::load(options)?;
        for probe in ["error", "activity_batch", "cuda_correlation"] {
            agent.attach(library, pid, probe)?;
        }
        Ok(agent)
    }

    /// The same with everything that PC samples need.
    pub fn parca_sampling(library: &Path, pid: i32, options: Options) -> Result<Self> {
        let mut agent = Self::parca(library, pid, options)?;
        for probe in [
            "cubin_loaded",
            "gpu_config",
            "stall_reason_map",
            "pc_sample_batch",
        ] {
            agent.attach(library, pid, probe)?;
        }
        Ok(agent)
    }

    /// What was told of PC samples and code so far.
    pub fn code(&self) -> std::cell::Ref<'_, Code> {
        self.poll(Duration::ZERO);
        self.code.borrow()
    }

    /// Attaches to every probe of the contract, counting firings only.
    pub fn counting(library: &Path, pid: i32) -> Result<Self> {
        let mut agent = Self::load(Options::default())?;
        for (cookie, probe) in (0..).zip(ALL) {
            let link = agent
                .program("on_any")?
                .attach_usdt_with_opts(
                    pid,
                    library,
                    PROVIDER,
                    probe.name,
                    UsdtOpts {
                        cookie,
                        ..UsdtOpts::default()
                    },
                )
                .with_context(|| format!("failed to attach to {}", probe.name))?;
            agent.links.push(link);
        }
        Ok(agent)
    }

    /// Attaches to one probe of those that are read.
    pub fn attach(&mut self, library: &Path, pid: i32, probe: &str) -> Result<()> {
        let link = self
            .program(&format!("on_{probe}"))?
            .attach_usdt(pid, library, PROVIDER, probe)
            .with_context(|| format!("failed to attach to {probe}"))?;
        self.links.push(link);
        Ok(())
    }

    fn program(&self, name: &str) -> Result<libbpf_rs::ProgramMut<'_>> {
        self.object
            .progs_mut()
            .find(|p| p.name() == name)
            .with_context(|| format!("the object has no program {name}"))
    }

    /// Takes what is there, waiting at most `limit` for a first event.
    pub fn poll(&self, limit: Duration) {
        // Interrupted is an empty poll.
        let _ = self.ring.poll(limit);
        // Also what has not waked anybody yet.
        let _ = self.ring.consume();
    }

    /// Takes events until `enough` of them is true; false when that does not come at all.
    pub fn poll_until(&self, mut enough: impl FnMut(&[Event]) -> bool) -> bool {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            self.poll(Duration::from_millis(20));
            if enough(&self.events.borrow()) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
        }
    }

    /// Leaves; events that are in the ring can still be taken.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// Takes events until `host` stands at its n-th gate.
    pub fn poll_to_gate(&self, host: &mut Running, n: usize) {
        let deadline = Instant::now() + 2 * WATCHDOG;
        while host.gates() < n {
            assert!(host.runs(), "it ended: {}", host.stderr());
            assert!(
                Instant::now() < deadline,
                "it did not come to gate {n}: {}{}",
                host.stdout(),
                host.stderr()
            );
            self.poll(Duration::from_millis(20));
        }
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.poll(Duration::ZERO);
        self.events.borrow().clone()
    }

    /// Events of one probe.
    pub fn of(&self, kind: Kind) -> Vec<Event> {
        let mut events = self.events();
        events.retain(|event| event.kind == kind);
        events
    }

    /// Distinct errors that were told, in their order. Not that an end was cut short.
    pub fn errors(&self) -> Vec<Error> {
        cut_short::without(self.all_errors())
    }

    /// Whether a program said that its end came before everything was delivered.
    pub fn cut_short(&self) -> bool {
        cut_short::is_among(&self.all_errors())
    }

    /// Asserts that so many kernel records came, or fewer if an end was cut short.
    #[track_caller]
    pub fn assert_records(&self, count: usize) {
        cut_short::records(self.of(Kind::Record).len(), count, self.cut_short());
    }

    /// All distinct errors.
    pub fn all_errors(&self) -> Vec<Error> {
        errors(&self.events())
    }

    /// What was lost.
    pub fn losses(&self) -> Losses {
        let at = |key: u32| self.number("losses", key);
        Losses {
            dropped: at(0),
            unreadable: at(1),
            too_long: at(2),
            empty: at(3),
        }
    }

    /// How often a probe fired, of a counting agent.
    pub fn firings(&self, probe: Probe) -> u64 {
        let index = ALL
            .iter()
            .position(|p| *p == probe)
            .expect("a probe of the contract");
        self.number("firings", u32::try_from(index).expect("few probes"))
    }

    fn number(&self, name: &str, key: u32) -> u64 {
        let value = map(&self.object, name)
            .lookup(&key.to_le_bytes(), MapFlags::ANY)
            .expect("an array can be read")
            .expect("the key is inside");
        u64::from_le_bytes(value.try_into().expect("8 bytes"))
    }
}

/// Distinct errors among events, in their order: they are told again for consumers that come late.
pub fn errors(events: &[Event]) -> Vec<Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut errors = Vec::new();
    for event in events.iter().filter(|e| e.kind == Kind::Error) {
        let message = event.name.as_deref().expect("the message can be read");
        let error = (event.code.into(), text(&event.component), text(message));
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    errors
}

fn map<'a>(object: &'a Object, name: &str) -> libbpf_rs::Map<'a> {
    object
        .maps()
        .find(|map| map.name() == name)
        .unwrap_or_else(|| panic!("the object has no map {name}"))
}

fn decode(bytes: &[u8]) -> Event {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let text = |from: usize, to: usize| {
        bytes[from..to]
            .split(|b| *b == 0)
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let named = bytes.len() > EVENT_SIZE;
    Event {
        kind: match word(0) {
            1 => Kind::Correlation,
            2 => Kind::Record,
            3 => Kind::Kernel,
            4 => Kind::Error,
            other => panic!("unknown kind {other} of event"),
        },
        pid: word(4),
        tid: word(8),
        id: word(12),
        code: word(16).cast_signed(),
        device: word(20),
        stream: word(24),
        graph: word(28),
        time_ns: long(32),
        start: long(40),
        end: long(48),
        node: long(56),
        has_stack: word(68).cast_signed() >= 0,
        name: (named && word(64).cast_signed() > 0).then(|| text(EVENT_SIZE, EVENT_SIZE + 256)),
        component: if named {
            text(EVENT_SIZE + 256, EVENT_SIZE + 320)
        } else {
            Vec::new()
        },
    }
}
