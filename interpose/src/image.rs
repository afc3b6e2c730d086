//! A library as it lies in memory, read with every address checked.
//!
//! The dynamic loader is at work while we look (old ones have not even
//! relocated the library), so nothing may be asked of it: everything comes
//! from the mapped file itself. Lifetime: only while the loader's lock, or the
//! single thread of program start, keeps the library mapped.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::maps::{self, Mapping};

const EHDR: usize = 64;
const PHDR: usize = 56;
const PT_LOAD: u32 = 1;

/// Where the loader says that a library is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Difference between addresses in memory and in the file.
    pub base: usize,
    /// Address of its dynamic section.
    pub dynamic: usize,
}

/// A mapped library.
#[derive(Debug)]
pub(crate) struct Image {
    pub place: Place,
    /// The part of the address space that it takes.
    end: usize,
    /// Its mappings of the file, by ascending address.
    parts: Vec<Mapping>,
    /// The file, when it is still the one that was mapped.
    file: Option<File>,
}

impl Image {
    /// Finds the library's mappings. The error is a sentence for people.
    pub fn open(place: Place) -> Result<Image, String> {
        let all = maps::current().map_err(|e| format!("cannot read /proc/self/maps: {e}"))?;
        let head = all
            .iter()
            .find(|m| m.start == place.base && m.offset == 0 && m.inode != 0 && m.read)
            .ok_or("no file is mapped at its base address")?
            .clone();
        let mut image = Image {
            place,
            end: head.end,
            parts: vec![head.clone()],
            file: None,
        };
        image.end = image.extent().ok_or("its ELF header cannot be read")?;
        image.parts = all
            .into_iter()
            .filter(|m| {
                m.inode == head.inode
                    && m.device == head.device
                    && m.start >= place.base
                    && m.end <= image.end
            })
            .collect();
        image.file = File::open(&head.path)
            .ok()
            .filter(|f| f.metadata().is_ok_and(|m| m.ino() == head.inode));
        Ok(image)
    }

    /// End of the last loadable segment, rounded up to whole pages.
    fn extent(&self) -> Option<usize> {
        let header: [u8; EHDR] = self.read(self.place.base)?;
        // 64-bit, little endian: the only kind this crate is built for.
        if header[..6] != *b"\x7fELF\x02\x01" {
            return None;
        }
        let offset = usize::try_from(u64_at(&header, 32)?).ok()?;
        let count = usize::from(u16_at(&header, 56)?);
        if usize::from(u16_at(&header, 54)?) != PHDR {
            return None;
        }
        let mut end = 0;
        for index in 0..count {
            let at = self.place.base.checked_add(offset)? + index * PHDR;
            let phdr: [u8; PHDR] = self.read(at)?;
            if u32_at(&phdr, 0)? == PT_LOAD {
                let (vaddr, size) = (u64_at(&phdr, 16)?, u64_at(&phdr, 40)?);
                end = end.max(usize::try_from(vaddr.checked_add(size)?).ok()?);
            }
        }
        self.place
            .base
            .checked_add(end.next_multiple_of(maps::page_size()))
    }

    /// Bytes of the address space that it takes.
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.place.base)
    }

    fn readable(&self, address: usize, len: usize, exec: bool) -> bool {
        let Some(end) = address.checked_add(len) else {
            return false;
        };
        let mut at = address;
        for part in &self.parts {
            if part.start <= at && at < part.end && part.read && (part.exec || !exec) {
                at = part.end;
                if at >= end {
                    return true;
                }
            }
        }
        len == 0
    }

    /// `N` bytes of the library at `address`, if they are its own.
    pub fn read<const N: usize>(&self, address: usize) -> Option<[u8; N]> {
        if !self.readable(address, N, false) {
            return None;
        }
        // SAFETY: the bytes lie in mappings of this library that are readable,
        // and it stays mapped while an Image of it is in use (see module docs).
        Some(unsafe { std::ptr::read_unaligned(address as *const [u8; N]) })
    }

    /// `len` bytes of code at `address`.
    pub fn code(&self, address: usize, len: usize) -> Option<Vec<u8>> {
        if !self.readable(address, len, true) {
            return None;
        }
        let mut copy = vec![0; len];
        // SAFETY: as in `read`; the copy does not overlap mapped code.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, copy.as_mut_ptr(), len);
        }
        Some(copy)
    }

    /// A `u32` of the library at `address`.
    pub fn u32(&self, address: usize) -> Option<u32> {
        self.read(address).map(u32::from_le_bytes)
    }

    /// A `u64` of the library at `address`, as an address or offset.
    pub fn word(&self, address: usize) -> Option<usize> {
        self.read(address).map(usize::from_le_bytes)
    }

    /// What the file has where `address` is mapped; `None` if the file is gone
    /// or was replaced.
    pub fn on_disk(&self, address: usize, len: usize) -> Option<Vec<u8>> {
        let part = self
            .parts
            .iter()
            .find(|p| p.start <= address && address + len <= p.end)?;
        let mut bytes = vec![0; len];
        let offset = part.offset + (address - part.start) as u64;
        self.file.as_ref()?.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    /// Turns a pointer of the dynamic section into an address: the loader may
    /// have relocated it in place, or not yet, or never.
    pub fn absolute(&self, value: usize) -> usize {
        if value >= self.place.base {
            value
        } else {
            self.place.base + value
        }
    }

    /// The dynamic section's entries, as far as they can be read.
    pub fn dynamic(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        // Far more than any library has; a bound in case the end is missing.
        (0..1024)
            .map_while(|i| {
                let at = self.place.dynamic.checked_add(16 * i)?;
                Some((self.word(at)?, self.word(at + 8)?))
            })
            .take_while(|&(tag, _)| tag != 0)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
