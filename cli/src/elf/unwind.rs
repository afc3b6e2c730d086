//! The tables of a file by which callers are found.

use std::fs::File;
use std::sync::Arc;

use goblin::elf::section_header::SHT_NOBITS;

use super::{Parts, Segment, bias, read, segments, text_at};

/// A section as it is mapped: its address before relocation, and its bytes.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// Where it stands.
    pub address: u64,
    /// What is in it.
    pub bytes: Arc<[u8]>,
}

/// How the callers of a file's functions are found.
#[derive(Clone, Debug, Default)]
pub struct UnwindTables {
    segments: Vec<Segment>,
    /// `.eh_frame`
    pub eh_frame: Option<Mapped>,
    /// `.eh_frame_hdr`
    pub eh_frame_hdr: Option<Mapped>,
    /// Address and bytes of `.text`.
    pub text: Option<(u64, u64)>,
    /// Address and bytes of `.got`.
    pub got: Option<(u64, u64)>,
}

impl UnwindTables {
    /// See [`Image::bias`].
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        bias(&self.segments, start, offset)
    }

    /// Bytes that are kept.
    pub fn size(&self) -> usize {
        let sections = [&self.eh_frame, &self.eh_frame_hdr];
        sections.into_iter().flatten().map(|s| s.bytes.len()).sum()
    }
}

/// Reads the tables for unwinding; sections larger than `max` bytes are left out. `None` when it is not a 64-bit
/// little-endian ELF file.
pub fn unwind_tables(file: &File, max: u64) -> Option<UnwindTables> {
    let parts = Parts::of(file)?;
    let mut tables = UnwindTables {
        segments: segments(file, &parts.header)?,
        ..UnwindTables::default()
    };
    for section in &parts.sections {
        let mapped = || {
            Some(Mapped {
                address: section.sh_addr,
                bytes: read(file, section.sh_offset, section.sh_size, max)?.into(),
            })
        };
        match text_at(&parts.names, section.sh_name) {
            b".eh_frame" if section.sh_type != SHT_NOBITS => tables.eh_frame = mapped(),
            b".eh_frame_hdr" if section.sh_type != SHT_NOBITS => tables.eh_frame_hdr = mapped(),
            b".text" => tables.text = Some((section.sh_addr, section.sh_size)),
            b".got" => tables.got = Some((section.sh_addr, section.sh_size)),
            _ => {}
        }
    }
    Some(tables)
}
