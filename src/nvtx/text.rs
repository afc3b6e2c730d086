//! Strings of a client become UTF-8 of bounded length.
//!
//! At most [`TEXT_MAX`] bytes are kept, cut between characters. What is no character becomes U+FFFD. No
//! byte of the client's string is read past the part that is kept.

use super::sys::{Chars, Wide};

/// Most bytes of a text, without its NUL.
pub const TEXT_MAX: usize = 4096;
/// Room that any text fits in.
pub const ROOM: usize = TEXT_MAX + 1;

/// The text as it grows in `room`, which has at least [`ROOM`] bytes.
struct Writer<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    /// False once `bytes`, which are not to be parted, do not fit.
    fn put(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= TEXT_MAX - self.len;
        if fits {
            self.room[self.len..self.len + bytes.len()].copy_from_slice(bytes);
            self.len += bytes.len();
        }
        fits
    }

    fn put_str(&mut self, text: &str) -> bool {
        if self.put(text.as_bytes()) {
            return true;
        }
        let mut end = TEXT_MAX - self.len;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.put(&text.as_bytes()[..end]);
        false
    }

    fn end(self) -> usize {
        self.room[self.len] = 0;
        self.len
    }
}

const REPLACEMENT: &str = "\u{fffd}";

/// Copies a text into `room` (at least [`ROOM`] bytes) with a NUL after it; its length.
///
/// # Safety
/// `from` is null or points to bytes that are readable up to their NUL or for [`TEXT_MAX`] bytes.
pub unsafe fn copy_chars(from: Chars, room: &mut [u8]) -> usize {
    let mut text = Writer { room, len: 0 };
    if from.is_null() {
        return text.end();
    }
    // SAFETY: reads to the NUL or the bound.
    let len = unsafe { libc::strnlen(from, TEXT_MAX) };
    // SAFETY: that many bytes were just read.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) };
    if let Ok(whole) = std::str::from_utf8(bytes) {
        text.put_str(whole);
        return text.end();
    }
    let cut = len == TEXT_MAX;
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        let last = chunks.peek().is_none();
        // A character that the bound parts is left out, not replaced.
        let parted = cut
            && last
            && std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none());
        if !text.put_str(chunk.valid()) {
            break;
        }
        if !chunk.invalid().is_empty() && !parted && !text.put_str(REPLACEMENT) {
            break;
        }
    }
    text.end()
}

/// The same for wide strings.
///
/// # Safety
/// `from` is null or points to units that are readable up to their zero or for [`TEXT_MAX`] units.
pub unsafe fn copy_wide(from: Wide, room: &mut [u8]) -> usize {
    let mut text = Writer { room, len: 0 };
    if from.is_null() {
        return text.end();
    }
    for i in 0..TEXT_MAX {
        // SAFETY: no unit before this one was zero.
        let unit = unsafe { from.add(i).read_unaligned() };
        if unit == 0 {
            break;
        }
        let character = char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER);
        if !text.put(character.encode_utf8(&mut [0; 4]).as_bytes()) {
            break;
        }
    }
    text.end()
}

#[cfg(test)]
mod tests {
    use super::{ROOM, TEXT_MAX, copy_chars, copy_wide};

    fn chars(bytes: &[u8]) -> String {
        let mut bytes = bytes.to_vec();
        bytes.push(0);
        let mut room = vec![0xff; ROOM];
        // SAFETY: the bytes are terminated.
        let len = unsafe { copy_chars(bytes.as_ptr().cast(), &mut room) };
        assert_eq!(room[len], 0);
        String::from_utf8(room[..len].to_vec()).expect("texts are UTF-8")
    }

    fn wide(units: &[u32]) -> String {
        let mut units = units.to_vec();
        units.push(0);
        let mut room = vec![0xff; ROOM];
        // SAFETY: the units are terminated.
        let len = unsafe { copy_wide(units.as_ptr(), &mut room) };
        assert_eq!(room[len], 0);
        String::from_utf8(room[..len].to_vec()).expect("texts are UTF-8")
    }

    #[test]
    fn what_is_utf8_stays() {
        assert_eq!(chars(b""), "");
        assert_eq!(chars("straße 中".as_bytes()), "straße 中");
        assert_eq!(wide(&[0xe9, 0x4e2d, 0x1f600]), "é中😀");
    }

    #[test]
    fn what_is_not_is_replaced() {
        assert_eq!(chars(b"a\xff\xfeb\xc3"), "a\u{fffd}\u{fffd}b\u{fffd}");
        assert_eq!(
            wide(&[0x61, 0xd800, 0x11_0000, u32::MAX, 0x62]),
            "a\u{fffd}\u{fffd}\u{fffd}b"
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(chars(&vec![b'x'; 1 << 20]).len(), TEXT_MAX);
        let text = chars("é".repeat(TEXT_MAX).as_bytes());
        assert_eq!(text, "é".repeat(TEXT_MAX / 2));
        let odd = format!("a{}", "中".repeat(TEXT_MAX));
        assert_eq!(chars(odd.as_bytes()), odd[..4096]);
        let odd = format!("ab{}", "中".repeat(TEXT_MAX));
        assert_eq!(chars(odd.as_bytes()), odd[..4094]);
        assert_eq!(
            chars(&vec![0xff; TEXT_MAX]),
            "\u{fffd}".repeat(TEXT_MAX / 3)
        );
        assert_eq!(wide(&vec![0x4e2d; TEXT_MAX * 2]), "中".repeat(TEXT_MAX / 3));
    }

    #[test]
    fn null_is_empty() {
        let mut room = vec![0xff; ROOM];
        // SAFETY: null is allowed.
        let lens = unsafe {
            (
                copy_chars(std::ptr::null(), &mut room),
                copy_wide(std::ptr::null(), &mut room),
            )
        };
        assert_eq!((lens, room[0]), ((0, 0), 0));
    }
}
