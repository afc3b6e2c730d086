//! Names of code that was made at run time: the map that JITs write for perf.
//!
//! The file is `/tmp/perf-PID.map` as the process sees it, one line per function: address and length in
//! hexadecimal, then the name to the end of the line. It only grows; it is read on from where we were.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{FrameText, Frames, just};

/// Functions kept, and bytes of their names.
const FUNCTIONS_MAX: usize = 1 << 16;
const NAMES_MAX: usize = 8 << 20;
/// Longest name kept, bytes.
const NAME_MAX: usize = 512;
/// Read at once, bytes.
const PART: u64 = 4 << 20;
/// The file is looked at again for an unknown address at most this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The map of one process.
#[derive(Debug, Default)]
pub struct Jit {
    /// By first address: length and frame.
    functions: BTreeMap<u64, (u64, Frames)>,
    names: usize,
    read_to: u64,
    looked: Option<Instant>,
}

impl Jit {
    /// The function at an address.
    pub fn frames(&mut self, pid: u32, address: u64) -> Option<Frames> {
        if let Some(frames) = self.find(address) {
            return Some(frames);
        }
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        if let Some(file) = open(pid) {
            self.read_on(file);
        }
        self.find(address)
    }

    /// The function at an address, as far as the map was read.
    pub fn find(&self, address: u64) -> Option<Frames> {
        let (start, (length, frames)) = self.functions.range(..=address).next_back()?;
        (address - start < *length).then(|| Arc::clone(frames))
    }

    fn read_on(&mut self, mut file: File) {
        loop {
            let mut part = Vec::new();
            let read = file
                .seek(SeekFrom::Start(self.read_to))
                .and_then(|_| (&mut file).take(PART).read_to_end(&mut part));
            // A line that is still being written is for the next time.
            let Some(end) = part.iter().rposition(|b| *b == b'\n') else {
                return;
            };
            part[..end]
                .split(|b| *b == b'\n')
                .for_each(|l| self.line(l));
            self.read_to += end as u64 + 1;
            if !matches!(read, Ok(n) if n as u64 == PART) {
                return;
            }
        }
    }

    /// Takes one line of the map; what is none is passed over.
    pub fn line(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(NAME_MAX + 64)]);
        let mut words = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (Some(start), Some(length)) = (number(), number()) else {
            return;
        };
        let name = words.next().unwrap_or_default();
        let full = self.functions.len() >= FUNCTIONS_MAX || self.names + name.len() > NAMES_MAX;
        if length == 0 || full {
            return;
        }
        self.names += name.len();
        self.functions.insert(start, (length, frame(name)));
    }
}

/// CPython (3.12 and later, `-X perf`) writes `py::FUNCTION:FILE`.
fn frame(name: &str) -> Frames {
    let python = name
        .strip_prefix("py::")
        .and_then(|rest| rest.split_once(':'));
    match python {
        Some((function, file)) => Arc::new([FrameText {
            function: function.to_owned(),
            file: file.to_owned(),
            ..FrameText::default()
        }]),
        None => just(name),
    }
}

/// Opens the map if it is a plain file of the process's own user or of root, not reached by a link.
fn open(pid: u32) -> Option<File> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name));
    // The process names the file by the number it has itself.
    let inner = field("NSpid:")?.split_whitespace().next_back()?;
    let user: u32 = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(format!("/proc/{pid}/root/tmp/perf-{inner}.map"))
        .ok()?;
    let m = file.metadata().ok()?;
    (m.is_file() && (m.uid() == user || m.uid() == 0)).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_read_as_they_come() {
        let mut file = tempfile::tempfile().unwrap();
        let mut jit = Jit::default();
        let mut say = |jit: &mut Jit, text: &[u8]| {
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(text).unwrap();
            jit.read_on(file.try_clone().unwrap());
        };
        say(
            &mut jit,
            b"1000 20 LazyCompile:~go /a b.js:3\n0x2000 10 py::Model.forward:/x/model.py\n30",
        );
        assert_eq!(
            jit.find(0x1000).unwrap()[0].function,
            "LazyCompile:~go /a b.js:3"
        );
        assert!(
            jit.find(0x101f).is_some() && jit.find(0x1020).is_none() && jit.find(0xfff).is_none()
        );
        let python = &jit.find(0x2001).unwrap()[0];
        assert_eq!(
            (python.function.as_str(), python.file.as_str()),
            ("Model.forward", "/x/model.py")
        );
        assert_eq!((python.module.as_str(), python.line), ("", 0));
        assert!(jit.find(0x3000).is_none());
        say(
            &mut jit,
            b"00 8 late\nnonsense\n\n zz 1 x\n4000 0 empty\n5000 ffffffffffffffff \xff\n",
        );
        assert_eq!(jit.find(0x3007).unwrap()[0].function, "late");
        assert_eq!(jit.functions.len(), 4);
        assert!(jit.find(u64::MAX).is_some());
    }

    #[test]
    fn a_process_without_a_map_has_no_names() {
        assert!(Jit::default().frames(u32::MAX, 1).is_none());
        assert!(Jit::default().frames(std::process::id(), 1).is_none());
    }
}
