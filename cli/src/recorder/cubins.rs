//! Takes the bytes of cubins from the processes that have them to the file, part by part, in a thread of its own.
//!
//! Unlike [`Code`](crate::code::Code), which looks into cubins and keeps them, no more than a few parts are in memory.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};

use crate::code::announced::{self, Announced, CUBIN_MAX};

/// Cubins that wait to be read.
const WAITING_MAX: usize = 1024;
/// Parts that wait to be written.
const PARTS_MAX: usize = 4;
/// Cubins that are remembered, to be kept once.
const KNOWN_MAX: usize = 1 << 16;
/// Bytes kept in a recording, all in all.
const TOTAL_MAX: u64 = 4 << 30;

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
    places: SyncSender<Announced>,
    said: Receiver<Said>,
    /// By checksum: bytes.
    known: HashMap<u64, u64>,
    waiting: usize,
    bytes: u64,
    /// Not kept so far; each is told again every ten seconds.
    missed: HashSet<u64>,
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
            known: HashMap::new(),
            waiting: 0,
            bytes: 0,
            missed: HashSet::new(),
        })
    }

    /// Has a cubin read, unless it was before.
    pub fn ask(&mut self, place: Announced) {
        if self.known.contains_key(&place.crc) {
            return;
        }
        let fits = place.size <= CUBIN_MAX && self.bytes + place.size <= TOTAL_MAX;
        let asked = fits && self.known.len() < KNOWN_MAX && self.places.try_send(place).is_ok();
        if asked {
            self.known.insert(place.crc, place.size);
            self.bytes += place.size;
            self.waiting += 1;
        } else {
            self.miss(place.crc);
        }
    }

    fn miss(&mut self, crc: u64) {
        if self.missed.len() < KNOWN_MAX {
            self.missed.insert(crc);
        }
    }

    /// Cubins that were not kept.
    pub fn missed(&self) -> u64 {
        self.missed.len() as u64
    }

    /// The next word of the thread, if there is one.
    pub fn next_said(&mut self) -> Option<Said> {
        let said = self.said.try_recv().ok()?;
        if let Said::Done { crc, whole } = said {
            self.waiting -= 1;
            if whole {
                self.missed.remove(&crc);
            } else {
                // Another process may have it, or the same one tells it again.
                self.bytes -= self.known.remove(&crc).unwrap_or(0);
                self.miss(crc);
            }
        }
        Some(said)
    }

    /// Cubins asked for that are not done.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

fn work(inbox: &Receiver<Announced>, outbox: &SyncSender<Said>) {
    for place in inbox {
        // Checked before any of it is written, and again as it is: it may change in between.
        let whole = announced::check(&place).is_ok() && hand_on(&place, outbox);
        let crc = place.crc;
        if outbox.send(Said::Done { crc, whole }).is_err() {
            return;
        }
    }
}

/// Whether all parts went out, with the announced checksum.
fn hand_on(place: &Announced, outbox: &SyncSender<Said>) -> bool {
    let mut hasher = crc32fast::Hasher::new();
    let mut sent = 0;
    let read = announced::parts(place, |offset, part| {
        hasher.update(part);
        sent += part.len() as u64;
        let part = Said::Part {
            crc: place.crc,
            offset,
            size: place.size,
            bytes: part.to_vec(),
        };
        outbox.send(part).is_ok()
    });
    read.is_ok() && sent == place.size && u64::from(hasher.finalize()) == place.crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ProcessId;

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
        let place = Announced {
            process: ProcessId {
                pid: std::process::id(),
                start_ns: 0,
            },
            crc: crc32fast::hash(&code).into(),
            address: code.as_ptr() as u64,
            size: code.len() as u64,
        };
        let mut cubins = Cubins::start().unwrap();
        cubins.ask(place);
        cubins.ask(place);
        let lies = [
            Announced { crc: 1, ..place },
            Announced {
                crc: 2,
                size: u64::MAX,
                ..place
            },
            Announced {
                crc: 3,
                address: 8,
                ..place
            },
            Announced {
                crc: 4,
                address: u64::MAX - 8,
                ..place
            },
            Announced {
                crc: 5,
                process: ProcessId {
                    pid: u32::MAX,
                    start_ns: 0,
                },
                ..place
            },
            Announced {
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
        assert_eq!((cubins.missed(), done.len()), (6, 6));
        assert_eq!(cubins.bytes, place.size, "only of what is kept");
        // All are told again; one more, damaged at first, can be read then.
        let last = [0, 1].map(|byte| [&code[..], &[byte]].concat());
        let late = |code: &Vec<u8>| Announced {
            crc: crc32fast::hash(&last[0]).into(),
            address: code.as_ptr() as u64,
            size: code.len() as u64,
            ..place
        };
        cubins.ask(late(&last[1]));
        all(&mut cubins);
        lies.iter().for_each(|lie| cubins.ask(*lie));
        all(&mut cubins);
        assert_eq!(cubins.missed(), 7);
        cubins.ask(late(&last[0]));
        all(&mut cubins);
        assert_eq!(cubins.missed(), 6);
        assert_eq!(cubins.bytes, 2 * place.size + 1);
    }
}
