//! Whether this process may make code writable.
//!
//! Engines change code in place, and want memory of their own that is writable
//! and executable. Asked before anything is patched, because the answer may be deadly: an
//! engine may crash on a refused `mprotect`, and a seccomp filter may kill.
//! Where a filter or SELinux is at work, the very change to be made is tried
//! in a forked child, whose memory and death are its own.

use std::fs;
use std::time::{Duration, Instant};

use crate::maps::page_size;

const PR_GET_MDWE: libc::c_int = 66;
const MDWE_REFUSE_EXEC_GAIN: libc::c_int = 1;
/// A few system calls take microseconds; a child that is slower is stuck.
const CHILD_LIMIT: Duration = Duration::from_millis(500);

/// Says whether the page of code at `address` may be made writable for a
/// moment; the error is a sentence for people.
pub(crate) fn check(address: usize) -> Result<(), String> {
    // SAFETY: asks for a number; a kernel that does not know it says EINVAL.
    let mdwe = unsafe { libc::prctl(PR_GET_MDWE, 0, 0, 0, 0) };
    if mdwe > 0 && mdwe & MDWE_REFUSE_EXEC_GAIN != 0 {
        return Err("code pages may not be made writable (PR_SET_MDWE)".to_owned());
    }
    match guard() {
        None => try_here(),
        Some(guard) => try_in_child(address)
            .map_err(|e| format!("code pages may not be made writable ({guard}: {e})")),
    }
}

/// What might forbid it in ways that cannot be tried in this process.
fn guard() -> Option<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if field(&status, "Seccomp:").is_some_and(|mode| mode != "0") {
        return Some("seccomp filter");
    }
    let enforcing =
        fs::read("/sys/fs/selinux/enforce").is_ok_and(|text| text.first() == Some(&b'1'));
    enforcing.then_some("SELinux")
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

/// Makes the page writable, changes nothing in it, makes it code again, and
/// gets a page that is both, in a child that is a copy of this process.
///
/// The child is made by `clone` without an exit signal: no `atfork` handler
/// runs, no SIGCHLD comes, and the program's `wait` does not see it. It does
/// not share our memory, as a core dump of one process sharing it would take
/// the others along on older kernels.
fn try_in_child(address: usize) -> Result<(), String> {
    let size = page_size();
    let page = address & !(size - 1);
    // SAFETY: `sigset_t` is plain data; masks are changed for this thread and
    // put back below. No handler of the program may run in the child.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    // SAFETY: clone with no flags is fork; the child below makes nothing but
    // system calls on memory of its own and never returns.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: see `child_body`.
        unsafe { child_body(page, size) }
    }
    let error = std::io::Error::last_os_error();
    // SAFETY: puts the mask of this thread back.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    match libc::pid_t::try_from(child) {
        Ok(child) if child > 0 => await_child(child),
        _ => Err(format!("cannot be tried in a child: {error}")),
    }
}

/// # Safety
/// Only in the forked child, with `page` mapped as code there.
unsafe fn child_body(page: usize, size: usize) -> ! {
    let address = page as *mut libc::c_void;
    // SAFETY: the memory is this child's own copy; the byte is written back as
    // it was read, which makes the page a private one, as a patch would.
    unsafe {
        // No core file of a child that nobody knows of.
        libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        if libc::syscall(libc::SYS_mprotect, address, size, RWX) != 0 {
            leave(1);
        }
        let byte = address.cast::<u8>();
        byte.write_volatile(byte.read_volatile());
        if libc::syscall(libc::SYS_mprotect, address, size, RX) != 0 {
            leave(1);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if libc::syscall(libc::SYS_mmap, 0, size, RWX, flags, -1, 0) == -1 {
            leave(2);
        }
        leave(0)
    }
}

fn leave(code: libc::c_int) -> ! {
    loop {
        // SAFETY: ends the child without running anything of the program.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

fn await_child(child: libc::pid_t) -> Result<(), String> {
    let started = Instant::now();
    let mut status = 0;
    let mut killed = false;
    loop {
        let flags = libc::__WALL | if killed { 0 } else { libc::WNOHANG };
        // SAFETY: waits for the child made above.
        let done = unsafe { libc::waitpid(child, &raw mut status, flags) };
        if done == child {
            break;
        }
        if done < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return Err("the trial's outcome is unknown".to_owned());
        }
        if !killed && started.elapsed() > CHILD_LIMIT {
            // SAFETY: the child made above, not yet waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            killed = true;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    if killed {
        Err("the trial did not end".to_owned())
    } else if libc::WIFSIGNALED(status) {
        Err(format!(
            "the trial was killed by signal {}",
            libc::WTERMSIG(status)
        ))
    } else {
        match libc::WEXITSTATUS(status) {
            0 => Ok(()),
            1 => Err("mprotect refused".to_owned()),
            _ => Err("mmap refused".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_here_and_in_a_child_alike() {
        let code = allowed_here_and_in_a_child_alike as *const () as usize;
        assert_eq!(try_here(), Ok(()));
        assert_eq!(try_in_child(code), Ok(()));
        // SAFETY: no child may be left over; waits for nothing.
        let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
        assert_eq!(left, -1, "the child was reaped");
    }

    #[test]
    fn a_page_that_is_not_mapped_is_refused() {
        assert!(try_in_child(page_size()).is_err());
    }

    #[test]
    fn fields_of_the_status_file() {
        let text = "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field(text, "Seccomp:"), Some("2"));
        assert_eq!(field(text, "Nothing:"), None);
    }
}
