//! Entry functions: what a hooked function jumps to.
//!
//! The fast path is a load, a test and a tail call. On the slow path a handler
//! runs behind a panic barrier: should it panic, the caller gets what the
//! original returned, which is called if the handler had not done so. errno is
//! the original's in every case. A thread that is cancelled meanwhile is so
//! after the call: cancellation unwinds, and would end the process at the
//! barrier.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// How many handlers panicked so far.
pub fn handler_panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

thread_local! {
    /// The innermost handler call of this thread. No destructor, so it works
    /// until the thread's very end.
    static TOP: Cell<*const Head> = const { Cell::new(ptr::null()) };
}

/// What calls of all types have in common.
struct Head {
    previous: *const Head,
    /// Whose call it is: the address of the function's `Originals`.
    owner: *const (),
    /// errno as the original is to find it, then as it left it.
    errno: Cell<i32>,
}

/// One call of a handler.
#[repr(C)]
struct Frame<R> {
    head: Head,
    result: Cell<Option<R>>,
}

/// Runs a handler for a call of the function that `owner` stands for. `again`
/// calls the original, and is used when the handler panicked before it did.
///
/// Public for [`hooks!`](crate::hooks) only.
#[doc(hidden)]
pub fn handle<R: Copy>(
    owner: *const (),
    handler: impl FnOnce() -> R,
    again: impl FnOnce() -> R,
) -> R {
    let mut frame = Frame {
        head: Head {
            previous: ptr::null(),
            owner,
            errno: Cell::new(errno()),
        },
        result: Cell::new(None::<R>),
    };
    let _whole = Uncancelled::begin();
    let outer = TOP.get();
    // A frame below ours on the stack is gone: somebody jumped over it.
    if outer.addr() > (&raw const frame).addr() {
        frame.head.previous = outer;
    }
    let frame = frame;
    TOP.set((&raw const frame).cast());
    let outcome = catch_unwind(AssertUnwindSafe(handler));
    TOP.set(frame.head.previous);
    let result = match (outcome, frame.result.get()) {
        (Ok(result), _) => result,
        (Err(payload), done) => {
            PANICS.fetch_add(1, Ordering::Relaxed);
            // Dropping it could panic again.
            std::mem::forget(payload);
            done.unwrap_or_else(|| {
                set_errno(frame.head.errno.get());
                let result = again();
                frame.head.errno.set(errno());
                result
            })
        }
    };
    set_errno(frame.head.errno.get());
    result
}

/// Calls the original on a handler's behalf and notes what it returned.
///
/// Public for [`hooks!`](crate::hooks) only.
///
/// # Safety
/// `R` is the type of the result of the function that `owner` stands for.
#[doc(hidden)]
pub unsafe fn call_original<R: Copy>(owner: *const (), original: impl FnOnce() -> R) -> R {
    let here = 0_u8;
    let mut at = TOP.get();
    // Frames below this one on the stack are gone, see `handle`.
    while !at.is_null() && at.addr() > (&raw const here).addr() {
        // SAFETY: a live frame of this thread: `handle` has not returned.
        let head = unsafe { &*at };
        if head.owner == owner {
            // SAFETY: frames of one owner have one type, says our caller.
            let frame = unsafe { &*at.cast::<Frame<R>>() };
            set_errno(frame.head.errno.get());
            let result = original();
            frame.head.errno.set(errno());
            frame.result.set(Some(result));
            return result;
        }
        at = head.previous;
    }
    // Not from within its handler: nothing to note.
    original()
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
/// Each line names an exported C function with its type and the handler that
/// gets its calls: an `unsafe fn` that takes the original, as a function
/// pointer, and then the arguments. Arguments and result must be `Copy`, as
/// those of C functions are. `when GROUP` puts the function in groups (bits of
/// a `u8`) that [`HookSet::want`](crate::HookSet::want) turns on and off.
///
/// ```
/// mod handlers {
///     pub unsafe fn tick(original: unsafe extern "C" fn(u32) -> i32, flags: u32) -> i32 {
///         // SAFETY: called as the program called it.
///         unsafe { original(flags) }
///     }
/// }
/// parcagpu_interpose::hooks! {
///     /// What we replace in the clock library.
///     pub static CLOCK: HookSet = [
///         fn clockTick(flags: u32) -> i32 => handlers::tick, when 1;
///     ];
/// }
/// CLOCK.want(0);
/// ```
#[macro_export]
macro_rules! hooks {
    (
        $(#[$meta:meta])*
        $vis:vis static $set:ident: HookSet = [
            $( fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty
                => $handler:path $(, when $group:expr)?; )*
        ];
    ) => {
        $(#[$meta])*
        $vis static $set: $crate::HookSet = {
            static HOOKS: &[$crate::Hook] = &[$({
                static ORIGINALS: $crate::Originals = $crate::Originals::new();
                const OWNER: *const () = (&raw const ORIGINALS).cast();
                type Function = unsafe extern "C" fn($($ty),*) -> $ret;

                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn $name<const COPY: usize>($($arg: $ty),*) -> $ret {
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
                unsafe extern "C" fn handled<const COPY: usize>($($arg: $ty),*) -> $ret {
                    $crate::handle(
                        OWNER,
                        // SAFETY: handlers are called with the caller's arguments.
                        || unsafe { $handler(noted::<COPY>, $($arg),*) },
                        // SAFETY: the same for the original.
                        || unsafe { original::<COPY>()($($arg),*) },
                    )
                }

                #[allow(clippy::too_many_arguments)]
                unsafe extern "C" fn noted<const COPY: usize>($($arg: $ty),*) -> $ret {
                    // SAFETY: OWNER stands for this function, and the handler
                    // passes arguments that it answers for.
                    unsafe {
                        $crate::call_original(OWNER, || original::<COPY>()($($arg),*))
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

    fn owner(byte: &u8) -> *const () {
        (&raw const *byte).cast()
    }

    #[test]
    fn errno_is_the_originals() {
        let tag = 0;
        set_errno(7);
        let result = handle(
            owner(&tag),
            || {
                set_errno(1);
                // SAFETY: the type is the one of `handle`.
                let result = unsafe {
                    call_original(owner(&tag), || {
                        assert_eq!(errno(), 7, "as the caller had it");
                        set_errno(9);
                        3
                    })
                };
                set_errno(2);
                result
            },
            || unreachable!("called already"),
        );
        assert_eq!((result, errno()), (3, 9));
    }

    #[test]
    fn a_panic_never_calls_the_original_twice() {
        let tag = 0;
        let before = handler_panics();
        let calls = Cell::new(0);
        let original = || {
            calls.set(calls.get() + 1);
            41 + calls.get()
        };
        let early = handle(owner(&tag), || panic!("before"), original);
        assert_eq!((early, calls.get()), (42, 1));
        let late = handle(
            owner(&tag),
            || {
                // SAFETY: the type is the one of `handle`.
                unsafe { call_original(owner(&tag), original) };
                panic!("after")
            },
            || unreachable!("called already"),
        );
        assert_eq!((late, calls.get()), (43, 2));
        assert_eq!(handler_panics() - before, 2);
        assert!(TOP.get().is_null());
    }

    #[test]
    fn calls_nest_and_find_their_own_frame() {
        let (a, b) = (0_u8, 1_u8);
        let result = handle(
            owner(&a),
            || {
                let inner = handle(owner(&b), || 1_u64, || 0);
                // SAFETY: the type is the one of `handle`.
                unsafe { call_original(owner(&a), || 5_u8) + inner as u8 }
            },
            || 0,
        );
        assert_eq!(result, 6);
        // SAFETY: no frame of it is left.
        assert_eq!(unsafe { call_original(owner(&a), || 8_u8) }, 8);
    }
}
