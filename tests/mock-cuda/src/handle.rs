//! Opaque handles.
//!
//! An object behind a handle is never freed: destroying it turns its magic number. A stale handle
//! is therefore refused like a null one, without reading freed memory.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, INVALID_HANDLE};

/// A kind of object; the numbers keep handles of different kinds apart.
pub trait Kind {
    /// First four bytes of a living object of this kind.
    const MAGIC: u32;
    /// The result for a handle that is none.
    const STALE: Error = INVALID_HANDLE;
}

/// What a handle points to.
#[repr(C)]
pub struct Object<T> {
    magic: AtomicU32,
    body: T,
}

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.body
    }
}

impl<T: Kind> Object<T> {
    /// Makes an object that lives as long as the process.
    pub fn publish(body: T) -> &'static Object<T> {
        Box::leak(Box::new(Object {
            magic: AtomicU32::new(T::MAGIC),
            body,
        }))
    }

    /// The object behind a handle.
    ///
    /// # Safety
    ///
    /// Like the driver's own handles: null, or something this library returned.
    pub unsafe fn get(handle: *const Object<T>) -> Result<&'static Object<T>, Error> {
        if handle.is_null() || !handle.is_aligned() {
            return Err(T::STALE);
        }
        // SAFETY: the caller's promise; objects are leaked, so any handle ever returned is readable.
        let object = unsafe { &*handle };
        if object.magic.load(Ordering::Acquire) == T::MAGIC {
            Ok(object)
        } else {
            Err(T::STALE)
        }
    }

    /// Refuses the handle from now on; false when that was so already.
    pub fn retire(&self) -> bool {
        self.magic.swap(0, Ordering::AcqRel) == T::MAGIC
    }

    /// Whether the handle has not been destroyed.
    pub fn alive(&self) -> bool {
        self.magic.load(Ordering::Acquire) == T::MAGIC
    }

    /// The handle.
    pub fn handle(&self) -> *mut Object<T> {
        std::ptr::from_ref(self).cast_mut()
    }
}
