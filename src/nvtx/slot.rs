//! A place for one value that two threads work on in turn: whoever has taken it out has it alone, and nobody
//! waits for the other.

use crate::sync::atomic::{AtomicPtr, Ordering};

/// See the module.
pub struct Slot<T>(AtomicPtr<T>);

impl<T> Slot<T> {
    /// An empty one.
    pub fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Takes the value out.
    pub fn take(&self) -> Option<Box<T>> {
        let value = self.0.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: what is in a slot came from a box, and the exchange made it ours alone.
        (!value.is_null()).then(|| unsafe { Box::from_raw(value) })
    }

    /// The owner puts its value back. Only the owner fills an empty slot, but for [`Self::offer`], whose value
    /// is dropped.
    pub fn put(&self, value: Box<T>) {
        let other = self.0.swap(Box::into_raw(value), Ordering::AcqRel);
        if !other.is_null() {
            // SAFETY: as in `take`.
            drop(unsafe { Box::from_raw(other) });
        }
    }

    /// Another than the owner puts a value back, unless the owner has put in a new one.
    pub fn offer(&self, value: Box<T>) {
        let value = Box::into_raw(value);
        let null = std::ptr::null_mut();
        if self
            .0
            .compare_exchange(null, value, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            // SAFETY: it is still ours alone.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
