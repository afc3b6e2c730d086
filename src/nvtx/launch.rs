//! The CUDA launch that a thread has open, and the device of its last one: written by sampling for
//! sampled launches only, read when the thread makes an NVTX call.

use std::cell::Cell;

use parcagpu_abi::nvtx::DEVICE_UNKNOWN;

use crate::session;

#[derive(Clone, Copy)]
struct Launches {
    open: u32,
    device: u32,
    /// The context whose device this is.
    context_uid: u32,
}

thread_local! {
    // No destructor: usable while a thread ends.
    static LAUNCHES: Cell<Launches> = const {
        Cell::new(Launches { open: 0, device: DEVICE_UNKNOWN, context_uid: 0 })
    };
}

/// A sampled launch of this thread has its id.
pub fn opened(id: u32) {
    LAUNCHES.set(Launches {
        open: id,
        ..LAUNCHES.get()
    });
}

/// It is over.
pub fn closed() {
    LAUNCHES.set(Launches {
        open: 0,
        ..LAUNCHES.get()
    });
}

/// This thread launched in a context; its device is asked for when the thread's last one was another.
pub fn in_context(context_uid: u32, device: impl FnOnce() -> Option<u32>) {
    let last = LAUNCHES.get();
    if last.device == DEVICE_UNKNOWN || last.context_uid != context_uid {
        let device = device().unwrap_or(DEVICE_UNKNOWN);
        LAUNCHES.set(Launches {
            device,
            context_uid,
            ..LAUNCHES.get()
        });
    }
}

/// Correlation id of the launch that is open on this thread, normally 0, and device of its last one.
pub fn current() -> (u32, u32) {
    let last = LAUNCHES.get();
    // A session that went away in the middle of a launch never says that it is over.
    let open = if last.open != 0 && session::active().is_some() {
        last.open
    } else {
        0
    };
    (open, last.device)
}
