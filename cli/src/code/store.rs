//! All code that processes announced, and the answer to where a PC sample lies.
//!
//! Two threads work behind it: one reads cubins from processes and takes them apart, one runs `nvdisasm`. Every
//! method but [`Code::settle`] returns at once; what is still being worked on is said to be pending.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::announced::{self, Announced};
use super::cache::Cache;
use super::cubin::{Cubin, FunctionName, NoLine};
use super::jobs::{Disassembler, Disassembly, Read, disassembler, read};
use super::place::{Knowledge, Place};
use super::sass::Sass;
use super::worker::Worker;
use crate::events::{Body, Event};
use crate::session::{ProcessId, Sink};

/// Bytes of code that are kept, with what was read from them.
const KEPT_MAX: u64 = 1 << 30;
/// Distinct checksums that are looked after.
const CUBINS_MAX: usize = 100_000;
/// How often one cubin is tried, at later announcements.
const TRIES_MAX: u32 = 3;
/// Failed readings after which a process is believed nothing more.
const FAILURES_MAX: u32 = 64;
/// Distinct troubles that are kept.
const TROUBLES_MAX: usize = 64;
/// Cubins up to this size are disassembled whole, larger ones by the functions that were asked for.
const WHOLE_MAX: usize = 2 << 20;
/// Functions of one run of `nvdisasm`.
const FUNCTIONS_MAX: usize = 256;

#[derive(Debug)]
struct Known {
    bytes: Arc<[u8]>,
    cubin: Arc<Cubin>,
    sass: Sass,
    /// Symbols that were asked for, `None` for the whole cubin.
    asked: BTreeSet<Option<u32>>,
}

#[derive(Debug)]
enum Entry {
    Pending { tries: u32, reserved: u64 },
    Failed { tries: u32 },
    Known(Box<Known>),
}

/// What [`Code`] does beyond reading cubins.
#[derive(Clone, Debug, Default)]
pub struct CodeOptions {
    /// Keep cubins in this folder and look there first.
    pub cache: Option<PathBuf>,
    /// This program instead of the `nvdisasm` that is found.
    pub nvdisasm: Option<PathBuf>,
    /// Do not ask for mnemonics at all.
    pub no_mnemonics: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Code {
    entries: HashMap<u64, Entry>,
    kept: u64,
    reader: Worker<Announced, Read>,
    disassembler: Option<Disassembler>,
    /// By cubin, functions to be asked for at the next opportunity.
    wanted: BTreeMap<u64, BTreeSet<u32>>,
    failures: HashMap<ProcessId, u32>,
    /// Processes that sample PCs, and what the others announced.
    sampling: HashSet<ProcessId>,
    waiting: HashMap<ProcessId, BTreeMap<u64, Announced>>,
    waiting_count: usize,
    troubles: Vec<String>,
    no_mnemonics: Option<String>,
}

impl Code {
    /// Starts the threads. Fails only if the cache or the named `nvdisasm` cannot be used.
    pub fn start(options: &CodeOptions) -> Result<Self> {
        let cache = options.cache.as_deref().map(Cache::open).transpose()?;
        let reader = Worker::start("parcagpu-cubins", move |announced| {
            read(announced, cache.as_ref())
        })?;
        let (disassembler, no_mnemonics) = match disassembler(options) {
            Ok(worker) => (worker, None),
            Err(e) if options.nvdisasm.is_none() => (None, Some(format!("{e:#}"))),
            Err(e) => return Err(e),
        };
        Ok(Self {
            entries: HashMap::new(),
            kept: 0,
            reader,
            disassembler,
            wanted: BTreeMap::new(),
            failures: HashMap::new(),
            sampling: HashSet::new(),
            waiting: HashMap::new(),
            waiting_count: 0,
            troubles: Vec::new(),
            no_mnemonics,
        })
    }

    /// Takes note of `cubin_loaded`. A cubin is read once, whoever announces it; one that could not be read is tried
    /// again when it is announced again.
    pub fn announce(&mut self, announced: Announced) {
        self.take_results(Duration::ZERO);
        let tries = match self.entries.get(&announced.crc) {
            Some(Entry::Failed { tries }) if *tries < TRIES_MAX => *tries,
            None if self.entries.len() < CUBINS_MAX => 0,
            None => return self.trouble("too many cubins; further ones are not read".to_owned()),
            Some(_) => return,
        };
        if self
            .failures
            .get(&announced.process)
            .is_some_and(|n| *n >= FAILURES_MAX)
        {
            return;
        }
        let reserved = announced.size.min(announced::CUBIN_MAX);
        if self.kept + reserved > KEPT_MAX {
            let message = "no room for more code (1 GiB is kept); further cubins are not read";
            return self.trouble(message.to_owned());
        }
        self.kept += reserved;
        self.entries.insert(
            announced.crc,
            Entry::Pending {
                tries: tries + 1,
                reserved,
            },
        );
        self.reader.give(announced);
    }

    /// Adds a cubin whose bytes are at hand, from a recording. Takes it apart at once.
    pub fn add(&mut self, crc: u64, bytes: Arc<[u8]>) -> Result<()> {
        let cubin = Arc::new(Cubin::parse(&bytes)?);
        self.keep(crc, bytes, cubin);
        Ok(())
    }

    fn keep(&mut self, crc: u64, bytes: Arc<[u8]>, cubin: Arc<Cubin>) {
        self.kept += (bytes.len() + cubin.size()) as u64;
        let known = Known {
            bytes,
            cubin,
            sass: Sass::default(),
            asked: BTreeSet::new(),
        };
        self.entries.insert(crc, Entry::Known(Box::new(known)));
    }

    /// Where an instruction lies, as far as it is known now; asks for its mnemonic if that is not known.
    pub fn resolve(&mut self, crc: u64, function: &FunctionName<'_>, pc_offset: u64) -> Place {
        self.take_results(Duration::ZERO);
        let knowledge = |knowledge| Place {
            knowledge,
            ..Place::default()
        };
        let known = match self.entries.get_mut(&crc) {
            None => return knowledge(Knowledge::NotAnnounced),
            Some(Entry::Pending { .. }) => return knowledge(Knowledge::Pending),
            Some(Entry::Failed { .. }) => return knowledge(Knowledge::Unread),
            Some(Entry::Known(known)) => known,
        };
        let cubin = Arc::clone(&known.cubin);
        let Some(spot) = cubin.find(function) else {
            return knowledge(Knowledge::No(NoLine::NoFunction));
        };
        let (line, why) = match cubin.line(&spot, pc_offset) {
            Ok(line) => (Some(line), Knowledge::Line),
            Err(why) => (None, Knowledge::No(why)),
        };
        let place = Place {
            knowledge: why,
            line,
            mnemonic: cubin
                .section_name(spot.section)
                .and_then(|name| known.sass.at(name, spot.start.checked_add(pc_offset)?))
                .cloned(),
            function: spot.function.map(|f| Arc::clone(&f.name)),
        };
        if place.mnemonic.is_none()
            && self.disassembler.is_some()
            && why != Knowledge::No(NoLine::Outside)
        {
            self.want_mnemonics(crc, spot.function.map(|f| f.index));
        }
        place
    }

    fn want_mnemonics(&mut self, crc: u64, symbol: Option<u32>) {
        let Some(Entry::Known(known)) = self.entries.get_mut(&crc) else {
            return;
        };
        let symbol = match symbol {
            _ if known.bytes.len() <= WHOLE_MAX => None,
            // Without a symbol it cannot be asked for.
            None => return,
            symbol => symbol,
        };
        if known.asked.insert(symbol) {
            // An empty set means all.
            self.wanted.entry(crc).or_default().extend(symbol);
            self.ask();
        }
    }

    /// Gives the thread its next job when it has none: what was wanted meanwhile goes into one run.
    fn ask(&mut self) {
        let Some(disassembler) = &mut self.disassembler else {
            return;
        };
        if disassembler.at_work() > 0 {
            return;
        }
        while let Some((crc, mut symbols)) = self.wanted.pop_first() {
            let Some(Entry::Known(known)) = self.entries.get(&crc) else {
                continue;
            };
            let later = symbols.iter().nth(FUNCTIONS_MAX).copied();
            if let Some(later) = later {
                self.wanted.insert(crc, symbols.split_off(&later));
            }
            disassembler.give(Disassembly {
                crc,
                bytes: Arc::clone(&known.bytes),
                symbols: symbols.into_iter().collect(),
            });
            return;
        }
    }

    /// A process samples PCs: what it announced is read now.
    fn samples(&mut self, process: ProcessId) {
        if self.sampling.insert(process) {
            let waiting = self.waiting.remove(&process).unwrap_or_default();
            self.waiting_count -= waiting.len();
            waiting.into_values().for_each(|a| self.announce(a));
        }
    }

    /// The bytes of a cubin, once they were read.
    pub fn bytes(&self, crc: u64) -> Option<Arc<[u8]>> {
        match self.entries.get(&crc)? {
            Entry::Known(known) => Some(Arc::clone(&known.bytes)),
            _ => None,
        }
    }

    /// Checksums of the cubins that were read.
    pub fn checksums(&self) -> impl Iterator<Item = u64> {
        self.entries
            .iter()
            .filter(|(_, entry)| matches!(entry, Entry::Known(_)))
            .map(|(crc, _)| *crc)
    }

    /// Waits at most so long until all that was asked for is there; false if it is not.
    pub fn settle(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.take_results(left.min(Duration::from_millis(20)));
            let busy = self.disassembler.as_ref().map_or(0, Worker::at_work);
            if self.reader.at_work() + busy == 0 && self.wanted.is_empty() {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// What went wrong, each once.
    pub fn troubles(&self) -> &[String] {
        &self.troubles
    }

    /// Why there are no mnemonics, if there are none.
    pub fn why_no_mnemonics(&self) -> Option<&str> {
        self.no_mnemonics.as_deref()
    }

    fn trouble(&mut self, message: String) {
        if self.troubles.len() < TROUBLES_MAX && !self.troubles.contains(&message) {
            self.troubles.push(message);
        }
    }

    fn take_results(&mut self, limit: Duration) {
        let mut limit = limit;
        while let Some(read) = self.reader.take(limit) {
            limit = Duration::ZERO;
            self.was_read(read);
        }
        while let Some((crc, result)) = self.disassembler.as_mut().and_then(|d| d.take(limit)) {
            limit = Duration::ZERO;
            match (result, self.entries.get_mut(&crc)) {
                (Ok(sass), Some(Entry::Known(known))) => known.sass.merge(sass),
                (Err(why), _) => self.trouble(format!("no mnemonics of cubin {crc:#010x}: {why}")),
                _ => {}
            }
        }
        self.ask();
    }

    fn was_read(&mut self, read: Read) {
        let Announced { process, crc, .. } = read.announced;
        let tries = match self.entries.get(&crc) {
            Some(Entry::Pending { tries, reserved }) => {
                self.kept -= reserved;
                *tries
            }
            // Meanwhile it was added from elsewhere.
            _ => return,
        };
        if let Some(trouble) = read.trouble {
            self.trouble(trouble);
        }
        match read.result {
            Ok((bytes, cubin)) => {
                if cubin.is_cut() {
                    let message = "its line table is too long; some lines are missing";
                    self.trouble(format!("cubin {crc:#010x}: {message}"));
                }
                self.keep(crc, bytes, cubin);
            }
            Err(why) => {
                self.entries.insert(crc, Entry::Failed { tries });
                *self.failures.entry(process).or_default() += 1;
                let pid = process.pid;
                self.trouble(format!(
                    "cubin {crc:#010x} of process {pid} was not read: {why}"
                ));
            }
        }
    }
}

impl Sink for Code {
    /// Takes note of cubins. Code is read only of processes that sample PCs: others announce theirs too.
    fn event(&mut self, event: &Event<'_>) {
        let process = event.header.process();
        match event.body {
            Body::CubinLoaded { crc, address, size } => {
                let announced = Announced {
                    process,
                    crc,
                    address,
                    size,
                };
                if self.sampling.contains(&process) {
                    self.announce(announced);
                } else if self.waiting_count < CUBINS_MAX {
                    let waiting = self.waiting.entry(process).or_default();
                    let new = waiting.insert(crc, announced).is_none();
                    self.waiting_count += usize::from(new);
                }
            }
            Body::CubinUnloaded { crc } => {
                let waiting = self.waiting.get_mut(&process);
                let was = waiting.and_then(|w| w.remove(&crc)).is_some();
                self.waiting_count -= usize::from(was);
            }
            Body::StallReasons { .. } | Body::GpuConfig { .. } | Body::PcSample { .. } => {
                self.samples(process);
            }
            _ => {}
        }
    }
}
