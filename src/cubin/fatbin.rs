//! The cubins inside a fat binary.
//!
//! A container is a header and entries, one per architecture and kind. The layout is not documented by
//! NVIDIA; what is used here was compared with the output of the real `fatbinary` tool
//! (`tests/tests/cubin_images.rs`). Compressed entries and PTX are passed over: what the driver makes of
//! them only CUPTI can show.

use super::image::{self, Bad};
use super::memory::{IMAGE_MAX, Source};

/// First word of a container.
pub const MAGIC: u32 = 0xba55_ed50;
/// First word of the struct that points to a container.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// Bytes of the container's header: magic u32, version u16, header size u16, size of the entries u64.
const HEADER: u64 = 16;
/// Least bytes of an entry's header that are read.
const ENTRY: usize = 48;
/// Entry kind: machine code.
const KIND_ELF: u16 = 2;
/// Entry flags: payload compressed, by LZ4 or by Zstandard.
const COMPRESSED: u64 = 0x2000 | 0x8000;
/// Entries looked at; real ones have a dozen.
const ENTRIES_MAX: usize = 256;

/// An uncompressed cubin of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// Offset from the container's start.
    pub offset: u64,
    /// Length by its own headers.
    pub len: u64,
    /// SM version, such as 90.
    pub sm: u32,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

/// Where the container is that a wrapper points to.
pub fn container(wrapper: &(impl Source + ?Sized)) -> Result<u64, Bad> {
    // magic u32, version u32, pointer.
    let mut bytes = [0; 16];
    wrapper.read(0, &mut bytes)?;
    match u64::from_le_bytes(word(&bytes, 8)) {
        0 => Err(Bad::Damaged("its pointer to the container is null")),
        address => Ok(address),
    }
}

/// Length of a container.
pub fn len(source: &(impl Source + ?Sized)) -> Result<u64, Bad> {
    let mut header = [0; HEADER as usize];
    source.read(0, &mut header)?;
    if u32::from_le_bytes(word(&header, 0)) != MAGIC {
        return Err(Bad::Damaged("not a fat binary"));
    }
    let size = u64::from_le_bytes(word(&header, 8));
    HEADER
        .checked_add(size)
        .filter(|len| *len <= IMAGE_MAX)
        .ok_or(Bad::Damaged("it is longer than 1 GiB"))
}

/// Its uncompressed cubins.
pub fn cubins(source: &(impl Source + ?Sized)) -> Result<Vec<Cubin>, Bad> {
    let end = len(source)?;
    let mut found = Vec::new();
    let mut at = HEADER;
    for _ in 0..ENTRIES_MAX {
        if at + ENTRY as u64 > end {
            break;
        }
        let mut entry = [0; ENTRY];
        source.read(at, &mut entry)?;
        let kind = u16::from_le_bytes(word(&entry, 0));
        let header = u64::from(u32::from_le_bytes(word(&entry, 4)));
        let payload = u64::from_le_bytes(word(&entry, 8));
        let sm = u32::from_le_bytes(word(&entry, 28));
        let flags = u64::from_le_bytes(word(&entry, 40));
        let next = at
            .checked_add(header)
            .and_then(|at| at.checked_add(payload))
            .filter(|next| header >= ENTRY as u64 && *next <= end)
            .ok_or(Bad::Damaged("an entry goes past its end"))?;
        if kind == KIND_ELF && flags & COMPRESSED == 0 {
            let offset = at + header;
            let cubin = Within {
                source,
                offset,
                len: payload,
            };
            let len = image::cubin_len(&cubin)?;
            if len > payload {
                return Err(Bad::Damaged("a cubin is longer than its entry"));
            }
            found.push(Cubin { offset, len, sm });
        }
        at = next;
    }
    Ok(found)
}

/// A part of a source.
struct Within<'a, S: ?Sized> {
    source: &'a S,
    offset: u64,
    len: u64,
}

impl<S: Source + ?Sized> Source for Within<'_, S> {
    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let fits = offset
            .checked_add(into.len() as u64)
            .is_some_and(|end| end <= self.len);
        if !fits {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.source.read(self.offset + offset, into)
    }
}

/// The one the driver takes for a GPU: the highest SM version of the same major that is not above the
/// GPU's.
pub fn chosen(cubins: &[Cubin], gpu_sm: u32) -> Option<Cubin> {
    cubins
        .iter()
        .filter(|cubin| cubin.sm / 10 == gpu_sm / 10 && cubin.sm <= gpu_sm)
        .max_by_key(|cubin| cubin.sm)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::{Cubin, chosen, cubins, len};
    use crate::cubin::image::tests::cubin;

    fn entry(kind: u16, sm: u32, flags: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[0..2].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&64_u32.to_le_bytes());
        let padded = payload.len().next_multiple_of(8);
        bytes[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        bytes[28..32].copy_from_slice(&sm.to_le_bytes());
        bytes[40..48].copy_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(64 + padded, 0);
        bytes
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let body = entries.concat();
        let mut bytes = super::MAGIC.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[1, 0, 16, 0]);
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn uncompressed_cubins_are_found() {
        let code = cubin(&[3; 333]);
        let image = container(&[
            entry(1, 90, 0, b".version 8.0"),
            entry(2, 80, 0, &code),
            entry(2, 90, 0x2000, &[9; 50]),
            entry(2, 90, 0, &code),
        ]);
        assert_eq!(len(&image[..]).unwrap(), image.len() as u64);
        let found = cubins(&image[..]).unwrap();
        assert_eq!(found.iter().map(|c| c.sm).collect::<Vec<_>>(), [80, 90]);
        for cubin in &found {
            let at = cubin.offset as usize;
            assert_eq!(image[at..at + cubin.len as usize], code);
        }
    }

    #[test]
    fn damaged_containers_are_refused() {
        let good = container(&[entry(2, 90, 0, &cubin(&[3; 100]))]);
        let with = |at: usize, bytes: &[u8]| {
            let mut image = good.clone();
            image[at..at + bytes.len()].copy_from_slice(bytes);
            cubins(&image[..])
        };
        assert!(with(0, &[0]).is_err());
        assert!(with(8, &u64::MAX.to_le_bytes()).is_err());
        assert!(with(16 + 8, &u64::MAX.to_le_bytes()).is_err());
        assert!(
            with(16 + 4, &0_u32.to_le_bytes()).is_err(),
            "would not go on"
        );
        assert!(
            with(16 + 8, &64_u64.to_le_bytes()).is_err(),
            "cubin longer than its entry"
        );
        assert!(cubins(&good[..40]).is_err());
    }

    #[test]
    fn the_gpus_own_architecture_is_chosen() {
        let of = |sm| Cubin {
            offset: 0,
            len: 0,
            sm,
        };
        let all = [of(75), of(80), of(86), of(90)];
        assert_eq!(chosen(&all, 89).map(|c| c.sm), Some(86));
        assert_eq!(chosen(&all, 90).map(|c| c.sm), Some(90));
        assert_eq!(chosen(&all, 100), None);
    }
}
