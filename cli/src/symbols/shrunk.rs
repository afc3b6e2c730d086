//! Files that get shorter while they are read.
//!
//! The symbolizer maps the files it reads, and they belong to others: one that is cut off meanwhile (a package that is
//! being replaced, a process that means harm) has pages that no longer exist, and touching one is `SIGBUS`. While a
//! thread reads under [`reading`], such a page is replaced by one of zeros, which the symbolizer takes for what it is:
//! a damaged file. Everywhere else the signal does what it did before.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Pages are not smaller; on a machine with larger ones the kernel refuses the mapping, and the signal ends us.
const PAGE: usize = 4096;

thread_local! {
    /// Whether this thread reads, and how many pages were missing.
    static READS: Cell<bool> = const { Cell::new(false) };
    static MISSING: Cell<u32> = const { Cell::new(0) };
}

/// The handling that we replaced.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Runs what reads files of others; and whether one of them was shorter than when it was opened.
pub fn reading<R>(read: impl FnOnce() -> R) -> (R, bool) {
    install();
    let _ends = Ends;
    MISSING.set(0);
    READS.set(true);
    let result = read();
    (result, MISSING.get() > 0)
}

struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        READS.set(false);
    }
}

fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: sigaction is plain data, valid as zeros (empty mask).
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction =
            missing as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut before = MaybeUninit::zeroed();
        // SAFETY: the handler keeps to what may be called in one; `before` is filled, and valid as zeros if not.
        unsafe {
            libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr());
            before.assume_init()
        }
    });
}

extern "C" fn missing(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel gives a valid siginfo, and an address with a signal of its own.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == libc::BUS_ADRERR && READS.get() && put_zeros(address & !(PAGE - 1)) {
        MISSING.set(MISSING.get().saturating_add(1));
        return;
    }
    // It comes again at once, and is handled as it would have been without us.
    // SAFETY: sigaction may be called in a handler; BEFORE is set before the first signal can come here, but for
    // one that comes within `install`, and null changes nothing then.
    unsafe {
        match BEFORE.get() {
            Some(before) => libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()),
            None => libc::signal(libc::SIGBUS, libc::SIG_DFL) as libc::c_int,
        };
    }
}

/// A page of zeros in the place of one that is gone.
fn put_zeros(page: usize) -> bool {
    // SAFETY: mmap is a bare system call, which may be made in a handler. The page belongs to a mapping of a file that
    // this very thread reads, and had no content any more.
    let got = unsafe {
        libc::mmap(
            page as *mut libc::c_void,
            PAGE,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    got != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::{PAGE, reading};
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_gone_reads_as_zeros_and_is_told() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * PAGE as u64).unwrap();
        // SAFETY: a mapping of our own file, which is unmapped by nobody.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                3 * PAGE,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: within the mapping.
        let at = |page: usize| unsafe { start.cast::<u8>().add(page * PAGE + 7).read_volatile() };
        assert_eq!(reading(|| at(2)), (0, false));
        file.set_len(PAGE as u64).unwrap();
        assert_eq!(reading(|| at(0) + at(1) + at(2)), (0, true));
        assert_eq!(reading(|| at(1)), (0, false), "zeros stay");
    }
}
