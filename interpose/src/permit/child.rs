//! Trials in a child process, whose death is its own.
//!
//! Children are made by `clone` without an exit signal: no `atfork` handler
//! runs, no SIGCHLD comes, and the program's `wait` does not see them. They run
//! with all signals blocked and make nothing but system calls, for a bounded
//! time. Two kinds:
//!
//! * A copy of this process, as by fork, may try the very page of code that is
//!   to be changed. Copying costs 80 ms for each GB of memory in use.
//! * A child that shares our memory costs nothing, but may only touch a page
//!   made for it; and before Linux 5.16 a core dump of one process killed all
//!   others that shared its memory.

use std::time::{Duration, Instant};

use super::{RWX, RX};
use crate::maps::page_size;

/// A few system calls take microseconds; a child that is slower is stuck.
const LIMIT: Duration = Duration::from_millis(500);

/// Tries it on the page of code at `address`, in a copy of this process.
pub(super) fn with_a_copy(address: usize) -> Result<(), String> {
    let size = page_size();
    let page = address & !(size - 1);
    with_signals_blocked(|| {
        // SAFETY: clone with no flags is fork; the child makes nothing but
        // system calls on memory of its own and never returns.
        let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if child == 0 {
            // SAFETY: this is the child; the page is mapped in it as in us.
            unsafe { child_body(page, size) }
        }
        child
    })
}

/// Tries it on a page of our own, in a child that shares our memory; `None` if
/// that is not safe here.
#[cfg(target_arch = "x86_64")]
pub(super) fn sharing_memory() -> Option<Result<(), String>> {
    if !dumps_are_separate() {
        return None;
    }
    let size = page_size();
    // SAFETY: a new private page, given back below.
    let page = unsafe {
        let (mode, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), size, mode, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page is this trial's, and stays until the child has ended.
    let result = with_signals_blocked(|| unsafe { start_sharing(page as usize, size) });
    // SAFETY: the child is gone, and nobody else knows the page.
    unsafe { libc::munmap(page, size) };
    Some(result)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn sharing_memory() -> Option<Result<(), String>> {
    None
}

/// Since Linux 5.16 a core dump ends one process only.
#[cfg(target_arch = "x86_64")]
fn dumps_are_separate() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= (5, 16))
}

/// Major and minor number of a kernel release.
#[cfg(target_arch = "x86_64")]
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Makes the child and returns its id, or minus an error number. The child runs
/// on our stack without using it, which is why all of it is in assembly: no
/// call, no variable in memory.
///
/// # Safety
/// `page` is mapped, `size` long, and nobody else's until the child has ended.
#[cfg(target_arch = "x86_64")]
unsafe fn start_sharing(page: usize, size: usize) -> i64 {
    // Not 0: for a dump that is piped to a program, 1 alone means no dump.
    let no_core = libc::rlimit64 {
        rlim_cur: 1,
        rlim_max: 1,
    };
    let child: i64;
    // SAFETY: system calls with valid arguments; the child leaves only by
    // exit_group, and its stack pointer is ours but never used.
    unsafe {
        std::arch::asm!(
            "xor esi, esi",
            "xor edx, edx",
            "xor r10d, r10d",
            "xor r8d, r8d",
            "syscall",
            "test rax, rax",
            "jnz 4f",
            // prlimit64(0, RLIMIT_CORE, no_core, NULL)
            "mov eax, 302",
            "xor edi, edi",
            "mov esi, 4",
            "mov rdx, r14",
            "xor r10d, r10d",
            "syscall",
            // mprotect(page, size, RWX), then RX
            "mov r15d, 1",
            "mov eax, 10",
            "mov rdi, r12",
            "mov rsi, r13",
            "mov edx, 7",
            "syscall",
            "test rax, rax",
            "jnz 3f",
            "mov eax, 10",
            "mov rdi, r12",
            "mov rsi, r13",
            "mov edx, 5",
            "syscall",
            "test rax, rax",
            "jnz 3f",
            // mmap(NULL, size, RWX, PRIVATE | ANONYMOUS, -1, 0), and munmap
            "mov r15d, 2",
            "mov eax, 9",
            "xor edi, edi",
            "mov rsi, r13",
            "mov edx, 7",
            "mov r10d, 0x22",
            "mov r8, -1",
            "xor r9d, r9d",
            "syscall",
            "cmp rax, -4096",
            "ja 3f",
            "mov rdi, rax",
            "mov rsi, r13",
            "mov eax, 11",
            "syscall",
            "xor r15d, r15d",
            // exit_group
            "3:",
            "mov eax, 231",
            "mov edi, r15d",
            "syscall",
            "jmp 3b",
            "4:",
            inout("rax") libc::SYS_clone => child,
            inout("rdi") i64::from(libc::CLONE_VM) => _,
            in("r12") page,
            in("r13") size,
            in("r14") &raw const no_core,
            out("r15") _,
            out("rsi") _,
            out("rdx") _,
            out("r10") _,
            out("r8") _,
            out("r9") _,
            out("rcx") _,
            out("r11") _,
        );
    }
    child
}

/// Starts a child by `start`, which returns its id, and waits for its verdict.
fn with_signals_blocked(start: impl FnOnce() -> i64) -> Result<(), String> {
    // SAFETY: `sigset_t` is plain data; the mask is changed for this thread and
    // put back below. No handler of the program may run in the child.
    let before = unsafe {
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let result = match libc::pid_t::try_from(start()) {
        Ok(child) if child > 0 => await_child(child),
        _ => Err("no child can be made to try it".to_owned()),
    };
    // SAFETY: puts the mask of this thread back.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    result
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
        if !killed && started.elapsed() > LIMIT {
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
    use super::super::tests::CHILDREN;
    use super::*;

    #[test]
    fn both_kinds_allow_it_and_leave_nothing() {
        let _alone = CHILDREN.lock();
        let code = both_kinds_allow_it_and_leave_nothing as *const () as usize;
        assert_eq!(with_a_copy(code), Ok(()));
        if let Some(result) = sharing_memory() {
            assert_eq!(result, Ok(()));
        }
        // SAFETY: waits for nothing.
        let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
        assert_eq!(left, -1, "the children were reaped");
    }

    #[test]
    fn a_page_that_is_not_mapped_is_refused() {
        let _alone = CHILDREN.lock();
        assert!(with_a_copy(page_size()).is_err());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn kernel_releases() {
        assert_eq!(version("5.15.0-105-generic\n"), Some((5, 15)));
        assert_eq!(version("6.18.44"), Some((6, 18)));
        assert_eq!(version("odd"), None);
    }
}
