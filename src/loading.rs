//! Whether this thread is inside the dynamic loader.
//!
//! The loader holds its lock while constructors run. A thread in a constructor may use the loader, and no
//! other thread may; on any other thread it is the other way round, for all we know.

use std::ffi::{c_int, c_void};

/// `_Unwind_Reason_Code`.
type Reason = c_int;
const NO_REASON: Reason = 0;
const NORMAL_STOP: Reason = 4;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        trace: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Reason,
        argument: *mut c_void,
    ) -> Reason;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// The loader's code, and whether a frame of it was met.
struct Search {
    base: usize,
    code: (usize, usize),
    met: bool,
}

/// Whether a call of the loader's is open on this thread. Takes none of the loader's locks for longer than
/// a look at its list. Frames of code without unwind tables end the search; then the answer is no.
pub fn on_this_thread() -> bool {
    let mut search = Search {
        // SAFETY: reads a value the kernel gave at the start.
        base: unsafe { libc::getauxval(libc::AT_BASE) } as usize,
        code: (0, 0),
        met: false,
    };
    // SAFETY: both callbacks get the search, which outlives the calls.
    unsafe {
        libc::dl_iterate_phdr(Some(find_code), (&raw mut search).cast());
        _Unwind_Backtrace(look_at_frame, (&raw mut search).cast());
    }
    search.met
}

unsafe extern "C" fn find_code(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader gives a valid info, and the search is ours.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if search.base == 0 || info.dlpi_addr as usize != search.base {
        return 0;
    }
    // SAFETY: so many headers lie there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    if let Some(code) = headers
        .iter()
        .find(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0)
    {
        let start = search.base + code.p_vaddr as usize;
        search.code = (start, start + code.p_memsz as usize);
    }
    1
}

unsafe extern "C" fn look_at_frame(context: *mut c_void, search: *mut c_void) -> Reason {
    // SAFETY: the search is ours, and the context is the unwinder's.
    let (search, ip) = unsafe { (&mut *search.cast::<Search>(), _Unwind_GetIP(context)) };
    search.met = search.code.0 <= ip && ip < search.code.1;
    if search.met { NORMAL_STOP } else { NO_REASON }
}

#[cfg(test)]
mod tests {
    use super::on_this_thread;
    use std::sync::atomic::{AtomicU8, Ordering};

    static IN_CONSTRUCTOR: AtomicU8 = AtomicU8::new(2);

    extern "C" fn ask() {
        IN_CONSTRUCTOR.store(on_this_thread().into(), Ordering::Relaxed);
    }

    #[used]
    #[unsafe(link_section = ".fini_array")]
    static AT_END: extern "C" fn() = at_end;

    /// A program's own destructors are called by the loader; its constructors are not, in a static
    /// sense: the C library calls them.
    extern "C" fn at_end() {
        ask();
        if IN_CONSTRUCTOR.load(Ordering::Relaxed) != 1 {
            eprintln!("the loader was not met in a destructor");
            // SAFETY: ends the process; nothing is left to do.
            unsafe { libc::_exit(1) };
        }
    }

    #[test]
    fn a_thread_of_the_programs_is_not_in_the_loader() {
        assert!(!on_this_thread());
        std::thread::spawn(|| assert!(!on_this_thread()))
            .join()
            .unwrap();
    }
}
