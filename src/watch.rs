//! Our one thread, named `parcagpu`: ten looks a second at the consumers.
//!
//! It exists from the start of a session to the end of the process, and not in forked children. It
//! blocks every signal, so that none of the program's is delivered to it, and runs at a low priority.
//!
//! The machine is behind a lock that is only ever tried: our thread skips a look when it is taken, and a
//! thread of the program that wants CUPTI tries with a bound.

use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::entry::{self, Inside};
use crate::errors;
use crate::hooks::{self, holder};
use crate::lifecycle::{self, Way};
use crate::machine::{Machine, Turn};
use crate::nvtx::timer;
use crate::patience::Patience;
use crate::session;
use crate::sheltered::Sheltered;

/// Longest time a thread of the program that wants CUPTI tries for the machine: CUPTI refuses it afterwards. Ours may
/// be in the middle of a look and without a processor; longer than this it waits for a lock that the other one has.
const STEP_ASIDE_LIMIT: Duration = Duration::from_secs(1);
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// After which we look when the program has let CUPTI go: not at once, since it may want it again.
const SOON: Duration = Duration::from_millis(20);
/// Longest time our last flush waits for a thread that takes CUPTI: longer than the end of the process waits for us.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
/// Of address space; CUPTI's and our callbacks run on it.
const STACK: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Go on.
    No,
    /// The process ends: deliver what is there.
    Asked,
    /// The process ends without what has not begun by now: what CUPTI needs for it may be gone.
    TooLate,
    /// That was done, or there is no thread.
    Done,
}

static MACHINE: Sheltered<Machine> = Sheltered::new();
/// `None`: no thread was started.
static END: Sheltered<End> = Sheltered::new();
static ENDED: Condvar = Condvar::new();
/// Changed with [`END`] locked.
static LOOK_SOON: AtomicBool = AtomicBool::new(false);
/// A thread that may not flush CUPTI itself waits for ours to do it. Asked for with [`END`] locked.
static FLUSH: AtomicU8 = AtomicU8::new(NOT_ASKED);
const NOT_ASKED: u8 = 0;
const ASKED: u8 = 1;
const RUNNING: u8 = 2;
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Between two looks at what is waited for.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

fn set_end(to: End) {
    if let Some(mut end) = END.lock() {
        *end = Some(to);
    }
}

/// Starts the thread. Without it nothing is ever flushed, so a session that cannot have one is over.
pub fn start(machine: Machine, way: Way) -> bool {
    set_end(End::No);
    with_machine(STEP_ASIDE_LIMIT, |slot| *slot = Some(machine));
    let started = without_signals(|| {
        std::thread::Builder::new()
            .name("parcagpu".to_owned())
            .stack_size(STACK)
            .spawn(move || run(way))
    });
    match started {
        Ok(_) => true,
        Err(error) => {
            set_end(End::Done);
            with_machine(STEP_ASIDE_LIMIT, |slot| {
                if let Some(machine) = slot {
                    machine.abandon();
                }
            });
            errors::report(
                error.raw_os_error().unwrap_or(0),
                "library",
                &format!("the watch thread could not be started: {error}"),
            );
            false
        }
    }
}

/// Runs `act` on the machine once nobody else does, if that is within `limit`.
fn with_machine(limit: Duration, act: impl FnOnce(&mut Option<Machine>)) -> bool {
    let mut patience = Patience::new(limit);
    let mut slot = loop {
        match MACHINE.try_lock() {
            Some(slot) => break slot,
            None if patience.is_over() => return false,
            None => std::thread::sleep(LOOK_AGAIN),
        }
    };
    act(&mut slot);
    true
}

/// Gives CUPTI up for another user, see [`Machine::step_aside`]. When the machine cannot be had in
/// time, CUPTI will refuse that user; this is told.
pub fn step_aside(turn: Turn) {
    let done = with_machine(STEP_ASIDE_LIMIT, |slot| {
        if let Some(machine) = slot {
            machine.step_aside(turn);
        }
    });
    if !done {
        errors::report(
            0,
            "yield",
            &format!("CUPTI could not be given up in time for {}", holder::name()),
        );
    }
}

/// The program's threads come first. As SCHED_BATCH our waking up never takes the processor from one
/// of them, and a realtime policy that the creating thread had is not ours; the nice value makes our
/// share a third of theirs where processors are short. Not less: a consumer is to be served within
/// 200 ms on a busy machine as well, and the end of the process waits for our last flush.
fn step_back() {
    const NICE: libc::c_int = 5;
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: both calls concern the calling thread only; if one is refused, it runs on as it is.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &param);
        let tid = libc::syscall(libc::SYS_gettid) as libc::id_t;
        if libc::getpriority(libc::PRIO_PROCESS, tid) < NICE {
            libc::setpriority(libc::PRIO_PROCESS, tid, NICE);
        }
    }
}

fn run(way: Way) {
    let _inside = Inside::nested();
    timer::by_session(true);
    if way == Way::Aside {
        entry::barrier((), || {
            with_machine(Duration::ZERO, |slot| {
                if let Some(machine) = slot {
                    machine.begin();
                }
            });
        });
    }
    BEGUN.store(true, Ordering::Release);
    // Not before: until then threads of the program wait for us, for seconds at most, and on a busy machine
    // they would wait behind everybody else.
    step_back();
    hooks::want(hooks::BOOT, false);
    let mut wait = LOOK_PERIOD;
    let mut next = Instant::now() + LOOK_PERIOD;
    loop {
        if let Some(guard) = END.lock() {
            let (guard, _) = ENDED
                .wait_timeout_while(guard, wait, |end| {
                    *end == Some(End::No)
                        && !LOOK_SOON.load(Ordering::Relaxed)
                        && FLUSH.load(Ordering::Relaxed) != ASKED
                })
                .unwrap_or_else(|e| e.into_inner());
            if LOOK_SOON.swap(false, Ordering::Relaxed) {
                next = next.min(Instant::now() + SOON);
            }
            if *guard != Some(End::No) || lifecycle::is_alone() {
                break;
            }
        } else {
            std::thread::sleep(LOOK_AGAIN);
        }
        if moves(ASKED, RUNNING) {
            entry::barrier((), session::flush_forced);
            FLUSH.store(NOT_ASKED, Ordering::Release);
        }
        if Instant::now() >= next {
            entry::barrier((), || {
                // A consumer puts kernels into the ranges of their launches, which it has to have been told by then.
                timer::look(Duration::ZERO);
                with_machine(Duration::ZERO, |slot| {
                    if let Some(machine) = slot {
                        machine.tick();
                    }
                });
            });
            next = Instant::now() + LOOK_PERIOD;
        }
        // NVTX batches may be due earlier.
        let until = next.saturating_duration_since(Instant::now());
        wait = entry::barrier(until, || timer::look(until));
    }
    timer::by_session(false);
    let tried = entry::barrier(true, || {
        with_machine(FINISH_LIMIT, |slot| {
            if let Some(machine) = slot.as_mut().filter(|_| !is_too_late()) {
                machine.finish();
            }
        })
    });
    // Otherwise whoever ends the process tells that not everything was delivered.
    if tried {
        set_end(End::Done);
        ENDED.notify_all();
    }
}

fn is_too_late() -> bool {
    END.lock().is_none_or(|end| *end == Some(End::TooLate))
}

fn moves(from: u8, to: u8) -> bool {
    FLUSH
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// Has the thread deliver all that CUPTI holds, for one that is inside a callback of CUPTI's and may not;
/// waits for it until `limit` at the latest.
pub fn flush_elsewhere(limit: Duration) {
    let mut patience = Patience::new(limit);
    {
        let Some(_end) = END.try_lock() else { return };
        if !moves(NOT_ASKED, ASKED) {
            return;
        }
        ENDED.notify_all();
    }
    while FLUSH.load(Ordering::Acquire) != NOT_ASKED && !patience.is_over() {
        std::thread::sleep(LOOK_AGAIN);
    }
    // Later it would be a flush of somebody else's buffers.
    moves(ASKED, NOT_ASKED);
}

/// Has the thread look sooner than it would: what kept us away is gone.
pub fn look_soon() {
    // Whoever holds it looks in a moment, too.
    if let Some(_end) = END.try_lock() {
        LOOK_SOON.store(true, Ordering::Relaxed);
        ENDED.notify_all();
    }
}

/// Waits until the thread has had its first look, for `limit` at most.
pub fn await_begin(limit: Duration) {
    let mut patience = Patience::new(limit);
    while !BEGUN.load(Ordering::Acquire) && !patience.is_over() {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Asks the thread to finish, and waits for it, for `limit` at most; whether it has.
pub fn finish(limit: Duration) -> bool {
    let mut patience = Patience::new(limit);
    // Held for a few instructions at a time; still, the end of a process waits with a bound.
    let mut guard = loop {
        match END.try_lock() {
            Some(guard) => break guard,
            None if patience.is_over() => return false,
            None => std::thread::yield_now(),
        }
    };
    if *guard == Some(End::No) {
        *guard = Some(End::Asked);
        ENDED.notify_all();
    }
    while guard.is_some_and(|end| end != End::Done) {
        if patience.is_over() {
            *guard = Some(End::TooLate);
            return false;
        }
        guard = ENDED
            .wait_timeout(guard, patience.step())
            .unwrap_or_else(|e| e.into_inner())
            .0;
    }
    true
}

/// Runs `start` with every signal blocked, which a thread made in it inherits.
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are written before they are read; the mask is restored.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}
