//! What a process with the library shows to those who look into it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use goblin::elf::Elf;
use parcagpu_abi::status::{self, Counter, ReadError, State, Status};

use crate::notes;
use crate::program::WATCHDOG;

/// Where a process has a library mapped: the difference of addresses in memory and in the file.
pub fn bias(pid: u32, library: &Path) -> Option<u64> {
    let name = library.to_str().expect("a plain path");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let line = maps.lines().find(|line| line.ends_with(name))?;
    let (start, rest) = line.split_once('-')?;
    let offset = rest.split_whitespace().nth(2)?;
    let parse = |hex| u64::from_str_radix(hex, 16).ok();
    Some(parse(start)? - parse(offset)?)
}

fn memory(pid: u32, address: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(bytes, address)
}

/// How often texts were written.
fn texts(status: &Status) -> u32 {
    status.text_seq.load(Ordering::Relaxed)
}

/// The status block of a process; `None` when it does not map the library.
pub fn read(pid: u32, library: &Path) -> Option<Box<Status>> {
    let file = fs::read(library).expect("the lab's library");
    let elf = Elf::parse(&file).expect("an ELF file");
    let symbol = elf
        .dynsyms
        .iter()
        .find(|s| elf.dynstrtab.get_at(s.st_name) == Some(status::SYMBOL))
        .expect("the library exports its status block");
    let address = bias(pid, library)? + symbol.st_value;
    let once = || {
        let mut bytes = vec![0; size_of::<Status>()];
        memory(pid, address, &mut bytes).ok()?;
        Some(status::parse(&bytes))
    };
    // A writer may stand still in the middle of a text.
    let deadline = Instant::now() + WATCHDOG;
    loop {
        match once()? {
            Err(ReadError::Torn) => {}
            Err(error) => panic!("the status block of {pid}: {error}"),
            // Written in between, parts of it may be from before and others from after.
            Ok(status) if once()?.is_ok_and(|again| texts(&again) == texts(&status)) => {
                return Some(status);
            }
            Ok(_) => {}
        }
        assert!(
            Instant::now() < deadline,
            "the status block of {pid} is torn for ever"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The state in a block.
pub fn state(status: &Status) -> State {
    State::from_u32(status.state.load(Ordering::Relaxed)).expect("a state we know")
}

/// Waits until a process is in a state.
#[track_caller]
pub fn wait_state(pid: u32, library: &Path, wanted: State) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let status = read(pid, library);
        let now = status.as_deref().map(state);
        if now == Some(wanted) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "process {pid} is {now:?} ({}), not {wanted:?}",
            status.map(|s| s.reason.load()).unwrap_or_default()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The same for what is so from now on: gives the looks of our thread that it took, beside the one that may be
/// under way now.
#[track_caller]
pub fn looks_until(pid: u32, library: &Path, wanted: State) -> u64 {
    let before = counter(pid, library, Counter::Looks);
    wait_state(pid, library, wanted);
    counter(pid, library, Counter::LookOfState).saturating_sub(before)
}

/// A counter of a process.
pub fn counter(pid: u32, library: &Path, counter: Counter) -> u64 {
    read(pid, library).map_or(0, |status| status.get(counter))
}

/// Semaphores of all probes in a process, by name.
pub fn semaphores(pid: u32, library: &Path) -> Vec<(String, u16)> {
    let bias = bias(pid, library).expect("the process maps the library");
    notes::read(library)
        .expect("the library has notes")
        .into_iter()
        .map(|note| {
            let mut bytes = [0; 2];
            memory(pid, bias + note.semaphore, &mut bytes).expect("semaphores are mapped");
            (note.name, u16::from_le_bytes(bytes))
        })
        .collect()
}

/// Waits until every semaphore has a value.
#[track_caller]
pub fn wait_semaphores(pid: u32, library: &Path, wanted: u16) {
    wait_semaphores_that(pid, library, &format!("all {wanted}"), |value| {
        value == wanted
    });
}

/// Waits until every semaphore is as `good` says.
#[track_caller]
pub fn wait_semaphores_that(pid: u32, library: &Path, what: &str, good: impl Fn(u16) -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let now = semaphores(pid, library);
        if now.iter().all(|(_, value)| good(*value)) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "semaphores are {now:?}, not {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until our thread in a process has looked at consumers twice, from begin to end and from now.
#[track_caller]
pub fn wait_looks(pid: u32, library: &Path) {
    wait_more_looks(pid, library, 2);
}

/// The same for any number of looks: there are ten in a second at most.
#[track_caller]
pub fn wait_more_looks(pid: u32, library: &Path, looks: u64) {
    let deadline = Instant::now() + WATCHDOG;
    // One may be under way, and the begin of another one is the end of the last one.
    let enough = counter(pid, library, Counter::Looks) + looks + 1;
    while counter(pid, library, Counter::Looks) < enough {
        assert!(
            Instant::now() < deadline,
            "our thread in {pid} does not look any more"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until our thread has delivered what CUPTI had of a process that launches no more, and counted it.
#[track_caller]
pub fn wait_delivered(pid: u32, library: &Path) {
    let deadline = Instant::now() + WATCHDOG;
    // A launch that was counted and has no buffer yet gets one before that.
    wait_looks(pid, library);
    loop {
        let status = read(pid, library).expect("the process maps the library");
        let returned = status.get(Counter::BuffersReturned);
        let given = status.get(Counter::BuffersRequested) - status.get(Counter::BuffersRefused);
        if given == returned {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "CUPTI has given {returned} of {given} buffers back"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Names of the threads of a process.
pub fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
    let comm = |path: std::path::PathBuf| fs::read_to_string(path.join("comm")).unwrap_or_default();
    tasks
        .flatten()
        .map(|task| comm(task.path()).trim().to_owned())
        .collect()
}

/// What a process holds: descriptors, threads, mappings.
pub fn holdings(pid: u32) -> (usize, usize, usize) {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    (count("fd"), count("task"), maps.lines().count())
}

/// Whether a process maps a file whose path contains `part`.
pub fn maps(pid: u32, part: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(part))
}
