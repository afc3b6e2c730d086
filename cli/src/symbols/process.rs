//! From addresses of a process to frames.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::Files;
use super::jit::Jit;
use super::unwind::{Copy, Unwinding};
use super::{Frames, just};
use crate::discover::{Mapping, parse_mapping};

/// Code mappings kept of one process.
const MAPPINGS_MAX: usize = 1 << 14;
/// Largest text of mappings that is read, bytes.
const TEXT_MAX: u64 = 32 << 20;
/// Addresses remembered of one process.
const ADDRESSES_MAX: usize = 1 << 14;
/// Mappings are read again for an unknown address at most this often.
const READ_EVERY: Duration = Duration::from_millis(100);

/// A mapping of code.
#[derive(Clone, Debug)]
enum Code {
    File(Mapping),
    /// Made at run time, or by the kernel (then it has a name in brackets).
    Anonymous {
        end: u64,
        name: String,
    },
}

/// The code mappings of a process.
#[derive(Clone, Debug, Default)]
pub struct Mappings(Vec<(u64, Code)>);

impl Mappings {
    /// Reads them; none if the process is gone.
    pub fn read(pid: u32) -> Self {
        use std::io::Read;
        let mut text = Vec::new();
        if let Ok(file) = fs::File::open(format!("/proc/{pid}/maps")) {
            // What was read up to an error is good.
            let _ = file.take(TEXT_MAX).read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        Self(text.lines().filter_map(code).take(MAPPINGS_MAX).collect())
    }

    fn at(&self, address: u64) -> Option<&Code> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        let (_, code) = self.0.get(after.checked_sub(1)?)?;
        let end = match code {
            Code::File(mapping) => mapping.end,
            Code::Anonymous { end, .. } => *end,
        };
        (address < end).then_some(code)
    }

    /// The mapping of a file at an address.
    pub fn file_at(&self, address: u64) -> Option<&Mapping> {
        match self.at(address)? {
            Code::File(mapping) => Some(mapping),
            Code::Anonymous { .. } => None,
        }
    }

    /// All mappings of files.
    pub fn files(&self) -> impl Iterator<Item = &Mapping> {
        self.0.iter().filter_map(|(_, code)| match code {
            Code::File(mapping) => Some(mapping),
            Code::Anonymous { .. } => None,
        })
    }
}

fn code(line: &str) -> Option<(u64, Code)> {
    if let Some(mapping) = parse_mapping(line) {
        let executable = mapping.executable;
        return executable.then_some((mapping.start, Code::File(mapping)));
    }
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let executable = words.next()?.as_bytes().get(2) == Some(&b'x');
    let name = words.nth(3).unwrap_or_default().to_owned();
    let end = u64::from_str_radix(end, 16).ok()?;
    let start = u64::from_str_radix(start, 16).ok()?;
    executable.then_some((start, Code::Anonymous { end, name }))
}

/// One process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    mappings: Mappings,
    read: Instant,
    jit: Jit,
    known: HashMap<u64, Frames>,
    unwinding: Unwinding,
}

impl Process {
    /// Reads the mappings at once: the process may be gone soon.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            mappings: Mappings::read(pid),
            read: Instant::now(),
            jit: Jit::default(),
            known: HashMap::new(),
            unwinding: Unwinding::default(),
        }
    }

    /// Nothing is known of it: it was gone before we came.
    pub fn is_unknown(&self) -> bool {
        self.mappings.0.is_empty()
    }

    fn refresh_for(&mut self, address: u64) {
        if self.mappings.at(address).is_none() && self.read.elapsed() >= READ_EVERY {
            self.read = Instant::now();
            let mappings = Mappings::read(self.pid);
            // Once it is gone, what was known is all there is.
            if !mappings.0.is_empty() {
                self.mappings = mappings;
                self.known.clear();
                self.unwinding = Unwinding::default();
            }
        }
    }

    /// Finds the callers in a copy of a stack: addresses, leaf first.
    pub fn unwind(&mut self, files: &mut Files, copy: &Copy) -> Vec<u64> {
        self.refresh_for(copy.registers.ip);
        let (pid, mappings) = (self.pid, &self.mappings);
        self.unwinding.unwind(copy, |address| {
            let mapping = mappings.file_at(address)?;
            Some((mapping, files.tables(pid, mapping)))
        })
    }

    /// The frames of a stack, leaf first. The leaf lies in our own library: what it and CUPTI do on behalf of the
    /// launch is left out. An address that is no code ends the stack: unwinding was led astray.
    pub fn resolve(&mut self, files: &mut Files, addresses: &[u64]) -> Vec<Frames> {
        let Some(leaf) = addresses.first() else {
            return Vec::new();
        };
        self.refresh_for(*leaf);
        let own = self.mappings.file_at(*leaf).map(|m| m.file.clone());
        // An address to return to follows the call; the call itself is meant.
        let calls: Vec<u64> = addresses[1..].iter().map(|a| a.wrapping_sub(1)).collect();
        for call in &calls {
            self.refresh_for(*call);
        }
        let file = |call: &u64| self.mappings.file_at(*call);
        // Our hook is the last of our frames; what announces the launch may lie deep below it.
        let ours = calls
            .iter()
            .rposition(|c| file(c).map(|m| &m.file) == own.as_ref() && own.is_some());
        let rest = &calls[ours.map_or(0, |at| at + 1)..];
        let cupti = rest.iter().take_while(|c| file(c).is_some_and(is_cupti));
        let rest = &rest[cupti.count()..];
        let mut stack = Vec::new();
        for call in rest {
            match self.frames(files, *call) {
                Some(frames) => stack.push(frames),
                None => break,
            }
        }
        stack
    }

    fn frames(&mut self, files: &mut Files, address: u64) -> Option<Frames> {
        if let Some(frames) = self.known.get(&address) {
            return Some(Arc::clone(frames));
        }
        self.refresh_for(address);
        let frames = match self.mappings.at(address)? {
            Code::File(mapping) => files.frames(self.pid, mapping, address),
            Code::Anonymous { name, .. } if name.starts_with('[') => just(name.as_str()),
            Code::Anonymous { .. } => match self.jit.frames(self.pid, address) {
                Some(frames) => frames,
                // The map may come later: not remembered.
                None => return Some(just("[code made at run time]")),
            },
        };
        if self.known.len() >= ADDRESSES_MAX {
            self.known.clear();
        }
        self.known.insert(address, Arc::clone(&frames));
        Some(frames)
    }
}

fn is_cupti(mapping: &Mapping) -> bool {
    let name = mapping.path.rsplit('/').next().unwrap_or_default();
    name.starts_with("libcupti.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mappings() {
        let vdso = "7ffd1000-7ffd3000 r-xp 00000000 00:00 0                          [vdso]";
        assert!(
            matches!(code(vdso), Some((0x7ffd_1000, Code::Anonymous { name, .. })) if name == "[vdso]")
        );
        let jit = "1000-2000 rwxp 00000000 00:00 0 ";
        assert!(
            matches!(code(jit), Some((0x1000, Code::Anonymous { name, .. })) if name.is_empty())
        );
        let file = "1000-2000 r-xp 00001000 fe:01 12                     /lib/x.so";
        assert!(matches!(code(file), Some((0x1000, Code::File(_)))));
        assert!(code("1000-2000 r--p 00001000 fe:01 12 /lib/x.so").is_none());
        assert!(code("1000-2000 rw-p 00000000 00:00 0").is_none() && code("").is_none());
    }

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(here as *const () as u64)
    }

    #[test]
    fn own_frames_are_cut_off_and_nonsense_ends_a_stack() {
        let mut files = Files::default();
        let mut process = Process::new(std::process::id());
        // Any library but this program's file.
        let libc = libc::getpid as *const () as u64;
        let in_libc = process.mappings.file_at(libc).unwrap().path.clone();
        let stack = [
            here(),
            libc + 2,
            here() + 4,
            libc + 2,
            libc + 3,
            0x10,
            libc + 2,
        ];
        let frames = process.resolve(&mut files, &stack);
        let modules: Vec<&str> = frames.iter().map(|f| f[0].module.as_str()).collect();
        assert_eq!(modules, [in_libc.as_str(); 2]);
        assert_eq!(process.resolve(&mut files, &[]), Vec::<Frames>::new());
        assert!(Process::new(u32::MAX).is_unknown());
        assert!(
            Process::new(u32::MAX)
                .resolve(&mut files, &[1, 2, 3])
                .is_empty()
        );
    }
}
