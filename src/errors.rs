//! Error events: told once each, repeated for consumers that come late.
//!
//! The last 64 distinct errors are kept as C strings. The lock is held for the bookkeeping only,
//! never while a probe fires.

use std::collections::{HashSet, VecDeque};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parcagpu_abi::status::Counter;

use crate::probes::{self, touch};
use crate::sheltered::Sheltered;
use crate::status;

/// Errors kept for late consumers.
const KEPT: usize = 64;
/// Distinct errors remembered as told; beyond, nothing new is told, only counted.
const TOLD_MAX: usize = 1024;

#[derive(Debug, PartialEq, Eq, Hash)]
struct Event {
    code: i32,
    message: CString,
    component: CString,
}

#[derive(Default)]
struct Log {
    told: HashSet<Arc<Event>>,
    kept: VecDeque<Arc<Event>>,
    /// One of each component that reports this way.
    latest: Vec<Arc<Event>>,
}

static LOG: Sheltered<Log> = Sheltered::new();

fn c_string(text: &str) -> CString {
    // Cannot fail: the bytes that could make it are replaced.
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

fn event(code: i32, component: &str, message: &str) -> Arc<Event> {
    Arc::new(Event {
        code,
        message: c_string(message),
        component: c_string(component),
    })
}

/// Tells an error: `code` is CUPTI's or the driver's number, 0 for configuration. The second time
/// the same is told nothing happens.
pub fn report(code: i32, component: &str, message: &str) {
    let event = event(code, component, message);
    let is_new = LOG.with(|log| {
        if log.told.contains(&event) {
            return false;
        }
        status::block().add(Counter::Errors, 1);
        if log.told.len() >= TOLD_MAX {
            return false;
        }
        log.told.insert(Arc::clone(&event));
        log.kept.push_back(Arc::clone(&event));
        if log.kept.len() > KEPT {
            log.kept.pop_front();
        }
        true
    });
    // Without the lock nobody knows: better twice than never.
    if is_new != Some(false) {
        tell(&event);
    }
}

fn tell(event: &Event) {
    status::block()
        .last_error_code
        .store(event.code, Ordering::Relaxed);
    let (component, message) = (
        event.component.to_string_lossy(),
        event.message.to_string_lossy(),
    );
    status::set_text(
        &status::block().last_error,
        &format!("{component}: {message}"),
    );
    crate::debug_log!(1, "error {} {component}: {message}", event.code);
    fire(event);
}

/// Tells how things are now where that changes again and again: of all that one component told this way only
/// the latest is kept.
pub fn report_latest(code: i32, component: &str, message: &str) {
    let event = event(code, component, message);
    let is_new = LOG.with(|log| {
        if log.latest.contains(&event) {
            return false;
        }
        log.latest.retain(|kept| kept.component != event.component);
        log.latest.push(Arc::clone(&event));
        status::block().add(Counter::Errors, 1);
        true
    });
    // Without the lock nobody knows: better twice than never.
    if is_new != Some(false) {
        tell(&event);
    }
}

/// Tells an error at the end of the process: takes no lock, and keeps nothing.
pub fn report_last(component: &str, message: &str) {
    status::block().add(Counter::Errors, 1);
    fire(&event(0, component, message));
}

/// Fires every kept error again.
pub fn replay() {
    let kept = LOG.with(|log| {
        let all = log.kept.iter().chain(&log.latest);
        all.cloned().collect::<Vec<Arc<Event>>>()
    });
    for event in kept.iter().flatten() {
        fire(event);
    }
}

fn fire(event: &Event) {
    if !probes::error::enabled() {
        return;
    }
    // SAFETY: both are terminated strings that live as long as `event`.
    unsafe {
        touch::string(event.message.as_ptr());
        touch::string(event.component.as_ptr());
    }
    probes::error::fire(event.code, event.message.as_ptr(), event.component.as_ptr());
}

#[cfg(test)]
mod tests {
    use super::{LOG, report, report_latest};

    #[test]
    fn of_what_changes_only_the_latest_is_kept() {
        for turn in 0..2000 {
            report_latest(39, "test of turns", &format!("turn {turn}"));
        }
        let log = LOG.lock().unwrap();
        let log = log.as_ref().unwrap();
        let kept: Vec<_> = log
            .latest
            .iter()
            .filter(|event| event.component.as_c_str() == c"test of turns")
            .collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].message.as_c_str(), c"turn 1999");
        assert!(log.told.len() < 1000, "turns use up nothing");
    }

    #[test]
    fn the_same_error_is_kept_once_and_without_nul() {
        report(7, "test of errors", "once\0only");
        report(7, "test of errors", "once\0only");
        let log = LOG.lock().unwrap();
        let kept: Vec<_> = log
            .as_ref()
            .unwrap()
            .kept
            .iter()
            .filter(|event| event.component.as_c_str() == c"test of errors")
            .collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].message.as_c_str(), c"once?only");
    }
}
