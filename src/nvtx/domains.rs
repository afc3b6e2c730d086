//! Domains: a handle for every creation, an id for every name.
//!
//! Several clients create a domain of the same name, and one may destroy its own: each gets a handle of
//! its own, while consumers see one id. What was destroyed stays known, since late events are tolerated.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::sys::DomainHandle;
use super::table::Table;
use super::{names, process};

/// Id of the default domain.
pub const DEFAULT: u32 = 0;
/// Id for what is no handle of ours, and for domains past the bound.
pub const UNKNOWN: u32 = u32::MAX;

const MOST: u32 = 16_384;
/// In the upper half of every domain handle; no address looks like this.
const TAG: u64 = 0x0d0a_0000;

struct Domain {
    id: u32,
    name: CString,
    /// The next tool's handle.
    theirs: AtomicU64,
}

static DOMAINS: Table<Domain> = Table::new(MOST);

fn find(handle: DomainHandle) -> Option<&'static Domain> {
    (handle.0 >> 32 == TAG)
        .then(|| DOMAINS.get(handle.0 as u32))
        .flatten()
}

/// Id that stands for a handle in events.
#[inline]
pub fn id(handle: DomainHandle) -> u32 {
    if handle.0 == 0 {
        return DEFAULT;
    }
    find(handle).map_or(UNKNOWN, |domain| domain.id)
}

/// A client creates a domain. Past the bound all further ones are one without a name.
pub fn create(name: &CStr) -> DomainHandle {
    // Of two first creations at the same moment each gets an id, under the same name.
    let known = DOMAINS.iter().find(|d| d.name.as_c_str() == name);
    let id = known.map_or_else(fresh_id, |d| d.id);
    let index = DOMAINS.push(Domain {
        id,
        name: name.to_owned(),
        theirs: AtomicU64::new(0),
    });
    let Some(index) = index else {
        static TOLD: AtomicBool = AtomicBool::new(false);
        process::report_once(
            &TOLD,
            "the program makes too many NVTX domains; further ones have no name",
        );
        return known.map_or(DomainHandle(TAG << 32 | u64::from(u32::MAX)), |_| {
            handle_of_name(name)
        });
    };
    if known.is_none() {
        names::announce(names::Kind::Domain, u64::from(id), name);
    }
    DomainHandle(TAG << 32 | u64::from(index))
}

fn handle_of_name(name: &CStr) -> DomainHandle {
    let index = (0..MOST).find(|i| DOMAINS.get(*i).is_some_and(|d| d.name.as_c_str() == name));
    DomainHandle(TAG << 32 | u64::from(index.unwrap_or(u32::MAX)))
}

fn fresh_id() -> u32 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    (LAST.fetch_add(1, Ordering::Relaxed) + 1) as u32
}

/// Ids and names of all domains, each once.
pub fn all() -> impl Iterator<Item = (u32, &'static CStr)> {
    let mut told = std::collections::HashSet::new();
    DOMAINS
        .iter()
        .filter(move |domain| told.insert(domain.id))
        .map(|domain| (domain.id, domain.name.as_c_str()))
}

/// Keeps the next tool's handle beside ours.
pub fn keep_theirs(ours: DomainHandle, theirs: DomainHandle) {
    if let Some(domain) = find(ours) {
        domain.theirs.store(theirs.0, Ordering::Release);
    }
}

/// The next tool's handle; its default domain for what we do not know.
pub fn theirs(ours: DomainHandle) -> DomainHandle {
    DomainHandle(find(ours).map_or(0, |domain| domain.theirs.load(Ordering::Acquire)))
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT, UNKNOWN, all, create, id, keep_theirs, theirs};
    use crate::nvtx::sys::DomainHandle;

    #[test]
    fn one_id_per_name_and_one_handle_per_creation() {
        let (a, b, c) = (create(c"test.a"), create(c"test.a"), create(c"test.b"));
        assert_ne!(a, b);
        assert_eq!(id(a), id(b));
        assert_ne!(id(a), id(c));
        assert_eq!(all().filter(|(_, name)| *name == c"test.a").count(), 1);
        keep_theirs(a, DomainHandle(7));
        assert_eq!((theirs(a), theirs(b)), (DomainHandle(7), DomainHandle(0)));
    }

    #[test]
    fn what_is_no_handle_is_unknown() {
        assert_eq!(id(DomainHandle(0)), DEFAULT);
        for garbage in [1, 0xdead_beef, u64::MAX, 0x7fff_0000_1000] {
            assert_eq!(id(DomainHandle(garbage)), UNKNOWN);
            assert_eq!(theirs(DomainHandle(garbage)), DomainHandle(0));
        }
    }
}
