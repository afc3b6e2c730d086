//! What an image is, and how long, by its own headers and never by what somebody says.

use std::fmt;
use std::io;

use goblin::elf::header::ET_EXEC;
use goblin::elf::header::header64::{Header, SIZEOF_EHDR};
use goblin::elf::program_header::program_header64::{ProgramHeader, SIZEOF_PHDR};
use goblin::elf::section_header::SHT_NOBITS;
use goblin::elf::section_header::section_header64::{SIZEOF_SHDR, SectionHeader};

use super::memory::{IMAGE_MAX, Source};

/// `EM_CUDA`.
const EM_CUDA: u16 = 190;
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// What the first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ELF file.
    Elf,
    /// A fat binary: the container itself.
    Fatbin,
    /// The small struct by which compiled programs point to a container.
    FatbinWrapper,
    /// Anything else; PTX text among it.
    Other,
}

/// Why an image was not taken.
#[derive(Debug)]
pub enum Bad {
    /// Its bytes cannot be read.
    Unreadable(io::Error),
    /// Its headers contradict themselves or go past any sensible size.
    Damaged(&'static str),
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "it cannot be read: {error}"),
            Self::Damaged(why) => write!(f, "it is damaged: {why}"),
        }
    }
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// Looks at the first bytes.
pub fn kind(source: &(impl Source + ?Sized)) -> Result<Kind, Bad> {
    let mut magic = [0; 4];
    source.read(0, &mut magic)?;
    Ok(match (magic, u32::from_le_bytes(magic)) {
        (ELF_MAGIC, _) => Kind::Elf,
        (_, super::fatbin::MAGIC) => Kind::Fatbin,
        (_, super::fatbin::WRAPPER_MAGIC) => Kind::FatbinWrapper,
        _ => Kind::Other,
    })
}

/// Length of a cubin: the furthest end of its header tables, segments and sections.
pub fn cubin_len(source: &(impl Source + ?Sized)) -> Result<u64, Bad> {
    let mut bytes = [0; SIZEOF_EHDR];
    source.read(0, &mut bytes)?;
    // 64-bit, little endian.
    if bytes[..4] != ELF_MAGIC || bytes[4] != 2 || bytes[5] != 1 {
        return Err(Bad::Damaged("not a 64-bit little-endian ELF file"));
    }
    let header = Header::from_bytes(&bytes);
    if header.e_machine != EM_CUDA {
        return Err(Bad::Damaged("an ELF file of another machine"));
    }
    let mut end = Extent(SIZEOF_EHDR as u64);
    let sections = table(
        source,
        &mut end,
        header.e_shoff,
        header.e_shnum,
        (header.e_shentsize, SIZEOF_SHDR),
    )?;
    for section in SectionHeader::from_bytes(&sections, header.e_shnum.into()) {
        if section.sh_type != SHT_NOBITS {
            end.cover(section.sh_offset, section.sh_size)?;
        }
    }
    let segments = table(
        source,
        &mut end,
        header.e_phoff,
        header.e_phnum,
        (header.e_phentsize, SIZEOF_PHDR),
    )?;
    for segment in ProgramHeader::from_bytes(&segments, header.e_phnum.into()) {
        end.cover(segment.p_offset, segment.p_filesz)?;
    }
    Ok(end.0)
}

/// Whether a cubin is ready to run; others the driver links first.
pub fn is_linked(source: &(impl Source + ?Sized)) -> Result<bool, Bad> {
    // e_type.
    let mut kind = [0; 2];
    source.read(16, &mut kind)?;
    Ok(u16::from_le_bytes(kind) == ET_EXEC)
}

/// How far an image goes.
struct Extent(u64);

impl Extent {
    fn cover(&mut self, offset: u64, len: u64) -> Result<(), Bad> {
        let end = offset.checked_add(len).filter(|end| *end <= IMAGE_MAX);
        self.0 = self
            .0
            .max(end.ok_or(Bad::Damaged("a part of it ends beyond 1 GiB"))?);
        Ok(())
    }
}

/// The bytes of a table of headers.
fn table(
    source: &(impl Source + ?Sized),
    extent: &mut Extent,
    offset: u64,
    count: u16,
    (entry, known): (u16, usize),
) -> Result<Vec<u8>, Bad> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if usize::from(entry) != known {
        return Err(Bad::Damaged("its header tables have entries of odd size"));
    }
    let len = usize::from(count) * known;
    extent.cover(offset, len as u64)?;
    let mut bytes = vec![0; len];
    source.read(offset, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Bad, Kind, cubin_len, is_linked, kind};
    use goblin::elf::header::header64::Header;
    use goblin::elf::section_header::section_header64::SectionHeader;

    /// A cubin with one section of `payload` and its section table at the end.
    pub fn cubin(payload: &[u8]) -> Vec<u8> {
        let mut header = Header {
            e_type: super::ET_EXEC,
            e_machine: super::EM_CUDA,
            e_shoff: (64 + payload.len()) as u64,
            e_shnum: 2,
            e_shentsize: 64,
            ..Header::default()
        };
        header.e_ident[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let section = SectionHeader {
            sh_type: 1,
            sh_offset: 64,
            sh_size: payload.len() as u64,
            ..SectionHeader::default()
        };
        let mut bytes = plain(&header);
        bytes.extend_from_slice(payload);
        bytes.extend(plain(&SectionHeader::default()));
        bytes.extend(plain(&section));
        bytes
    }

    /// The bytes of a header.
    fn plain<T>(value: &T) -> Vec<u8> {
        let p = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: headers are repr(C) integers without padding.
        unsafe { std::slice::from_raw_parts(p, size_of::<T>()) }.to_vec()
    }

    #[test]
    fn the_length_is_that_of_the_furthest_part() {
        let mut bytes = cubin(&[7; 1000]);
        let len = bytes.len() as u64;
        assert_eq!(kind(&bytes[..]).unwrap(), Kind::Elf);
        assert_eq!(cubin_len(&bytes[..]).unwrap(), len);
        bytes.extend_from_slice(&[0; 500]);
        assert_eq!(cubin_len(&bytes[..]).unwrap(), len);
    }

    #[test]
    fn relocatable_code_is_not_linked() {
        let mut bytes = cubin(&[7; 10]);
        assert!(is_linked(&bytes[..]).unwrap());
        bytes[16] = 1;
        assert!(!is_linked(&bytes[..]).unwrap());
    }

    #[test]
    fn hostile_headers_are_refused() {
        let good = cubin(&[7; 100]);
        let with = |at: usize, bytes: &[u8]| {
            let mut image = good.clone();
            image[at..at + bytes.len()].copy_from_slice(bytes);
            cubin_len(&image[..])
        };
        let shoff = 40;
        let shnum = 60;
        assert!(matches!(
            with(shoff, &u64::MAX.to_le_bytes()),
            Err(Bad::Damaged(_))
        ));
        assert!(matches!(
            with(shnum, &0xffff_u16.to_le_bytes()),
            Err(Bad::Unreadable(_))
        ));
        assert!(matches!(
            with(58, &1_u16.to_le_bytes()),
            Err(Bad::Damaged(_))
        ));
        assert!(matches!(
            with(18, &62_u16.to_le_bytes()),
            Err(Bad::Damaged(_))
        ));
        assert!(matches!(with(4, &[1]), Err(Bad::Damaged(_))));
        // The section's own size, past the end of everything.
        let section = good.len() - 64 + 32;
        assert!(matches!(
            with(section, &u64::MAX.to_le_bytes()),
            Err(Bad::Damaged(_))
        ));
        for len in [0, 4, 63, 64, 100] {
            assert!(cubin_len(&good[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn text_is_something_else() {
        assert_eq!(kind(&b".version 6.0\n"[..]).unwrap(), Kind::Other);
        assert!(kind(&b".v"[..]).is_err());
    }
}
