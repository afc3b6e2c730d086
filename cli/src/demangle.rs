//! Readable kernel names.

/// C++ and Rust names demangled, others as they are. A cut name cannot be demangled: it ends in `…`.
pub fn demangle(bytes: &[u8], cut: bool) -> String {
    let name = String::from_utf8_lossy(bytes);
    let mut text = whole(&name).unwrap_or_else(|| name.clone().into_owned());
    if cut {
        text.push('…');
    }
    clean(&text)
}

fn whole(name: &str) -> Option<String> {
    if name.starts_with("_R") || name.starts_with("_ZN") {
        if let Ok(rust) = rustc_demangle::try_demangle(name)
            && (name.starts_with("_R") || format!("{rust:#}") != format!("{rust}"))
        {
            return Some(format!("{rust:#}"));
        }
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    symbol.demangle().ok()
}

/// Control characters could play tricks with the terminal.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
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
        assert_eq!(demangle(b"", false), "");
    }
}
