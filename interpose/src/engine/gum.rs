//! Engine `gum`: Frida's Gum, `replace_fast`.
//!
//! Gum is started when the first library is to be hooked and never ended: its
//! end would take its trampolines away. Gum keeps what it replaced by address,
//! so a library that was unmapped and mapped again at the same place is still
//! "replaced" for it; see `forget_unmapped`.

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use frida_gum::interceptor::Interceptor;
use frida_gum::{Gum, NativePointer};

use super::{Engine, PrepareError};
use crate::maps::page_size;

/// As much as Gum keeps of a function, and so writes back, at most: a jump of
/// 16 bytes overwrites whole instructions.
const KEPT: usize = 32;

static GUM: OnceLock<Gum> = OnceLock::new();
/// Every function that Gum replaced.
static REPLACED: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

unsafe extern "C" {
    fn gum_clear_cache(address: *mut c_void, size: usize);
}

pub(super) struct GumEngine {
    interceptor: Interceptor,
    prepared: Vec<usize>,
    open: bool,
}

impl GumEngine {
    pub(super) fn new() -> GumEngine {
        GumEngine {
            interceptor: Interceptor::obtain(GUM.get_or_init(Gum::obtain)),
            prepared: Vec::new(),
            open: false,
        }
    }
}

impl Engine for GumEngine {
    /// Reverting writes the first bytes of the function that was there before;
    /// those that are there now are put back after it. Where the pages may not
    /// be written, the function stays "already replaced", and is refused.
    unsafe fn forget_unmapped(&mut self, targets: &[usize]) {
        let replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(replaced) = replaced.as_ref() else {
            return;
        };
        let again = targets.iter().filter(|&target| replaced.contains(target));
        let again: Vec<(usize, [u8; KEPT])> = again
            .filter_map(|&target| Some((target, writable(target)?)))
            .collect();
        if again.is_empty() {
            return;
        }
        self.interceptor.begin_transaction();
        for &(target, _) in &again {
            self.interceptor.revert(pointer(target));
        }
        self.interceptor.end_transaction();
        for (target, now) in again {
            // SAFETY: `writable` made it so, and nobody runs the function yet.
            unsafe {
                (target as *mut [u8; KEPT]).write_unaligned(now);
                gum_clear_cache(target as *mut c_void, KEPT);
            }
        }
    }

    unsafe fn prepare(
        &mut self,
        target: usize,
        replacement: *const (),
    ) -> Result<*mut (), PrepareError> {
        if !self.open {
            self.interceptor.begin_transaction();
            self.open = true;
        }
        let replacement = NativePointer(replacement.cast_mut().cast::<c_void>());
        let original = self
            .interceptor
            .replace_fast(pointer(target), replacement)
            .map_err(|error| PrepareError::Refused(format!("gum: {error}")))?;
        self.prepared.push(target);
        let mut replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.get_or_insert_default().insert(target);
        Ok(original.0.cast())
    }

    fn commit(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.open) {
            self.interceptor.end_transaction();
        }
        self.prepared.clear();
        Ok(())
    }

    fn cancel(&mut self) {
        for target in self.prepared.drain(..) {
            self.interceptor.revert(pointer(target));
        }
        if std::mem::take(&mut self.open) {
            self.interceptor.end_transaction();
        }
    }
}

fn pointer(target: usize) -> NativePointer {
    NativePointer(target as *mut c_void)
}

/// Makes the pages of a mapped function writable, as Gum leaves those that it
/// changed, and returns its first bytes. None if they cannot be made so, or
/// the library ends before all that Gum might write.
fn writable(target: usize) -> Option<[u8; KEPT]> {
    let page = target & !(page_size() - 1);
    let mode = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: mprotect refuses pages that are not mapped; what it allowed is
    // read as plain bytes.
    unsafe {
        let size = target + KEPT - page;
        if libc::mprotect(page as *mut c_void, size, mode) != 0 {
            return None;
        }
        Some((target as *const [u8; KEPT]).read_unaligned())
    }
}
