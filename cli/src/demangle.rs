//! Readable kernel names.

use std::collections::HashMap;
use std::fmt::{self, Write};

use cpp_demangle::DemangleOptions;

/// Longer than any name that is worth reading. Compressed forms let 200 bytes of a hostile program stand for
/// gigabytes.
const SHOWN_MAX: usize = 4096;

/// A text that refuses to grow past its limit.
#[derive(Default)]
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > SHOWN_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

fn limited(name: impl fmt::Display) -> Option<String> {
    let mut text = Limited::default();
    write!(text, "{name}").ok()?;
    Some(text.0)
}

/// C++ and Rust names demangled, others as they are. A cut name cannot be demangled: it ends in `…`.
pub fn demangle(bytes: &[u8], cut: bool) -> String {
    let name = String::from_utf8_lossy(bytes);
    let mut text = whole(&name).unwrap_or_else(|| name.clone().into_owned());
    if cut {
        text.push('…');
    }
    clean(&text)
}

/// Remembers what it demangled: a program has few kernels and calls them often.
#[derive(Debug, Default)]
pub struct Demangler {
    known: HashMap<Box<[u8]>, String>,
}

impl Demangler {
    const MOST: usize = 10_000;

    /// As [`demangle`].
    pub fn name(&mut self, bytes: &[u8], cut: bool) -> String {
        if cut {
            return demangle(bytes, true);
        }
        if let Some(known) = self.known.get(bytes) {
            return known.clone();
        }
        if self.known.len() >= Self::MOST {
            self.known.clear();
        }
        let text = demangle(bytes, false);
        self.known.insert(bytes.into(), text.clone());
        text
    }
}

fn whole(name: &str) -> Option<String> {
    // A legacy Rust name is also a C++ name; what tells it is the hash, which `{:#}` leaves out.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let short = limited(format_args!("{rust:#}"))?;
        if name.starts_with("_R") || short != limited(&rust)? {
            return Some(short);
        }
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    let mut text = Limited::default();
    let options = DemangleOptions::default();
    symbol.structured_demangle(&mut text, &options).ok()?;
    Some(text.0)
}

/// Control characters could play tricks with the terminal, and so could those that turn the direction of text.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if plays_tricks(c) { '\u{fffd}' } else { c })
        .collect()
}

/// Whether a character changes how others are shown instead of being one.
pub fn plays_tricks(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_that_stands_for_a_long_one_stays_as_it_is() {
        // Each parameter is a pair of twice the one before: ten bytes more, and the text doubles.
        let bomb = |pairs: usize| {
            let ids = "0123456789ABCDEFGHIJKLMNOPQ".chars();
            ids.take(pairs)
                .fold("_Z1fSt4pairIiiE".to_owned(), |name, id| {
                    format!("{name}S_IS{id}_S{id}_E")
                })
        };
        assert_eq!(
            demangle(bomb(1).as_bytes(), false),
            "f(std::pair<int, int>, std::pair<std::pair<int, int>, std::pair<int, int> >)"
        );
        let full = bomb(24);
        assert!(full.len() <= 255);
        let began = std::time::Instant::now();
        assert_eq!(demangle(full.as_bytes(), false), full);
        for cut in 0..full.len() {
            assert!(demangle(&full.as_bytes()[..cut], false).len() <= SHOWN_MAX);
        }
        assert!(began.elapsed().as_secs() < 20);
        assert_eq!(limited("x".repeat(SHOWN_MAX + 1)), None);
        assert_eq!(limited("short").as_deref(), Some("short"));
    }

    #[test]
    fn names() {
        assert_eq!(
            demangle(b"_Z9vectorAddPKfS0_Pfi", false),
            "vectorAdd(float const*, float const*, float*, int)"
        );
        assert_eq!(
            demangle(b"_ZN2at6native4fillEv", false),
            "at::native::fill()"
        );
        assert_eq!(
            demangle(b"_ZN4core3fmt5write17h0123456789abcdefE", false),
            "core::fmt::write"
        );
        assert_eq!(demangle(b"plain_kernel", false), "plain_kernel");
        assert_eq!(demangle(b"_Z9vectorAd", true), "_Z9vectorAd…");
        assert_eq!(demangle(b"a\x1b[2J\xff", false), "a\u{fffd}[2J\u{fffd}");
        assert_eq!(clean("a\u{202e}b\u{2028}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(demangle(b"", false), "");
    }
}
