//! Error events: told once each, repeated for consumers that come late.
//!
//! The last 64 distinct errors are kept as C strings. The lock is held for the bookkeeping only,
//! never while a probe fires.

use std::collections::{HashSet, VecDeque};
use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use parcagpu_abi::status::Counter;

use crate::probes::{self, touch};
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
}

static LOG: Mutex<Option<Log>> = Mutex::new(None);

fn c_string(text: &str) -> CString {
    // Cannot fail: the bytes that could make it are replaced.
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// Tells an error: `code` is CUPTI's or the driver's number, 0 for configuration. The second time
/// the same is told nothing happens.
pub fn report(code: i32, component: &str, message: &str) {
    let event = Arc::new(Event {
        code,
        message: c_string(message),
        component: c_string(component),
    });
    {
        let mut log = LOG.lock().unwrap_or_else(|e| e.into_inner());
        let log = log.get_or_insert_with(Log::default);
        if log.told.contains(&event) {
            return;
        }
        let block = status::block();
        block.add(Counter::Errors, 1);
        if log.told.len() >= TOLD_MAX {
            return;
        }
        log.told.insert(Arc::clone(&event));
        log.kept.push_back(Arc::clone(&event));
        if log.kept.len() > KEPT {
            log.kept.pop_front();
        }
        block.last_error_code.store(code, Ordering::Relaxed);
    }
    status::set_text(
        &status::block().last_error,
        &format!("{component}: {}", event.message.to_string_lossy()),
    );
    crate::debug_log!(1, "error {code} {component}: {message}");
    fire(&event);
}

/// Fires every kept error again.
pub fn replay() {
    let kept: Vec<Arc<Event>> = {
        let log = LOG.lock().unwrap_or_else(|e| e.into_inner());
        log.as_ref()
            .map(|log| log.kept.iter().cloned().collect())
            .unwrap_or_default()
    };
    for event in &kept {
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
    use super::{LOG, report};

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
