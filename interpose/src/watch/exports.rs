//! What a library that watches must export.

use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlmopen`.
pub(crate) fn real_dlmopen() -> *const () {
    static REAL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
    let known = REAL.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a look-up by name, in the libraries after ours.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlmopen".as_ptr()) }.cast::<()>();
    if real.is_null() {
        // Before glibc 2.34 it is in libdl, which a caller of it has linked;
        // a program that has not cannot have called.
        return no_dlmopen as *const ();
    }
    REAL.store(real, Ordering::Release);
    real
}

/// The `__gmon_start__` that libraries loaded by name from now on will call.
pub(super) fn bound_init_call() -> usize {
    // Not RTLD_DEFAULT: a library linked with -Bsymbolic is looked into first when it asks.
    // SAFETY: the program's own handle, which is always open, and a look-up by name in its scope.
    unsafe {
        let program = libc::dlopen(std::ptr::null(), libc::RTLD_LAZY);
        libc::dlsym(program, c"__gmon_start__".as_ptr()).addr()
    }
}

/// Fails as a `dlmopen` that found nothing.
extern "C" fn no_dlmopen() -> *const () {
    std::ptr::null()
}

/// Declares what to watch, and exports the functions that the loader calls.
///
/// To be used once, in the crate that is built as a `cdylib`: there the exports
/// are kept without further ado. It makes `__gmon_start__`, `dlmopen` (x86-64)
/// and a constructor.
///
/// ```no_run
/// # use parcagpu_interpose::{Handler, Next};
/// # struct Tick;
/// # impl Handler<(), i32> for Tick {
/// #     type Open = ();
/// #     unsafe fn before(_frame: usize, _: ()) -> Next<(), i32, ()> { Next::Call((), ()) }
/// #     unsafe fn after(_open: (), _: (), _result: i32) {}
/// # }
/// # parcagpu_interpose::hooks! {
/// #     static CLOCK: HookSet = [ fn clockTick() -> i32 => Tick; ];
/// # }
/// use parcagpu_interpose::{Choice, Report};
///
/// fn choice() -> Choice {
///     Choice::Auto
/// }
/// fn report(report: &Report) {
///     eprintln!("{}: {}", report.library, report.outcome);
/// }
/// parcagpu_interpose::watch! {
///     static WATCH: Watch = { "libclock.so" => CLOCK };
///     choice = choice;
///     report = report;
/// }
/// ```
#[macro_export]
macro_rules! watch {
    (
        $(#[$meta:meta])*
        $vis:vis static $watch:ident: Watch = { $($prefix:literal => $set:path),+ $(,)? };
        choice = $choice:path;
        report = $report:path;
    ) => {
        $(#[$meta])*
        $vis static $watch: $crate::Watch = $crate::Watch::new(
            &[$($crate::Rule::new($prefix, &$set)),+],
            $choice,
            $report,
        );

        const _: () = {
            /// Called by the start-up code of every library that is loaded.
            #[unsafe(no_mangle)]
            pub extern "C" fn __gmon_start__() {
                $watch.on_init_call();
            }

            extern "C" fn start() {
                $watch.start();
            }

            #[used]
            #[unsafe(link_section = ".init_array")]
            static START: extern "C" fn() = start;

            #[cfg(target_arch = "x86_64")]
            extern "C" fn before_dlmopen() -> *const () {
                $watch.on_dlmopen()
            }

            /// Looks at the call, then jumps on: the caller stays the caller.
            ///
            /// # Safety
            /// As for the C library's `dlmopen`.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn dlmopen() {
                ::core::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "call {before}",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp rax",
                    before = sym before_dlmopen,
                );
            }
        };
    };
}
