//! Reads announced cubins from the memory of their process.
//!
//! Nothing that the process says is believed: not the size, not that the memory is there, not that its bytes are
//! what was announced. What does not hold is told in words.

use std::fmt;

use crate::memory::Memory;
use crate::recording::writer::CUBIN_PART;
use crate::session::ProcessId;

pub use crate::recording::format::CUBIN_MAX;

/// What `cubin_loaded` said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Who.
    pub process: ProcessId,
    /// CRC-32 of the bytes, zero-extended.
    pub crc: u64,
    /// Address in the process.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// Why a cubin could not be had from its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is said to have so many bytes.
    Size(u64),
    /// The process has ended.
    Gone,
    /// Its memory may not be read.
    Denied,
    /// After so many bytes there was no more to read.
    Short(u64),
    /// The bytes have this checksum, not the one that was announced.
    Checksum(u32),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(f, "it is said to have {size} bytes"),
            Self::Gone => f.write_str("the process ended before its memory was read"),
            Self::Denied => f.write_str("the process's memory may not be read (CAP_SYS_PTRACE)"),
            Self::Short(read) => write!(f, "only {read} of its bytes can be read"),
            Self::Checksum(found) => write!(f, "its bytes have the checksum {found:#010x}"),
        }
    }
}

impl std::error::Error for Unread {}

/// Reads a cubin and verifies its checksum.
pub fn read(announced: &Announced) -> Result<Vec<u8>, Unread> {
    let mut bytes = Vec::new();
    parts(announced, |_, part| {
        bytes.extend_from_slice(part);
        true
    })?;
    verify(announced.crc, &bytes)?;
    Ok(bytes)
}

/// Verifies the checksum of a cubin of which no more than a part is kept at a time.
pub fn check(announced: &Announced) -> Result<(), Unread> {
    let mut hasher = crc32fast::Hasher::new();
    parts(announced, |_, part| {
        hasher.update(part);
        true
    })?;
    matches(announced.crc, hasher.finalize())
}

/// Calls with the offset and bytes of part after part, of [`CUBIN_PART`] bytes but for the last, until it is told false.
pub fn parts(
    announced: &Announced,
    mut take: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), Unread> {
    let size = announced.size;
    if size == 0 || size > CUBIN_MAX {
        return Err(Unread::Size(size));
    }
    let mut memory = Memory::of(announced.process.pid);
    let mut part = Vec::new();
    let mut offset = 0;
    while offset < size {
        let wanted = CUBIN_PART.min((size - offset) as usize);
        let at = part.len();
        part.resize(wanted, 0);
        let address = announced.address.wrapping_add(offset + at as u64);
        let read = match memory.read_at(&mut part[at..], address) {
            Ok(0) => return Err(Unread::Short(offset + at as u64)),
            Ok(n) => n,
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR) => 0,
                Some(libc::ESRCH | libc::ENOENT) => return Err(Unread::Gone),
                Some(libc::EPERM | libc::EACCES) => return Err(Unread::Denied),
                _ => return Err(Unread::Short(offset + at as u64)),
            },
        };
        part.truncate(at + read);
        if part.len() == wanted {
            if !take(offset, &part) {
                return Ok(());
            }
            offset += wanted as u64;
            part.clear();
        }
    }
    Ok(())
}

/// Whether bytes have a checksum.
pub fn verify(crc: u64, bytes: &[u8]) -> Result<(), Unread> {
    matches(crc, crc32fast::hash(bytes))
}

fn matches(crc: u64, found: u32) -> Result<(), Unread> {
    if u64::from(found) == crc {
        Ok(())
    } else {
        Err(Unread::Checksum(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_ours(bytes: &[u8]) -> Announced {
        Announced {
            process: ProcessId {
                pid: std::process::id(),
                start_ns: 0,
            },
            crc: crc32fast::hash(bytes).into(),
            address: bytes.as_ptr() as u64,
            size: bytes.len() as u64,
        }
    }

    #[test]
    fn bytes_come_whole_or_the_reason_is_told() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7) as u8).collect();
        let right = of_ours(&bytes);
        assert_eq!(read(&right), Ok(bytes.clone()));
        assert_eq!(check(&right), Ok(()));
        let other = Announced {
            crc: right.crc ^ 1,
            ..right
        };
        assert_eq!(read(&other), Err(Unread::Checksum(right.crc as u32)));
        assert_eq!(check(&other), Err(Unread::Checksum(right.crc as u32)));
        // The agent's contract: a checksum is 32 bits wide.
        let wide = Announced {
            crc: right.crc | 1 << 32,
            ..right
        };
        assert_eq!(read(&wide), Err(Unread::Checksum(right.crc as u32)));
        for size in [0, CUBIN_MAX + 1, u64::MAX] {
            let lie = Announced { size, ..right };
            assert_eq!(read(&lie), Err(Unread::Size(size)));
        }
        for address in [0, 8, u64::MAX, 1 << 63, u64::MAX - 100] {
            let lie = Announced { address, ..right };
            assert_eq!(read(&lie), Err(Unread::Short(0)), "{address:#x}");
        }
        let nobody = Announced {
            process: ProcessId {
                pid: u32::MAX,
                start_ns: 0,
            },
            ..right
        };
        assert_eq!(read(&nobody), Err(Unread::Gone));
    }

    #[test]
    fn memory_that_ends_early_is_short() {
        let page = 4096;
        // SAFETY: a new mapping, of which nothing else knows.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: the last two pages of that mapping, which nobody uses.
        assert_eq!(unsafe { libc::munmap(map.byte_add(2 * page), 2 * page) }, 0);
        let lie = Announced {
            process: ProcessId {
                pid: std::process::id(),
                start_ns: 0,
            },
            crc: 0,
            address: map as u64,
            size: CUBIN_MAX,
        };
        let read = read(&lie);
        assert!(
            matches!(read, Err(Unread::Short(n)) if n >= 2 * page as u64),
            "{read:?}"
        );
        // SAFETY: what is left of the mapping.
        unsafe { libc::munmap(map, 2 * page) };
    }
}
