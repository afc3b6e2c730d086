//! The launches: sampling is decided here, before CUPTI is involved.
//!
//! The thread's bucket says no to nearly every launch, and that launch runs as if we were not there.
//! For a sampled one the switch puts CUPTI's callbacks and kernel activity on around this one call;
//! CUPTI's callback, on the same thread, finds in a thread-local that its launch is meant and reports
//! it. A launch that the driver makes inside another one is not looked at.
//!
//! A launch may never return: somebody jumps out of it, or its thread is cancelled in there. Its part in
//! the switch is given back by the next launch of the thread, or by our thread once this one has ended.

use std::cell::Cell;
use std::sync::Mutex;

use parcagpu_interpose::{Handler, Next};

use super::{boot, installed};
use crate::cupti::sys::{CUDA_SUCCESS, CUresult};
use crate::lifecycle;
use crate::nvtx;
use crate::pc::Pass;
use crate::sampling::launch::Kind;
use crate::sampling::switch::Generation;
use crate::session::{self, Session};

/// The launch that is open on a thread.
#[derive(Clone, Copy)]
struct Open {
    /// The hook's place on the stack; 0: none is open.
    frame: usize,
    kind: Kind,
    generation: Option<Generation>,
    pass: Pass,
    /// The id CUPTI gave on entry, until the launch was reported.
    id: Option<u32>,
    reported: bool,
}

const NONE: Open = Open {
    frame: 0,
    kind: Kind::Eager,
    generation: None,
    pass: Pass::Free,
    id: None,
    reported: false,
};

thread_local! {
    // No destructor: usable while a thread ends.
    static OPEN: Cell<Open> = const { Cell::new(NONE) };
    /// The on-period that a launch joined in CUPTI's callback, where there is no hook; 0: none is open.
    static IN_CALLBACK: Cell<Generation> = const { Cell::new(0) };
    static FAREWELL: Farewell = const { Farewell };
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
    if let Some(pc) = session::get().and_then(|session| session.pc.as_ref()) {
        pc.entered(open.pass, id);
    }
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

/// A launch was decided upon in CUPTI's callback: it joined this on-period, or none (0).
pub fn entered_in_callback(generation: u64) {
    let generation = Generation::try_from(generation).unwrap_or(0);
    IN_CALLBACK.set(generation);
    if generation != 0 {
        FAREWELL.try_with(|_| ()).ok();
    }
}

/// It came back.
pub fn left_in_callback() {
    IN_CALLBACK.set(0);
}

/// What is to be done when a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// No session is active.
    Idle,
    /// Inside another launch, or left to CUPTI's callbacks.
    Through,
    /// Decided upon here.
    Opened,
}

fn before(kind: Kind, cbid: u32, frame: usize) -> Passed {
    let Some(session) = session::active() else {
        return Passed::Idle;
    };
    let outer = OPEN.get();
    if outer.frame > frame || !installed::decides(cbid) {
        return Passed::Through;
    }
    if outer.frame != 0 {
        // Its stack is gone: somebody jumped out of that launch.
        OPEN.set(NONE);
        close(session, outer);
    }
    let pass = match &session.pc {
        Some(pc) => pc.before_launch(session),
        None => Pass::Free,
    };
    let generation = session.sampler.take(kind, pass == Pass::Window, session);
    if generation.is_some() {
        FAREWELL.try_with(|_| ()).ok();
    }
    OPEN.set(Open {
        frame,
        kind,
        generation,
        pass,
        ..NONE
    });
    Passed::Opened
}

fn after(passed: Passed, result: CUresult) {
    match passed {
        Passed::Idle if result == CUDA_SUCCESS => boot::driver_works(),
        Passed::Idle | Passed::Through => {}
        Passed::Opened => {
            let open = OPEN.replace(NONE);
            if result != CUDA_SUCCESS {
                open.kind.uncount();
            }
            if let Some(session) = session::get() {
                close(session, open);
            }
        }
    }
}

/// The end of a launch's part in the switch, and in the gate of PC sampling.
fn close(session: &Session, open: Open) {
    if let Some(pc) = &session.pc {
        pc.after_launch(session, open.pass);
    }
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
        session.sampler.give_back(open.kind);
    }
}

/// Runs when a thread ends that had a sampled launch.
struct Farewell;

/// On-periods that launches of ended threads joined and never left.
static ABANDONED: Mutex<Vec<Generation>> = Mutex::new(Vec::new());

impl Drop for Farewell {
    fn drop(&mut self) {
        let joined = [
            OPEN.replace(NONE).generation.unwrap_or(0),
            IN_CALLBACK.replace(0),
        ];
        // A forked child has no thread of ours, and perhaps a lock that nobody holds.
        if joined == [0; 2] || lifecycle::in_forked_child() {
            return;
        }
        // Not here: CUPTI's own part of this thread may be gone.
        let mut abandoned = ABANDONED.lock().unwrap_or_else(|e| e.into_inner());
        abandoned.extend(joined.iter().filter(|generation| **generation != 0));
    }
}

/// Our thread leaves the switch on behalf of threads that were cancelled in a launch.
pub fn leave_abandoned(session: &Session) {
    let abandoned = match ABANDONED.try_lock() {
        Ok(mut abandoned) => std::mem::take(&mut *abandoned),
        Err(_) => return,
    };
    for generation in abandoned {
        session.sampler.switch.leave(generation, session);
    }
}

macro_rules! launches {
    ($($(#[$doc:meta])* $name:ident: $kind:ident;)*) => {
        $(
            $(#[$doc])*
            pub struct $name<const CBID: u32>;

            impl<A: Copy, const CBID: u32> Handler<A, CUresult> for $name<CBID> {
                type Open = Passed;

                #[inline]
                unsafe fn before(frame: usize, arguments: A) -> Next<A, CUresult, Passed> {
                    Next::Call(arguments, before(Kind::$kind, CBID, frame))
                }

                #[inline]
                unsafe fn after(passed: Passed, _arguments: A, result: CUresult) {
                    after(passed, result);
                }
            }
        )*
    };
}

launches! {
    /// A launch of a kernel; with its callback id.
    Eager: Eager;
    /// A launch of a graph; with its callback id.
    Graph: Graph;
}
