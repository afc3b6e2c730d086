//! Readable kernel names.

use std::collections::HashMap;

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
        let short = format!("{rust:#}");
        if name.starts_with("_R") || short != rust.to_string() {
            return Some(short);
        }
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    symbol.demangle().ok()
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
