//! Devices and contexts.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::driver_api;
use crate::error::{
    CAPTURE_UNSUPPORTED, Error, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Outcome,
};
use crate::handle::{Kind, Object};
use crate::hold::Hold;
use crate::stream::{Stream, StreamHandle};
use crate::{export, settings, timeline};

/// What a program sees as the GPU's name.
pub const DEVICE_NAME: &[u8] = b"Simulated GPU";

/// A context and its streams.
pub struct Context {
    /// Counts from 1, as CUPTI's ids.
    pub id: u32,
    /// Device ordinal.
    pub device: i32,
    /// The legacy default stream.
    pub null_stream: &'static Object<Stream>,
    /// Every other stream made in it.
    pub streams: Mutex<Vec<&'static Object<Stream>>>,
    /// Launches so far.
    pub grids: AtomicI64,
    /// Calls that are inside.
    pub hold: Hold,
    next_stream: AtomicU32,
}

impl Kind for Context {
    const MAGIC: u32 = 0x4374_7801;
    const STALE: Error = INVALID_CONTEXT;
}

/// `CUcontext`.
pub type ContextHandle = *mut Object<Context>;

/// CUPTI's id of the default stream, and of the first stream a program makes (seen on hardware).
const NULL_STREAM_ID: u32 = 7;
const FIRST_STREAM_ID: u32 = 13;

static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(1);
/// A device's primary context and how often it is retained.
type Primary = (Option<&'static Object<Context>>, u32);
/// By device.
static PRIMARY: Mutex<Vec<Primary>> = Mutex::new(Vec::new());

const DEPTH: usize = 32;
thread_local! {
    /// The thread's stack of current contexts; null entries are "none".
    static STACK: [Cell<ContextHandle>; DEPTH] = const { [const { Cell::new(std::ptr::null_mut()) }; DEPTH] };
    static TOP: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread's context, if it has a living one.
pub fn current() -> Option<&'static Object<Context>> {
    // SAFETY: only handles made here are put on the stack.
    unsafe { Object::get(STACK.with(|stack| stack[TOP.get()].get())).ok() }
}

/// As [`current`], as a call's precondition.
pub fn required() -> Result<&'static Object<Context>, Error> {
    current().ok_or(INVALID_CONTEXT)
}

fn set_current(context: ContextHandle) {
    STACK.with(|stack| stack[TOP.get()].set(context));
}

fn push(context: ContextHandle) -> Outcome {
    let top = TOP.get() + 1;
    if top == DEPTH {
        return Err(INVALID_VALUE);
    }
    TOP.set(top);
    set_current(context);
    Ok(())
}

impl Context {
    fn create(device: i32) -> &'static Object<Context> {
        let id = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
        let context = Object::publish(Context {
            id,
            device,
            null_stream: Object::publish(Stream::new(NULL_STREAM_ID)),
            streams: Mutex::new(Vec::new()),
            grids: AtomicI64::new(1),
            hold: Hold::new(),
            next_stream: AtomicU32::new(FIRST_STREAM_ID),
        });
        context.null_stream.adopt(context);
        export::resource(
            export::CONTEXT_CREATED,
            context.handle().cast(),
            std::ptr::null_mut(),
            std::ptr::null(),
        );
        context
    }

    /// Makes a stream of it and tells CUPTI.
    pub fn new_stream(this: &'static Object<Context>) -> &'static Object<Stream> {
        let stream = Object::publish(Stream::new(
            this.next_stream.fetch_add(1, Ordering::Relaxed),
        ));
        stream.adopt(this);
        this.streams
            .lock()
            .expect("nobody panics holding it")
            .push(stream);
        export::resource(
            export::STREAM_CREATED,
            this.handle().cast(),
            stream.handle().cast(),
            std::ptr::null(),
        );
        stream
    }

    fn destroy(this: &'static Object<Context>) {
        export::resource(
            export::CONTEXT_DESTROY_STARTING,
            this.handle().cast(),
            std::ptr::null_mut(),
            std::ptr::null(),
        );
        // Told before: a client may end PC sampling of it in that callback.
        let _inside = this.hold.enter(c"cuCtxDestroy");
        timeline::sleep_until(this.ready());
        for stream in this
            .streams
            .lock()
            .expect("nobody panics holding it")
            .drain(..)
        {
            stream.retire();
        }
        crate::module::unload_all(this.id);
        export::context_gone(this.id);
        this.retire();
    }

    fn all_streams(&self) -> Vec<&'static Object<Stream>> {
        let mut streams = self
            .streams
            .lock()
            .expect("nobody panics holding it")
            .clone();
        streams.push(self.null_stream);
        streams
    }

    /// When all its work is done.
    pub fn ready(&self) -> u64 {
        self.all_streams()
            .iter()
            .map(|stream| stream.line.ready())
            .max()
            .unwrap_or(0)
    }
}

fn device(ordinal: i32) -> Outcome {
    if (0..settings::get().devices).contains(&ordinal) {
        Ok(())
    } else {
        Err(INVALID_DEVICE)
    }
}

/// Stores through a caller's out-pointer, refusing null.
///
/// # Safety
///
/// The pointer is null or good for a write, as the driver requires.
pub unsafe fn give<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

fn create(out: *mut ContextHandle, ordinal: i32) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    device(ordinal)?;
    let context = Context::create(ordinal);
    push(context.handle())?;
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, context.handle()) }
}

fn destroy(handle: ContextHandle) -> Outcome {
    // SAFETY: a handle of the driver's, by contract of the call.
    let context = unsafe { Object::get(handle)? };
    Context::destroy(context);
    STACK.with(|stack| {
        if stack[TOP.get()].get() == handle {
            if TOP.get() > 0 {
                TOP.set(TOP.get() - 1);
            } else {
                set_current(std::ptr::null_mut());
            }
        }
    });
    Ok(())
}

fn synchronize(context: &'static Object<Context>) -> Outcome {
    if context
        .all_streams()
        .iter()
        .any(|stream| stream.spoil_capture())
    {
        return Err(CAPTURE_UNSUPPORTED);
    }
    timeline::sleep_until(context.ready());
    export::synchronized(
        export::CONTEXT_SYNCHRONIZED,
        context.handle().cast(),
        std::ptr::null_mut(),
    );
    Ok(())
}

fn primary<R>(ordinal: i32, act: impl FnOnce(&mut Primary) -> R) -> Result<R, Error> {
    device(ordinal)?;
    let mut primary = PRIMARY.lock().expect("nobody panics holding it");
    if primary.len() <= ordinal as usize {
        primary.resize(ordinal as usize + 1, (None, 0));
    }
    Ok(act(&mut primary[ordinal as usize]))
}

fn retain(out: *mut ContextHandle, ordinal: i32) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let existing = primary(ordinal, |entry| {
        entry.1 += 1;
        entry.0
    })?;
    let context = match existing {
        Some(context) => context,
        None => {
            // Made outside the lock: the creation calls back into CUPTI.
            let made = Context::create(ordinal);
            let kept = primary(ordinal, |entry| *entry.0.get_or_insert(made))?;
            if !std::ptr::eq(kept, made) {
                Context::destroy(made);
            }
            kept
        }
    };
    // SAFETY: the caller's out-pointer, checked.
    unsafe { give(out, context.handle()) }
}

fn release(ordinal: i32) -> Outcome {
    let last = primary(ordinal, |entry| {
        if entry.1 == 0 {
            return Err(INVALID_CONTEXT);
        }
        entry.1 -= 1;
        Ok(if entry.1 == 0 { entry.0.take() } else { None })
    })??;
    if let Some(context) = last {
        Context::destroy(context);
    }
    Ok(())
}

fn attribute(which: i32) -> i32 {
    match which {
        1 => 1024,                              // max threads per block
        2 | 3 => 1024,                          // max block dim x, y
        4 => 64,                                // max block dim z
        5 => i32::MAX,                          // max grid dim x
        6 | 7 => 65535,                         // max grid dim y, z
        8 => 49152,                             // max shared memory per block
        10 => 32,                               // warp size
        13 => 1_980_000,                        // clock, kHz
        16 => 132,                              // multiprocessors
        39 => 2048,                             // threads per multiprocessor
        75 => (settings::get().sm / 10) as i32, // compute capability, major
        76 => (settings::get().sm % 10) as i32, // minor
        _ => 1,
    }
}

fn uuid(out: *mut [u8; 16], ordinal: i32) -> Outcome {
    device(ordinal)?;
    // Each process has GPUs of its own, unless it is said otherwise: tests run side by side.
    let mut uuid = *b"simulated-gpu-00";
    uuid[10..14].copy_from_slice(&settings::get().gpu.to_le_bytes());
    uuid[15] += ordinal as u8;
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, uuid) }
}

driver_api! {
    fn cuDeviceGetCount[4] (count: *mut i32) |_call| unsafe { give(count, settings::get().devices) };
    fn cuDeviceGet[3] (out: *mut i32, ordinal: i32) |_call| device(ordinal).and_then(|()| unsafe { give(out, ordinal) });
    fn cuDeviceGetName[5] (name: *mut c_char, length: i32, dev: i32) |_call| {
        if name.is_null() || length <= 0 {
            return Err(INVALID_VALUE);
        }
        device(dev)?;
        let size = DEVICE_NAME.len().min(length as usize - 1);
        unsafe {
            std::ptr::copy_nonoverlapping(DEVICE_NAME.as_ptr(), name.cast(), size);
            *name.add(size) = 0;
        }
        Ok(())
    };
    fn cuDeviceGetUuid[482] (out: *mut [u8; 16], dev: i32) |_call| uuid(out, dev);
    fn cuDeviceGetUuid_v2[647] (out: *mut [u8; 16], dev: i32) |_call| uuid(out, dev);
    fn cuDeviceGetAttribute[9] (out: *mut i32, which: i32, dev: i32) |_call| {
        device(dev)?;
        unsafe { give(out, attribute(which)) }
    };
    fn cuDeviceTotalMem_v2[259] (out: *mut usize, dev: i32) |_call| {
        device(dev)?;
        unsafe { give(out, 1 << 37) }
    };
    fn cuCtxCreate_v2[235] (ctx: *mut ContextHandle, flags: u32, dev: i32) |_call| create(ctx, dev);
    fn cuCtxCreate_v4[757] (ctx: *mut ContextHandle, params: *mut c_void, flags: u32, dev: i32) |_call| create(ctx, dev);
    fn cuCtxDestroy_v2[322] (ctx: ContextHandle) |_call| destroy(ctx);
    fn cuCtxSetCurrent[303] (ctx: ContextHandle) |_call| {
        if !ctx.is_null() {
            unsafe { Object::get(ctx)? };
        }
        set_current(ctx);
        Ok(())
    };
    fn cuCtxGetCurrent[304] (out: *mut ContextHandle) |_call| {
        let handle = current().map_or(std::ptr::null_mut(), Object::handle);
        unsafe { give(out, handle) }
    };
    fn cuCtxPushCurrent_v2[323] (ctx: ContextHandle) |_call| {
        unsafe { Object::get(ctx)? };
        push(ctx)
    };
    fn cuCtxPopCurrent_v2[324] (out: *mut ContextHandle) |_call| {
        let context = required()?;
        if TOP.get() == 0 {
            set_current(std::ptr::null_mut());
        } else {
            TOP.set(TOP.get() - 1);
        }
        if !out.is_null() {
            unsafe { out.write(context.handle()) };
        }
        Ok(())
    };
    fn cuCtxSynchronize[17] () |_call| required().and_then(synchronize);
    fn cuCtxSynchronize_v2[800] (ctx: ContextHandle) |_call| unsafe { Object::get(ctx) }.and_then(synchronize);
    fn cuCtxGetDevice[16] (out: *mut i32) |_call| {
        let context = required()?;
        unsafe { give(out, context.device) }
    };
    fn cuDevicePrimaryCtxRetain[386] (ctx: *mut ContextHandle, dev: i32) |_call| retain(ctx, dev);
    fn cuDevicePrimaryCtxRelease[387] (dev: i32) |_call| release(dev);
    fn cuDevicePrimaryCtxRelease_v2[544] (dev: i32) |_call| release(dev);
    fn cuDevicePrimaryCtxGetState[392] (dev: i32, flags: *mut u32, active: *mut i32) |_call| {
        let on = primary(dev, |entry| i32::from(entry.0.is_some()))?;
        unsafe {
            give(flags, 0)?;
            give(active, on)
        }
    };
}

/// For CUPTI: id and device of a context.
pub unsafe extern "C" fn info(handle: *mut c_void, id: *mut u32, device: *mut u32) -> i32 {
    // SAFETY: CUPTI passes on what its client got from the driver; the out-pointers are CUPTI's.
    unsafe {
        match Object::<Context>::get(handle.cast()) {
            Ok(context) => {
                id.write(context.id);
                device.write(context.device as u32);
                0
            }
            Err(error) => error.0,
        }
    }
}

/// For CUPTI: when a context's work is done.
pub unsafe extern "C" fn ready(handle: *mut c_void) -> u64 {
    // SAFETY: as in `info`.
    unsafe { Object::<Context>::get(handle.cast()) }.map_or(0, |context| context.ready())
}

/// For CUPTI: id of a stream of a context (null: the current one).
pub unsafe extern "C" fn stream_id(
    context: *mut c_void,
    stream: *mut c_void,
    per_thread: i32,
    id: *mut u32,
) -> i32 {
    // SAFETY: as in `info`.
    unsafe {
        let context = if context.is_null() {
            required()
        } else {
            Object::<Context>::get(context.cast())
        };
        let stream = context.and_then(|context| {
            let stream: StreamHandle = stream.cast();
            crate::stream::resolve(context, stream, per_thread != 0)
        });
        match stream {
            Ok(stream) => {
                id.write(stream.id);
                0
            }
            Err(error) => error.0,
        }
    }
}
