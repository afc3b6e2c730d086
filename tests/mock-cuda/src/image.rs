//! What a program hands over as code: PTX text, an ELF cubin, or a fat binary of either.
//!
//! Everything else is refused with 200. Nothing is read that the real driver would not read: text
//! up to its NUL, an ELF file up to what its headers say, a fat binary up to its own size.

use std::ffi::{CStr, c_void};

use crate::error::{Error, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE};
use crate::fatbin::{self, Taken};
use crate::{cubin, settings};

/// A kernel found in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Mangled name.
    pub name: Vec<u8>,
    /// Number of parameters, if the image tells.
    pub parameters: usize,
    /// Bytes of its code section.
    pub code_size: u64,
    /// Index of its symbol, 0 when it has none.
    pub symbol: u32,
}

/// Machine code and its kernels.
#[derive(Clone, Debug)]
pub struct Image {
    /// An ELF file.
    pub cubin: Vec<u8>,
    /// Its kernels, in order.
    pub kernels: Vec<KernelInfo>,
}

const ELF: [u8; 4] = *b"\x7fELF";
const EM_CUDA: u16 = 190;
const FATBIN: [u8; 4] = 0xba55_ed50u32.to_le_bytes();
const FATBIN_WRAPPER: [u8; 4] = 0x4662_43b1u32.to_le_bytes();
/// `SHT_SYMTAB` and `STT_FUNC`.
const SYMBOL_TABLE: u64 = 2;
const FUNCTION: u8 = 2;

/// Reads the image a program's pointer leads to.
///
/// # Safety
///
/// As the driver's: null or a whole image.
pub unsafe fn read(image: *const c_void) -> Result<Image, Error> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let start: *const u8 = image.cast();
    // SAFETY: each step reads only what the bytes before it promised, see the module's text.
    unsafe {
        // The shortest image is an empty string: one byte at a time until the kind is known.
        let kind = magic(start);
        match kind {
            Some(ELF) => from_elf(std::slice::from_raw_parts(start, elf_size(start)?).to_vec()),
            Some(FATBIN) => from_fatbin(start),
            Some(FATBIN_WRAPPER) => {
                let data = start.cast::<*const u8>().add(1).read_unaligned();
                if data.is_null() || magic(data) != Some(FATBIN) {
                    Err(INVALID_IMAGE)
                } else {
                    from_fatbin(data)
                }
            }
            _ => from_ptx(CStr::from_ptr(start.cast()).to_bytes()),
        }
    }
}

unsafe fn magic(start: *const u8) -> Option<[u8; 4]> {
    let mut magic = [0; 4];
    for (at, byte) in magic.iter_mut().enumerate() {
        // SAFETY: stops behind the first NUL, as reading a string does.
        *byte = unsafe { *start.add(at) };
        if *byte == 0 {
            return None;
        }
    }
    Some(magic)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_le_bytes(
        bytes.get(at..at.checked_add(2)?)?.try_into().ok()?,
    )))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    )))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

/// Size of an ELF file by its headers.
unsafe fn elf_size(start: *const u8) -> Result<usize, Error> {
    // SAFETY: an ELF file has a whole header; tables and sections lie where it says.
    unsafe {
        let header = std::slice::from_raw_parts(start, 64);
        let (table, count) = section_table(header).ok_or(INVALID_IMAGE)?;
        let bounded = |end: Option<u64>| end.filter(|end| *end < 1 << 32).ok_or(INVALID_IMAGE);
        let mut size = bounded(Some((table + count * 64) as u64))?;
        // Real ones end with their program headers.
        let segments = u64_at(header, 32).zip(u16_at(header, 56));
        let segments = segments.and_then(|(at, count)| at.checked_add(count * 56));
        size = size.max(bounded(segments)?);
        let headers = std::slice::from_raw_parts(start.add(table), count * 64);
        for section in headers.chunks_exact(64) {
            if u32_at(section, 4) == Some(8) {
                continue; // SHT_NOBITS takes no room in the file
            }
            let (offset, length) = (u64_at(section, 24), u64_at(section, 32));
            let end = offset
                .zip(length)
                .and_then(|(offset, length)| offset.checked_add(length));
            size = size.max(bounded(end)?);
        }
        Ok(size as usize)
    }
}

/// Offset and number of section headers of a 64-bit CUDA ELF file.
fn section_table(header: &[u8]) -> Option<(usize, usize)> {
    let right = header.get(4) == Some(&2)
        && u16_at(header, 18)? == u64::from(EM_CUDA)
        && u16_at(header, 58)? == 64;
    let (table, count) = (u64_at(header, 40)?, u16_at(header, 60)?);
    (right && table < 1 << 32).then_some((table as usize, count as usize))
}

fn from_elf(cubin: Vec<u8>) -> Result<Image, Error> {
    let kernels = elf_kernels(&cubin).ok_or(INVALID_IMAGE)?;
    Ok(Image { cubin, kernels })
}

/// Kernels are the sections `.text.NAME`.
fn elf_kernels(file: &[u8]) -> Option<Vec<KernelInfo>> {
    let (table, count) = section_table(file)?;
    let section = |index: usize| file.get(table + index * 64..table + (index + 1) * 64);
    let names = section(u16_at(file, 62)? as usize)?;
    let names = file.get(u64_at(names, 24)? as usize..)?;
    let symbols = (0..count)
        .filter_map(section)
        .find(|header| u32_at(header, 4) == Some(SYMBOL_TABLE))
        .and_then(|header| bytes_of(file, header))
        .unwrap_or_default();
    let mut kernels = Vec::new();
    for index in 0..count {
        let name = names.get(u32_at(section(index)?, 0)? as usize..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        if let Some(name) = name.strip_prefix(b".text.") {
            kernels.push(KernelInfo {
                name: name.to_vec(),
                parameters: 0,
                code_size: u64_at(section(index)?, 32)?,
                symbol: function_symbol(symbols, index as u64),
            });
        }
    }
    Some(kernels)
}

fn bytes_of<'a>(file: &'a [u8], header: &[u8]) -> Option<&'a [u8]> {
    let (offset, size) = (u64_at(header, 24)? as usize, u64_at(header, 32)? as usize);
    file.get(offset..offset.checked_add(size)?)
}

/// The first function that lies in a section.
fn function_symbol(symbols: &[u8], section: u64) -> u32 {
    symbols
        .chunks_exact(24)
        .position(|symbol| symbol[4] & 15 == FUNCTION && u16_at(symbol, 6) == Some(section))
        .unwrap_or(0) as u32
}

unsafe fn from_fatbin(start: *const u8) -> Result<Image, Error> {
    // SAFETY: the header is 16 bytes and states how many follow.
    let file = unsafe {
        let header = std::slice::from_raw_parts(start, 16);
        let size = fatbin::size(header).ok_or(INVALID_IMAGE)?;
        std::slice::from_raw_parts(start, size)
    };
    match fatbin::take(file, settings::get().sm)? {
        Taken::Code(elf) => from_elf(elf),
        Taken::Ptx(text) => from_ptx(text.split(|byte| *byte == 0).next().unwrap_or(&text)),
    }
}

fn from_ptx(text: &[u8]) -> Result<Image, Error> {
    let text = std::str::from_utf8(text).map_err(|_| INVALID_IMAGE)?;
    if !text.contains(".version") || !text.contains(".target") {
        return Err(INVALID_IMAGE);
    }
    let mut kernels = ptx_kernels(text).ok_or(INVALID_PTX)?;
    let cubin = cubin::assemble(text.as_bytes(), &kernels);
    for (kernel, code) in kernels
        .iter_mut()
        .zip(elf_kernels(&cubin).ok_or(INVALID_PTX)?)
    {
        (kernel.code_size, kernel.symbol) = (code.code_size, code.symbol);
    }
    Ok(Image { cubin, kernels })
}

/// Every `.entry NAME (PARAMETERS)`, comments left out.
fn ptx_kernels(text: &str) -> Option<Vec<KernelInfo>> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n");
    let mut kernels = Vec::new();
    let mut rest = code.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = rest[at + ".entry".len()..].trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$'))?;
        let (name, after) = rest.split_at(end);
        if name.is_empty() {
            return None;
        }
        let head = &after[..after.find('{')?];
        let parameters = head.matches(".param").count();
        kernels.push(KernelInfo {
            name: name.as_bytes().to_vec(),
            parameters,
            code_size: 0,
            symbol: 0,
        });
        rest = after;
    }
    Some(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 6.0\n.target sm_52\n// .entry not_me()\n.visible .entry _Z3addPf(.param .u64 a, .param .u32 b)\n{ ret; }\n.entry two(){ ret; }\0";

    fn load(bytes: &[u8]) -> Result<Image, Error> {
        // SAFETY: the tests pass whole images.
        unsafe { read(bytes.as_ptr().cast()) }
    }

    #[test]
    fn ptx_becomes_a_cubin_with_the_same_kernels() {
        let image = load(PTX.as_bytes()).unwrap();
        assert_eq!(
            image.kernels[0],
            KernelInfo {
                name: b"_Z3addPf".to_vec(),
                parameters: 2,
                code_size: 1024,
                symbol: 1
            }
        );
        assert_eq!(image.kernels.len(), 2);
        let again = load(&image.cubin).unwrap();
        assert_eq!(again.cubin, image.cubin, "the headers cover the whole file");
        let names = |image: &Image| {
            image
                .kernels
                .iter()
                .map(|k| k.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&again), names(&image));
    }

    #[test]
    fn others_are_refused() {
        for image in [
            &b"\0"[..],
            b"ab\0",
            b"hello world\0",
            b"\x7fELF\x01\x01\x01\0",
        ] {
            let mut padded = image.to_vec();
            padded.resize(64, 0);
            assert_eq!(load(&padded).unwrap_err(), INVALID_IMAGE);
        }
        // SAFETY: null is refused before any read.
        let null = unsafe { read(std::ptr::null()) };
        assert_eq!(null.unwrap_err(), INVALID_VALUE);
    }
}
