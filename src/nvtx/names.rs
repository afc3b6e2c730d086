//! Names of threads, devices, streams and domains: remembered always, told to whoever comes.
//!
//! A name is told when it is given, if somebody listens, and again by the joining rule of
//! [`crate::metadata`]. Names of domains are kept with the domains.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::domains;
use super::process::{self, PerProcess};
use crate::probes::{self, touch};

/// Names kept; further ones are told once, when they are given.
const MOST: usize = 16_384;

/// What has a name, by the contract's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// By the kernel's number, as the process's PID namespace counts.
    Thread = 1,
    /// By its handle.
    Stream = 2,
    /// By its ordinal.
    Device = 3,
    /// By its id in events.
    Domain = 5,
}

/// Threads, streams and devices. A forked child has other threads and no CUDA: it starts empty.
static NAMES: PerProcess<HashMap<(Kind, u64), Arc<CStr>>> = PerProcess::new();

/// The program names something.
pub fn name(kind: Kind, id: u64, name: &CStr) {
    {
        let mut names = NAMES.lock();
        if names.len() < MOST || names.contains_key(&(kind, id)) {
            names.insert((kind, id), Arc::from(CString::from(name)));
        } else {
            static TOLD: AtomicBool = AtomicBool::new(false);
            process::report_once(
                &TOLD,
                "the program names too many things; consumers that come later do not get all names",
            );
        }
    }
    announce(kind, id, name);
}

/// Tells a name to those who listen now.
pub fn announce(kind: Kind, id: u64, name: &CStr) {
    if !probes::nvtx_resource_name::enabled() {
        return;
    }
    // SAFETY: a terminated string.
    unsafe { touch::string(name.as_ptr()) };
    probes::nvtx_resource_name::fire(kind as u32, id, name.as_ptr());
}

/// Tells all names.
pub fn replay() {
    for (id, name) in domains::all() {
        announce(Kind::Domain, u64::from(id), name);
    }
    let names: Vec<_> = NAMES
        .lock()
        .iter()
        .map(|((kind, id), name)| (*kind, *id, Arc::clone(name)))
        .collect();
    for (kind, id, name) in &names {
        announce(*kind, *id, name);
    }
}
