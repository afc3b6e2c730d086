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
use crate::cupti::callbacks;
use crate::cupti::sys::{CUDA_SUCCESS, CUresult};
use crate::lifecycle;
use crate::nvtx;
use crate::pc::{Pass, Sampling};
use crate::sampling::launch::Kind;
use crate::sampling::switch::Generation;
use crate::session::{self, Session};

/// The launch that is open on a thread.
#[derive(Clone, Copy)]
struct Open {
    /// The hook's place on the stack; 0: none is open.
    frame: usize,
    /// It was counted as seen.
    seen: bool,
    kind: Kind,
    generation: Option<Generation>,
    pass: Pass,
    /// The id CUPTI gave on entry, until the launch was reported.
    id: Option<u32>,
    reported: bool,
}

const NONE: Open = Open {
    frame: 0,
    seen: false,
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
        watch_thread();
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

/// Whether a call at `frame` is inside no other that is open on this thread.
fn is_outermost(session: &Session, frame: usize) -> bool {
    let outer = OPEN.get();
    if outer.frame > frame {
        return false;
    }
    if outer.frame != 0 {
        // Its stack is gone: somebody jumped out of that launch.
        OPEN.set(NONE);
        close(session, outer);
    }
    true
}

fn before(kind: Kind, cbid: u32, frame: usize) -> Passed {
    let Some(session) = session::active() else {
        return match before_load(frame) {
            true => Passed::Opened,
            false => Passed::Idle,
        };
    };
    if !installed::decides(cbid) || !is_outermost(session, frame) {
        return Passed::Through;
    }
    let pass = match &session.pc {
        Some(pc) => pc.before_launch(session),
        None => Pass::Free,
    };
    let generation = session.sampler.take(kind, pass == Pass::Window, session);
    if generation.is_some() || pass != Pass::Free {
        watch_thread();
    }
    OPEN.set(Open {
        frame,
        seen: true,
        kind,
        generation,
        pass,
        ..NONE
    });
    Passed::Opened
}

/// A load of code begins, or a launch that nobody wants to hear of; whether it passes the gate of PC sampling,
/// and [`after_load`] is to be called.
pub fn before_load(frame: usize) -> bool {
    let Some((session, pc)) = gated() else {
        return false;
    };
    if !is_outermost(session, frame) {
        return false;
    }
    let pass = pc.before_load();
    if pass == Pass::Free {
        return false;
    }
    watch_thread();
    OPEN.set(Open {
        frame,
        pass,
        reported: true,
        ..NONE
    });
    true
}

/// It returned.
pub fn after_load(opened: bool) {
    if opened {
        let open = OPEN.replace(NONE);
        if let Some(session) = session::get() {
            close(session, open);
        }
    }
}

/// Where launches and loads are counted even if nobody listens.
fn gated() -> Option<(&'static Session, &'static Sampling)> {
    let session = session::get()?;
    let pc = session.pc.as_ref().filter(|pc| pc.counts_launches())?;
    Some((session, pc))
}

fn after(passed: Passed, result: CUresult) {
    match passed {
        Passed::Idle if result == CUDA_SUCCESS => boot::driver_works(),
        Passed::Idle | Passed::Through => {}
        Passed::Opened => {
            let open = OPEN.replace(NONE);
            if result != CUDA_SUCCESS && open.seen {
                open.kind.uncount();
            }
            if result == CUDA_SUCCESS && !open.seen && super::CUDA.wants(super::BOOT) {
                boot::driver_works();
            }
            if let Some(session) = session::get() {
                close(session, open);
            }
        }
    }
}

/// The end of a launch's part in the switch, and in the gate of PC sampling.
fn close(session: &Session, open: Open) {
    // The thread forked in its launch; what it joined is the parent's.
    if (open.generation.is_some() || open.pass != Pass::Free) && lifecycle::in_forked_child() {
        return;
    }
    if let Some(generation) = open.generation {
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
    // Last: who finds the gate empty finds the switch at rest.
    if let Some(pc) = &session.pc {
        pc.after_launch(session, open.pass);
    }
}

/// Runs when a thread ends that had a sampled launch.
struct Farewell;

/// Lets a launch that is open when this thread ends give back its part in the gate and in the switch.
pub fn watch_thread() {
    FAREWELL.try_with(|_| ()).ok();
}

/// On-periods that launches of ended threads joined and never left.
static ABANDONED: Mutex<Vec<Generation>> = Mutex::new(Vec::new());

impl Drop for Farewell {
    fn drop(&mut self) {
        let open = OPEN.replace(NONE);
        let joined = [open.generation.unwrap_or(0), IN_CALLBACK.replace(0)];
        let passes = [open.pass, callbacks::thread_ends()];
        // A forked child has no thread of ours, and perhaps a lock that nobody holds.
        if lifecycle::in_forked_child() {
            return;
        }
        if let Some(pc) = session::get().and_then(|session| session.pc.as_ref()) {
            passes.into_iter().for_each(|pass| pc.abandoned(pass));
        }
        if joined == [0; 2] {
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
