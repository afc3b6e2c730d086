//! Where modules come from: CUPTI's events, and the images that hooks see.

use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::fatbin;
use super::image::{self, Bad, Kind};
use super::memory::{self, At, Source};
use super::registry::{self, Module};

pub use super::registry::Leaving;
use crate::cupti::sys::ModuleResourceData;
use crate::{errors, session};

/// Modules that CUPTI told of lately, by the last bits of their ids; each id plus one, 0 is none. CUPTI may tell
/// at every launch, on every thread, and the registry has a lock.
static TOLD: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
/// Modules found that were loaded before the subscription.
static EARLIER: AtomicU64 = AtomicU64::new(0);

fn told(id: u32) -> &'static AtomicU32 {
    &TOLD[id as usize % TOLD.len()]
}

/// How many modules CUPTI told of, ever, that were loaded before it was asked.
pub fn earlier_found() -> u64 {
    EARLIER.load(Ordering::Relaxed)
}

/// CUPTI tells of a module that was loaded before we came, at every launch from it.
pub fn on_cupti_profiled(data: &ModuleResourceData) {
    let id = data.module_id;
    if told(id).load(Ordering::Relaxed) != id.wrapping_add(1) && on_cupti_load(data) {
        EARLIER.fetch_add(1, Ordering::Relaxed);
    }
}

/// CUPTI tells of a module that is loaded; whether it is a new one.
pub fn on_cupti_load(data: &ModuleResourceData) -> bool {
    let module = Module::Cupti(data.module_id);
    told(data.module_id).store(data.module_id.wrapping_add(1), Ordering::Relaxed);
    if registry::is_known(module) {
        return false;
    }
    let source = At(data.cubin as u64);
    let len = match data.cubin.is_null() {
        true => Err(Bad::Damaged("CUPTI gives no address")),
        // CUPTI's size is a bound, not a fact.
        false => image::cubin_len(&source).and_then(|len| match len <= data.cubin_size as u64 {
            true => Ok(len),
            false => Err(Bad::Damaged("its headers go past the size CUPTI gives")),
        }),
    };
    let outcome = len.and_then(|len| registry::load(module, &source, 0, len));
    tell(module, outcome);
    true
}

/// CUPTI tells that a module goes.
pub fn on_cupti_unload(data: &ModuleResourceData) {
    registry::unload(Module::Cupti(data.module_id));
    told(data.module_id).store(0, Ordering::Relaxed);
}

/// CUPTI tells us of no unloads any more, and nobody listens: its modules are forgotten.
pub fn forget_cupti() {
    registry::forget_cupti();
    // Last: a callback that is still running may have just met a module there.
    for id in &TOLD {
        id.store(0, Ordering::Relaxed);
    }
}

/// The driver accepted an image in memory.
pub fn on_image(handle: *const c_void, image: *const c_void) {
    let module = Module::Handle(handle as usize);
    tell(module, add(module, &At(image as u64)));
}

/// The driver accepted a file.
///
/// # Safety
/// `file` is null or a terminated string.
pub unsafe fn on_file(handle: *const c_void, file: *const c_char) {
    if file.is_null() {
        return;
    }
    // SAFETY: by the caller's promise.
    let name = unsafe { CStr::from_ptr(file) };
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let module = Module::Handle(handle as usize);
    let outcome = memory::open(path)
        .map_err(Bad::Unreadable)
        .and_then(|file| add(module, &file));
    tell(module, outcome);
}

/// The driver is about to let a handle go; what it stood for, if it is known.
pub fn on_unload(handle: *const c_void) -> Option<Leaving> {
    registry::withdraw(Module::Handle(handle as usize))
}

/// It did, or it refused.
pub fn on_unloaded(leaving: Leaving, done: bool) {
    registry::withdrawn(leaving, done);
}

fn add(module: Module, source: &(impl Source + ?Sized)) -> Result<(), Bad> {
    // A handle is given out again only once its module is gone, which a destroyed context does not tell.
    registry::unload(module);
    match image::kind(source)? {
        // What the driver links first is not what runs.
        Kind::Elf if !image::is_linked(source)? => Ok(()),
        Kind::Elf => {
            let len = image::cubin_len(source)?;
            registry::load(module, source, 0, len)
        }
        Kind::Fatbin => add_fatbin(module, source),
        Kind::FatbinWrapper => add_fatbin(module, &At(fatbin::container(source)?)),
        // PTX, or something the driver unpacks: only CUPTI knows what becomes of it.
        Kind::Other => Ok(()),
    }
}

fn add_fatbin(module: Module, source: &(impl Source + ?Sized)) -> Result<(), Bad> {
    let entries = fatbin::entries(source)?;
    let Some(session) = session::get().filter(|s| !s.config.only_ptx) else {
        return Ok(());
    };
    let gpu = session.driver().and_then(|driver| driver.current_sm());
    let Some(cubin) = gpu.and_then(|gpu| fatbin::chosen(&entries, gpu)) else {
        return Ok(());
    };
    registry::load(module, source, cubin.offset, cubin.len)
}

fn tell(module: Module, outcome: Result<(), Bad>) {
    if let Err(bad) = outcome {
        errors::report(
            0,
            "cubin",
            &format!("the image of a module is not told: {bad}"),
        );
        crate::debug_log!(1, "{module:?}: {bad}");
    }
}
