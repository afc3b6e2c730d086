//! What the lock-free parts are made of. `tests/models` compiles these parts with loom's in their place.

pub use std::sync::atomic::fence;
pub use std::sync::{Mutex, MutexGuard};

/// Atomics.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
}

/// A sequentially consistent fence behind an exchange, which on x86 is one itself.
#[inline]
pub fn fence_after_exchange() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(atomic::Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    fence(atomic::Ordering::SeqCst);
}
