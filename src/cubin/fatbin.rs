//! The machine code inside a fat binary, and which of it a GPU runs.
//!
//! A container is a header and entries, one per architecture and kind. The layout is not documented by
//! NVIDIA; what is used here was compared with the output of the real `fatbinary` tool
//! (`tests/tests/cubin_fatbins.rs`). What the driver makes of PTX, of compressed entries and of code that it has
//! to link only CUPTI can show; they are read as far as it takes to know that the driver takes one of them.

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
/// Entry flag: code for one architecture only, as sm_90a.
const ONE_ARCHITECTURE: u64 = 0x10_0000;
/// Entries looked at; real ones have a dozen.
const ENTRIES_MAX: usize = 256;
/// GPUs of Tegra systems: they and the others run no code of each other.
const TEGRA: [u32; 7] = [53, 62, 72, 87, 88, 101, 110];

/// Where a cubin is in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// Offset from the container's start.
    pub offset: u64,
    /// Length by its own headers.
    pub len: u64,
}

/// A container's entry of machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// SM version, such as 90.
    pub sm: u32,
    /// Runs on no other architecture, not even of the same family.
    pub one_architecture: bool,
    /// What the driver runs; `None` where it unpacks or links first.
    pub cubin: Option<Cubin>,
}

impl Entry {
    /// Whether a GPU can run it.
    pub fn fits(&self, gpu_sm: u32) -> bool {
        if self.sm == gpu_sm {
            return true;
        }
        let apart = TEGRA.contains(&self.sm) || TEGRA.contains(&gpu_sm);
        !self.one_architecture && !apart && self.sm / 10 == gpu_sm / 10 && self.sm < gpu_sm
    }
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
    extent(source).map(|(_, end)| end)
}

/// Where a container's entries begin and end.
fn extent(source: &(impl Source + ?Sized)) -> Result<(u64, u64), Bad> {
    let mut header = [0; HEADER as usize];
    source.read(0, &mut header)?;
    if u32::from_le_bytes(word(&header, 0)) != MAGIC {
        return Err(Bad::Damaged("not a fat binary"));
    }
    let start = u64::from(u16::from_le_bytes(word(&header, 6)));
    if start < HEADER {
        return Err(Bad::Damaged("its header is too short"));
    }
    let size = u64::from_le_bytes(word(&header, 8));
    let end = start.checked_add(size).filter(|end| *end <= IMAGE_MAX);
    Ok((start, end.ok_or(Bad::Damaged("it is longer than 1 GiB"))?))
}

/// Its machine code.
pub fn entries(source: &(impl Source + ?Sized)) -> Result<Vec<Entry>, Bad> {
    let (mut at, end) = extent(source)?;
    let mut found = Vec::new();
    for _ in 0..ENTRIES_MAX {
        if at + ENTRY as u64 > end {
            return Ok(found);
        }
        let mut entry = [0; ENTRY];
        source.read(at, &mut entry)?;
        let kind = u16::from_le_bytes(word(&entry, 0));
        let header = u64::from(u32::from_le_bytes(word(&entry, 4)));
        let payload = u64::from_le_bytes(word(&entry, 8));
        let flags = u64::from_le_bytes(word(&entry, 40));
        let next = at
            .checked_add(header)
            .and_then(|at| at.checked_add(payload))
            .filter(|next| header >= ENTRY as u64 && *next <= end)
            .ok_or(Bad::Damaged("an entry goes past its end"))?;
        if kind == KIND_ELF {
            let part = Within {
                source,
                offset: at + header,
                len: payload,
            };
            found.push(Entry {
                sm: u32::from_le_bytes(word(&entry, 28)),
                one_architecture: flags & ONE_ARCHITECTURE != 0,
                cubin: match flags & COMPRESSED {
                    0 => cubin(&part)?,
                    _ => None,
                },
            });
        }
        at = next;
    }
    Err(Bad::Damaged("it has more entries than are looked at"))
}

/// The cubin that an entry is; `None` if it has to be linked.
fn cubin(part: &Within<'_, impl Source + ?Sized>) -> Result<Option<Cubin>, Bad> {
    let len = image::cubin_len(part)?;
    if len > part.len {
        return Err(Bad::Damaged("a cubin is longer than its entry"));
    }
    let offset = part.offset;
    Ok(image::is_linked(part)?.then_some(Cubin { offset, len }))
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

/// The cubin that the driver takes for a GPU: of those that fit the one for the newest architecture, and of these
/// the one for that architecture only (sm_90a before sm_90, in whichever order they come: measured on an H200). `None`
/// where it is not known what the driver runs: nothing fits, so that it compiles PTX; what it takes it unpacks or
/// links first; or several fit equally well.
pub fn chosen(entries: &[Entry], gpu_sm: u32) -> Option<Cubin> {
    let fitting = || entries.iter().filter(|entry| entry.fits(gpu_sm));
    let newest = fitting().map(|entry| entry.sm).max()?;
    let newest = || fitting().filter(|entry| entry.sm == newest);
    let only_here = newest().any(|entry| entry.one_architecture);
    let mut best = newest().filter(|entry| entry.one_architecture == only_here);
    match (best.next(), best.next()) {
        (Some(only), None) => only.cubin,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Cubin, Entry, chosen, entries, len};
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
    fn machine_code_is_found() {
        let code = cubin(&[3; 333]);
        let image = container(&[
            entry(1, 90, 0, b".version 8.0"),
            entry(2, 80, 0, &code),
            entry(2, 90, 0x2000, &[9; 50]),
            entry(2, 90, 0x10_0000, &code),
        ]);
        assert_eq!(len(&image[..]).unwrap(), image.len() as u64);
        let found = entries(&image[..]).unwrap();
        assert_eq!(found.iter().map(|e| e.sm).collect::<Vec<_>>(), [80, 90, 90]);
        assert_eq!(
            found.iter().map(|e| e.one_architecture).collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(found[1].cubin, None, "compressed");
        for cubin in [found[0].cubin.unwrap(), found[2].cubin.unwrap()] {
            let at = cubin.offset as usize;
            assert_eq!(image[at..at + cubin.len as usize], code);
        }
    }

    #[test]
    fn code_that_has_to_be_linked_is_not_what_runs() {
        let mut code = cubin(&[3; 333]);
        code[16] = 1;
        let found = entries(&container(&[entry(2, 80, 0, &code)])[..]).unwrap();
        assert_eq!(found[0].cubin, None);
        assert_eq!(chosen(&found, 80), None);
    }

    #[test]
    fn damaged_containers_are_refused() {
        let good = container(&[entry(2, 90, 0, &cubin(&[3; 100]))]);
        let with = |at: usize, bytes: &[u8]| {
            let mut image = good.clone();
            image[at..at + bytes.len()].copy_from_slice(bytes);
            entries(&image[..])
        };
        assert!(with(0, &[0]).is_err());
        assert!(with(6, &[15]).is_err(), "header too short");
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
        assert!(entries(&good[..40]).is_err());
        let many = vec![entry(1, 90, 0, b""); super::ENTRIES_MAX];
        assert!(entries(&container(&many)[..]).is_err(), "not all looked at");
    }

    /// Entries by SM version; the offset says which one it is.
    fn of(list: &[(u32, bool)]) -> Vec<Entry> {
        let entry = |(i, (sm, one_architecture)): (usize, &(u32, bool))| Entry {
            sm: *sm,
            one_architecture: *one_architecture,
            cubin: Some(Cubin {
                offset: i as u64,
                len: 0,
            }),
        };
        list.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn the_newest_that_fits_is_chosen() {
        let all = of(&[(75, false), (80, false), (86, false), (90, false)]);
        let sm = |gpu| chosen(&all, gpu).map(|c| all[c.offset as usize].sm);
        assert_eq!(sm(75), Some(75));
        assert_eq!(sm(80), Some(80));
        assert_eq!(sm(89), Some(86));
        assert_eq!(sm(90), Some(90));
        assert_eq!(sm(70), None, "older than all");
        assert_eq!(sm(100), None, "PTX is compiled");
    }

    #[test]
    fn code_of_one_architecture_fits_no_other() {
        let all = of(&[(100, false), (103, true)]);
        assert_eq!(chosen(&all, 103).map(|c| c.offset), Some(1));
        assert_eq!(chosen(&all, 107).map(|c| c.offset), Some(0));
        // Code of a family fits its younger members.
        assert_eq!(chosen(&of(&[(100, false)]), 103).map(|c| c.offset), Some(0));
        assert_eq!(chosen(&of(&[(100, true)]), 103), None);
    }

    #[test]
    fn tegra_and_the_others_run_no_code_of_each_other() {
        let all = of(&[(80, false), (87, false)]);
        assert_eq!(chosen(&all, 89).map(|c| c.offset), Some(0));
        assert_eq!(chosen(&all, 87).map(|c| c.offset), Some(1));
        assert_eq!(chosen(&of(&[(80, false)]), 87), None);
    }

    #[test]
    fn what_the_driver_unpacks_is_chosen_all_the_same_and_not_told() {
        let mut all = of(&[(80, false), (86, false)]);
        all[1].cubin = None;
        assert_eq!(chosen(&all, 89), None, "not the one for sm_80");
        assert_eq!(chosen(&all, 80).map(|c| c.offset), Some(0));
    }

    #[test]
    fn code_for_the_architecture_only_comes_first() {
        let first = |list: &[(u32, bool)]| chosen(&of(list), 90).map(|c| c.offset);
        assert_eq!(first(&[(90, false), (90, true)]), Some(1));
        assert_eq!(first(&[(90, true), (90, false)]), Some(0));
        let mut packed = of(&[(90, false), (90, true)]);
        packed[1].cubin = None;
        assert_eq!(chosen(&packed, 90), None, "not the other one");
    }

    #[test]
    fn of_two_that_fit_equally_well_none_is_told() {
        for both in [false, true] {
            assert_eq!(chosen(&of(&[(90, both), (90, both)]), 90), None);
        }
    }
}
