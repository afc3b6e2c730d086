//! Whether this process may make code writable.
//!
//! Engines change code in place, and want memory of their own that is writable
//! and executable. Asked before anything is patched, because the answer may be
//! deadly: an engine may crash on a refused `mprotect`, and a seccomp filter
//! may kill. Where a filter or SELinux is at work, it is tried in a child.

use std::fs;

use crate::maps::page_size;

mod child;

const PR_GET_MDWE: libc::c_int = 66;
const MDWE_REFUSE_EXEC_GAIN: libc::c_int = 1;

/// Says whether the page of code at `address` may be made writable for a
/// moment; the error is a sentence for people.
pub(crate) fn check(address: usize) -> Result<(), String> {
    // SAFETY: asks for a number; a kernel that does not know it says EINVAL.
    let mdwe = unsafe { libc::prctl(PR_GET_MDWE, 0, 0, 0, 0) };
    if mdwe > 0 && mdwe & MDWE_REFUSE_EXEC_GAIN != 0 {
        return Err("code pages may not be made writable (PR_SET_MDWE)".to_owned());
    }
    let (guard, result) = match guard() {
        None => return try_here(),
        // Its rules are about the arguments of calls, not about which page.
        Some(Guard::Seccomp) => (
            "seccomp filter",
            child::sharing_memory().unwrap_or_else(|| child::with_a_copy(address)),
        ),
        Some(Guard::SeLinux) => ("SELinux", child::with_a_copy(address)),
    };
    result.map_err(|e| format!("code pages may not be made writable ({guard}: {e})"))
}

/// What might forbid it in ways that cannot be tried in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Seccomp,
    SeLinux,
}

fn guard() -> Option<Guard> {
    // Asked first, as its rules are about the page itself.
    if fs::read("/sys/fs/selinux/enforce").is_ok_and(|text| text.first() == Some(&b'1')) {
        return Some(Guard::SeLinux);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "Seccomp:")
        .is_some_and(|mode| mode != "0")
        .then_some(Guard::Seccomp)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim())
}

const RX: libc::c_int = libc::PROT_READ | libc::PROT_EXEC;
const RWX: libc::c_int = RX | libc::PROT_WRITE;

/// Tries it on pages of our own.
fn try_here() -> Result<(), String> {
    let size = page_size();
    let failed = |what| {
        let error = std::io::Error::last_os_error();
        Err(format!(
            "code pages may not be made writable ({what}: {error})"
        ))
    };
    // SAFETY: new private pages that nobody else knows; every later call is
    // about them alone.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), size, RWX, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return failed("mmap");
        }
        let refused = [RX, RWX, RX]
            .iter()
            .any(|&mode| libc::mprotect(page, size, mode) != 0);
        let result = if refused { failed("mprotect") } else { Ok(()) };
        libc::munmap(page, size);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Held while a test has children, as a trial where a filter is at work.
    pub(super) static CHILDREN: Mutex<()> = Mutex::new(());

    #[test]
    fn allowed_here() {
        let _alone = CHILDREN.lock();
        assert_eq!(try_here(), Ok(()));
        assert_eq!(check(allowed_here as *const () as usize), Ok(()));
    }

    #[test]
    fn fields_of_the_status_file() {
        let text = "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field(text, "Seccomp:"), Some("2"));
        assert_eq!(field(text, "Nothing:"), None);
    }
}
