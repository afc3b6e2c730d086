//! The launches: sampling is decided here, before CUPTI is involved.
//!
//! The thread's bucket says no to nearly every launch, and that launch runs as if we were not there.
//! For a sampled one the switch puts CUPTI's callbacks and kernel activity on around this one call;
//! CUPTI's callback, on the same thread, finds in a thread-local that its launch is meant and reports
//! it. A launch that the driver makes inside another one is not looked at.

use std::cell::Cell;
use std::ffi::c_void;

use super::{boot, installed};
use crate::cupti::sys::{CUDA_SUCCESS, CUresult, LaunchConfig, driver_cbid};
use crate::nvtx;
use crate::sampling::launch::Kind;
use crate::sampling::switch::Generation;
use crate::session::{self, Session};

type Ptr = *mut c_void;

/// The launch that is open on a thread.
#[derive(Clone, Copy)]
struct Open {
    /// Address of a variable of the call; 0: none is open.
    frame: usize,
    generation: Option<Generation>,
    /// The id CUPTI gave on entry, until the launch was reported.
    id: Option<u32>,
    reported: bool,
}

const NONE: Open = Open {
    frame: 0,
    generation: None,
    id: None,
    reported: false,
};

thread_local! {
    // No destructor: usable while a thread ends.
    static OPEN: Cell<Open> = const { Cell::new(NONE) };
}

/// The on-period in which the launch open on this thread is sampled; `None` if it is not.
pub fn sampled() -> Option<Generation> {
    OPEN.get().generation
}

/// CUPTI told the id of the sampled launch that is open on this thread.
pub fn entered(id: u32) {
    let open = OPEN.get();
    OPEN.set(Open {
        id: Some(id),
        ..open
    });
}

/// The sampled launch that is open on this thread was reported, or turned out not to be reportable.
pub fn reported() {
    let open = OPEN.get();
    OPEN.set(Open {
        id: None,
        reported: true,
        ..open
    });
}

fn around(kind: Kind, cbid: u32, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(session) = session::active() else {
        let result = call();
        if result == CUDA_SUCCESS {
            boot::driver_works();
        }
        return result;
    };
    let here = 0u8;
    let frame = std::ptr::from_ref(&here).addr();
    let outer = OPEN.get();
    if outer.frame > frame || !installed::decides(cbid) {
        return call();
    }
    if outer.frame != 0 {
        // Its stack is gone: somebody jumped out of that launch.
        OPEN.set(NONE);
        close(session, kind, outer);
    }
    let generation = session.sampler.take(kind, session);
    OPEN.set(Open {
        frame,
        generation,
        ..NONE
    });
    let result = call();
    let open = OPEN.replace(NONE);
    if result != CUDA_SUCCESS {
        kind.uncount();
    }
    close(session, kind, open);
    result
}

/// The end of a launch's part in the switch.
fn close(session: &Session, kind: Kind, open: Open) {
    let Some(generation) = open.generation else {
        return;
    };
    session.sampler.switch.leave(generation, session);
    if let Some(id) = open.id {
        // Entered, but callbacks went off before it returned, or it never did.
        session.sampler.correlation.cancel(id);
        nvtx::launch::closed();
    }
    if !open.reported {
        session.sampler.give_back(kind);
    }
}

macro_rules! launches {
    ($($(#[$doc:meta])* $name:ident: $kind:ident, $cbid:ident, ($($arg:ident: $ty:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As for the original.
            #[allow(clippy::too_many_arguments, reason = "the driver's")]
            pub unsafe fn $name(
                original: unsafe extern "C" fn($($ty),*) -> CUresult,
                $($arg: $ty),*
            ) -> CUresult {
                // SAFETY: the program's own call.
                around(Kind::$kind, driver_cbid::$cbid, || unsafe { original($($arg),*) })
            }
        )*
    };
}

launches! {
    /// `cuLaunchKernel`.
    kernel: Eager, LAUNCH_KERNEL, (f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr, extra: *mut Ptr);
    /// `cuLaunchKernel_ptsz`.
    kernel_ptsz: Eager, LAUNCH_KERNEL_PTSZ, (f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr, extra: *mut Ptr);
    /// `cuLaunchKernelEx`.
    kernel_ex: Eager, LAUNCH_KERNEL_EX, (config: *const LaunchConfig, f: Ptr, params: *mut Ptr, extra: *mut Ptr);
    /// `cuLaunchKernelEx_ptsz`.
    kernel_ex_ptsz: Eager, LAUNCH_KERNEL_EX_PTSZ, (config: *const LaunchConfig, f: Ptr, params: *mut Ptr, extra: *mut Ptr);
    /// `cuLaunchCooperativeKernel`.
    cooperative: Eager, LAUNCH_COOPERATIVE_KERNEL, (f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr);
    /// `cuLaunchCooperativeKernel_ptsz`.
    cooperative_ptsz: Eager, LAUNCH_COOPERATIVE_KERNEL_PTSZ, (f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr, params: *mut Ptr);
    /// `cuGraphLaunch`.
    graph: Graph, GRAPH_LAUNCH, (graph: Ptr, stream: Ptr);
    /// `cuGraphLaunch_ptsz`.
    graph_ptsz: Graph, GRAPH_LAUNCH_PTSZ, (graph: Ptr, stream: Ptr);
}
