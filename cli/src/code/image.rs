//! What is needed of a cubin's ELF file: its functions, its sections of code, and the DWARF sections of lines
//! with their relocations applied.
//!
//! Cubins come in two ABIs: OSABI 0x33 with ABI version 7 (CUDA 12 and older) and OSABI 0x41 with version 8
//! (CUDA 13; CUDA 12 for the newest GPUs). Here they differ in the place of the SM number only.
//! The bytes come from another process and may be anything: they are read in place, every offset is checked,
//! and what is copied has a limit.

use std::sync::Arc;

use object::elf::{
    EM_CUDA, FileHeader64, RelocationType, SHF_EXECINSTR, SHT_PROGBITS, SHT_SYMTAB, STT_FUNC,
};
use object::read::elf::{FileHeader, Rel, Rela, SectionHeader, SectionTable, Sym, SymbolTable};
use object::{LittleEndian, SymbolIndex};

type Elf = FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

/// Relocation of a 64-bit address; the only kind in sections of lines.
const R_CUDA_64: RelocationType = RelocationType(2);
/// Bytes of the smallest relocation.
const RELOCATION: usize = 16;
/// Functions kept of one cubin.
const FUNCTIONS_MAX: usize = 1 << 20;
/// Bytes of their names, all together.
const NAMES_MAX: usize = 64 << 20;

/// The bytes are no cubin that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotACubin(pub &'static str);

impl std::fmt::Display for NotACubin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotACubin {}

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSymbol {
    /// Index in the symbol table.
    pub index: u32,
    /// Mangled.
    pub name: Arc<[u8]>,
    /// Section that has its code.
    pub section: u32,
    /// Where it begins in that section.
    pub start: u64,
    /// Bytes of code.
    pub size: u64,
}

/// A section of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeSection {
    /// Index in the section table.
    pub index: u32,
    /// `.text.` and the name of a kernel.
    pub name: Box<[u8]>,
    /// Bytes.
    pub size: u64,
}

/// The DWARF sections of lines; empty where a cubin has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineSections {
    /// `.debug_line`; an address is (section index << 32) + offset in that section.
    pub line: Vec<u8>,
    /// `.debug_line_str`
    pub line_str: Vec<u8>,
    /// `.debug_str`
    pub str: Vec<u8>,
}

/// The parts of a cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Compute capability, major and minor as one number (90); `None` for an ABI not known.
    pub sm: Option<u32>,
    /// In the order of the symbol table.
    pub functions: Vec<FunctionSymbol>,
    /// In the order of the section table.
    pub code: Vec<CodeSection>,
    /// What the line program needs.
    pub lines: LineSections,
}

impl Image {
    /// Takes a cubin apart.
    pub fn read(bytes: &[u8]) -> Result<Self, NotACubin> {
        let bad = |why| move |_| NotACubin(why);
        let header = Elf::parse(bytes).map_err(bad("it is no 64-bit ELF file"))?;
        if header.e_machine(LE) != EM_CUDA || !header.is_little_endian() {
            return Err(NotACubin("it is an ELF file of another machine"));
        }
        let sections = header
            .sections(LE, bytes)
            .map_err(bad("its section table is damaged"))?;
        let symbols = sections
            .symbols(LE, bytes, SHT_SYMTAB)
            .map_err(bad("its symbol table is damaged"))?;
        let code = code_sections(&sections, bytes)?;
        Ok(Self {
            sm: sm(header),
            functions: functions(&symbols, &code),
            lines: LineSections {
                line: debug_line(&sections, &symbols, bytes),
                line_str: content(&sections, bytes, b".debug_line_str").to_vec(),
                str: content(&sections, bytes, b".debug_str").to_vec(),
            },
            code,
        })
    }
}

fn sm(header: &Elf) -> Option<u32> {
    let flags = header.e_flags(LE).0;
    match header.e_ident().os_abi.0 {
        0x33 => Some(flags & 0xff),
        0x41 => Some(flags >> 8 & 0xff),
        _ => None,
    }
}

fn code_sections(
    sections: &SectionTable<'_, Elf>,
    bytes: &[u8],
) -> Result<Vec<CodeSection>, NotACubin> {
    let mut names = 0;
    let mut code = Vec::new();
    for (index, section) in sections.enumerate() {
        if section.sh_type(LE) != SHT_PROGBITS || !section.sh_flags(LE).contains(SHF_EXECINSTR) {
            continue;
        }
        let name = sections.section_name(LE, section).unwrap_or_default();
        names += name.len();
        if names > NAMES_MAX {
            return Err(NotACubin("its names are too long"));
        }
        let whole = section.data(LE, bytes).is_ok();
        code.push(CodeSection {
            index: u32::try_from(index.0).map_err(|_| NotACubin("it has too many sections"))?,
            name: name.into(),
            size: if whole { section.sh_size(LE) } else { 0 },
        });
    }
    Ok(code)
}

fn functions(symbols: &SymbolTable<'_, Elf>, code: &[CodeSection]) -> Vec<FunctionSymbol> {
    let mut names = 0;
    let mut functions = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.st_type() != STT_FUNC {
            continue;
        }
        let Some(section) = section_of(symbols, symbol, index) else {
            continue;
        };
        let Ok(at) = code.binary_search_by_key(&section, |c| c.index) else {
            continue;
        };
        let name = symbols.symbol_name(LE, symbol).unwrap_or_default();
        names += name.len();
        if names > NAMES_MAX || functions.len() == FUNCTIONS_MAX {
            break;
        }
        if symbol.st_value(LE) < code[at].size {
            functions.push(FunctionSymbol {
                index: index.0 as u32,
                name: name.into(),
                section,
                start: symbol.st_value(LE),
                size: symbol.st_size(LE),
            });
        }
    }
    functions
}

fn section_of(
    symbols: &SymbolTable<'_, Elf>,
    symbol: &<Elf as FileHeader>::Sym,
    index: SymbolIndex,
) -> Option<u32> {
    let section = symbols.symbol_section(LE, symbol, index).ok()??;
    u32::try_from(section.0).ok()
}

fn content<'a>(sections: &SectionTable<'a, Elf>, bytes: &'a [u8], name: &[u8]) -> &'a [u8] {
    sections
        .section_by_name(LE, name)
        .and_then(|(_, section)| section.data(LE, bytes).ok())
        .unwrap_or_default()
}

/// The line program after its relocations: they say which function each of its parts is about.
fn debug_line(
    sections: &SectionTable<'_, Elf>,
    symbols: &SymbolTable<'_, Elf>,
    bytes: &[u8],
) -> Vec<u8> {
    let Some((own_index, section)) = sections.section_by_name(LE, b".debug_line") else {
        return Vec::new();
    };
    let mut line = section.data(LE, bytes).unwrap_or_default().to_vec();
    // Many sections may claim the same bytes: all together have no more entries than there is room for.
    let mut left = bytes.len() / RELOCATION;
    for relocations in sections.iter() {
        if relocations.info_link(LE) != own_index {
            continue;
        }
        if let Ok(Some((entries, _))) = relocations.rela(LE, bytes) {
            let entries = &entries[..entries.len().min(left)];
            left -= entries.len();
            for entry in entries {
                if entry.r_type(LE, false) == R_CUDA_64 {
                    let addend = entry.r_addend(LE).cast_unsigned();
                    relocate(
                        &mut line,
                        symbols,
                        entry.r_offset(LE),
                        entry.r_sym(LE, false),
                        Some(addend),
                    );
                }
            }
        } else if let Ok(Some((entries, _))) = relocations.rel(LE, bytes) {
            let entries = &entries[..entries.len().min(left)];
            left -= entries.len();
            for entry in entries {
                if entry.r_type(LE) == R_CUDA_64 {
                    relocate(
                        &mut line,
                        symbols,
                        entry.r_offset(LE),
                        entry.r_sym(LE),
                        None,
                    );
                }
            }
        }
    }
    line
}

/// Without an addend, the one that stands in the place counts.
fn relocate(
    line: &mut [u8],
    symbols: &SymbolTable<'_, Elf>,
    at: u64,
    symbol: u32,
    addend: Option<u64>,
) {
    let index = SymbolIndex(symbol as usize);
    let Ok(symbol) = symbols.symbol(index) else {
        return;
    };
    let Some(section) = section_of(symbols, symbol, index) else {
        return;
    };
    let place = usize::try_from(at)
        .ok()
        .and_then(|at| line.get_mut(at..at.checked_add(8)?));
    let Some(place) = place.and_then(|p| <&mut [u8; 8]>::try_from(p).ok()) else {
        return;
    };
    let addend = addend.unwrap_or_else(|| u64::from_le_bytes(*place));
    let offset = symbol.st_value(LE).wrapping_add(addend);
    *place = (u64::from(section) << 32)
        .wrapping_add(offset)
        .to_le_bytes();
}
