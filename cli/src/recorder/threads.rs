//! Names and numbers of a process's threads.
//!
//! An NVTX event has the number its process counts with; everything else has ours.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

/// Threads of one process that are remembered.
const THREADS_MAX: usize = 4096;
/// The threads of a process in a namespace of its own are listed at most this often.
const LIST_EVERY: Duration = Duration::from_millis(200);

/// The threads of one process.
#[derive(Debug)]
pub struct Threads {
    pid: u32,
    /// Names that were read, by our number.
    names: HashMap<u32, String>,
    /// Those that the program named by other means, which count more.
    given: HashSet<u32>,
    /// Our number, by the process's; `None`: it counts as we do.
    numbers: Option<HashMap<u32, u32>>,
    listed: Option<Instant>,
}

impl Threads {
    /// Of a process, by its number in our namespace.
    pub fn of(pid: u32) -> Self {
        let numbers = (levels(pid).unwrap_or(1) > 1).then(HashMap::new);
        Self {
            pid,
            names: HashMap::new(),
            given: HashSet::new(),
            numbers,
            listed: None,
        }
    }

    /// Whether a thread of this number (ours) is met for the first time.
    pub fn is_new(&self, tid: u32) -> bool {
        let known = self.names.contains_key(&tid) || self.given.contains(&tid);
        !known && self.names.len() < THREADS_MAX
    }

    /// The program named a thread (of our number) itself.
    pub fn was_given_a_name(&mut self, tid: u32) {
        if self.given.len() < THREADS_MAX {
            self.given.insert(tid);
            self.names.remove(&tid);
        }
    }

    /// Reads the name of a thread; `None` if it is gone, or has the name it had.
    pub fn read_name(&mut self, tid: u32) -> Option<&str> {
        let name = fs::read(format!("/proc/{}/task/{tid}/comm", self.pid)).ok();
        let name = name.map(|n| String::from_utf8_lossy(&n).trim_end().to_owned());
        let known = self.names.entry(tid).or_default();
        match name {
            Some(name) if name != *known => {
                *known = name;
                Some(known)
            }
            _ => None,
        }
    }

    /// All threads met.
    pub fn met(&self) -> Vec<u32> {
        self.names.keys().copied().collect()
    }

    /// Our number of a thread that the process calls `inner`; the same if it is not to be found.
    pub fn ours(&mut self, inner: u32) -> u32 {
        let Some(numbers) = &mut self.numbers else {
            return inner;
        };
        let fresh = self.listed.is_some_and(|at| at.elapsed() < LIST_EVERY);
        if !numbers.contains_key(&inner) && !fresh {
            self.listed = Some(Instant::now());
            list(self.pid, numbers);
        }
        numbers.get(&inner).copied().unwrap_or(inner)
    }
}

/// How deep a process lies in PID namespaces below ours, ours included.
fn levels(pid: u32) -> Option<usize> {
    Some(numbers_of(&format!("/proc/{pid}/status"))?.len())
}

fn numbers_of(path: &str) -> Option<Vec<u32>> {
    let status = fs::read_to_string(path).ok()?;
    let numbers = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    Some(numbers.split_whitespace().flat_map(str::parse).collect())
}

fn list(pid: u32, numbers: &mut HashMap<u32, u32>) {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for task in tasks.flatten().take(THREADS_MAX) {
        let Some(tid) = task.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let all = numbers_of(&format!("/proc/{pid}/task/{tid}/status"));
        if let Some(inner) = all.and_then(|n| n.last().copied())
            && numbers.len() < THREADS_MAX
        {
            numbers.insert(inner, tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_have_their_names() {
        let check = || {
            // SAFETY: no preconditions.
            let tid = unsafe { libc::gettid() }.cast_unsigned();
            let mut threads = Threads::of(std::process::id());
            assert!(threads.is_new(tid));
            assert_eq!(threads.read_name(tid), Some("of-this-name"));
            assert!(!threads.is_new(tid) && threads.read_name(tid).is_none());
            assert_eq!(threads.met(), [tid]);
        };
        let named = std::thread::Builder::new().name("of-this-name".to_owned());
        named.spawn(check).unwrap().join().unwrap();
        let mut gone = Threads::of(u32::MAX);
        assert_eq!((gone.ours(7), gone.read_name(7)), (7, None));
        assert!(!gone.is_new(7));
        gone.was_given_a_name(8);
        assert!(!gone.is_new(8) && gone.met() == [7]);
    }
}
