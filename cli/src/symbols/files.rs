//! Names for offsets in the files that processes map.
//!
//! A file is opened once, whoever maps it, and kept open: its names are there when the process is gone.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};

use super::shrunk::reading;
use super::{FrameText, Frames};
use crate::discover::{Mapping, open_mapped};
use crate::elf::{self, UnwindTables};

/// Files kept open; more of them begin anew.
const FILES_MAX: usize = 512;
/// Offsets of one file that are remembered.
const OFFSETS_MAX: usize = 1 << 14;
/// Longest name kept, bytes.
const NAME_MAX: usize = 1024;
/// Symbol tables larger than this are not read, bytes.
const SYMBOLS_MAX: u64 = 256 << 20;
/// Debug information larger than this is not read, bytes.
const DEBUG_MAX: u64 = 1 << 30;

/// Tables for unwinding larger than this are not read, bytes; and so many are kept in all.
const TABLE_MAX: u64 = 128 << 20;
const TABLES_MAX: usize = 256 << 20;

/// A file as the kernel names it: device and inode.
type Key = (String, u64);

#[derive(Debug)]
struct Opened {
    /// `None`: there is nothing to read in it.
    file: Option<File>,
    debug: bool,
    known: HashMap<u64, Frames>,
    /// `None`: not read yet.
    tables: Option<Arc<UnwindTables>>,
}

/// See the module.
#[derive(Debug)]
pub struct Files {
    symbolizer: Symbolizer,
    opened: HashMap<Key, Opened>,
    tables: usize,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            symbolizer: Symbolizer::new(),
            opened: HashMap::new(),
            tables: 0,
        }
    }
}

impl Files {
    /// Opens the file of a mapping, so that it is there later.
    pub fn open(&mut self, pid: u32, mapping: &Mapping) {
        if self.opened.contains_key(&mapping.file) {
            return;
        }
        if self.opened.len() >= FILES_MAX {
            *self = Self::default();
        }
        let opened = Opened::new(pid, mapping);
        self.opened.insert(mapping.file.clone(), opened);
    }

    /// How the callers of the functions in a mapping are found; empty where the file does not say.
    pub fn tables(&mut self, pid: u32, mapping: &Mapping) -> Arc<UnwindTables> {
        self.open(pid, mapping);
        let opened = self
            .opened
            .get_mut(&mapping.file)
            .expect("opened just above");
        if let Some(tables) = &opened.tables {
            return Arc::clone(tables);
        }
        let left = TABLES_MAX.saturating_sub(self.tables) as u64;
        let file = opened.file.as_ref();
        let tables = file.and_then(|f| elf::unwind_tables(f, TABLE_MAX.min(left / 2)));
        let tables = Arc::new(tables.unwrap_or_default());
        self.tables += tables.size();
        opened.tables = Some(Arc::clone(&tables));
        tables
    }

    /// The frames at an address in a mapping.
    pub fn frames(&mut self, pid: u32, mapping: &Mapping, address: u64) -> Frames {
        self.open(pid, mapping);
        let offset = (address - mapping.start).wrapping_add(mapping.offset);
        let opened = self
            .opened
            .get_mut(&mapping.file)
            .expect("opened just above");
        if let Some(frames) = opened.known.get(&offset) {
            return Arc::clone(frames);
        }
        let resolved = opened.file.as_ref().map(|file| {
            let symbolizer = AssertUnwindSafe(&self.symbolizer);
            let debug = opened.debug;
            reading(|| catch_unwind(|| resolve(&symbolizer, file, debug, offset, &mapping.path)))
        });
        let frames = match resolved {
            Some((Ok(frames), false)) => frames,
            Some((Err(_), _) | (_, true)) => {
                // Whatever it left behind is not used again, nor is the file.
                self.symbolizer = Symbolizer::new();
                opened.file = None;
                None
            }
            None => None,
        };
        let frames = frames.unwrap_or_else(|| unresolved(&mapping.path, offset));
        if opened.known.len() >= OFFSETS_MAX {
            opened.known.clear();
        }
        opened.known.insert(offset, Arc::clone(&frames));
        frames
    }
}

impl Opened {
    fn new(pid: u32, mapping: &Mapping) -> Self {
        let file = open_mapped(pid, mapping).ok().flatten();
        let file = file.or_else(|| open_here(mapping));
        let weight = file.as_ref().and_then(elf::weigh);
        let readable = weight.is_some_and(|w| w.symbols <= SYMBOLS_MAX);
        Self {
            file: file.filter(|_| readable),
            debug: weight.is_some_and(|w| w.debug <= DEBUG_MAX),
            known: HashMap::new(),
            tables: None,
        }
    }
}

/// The process is gone, but the same file may be there for us under the same path.
fn open_here(mapping: &Mapping) -> Option<File> {
    let file = File::open(&mapping.path).ok()?;
    let m = file.metadata().ok()?;
    let device = format!("{:02x}:{:02x}", libc::major(m.dev()), libc::minor(m.dev()));
    (m.is_file() && (device, m.ino()) == mapping.file && !mapping.deleted).then_some(file)
}

fn resolve(
    symbolizer: &Symbolizer,
    file: &File,
    debug: bool,
    offset: u64,
    module: &str,
) -> Option<Frames> {
    let mut elf = Elf::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    elf.debug_syms = debug;
    let found = symbolizer
        .symbolize_single(&Source::Elf(elf), Input::FileOffset(offset))
        .ok()?;
    let Symbolized::Sym(sym) = found else {
        return None;
    };
    Some(frames_of(&sym, module))
}

/// Inlined functions first, innermost at the very front; the line of each is where the next inner one is called.
fn frames_of(sym: &Sym<'_>, module: &str) -> Frames {
    let frame = |name: &str, code: Option<&CodeInfo<'_>>| FrameText {
        function: cut(name),
        module: cut(module),
        file: code.map_or_else(String::new, |c| cut(&c.to_path().to_string_lossy())),
        line: code.and_then(|c| c.line).unwrap_or(0),
    };
    let inlined = sym.inlined.iter().rev();
    inlined
        .map(|f| frame(&f.name, f.code_info.as_ref()))
        .chain([frame(&sym.name, sym.code_info.as_deref())])
        .collect()
}

/// Names come from files that may be made to do harm.
fn cut(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX) {
        Some((end, _)) => name[..end].to_owned() + "…",
        None => name.to_owned(),
    }
}

fn unresolved(path: &str, offset: u64) -> Frames {
    let file = Path::new(path).file_name();
    let file = file.map_or_else(|| path.into(), |name| name.to_string_lossy());
    Arc::new([FrameText {
        function: format!("[{file}+{offset:#x}]"),
        module: path.to_owned(),
        ..FrameText::default()
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::process::Mappings;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[inline(never)]
    fn a_function_of_this_name() -> u64 {
        std::hint::black_box(a_function_of_this_name as *const () as u64)
    }

    #[test]
    fn own_functions_have_names_files_and_lines() {
        let pid = std::process::id();
        let mappings = Mappings::read(pid);
        let address = a_function_of_this_name() + 1;
        let mapping = mappings.file_at(address).unwrap();
        let mut files = Files::default();
        let frames = files.frames(pid, mapping, address);
        let frame = frames.last().unwrap();
        assert!(
            frame.function.ends_with("a_function_of_this_name"),
            "{frame:?}"
        );
        assert!(
            frame.file.ends_with("symbols/files.rs") && frame.line > 0,
            "{frame:?}"
        );
        assert_eq!(frame.module, mapping.path);
        assert_eq!(files.opened.values().next().unwrap().known.len(), 1);
        assert_eq!(files.frames(pid, mapping, address), frames);
    }

    /// Without [`reading`] this is the end of the process, within the first few tries.
    #[test]
    fn files_that_get_shorter_while_they_are_read_lose_names_and_nothing_else() {
        let mappings = Mappings::read(std::process::id());
        let address = libc::getpid as *const () as u64;
        let mapping = mappings.file_at(address).unwrap();
        let content = std::fs::read(&mapping.path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.so");
        std::fs::write(&path, &content).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let m = file.metadata().unwrap();
        let (major, minor) = (libc::major(m.dev()), libc::minor(m.dev()));
        let copy = Mapping {
            file: (format!("{major:02x}:{minor:02x}"), m.ino()),
            path: path.to_string_lossy().into_owned(),
            ..mapping.clone()
        };
        let name = || {
            Files::default().frames(u32::MAX, &copy, address)[0]
                .function
                .clone()
        };
        let whole = name();
        assert!(whole.ends_with("getpid"), "{whole}");
        let nameless = unresolved(&copy.path, address - mapping.start + mapping.offset);
        let over = AtomicBool::new(false);
        let wrong = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    file.set_len(4096).unwrap();
                    file.write_all_at(&content, 0).unwrap();
                }
            });
            let names = std::iter::repeat_with(name).take(500);
            let wrong = names.filter(|n| *n != whole && *n != nameless[0].function);
            let wrong: Vec<String> = wrong.collect();
            over.store(true, Ordering::Relaxed);
            wrong
        });
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!(name(), whole);
    }

    #[test]
    fn what_cannot_be_resolved_is_file_and_offset() {
        let mapping = Mapping {
            start: 0x1000,
            end: 0x2000,
            executable: true,
            offset: 0x500,
            file: ("00:00".to_owned(), 1),
            path: "/nowhere/lib x.so".to_owned(),
            deleted: false,
        };
        let frames = Files::default().frames(u32::MAX, &mapping, 0x1010);
        assert_eq!(frames[0].function, "[lib x.so+0x510]");
        assert_eq!(frames[0].module, "/nowhere/lib x.so");
    }
}
