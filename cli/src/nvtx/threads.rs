//! Numbers of threads: an NVTX event has the one its process counts with, other events ours.

use std::collections::HashMap;
use std::fs;

/// Threads remembered; more of them begin anew.
const THREADS_MAX: usize = 100_000;

/// Threads by process and number in our PID namespace.
#[derive(Debug, Default)]
pub struct ThreadNumbers(HashMap<(u32, u32), u32>);

impl ThreadNumbers {
    /// The number of a thread in its innermost namespace; ours when it is gone.
    pub fn inside(&mut self, pid: u32, tid: u32) -> u32 {
        if self.0.len() >= THREADS_MAX {
            self.0.clear();
        }
        *self
            .0
            .entry((pid, tid))
            .or_insert_with(|| inner_number(pid, tid).unwrap_or(tid))
    }
}

/// Innermost number of a thread; `None` once it is gone.
fn inner_number(pid: u32, tid: u32) -> Option<u32> {
    innermost(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?)
}

/// Of the text in `status`; `None` where the thread is on its way out: the kernel has 0 for it then.
fn innermost(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    let number = numbers.split_whitespace().next_back()?.parse().ok()?;
    (number != 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::{ThreadNumbers, innermost};

    #[test]
    fn a_thread_on_its_way_out_has_no_number() {
        assert_eq!(innermost("Name:\tk\nNSpid:\t4711\t17\n"), Some(17));
        assert_eq!(innermost("Name:\tk\nNSpid:\t0\n"), None);
        assert_eq!(innermost("Name:\tk\n"), None);
    }

    #[test]
    fn a_thread_that_is_gone_keeps_its_number() {
        let mut numbers = ThreadNumbers::default();
        assert_eq!(numbers.inside(u32::MAX, 17), 17);
        // SAFETY: no preconditions.
        let own = unsafe { libc::gettid() }.cast_unsigned();
        assert_eq!(numbers.inside(std::process::id(), own), own);
    }
}
