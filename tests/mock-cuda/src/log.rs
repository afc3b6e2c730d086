//! The call log: `MOCK_LOG=FILE`.
//!
//! One line per call when it returns: `NAME tid=T ARGUMENTS = RESULT`; a call made inside another
//! one comes before it. Numbers are in decimal, pointers are `null` or `ptr`, so the logs of two
//! runs compare; with `MOCK_LOG_TIMES` set a last argument `at=NS` is the time by `CLOCK_MONOTONIC`. `%p` in the file's name becomes the process id; one process may write a file.
//!
//! The file is mapped, and lines are copied into the mapping: they survive `_exit` and SIGKILL, no
//! descriptor stays open that a program could close or reuse, and forked children go on in the same
//! file. Unused room at the end is newlines, trimmed at a normal exit.

use std::cell::Cell;
use std::ffi::CString;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::settings;

const CHUNK: usize = 1 << 16;
const ADDRESS_SPACE: usize = 1 << 36;

/// Lives in shared memory, so that forked children append behind their parent's lines.
struct Shared {
    used: AtomicUsize,
    grown: AtomicUsize,
    growing: AtomicBool,
}

struct Log {
    path: CString,
    base: *mut u8,
    shared: &'static Shared,
    owner: libc::pid_t,
    timed: bool,
    trimmed: AtomicBool,
}

// SAFETY: `base` is a shared mapping that is never unmapped; ranges are handed out by `used`.
unsafe impl Sync for Log {}
// SAFETY: as above; nothing in it belongs to one thread.
unsafe impl Send for Log {}

static LOG: OnceLock<Option<Log>> = OnceLock::new();

fn log() -> Option<&'static Log> {
    LOG.get_or_init(|| Log::open(&settings::text("MOCK_LOG")))
        .as_ref()
}

/// Whether calls are to be logged.
pub fn on() -> bool {
    log().is_some()
}

/// Appends one line.
pub fn append(line: &str) {
    let Some(log) = log() else { return };
    match line.rsplit_once(" = ") {
        Some((call, result)) if log.timed => {
            let line = format!("{call} at={} = {result}", monotonic_ns());
            log.append(line.as_bytes());
        }
        _ => log.append(line.as_bytes()),
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Cuts the unused end off; the process is ending.
pub fn trim() {
    if let Some(Some(log)) = LOG.get() {
        // SAFETY: plain system call.
        if unsafe { libc::getpid() } == log.owner {
            log.trimmed.store(true, Ordering::SeqCst);
            log.cut();
        }
    }
}

/// The caller's kernel thread id.
pub fn tid() -> i32 {
    thread_local!(static TID: Cell<i32> = const { Cell::new(0) });
    TID.with(|tid| {
        if tid.get() == 0 {
            // SAFETY: plain system call.
            tid.set(unsafe { libc::gettid() });
        }
        tid.get()
    })
}

impl Log {
    fn open(path: &str) -> Option<Log> {
        if path.is_empty() {
            return None;
        }
        // SAFETY: plain system calls; the descriptor is closed after mapping, results are checked.
        unsafe {
            let owner = libc::getpid();
            let path = CString::new(path.replace("%p", &owner.to_string())).ok()?;
            let file = libc::open(
                path.as_ptr(),
                libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC,
                0o644,
            );
            if file < 0 {
                eprintln!(
                    "simulated driver: cannot write the call log {}",
                    path.to_string_lossy()
                );
                libc::abort();
            }
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                ADDRESS_SPACE,
                prot,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file,
                0,
            );
            libc::close(file);
            let shared = libc::mmap(
                std::ptr::null_mut(),
                4096,
                prot,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if base == libc::MAP_FAILED || shared == libc::MAP_FAILED {
                eprintln!("simulated driver: cannot map the call log");
                libc::abort();
            }
            // Anonymous memory is zero, which is the right start for every field.
            let shared = &*shared.cast::<Shared>();
            Some(Log {
                path,
                base: base.cast(),
                shared,
                owner,
                timed: !settings::text("MOCK_LOG_TIMES").is_empty(),
                trimmed: AtomicBool::new(false),
            })
        }
    }

    fn append(&self, line: &[u8]) {
        let size = line.len() + 1;
        let at = self.shared.used.fetch_add(size, Ordering::SeqCst);
        while self.shared.grown.load(Ordering::Acquire) < at + size {
            self.grow();
        }
        // SAFETY: the range was handed to us alone and the file covers it.
        unsafe {
            std::ptr::copy_nonoverlapping(line.as_ptr(), self.base.add(at), line.len());
            *self.base.add(at + line.len()) = b'\n';
        }
        if self.trimmed.load(Ordering::SeqCst) {
            self.cut();
        }
    }

    fn grow(&self) {
        if self.shared.growing.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
            return;
        }
        let grown = self.shared.grown.load(Ordering::Acquire);
        // SAFETY: the path is NUL-terminated; the new range lies inside the mapping and the file.
        unsafe {
            if grown + CHUNK > ADDRESS_SPACE
                || libc::truncate(self.path.as_ptr(), (grown + CHUNK) as libc::off_t) != 0
            {
                eprintln!("simulated driver: cannot extend the call log");
                libc::abort();
            }
            std::ptr::write_bytes(self.base.add(grown), b'\n', CHUNK);
        }
        self.shared.grown.store(grown + CHUNK, Ordering::Release);
        self.shared.growing.store(false, Ordering::Release);
    }

    /// After this the next line grows the file again, from the cut.
    fn cut(&self) {
        while self.shared.growing.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // A page is kept whole in `grown`: a thread may be copying its line right now.
        let used = self.shared.used.load(Ordering::SeqCst);
        // SAFETY: the path is NUL-terminated.
        unsafe { libc::truncate(self.path.as_ptr(), used as libc::off_t) };
        self.shared.grown.store(used, Ordering::Release);
        self.shared.growing.store(false, Ordering::Release);
    }
}

/// An argument in the log.
pub trait LogArg {
    /// Writes the value.
    fn write(&self, line: &mut String);
}

macro_rules! log_numbers {
    ($($ty:ty),*) => { $(
        impl LogArg for $ty {
            fn write(&self, line: &mut String) {
                let _ = write!(line, " {self}");
            }
        }
    )* };
}
log_numbers!(i32, u32, u64, usize, u8, f32);

impl<T> LogArg for *const T {
    fn write(&self, line: &mut String) {
        line.push_str(if self.is_null() { " null" } else { " ptr" });
    }
}

impl<T> LogArg for *mut T {
    fn write(&self, line: &mut String) {
        self.cast_const().write(line);
    }
}
