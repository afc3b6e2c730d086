//! Locks that a forked child can take.
//!
//! A child has a copy of every lock and one thread. What another thread of its parent's held at that moment is held
//! for ever there. Here the first who comes in a new process tries the copy he finds: free, it is this process's
//! lock, with what it protects; held, it is an orphan, and the next of a few spare ones takes its place, empty. The
//! parent's story is not the child's. Nothing waits or allocates in a fork.
//!
//! And nobody waits without a bound, whatever the reason: a child may come from a bare `clone`, which tells nobody.
//! Without the lock whoever wanted it goes on without what he wanted it for. Locks are held for a few instructions.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crate::entry::KeepErrno;
use crate::patience::Patience;

/// The lock and its spare ones: one is used up by a fork in the middle of it.
const COPIES: usize = 4;
/// Longest wait for whoever has it, who may be without a processor.
const LIMIT: Duration = Duration::from_secs(1);
/// Tries before the first pause.
const SPINS: u32 = 100;
const PAUSE_NS: libc::c_long = 50_000;

/// Forks that lie between this process and the first one of ours.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// In a forked child, before anything of ours runs in it. Async-signal-safe.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Release);
}

/// Something behind a lock; `None` until somebody puts it there.
pub struct Sheltered<T> {
    /// How many forks there were when a lock was chosen, and which it is.
    choice: AtomicU64,
    /// Somebody has waited in vain; nobody else does, until one comes to it.
    given_up: AtomicBool,
    copies: [Mutex<Option<T>>; COPIES],
}

/// Access to what is behind the lock.
pub type Guard<'a, T> = MutexGuard<'a, Option<T>>;

enum Tried<'a, T> {
    Got(Guard<'a, T>),
    Busy,
    UsedUp,
}

impl<T> Sheltered<T> {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            choice: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            copies: [const { Mutex::new(None) }; COPIES],
        }
    }

    /// This process's lock; `None` where all are orphans.
    fn chosen(&self) -> Option<&Mutex<Option<T>>> {
        loop {
            let choice = self.choice.load(Ordering::Acquire);
            let index = choice & u64::from(u32::MAX);
            let copy = self.copies.get(index as usize)?;
            let forks = FORKS.load(Ordering::Acquire);
            if choice >> 32 == u64::from(forks) {
                return Some(copy);
            }
            // Nobody has it for long without having chosen it. Where two choose at once, one may find it with the
            // other: the first exchange counts.
            let orphan = matches!(copy.try_lock(), Err(TryLockError::WouldBlock));
            let next = u64::from(forks) << 32 | (index + u64::from(orphan));
            let _ = self
                .choice
                .compare_exchange(choice, next, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    fn attempt(&self) -> Tried<'_, T> {
        let Some(copy) = self.chosen() else {
            return Tried::UsedUp;
        };
        let guard = match copy.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return Tried::Busy,
        };
        if self.given_up.load(Ordering::Relaxed) {
            self.given_up.store(false, Ordering::Relaxed);
        }
        Tried::Got(guard)
    }

    /// Locks it, if nobody has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.attempt() {
            Tried::Got(guard) => Some(guard),
            Tried::Busy | Tried::UsedUp => None,
        }
    }

    /// Locks it. `None` when that cannot be in time: the caller does without.
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        for _ in 0..SPINS {
            match self.attempt() {
                Tried::Got(guard) => return Some(guard),
                Tried::Busy => std::hint::spin_loop(),
                Tried::UsedUp => return None,
            }
        }
        self.wait()
    }

    #[cold]
    fn wait(&self) -> Option<Guard<'_, T>> {
        let _errno = KeepErrno::new();
        let mut patience = Patience::new(LIMIT);
        loop {
            match self.attempt() {
                Tried::Got(guard) => return Some(guard),
                Tried::UsedUp => return None,
                Tried::Busy if self.given_up.load(Ordering::Relaxed) || patience.is_over() => {
                    self.given_up.store(true, Ordering::Relaxed);
                    return None;
                }
                Tried::Busy => pause(),
            }
        }
    }

    /// Runs `act` on what is behind the lock, which is made now if it is not there; `None` without the lock.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R>
    where
        T: Default,
    {
        let mut guard = self.lock()?;
        Some(act(guard.get_or_insert_default()))
    }
}

impl<T> Default for Sheltered<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// As a lock waits: no cancellation point, and no system call that a program with threads forbids itself.
fn pause() {
    static NOBODY_WAKES: AtomicU32 = AtomicU32::new(0);
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: PAUSE_NS,
    };
    // SAFETY: a word of ours, and a relative time; both live during the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            NOBODY_WAKES.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            0,
            &raw const time,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{COPIES, LIMIT, Sheltered};
    use std::sync::{Barrier, mpsc};
    use std::time::{Duration, Instant};

    const HANG: Duration = Duration::from_secs(120);

    /// Forks; the child ends with what `child` returns, and so does this. The library's handler runs in it.
    fn in_child(child: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child takes a lock, reads the clock and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: nothing of this process is to run at its end.
            unsafe { libc::_exit(child()) };
        }
        assert!(pid > 0);
        let (began, mut status) = (Instant::now(), 0);
        // SAFETY: waits for, or kills, the child made above.
        while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
            if began.elapsed() > HANG {
                // SAFETY: as above.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(libc::WIFEXITED(status), "it hung: {status:#x}");
        libc::WEXITSTATUS(status)
    }

    /// Runs `act` while another thread has the lock.
    fn while_held<T: Default + Sync + Send>(lock: &Sheltered<T>, act: impl FnOnce()) {
        let held = &Barrier::new(2);
        // Gone at the end of `act`, however it ends.
        let (until, over) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let guard = lock.lock();
                held.wait();
                let _ = over.recv();
                drop(guard);
            });
            held.wait();
            let _until = until;
            act();
        });
    }

    /// 0: empty, at once, and taken again; else what is wrong.
    fn is_fresh(lock: &Sheltered<u32>) -> i32 {
        let began = Instant::now();
        match lock.lock() {
            None => return 1,
            Some(guard) if guard.is_some() => return 2,
            Some(mut guard) => *guard = Some(7),
        }
        match lock.with(|value| *value) {
            Some(7) if began.elapsed() < LIMIT / 2 => 0,
            Some(7) => 3,
            _ => 4,
        }
    }

    #[test]
    fn an_orphan_is_left_behind() {
        static LOCK: Sheltered<u32> = Sheltered::new();
        LOCK.with(|value| *value = 5);
        while_held(&LOCK, || assert_eq!(in_child(|| is_fresh(&LOCK)), 0));
        assert_eq!(LOCK.with(|value| *value), Some(5), "the parent's own");
    }

    #[test]
    fn what_nobody_held_is_the_childs_too() {
        static LOCK: Sheltered<u32> = Sheltered::new();
        LOCK.with(|value| *value = 5);
        let child = || i32::from(LOCK.with(|value| *value) != Some(5));
        assert_eq!(in_child(child), 0);
    }

    /// The thread that forks may have it itself, in a signal handler.
    #[test]
    fn the_childs_own_thread_lets_it_go() {
        static LOCK: Sheltered<u32> = Sheltered::new();
        let guard = LOCK.lock();
        let child = || {
            let fresh = is_fresh(&LOCK);
            drop(guard);
            fresh + i32::from(LOCK.with(|value| *value) != Some(7)) * 8
        };
        assert_eq!(in_child(child), 0);
    }

    #[test]
    fn when_all_are_orphans_nobody_waits() {
        fn generation(lock: &Sheltered<u32>, left: usize) -> i32 {
            if left == 0 {
                return i32::from(lock.lock().is_some());
            }
            let _held = lock.lock();
            in_child(|| generation(lock, left - 1))
        }
        static LOCK: Sheltered<u32> = Sheltered::new();
        let began = Instant::now();
        assert_eq!(generation(&LOCK, COPIES), 0);
        assert!(began.elapsed() < HANG);
    }

    /// As in a child that was made by a bare `clone`.
    #[test]
    fn a_wait_has_an_end_and_is_not_repeated() {
        static LOCK: Sheltered<u32> = Sheltered::new();
        while_held(&LOCK, || {
            let began = Instant::now();
            assert!(LOCK.lock().is_none());
            assert!(began.elapsed() >= LIMIT / 2);
            let began = Instant::now();
            assert!((0..1000).all(|_| LOCK.lock().is_none()));
            assert!(began.elapsed() < 100 * LIMIT);
        });
        assert!(LOCK.lock().is_some());
    }

    /// Whoever made others wait in vain is gone, or was slow once: the next one is waited for again.
    #[test]
    fn after_a_wait_in_vain_somebody_is_waited_for_again() {
        static LOCK: Sheltered<u32> = Sheltered::new();
        while_held(&LOCK, || assert!(LOCK.lock().is_none()));
        assert!(LOCK.lock().is_some());
        while_held(&LOCK, || {
            let began = Instant::now();
            assert!(LOCK.lock().is_none());
            assert!(began.elapsed() >= LIMIT / 2, "nobody waited");
        });
    }

    #[test]
    fn threads_have_it_one_after_another() {
        static LOCK: Sheltered<u32> = Sheltered::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        LOCK.with(|value| *value += 1);
                    }
                });
            }
        });
        assert_eq!(LOCK.with(|value| *value), Some(40_000));
    }
}
