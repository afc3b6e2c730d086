//! The lock-free parts of the library, in every order of their steps.
//!
//! The library's own files are compiled here with loom's atomics and locks in place of the standard ones
//! (`crate::sync`), and `scripts/models` runs each model through every order that differs. Without
//! `--cfg loom` this crate is empty.

#![cfg(loom)]

/// As the library's `sync`, made of loom's.
pub mod sync {
    pub use loom::sync::atomic::fence;
    pub use loom::sync::{Mutex, MutexGuard};
    /// Atomics.
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
    }
    /// As it is where an exchange is no fence.
    pub fn fence_after_exchange() {
        fence(atomic::Ordering::SeqCst);
    }
}

#[path = "../../../src/pc/door.rs"]
pub mod door;
#[path = "../../../src/nvtx/ending.rs"]
pub mod ending;
#[path = "../../../src/pc/hold.rs"]
pub mod hold;
#[path = "../../../src/cupti/pool.rs"]
pub mod pool;
#[path = "../../../src/nvtx/slot.rs"]
pub mod slot;
#[path = "../../../src/sampling/switch.rs"]
pub mod switch;
/// Where the library has it.
pub mod sampling {
    pub use crate::switch;
}

#[cfg(test)]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::thread;

    use crate::door::Door;
    use crate::ending;
    use crate::hold::Hold;
    use crate::pool::Pool;
    use crate::sampling::switch::{Activity, Switch};
    use crate::slot::Slot;

    /// CUPTI, as far as the switch knows it: on and off in turn, never twice.
    struct Cupti(AtomicBool);

    impl Activity for Cupti {
        fn on(&self) -> bool {
            assert!(!self.0.swap(true, Ordering::SeqCst), "switched on twice");
            true
        }
        fn off(&self) {
            assert!(self.0.swap(false, Ordering::SeqCst), "switched off twice");
        }
    }

    fn switch() -> Arc<(Switch, Cupti)> {
        let both = Arc::new((Switch::new(), Cupti(AtomicBool::new(false))));
        both.0.open();
        both
    }

    fn launch(both: &(Switch, Cupti)) -> bool {
        let (switch, cupti) = both;
        let Ok(joined) = switch.join(cupti) else {
            return false;
        };
        // While a launch is open, activity is on, unless the session went away.
        if switch.is_current(joined) {
            let on = cupti.0.load(Ordering::SeqCst);
            assert!(on || !switch.is_current(joined));
        }
        switch.leave(joined, cupti)
    }

    /// Two launches: activity is on exactly while one is open, and off at the end.
    #[test]
    fn two_launches() {
        loom::model(|| {
            let both = switch();
            let other = Arc::clone(&both);
            let thread = thread::spawn(move || launch(&other));
            let here = launch(&both);
            let there = thread.join().unwrap();
            assert!(here || there, "one of them was sampled");
            assert!(!both.0.is_on() && !both.1.0.load(Ordering::SeqCst));
        });
    }

    /// A launch beside somebody who wants to be apart from those that switch.
    #[test]
    fn apart_from_a_launch() {
        loom::model(|| {
            let both = switch();
            let other = Arc::clone(&both);
            let thread = thread::spawn(move || launch(&other));
            // What is asked of CUPTI there is as good as a switch on and off.
            let apart = both.0.apart(&both.1, || {
                // It may be on, and then stays so.
                let on = both.1.0.load(Ordering::SeqCst);
                assert!(on == both.0.is_on());
                thread::yield_now();
                assert_eq!(on, both.1.0.load(Ordering::SeqCst));
            });
            let there = thread.join().unwrap();
            assert!(there || apart.is_some());
            assert!(!both.0.is_on() && !both.0.is_busy() && !both.1.0.load(Ordering::SeqCst));
            assert!(launch(&both));
        });
    }

    /// Somebody closes a window, its context goes, and the next one opens in the same on-period: every part in the
    /// switch is given back once.
    #[test]
    fn the_end_of_a_window() {
        loom::model(|| {
            let all = Arc::new((Hold::new(), switch()));
            let open = |all: &(Hold, Arc<(Switch, Cupti)>)| {
                all.0.request();
                let (switch, cupti) = &*all.1;
                let joined = switch.join(cupti).expect("nobody switches");
                if !all.0.begin(joined) {
                    switch.leave(joined, cupti);
                }
            };
            let end = |all: &(Hold, Arc<(Switch, Cupti)>)| {
                let (switch, cupti) = &*all.1;
                if let Some(joined) = all.0.open().and_then(|window| all.0.end(window)) {
                    assert!(switch.leave(joined, cupti));
                }
            };
            let (switch, cupti) = &*all.1;
            let kept = switch.join(cupti).expect("nobody switches");
            open(&all);
            let other = Arc::clone(&all);
            let thread = thread::spawn(move || end(&other));
            end(&all);
            open(&all);
            thread.join().unwrap();
            end(&all);
            assert!(switch.is_current(kept) && switch.leave(kept, cupti));
            assert!(!switch.is_on() && !cupti.0.load(Ordering::SeqCst));
        });
    }

    /// Two launches while the session goes away and comes back: activity is never left on, nor off beside a
    /// launch that is counted.
    #[test]
    fn launches_and_the_end_of_a_session() {
        loom::model(|| {
            let both = switch();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let other = Arc::clone(&both);
                    thread::spawn(move || launch(&other))
                })
                .collect();
            let (switch, cupti) = &*both;
            let closed = switch.close(cupti);
            if closed {
                assert!(!switch.is_on());
                switch.open();
            }
            for thread in threads {
                thread.join().unwrap();
            }
            if !closed {
                // Whoever was inside has seen that it is closed; asked again it says so.
                assert!(switch.close(cupti));
            }
            assert!(!switch.is_on() && !cupti.0.load(Ordering::SeqCst));
        });
    }

    /// Launches, one of which has waited for too long, and somebody who wants to be alone: he is.
    #[test]
    fn alone_behind_the_door() {
        loom::model(|| {
            let door = Arc::new((Door::new(), AtomicUsize::new(0)));
            let threads: Vec<_> = [false, true]
                .map(|overdue| {
                    let other = Arc::clone(&door);
                    thread::spawn(move || {
                        let (door, inside) = &*other;
                        let entered = door.try_enter(overdue);
                        if entered {
                            inside.fetch_add(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            door.leave();
                        }
                        entered || !overdue
                    })
                })
                .into();
            let (door, inside) = &*door;
            assert!(door.shut() && !door.shut());
            let taken = door.take(0);
            if taken {
                for _ in 0..2 {
                    assert_eq!(inside.load(Ordering::SeqCst), 0);
                }
            }
            door.open();
            for thread in threads {
                assert!(thread.join().unwrap() || taken, "kept out by nobody");
            }
            // Whatever happened, nobody is inside and it is open.
            assert!(door.shut() && door.take(0));
        });
    }

    /// Counts what becomes of it.
    struct Batch {
        events: usize,
        told: Arc<AtomicUsize>,
    }

    impl Batch {
        fn fire(&mut self) {
            let events = std::mem::take(&mut self.events);
            self.told.fetch_add(events, Ordering::SeqCst);
        }
    }

    impl Drop for Batch {
        fn drop(&mut self) {
            assert_eq!(self.events, 0, "a batch with events is thrown away");
        }
    }

    /// A thread adds two events to its batch while ours fires what is there: each is told once.
    #[test]
    fn a_batch_and_its_owner() {
        loom::model(|| {
            let told = Arc::new(AtomicUsize::new(0));
            let slot = Arc::new(Slot::new());
            let ours = {
                let slot: Arc<Slot<Batch>> = Arc::clone(&slot);
                thread::spawn(move || {
                    if let Some(mut batch) = slot.take() {
                        batch.fire();
                        slot.offer(batch);
                    }
                })
            };
            for _ in 0..2 {
                let mut batch = slot.take().unwrap_or_else(|| {
                    Box::new(Batch {
                        events: 0,
                        told: Arc::clone(&told),
                    })
                });
                batch.events += 1;
                slot.put(batch);
            }
            ours.join().unwrap();
            if let Some(mut batch) = slot.take() {
                batch.fire();
            }
            assert_eq!(told.load(Ordering::SeqCst), 2);
        });
    }

    /// The end of the process finds the last batch, or waits for the thread that is at work on it, or that thread
    /// finds that the end has begun.
    #[test]
    fn a_batch_and_the_end() {
        #[derive(Default)]
        struct Place {
            slot: Slot<Batch>,
            oldest: AtomicUsize,
            at_work: AtomicBool,
            ending: AtomicBool,
        }
        loom::model(|| {
            let told = Arc::new(AtomicUsize::new(0));
            let place = Arc::new(Place::default());
            let owner = {
                let (place, told) = (Arc::clone(&place), Arc::clone(&told));
                thread::spawn(move || {
                    place.at_work.store(true, Ordering::Relaxed);
                    assert!(place.slot.take().is_none());
                    place.oldest.store(1, Ordering::Relaxed);
                    place.slot.put(Box::new(Batch { events: 1, told }));
                    if ending::has_begun(&place.ending)
                        && let Some(mut last) = place.slot.take()
                    {
                        last.fire();
                    }
                    place.at_work.store(false, Ordering::Release);
                })
            };
            ending::begin(&place.ending);
            let flush = || {
                if place.oldest.load(Ordering::Relaxed) != 0
                    && let Some(mut batch) = place.slot.take()
                {
                    batch.fire();
                }
            };
            flush();
            while place.at_work.load(Ordering::Acquire) {
                thread::yield_now();
            }
            flush();
            owner.join().unwrap();
            assert_eq!(told.load(Ordering::SeqCst), 1);
        });
    }

    /// CUPTI asks for a buffer and gives one back on two threads: nobody gets what another has.
    #[test]
    fn buffers() {
        loom::model(|| {
            let pool = Arc::new(Pool::new());
            let other = Arc::clone(&pool);
            let thread = thread::spawn(move || {
                let buffer = other.request(1).unwrap();
                assert!(other.is_ours(buffer) && other.give_back(buffer));
            });
            let buffer = pool.request(2).unwrap();
            assert!(pool.is_ours(buffer));
            thread.join().unwrap();
            assert_eq!((pool.outstanding(), pool.oldest()), (1, Some(2)));
            assert!(pool.give_back(buffer));
            pool.trim();
        });
    }
}
