//! Engine `gum`: Frida's Gum, `replace_fast`.
//!
//! Gum is started when the first library is to be hooked and never ended: its
//! end would take its trampolines away. Gum keeps what it replaced by address,
//! so a library that was unmapped and mapped again at the same place is still
//! "replaced" for it; see `forget_unmapped`.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use frida_gum::interceptor::Interceptor;
use frida_gum::{Gum, NativePointer};

use super::{Engine, PrepareError};

/// As much as Gum overwrites at most.
const JUMP: usize = 16;

static GUM: OnceLock<Gum> = OnceLock::new();
/// First bytes of every function that Gum replaced, before it did.
static REPLACED: Mutex<Option<HashMap<usize, [u8; JUMP]>>> = Mutex::new(None);

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
    /// Reverting writes the old first bytes to the target, so it is done only
    /// where they are there already; another library at the same address stays
    /// "already replaced", and is refused.
    unsafe fn forget_unmapped(&mut self, targets: &[usize]) {
        let known = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = known.as_ref() else { return };
        self.interceptor.begin_transaction();
        for &target in targets {
            if known.get(&target) == Some(&first_bytes(target)) {
                self.interceptor.revert(pointer(target));
            }
        }
        self.interceptor.end_transaction();
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
        let before = first_bytes(target);
        let replacement = NativePointer(replacement.cast_mut().cast::<c_void>());
        let original = self
            .interceptor
            .replace_fast(pointer(target), replacement)
            .map_err(|error| PrepareError::Refused(format!("gum: {error}")))?;
        self.prepared.push(target);
        let mut known = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_default().insert(target, before);
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

/// The caller checked that the function is mapped and has `JUMP` bytes.
fn first_bytes(target: usize) -> [u8; JUMP] {
    // SAFETY: only called with targets of the trait's methods, whose callers
    // promise as much.
    unsafe { std::ptr::read_unaligned(target as *const [u8; JUMP]) }
}
