//! What machine code is loaded, by checksum.
//!
//! A cubin that was announced stays readable and unchanged at its address until its last module is
//! unloaded: it is a copy of ours, in an anonymous read-only mapping, since nobody promises how long the
//! driver's own memory lives. Copies are capped; over the cap a new cubin is not announced, counted, and
//! told once. The lock is held for bookkeeping and while one cubin is told again, not while bytes are copied.

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::{Mmap, MmapMut};
use parcagpu_abi::status::Counter;

use super::image::Bad;
use super::memory::{IMAGE_MAX, Source};
use crate::sheltered::Sheltered;
use crate::{errors, probes, session, status};

/// Who told of a module, and how it will be named when it is unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// CUPTI, by its module id.
    Cupti(u32),
    /// A hook, by the handle the driver gave.
    Handle(usize),
    /// A hook, whose handle the driver is about to let go: the how-many-th.
    Leaving(u64),
}

/// A module that is about to go.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    as_it_was: Module,
    now: Module,
}

#[derive(Default)]
struct Loaded {
    /// Copies by checksum, with the number of modules that have that code.
    cubins: HashMap<u32, (Arc<Mmap>, usize)>,
    /// Checksums of each module's cubins; empty where none was kept.
    modules: HashMap<Module, Vec<u32>>,
    bytes: u64,
}

static LOADED: Sheltered<Loaded> = Sheltered::new();
/// Code was met that is not here.
static MISSED: AtomicBool = AtomicBool::new(false);
static CAP_TOLD: AtomicBool = AtomicBool::new(false);

/// Whether a module is known; the same one may be told again and again.
pub fn is_known(module: Module) -> bool {
    // Without the lock nothing could be added either.
    LOADED
        .with(|loaded| loaded.modules.contains_key(&module))
        .unwrap_or(true)
}

/// Takes note if code with one of these checksums is not here.
pub fn look_for(mut crcs: impl Iterator<Item = u64>) {
    let all = LOADED.with(|loaded| {
        let known = |crc: u64| u32::try_from(crc).is_ok_and(|crc| loaded.cubins.contains_key(&crc));
        crcs.all(known)
    });
    if all == Some(false) {
        MISSED.store(true, Ordering::Relaxed);
    }
}

/// Whether code was missed since this was last asked.
pub fn take_missed() -> bool {
    MISSED.swap(false, Ordering::Relaxed)
}

/// Whether hooks told of modules whose unloading they have to see.
pub fn has_handles() -> bool {
    let has = LOADED.with(|loaded| {
        let mut modules = loaded.modules.keys();
        modules.any(|module| !matches!(module, Module::Cupti(_)))
    });
    has == Some(true)
}

fn cap() -> u64 {
    session::get().map_or(u64::MAX, |s| u64::from(s.config.cubin_memory_mb) << 20)
}

/// A module with this cubin was loaded: `len` bytes at `offset` of `source`. Announces the cubin if its
/// code is new.
pub fn load(
    module: Module,
    source: &(impl Source + ?Sized),
    offset: u64,
    len: u64,
) -> Result<(), Bad> {
    // Known from here on, so that what cannot be kept is not tried again at every launch.
    let held = LOADED.with(|loaded| {
        loaded.modules.entry(module).or_default();
        loaded.bytes
    });
    let Some(held) = held else {
        return Ok(());
    };
    if len == 0 || len > IMAGE_MAX {
        return Err(Bad::Damaged("its length makes no sense"));
    }
    if held + len > cap() {
        refuse();
        return Ok(());
    }
    let mut copy = MmapMut::map_anon(len as usize)?;
    source.read(offset, &mut copy)?;
    let crc = crc32fast::hash(&copy);
    let copy = Arc::new(copy.make_read_only()?);
    if let Some(copy) = keep(module, crc, copy) {
        announce(crc, &copy);
    }
    Ok(())
}

/// Counts the module; gives the copy if its code is new.
fn keep(module: Module, crc: u32, copy: Arc<Mmap>) -> Option<Arc<Mmap>> {
    let mut guard = LOADED.lock()?;
    let loaded = guard.get_or_insert_default();
    let new = match loaded.cubins.get_mut(&crc) {
        Some((known, _)) if known[..] != copy[..] => {
            // The report fires a probe.
            drop(guard);
            errors::report(
                0,
                "cubin",
                &format!(
                    "two different cubins have the checksum {crc:#010x}; the second is not told"
                ),
            );
            return None;
        }
        Some((_, users)) => {
            *users += 1;
            None
        }
        None => {
            loaded.bytes += copy.len() as u64;
            loaded.cubins.insert(crc, (Arc::clone(&copy), 1));
            let block = status::block();
            block.add(Counter::CubinsKept, 1);
            block.add(Counter::CubinBytes, copy.len() as u64);
            Some(copy)
        }
    };
    loaded.modules.entry(module).or_default().push(crc);
    new
}

fn refuse() {
    status::block().add(Counter::CubinsRefused, 1);
    if !CAP_TOLD.swap(true, Ordering::Relaxed) {
        errors::report(
            0,
            "cubin",
            "copies of cubins have reached PARCAGPU_CUBIN_MEMORY_MB; further ones are not told",
        );
    }
}

/// A module is gone; tells of each cubin that no other module has.
pub fn unload(module: Module) {
    let gone = LOADED.with(|loaded| {
        let mut gone = Vec::new();
        for crc in loaded.modules.remove(&module).unwrap_or_default() {
            let Some((_, users)) = loaded.cubins.get_mut(&crc) else {
                continue;
            };
            *users -= 1;
            if *users == 0 {
                gone.extend(loaded.cubins.remove(&crc).map(|(copy, _)| (crc, copy)));
            }
        }
        for (_, copy) in &gone {
            loaded.bytes -= copy.len() as u64;
        }
        gone
    });
    for (crc, copy) in gone.into_iter().flatten() {
        let counters = &status::block().counters;
        counters[Counter::CubinsKept as usize].fetch_sub(1, Ordering::Relaxed);
        counters[Counter::CubinBytes as usize].fetch_sub(copy.len() as u64, Ordering::Relaxed);
        if probes::cubin_unloaded::enabled() {
            probes::cubin_unloaded::fire(crc.into());
        }
        // The copy goes only now.
        drop(copy);
    }
}

/// A module is about to go: from now on its name may stand for another. Its code stays known until
/// [`withdrawn`].
pub fn withdraw(module: Module) -> Option<Leaving> {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let mut guard = LOADED.lock()?;
    let loaded = guard.as_mut()?;
    let cubins = loaded.modules.remove(&module)?;
    let now = Module::Leaving(TURN.fetch_add(1, Ordering::Relaxed));
    loaded.modules.insert(now, cubins);
    Some(Leaving {
        as_it_was: module,
        now,
    })
}

/// What [`withdraw`] began ends: the module is gone, or it stays.
pub fn withdrawn(leaving: Leaving, gone: bool) {
    if gone {
        unload(leaving.now);
        return;
    }
    LOADED.with(|loaded| {
        if let Some(cubins) = loaded.modules.remove(&leaving.now) {
            loaded
                .modules
                .entry(leaving.as_it_was)
                .or_default()
                .extend(cubins);
        }
    });
}

/// Forgets the modules that CUPTI told of.
pub fn forget_cupti() {
    let modules = LOADED.with(|loaded| {
        let modules = loaded.modules.keys().copied();
        let cupti = modules.filter(|module| matches!(module, Module::Cupti(_)));
        cupti.collect::<Vec<Module>>()
    });
    for module in modules.into_iter().flatten() {
        unload(module);
    }
}

/// Tells of everything that is loaded, for a consumer that may have joined.
pub fn replay() {
    let all = LOADED.with(|loaded| loaded.cubins.keys().copied().collect::<Vec<u32>>());
    for crc in all.into_iter().flatten() {
        // Locked for this one: told after its end it would be a copy that is no longer there.
        LOADED.with(|loaded| {
            if let Some((copy, _)) = loaded.cubins.get(&crc) {
                announce(crc, copy);
            }
        });
    }
}

fn announce(crc: u32, copy: &Mmap) {
    if probes::cubin_loaded::enabled() {
        // The bytes are read through /proc, so they need not be resident.
        let address = copy.as_ptr().cast::<c_char>();
        probes::cubin_loaded::fire(crc.into(), address, copy.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::{LOADED, Module, has_handles, is_known, load, unload, withdraw, withdrawn};

    fn users(bytes: &[u8]) -> usize {
        let crc = crc32fast::hash(bytes);
        LOADED
            .with(|loaded| loaded.cubins.get(&crc).map(|(_, users)| *users))
            .unwrap()
            .unwrap_or(0)
    }

    // One test, since there is one registry in a process.
    #[test]
    fn code_is_kept_once_and_until_its_last_module_goes() {
        let code = b"not really a cubin, and nobody cares".repeat(200);
        let (a, b) = (Module::Cupti(1), Module::Handle(0x1000));
        load(a, &code[..], 0, code.len() as u64).unwrap();
        load(b, &code[..], 0, code.len() as u64).unwrap();
        assert_eq!(users(&code), 2);
        assert!(is_known(a) && has_handles());
        unload(a);
        assert_eq!(users(&code), 1);
        assert!(!is_known(a));
        unload(b);
        unload(b);
        assert_eq!(users(&code), 0);
        assert!(!has_handles());
        assert_eq!(LOADED.with(|loaded| loaded.bytes), Some(0));

        // What cannot be read is an error, is not kept, and is not tried again.
        assert!(load(a, &code[..10], 0, 100).is_err());
        assert!(load(a, &code[..], 0, 0).is_err());
        assert!(is_known(a));
        assert_eq!(LOADED.with(|loaded| loaded.cubins.len()), Some(0));
        unload(a);

        // The driver gives a handle that it is letting go to another module at once.
        let (old, new) = (b"the old code".repeat(9), b"the new code".repeat(9));
        load(b, &old[..], 0, old.len() as u64).unwrap();
        let leaving = withdraw(b).unwrap();
        assert!(!is_known(b) && withdraw(b).is_none());
        load(b, &new[..], 0, new.len() as u64).unwrap();
        assert_eq!((users(&old), users(&new)), (1, 1));
        withdrawn(leaving, true);
        assert_eq!((users(&old), users(&new)), (0, 1));
        // One that the driver refuses to let go stays what it is.
        let leaving = withdraw(b).unwrap();
        withdrawn(leaving, false);
        assert!(is_known(b) && users(&new) == 1);
        unload(b);

        for i in 0..1000u32 {
            let bytes = i.to_le_bytes();
            load(Module::Cupti(i), &bytes[..], 0, 4).unwrap();
        }
        for i in 0..1000u32 {
            unload(Module::Cupti(i));
        }
        assert_eq!(LOADED.with(|loaded| loaded.bytes), Some(0));
        assert_eq!(LOADED.with(|loaded| loaded.modules.len()), Some(0));
    }
}
