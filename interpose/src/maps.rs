//! What is mapped in this process, from `/proc/self/maps`.
//!
//! Read only when a watched library was found, never in other programs.

use std::io;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: usize,
    pub end: usize,
    pub read: bool,
    pub exec: bool,
    /// Offset of `start` in the mapped file.
    pub offset: u64,
    pub device: String,
    pub inode: u64,
    pub path: String,
}

/// Every mapping, by ascending address.
pub(crate) fn current() -> io::Result<Vec<Mapping>> {
    let text = std::fs::read("/proc/self/maps")?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(parse)
        .collect())
}

/// Size of a page of memory.
pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// One line; `None` for what is none.
pub(crate) fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let mode = fields.next()?.as_bytes();
    Some(Mapping {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        read: *mode.first()? == b'r',
        exec: *mode.get(2)? == b'x',
        offset: u64::from_str_radix(fields.next()?, 16).ok()?,
        device: fields.next()?.to_owned(),
        inode: fields.next()?.parse().ok()?,
        path: fields.next().unwrap_or("").trim_start().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind() {
        let file =
            parse("7f10-7f20 r-xp 00001000 fe:01 1234                       /a b/lib.so (deleted)")
                .expect("a file's line");
        assert_eq!(
            file,
            Mapping {
                start: 0x7f10,
                end: 0x7f20,
                read: true,
                exec: true,
                offset: 0x1000,
                device: "fe:01".to_owned(),
                inode: 1234,
                path: "/a b/lib.so (deleted)".to_owned(),
            }
        );
        let anonymous = parse("1000-2000 ---p 00000000 00:00 0 ").expect("no path");
        assert!(!anonymous.read && !anonymous.exec && anonymous.path.is_empty());
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_function_is_in_executable_memory() {
        let here = this_function_is_in_executable_memory as *const () as usize;
        let maps = current().expect("maps");
        // Other tests map and unmap meanwhile, and the kernel gives the file in several pieces: neighbours may
        // overlap.
        assert!(maps.iter().all(|m| m.start < m.end));
        let mine = maps.iter().find(|m| (m.start..m.end).contains(&here));
        assert!(mine.expect("mapped").exec);
    }
}
