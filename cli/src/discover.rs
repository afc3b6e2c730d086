//! Finds the files with probes of provider `parcagpu` that processes have mapped.
//!
//! A file is opened through `/proc/PID/map_files`, which names the mapped file itself: also when it
//! was replaced on disk or lies in another mount namespace. Without the right to do so
//! (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE) `/proc/PID/root/PATH` is taken and its inode compared.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use parcagpu_abi::probe::PROVIDER;

use crate::choice::Choice;
use crate::elf::{self, Image};

/// A line of `/proc/PID/maps` that maps a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// May be executed.
    pub executable: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device and inode as the kernel prints them.
    pub file: (String, u64),
    /// Path as the process sees it.
    pub path: String,
    /// The path does not lead to this file any more.
    pub deleted: bool,
}

/// Parses one line; `None` for anonymous memory and lines that do not fit.
pub fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        rest = rest.trim_start();
        let (field, tail) = rest.split_once(' ')?;
        rest = tail;
        Some(field)
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let offset = field()?;
    let device = field()?;
    let inode = field()?.parse().ok().filter(|inode| *inode != 0)?;
    let path = rest.trim_start();
    let kept = path.strip_suffix(" (deleted)");
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        executable: permissions.as_bytes().get(2) == Some(&b'x'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        file: (device.to_owned(), inode),
        path: kept.unwrap_or(path).to_owned(),
        deleted: kept.is_some(),
    })
}

/// Identity of a file; two views of one file of an overlay are equal.
#[derive(Clone, Copy, Debug)]
pub struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    times: [i64; 4],
    overlay: bool,
}

impl PartialEq for FileId {
    /// An overlay shows a file of its lower layer under a device of its own, but uprobes attach to
    /// the file below: attached through two views, each event would come twice. Size and both
    /// times to the nanosecond tell the views of one file.
    fn eq(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
            || ((self.overlay || other.overlay)
                && (self.size, self.times) == (other.size, other.times))
    }
}

impl FileId {
    /// Of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        let m = file.metadata()?;
        // SAFETY: statfs is plain data, valid as zeros; the call fills it for an open descriptor.
        let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `fs` lives through the call and the descriptor is open.
        let rc = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut fs) };
        Ok(Self {
            device: m.dev(),
            inode: m.ino(),
            size: m.size(),
            times: [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()],
            overlay: rc == 0 && fs.f_type == libc::OVERLAYFS_SUPER_MAGIC,
        })
    }
}

/// A file with probes of ours, open.
#[derive(Debug)]
pub struct Library {
    /// The file; attach through its descriptor.
    pub file: File,
    /// Its identity.
    pub id: FileId,
    /// Its probes.
    pub image: Image,
    /// A path for people.
    pub path: String,
}

/// A process that maps a library.
#[derive(Clone, Debug)]
pub struct Found {
    /// The process.
    pub pid: u32,
    /// Its start in ticks since boot: a number may be used again.
    pub started: u64,
    /// What it maps.
    pub library: Arc<Library>,
    /// What to add to addresses of the file.
    pub bias: u64,
    /// The path leads to another file or to none.
    pub deleted: bool,
}

/// Walks the processes; remembers which files it has looked at.
#[derive(Default)]
pub struct Scanner {
    looked_at: HashMap<(String, u64), Option<Arc<Library>>>,
    refused: usize,
}

impl Scanner {
    /// Processes that are meant and map a library with our probes; one that is gone is left out.
    pub fn scan(&mut self, choice: &Choice) -> Vec<Found> {
        let mut present = HashSet::new();
        let mut found = Vec::new();
        self.refused = 0;
        for pid in choice.present() {
            match self.scan_into(pid, &mut present) {
                Ok(more) => found.extend(more),
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => self.refused += 1,
                // It ended.
                Err(_) => {}
            }
        }
        // A number may be given to another file once nobody maps this one.
        self.looked_at.retain(|file, _| present.contains(file));
        found
    }

    /// Processes of the last scan that we were not allowed to look into.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// One process. The error is that of reading its maps.
    pub fn scan_process(&mut self, pid: u32) -> io::Result<Vec<Found>> {
        self.scan_into(pid, &mut HashSet::new())
    }

    fn scan_into(
        &mut self,
        pid: u32,
        present: &mut HashSet<(String, u64)>,
    ) -> io::Result<Vec<Found>> {
        let maps = fs::read(format!("/proc/{pid}/maps"))?;
        let maps = String::from_utf8_lossy(&maps);
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        let mut started_at = None;
        let mut refused = None;
        for mapping in maps.lines().filter_map(parse_mapping) {
            if !mapping.executable || !seen.insert(mapping.file.clone()) {
                continue;
            }
            present.insert(mapping.file.clone());
            if !self.looked_at.contains_key(&mapping.file) {
                let file = match open_mapped(pid, &mapping) {
                    Ok(Some(file)) => file,
                    Ok(None) => continue,
                    Err(e) => {
                        refused = Some(e);
                        continue;
                    }
                };
                let library = open_library(file, &mapping.path).map(Arc::new);
                self.looked_at.insert(mapping.file.clone(), library);
            }
            if let Some(Some(library)) = self.looked_at.get(&mapping.file)
                && let Some(bias) = library.image.bias(mapping.start, mapping.offset)
            {
                found.push(Found {
                    pid,
                    started: *started_at.get_or_insert_with(|| started(pid).unwrap_or(0)),
                    library: Arc::clone(library),
                    bias,
                    deleted: mapping.deleted,
                });
            }
        }
        match refused {
            // Some kernels show the mappings to more than may open the files.
            Some(e) if found.is_empty() => Err(e),
            _ => Ok(found),
        }
    }
}

/// The mapped file; `None` when it cannot be reached any more, an error when we may not look.
pub fn open_mapped(pid: u32, mapping: &Mapping) -> io::Result<Option<File>> {
    let name = format!(
        "/proc/{pid}/map_files/{:x}-{:x}",
        mapping.start, mapping.end
    );
    if let Ok(file) = File::open(name) {
        return Ok(Some(file));
    }
    if mapping.deleted {
        return Ok(None);
    }
    let file = match File::open(format!("/proc/{pid}/root{}", mapping.path)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(e),
        Err(_) => return Ok(None),
    };
    Ok((file.metadata()?.ino() == mapping.file.1).then_some(file))
}

/// Takes a file if it has probes of ours.
pub fn open_library(file: File, path: &str) -> Option<Library> {
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let image = elf::read_image(&file)?;
    image.has_provider(PROVIDER).then_some(())?;
    Some(Library {
        id: FileId::of(&file).ok()?,
        file,
        image,
        path: path.to_owned(),
    })
}

/// The processes of this PID namespace, ours left out.
pub fn pids() -> Vec<u32> {
    let own = std::process::id();
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .map(|dir| {
            dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
                .filter(|pid| *pid != own)
                .collect()
        })
        .unwrap_or_default();
    pids.sort_unstable();
    pids
}

/// The fields of /proc/PID/stat that follow the name, from the state on.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let end = stat.iter().rposition(|b| *b == b')')?;
    Some(String::from_utf8_lossy(stat.get(end + 2..)?).into_owned())
}

/// Whether a process has not ended; one that ended but was not waited for counts as ended.
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// The process that started another; `None`: it is gone, or there is none.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid)?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()
        .filter(|parent| *parent != 0)
}

/// Start of a process in ticks since boot.
fn started(pid: u32) -> Option<u64> {
    stat(pid)?.split(' ').nth(19)?.parse().ok()
}

/// Name of a process; empty when it is gone.
pub fn comm(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/comm"))
        .map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_lines() {
        let line = "7f10a0000000-7f10a0021000 r-xp 00001000 fe:01 1234                       /opt/a b/lib x.so (deleted)";
        let m = parse_mapping(line).unwrap();
        assert_eq!(
            (m.start, m.end, m.offset),
            (0x7f10_a000_0000, 0x7f10_a002_1000, 0x1000)
        );
        assert_eq!(m.file, ("fe:01".to_owned(), 1234));
        assert_eq!(m.path, "/opt/a b/lib x.so");
        assert!(m.deleted && m.executable);
        let anonymous = "7ffd0000-7ffe0000 rw-p 00000000 00:00 0                          [stack]";
        assert_eq!(parse_mapping(anonymous), None);
        assert_eq!(parse_mapping("zz-1 r-xp 0 0:0 7 /x"), None);
        assert_eq!(parse_mapping(""), None);
    }

    #[test]
    fn a_file_without_our_probes_is_no_library() {
        let own = File::open("/proc/self/exe").unwrap();
        assert!(open_library(own, "self").is_none());
        assert!(open_library(File::open("/").unwrap(), "/").is_none());
    }

    #[test]
    fn own_process_can_be_scanned() {
        let found = Scanner::default().scan_process(std::process::id()).unwrap();
        assert!(found.is_empty());
    }

    #[test]
    fn a_process_that_ended_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn copies_are_different_files() {
        let (a, b) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        assert!(FileId::of(&a).unwrap() == FileId::of(&a).unwrap());
        assert!(FileId::of(&a).unwrap() != FileId::of(&b).unwrap());
    }
}
