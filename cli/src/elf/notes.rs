//! USDT notes.

const NOTE_TYPE_STAPSDT: u32 = 3;

/// One probe site as the note describes it; addresses are virtual, before relocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Provider.
    pub provider: String,
    /// Probe name.
    pub name: String,
    /// Address of the site.
    pub site: u64,
    /// Address of the semaphore, 0: none.
    pub semaphore: u64,
    /// Argument string.
    pub args: String,
}

/// A number of 32 bits.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// A number of 64 bits.
pub fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Parses the content of `.note.stapsdt`. `base` is the address of `.stapsdt.base`: prelink may have
/// moved the file since the notes were written. Stops at the first note that does not fit.
pub fn parse_notes(bytes: &[u8], base: u64) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut at = 0usize;
    while let Some((note, next)) = parse_note(bytes, at, base) {
        notes.extend(note);
        at = next;
    }
    notes
}

fn parse_note(bytes: &[u8], at: usize, base: u64) -> Option<(Option<Note>, usize)> {
    let round = |n: usize| n.checked_add(3).map(|n| n & !3);
    let name_size = word(bytes, at)? as usize;
    let desc_size = word(bytes, at + 4)? as usize;
    let kind = word(bytes, at + 8)?;
    let name = at + 12;
    let desc = name.checked_add(round(name_size)?)?;
    let end = desc.checked_add(desc_size)?;
    let owner = bytes.get(name..name.checked_add(name_size)?)?;
    let content = bytes.get(desc..end)?;
    let next = desc.checked_add(round(desc_size)?)?;
    if owner != b"stapsdt\0" || kind != NOTE_TYPE_STAPSDT {
        return Some((None, next));
    }
    Some((parse_content(content, base), next))
}

fn parse_content(content: &[u8], base: u64) -> Option<Note> {
    let site = long(content, 0)?;
    let note_base = long(content, 8)?;
    let semaphore = long(content, 16)?;
    let moved = match (base, note_base) {
        (0, _) | (_, 0) => 0,
        (base, note_base) => base.wrapping_sub(note_base),
    };
    let mut texts = content
        .get(24..)?
        .split(|b| *b == 0)
        .map(|t| String::from_utf8_lossy(t).into_owned());
    Some(Note {
        provider: texts.next()?,
        name: texts.next()?,
        args: texts.next()?,
        site: site.wrapping_add(moved),
        semaphore: if semaphore == 0 {
            0
        } else {
            semaphore.wrapping_add(moved)
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(provider: &str, name: &str, args: &str) -> Vec<u8> {
        let mut desc = Vec::new();
        for n in [0x1000u64, 0x500, 0x2000] {
            desc.extend(n.to_le_bytes());
        }
        for text in [provider, name, args] {
            desc.extend(text.as_bytes());
            desc.push(0);
        }
        let mut bytes = Vec::new();
        for n in [8u32, desc.len() as u32, NOTE_TYPE_STAPSDT] {
            bytes.extend(n.to_le_bytes());
        }
        bytes.extend(b"stapsdt\0");
        bytes.extend(desc);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn notes_are_read_one_after_another() {
        let mut bytes = note("parcagpu", "error", "-8@%rdi -8@%rsi -8@%rdx");
        bytes.extend(note("other", "x", ""));
        let notes = parse_notes(&bytes, 0);
        assert_eq!(notes.len(), 2);
        assert_eq!(notes[0].name, "error");
        assert_eq!(notes[0].site, 0x1000);
        assert_eq!(notes[0].semaphore, 0x2000);
        assert_eq!(notes[1].provider, "other");
        assert_eq!(notes[1].args, "");
    }

    #[test]
    fn prelinked_addresses_move_with_the_base() {
        let notes = parse_notes(&note("parcagpu", "error", ""), 0x700);
        assert_eq!((notes[0].site, notes[0].semaphore), (0x1200, 0x2200));
    }

    #[test]
    fn no_cut_or_flipped_byte_panics() {
        let bytes = note("parcagpu", "error", "-8@%rdi");
        for n in 0..bytes.len() {
            assert!(parse_notes(&bytes[..n], 1).len() <= 1);
            let mut broken = bytes.clone();
            broken[n] = 0xff;
            assert!(parse_notes(&broken, u64::MAX).len() <= 1);
        }
    }
}
