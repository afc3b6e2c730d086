//! Blocks of a file: header, checksum, compression. See [`super::format`].

use std::io::{self, ErrorKind, Read};

use super::columns::Malformed;
use super::format::{HEADER, Kind, PAYLOAD_MAX};

/// Shorter payloads are not worth compressing.
const COMPRESS_FROM: usize = 64;

/// Appends a block.
///
/// # Panics
/// When the payload is longer than [`PAYLOAD_MAX`].
pub fn put(out: &mut Vec<u8>, kind: Kind, payload: &[u8]) {
    assert!(
        payload.len() <= PAYLOAD_MAX,
        "the writer keeps to the limit"
    );
    let start = out.len();
    out.extend([kind as u8, 0, 0, 0]);
    out.extend([0; HEADER - 4]);
    let mut stored = 0;
    if payload.len() >= COMPRESS_FROM {
        out.resize(
            start + HEADER + lz4_flex::block::get_maximum_output_size(payload.len()),
            0,
        );
        stored = lz4_flex::block::compress_into(payload, &mut out[start + HEADER..])
            .expect("the room is what the format needs at most");
    }
    if stored == 0 || stored >= payload.len() {
        out.truncate(start + HEADER);
        out.extend_from_slice(payload);
        stored = payload.len();
    } else {
        out.truncate(start + HEADER + stored);
        out[start + 1] = 1;
    }
    let length = |n: usize| u32::try_from(n).expect("below PAYLOAD_MAX").to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length(stored));
    out[start + 8..start + 12].copy_from_slice(&length(payload.len()));
    let sum = checksum(&out[start..start + 12], &out[start + HEADER..]);
    out[start + 12..start + 16].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

/// What came of reading a block.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A block of a kind (as a number); its payload is in the reader.
    Block(u8),
    /// The file ends here, between two blocks.
    End,
    /// The file ends in the middle of a block.
    Cut,
    /// This is no block.
    Damaged(Malformed),
}

/// Reads blocks one after another, in bounded memory.
#[derive(Debug)]
pub struct Blocks<R> {
    from: R,
    stored: Vec<u8>,
    payload: Vec<u8>,
    /// Bytes of the file up to the block last read.
    at: u64,
    next_at: u64,
}

impl<R: Read> Blocks<R> {
    /// From the first block on, which stands at `at`.
    pub fn new(from: R, at: u64) -> Self {
        Self {
            from,
            stored: Vec::new(),
            payload: Vec::new(),
            at,
            next_at: at,
        }
    }

    /// Where the block last read begins.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Payload of the block last read.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Reads the next block. The error is that of reading the file.
    pub fn read_next(&mut self) -> io::Result<Next> {
        self.at = self.next_at;
        let mut head = [0; HEADER];
        match fill(&mut self.from, &mut head)? {
            0 => return Ok(Next::End),
            HEADER => {}
            _ => return Ok(Next::Cut),
        }
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (stored, raw) = (number(4) as usize, number(8) as usize);
        if raw > PAYLOAD_MAX || stored > raw || head[1] > 1 || head[2..4] != [0, 0] {
            return Ok(Next::Damaged(Malformed("no header of a block")));
        }
        self.stored.resize(stored, 0);
        if fill(&mut self.from, &mut self.stored)? < stored {
            return Ok(Next::Cut);
        }
        if checksum(&head[..12], &self.stored) != number(12) {
            return Ok(Next::Damaged(Malformed("wrong checksum")));
        }
        self.next_at += (HEADER + stored) as u64;
        if head[1] == 0 {
            if stored != raw {
                return Ok(Next::Damaged(Malformed("two lengths for stored bytes")));
            }
            std::mem::swap(&mut self.stored, &mut self.payload);
        } else {
            self.payload.resize(raw, 0);
            let unpacked = lz4_flex::block::decompress_into(&self.stored, &mut self.payload);
            if unpacked.ok() != Some(raw) {
                return Ok(Next::Damaged(Malformed("cannot be unpacked")));
            }
        }
        Ok(Next::Block(head[0]))
    }
}

/// Reads until the buffer is full or the file ends.
pub fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buffer.len() {
        match from.read(&mut buffer[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, Kind::Names, &[7; 10_000]);
        put(&mut out, Kind::End, &[1, 2, 3]);
        out
    }

    #[test]
    fn blocks_come_back() {
        let file = two();
        assert!(file.len() < 200, "compressed");
        let mut blocks = Blocks::new(&file[..], 16);
        assert_eq!(blocks.read_next().unwrap(), Next::Block(Kind::Names as u8));
        assert_eq!(blocks.payload(), [7; 10_000]);
        assert_eq!(blocks.read_next().unwrap(), Next::Block(Kind::End as u8));
        assert_eq!(blocks.payload(), [1, 2, 3]);
        assert_eq!(blocks.at(), 16 + file.len() as u64 - 19);
        assert_eq!(blocks.read_next().unwrap(), Next::End);
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let file = two();
        let outcome = |bytes: &[u8]| {
            let mut blocks = Blocks::new(bytes, 0);
            loop {
                match blocks.read_next().unwrap() {
                    Next::Block(_) => {}
                    other => return (other, blocks.at() as usize),
                }
            }
        };
        let first = outcome(&file[..file.len() - 19]).1;
        for n in 0..file.len() {
            let expected = if n == 0 || n == first {
                Next::End
            } else {
                Next::Cut
            };
            assert_eq!(outcome(&file[..n]).0, expected, "cut at {n}");
        }
        for bit in 0..file.len() * 8 {
            let mut bytes = file.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (next, _) = outcome(&bytes);
            assert!(
                matches!(next, Next::Damaged(_) | Next::Cut),
                "bit {bit}: {next:?}"
            );
        }
    }
}
