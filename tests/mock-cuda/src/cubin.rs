//! Machine code for PTX: an ELF file shaped like the driver's JIT output.
//!
//! It has a `.text.NAME` section and a function symbol for every kernel. The instruction bytes are
//! drawn from a hash of the source, so equal sources give equal files and others do not.

use crate::image::KernelInfo;

const INSTRUCTIONS: usize = 64;
const INSTRUCTION_BYTES: usize = 16;

/// The ELF file for a source text and its kernels.
pub fn assemble(source: &[u8], kernels: &[KernelInfo]) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut name = |parts: &[&[u8]]| {
        let at = names.len() as u32;
        parts.iter().for_each(|part| names.extend(*part));
        names.push(0);
        at
    };
    // Sections: null, names, symbols, then one of code per kernel.
    let names_name = name(&[b".shstrtab"]);
    let symbols_name = name(&[b".symtab"]);
    let code_names: Vec<u32> = kernels
        .iter()
        .map(|kernel| name(&[b".text.", &kernel.name]))
        .collect();

    let mut file = header(kernels.len() as u16 + 3);
    let mut sections = vec![Section::default()];
    let names_at = file.len();
    file.extend(&names);
    sections.push(Section {
        name: names_name,
        kind: 3,
        offset: names_at,
        size: names.len(),
        ..Section::default()
    });
    align(&mut file);
    let symbols_at = file.len();
    file.resize(symbols_at + 24, 0);
    for (index, at) in code_names.iter().enumerate() {
        file.extend((at + ".text.".len() as u32).to_le_bytes());
        file.extend([0x12, 0x10]); // global function; the mark of a kernel entry
        file.extend((index as u16 + 3).to_le_bytes());
        file.extend(0u64.to_le_bytes());
        file.extend(((INSTRUCTIONS * INSTRUCTION_BYTES) as u64).to_le_bytes());
    }
    let size = file.len() - symbols_at;
    sections.push(Section {
        name: symbols_name,
        kind: 2,
        offset: symbols_at,
        size,
        link: 1,
        info: 1,
        entry: 24,
    });
    let mut state = seed(source);
    for at in code_names {
        align(&mut file);
        let offset = file.len();
        for _ in 0..INSTRUCTIONS * INSTRUCTION_BYTES / 8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            file.extend(state.to_le_bytes());
        }
        sections.push(Section {
            name: at,
            kind: 1,
            offset,
            size: file.len() - offset,
            ..Section::default()
        });
    }
    align(&mut file);
    let table = file.len() as u64;
    file[40..48].copy_from_slice(&table.to_le_bytes());
    sections.iter().for_each(|section| section.write(&mut file));
    file
}

fn header(sections: u16) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\x33\x07".to_vec();
    header.resize(64, 0);
    header[16..18].copy_from_slice(&2u16.to_le_bytes()); // executable
    header[18..20].copy_from_slice(&190u16.to_le_bytes()); // EM_CUDA
    header[20..24].copy_from_slice(&1u32.to_le_bytes());
    header[48..52].copy_from_slice(&0x005a_055au32.to_le_bytes()); // sm_90
    header[52..54].copy_from_slice(&64u16.to_le_bytes());
    header[58..60].copy_from_slice(&64u16.to_le_bytes());
    header[60..62].copy_from_slice(&sections.to_le_bytes());
    header[62..64].copy_from_slice(&1u16.to_le_bytes());
    header
}

#[derive(Default)]
struct Section {
    name: u32,
    kind: u32,
    offset: usize,
    size: usize,
    link: u32,
    info: u32,
    entry: u64,
}

impl Section {
    fn write(&self, file: &mut Vec<u8>) {
        file.extend(self.name.to_le_bytes());
        file.extend(self.kind.to_le_bytes());
        let flags: u64 = if self.kind == 1 { 6 } else { 0 };
        file.extend(flags.to_le_bytes());
        file.extend(0u64.to_le_bytes());
        file.extend((self.offset as u64).to_le_bytes());
        file.extend((self.size as u64).to_le_bytes());
        file.extend(self.link.to_le_bytes());
        file.extend(self.info.to_le_bytes());
        file.extend(16u64.to_le_bytes());
        file.extend(self.entry.to_le_bytes());
    }
}

fn align(file: &mut Vec<u8>) {
    file.resize(file.len().next_multiple_of(16), 0);
}

/// FNV-1a, never 0.
fn seed(source: &[u8]) -> u64 {
    source.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    }) | 1
}
