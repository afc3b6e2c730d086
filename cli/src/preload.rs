//! Why a process does not have a library that LD_PRELOAD was to bring.

use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Set-user-ID or set-group-ID.
const SET_ID: u32 = 0o6000;

/// What kept it out, and what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// In words that follow the process's name.
    pub why: &'static str,
    /// What to do about it.
    pub cure: &'static str,
}

/// Why `file` is not in a process. `None`: the process ended, is none of programs, or has the file by now or may
/// still get it.
pub fn why_not(pid: u32, file: &str) -> Option<Reason> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    if maps.is_empty() || is_starting(&maps) || maps.lines().any(|l| l.ends_with(file)) {
        return None;
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let set_id = fs::metadata(format!("/proc/{pid}/exe"))
        .is_ok_and(|meta| meta.permissions().mode() & SET_ID != 0);
    let there = !file.starts_with('/') || fs::metadata(format!("/proc/{pid}/root{file}")).is_ok();
    Some(reason(&maps, names(&environment, file), set_id, there))
}

/// Whether a process is being started that is to have a file by LD_PRELOAD.
pub fn is_to_come(pid: u32, file: &str) -> bool {
    let read = |what: &str| fs::read(format!("/proc/{pid}/{what}"));
    read("environ").is_ok_and(|environment| names(&environment, file))
        && read("maps").is_ok_and(|maps| is_starting(&String::from_utf8_lossy(&maps)))
}

/// Whether LD_PRELOAD of an environment names a file.
fn names(environment: &[u8], file: &str) -> bool {
    environment
        .split(|b| *b == 0)
        .filter_map(|entry| entry.strip_prefix(b"LD_PRELOAD="))
        .any(|list| {
            let mut files = list.split(|b| matches!(b, b' ' | b':'));
            files.any(|named| named == file.as_bytes())
        })
}

/// The name of the file that a line of mappings is about.
fn file_name(line: &str) -> &str {
    line.rsplit('/').next().unwrap_or_default()
}

/// Whether the loader of glibc is there and no library yet: it maps those of LD_PRELOAD before all others.
fn is_starting(maps: &str) -> bool {
    let loader = |name: &str| name.starts_with("ld-linux");
    let library = |name: &str| name.contains(".so") && !loader(name) && !name.starts_with("ld.so");
    maps.lines().any(|l| loader(file_name(l))) && !maps.lines().any(|l| library(file_name(l)))
}

fn reason(maps: &str, named: bool, set_id: bool, there: bool) -> Reason {
    let loader = |name: &str| maps.lines().any(|l| file_name(l).starts_with(name));
    let (why, cure) = if loader("ld-musl") {
        ("a musl program", "use an image with glibc")
    } else if !loader("ld-linux") {
        ("a static program", "link it dynamically")
    } else if set_id {
        (
            "a set-user-ID program, for which the loader ignores LD_PRELOAD",
            "start the program that uses CUDA without it",
        )
    } else if !named {
        (
            "LD_PRELOAD in its environment does not name the library: something on the way dropped or replaced it",
            "keep LD_PRELOAD (sudo, env -i, ssh, docker run and some launchers drop it), or start parcagpu inside",
        )
    } else if !there {
        (
            "the file is not there in its mount namespace",
            "mount or copy the library into the container",
        )
    } else {
        (
            "the loader refused it (unreadable file, an older glibc, or another architecture)",
            "LD_DEBUG=libs shows what the loader says",
        )
    };
    Reason { why, cure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kept_it_out_is_explained() {
        let glibc = "1-2 r-xp 0 0:1 5 /usr/lib/ld-linux-x86-64.so.2\n";
        let why = |maps, named, set_id, there| reason(maps, named, set_id, there).why;
        let musl = "1-2 r-xp 0 0:1 5 /lib/ld-musl-x86_64.so.1\n";
        assert_eq!(why(musl, true, false, true), "a musl program");
        let busybox = "1-2 r-xp 0 0:1 5 /bin/busybox\n";
        assert_eq!(why(busybox, true, false, true), "a static program");
        assert!(why(glibc, true, true, true).contains("set-user-ID"));
        assert!(why(glibc, false, false, true).contains("dropped or replaced"));
        assert!(why(glibc, true, false, false).contains("mount namespace"));
        assert!(why(glibc, true, false, true).contains("refused"));
    }

    #[test]
    fn one_that_is_only_starting_may_still_get_it() {
        let begun = "1-2 r-xp 0 0:1 5 /opt/app.so.d/app\n3-4 r-xp 0 0:1 6 /usr/lib/ld-linux-x86-64.so.2\n\
            5-6 r--p 0 0:1 7 /etc/ld.so.cache\n7-8 rw-p 0 0:0 0 [stack]\n";
        assert!(is_starting(begun));
        let done = format!("{begun}7-8 r-xp 0 0:1 8 /usr/lib/libc.so.6\n");
        assert!(!is_starting(&done));
        assert!(!is_starting("1-2 r-xp 0 0:1 5 /bin/busybox\n"));
        assert!(!is_starting("1-2 r-xp 0 0:1 5 /lib/ld-musl-x86_64.so.1\n"));
    }

    #[test]
    fn what_an_environment_names() {
        let environment = b"A=1\0LD_PRELOAD=/a.so:/b.so /c.so\0B=/d.so\0";
        for (file, named) in [
            ("/a.so", true),
            ("/c.so", true),
            ("/d.so", false),
            ("/b", false),
        ] {
            assert_eq!(names(environment, file), named, "{file}");
        }
    }

    #[test]
    fn a_process_of_ours() {
        let own = why_not(std::process::id(), "/nowhere/lib.so").unwrap();
        assert!(own.why.contains("does not name"), "{own:?}");
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find_map(|l| {
            l.split_whitespace()
                .nth(5)
                .filter(|f| f.contains("libc.so"))
        });
        assert_eq!(
            why_not(std::process::id(), libc.unwrap()),
            None,
            "it has it"
        );
        assert_eq!(why_not(1 << 22, "/nowhere/lib.so"), None);
    }
}
