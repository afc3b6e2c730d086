//! Takes the bytes of cubins out of the processes that have them, in a thread of its own.
//!
//! A process says where its cubin lies and how long it is, which may be a lie: the bytes are read part by part,
//! and only those whose checksum is the announced one are kept.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};

use crate::recording::format::CUBIN_MAX;
use crate::recording::writer::CUBIN_PART;

/// Cubins that wait to be read.
const WAITING_MAX: usize = 1024;
/// Parts that wait to be written.
const PARTS_MAX: usize = 4;
/// Cubins that are remembered, to be kept once.
const KNOWN_MAX: usize = 1 << 16;
/// Bytes kept in a recording, all in all.
const TOTAL_MAX: u64 = 4 << 30;

/// Where a cubin lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The process.
    pub pid: u32,
    /// Checksum it announced.
    pub crc: u64,
    /// In its memory.
    pub address: u64,
    /// Bytes it announced.
    pub size: u64,
}

/// What the thread says.
#[derive(Debug)]
pub enum Said {
    /// A part of a cubin.
    Part {
        /// Checksum.
        crc: u64,
        /// Where the part begins.
        offset: u64,
        /// Bytes in all.
        size: u64,
        /// The part.
        bytes: Vec<u8>,
    },
    /// There are no more parts of this one, or there never were any.
    Done {
        /// Checksum.
        crc: u64,
        /// Whether all parts came.
        whole: bool,
    },
}

/// The other end of the thread.
#[derive(Debug)]
pub struct Cubins {
    places: SyncSender<Place>,
    said: Receiver<Said>,
    known: HashSet<u64>,
    waiting: usize,
    bytes: u64,
    /// Cubins that were not kept.
    pub missed: u64,
}

impl Cubins {
    /// Starts the thread.
    pub fn start() -> Result<Self> {
        let (places, inbox) = sync_channel(WAITING_MAX);
        let (outbox, said) = sync_channel(PARTS_MAX);
        thread::Builder::new()
            .name("parcagpu-cubins".to_owned())
            .spawn(move || work(&inbox, &outbox))
            .context("failed to start the thread that reads cubins")?;
        Ok(Self {
            places,
            said,
            known: HashSet::new(),
            waiting: 0,
            bytes: 0,
            missed: 0,
        })
    }

    /// Has a cubin read, unless it was before.
    pub fn ask(&mut self, place: Place) {
        if self.known.contains(&place.crc) {
            return;
        }
        let fits = place.size <= CUBIN_MAX && self.bytes + place.size <= TOTAL_MAX;
        let asked = fits && self.known.len() < KNOWN_MAX && self.places.try_send(place).is_ok();
        if asked {
            self.known.insert(place.crc);
            self.bytes += place.size;
            self.waiting += 1;
        } else {
            self.missed += 1;
        }
    }

    /// The next word of the thread, if there is one.
    pub fn next_said(&mut self) -> Option<Said> {
        let said = self.said.try_recv().ok()?;
        if let Said::Done { crc, whole } = said {
            self.waiting -= 1;
            if !whole {
                self.missed += 1;
                // Another process may have it, or the same one tells it again.
                self.known.remove(&crc);
            }
        }
        Some(said)
    }

    /// Cubins asked for that are not done.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

fn work(inbox: &Receiver<Place>, outbox: &SyncSender<Said>) {
    for place in inbox {
        let whole = match File::open(format!("/proc/{}/mem", place.pid)) {
            Ok(memory) if is_what_it_says(&memory, &place) => hand_on(&memory, &place, outbox),
            _ => Some(false),
        };
        let Some(whole) = whole else {
            return;
        };
        let crc = place.crc;
        if outbox.send(Said::Done { crc, whole }).is_err() {
            return;
        }
    }
}

/// Calls with the offset and bytes of each part, as long as it says true; whether it came to the end.
fn parts(memory: &File, place: &Place, mut take: impl FnMut(u64, &[u8]) -> bool) -> bool {
    let mut part = vec![0; CUBIN_PART];
    let mut offset = 0;
    while offset < place.size {
        let left = usize::try_from(place.size - offset).unwrap_or(usize::MAX);
        let part = &mut part[..left.min(CUBIN_PART)];
        let Some(at) = place.address.checked_add(offset) else {
            return false;
        };
        if memory.read_exact_at(part, at).is_err() || !take(offset, part) {
            return false;
        }
        offset += part.len() as u64;
    }
    true
}

fn is_what_it_says(memory: &File, place: &Place) -> bool {
    let mut hasher = crc32fast::Hasher::new();
    let came = parts(memory, place, |_, part| {
        hasher.update(part);
        true
    });
    came && u64::from(hasher.finalize()) == place.crc
}

/// Whether all parts were readable; `None`: nobody takes them any more.
fn hand_on(memory: &File, place: &Place, outbox: &SyncSender<Said>) -> Option<bool> {
    let mut gone = false;
    let whole = parts(memory, place, |offset, part| {
        let sent = outbox.send(Said::Part {
            crc: place.crc,
            offset,
            size: place.size,
            bytes: part.to_vec(),
        });
        gone = sent.is_err();
        !gone
    });
    (!gone).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(cubins: &mut Cubins) -> (Vec<u8>, Vec<(u64, bool)>) {
        let (mut bytes, mut done) = (Vec::new(), Vec::new());
        while cubins.waiting() > 0 {
            match cubins.next_said() {
                Some(Said::Part { bytes: part, .. }) => bytes.extend(part),
                Some(Said::Done { crc, whole }) => done.push((crc, whole)),
                None => thread::yield_now(),
            }
        }
        (bytes, done)
    }

    #[test]
    fn bytes_come_once_and_only_if_they_are_the_announced_ones() {
        let code: Vec<u8> = (0..3_000_000u32).map(|i| i.wrapping_mul(7) as u8).collect();
        let place = Place {
            pid: std::process::id(),
            crc: crc32fast::hash(&code).into(),
            address: code.as_ptr() as u64,
            size: code.len() as u64,
        };
        let mut cubins = Cubins::start().unwrap();
        cubins.ask(place);
        cubins.ask(place);
        let lies = [
            Place { crc: 1, ..place },
            Place {
                crc: 2,
                size: u64::MAX,
                ..place
            },
            Place {
                crc: 3,
                address: 8,
                ..place
            },
            Place {
                crc: 4,
                address: u64::MAX - 8,
                ..place
            },
            Place {
                crc: 5,
                pid: u32::MAX,
                ..place
            },
            Place {
                crc: 6,
                size: CUBIN_MAX,
                ..place
            },
        ];
        lies.iter().for_each(|lie| cubins.ask(*lie));
        let (bytes, done) = all(&mut cubins);
        assert!(bytes == code);
        let kept: Vec<_> = done.iter().filter(|d| d.1).map(|d| d.0).collect();
        assert_eq!(kept, [place.crc]);
        assert_eq!((cubins.missed, done.len()), (6, 6));
    }
}
