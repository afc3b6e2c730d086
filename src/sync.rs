//! What the lock-free parts are made of. `tests/models` compiles these parts with loom's in their place.

pub use std::sync::{Mutex, MutexGuard};

/// Atomics.
pub mod atomic {
    pub use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
}
