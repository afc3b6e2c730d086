//! SIGINT, SIGTERM and SIGHUP end a view in order; how often and which is kept in two atomics.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Modes of the terminal before we changed them.
struct Modes(UnsafeCell<MaybeUninit<libc::termios>>);

// SAFETY: written before HAS_MODES says so, and not while it does.
unsafe impl Sync for Modes {}

static MODES: Modes = Modes(UnsafeCell::new(MaybeUninit::uninit()));
static HAS_MODES: AtomicBool = AtomicBool::new(false);
/// Shows the cursor and leaves the other screen.
const LEAVE_SCREEN: &[u8] = b"\x1b[?25h\x1b[?1049l";

static COUNT: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);

/// After so many we end at once: we may be writing into a pipe that nobody reads.
const PATIENCE: u32 = 3;

extern "C" fn note(signal: libc::c_int) {
    LAST.store(signal, Ordering::Relaxed);
    if COUNT.fetch_add(1, Ordering::Relaxed) >= PATIENCE {
        restore_terminal();
        // SAFETY: _exit may be called in a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// Remembers how the terminal is, for an end that leaves no time for anything else.
pub fn remember_terminal() {
    HAS_MODES.store(false, Ordering::SeqCst);
    // SAFETY: nobody reads the modes while HAS_MODES is false; tcgetattr fills them.
    let rc = unsafe { libc::tcgetattr(libc::STDIN_FILENO, (*MODES.0.get()).as_mut_ptr()) };
    HAS_MODES.store(rc == 0, Ordering::SeqCst);
}

/// The terminal is as it was.
pub fn forget_terminal() {
    HAS_MODES.store(false, Ordering::SeqCst);
}

/// Async-signal-safe.
fn restore_terminal() {
    if HAS_MODES.load(Ordering::SeqCst) {
        // SAFETY: the modes were filled before HAS_MODES was set; both calls may be made in a handler.
        unsafe {
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, (*MODES.0.get()).as_ptr());
            libc::write(
                libc::STDOUT_FILENO,
                LEAVE_SCREEN.as_ptr().cast(),
                LEAVE_SCREEN.len(),
            );
        }
    }
}

/// Takes the signals over. A child we start gets the default handling back by exec.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: sigaction is plain data, valid as zeros (empty mask, no flags).
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler only touches atomics, which is safe in a signal handler.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// How many of them came.
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// The last one, 0: none.
pub fn last() -> i32 {
    LAST.load(Ordering::Relaxed)
}
