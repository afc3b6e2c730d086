//! What we need of an ELF file: its USDT notes, segments and the symbol of the status block.
//!
//! Files of other processes may be gigabytes large or hostile: sections are read one by one, at
//! most [`SECTION_MAX`] bytes each, and every length is checked.

mod notes;
mod unwind;

use std::fs::File;
use std::os::unix::fs::FileExt;

use goblin::container::{Container, Ctx, Endian};
use goblin::elf::Elf;
use goblin::elf::header::{ET_DYN, ET_EXEC, Header};
use goblin::elf::program_header::{PF_X, PT_LOAD, ProgramHeader};
use goblin::elf::section_header::{
    SHF_COMPRESSED, SHT_DYNSYM, SHT_NOTE, SHT_STRTAB, SHT_SYMTAB, SectionHeader,
};
use goblin::elf::sym::Symtab;

use notes::long;
pub use notes::{Note, parse_notes};
pub use unwind::{Mapped, UnwindTables, unwind_tables};

const SECTION_MAX: u64 = 16 << 20;
const HEADERS_MAX: u64 = 4 << 20;
const LARGEST_PAGE: u64 = 64 << 10;

/// A segment that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    vaddr: u64,
    offset: u64,
    file_size: u64,
    executable: bool,
}

/// Pages of the architectures whose probes we know.
const PAGE: u64 = 4096;

impl Segment {
    fn has_address(&self, address: u64) -> bool {
        (self.vaddr..self.vaddr.saturating_add(self.file_size)).contains(&address)
    }

    /// Whether the mapping of this segment shows the page of the file with this offset.
    fn shows(&self, offset: u64) -> bool {
        let end = self.offset.saturating_add(self.file_size);
        self.offset & !(PAGE - 1) <= offset && offset < end.next_multiple_of(PAGE)
    }
}

/// Parts of an ELF file.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// All USDT notes, in file order.
    pub notes: Vec<Note>,
    /// Address of `parcagpu_status` before relocation.
    pub status: Option<u64>,
    /// Architecture, as ELF numbers them.
    pub machine: u16,
    segments: Vec<Segment>,
}

impl Image {
    /// The note of a probe; of several the last, as Parca's agent takes it.
    pub fn note(&self, provider: &str, name: &str) -> Option<&Note> {
        self.notes
            .iter()
            .rev()
            .find(|n| n.provider == provider && n.name == name)
    }

    /// Whether the file has a probe of the provider.
    pub fn has_provider(&self, provider: &str) -> bool {
        self.notes.iter().any(|n| n.provider == provider)
    }

    /// What to add to an address of this file where its code at `offset` is mapped to `start`.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        bias(&self.segments, start, offset)
    }
}

fn bias(segments: &[Segment], start: u64, offset: u64) -> Option<u64> {
    let segment = segments.iter().find(|s| {
        // Mappings begin at a page, which may lie before the segment.
        s.executable
            && offset.saturating_add(LARGEST_PAGE) > s.offset
            && offset < s.offset.saturating_add(s.file_size)
    })?;
    let vaddr = segment
        .vaddr
        .wrapping_add(offset)
        .wrapping_sub(segment.offset);
    Some(start.wrapping_sub(vaddr))
}

impl Image {
    /// In how many mappings of the file the page of this address shows. The kernel puts a probe, and counts
    /// a semaphore, once per mapping: more than one and counts are wrong.
    pub fn mappings_of(&self, address: u64) -> usize {
        let Some(own) = self.segments.iter().find(|s| s.has_address(address)) else {
            return 0;
        };
        let offset = address - own.vaddr + own.offset;
        self.segments.iter().filter(|s| s.shows(offset)).count()
    }
}

fn read(file: &File, offset: u64, size: u64, max: u64) -> Option<Vec<u8>> {
    if size > max {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// The NUL-terminated text at `at`; empty when there is none.
fn text_at(texts: &[u8], at: usize) -> &[u8] {
    let rest = texts.get(at..).unwrap_or_default();
    let end = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
    &rest[..end]
}

const CTX: Ctx = Ctx {
    container: Container::Big,
    le: Endian::Little,
};

fn table(file: &File, offset: u64, entry: u16, count: u16, want: usize) -> Option<Vec<u8>> {
    (usize::from(entry) == want)
        .then(|| {
            read(
                file,
                offset,
                u64::from(entry) * u64::from(count),
                HEADERS_MAX,
            )
        })
        .flatten()
}

/// What leads to everything else.
struct Parts {
    header: Header,
    sections: Vec<SectionHeader>,
    names: Vec<u8>,
}

impl Parts {
    fn of(file: &File) -> Option<Self> {
        let first = read(file, 0, 64, 64)?;
        if !first.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let header: Header = Elf::parse_header(&first).ok()?;
        if header.e_type != ET_DYN && header.e_type != ET_EXEC {
            return None;
        }
        let count = header.e_shnum;
        let bytes = table(file, header.e_shoff, header.e_shentsize, count, 64)?;
        let sections = SectionHeader::parse_from(&bytes, 0, usize::from(count), CTX).ok()?;
        let names = sections.get(usize::from(header.e_shstrndx))?;
        let names = read(file, names.sh_offset, names.sh_size, SECTION_MAX)?;
        Some(Self {
            header,
            sections,
            names,
        })
    }
}

fn segments(file: &File, header: &Header) -> Option<Vec<Segment>> {
    let bytes = table(file, header.e_phoff, header.e_phentsize, header.e_phnum, 56)?;
    let segments = ProgramHeader::parse(&bytes, 0, usize::from(header.e_phnum), CTX)
        .ok()?
        .iter()
        .filter(|p| p.p_type == PT_LOAD)
        .map(|p| Segment {
            vaddr: p.p_vaddr,
            offset: p.p_offset,
            file_size: p.p_filesz,
            executable: p.p_flags & PF_X != 0,
        })
        .collect();
    Some(segments)
}

/// How much there is to read for names of functions and lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Bytes of symbol tables and their texts.
    pub symbols: u64,
    /// Bytes of debug information, unpacked.
    pub debug: u64,
}

/// Weighs a file by what its sections say; `None` when it is not a 64-bit little-endian ELF file.
pub fn weigh(file: &File) -> Option<Weight> {
    let parts = Parts::of(file)?;
    let mut weight = Weight::default();
    for section in &parts.sections {
        let size = match u32::try_from(section.sh_flags).unwrap_or(0) & SHF_COMPRESSED {
            0 => section.sh_size,
            // The header of a packed section says how large it is unpacked.
            _ => long(&read(file, section.sh_offset, 24, 24)?, 8)?,
        };
        let name = text_at(&parts.names, section.sh_name);
        let part = match section.sh_type {
            SHT_SYMTAB | SHT_DYNSYM | SHT_STRTAB => &mut weight.symbols,
            _ if name.starts_with(b".debug") || name.starts_with(b".zdebug") => &mut weight.debug,
            _ => continue,
        };
        *part = part.saturating_add(size);
    }
    Some(weight)
}

/// Reads a file; `None` when it is not a 64-bit little-endian ELF file or has no USDT notes.
pub fn read_image(file: &File) -> Option<Image> {
    let Parts {
        header,
        sections,
        names,
    } = Parts::of(file)?;
    let note_section = sections
        .iter()
        .find(|s| s.sh_type == SHT_NOTE && text_at(&names, s.sh_name) == b".note.stapsdt")?;
    let bytes = read(
        file,
        note_section.sh_offset,
        note_section.sh_size,
        SECTION_MAX,
    )?;
    let base = sections
        .iter()
        .find(|s| text_at(&names, s.sh_name) == b".stapsdt.base")
        .map_or(0, |s| s.sh_addr);
    let notes = parse_notes(&bytes, base);
    if notes.is_empty() {
        return None;
    }

    let segments = segments(file, &header)?;
    Some(Image {
        notes,
        status: find_symbol(file, &sections, parcagpu_abi::status::SYMBOL),
        machine: header.e_machine,
        segments,
    })
}

fn find_symbol(file: &File, sections: &[SectionHeader], wanted: &str) -> Option<u64> {
    let symbols = sections.iter().find(|s| s.sh_type == SHT_DYNSYM)?;
    let strings = sections.get(usize::try_from(symbols.sh_link).ok()?)?;
    let strings = read(file, strings.sh_offset, strings.sh_size, SECTION_MAX)?;
    let bytes = read(file, symbols.sh_offset, symbols.sh_size, SECTION_MAX)?;
    let table = Symtab::parse(&bytes, 0, bytes.len() / 24, CTX).ok()?;
    table
        .iter()
        .find(|s| s.st_shndx != 0 && text_at(&strings, s.st_name) == wanted.as_bytes())
        .map(|s| s.st_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_elf_are_passed_over() {
        let text = tempfile::tempfile().unwrap();
        text.write_all_at(&[b'x'; 4096], 0).unwrap();
        assert!(read_image(&text).is_none() && weigh(&text).is_none());
        let cut = tempfile::tempfile().unwrap();
        let own = std::fs::read("/proc/self/exe").unwrap();
        cut.write_all_at(&own[..64], 0).unwrap();
        assert!(read_image(&cut).is_none());
    }

    #[test]
    fn own_file_has_symbols_and_debug_information() {
        let weight = weigh(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert!(
            weight.symbols > 10_000 && weight.debug > 10_000,
            "{weight:?}"
        );
    }

    #[test]
    fn bias_follows_the_segment_of_the_mapping() {
        let segment = |vaddr, offset| Segment {
            vaddr,
            offset,
            file_size: 0x1000,
            executable: true,
        };
        let image = Image {
            segments: vec![segment(0x2100, 0x1100)],
            ..Image::default()
        };
        assert_eq!(image.bias(0x7000_2000, 0x1000), Some(0x7000_0000));
        assert_eq!(image.bias(0x7000_0000, 0x10_0000), None);
        let at_zero = Image {
            segments: vec![segment(0x40_0000, 0)],
            ..Image::default()
        };
        assert_eq!(at_zero.bias(0x40_0000, 0), Some(0));
    }
    #[test]
    fn pages_that_two_segments_share_are_told() {
        let segment = |vaddr, offset, file_size, executable| Segment {
            vaddr,
            offset,
            file_size,
            executable,
        };
        let mut image = Image {
            segments: vec![
                segment(0, 0, 0x1234, false),
                segment(0x2234, 0x1234, 0x1000, true),
            ],
            ..Image::default()
        };
        // In the page 0x1000 of the file, which the first segment ends in.
        assert_eq!(image.mappings_of(0x2300), 2);
        assert_eq!(image.mappings_of(0x3100), 1);
        assert_eq!(image.mappings_of(0x9000), 0);
        image.segments[1] = segment(0x2000, 0x2000, 0x1000, true);
        assert_eq!(image.mappings_of(0x2300), 1);
    }
}
