//! The eleven USDT probes: one site and one semaphore each.
//!
//! Each module below is one probe: `enabled()` is a load of its semaphore, `fire(..)` is the site.
//! Callers look before they prepare arguments. A site is a `nop` in a function that is never
//! inlined, so that the library has exactly one note per name; the semaphore lives in `.probes`,
//! where the kernel counts the attachments of consumers.
//!
//! BPF reads of user memory do not fault pages in, so callers touch what a consumer will read
//! ([`touch`]).

use std::ffi::{c_char, c_void};

macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {
        $(
            $(#[$doc])*
            pub mod $name {
                #[allow(unused_imports, reason = "not every probe takes a pointer")]
                use super::{c_char, c_void};

                // `used`: the linker does not count the note's reference.
                #[used]
                #[unsafe(link_section = ".probes")]
                static mut SEMAPHORE: u16 = 0;

                /// Attachments of consumers to this probe, as the kernel counts them.
                #[inline(always)]
                pub fn semaphore() -> u16 {
                    // SAFETY: an aligned u16 that only the kernel writes; volatile, so that each
                    // look is a load.
                    unsafe { (&raw const SEMAPHORE).read_volatile() }
                }

                /// Whether anybody listens.
                #[inline(always)]
                pub fn enabled() -> bool {
                    semaphore() != 0
                }

                /// The site. Pointers have to be readable while it runs.
                #[inline(never)]
                #[allow(clippy::too_many_arguments, reason = "the contract's")]
                pub fn fire($($arg: $ty),*) {
                    probe::sdt!([sym "{}" SEMAPHORE], parcagpu, $name, $($arg,)*);
                }
            }
        )*

        /// Keeps every site in the linked library, whether or not anything fires it yet.
        #[used]
        static SITES: Sites = Sites([$($name::fire as *const ()),*]);
    };
}

struct Sites(#[expect(dead_code, reason = "kept for the linker only")] [*const (); 11]);
// SAFETY: addresses of functions, never read.
unsafe impl Sync for Sites {}

probes! {
    /// A sampled launch returned.
    cuda_correlation(correlation_id: u32, cbid: i32, name: *const c_char);
    /// One kernel of a sampled launch.
    kernel_executed(start: u64, end: u64, correlation_id: u32, device_id: u32, stream_id: u32, graph_id: u32, graph_node_id: u64, name: *const c_char);
    /// Up to 128 kernel records; none, see [`crate::sampling::deliver::last_word`].
    activity_batch(records: *const *const c_void, count: u32);
    /// Up to 128 PC samples.
    pc_sample_batch(records: *const *const c_void, count: u32);
    /// The names of the stall reasons.
    stall_reason_map(names: *const c_char, count: u32);
    /// What turns PC samples into time.
    gpu_config(device_id: u32, sampling_factor: u32, clock_khz: u32, sm_count: u32);
    /// A module's machine code.
    cubin_loaded(crc: u64, cubin: *const c_char, size: u64);
    /// The last module with that code is gone.
    cubin_unloaded(crc: u64);
    /// Something went wrong or was switched off.
    error(code: i32, message: *const c_char, component: *const c_char);
    /// Up to 256 NVTX events.
    nvtx_event_batch(events: *const *const c_void, count: u32);
    /// Name of a thread, stream, device or NVTX domain.
    nvtx_resource_name(kind: u32, id: u64, name: *const c_char);
}

/// Whether anybody listens to launches, kernels or PC samples: what the session lives for.
pub fn session_wanted() -> bool {
    cuda_correlation::enabled() || kernels_wanted() || pc_sample_batch::enabled()
}

/// Whether anybody listens to kernel records.
pub fn kernels_wanted() -> bool {
    activity_batch::enabled() || kernel_executed::enabled()
}

/// Making pages resident before a consumer reads them.
pub mod touch {
    use std::ffi::c_char;

    const PAGE: usize = 4096;

    /// Reads one byte in every page of `len` bytes at `p`.
    ///
    /// # Safety
    /// `len` bytes at `p` are readable.
    #[inline]
    pub unsafe fn bytes<T>(p: *const T, len: usize) {
        if len == 0 {
            return;
        }
        let start = p as usize;
        let last = start + len - 1;
        let mut at = start;
        while at <= last {
            // SAFETY: `start <= at <= last`, all of which is readable by the caller's promise.
            unsafe { (at as *const u8).read_volatile() };
            at = (at | (PAGE - 1)) + 1;
        }
    }

    /// Longest part of a string that is touched; consumers read at most 255 bytes.
    pub const STRING_MAX: usize = 512;

    /// Reads a string up to its NUL or [`STRING_MAX`], whichever comes first.
    ///
    /// # Safety
    /// `p` is null or a NUL-terminated string.
    #[inline]
    pub unsafe fn string(p: *const c_char) {
        if !p.is_null() {
            // SAFETY: strnlen reads up to the NUL, which the caller promises, and not past the
            // bound.
            let len = unsafe { libc::strnlen(p, STRING_MAX) };
            std::hint::black_box(len);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nobody_listens_in_a_unit_test() {
        assert!(!super::session_wanted());
        super::cuda_correlation::fire(1, -307, c"kernel".as_ptr());
    }

    #[test]
    fn touching_covers_every_page() {
        let bytes = vec![1u8; 10_000];
        // SAFETY: the vector has that many bytes.
        unsafe { super::touch::bytes(bytes.as_ptr(), bytes.len()) };
        // SAFETY: null is allowed; the other is terminated.
        unsafe {
            super::touch::string(std::ptr::null());
            super::touch::string(c"x".as_ptr());
        }
    }
}
