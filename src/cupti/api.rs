//! The functions of libcupti that we call, looked up by name in the library that was found.
//!
//! A missing required function makes the whole library unusable; the error names it. Wrappers turn
//! result codes into [`CuptiError`]s.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::call::{CuptiError, call, check};
use super::sys::{
    ACTIVITY_KIND_CONCURRENT_KERNEL, API_VERSION_11_8, BufferCompleteFunc, BufferRequestFunc,
    CUcontext, CUptiResult, CallbackFunc, Domain, SubscriberHandle,
};
use crate::pc::api::Functions;

/// How often a callback that is refused is asked for again.
const INSISTING: u32 = 5;

/// A table of functions of libcupti.
macro_rules! symbols {
    ($table:ident, $names:ident;
     $($(#[$doc:meta])* $field:ident = $name:literal: fn($($ty:ty),*) -> CUptiResult;)*) => {
        /// The functions, all of one libcupti.
        #[derive(Clone, Copy)]
        pub struct $table {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($ty),*) -> CUptiResult,)*
        }

        /// Names of the functions that have to be there.
        pub const $names: &[&str] = &[$($name),*];

        impl $table {
            /// Looks every function up with `find`; the name of the first that is missing otherwise.
            ///
            /// # Safety
            /// `find` gives functions of libcupti by their names.
            pub unsafe fn resolve(
                find: impl Fn(&'static str) -> Option<*mut std::ffi::c_void>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let address = find($name).ok_or($name)?;
                        // SAFETY: the address is that function's, whose signature is the same in
                        // every version we accept.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($ty),*) -> CUptiResult,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

pub(crate) use symbols;

symbols! { Symbols, REQUIRED;
    /// Version of the library.
    get_version = "cuptiGetVersion": fn(*mut u32) -> CUptiResult;
    /// Become the subscriber.
    subscribe = "cuptiSubscribe": fn(*mut SubscriberHandle, CallbackFunc, *mut c_void) -> CUptiResult;
    /// Stop being the subscriber.
    unsubscribe = "cuptiUnsubscribe": fn(SubscriberHandle) -> CUptiResult;
    /// Switch one callback.
    enable_callback = "cuptiEnableCallback": fn(u32, SubscriberHandle, Domain, u32) -> CUptiResult;
    /// Name who provides and takes back activity buffers.
    register_callbacks = "cuptiActivityRegisterCallbacks": fn(BufferRequestFunc, BufferCompleteFunc) -> CUptiResult;
    /// Switch an activity kind on.
    enable = "cuptiActivityEnable": fn(c_int) -> CUptiResult;
    /// Switch an activity kind off.
    disable = "cuptiActivityDisable": fn(c_int) -> CUptiResult;
    /// Step through a buffer.
    get_next_record = "cuptiActivityGetNextRecord": fn(*mut u8, usize, *mut *mut c_void) -> CUptiResult;
    /// Records dropped for want of buffers since the last call.
    get_num_dropped = "cuptiActivityGetNumDroppedRecords": fn(CUcontext, u32, *mut usize) -> CUptiResult;
    /// Device of a context.
    get_device_id = "cuptiGetDeviceId": fn(CUcontext, *mut u32) -> CUptiResult;
    /// Deliver buffers.
    flush_all = "cuptiActivityFlushAll": fn(u32) -> CUptiResult;
    /// Set an attribute.
    set_attribute = "cuptiActivitySetAttribute": fn(c_int, *mut usize, *mut c_void) -> CUptiResult;
}

/// A loaded libcupti. Never unloaded.
pub struct Api {
    symbols: Symbols,
    pc_sampling: Result<Functions, &'static str>,
    /// File it was loaded from.
    pub path: PathBuf,
    /// What `cuptiGetVersion` said.
    pub version: u32,
}

/// Why a library that was found cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// A function is missing.
    MissingSymbol(&'static str),
    /// Older than CUDA 11.8.
    TooOld(u32),
    /// It does not even tell its version.
    Call(CuptiError),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingSymbol(name) => write!(f, "it has no function {name}"),
            Self::TooOld(version) => write!(
                f,
                "its version {version} is older than CUDA 11.8 (version {API_VERSION_11_8})"
            ),
            Self::Call(error) => error.fmt(f),
        }
    }
}

impl Api {
    /// Takes over a library that was loaded.
    ///
    /// # Safety
    /// `handle` is libcupti's, from `dlopen`, and is never closed; libcuda is mapped (some versions
    /// crash without it).
    pub unsafe fn new(handle: *mut c_void, path: PathBuf) -> Result<Self, Unusable> {
        let find = |name: &'static str| {
            let name = CString::new(name).expect("a literal without NUL");
            // SAFETY: the handle is open and the name is terminated.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        // SAFETY: the caller says that it is libcupti.
        let symbols = unsafe { Symbols::resolve(find) }.map_err(Unusable::MissingSymbol)?;
        let mut version = 0;
        // SAFETY: writes one u32.
        let code = unsafe { (symbols.get_version)(&mut version) };
        check("cuptiGetVersion", code).map_err(Unusable::Call)?;
        if version < API_VERSION_11_8 {
            return Err(Unusable::TooOld(version));
        }
        Ok(Self {
            symbols,
            // SAFETY: as above.
            pc_sampling: unsafe { Functions::resolve(find) },
            path,
            version,
        })
    }

    /// The PC Sampling API; the name of a function that this libcupti lacks otherwise.
    pub fn pc_sampling(&self) -> Result<&Functions, &'static str> {
        self.pc_sampling.as_ref().map_err(|name| *name)
    }

    /// Becomes the subscriber; `callback` may be called from any thread until
    /// [`Self::unsubscribe`] returns, and shortly after.
    pub fn subscribe(&self, callback: CallbackFunc) -> Result<SubscriberHandle, CuptiError> {
        let mut handle = SubscriberHandle(std::ptr::null_mut());
        // SAFETY: writes the handle; the callback is a function of ours, which is never unmapped.
        call("cuptiSubscribe", || unsafe {
            (self.symbols.subscribe)(&mut handle, callback, std::ptr::null_mut())
        })
        .map(|()| handle)
    }

    /// Gives the subscription up.
    pub fn unsubscribe(&self, handle: SubscriberHandle) -> Result<(), CuptiError> {
        // SAFETY: CUPTI checks the handle.
        call("cuptiUnsubscribe", || unsafe {
            (self.symbols.unsubscribe)(handle)
        })
    }

    /// Switches one callback on or off.
    pub fn enable_callback(
        &self,
        handle: SubscriberHandle,
        domain: Domain,
        cbid: u32,
        on: bool,
    ) -> Result<(), CuptiError> {
        // SAFETY: CUPTI checks all arguments.
        call("cuptiEnableCallback", || unsafe {
            (self.symbols.enable_callback)(u32::from(on), handle, domain, cbid)
        })
    }

    /// The same on our own thread, where it is asked again for some milliseconds: CUPTI refuses it at times while
    /// contexts come and go (error 1, seen on an H200 with CUDA 13.0).
    pub fn insist_on_callback(
        &self,
        handle: SubscriberHandle,
        domain: Domain,
        cbid: u32,
        on: bool,
    ) -> Result<(), CuptiError> {
        for _ in 0..INSISTING {
            if self.enable_callback(handle, domain, cbid, on).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.enable_callback(handle, domain, cbid, on)
    }

    /// Names our buffer callbacks.
    pub fn register_callbacks(
        &self,
        request: BufferRequestFunc,
        complete: BufferCompleteFunc,
    ) -> Result<(), CuptiError> {
        // SAFETY: both are functions of ours, which is never unmapped.
        call("cuptiActivityRegisterCallbacks", || unsafe {
            (self.symbols.register_callbacks)(request, complete)
        })
    }

    /// Switches kernel activity on.
    pub fn enable_kernels(&self) -> Result<(), CuptiError> {
        // SAFETY: no pointers.
        call("cuptiActivityEnable", || unsafe {
            (self.symbols.enable)(ACTIVITY_KIND_CONCURRENT_KERNEL as c_int)
        })
    }

    /// Switches kernel activity off.
    pub fn disable_kernels(&self) -> Result<(), CuptiError> {
        // SAFETY: no pointers.
        call("cuptiActivityDisable", || unsafe {
            (self.symbols.disable)(ACTIVITY_KIND_CONCURRENT_KERNEL as c_int)
        })
    }

    /// Ordinal of the device that a live context is on.
    pub fn device_of(&self, context: CUcontext) -> Option<u32> {
        let mut device = 0;
        // SAFETY: a context as CUPTI gave it, and a place for its device.
        let outcome = call("cuptiGetDeviceId", || unsafe {
            (self.symbols.get_device_id)(context, &raw mut device)
        });
        outcome.ok().map(|()| device)
    }

    /// Delivers buffers: complete ones, or with `ACTIVITY_FLUSH_FORCED` all. Buffer callbacks may
    /// run inside this call. Must not be called from a callback.
    pub fn flush_all(&self, flag: u32) -> Result<(), CuptiError> {
        // SAFETY: no pointers.
        call("cuptiActivityFlushAll", || unsafe {
            (self.symbols.flush_all)(flag)
        })
    }

    /// Sets an attribute whose value is one byte.
    pub fn set_attribute_u8(&self, attribute: u32, value: u8) -> Result<(), CuptiError> {
        self.set_attribute(attribute, value)
    }

    /// Sets an attribute whose value is a `size_t`.
    pub fn set_attribute_size(&self, attribute: u32, value: usize) -> Result<(), CuptiError> {
        self.set_attribute(attribute, value)
    }

    fn set_attribute<T>(&self, attribute: u32, mut value: T) -> Result<(), CuptiError> {
        let mut size = size_of::<T>();
        // SAFETY: `size` bytes at `value` are readable and writable.
        call("cuptiActivitySetAttribute", || unsafe {
            (self.symbols.set_attribute)(attribute as c_int, &mut size, (&raw mut value).cast())
        })
    }

    /// The record after `record` in a buffer with `valid` bytes of records; `None` at the end.
    ///
    /// # Safety
    /// `buffer` is a completed buffer and `record` null or the last one this call gave for it.
    pub unsafe fn next_record(
        &self,
        buffer: *mut u8,
        valid: usize,
        record: &mut *mut c_void,
    ) -> Result<bool, CuptiError> {
        // SAFETY: by the caller's promise.
        let outcome = call("cuptiActivityGetNextRecord", || unsafe {
            (self.symbols.get_next_record)(buffer, valid, record)
        });
        match outcome {
            Err(error) if error.code == super::sys::CUPTI_ERROR_MAX_LIMIT_REACHED => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Records CUPTI dropped since the last call.
    pub fn num_dropped(&self, context: CUcontext, stream: u32) -> Result<usize, CuptiError> {
        let mut dropped = 0;
        // SAFETY: writes one usize; the context is CUPTI's own word.
        call("cuptiActivityGetNumDroppedRecords", || unsafe {
            (self.symbols.get_num_dropped)(context, stream, &mut dropped)
        })
        .map(|()| dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::{Symbols, Unusable};

    #[test]
    fn a_missing_function_is_named() {
        // SAFETY: nothing is found, so nothing is transmuted.
        let missing = unsafe { Symbols::resolve(|_| None) }.err();
        assert_eq!(missing, Some("cuptiGetVersion"));
        let text = Unusable::MissingSymbol("cuptiSubscribe").to_string();
        assert!(text.contains("cuptiSubscribe"));
    }
}
