//! Another injection library behind ours: `PARCAGPU_NVTX_NEXT`.
//!
//! It is initialised once, with a table of slots of our own, whatever the number of clients. A call that
//! it has a function for goes to it after our own work, whether or not somebody listens to us, and outside
//! of our guard. What it returns as a handle is kept beside the one the client gets from us, and
//! handed back to it in later calls. It gets the tables that every NVTX version has; extension modules
//! (payload schemas, counters) are not offered to it.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::collector::read_sized;
use super::sys::{
    Callbacks, Chars, DomainHandle, EventAttributes, GetExportTable, MESSAGE_REGISTERED, Module,
    RangeId, ResourceAttributes, ResourceHandle, SLOTS_MAX, Slot, StringHandle, SyncAttributes,
    TABLE_CALLBACKS, TABLE_VERSION, VersionInfo, Wide,
};
use super::{domains, ranges, strings};

type Functions = [AtomicPtr<c_void>; SLOTS_MAX];

/// What it put into our table, by module and slot.
static FUNCTIONS: [Functions; 7] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS_MAX] }; 7];

/// Its function for a slot; null if it has none.
#[inline(always)]
pub fn function(module: Module, slot: usize) -> *mut c_void {
    FUNCTIONS[module as usize][slot].load(Ordering::Relaxed)
}

struct Offer {
    callbacks: Callbacks,
    version: VersionInfo,
}

static OFFER: Offer = Offer {
    callbacks: Callbacks {
        size: size_of::<Callbacks>(),
        module: Some(offer_module),
    },
    version: VersionInfo {
        size: size_of::<VersionInfo>(),
        version: 3,
        reserved: 0,
        set_tool_version: ignore_version,
    },
};

unsafe extern "C" fn ignore_version(_version: u32) {}

unsafe extern "C" fn offer(table: u32) -> *const c_void {
    match table {
        TABLE_CALLBACKS => (&raw const OFFER.callbacks).cast(),
        TABLE_VERSION => (&raw const OFFER.version).cast(),
        _ => std::ptr::null(),
    }
}

/// As a client's: an entry per slot, entry 0 and the one past the end null. Made anew for each question,
/// since the tool may keep it.
unsafe extern "C" fn offer_module(id: c_int, table: *mut *const Slot, len: *mut u32) -> c_int {
    let Some(module) = Module::ALL.into_iter().find(|m| *m as c_int == id) else {
        return 0;
    };
    let mut slots: Vec<Slot> = FUNCTIONS[module as usize][..module.slots()]
        .iter()
        .map(|function| function.as_ptr().cast::<*const c_void>().cast())
        .collect();
    slots[0] = std::ptr::null_mut();
    slots.push(std::ptr::null_mut());
    // SAFETY: the tool's own variables, or null.
    unsafe {
        if !table.is_null() {
            table.write(slots.leak().as_ptr());
        }
        if !len.is_null() {
            len.write(module.slots() as u32);
        }
    }
    1
}

/// Loads and initialises the next tool. What it does to its environment or output is its own affair.
pub fn load(path: &Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "no file name".to_owned())?;
    // SAFETY: a terminated name. Never closed: its functions are called until the end.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(dl_error());
    }
    // SAFETY: an open handle and a terminated name.
    let start = unsafe { libc::dlsym(handle, c"InitializeInjectionNvtx2".as_ptr()) };
    if start.is_null() {
        return Err(
            "it has no InitializeInjectionNvtx2, so it is no NVTX injection library".to_owned(),
        );
    }
    if start.cast_const() == crate::InitializeInjectionNvtx2 as *const c_void {
        return Err("it is this library itself".to_owned());
    }
    // SAFETY: the function of that name has this type.
    let start = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(GetExportTable) -> c_int>(start)
    };
    // SAFETY: what a client would do.
    if unsafe { start(offer) } == 0 {
        for function in FUNCTIONS.iter().flatten() {
            function.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        return Err("it declined".to_owned());
    }
    Ok(())
}

fn dl_error() -> String {
    // SAFETY: dlerror gives null or a string that lives until the thread's next dl call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "it cannot be loaded".to_owned();
    }
    // SAFETY: as above.
    let message = unsafe { CStr::from_ptr(message) };
    message.to_string_lossy().into_owned()
}

/// An argument as the next tool gets it.
pub trait Pass: Copy {
    /// What has to live during the call.
    type Held;
    /// Prepares it.
    ///
    /// # Safety
    /// Pointers are null or what NVTX's functions take.
    unsafe fn hold(self) -> Self::Held;
    /// The argument.
    fn get(held: &mut Self::Held) -> Self;
}

macro_rules! as_it_is {
    ($($ty:ty),*) => {$(
        impl Pass for $ty {
            type Held = Self;
            unsafe fn hold(self) -> Self {
                self
            }
            fn get(held: &mut Self) -> Self {
                *held
            }
        }
    )*};
}

as_it_is!(u32, c_int, Chars, Wide, *const c_void, ResourceHandle);

impl Pass for DomainHandle {
    type Held = Self;
    unsafe fn hold(self) -> Self {
        domains::theirs(self)
    }
    fn get(held: &mut Self) -> Self {
        *held
    }
}

impl Pass for RangeId {
    type Held = Self;
    unsafe fn hold(self) -> Self {
        ranges::take_theirs(self)
    }
    fn get(held: &mut Self) -> Self {
        *held
    }
}

/// A struct whose message may be a registered string: a copy then, with the next tool's handle.
pub struct Attributes<T> {
    original: *mut T,
    copy: Option<T>,
}

macro_rules! attributes {
    ($($pointer:ty: $ty:ty;)*) => {$(
        impl Pass for $pointer {
            type Held = Attributes<$ty>;
            unsafe fn hold(self) -> Self::Held {
                // SAFETY: the caller's promise.
                let copy = unsafe { read_sized(self as *const $ty) }
                    .filter(|a| a.message_type == MESSAGE_REGISTERED)
                    .map(|mut a| {
                        a.message = strings::theirs(StringHandle(a.message)).0;
                        // What a longer struct has at its end is left out.
                        a.size = a.size.min(size_of::<$ty>() as u16);
                        a
                    });
                Attributes { original: self as *mut $ty, copy }
            }
            fn get(held: &mut Self::Held) -> Self {
                match &mut held.copy {
                    Some(copy) => &raw mut *copy,
                    None => held.original,
                }
            }
        }
    )*};
}

attributes! {
    *const EventAttributes: EventAttributes;
    *mut ResourceAttributes: ResourceAttributes;
    *const SyncAttributes: SyncAttributes;
}
