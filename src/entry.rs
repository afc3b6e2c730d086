//! What every entry from foreign code passes through: a panic barrier, a re-entry guard, and the
//! caller's `errno` given back.
//!
//! A panic that left an `extern "C"` function would abort the program we are a guest of. It is
//! counted, reported once, and the entry returns its fallback instead. The cancellation of a thread
//! would end the program at the barrier; it is put off until the entry is left.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use parcagpu_abi::status::Counter;
use parcagpu_interpose::Uncancelled;

use crate::status;

thread_local! {
    // No destructor, so that it stays readable while a thread ends.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in our own code.
#[inline]
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// Restores `errno` when dropped.
pub struct KeepErrno(i32);

impl KeepErrno {
    /// Remembers `errno` of this thread.
    pub fn new() -> Self {
        // SAFETY: glibc's errno location of this thread is always readable.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Default for KeepErrno {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: as above, and writable.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Marks this thread as being in our own code; entries that look see it until it is dropped.
pub struct Inside(bool);

impl Inside {
    /// Enters; `None` when this thread is in our code already.
    pub fn enter() -> Option<Self> {
        // Not `then_some`: a guard that is made and not given out would take the mark away.
        INSIDE.with(|inside| (!inside.replace(true)).then(|| Self(false)))
    }

    /// Enters whether or not the thread is in our code already; the previous mark is restored.
    pub fn nested() -> Self {
        Self(INSIDE.with(|inside| inside.replace(true)))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.0));
    }
}

/// Takes the mark away until it is dropped: for calling a function of the program's from our code.
pub struct Outside(bool);

impl Outside {
    /// Leaves.
    pub fn new() -> Self {
        Self(INSIDE.replace(false))
    }
}

impl Default for Outside {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// Runs `body`; a panic in it gives `fallback`. Puts the cancellation of this thread off.
pub fn barrier<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    let _whole = Uncancelled::begin();
    quick_barrier(fallback, body)
}

/// The same, some 10 ns cheaper, for a `body` that meets no cancellation point.
pub fn quick_barrier<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    let _errno = KeepErrno::new();
    // Unwind safety: state shared with other entries is atomics and maps whose operations either
    // happened or did not; a guard dropped while unwinding leaves them consistent.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        status::block().add(Counter::Panics, 1);
        let _ = catch_unwind(|| {
            crate::errors::report(0, "library", "a panic was stopped at an entry point");
        });
        fallback
    })
}

/// As [`barrier`], and `fallback` at once when this thread is in our code already.
pub fn guarded<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    match Inside::enter() {
        Some(_inside) => barrier(fallback, body),
        None => fallback,
    }
}

/// Replaces the panic hook of this library's own runtime: the default one prints to stderr. Other
/// Rust code in the process has a runtime, and a hook, of its own.
pub fn silence_panics() {
    // Not a `Once`: a forked child would wait for ever for a thread of its parent's that was at it.
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|info| crate::debug_log!(1, "{info}")));
    }
}

#[cfg(test)]
mod tests {
    use super::{Inside, barrier, guarded};

    #[test]
    fn a_panic_gives_the_fallback_and_frees_the_guard() {
        super::silence_panics();
        assert_eq!(guarded(7, || panic!("inside")), 7);
        assert_eq!(guarded(7, || 8), 8);
    }

    #[test]
    fn re_entry_gives_the_fallback() {
        assert_eq!(guarded(1, || guarded(2, || 3)), 2);
        let _outer = Inside::enter();
        assert_eq!(barrier(0, || guarded(1, || 2)), 1);
        assert!(super::is_inside(), "the inner refusal keeps the outer mark");
    }

    #[test]
    fn nested_restores_the_outer_mark() {
        let outer = Inside::enter();
        assert!(outer.is_some());
        drop(Inside::nested());
        assert!(Inside::enter().is_none());
    }

    #[test]
    fn errno_is_kept() {
        // SAFETY: errno of this thread is readable and writable.
        unsafe { *libc::__errno_location() = 42 };
        barrier((), || {
            // SAFETY: closing an invalid descriptor only sets errno.
            unsafe { libc::close(-1) };
        });
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 42);
    }
}
