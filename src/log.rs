//! The debug log: lines on stderr, only when `PARCAGPU_DEBUG` asks for them.
//!
//! A line is one `write` of at most 1 KiB. `errno` is kept. The file behind descriptor 2 is
//! remembered when the library is loaded; if it was closed then, or the program closes or replaces it
//! later, the log is silent, so that no line of ours ends up in a file of the program's.

use std::fmt::Write;
use std::sync::atomic::{AtomicU8, Ordering};

use once_cell::race::OnceBox;

use crate::entry::KeepErrno;

static LEVEL: AtomicU8 = AtomicU8::new(0);
/// Two threads may both look, and neither waits for the other.
static STDERR: OnceBox<Option<(u64, u64)>> = OnceBox::new();

/// Longest line, bytes.
const LINE_MAX: usize = 1024;

fn stderr_identity() -> Option<(u64, u64)> {
    // SAFETY: an all-zero `stat` is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing; a closed descriptor gives an error.
    let ok = unsafe { libc::fstat(2, &mut stat) } == 0;
    ok.then_some((stat.st_dev, stat.st_ino))
}

/// Remembers the file behind descriptor 2; called when the library is loaded.
pub fn remember_stderr() {
    STDERR.get_or_init(|| Box::new(stderr_identity()));
}

/// Sets the level: 0 off, 1 notable things, 2 every event.
pub fn set_level(level: u8) {
    LEVEL.store(level, Ordering::Relaxed);
}

/// Whether lines of `level` are written.
#[inline]
pub fn enabled(level: u8) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level
}

struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let n = s.len().min(LINE_MAX - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Writes one line; called through [`crate::debug_log!`].
#[cold]
pub fn write(args: std::fmt::Arguments<'_>) {
    let _errno = KeepErrno::new();
    let Some(Some(identity)) = STDERR.get() else {
        return;
    };
    if stderr_identity() != Some(*identity) {
        return;
    }
    let mut line = Line {
        bytes: [0; LINE_MAX],
        len: 0,
    };
    let _ = write!(line, "parcagpu: {args}");
    line.bytes[line.len] = b'\n';
    // SAFETY: the buffer has `len + 1` initialised bytes.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len + 1) };
}

/// Logs a line when the debug level is at least `$level`; arguments are evaluated only then.
#[macro_export]
macro_rules! debug_log {
    ($level:expr, $($arg:tt)*) => {
        if $crate::log::enabled($level) {
            $crate::log::write(format_args!($($arg)*));
        }
    };
}
