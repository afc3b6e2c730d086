//! The line table of a cubin: which source line each instruction comes from.
//!
//! Where a function was inlined its own line counts, as the rows of the line program say it; NVIDIA's
//! extensions that tell the place of the call are passed over.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{
    AttributeValue, DebugLine, DebugLineOffset, DebugLineStr, DebugStr, EndianSlice,
    LineProgramHeader, LittleEndian,
};

use super::image::LineSections;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Rows kept of one cubin; a row takes a byte or more of its line program.
const ROWS_MAX: usize = 4 << 20;
/// Bytes of a path; longer ones are cut.
const PATH_MAX: usize = 4096;
/// Bytes of all paths of one cubin.
const PATHS_MAX: usize = 16 << 20;
const NO_FILE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    address: u64,
    file: u32,
    line: u32,
}

/// Rows of growing addresses; the last row reaches to `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sequence {
    start: u64,
    end: u64,
    rows: std::ops::Range<usize>,
}

/// A line table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    files: Vec<Arc<str>>,
    rows: Vec<Row>,
    sequences: Vec<Sequence>,
    cut: bool,
}

impl Lines {
    /// Runs the line programs. What is damaged ends the reading of its unit or of the section; what was read
    /// before counts.
    pub fn read(sections: &LineSections) -> Self {
        let mut builder = Builder::default();
        let section = DebugLine::new(&sections.line, LittleEndian);
        let mut at = 0;
        while let Ok(program) = section.program(DebugLineOffset(at), 8, None, None) {
            let header = program.header();
            let length = header.unit_length() + usize::from(header.format().initial_length_size());
            builder.files_of_unit.clear();
            let mut rows = program.rows();
            builder.begin();
            while let Ok(Some((header, row))) = rows.next_row() {
                if row.end_sequence() {
                    builder.end(row.address());
                } else {
                    let file = builder.file(header, row.file_index(), sections);
                    let line = row
                        .line()
                        .map_or(0, |l| u32::try_from(l.get()).unwrap_or(0));
                    builder.row(row.address(), file, line);
                }
            }
            builder.begin();
            let Some(next) = at.checked_add(length) else {
                break;
            };
            at = next;
        }
        builder.finish()
    }

    /// Source file (`None`: not named) and line (0: none) of the instruction at an offset of a section of
    /// code; `None` where no row reaches.
    pub fn at(&self, section: u32, offset: u64) -> Option<(Option<&Arc<str>>, u32)> {
        if offset > u64::from(u32::MAX) {
            return None;
        }
        let address = (u64::from(section) << 32) + offset;
        let after = self.sequences.partition_point(|s| s.start <= address);
        let sequence = &self.sequences[after.checked_sub(1)?];
        if address >= sequence.end {
            return None;
        }
        let rows = &self.rows[sequence.rows.clone()];
        let after = rows.partition_point(|r| r.address <= address);
        let row = rows[after.checked_sub(1)?];
        Some((self.files.get(row.file as usize), row.line))
    }

    /// There are no rows at all: the code was built without line information.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// There were more rows than are kept.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Bytes it takes in memory, about.
    pub fn size(&self) -> usize {
        let paths: usize = self.files.iter().map(|f| f.len()).sum();
        self.rows.len() * size_of::<Row>() + self.sequences.len() * size_of::<Sequence>() + paths
    }
}

#[derive(Default)]
struct Builder {
    lines: Lines,
    by_path: HashMap<Arc<str>, u32>,
    paths: usize,
    files_of_unit: HashMap<u64, u32>,
    first: usize,
    full: bool,
}

impl Builder {
    /// Forgets rows that belong to no sequence.
    fn begin(&mut self) {
        self.lines.rows.truncate(self.first);
    }

    fn row(&mut self, address: u64, file: u32, line: u32) {
        let row = Row {
            address,
            file,
            line,
        };
        let rows = &mut self.lines.rows;
        let full = rows.len() == ROWS_MAX;
        match rows[self.first..].last_mut() {
            // Of several rows at one address the last counts.
            Some(last) if last.address == address => *last = row,
            Some(last) if last.file == file && last.line == line && last.address < address => {}
            _ if full => self.full = true,
            _ => rows.push(row),
        }
    }

    fn end(&mut self, end: u64) {
        if self.full {
            // What was left out would seem to belong to the row before it.
            self.lines.cut = true;
            return self.begin();
        }
        let rows = &mut self.lines.rows[self.first..];
        // In order as DWARF demands, but not to be trusted.
        rows.sort_by_key(|r| r.address);
        // Section 0 is what a relocation did not reach: code that the linker left out.
        match rows.first() {
            Some(Row { address, .. }) if *address < end && *address >> 32 != 0 => {
                let start = *address;
                let next = self.lines.rows.len();
                self.lines.sequences.push(Sequence {
                    start,
                    end,
                    rows: self.first..next,
                });
                self.first = next;
            }
            _ => self.begin(),
        }
    }

    fn file(
        &mut self,
        header: &LineProgramHeader<Bytes<'_>>,
        index: u64,
        sections: &LineSections,
    ) -> u32 {
        if let Some(known) = self.files_of_unit.get(&index) {
            return *known;
        }
        let file = match path(header, index, sections) {
            Some(path) => self.intern(path),
            None => NO_FILE,
        };
        self.files_of_unit.insert(index, file);
        file
    }

    fn intern(&mut self, path: String) -> u32 {
        if let Some(known) = self.by_path.get(path.as_str()) {
            return *known;
        }
        self.paths += path.len();
        let next = u32::try_from(self.lines.files.len()).unwrap_or(NO_FILE);
        if self.paths > PATHS_MAX || next == NO_FILE {
            self.lines.cut = true;
            return NO_FILE;
        }
        let path: Arc<str> = path.into();
        self.lines.files.push(Arc::clone(&path));
        self.by_path.insert(path, next);
        next
    }

    fn finish(mut self) -> Lines {
        self.lines.sequences.sort_by_key(|s| s.start);
        self.lines.rows.shrink_to_fit();
        self.lines
    }
}

fn path(
    header: &LineProgramHeader<Bytes<'_>>,
    index: u64,
    sections: &LineSections,
) -> Option<String> {
    let file = header.file(index)?;
    let name = text(&file.path_name(), sections)?;
    let directory = match file.directory(header) {
        Some(value) if !name.starts_with(b"/") => text(&value, sections).unwrap_or_default(),
        _ => b"",
    };
    let mut path = Vec::with_capacity(directory.len().min(PATH_MAX) + name.len().min(PATH_MAX) + 1);
    path.extend(&directory[..directory.len().min(PATH_MAX)]);
    if !directory.is_empty() && !directory.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend(&name[..name.len().min(PATH_MAX)]);
    path.truncate(PATH_MAX);
    (!path.is_empty()).then(|| String::from_utf8_lossy(&path).into_owned())
}

fn text<'a>(value: &AttributeValue<Bytes<'a>>, sections: &'a LineSections) -> Option<&'a [u8]> {
    let text = match value {
        AttributeValue::String(text) => *text,
        AttributeValue::DebugLineStrRef(at) => {
            DebugLineStr::from(EndianSlice::new(&sections.line_str, LittleEndian))
                .get_str(*at)
                .ok()?
        }
        AttributeValue::DebugStrRef(at) => DebugStr::new(&sections.str, LittleEndian)
            .get_str(*at)
            .ok()?,
        _ => return None,
    };
    Some(text.slice())
}
