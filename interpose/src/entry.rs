//! Entry functions: what a hooked function jumps to.
//!
//! The fast path is a load, a test and a tail call. On the slow path a handler
//! runs in two halves, before the original and after it, each behind a panic
//! barrier: should one panic, the call goes on without it. errno is the
//! original's in every case.
//!
//! While the original runs, nothing of ours is on the stack that has to be
//! undone. So a thread that is cancelled in there, a C++ exception or a
//! `longjmp` leaves the call as it would without us; the second half is not run
//! then. A half itself must not be left that way: a handler that may meet a
//! cancellation point puts cancellation off ([`Uncancelled`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// How many halves of handlers panicked so far.
pub fn handler_panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

/// What comes after the first half of a handler.
#[derive(Clone, Copy, Debug)]
pub enum Next<A, R, O> {
    /// The original, with these arguments, and then the second half.
    Call(A, O),
    /// The caller gets this; the original is not called.
    Return(R),
}

/// Gets the calls of one replaced function: `A` is the tuple of its arguments,
/// `R` its result. Everything is `Copy`, so that a call that never returns
/// leaves nothing behind.
pub trait Handler<A: Copy, R: Copy> {
    /// What the first half hands to the second.
    type Open: Copy;

    /// The first half. `frame` is an address on the stack: below everything of
    /// the caller's and above everything of the original's.
    ///
    /// # Safety
    /// The arguments are a caller's of the function.
    unsafe fn before(frame: usize, arguments: A) -> Next<A, R, Self::Open>;

    /// The second half: the original was called with these arguments and
    /// returned this.
    ///
    /// # Safety
    /// As said.
    unsafe fn after(open: Self::Open, arguments: A, result: R);
}

/// Runs a handler around a call of `original`.
///
/// Public for [`hooks!`](crate::hooks) only.
///
/// # Safety
/// The arguments are a caller's of the function that `original` calls.
#[doc(hidden)]
#[inline(always)]
pub unsafe fn handle<H: Handler<A, R>, A: Copy, R: Copy>(
    arguments: A,
    original: impl Fn(A) -> R,
) -> R {
    let here = 0_u8;
    let frame = (&raw const here).addr();
    let before = errno();
    // SAFETY: the caller's promise.
    let next = half(|| unsafe { H::before(frame, arguments) });
    set_errno(before);
    let (arguments, open) = match next {
        Some(Next::Return(result)) => return result,
        Some(Next::Call(arguments, open)) => (arguments, Some(open)),
        None => (arguments, None),
    };
    let result = original(arguments);
    if let Some(open) = open {
        let after = errno();
        // SAFETY: the original was called with these.
        half(|| unsafe { H::after(open, arguments, result) });
        set_errno(after);
    }
    result
}

/// One half; `None` if it panicked.
fn half<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            PANICS.fetch_add(1, Ordering::Relaxed);
            // Dropping it could panic again.
            std::mem::forget(payload);
            None
        }
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

const PTHREAD_CANCEL_DISABLE: i32 = 1;

/// Puts off the cancellation of this thread until it is dropped.
#[derive(Debug)]
pub struct Uncancelled {
    before: i32,
}

impl Uncancelled {
    /// From now on.
    pub fn begin() -> Uncancelled {
        let mut before = 0;
        // SAFETY: sets a flag of this thread; the old one fits the variable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ignored = 0;
        // SAFETY: puts the flag back as it was.
        unsafe { pthread_setcancelstate(self.before, &raw mut ignored) };
    }
}

pub(crate) fn errno() -> i32 {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// Lists the functions to be replaced in one library.
///
/// Each line names an exported C function with its type and the
/// [`Handler`] that gets its calls. Arguments and result must be `Copy`, as
/// those of C functions are. `when GROUP` puts the function in groups (bits of
/// a `u8`) that [`HookSet::want`](crate::HookSet::want) turns on and off.
///
/// ```
/// use parcagpu_interpose::{Handler, Next};
///
/// struct Tick;
/// impl Handler<(u32,), i32> for Tick {
///     type Open = ();
///     unsafe fn before(_frame: usize, arguments: (u32,)) -> Next<(u32,), i32, ()> {
///         Next::Call(arguments, ())
///     }
///     unsafe fn after(_open: (), _arguments: (u32,), _result: i32) {}
/// }
/// parcagpu_interpose::hooks! {
///     /// What we replace in the clock library.
///     pub static CLOCK: HookSet = [
///         fn clockTick(flags: u32) -> i32 => Tick, when 1;
///     ];
/// }
/// CLOCK.want(1, false);
/// ```
#[macro_export]
macro_rules! hooks {
    (
        $(#[$meta:meta])*
        $vis:vis static $set:ident: HookSet = [
            $( fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty
                => $handler:ty $(, when $group:expr)?; )*
        ];
    ) => {
        $(#[$meta])*
        $vis static $set: $crate::HookSet = {
            static HOOKS: &[$crate::Hook] = &[$({
                static ORIGINALS: $crate::Originals = $crate::Originals::new();
                type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;

                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C-unwind" fn $name<const COPY: usize>($($arg: $ty),*) -> $ret {
                    // One call for both ways, so that the compiler can make it
                    // a jump that leaves the arguments where they are.
                    let next: Function = if $set.wants($crate::__group!($($group)?)) {
                        handled::<COPY>
                    } else {
                        original::<COPY>()
                    };
                    // SAFETY: the arguments are the caller's own.
                    unsafe { next($($arg),*) }
                }

                #[inline(always)]
                fn original<const COPY: usize>() -> Function {
                    // SAFETY: published by the engine before any call could
                    // come here, and of the declared type.
                    unsafe { ::core::mem::transmute(ORIGINALS.get::<COPY>()) }
                }

                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments)]
                unsafe extern "C-unwind" fn handled<const COPY: usize>($($arg: $ty),*) -> $ret {
                    // SAFETY: the handler and the original get the caller's
                    // arguments, or what the handler answers for.
                    unsafe {
                        $crate::handle::<$handler, ($($ty,)*), $ret>(
                            ($($arg,)*),
                            |($($arg,)*)| original::<COPY>()($($arg),*),
                        )
                    }
                }

                $crate::Hook::new(
                    stringify!($name),
                    [
                        $name::<0> as *const (),
                        $name::<1> as *const (),
                        $name::<2> as *const (),
                        $name::<3> as *const (),
                    ],
                    &ORIGINALS,
                )
            }),*];
            $crate::HookSet::new(HOOKS)
        };
    };
}

/// The groups of a function: all, unless it says which.
#[doc(hidden)]
#[macro_export]
macro_rules! __group {
    () => {
        u8::MAX
    };
    ($group:expr) => {
        $group
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local!(static CALLS: Cell<i32> = const { Cell::new(0) });

    /// Does what its argument says.
    struct Scripted;

    const PANIC_BEFORE: u8 = 1;
    const PANIC_AFTER: u8 = 2;
    const REFUSE: u8 = 3;
    const OTHER: u8 = 4;

    impl Handler<(u8,), i32> for Scripted {
        type Open = u8;

        unsafe fn before(_frame: usize, (what,): (u8,)) -> Next<(u8,), i32, u8> {
            set_errno(1);
            assert_ne!(what, PANIC_BEFORE);
            match what {
                REFUSE => Next::Return(-1),
                OTHER => Next::Call((OTHER + 1,), what),
                _ => Next::Call((what,), what),
            }
        }

        unsafe fn after(open: u8, (what,): (u8,), result: i32) {
            set_errno(2);
            assert_ne!(what, PANIC_AFTER);
            assert!(result > 40 && (what == open || what == OTHER + 1));
        }
    }

    fn call(what: u8) -> (i32, i32) {
        set_errno(7);
        let original = |(_,): (u8,)| {
            assert_eq!(errno(), 7, "as the caller had it");
            set_errno(9);
            CALLS.set(CALLS.get() + 1);
            41
        };
        // SAFETY: the handler follows no pointer.
        let result = unsafe { handle::<Scripted, _, _>((what,), original) };
        (result, errno())
    }

    #[test]
    fn errno_is_the_originals_and_it_is_called_once_whatever_happens() {
        let before = handler_panics();
        for (what, panics) in [(0, 0), (PANIC_BEFORE, 1), (PANIC_AFTER, 2), (OTHER, 2)] {
            let calls = CALLS.get();
            assert_eq!(call(what), (41, 9));
            assert_eq!(CALLS.get() - calls, 1);
            assert_eq!(handler_panics() - before, panics, "{what}");
        }
    }

    #[test]
    fn a_handler_may_answer_itself() {
        let calls = CALLS.get();
        assert_eq!(call(REFUSE), (-1, 7));
        assert_eq!(CALLS.get(), calls);
    }

    #[test]
    fn frames_of_inner_calls_lie_below() {
        struct Noted;
        thread_local!(static FRAMES: Cell<[usize; 2]> = const { Cell::new([0; 2]) });
        impl Handler<(), ()> for Noted {
            type Open = ();
            unsafe fn before(frame: usize, (): ()) -> Next<(), (), ()> {
                let [_, last] = FRAMES.get();
                FRAMES.set([last, frame]);
                Next::Call((), ())
            }
            unsafe fn after(_open: (), (): (), (): ()) {}
        }
        // SAFETY: no pointers.
        unsafe { handle::<Noted, _, _>((), |()| handle::<Noted, _, _>((), |()| ())) };
        let [outer, inner] = FRAMES.get();
        assert!(inner < outer);
    }
}
