//! Tables of numbers, column by column, in as few bytes as simple means allow.
//!
//! A table is its number of rows, then its columns one after another. A column is one byte that says how it is
//! written, and numbers of variable length (7 bits a byte, least first): one for all rows, one a row, or the
//! difference from the row before, folded so that small negative ones are short.

use super::format::ROWS_MAX;

/// The same number in every row.
const CONSTANT: u8 = 0;
/// A number a row.
const PLAIN: u8 = 1;
/// The differences.
const DELTA: u8 = 2;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// Appends a number.
pub fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        // The low seven bits.
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push((n & 0x7f) as u8);
}

/// Appends a length and bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Small numbers for small differences of either sign.
pub fn fold(n: i64) -> u64 {
    (n << 1 ^ n >> 63).cast_unsigned()
}

/// The inverse of [`fold`].
pub fn unfold(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -(n & 1).cast_signed()
}

/// Appends a table. `delta` says which columns change little from row to row.
pub fn put_table<const N: usize>(out: &mut Vec<u8>, rows: &[[u64; N]], delta: [bool; N]) {
    put(out, rows.len() as u64);
    let Some(first) = rows.first() else {
        return;
    };
    for column in 0..N {
        if rows.iter().all(|row| row[column] == first[column]) {
            out.push(CONSTANT);
            put(out, first[column]);
        } else if delta[column] {
            out.push(DELTA);
            let mut before = 0;
            for row in rows {
                put(out, fold(row[column].wrapping_sub(before).cast_signed()));
                before = row[column];
            }
        } else {
            out.push(PLAIN);
            for row in rows {
                put(out, row[column]);
            }
        }
    }
}

/// Bytes still to be read.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// At the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What was not read.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed("ends too early"))?;
        self.0 = rest;
        Ok(*first)
    }

    /// A number.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(Malformed("a number is longer than 64 bits"))
    }

    /// `n` bytes.
    pub fn bytes(&mut self, n: u64) -> Result<&'a [u8], Malformed> {
        let n = usize::try_from(n).map_err(|_| Malformed("ends too early"))?;
        let (bytes, rest) = self
            .0
            .split_at_checked(n)
            .ok_or(Malformed("ends too early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A length and text.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let n = self.number()?;
        std::str::from_utf8(self.bytes(n)?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// A table of at most [`ROWS_MAX`] rows.
    pub fn table<const N: usize>(&mut self) -> Result<Vec<[u64; N]>, Malformed> {
        let count = self.number()?;
        let count = usize::try_from(count)
            .ok()
            .filter(|n| *n <= ROWS_MAX)
            .ok_or(Malformed("a table has too many rows"))?;
        let mut rows = vec![[0; N]; count];
        if count == 0 {
            return Ok(rows);
        }
        for column in 0..N {
            match self.byte()? {
                CONSTANT => {
                    let n = self.number()?;
                    rows.iter_mut().for_each(|row| row[column] = n);
                }
                PLAIN => {
                    for row in &mut rows {
                        row[column] = self.number()?;
                    }
                }
                DELTA => {
                    let mut before = 0u64;
                    for row in &mut rows {
                        before = before.wrapping_add_signed(unfold(self.number()?));
                        row[column] = before;
                    }
                }
                _ => return Err(Malformed("a column is written in an unknown way")),
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_come_back() {
        let mut out = Vec::new();
        let numbers: Vec<u64> = (0..64)
            .flat_map(|bit| [(1 << bit) - 1, 1 << bit])
            .chain([u64::MAX])
            .collect();
        numbers.iter().for_each(|n| put(&mut out, *n));
        let mut cursor = Cursor::new(&out);
        for n in numbers {
            assert_eq!(cursor.number(), Ok(n));
        }
        assert_eq!(cursor.number(), Err(Malformed("ends too early")));
        let too_long = [0xff; 10];
        assert!(Cursor::new(&too_long).number().is_err());
        for n in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(unfold(fold(n)), n);
        }
        assert_eq!((fold(-1), fold(1)), (1, 2));
    }

    #[test]
    fn tables_come_back() {
        let rows = [
            [7, u64::MAX, 5, 100],
            [7, 0, 5, 50],
            [7, 3, 5, u64::MAX - 1],
        ];
        for delta in [[false; 4], [true; 4]] {
            let mut out = Vec::new();
            put_table(&mut out, &rows, delta);
            put_table::<2>(&mut out, &[], [false; 2]);
            let mut cursor = Cursor::new(&out);
            assert_eq!(cursor.table::<4>().unwrap(), rows);
            assert_eq!(cursor.table::<2>().unwrap(), [[0; 2]; 0]);
            assert!(cursor.rest().is_empty());
            for n in 0..out.len() - 1 {
                let mut cut = Cursor::new(&out[..n]);
                assert!(cut.table::<4>().is_err(), "cut at {n}");
            }
        }
    }

    #[test]
    fn a_table_cannot_claim_more_rows_than_allowed() {
        let mut out = Vec::new();
        put(&mut out, ROWS_MAX as u64 + 1);
        out.extend([CONSTANT, 0]);
        assert!(Cursor::new(&out).table::<1>().is_err());
        assert!(Cursor::new(&[1, 9, 0]).table::<1>().is_err());
    }
}
