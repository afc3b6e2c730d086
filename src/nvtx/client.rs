//! Putting our functions into a client's table.
//!
//! The table belongs to the client, which may be unloaded: nothing of it is kept.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::shim;
use super::sys::{Callbacks, GetExportTable, Module, SLOTS_MAX, Slot, TABLE_CALLBACKS};

/// Fills the slots that we or the next tool serve; others stay no-ops of the client's. A table that is
/// not there, or shorter than it should be, is served as far as it goes.
///
/// # Safety
/// `get` is the function that NVTX clients give their tool.
pub unsafe fn patch(get: GetExportTable) {
    // SAFETY: the client's own function and table, which begins with its size.
    let Some(callbacks) = (unsafe { get(TABLE_CALLBACKS).cast::<Callbacks>().as_ref() }) else {
        return;
    };
    if callbacks.size < size_of::<Callbacks>() {
        return;
    }
    let Some(module) = callbacks.module else {
        return;
    };
    for id in Module::ALL {
        let mut slots: *const Slot = std::ptr::null();
        let mut len = 0;
        // SAFETY: both are ours to be written.
        let known = unsafe { module(id as c_int, &raw mut slots, &raw mut len) };
        if known == 0 || slots.is_null() {
            continue;
        }
        for i in 1..SLOTS_MAX.min(len as usize) {
            // SAFETY: the table has `len` entries.
            let slot = unsafe { slots.add(i).read() };
            if slot.is_null() {
                continue;
            }
            if let Some(function) = shim::function(id, i) {
                // SAFETY: the variable of that function, aligned, which the client's threads may read
                // at this moment: one store.
                let slot = unsafe { AtomicPtr::from_ptr(slot.cast::<*mut c_void>()) };
                slot.store(function.cast_mut(), Ordering::Release);
            }
        }
    }
}
