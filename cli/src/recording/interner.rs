//! Numbers for texts, each kept once, up to a limit: the process that is watched decides what comes.

use ahash::AHashMap;

use super::format::NAME_MAX;

/// Bytes that an entry costs beside its text.
const ENTRY: usize = 64;

/// See the module. 0 is the empty text.
#[derive(Debug)]
pub struct Interner {
    ids: AHashMap<Box<[u8]>, u32>,
    /// Texts that were not handed on yet.
    fresh: Vec<String>,
    next: u32,
    bytes: usize,
    limit: usize,
    /// Texts that were not kept.
    refused: u64,
    overflow: Option<u32>,
}

impl Interner {
    /// Keeps texts of about `limit` bytes in all.
    pub fn new(limit: usize) -> Self {
        Self {
            ids: AHashMap::new(),
            fresh: Vec::new(),
            next: 1,
            bytes: 0,
            limit,
            refused: 0,
            overflow: None,
        }
    }

    /// The number of a text. What is not UTF-8 becomes U+FFFD; a text that was cut short says so. Once the
    /// limit is reached all new texts are one.
    pub fn id(&mut self, text: &[u8], cut: bool) -> u32 {
        if text.is_empty() && !cut {
            return 0;
        }
        let whole = &text[..text.len().min(NAME_MAX - 8)];
        let cut = cut || whole.len() < text.len();
        if cut {
            let mut marked = whole.to_vec();
            marked.extend("…".as_bytes());
            self.look_up(&marked)
        } else {
            self.look_up(whole)
        }
    }

    fn look_up(&mut self, text: &[u8]) -> u32 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let cost = text.len() * 2 + ENTRY;
        if self.bytes + cost > self.limit {
            self.refused += 1;
            return match self.overflow {
                Some(id) => id,
                None => {
                    let id = self.add("(further names)".to_owned());
                    self.overflow = Some(id);
                    id
                }
            };
        }
        self.bytes += cost;
        // A text may be longer after replacements.
        let mut shown = String::from_utf8_lossy(text).into_owned();
        if let Some((end, _)) = shown
            .char_indices()
            .take_while(|(at, c)| at + c.len_utf8() <= NAME_MAX)
            .last()
        {
            let end = end + shown[end..].chars().next().map_or(0, char::len_utf8);
            shown.truncate(end);
        }
        let id = self.add(shown);
        self.ids.insert(text.into(), id);
        id
    }

    fn add(&mut self, text: String) -> u32 {
        let id = self.next;
        self.next += 1;
        self.fresh.push(text);
        id
    }

    /// Bytes of the texts that were not handed on yet.
    pub fn fresh(&self) -> usize {
        self.fresh.len()
    }

    /// Hands on the texts that came since the last call, in the order of their numbers.
    pub fn take_fresh(&mut self) -> Vec<String> {
        std::mem::take(&mut self.fresh)
    }

    /// Times that a text was not kept.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_one_number() {
        let mut names = Interner::new(1 << 20);
        assert_eq!(names.id(b"", false), 0);
        assert_eq!(names.id(b"a", false), 1);
        assert_eq!(names.id(b"a", true), 2);
        assert_eq!(names.id(b"a", false), 1);
        assert_eq!(names.id(b"caf\xe9", false), 3);
        assert_eq!(names.take_fresh(), ["a", "a…", "caf\u{fffd}"]);
        assert_eq!(names.fresh(), 0);
        names.id(&[0xff; 10_000], false);
        assert!(names.take_fresh()[0].len() <= NAME_MAX);
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let mut names = Interner::new(1_000);
        let ids: Vec<u32> = (0..1_000u32)
            .map(|n| names.id(&n.to_le_bytes(), false))
            .collect();
        assert_eq!(names.fresh(), 14);
        assert_eq!(ids[13..].iter().max(), Some(&14));
        assert_eq!(names.refused(), 1_000 - 13);
        assert_eq!(names.take_fresh()[13], "(further names)");
    }
}
