//! One function per slot: our own work, then the next tool's, then a result for the program.
//!
//! Slots for which we have nothing to do are filled only when the next tool has a function for them; with
//! its own function where no argument is a handle of ours.

use std::ffi::{c_int, c_void};

use super::collector::{self, Kind, Nothing};
use super::sys::{
    Chars, DomainHandle, EventAttributes, Module, NO_PUSH_POP_TRACKING, RangeId,
    ResourceAttributes, ResourceHandle, StringHandle, SyncAttributes, Wide,
};
use super::{domains, names, naming, next, ranges, strings};

type Attributes = *const EventAttributes;
type Pointer = *const c_void;

const DEFAULT: DomainHandle = DomainHandle(0);
const NO_RANGE: RangeId = RangeId(0);

/// The next tool's call: `None` when it has no function for the slot.
macro_rules! forward {
    ($module:ident, $slot:literal, ($($arg:ident: $ty:ty),*) -> $ret:ty) => {{
        let function = next::function(Module::$module, $slot);
        if function.is_null() {
            None
        } else {
            // SAFETY: what it put into this slot has the slot's type.
            let function = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(function)
            };
            // SAFETY: the program's own arguments, which the client passes on unchecked.
            $(let mut $arg = unsafe { next::Pass::hold($arg) };)*
            // SAFETY: the program's own call.
            Some(unsafe { function($(next::Pass::get(&mut $arg)),*) })
        }
    }};
}

/// How our result and the next tool's become the program's.
mod result {
    use super::{
        DomainHandle, NO_PUSH_POP_TRACKING, RangeId, ResourceHandle, StringHandle, c_int, domains,
        ranges, strings,
    };

    pub fn none(_ours: (), _theirs: Option<()>) {}

    pub fn level(_ours: (), theirs: Option<c_int>) -> c_int {
        theirs.unwrap_or(NO_PUSH_POP_TRACKING)
    }

    pub fn range(ours: RangeId, theirs: Option<RangeId>) -> RangeId {
        if let Some(theirs) = theirs {
            ranges::keep_theirs(ours, theirs);
        }
        ours
    }

    pub fn domain(ours: DomainHandle, theirs: Option<DomainHandle>) -> DomainHandle {
        if let Some(theirs) = theirs {
            domains::keep_theirs(ours, theirs);
        }
        ours
    }

    pub fn string(ours: StringHandle, theirs: Option<StringHandle>) -> StringHandle {
        if let Some(theirs) = theirs {
            strings::keep_theirs(ours, theirs);
        }
        ours
    }

    /// Nothing of ours hangs on a resource, so the program gets the next tool's handle.
    pub fn resource(ours: ResourceHandle, theirs: Option<ResourceHandle>) -> ResourceHandle {
        theirs.filter(|theirs| theirs.0 != 0).unwrap_or(ours)
    }

    pub fn pointer(_ours: (), theirs: Option<super::Pointer>) -> super::Pointer {
        theirs.unwrap_or(std::ptr::null())
    }
}

macro_rules! slots {
    ($($served:ident $module:ident $slot:literal
       $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $result:ident: $ours:expr;)*) => {
        $(
            unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: the program's own arguments, which the client passes on unchecked.
                #[allow(unused_unsafe, reason = "not every slot has pointers")]
                let ours = unsafe { $ours };
                let theirs = forward!($module, $slot, ($($arg: $ty),*) -> $ret);
                result::$result(ours, theirs)
            }
        )*

        /// The function for a slot: ours, or the next tool's; `None` where neither has anything to do.
        pub fn function(module: Module, slot: usize) -> Option<Pointer> {
            let theirs = next::function(module, slot).cast_const();
            match (module, slot) {
                $((Module::$module, $slot) => served!($served, theirs, $name),)*
                _ => (!theirs.is_null()).then_some(theirs),
            }
        }
    };
}

/// `always`: we have work of our own. `passed`: it takes a handle of ours.
macro_rules! served {
    (always, $theirs:ident, $name:ident) => {
        Some($name as Pointer)
    };
    (passed, $theirs:ident, $name:ident) => {
        (!$theirs.is_null()).then_some($name as Pointer)
    };
}

slots! {
    always Core 1 mark_ex(e: Attributes) -> (), none: collector::event(Kind::Mark, DEFAULT, NO_RANGE, e);
    always Core 2 mark_a(text: Chars) -> (), none: collector::event(Kind::Mark, DEFAULT, NO_RANGE, text);
    always Core 3 mark_w(text: Wide) -> (), none: collector::event(Kind::Mark, DEFAULT, NO_RANGE, text);
    always Core 4 start_ex(e: Attributes) -> RangeId, range: start(DEFAULT, e);
    always Core 5 start_a(text: Chars) -> RangeId, range: start(DEFAULT, text);
    always Core 6 start_w(text: Wide) -> RangeId, range: start(DEFAULT, text);
    always Core 7 end(id: RangeId) -> (), none: collector::event(Kind::End, DEFAULT, id, Nothing);
    always Core 8 push_ex(e: Attributes) -> c_int, level: collector::event(Kind::Push, DEFAULT, NO_RANGE, e);
    always Core 9 push_a(text: Chars) -> c_int, level: collector::event(Kind::Push, DEFAULT, NO_RANGE, text);
    always Core 10 push_w(text: Wide) -> c_int, level: collector::event(Kind::Push, DEFAULT, NO_RANGE, text);
    always Core 11 pop() -> c_int, level: collector::event(Kind::Pop, DEFAULT, NO_RANGE, Nothing);
    always Core 14 name_thread_a(tid: u32, text: Chars) -> (), none: naming::name(names::Kind::Thread, tid.into(), text);
    always Core 15 name_thread_w(tid: u32, text: Wide) -> (), none: naming::name(names::Kind::Thread, tid.into(), text);

    always Cuda 1 name_device_a(device: c_int, text: Chars) -> (), none: naming::name(names::Kind::Device, ordinal(device), text);
    always Cuda 2 name_device_w(device: c_int, text: Wide) -> (), none: naming::name(names::Kind::Device, ordinal(device), text);
    always Cuda 5 name_stream_a(stream: Pointer, text: Chars) -> (), none: naming::name(names::Kind::Stream, stream as u64, text);
    always Cuda 6 name_stream_w(stream: Pointer, text: Wide) -> (), none: naming::name(names::Kind::Stream, stream as u64, text);

    always CudaRt 1 name_rt_device_a(device: c_int, text: Chars) -> (), none: naming::name(names::Kind::Device, ordinal(device), text);
    always CudaRt 2 name_rt_device_w(device: c_int, text: Wide) -> (), none: naming::name(names::Kind::Device, ordinal(device), text);
    always CudaRt 3 name_rt_stream_a(stream: Pointer, text: Chars) -> (), none: naming::name(names::Kind::Stream, stream as u64, text);
    always CudaRt 4 name_rt_stream_w(stream: Pointer, text: Wide) -> (), none: naming::name(names::Kind::Stream, stream as u64, text);

    always Core2 1 domain_mark_ex(d: DomainHandle, e: Attributes) -> (), none: collector::event(Kind::Mark, d, NO_RANGE, e);
    always Core2 2 domain_start_ex(d: DomainHandle, e: Attributes) -> RangeId, range: start(d, e);
    always Core2 3 domain_end(d: DomainHandle, id: RangeId) -> (), none: collector::event(Kind::End, d, id, Nothing);
    always Core2 4 domain_push_ex(d: DomainHandle, e: Attributes) -> c_int, level: collector::event(Kind::Push, d, NO_RANGE, e);
    always Core2 5 domain_pop(d: DomainHandle) -> c_int, level: collector::event(Kind::Pop, d, NO_RANGE, Nothing);
    always Core2 6 resource_create(d: DomainHandle, attributes: *mut ResourceAttributes) -> ResourceHandle, resource: resource(attributes);
    passed Core2 8 domain_category_a(d: DomainHandle, category: u32, text: Chars) -> (), none: ();
    passed Core2 9 domain_category_w(d: DomainHandle, category: u32, text: Wide) -> (), none: ();
    always Core2 10 register_a(d: DomainHandle, text: Chars) -> StringHandle, string: register(text);
    always Core2 11 register_w(d: DomainHandle, text: Wide) -> StringHandle, string: register(text);
    always Core2 12 domain_create_a(text: Chars) -> DomainHandle, domain: create(text);
    always Core2 13 domain_create_w(text: Wide) -> DomainHandle, domain: create(text);
    passed Core2 14 domain_destroy(d: DomainHandle) -> (), none: ();

    passed Sync 1 sync_create(d: DomainHandle, attributes: *const SyncAttributes) -> Pointer, pointer: ();
}

fn ordinal(device: c_int) -> u64 {
    u64::from(device.cast_unsigned())
}

/// # Safety
/// As for [`collector::event`].
unsafe fn start(domain: DomainHandle, what: impl collector::Describe) -> RangeId {
    let id = ranges::fresh();
    // SAFETY: the caller's promise.
    unsafe { collector::event(Kind::Start, domain, id, what) };
    id
}

/// # Safety
/// As for [`collector::event`].
unsafe fn register(text: impl collector::Describe) -> StringHandle {
    // SAFETY: the caller's promise.
    unsafe { naming::with_text(StringHandle(0), text, strings::register) }
}

/// # Safety
/// As for [`collector::event`].
unsafe fn create(text: impl collector::Describe) -> DomainHandle {
    // SAFETY: the caller's promise.
    unsafe { naming::with_text(DEFAULT, text, domains::create) }
}

/// A resource of ours is a number that nothing hangs on.
///
/// # Safety
/// As for [`collector::event`].
unsafe fn resource(attributes: *mut ResourceAttributes) -> ResourceHandle {
    // SAFETY: the caller's promise.
    unsafe { naming::resource(attributes) };
    ResourceHandle(0x0d0c_0000_0000_0000 | (ranges::fresh().0 & 0xffff_ffff))
}
