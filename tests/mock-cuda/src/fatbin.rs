//! Fat binaries: which entry the driver takes for the GPU, and what it unpacks.
//!
//! Written after NVIDIA's rules of binary compatibility and the output of the real `fatbinary`, not after the
//! library under test. Of entries that fit equally well the last one is taken; what the real driver does is
//! not known.

use crate::error::{Error, INVALID_IMAGE, NO_BINARY_FOR_GPU};

const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_ARCHITECTURE: u64 = 0x10_0000;

/// What a fat binary gives a GPU.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// An ELF file.
    Code(Vec<u8>),
    /// Text to be compiled.
    Ptx(Vec<u8>),
}

struct Entry<'a> {
    kind: u16,
    sm: u32,
    flags: u64,
    stored: usize,
    unpacked: usize,
    payload: &'a [u8],
}

impl Entry<'_> {
    fn runs_on(&self, gpu: u32) -> bool {
        let same_family = self.sm / 10 == gpu / 10;
        match self.kind {
            KIND_ELF if self.flags & FLAG_ARCHITECTURE != 0 => self.sm == gpu,
            KIND_ELF => same_family && self.sm <= gpu,
            _ => self.sm <= gpu,
        }
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let stored = self.payload.get(..self.stored);
        match self.flags & (FLAG_LZ4 | FLAG_ZSTD) {
            0 => Some(self.payload.to_vec()),
            FLAG_LZ4 => lz4_flex::block::decompress(stored?, self.unpacked).ok(),
            _ => {
                let mut unpacked = Vec::new();
                let mut source = ruzstd::decoding::StreamingDecoder::new(stored?).ok()?;
                std::io::Read::read_to_end(&mut source, &mut unpacked).ok()?;
                (unpacked.len() == self.unpacked).then_some(unpacked)
            }
        }
    }
}

/// Bytes of a container, by the 16 it begins with.
pub fn size(header: &[u8]) -> Option<usize> {
    let head = u64::from(u16::from_le_bytes(header.get(6..8)?.try_into().ok()?));
    let body = u64::from_le_bytes(header.get(8..16)?.try_into().ok()?);
    let size = head.checked_add(body).filter(|size| *size < 1 << 32)?;
    usize::try_from(size).ok()
}

/// Takes a whole container apart for a GPU. Machine code goes before PTX.
pub fn take(file: &[u8], gpu: u32) -> Result<Taken, Error> {
    let entries = entries(file).ok_or(INVALID_IMAGE)?;
    let best = |kind| {
        let fitting = entries.iter().filter(|e| e.kind == kind && e.runs_on(gpu));
        fitting.max_by_key(|e| e.sm)
    };
    let (entry, make): (_, fn(Vec<u8>) -> Taken) = match (best(KIND_ELF), best(KIND_PTX)) {
        (Some(code), _) => (code, Taken::Code),
        (None, Some(ptx)) => (ptx, Taken::Ptx),
        (None, None) => return Err(NO_BINARY_FOR_GPU),
    };
    entry.bytes().map(make).ok_or(INVALID_IMAGE)
}

fn entries(file: &[u8]) -> Option<Vec<Entry<'_>>> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?));
    let mut at = usize::from(u16_at(6)?);
    let mut entries = Vec::new();
    while at < file.len() {
        let header = u32_at(at + 4)? as usize;
        let size = usize::try_from(u64_at(at + 8)?).ok()?;
        let payload = at.checked_add(header)?;
        let end = payload.checked_add(size)?;
        entries.push(Entry {
            kind: u16_at(at)?,
            stored: u32_at(at + 16)? as usize,
            sm: u32_at(at + 28)?,
            flags: u64_at(at + 40)?,
            unpacked: usize::try_from(u64_at(at + 56)?).ok()?,
            payload: file.get(payload..end)?,
        });
        if end <= at {
            return None;
        }
        at = end;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u16, sm: u32, flags: u64, unpacked: usize, stored: &[u8]) -> Vec<u8> {
        let mut entry = vec![0; 64];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(stored.len() as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        entry[28..32].copy_from_slice(&sm.to_le_bytes());
        entry[40..48].copy_from_slice(&flags.to_le_bytes());
        entry[56..64].copy_from_slice(&(unpacked as u64).to_le_bytes());
        entry.extend(stored);
        entry
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let body = entries.concat();
        let mut file = 0xba55_ed50u32.to_le_bytes().to_vec();
        file.extend([1, 0, 16, 0]);
        file.extend((body.len() as u64).to_le_bytes());
        file.extend(body);
        assert_eq!(size(&file), Some(file.len()));
        file
    }

    #[test]
    fn the_gpu_decides() {
        let file = container(&[
            entry(KIND_ELF, 80, 0, 0, b"old"),
            entry(KIND_ELF, 90, FLAG_ARCHITECTURE, 0, b"own"),
            entry(KIND_PTX, 75, 0, 0, b"text"),
        ]);
        let of = |gpu| take(&file, gpu);
        assert_eq!(of(89), Ok(Taken::Code(b"old".to_vec())));
        assert_eq!(of(90), Ok(Taken::Code(b"own".to_vec())));
        assert_eq!(of(100), Ok(Taken::Ptx(b"text".to_vec())));
        assert_eq!(of(70), Err(NO_BINARY_FOR_GPU));
    }

    #[test]
    fn packed_entries_are_unpacked() {
        let code = b"code ".repeat(40);
        let packed = lz4_flex::block::compress(&code);
        let file = container(&[entry(KIND_ELF, 90, FLAG_LZ4, code.len(), &packed)]);
        assert_eq!(take(&file, 90), Ok(Taken::Code(code)));
        let broken = container(&[entry(KIND_ELF, 90, FLAG_ZSTD, 9, b"none")]);
        assert_eq!(take(&broken, 90), Err(INVALID_IMAGE));
    }
}
