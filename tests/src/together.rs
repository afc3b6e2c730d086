//! Variants of a test that spend their time waiting, run at once.

use std::panic::resume_unwind;

/// Runs `test` for every case, each on a thread of its own; the first failure is the test's. Captured
/// output of the harness is that of the test's own thread, so say in messages which case it was.
#[track_caller]
pub fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        let threads: Vec<_> = cases
            .into_iter()
            .map(|case| scope.spawn(move || test(case)))
            .collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}
