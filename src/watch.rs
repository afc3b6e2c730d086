//! Our one thread, named `parcagpu`: ten looks a second at the consumers.
//!
//! It exists from the start of a session to the end of the process, and not in forked children. It
//! blocks every signal, so that none of the program's is delivered to it.

use std::sync::{Condvar, Mutex, TryLockError};
use std::time::{Duration, Instant};

use crate::entry::{self, Inside};
use crate::errors;
use crate::machine::Machine;

const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Of address space; CUPTI's and our callbacks run on it.
const STACK: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Go on.
    No,
    /// The process ends: deliver what is there.
    Asked,
    /// That was done, or there is no thread.
    Done,
}

static END: Mutex<End> = Mutex::new(End::Done);
static ENDED: Condvar = Condvar::new();

fn end() -> std::sync::MutexGuard<'static, End> {
    END.lock().unwrap_or_else(|e| e.into_inner())
}

/// Starts the thread. Without it nothing is ever flushed, so a session that cannot have one is over.
pub fn start(mut machine: Machine) -> bool {
    *end() = End::No;
    let started = without_signals(|| {
        std::thread::Builder::new()
            .name("parcagpu".to_owned())
            .stack_size(STACK)
            .spawn(move || run(&mut machine))
    });
    match started {
        Ok(_) => true,
        Err(error) => {
            *end() = End::Done;
            errors::report(
                error.raw_os_error().unwrap_or(0),
                "library",
                &format!("the watch thread could not be started: {error}"),
            );
            false
        }
    }
}

fn run(machine: &mut Machine) {
    let _inside = Inside::nested();
    loop {
        {
            let guard = end();
            let (guard, _) = ENDED
                .wait_timeout_while(guard, LOOK_PERIOD, |end| *end == End::No)
                .unwrap_or_else(|e| e.into_inner());
            if *guard == End::Asked {
                break;
            }
        }
        entry::barrier((), || machine.tick());
    }
    entry::barrier((), || machine.finish());
    *end() = End::Done;
    ENDED.notify_all();
}

/// Asks the thread to finish, and waits for it until `limit` at the latest.
pub fn finish(limit: Duration) {
    let deadline = Instant::now() + limit;
    // Held for a few instructions at a time; still, the end of a process waits with a bound.
    let mut guard = loop {
        match END.try_lock() {
            Ok(guard) => break guard,
            Err(TryLockError::Poisoned(e)) => break e.into_inner(),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    };
    if *guard == End::No {
        *guard = End::Asked;
        ENDED.notify_all();
    }
    while *guard != End::Done {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        guard = ENDED
            .wait_timeout(guard, left)
            .unwrap_or_else(|e| e.into_inner())
            .0;
    }
}

/// Runs `start` with every signal blocked, which a thread made in it inherits.
fn without_signals<R>(start: impl FnOnce() -> R) -> R {
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
