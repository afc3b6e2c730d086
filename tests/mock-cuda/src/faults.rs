//! Scripted results: `MOCK_FAIL="cuptiSubscribe=39,cuptiActivityEnable=999@3+"`, and signals raised
//! inside driver calls: `MOCK_RAISE="cuLaunchKernel=10@4"`.
//!
//! `NAME=CODE` every call, `NAME=CODE@N` only the N-th call (from 1), `NAME=CODE@N+` the N-th and
//! all later ones. Several items for one function are tried in order. A scripted call makes its
//! callbacks but does nothing else. A signal comes on the calling thread, before the call's work and
//! without a lock: its handler may leave the call for good.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::settings;

struct Fault {
    name: String,
    code: i32,
    first: u64,
    last: u64,
    calls: AtomicU64,
}

/// The result to give instead of doing the work, if this call has one.
pub fn check(name: &str) -> Option<i32> {
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    look_up(FAULTS.get_or_init(|| parse("MOCK_FAIL")), name)
}

/// Raises the signal that this call has, if it has one.
pub fn raise(name: &str) {
    static SIGNALS: OnceLock<Vec<Fault>> = OnceLock::new();
    if let Some(signal) = look_up(SIGNALS.get_or_init(|| parse("MOCK_RAISE")), name) {
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(signal) };
    }
}

fn look_up(faults: &[Fault], name: &str) -> Option<i32> {
    if faults.is_empty() {
        return None;
    }
    let mut result = None;
    for fault in faults.iter().filter(|fault| fault.name == name) {
        let call = fault.calls.fetch_add(1, Relaxed) + 1;
        if result.is_none() && (fault.first..=fault.last).contains(&call) {
            result = Some(fault.code);
        }
    }
    result
}

fn parse(variable: &str) -> Vec<Fault> {
    settings::text(variable)
        .split(',')
        .filter(|item| !item.is_empty())
        .map(|item| {
            parse_one(item).unwrap_or_else(|| {
                eprintln!("simulated driver: {variable} item '{item}' is not NAME=CODE[@N[+]]");
                std::process::abort()
            })
        })
        .collect()
}

fn parse_one(item: &str) -> Option<Fault> {
    let (name, rest) = item.split_once('=')?;
    let (code, when) = rest.split_once('@').unwrap_or((rest, "1+"));
    let (number, open) = when
        .strip_suffix('+')
        .map_or((when, false), |number| (number, true));
    let first = number.parse().ok()?;
    let last = if open { u64::MAX } else { first };
    Some(Fault {
        name: name.trim().to_owned(),
        code: code.parse().ok()?,
        first,
        last,
        calls: AtomicU64::new(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_calls() {
        let range = |item| parse_one(item).map(|f| (f.code, f.first, f.last));
        assert_eq!(range("a=39"), Some((39, 1, u64::MAX)));
        assert_eq!(range("a=9@3"), Some((9, 3, 3)));
        assert_eq!(range("a=9@3+"), Some((9, 3, u64::MAX)));
        assert!(
            parse_one("a").is_none() && parse_one("a=x").is_none() && parse_one("a=1@x").is_none()
        );
    }
}
