//! The virtual GPU: every stream is a line of reserved time spans, nothing runs.
//!
//! A launch reserves `[max(stream ready, now + latency), + duration)` on `CLOCK_REALTIME`, the clock
//! of CUPTI's timestamps. Waiting is sleeping until a time. Like the driver's, a stream takes a
//! bounded number of outstanding launches (`MOCK_CUDA_QUEUE`); then the launching thread waits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings;

/// `CLOCK_REALTIME` in nanoseconds.
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the struct is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until the clock has reached `until`, whatever signals arrive.
pub fn sleep_until(until: u64) {
    let time = libc::timespec {
        tv_sec: (until / 1_000_000_000) as libc::time_t,
        tv_nsec: (until % 1_000_000_000) as libc::c_long,
    };
    while now() < until {
        // SAFETY: the struct is ours; early returns are covered by the loop.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_REALTIME,
                libc::TIMER_ABSTIME,
                &raw const time,
                std::ptr::null_mut(),
            )
        };
    }
}

/// One stream's time.
pub struct Timeline {
    /// End times of the last `queue_depth` launches, a ring.
    queue: Mutex<(Vec<u64>, usize)>,
    ready: AtomicU64,
}

impl Timeline {
    /// An idle stream.
    pub fn new() -> Timeline {
        Timeline {
            queue: Mutex::new((Vec::new(), 0)),
            ready: AtomicU64::new(0),
        }
    }

    /// When everything launched so far has finished.
    pub fn ready(&self) -> u64 {
        self.ready.load(Ordering::Acquire)
    }

    /// Makes later launches start at `time` at the earliest.
    pub fn not_before(&self, time: u64) {
        self.ready.fetch_max(time, Ordering::AcqRel);
    }

    /// Reserves one launch of kernels that run one after the other; `span` gets each one's start
    /// and end. Waits while the stream's queue is full.
    pub fn reserve(&self, durations: impl Iterator<Item = u64>, mut span: impl FnMut(u64, u64)) {
        let settings = settings::get();
        let (mut queue, now) = loop {
            let mut queue = self.queue.lock().expect("nobody panics holding it");
            if queue.0.is_empty() {
                queue.0.resize(settings.queue_depth, 0);
            }
            let now = now();
            let oldest = queue.0[queue.1];
            if oldest <= now {
                break (queue, now);
            }
            drop(queue);
            sleep_until(oldest);
        };
        let mut at = self.ready().max(now + settings.latency_ns);
        for duration in durations {
            span(at, at + duration);
            at += duration;
        }
        let slot = queue.1;
        queue.0[slot] = at;
        queue.1 = (slot + 1) % queue.0.len();
        self.not_before(at);
    }
}

/// How long a kernel of this name runs for each 1024 blocks or part of them: `_ns<digits>` in the
/// name says it, else the first fitting rule of `MOCK_CUDA_KERNEL_NS`, else its default.
pub fn kernel_duration(name: &[u8]) -> u64 {
    let settings = settings::get();
    let text = String::from_utf8_lossy(name);
    let spelled = text.match_indices("_ns").find_map(|(at, _)| {
        let digits: String = text[at + 3..]
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().ok()
    });
    spelled
        .or_else(|| {
            settings
                .kernel_rules
                .iter()
                .find(|(part, _)| text.contains(part.as_str()))
                .map(|rule| rule.1)
        })
        .unwrap_or(settings.kernel_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_follow_each_other() {
        let line = Timeline::new();
        let mut spans = Vec::new();
        for _ in 0..2 {
            line.reserve([100, 200].into_iter(), |start, end| {
                spans.push((start, end))
            });
        }
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert_eq!(spans.iter().map(|span| span.1 - span.0).sum::<u64>(), 600);
        assert_eq!(line.ready(), spans[3].1);
    }

    #[test]
    fn a_full_queue_waits() {
        let line = Timeline::new();
        let begin = now();
        for _ in 0..settings::get().queue_depth + 1 {
            line.reserve(std::iter::once(20_000), |_, _| ());
        }
        assert!(now() >= begin + 20_000, "the first launch had to finish");
    }

    #[test]
    fn names_carry_durations() {
        assert_eq!(kernel_duration(b"_Z12spin_ns50000Pj"), 50000);
        assert_eq!(kernel_duration(b"_Z3fooPj"), settings::get().kernel_ns);
    }
}
