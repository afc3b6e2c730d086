//! Streams, captures and events.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::context::{self, Context, ContextHandle, give};
use crate::driver_api;
use crate::error::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, Error, INVALID_VALUE, NOT_READY, Outcome,
};
use crate::export;
use crate::graph::{Graph, GraphHandle};
use crate::handle::{Kind, Object};
use crate::timeline::{self, Timeline};

/// A stream.
pub struct Stream {
    /// CUPTI's id.
    pub id: u32,
    /// Its time.
    pub line: Timeline,
    context: OnceLock<&'static Object<Context>>,
    /// Looked at by every launch; the rest of a capture is under the lock.
    capturing: AtomicBool,
    capture: Mutex<Option<Capture>>,
}

struct Capture {
    graph: &'static Object<Graph>,
    spoiled: bool,
}

impl Kind for Stream {
    const MAGIC: u32 = 0x5374_7202;
}

/// `CUstream`.
pub type StreamHandle = *mut Object<Stream>;

/// Handles with a fixed value.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

impl Stream {
    /// An idle stream; [`adopt`](Stream::adopt) gives it its context.
    pub fn new(id: u32) -> Stream {
        Stream {
            id,
            line: Timeline::new(),
            context: OnceLock::new(),
            capturing: AtomicBool::new(false),
            capture: Mutex::new(None),
        }
    }

    /// Names the context it belongs to, once.
    pub fn adopt(&self, context: &'static Object<Context>) {
        let _ = self.context.set(context);
    }

    /// The context it belongs to.
    pub fn context(&self) -> &'static Object<Context> {
        self.context
            .get()
            .expect("every stream is adopted when it is made")
    }

    /// Runs `act` on the graph being captured; `Ok(None)` when no capture is on.
    pub fn captured<R>(
        &self,
        act: impl FnOnce(&'static Object<Graph>) -> R,
    ) -> Result<Option<R>, Error> {
        if !self.capturing.load(Ordering::Acquire) {
            return Ok(None);
        }
        match &*self.capture.lock().expect("nobody panics holding it") {
            None => Ok(None),
            Some(capture) if capture.spoiled => Err(CAPTURE_INVALIDATED),
            Some(capture) => Ok(Some(act(capture.graph))),
        }
    }

    /// A call that a capture forbids: spoils the capture; true when there was one.
    pub fn spoil_capture(&self) -> bool {
        if !self.capturing.load(Ordering::Acquire) {
            return false;
        }
        match &mut *self.capture.lock().expect("nobody panics holding it") {
            Some(capture) => {
                capture.spoiled = true;
                true
            }
            None => false,
        }
    }
}

thread_local! {
    /// The thread's own default stream, and the context it was made in.
    static OWN: Cell<(ContextHandle, Option<&'static Object<Stream>>)> = const { Cell::new((std::ptr::null_mut(), None)) };
}

/// The stream a handle means; `per_thread` is how the `_ptsz` functions read a null handle.
///
/// # Safety
///
/// The handle is null, one of the fixed values, or one the driver returned.
pub unsafe fn resolve(
    context: &'static Object<Context>,
    handle: StreamHandle,
    per_thread: bool,
) -> Result<&'static Object<Stream>, Error> {
    match handle.addr() {
        LEGACY => Ok(context.null_stream),
        0 if !per_thread => Ok(context.null_stream),
        0 | PER_THREAD => {
            let (made_in, stream) = OWN.get();
            if let Some(stream) = stream
                && made_in == context.handle()
                && stream.alive()
            {
                return Ok(stream);
            }
            let stream = Context::new_stream(context);
            OWN.set((context.handle(), Some(stream)));
            Ok(stream)
        }
        // SAFETY: the caller's promise.
        _ => unsafe { Object::get(handle) },
    }
}

fn current(handle: StreamHandle, per_thread: bool) -> Result<&'static Object<Stream>, Error> {
    let context = context::required()?;
    // SAFETY: the caller of the API passes a handle of ours.
    unsafe { resolve(context, handle, per_thread) }
}

fn create(out: *mut StreamHandle) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let stream = Context::new_stream(context::required()?);
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, stream.handle()) }
}

fn destroy(handle: StreamHandle) -> Outcome {
    if matches!(handle.addr(), LEGACY | PER_THREAD) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a handle of the driver's, by contract of the call.
    let stream = unsafe { Object::get(handle)? };
    let context = stream.context();
    export::resource(
        export::STREAM_DESTROY_STARTING,
        context.handle().cast(),
        handle.cast(),
        std::ptr::null(),
    );
    stream.retire();
    Ok(())
}

fn synchronize(handle: StreamHandle, per_thread: bool) -> Outcome {
    let stream = current(handle, per_thread)?;
    if stream.spoil_capture() {
        return Err(CAPTURE_UNSUPPORTED);
    }
    timeline::sleep_until(stream.line.ready());
    export::synchronized(
        export::STREAM_SYNCHRONIZED,
        stream.context().handle().cast(),
        stream.handle().cast(),
    );
    Ok(())
}

fn query(handle: StreamHandle, per_thread: bool) -> Outcome {
    let stream = current(handle, per_thread)?;
    if stream.spoil_capture() {
        return Err(CAPTURE_UNSUPPORTED);
    }
    if stream.line.ready() <= timeline::now() {
        Ok(())
    } else {
        Err(NOT_READY)
    }
}

fn begin_capture(handle: StreamHandle, mode: u32, per_thread: bool) -> Outcome {
    if mode > 2 {
        return Err(INVALID_VALUE);
    }
    let stream = current(handle, per_thread)?;
    if std::ptr::eq(stream, stream.context().null_stream) {
        return Err(CAPTURE_UNSUPPORTED);
    }
    let mut capture = stream.capture.lock().expect("nobody panics holding it");
    if capture.is_some() {
        return Err(CAPTURE_UNSUPPORTED);
    }
    *capture = Some(Capture {
        graph: Graph::create(),
        spoiled: false,
    });
    stream.capturing.store(true, Ordering::Release);
    Ok(())
}

fn end_capture(handle: StreamHandle, out: *mut GraphHandle, per_thread: bool) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let stream = current(handle, per_thread)?;
    let mut capture = stream.capture.lock().expect("nobody panics holding it");
    let capture = capture.take().ok_or(INVALID_VALUE)?;
    stream.capturing.store(false, Ordering::Release);
    let graph = if capture.spoiled {
        std::ptr::null_mut()
    } else {
        capture.graph.handle()
    };
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, graph)? };
    if capture.spoiled {
        Err(CAPTURE_INVALIDATED)
    } else {
        Ok(())
    }
}

fn capture_status(handle: StreamHandle, out: *mut u32, per_thread: bool) -> Outcome {
    let stream = current(handle, per_thread)?;
    let status = match &*stream.capture.lock().expect("nobody panics holding it") {
        None => 0,
        Some(capture) if capture.spoiled => 2,
        Some(_) => 1,
    };
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, status) }
}

/// An event: the time at which what came before it is done.
pub struct Event {
    time: AtomicU64,
}

impl Kind for Event {
    const MAGIC: u32 = 0x4576_7403;
}

/// `CUevent`.
pub type EventHandle = *mut Object<Event>;

fn event(handle: EventHandle) -> Result<&'static Object<Event>, Error> {
    // SAFETY: a handle of the driver's, by contract of every event call.
    unsafe { Object::get(handle) }
}

fn record(handle: EventHandle, stream: StreamHandle, per_thread: bool) -> Outcome {
    let event = event(handle)?;
    let stream = current(stream, per_thread)?;
    event
        .time
        .store(stream.line.ready().max(timeline::now()), Ordering::Release);
    Ok(())
}

fn elapsed(out: *mut f32, start: EventHandle, end: EventHandle) -> Outcome {
    let (start, end) = (
        event(start)?.time.load(Ordering::Acquire),
        event(end)?.time.load(Ordering::Acquire),
    );
    if start == 0 || end == 0 {
        return Err(crate::error::INVALID_HANDLE);
    }
    if start.max(end) > timeline::now() {
        return Err(NOT_READY);
    }
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, (end as f64 - start as f64) as f32 / 1e6) }
}

driver_api! {
    fn cuStreamCreate[124] (out: *mut StreamHandle, flags: u32) |_call| create(out);
    fn cuStreamCreateWithPriority[367] (out: *mut StreamHandle, flags: u32, priority: i32) |_call| create(out);
    fn cuStreamDestroy_v2[326] (stream: StreamHandle) |_call| destroy(stream);
    fn cuStreamSynchronize[126] (stream: StreamHandle) |_call| synchronize(stream, false);
    fn cuStreamSynchronize_ptsz[440] (stream: StreamHandle) |_call| synchronize(stream, true);
    fn cuStreamQuery[125] (stream: StreamHandle) |_call| query(stream, false);
    fn cuStreamQuery_ptsz[439] (stream: StreamHandle) |_call| query(stream, true);
    fn cuStreamGetCtx[483] (stream: StreamHandle, out: *mut ContextHandle) |_call| {
        let stream = current(stream, false)?;
        unsafe { give(out, stream.context().handle()) }
    };
    fn cuStreamWaitEvent[295] (stream: StreamHandle, until: EventHandle, flags: u32) |_call| {
        let until = event(until)?;
        current(stream, false)?.line.not_before(until.time.load(Ordering::Acquire));
        Ok(())
    };
    fn cuStreamBeginCapture_v2[539] (stream: StreamHandle, mode: u32) |_call| begin_capture(stream, mode, false);
    fn cuStreamBeginCapture_v2_ptsz[540] (stream: StreamHandle, mode: u32) |_call| begin_capture(stream, mode, true);
    fn cuStreamEndCapture[497] (stream: StreamHandle, graph: *mut GraphHandle) |_call| end_capture(stream, graph, false);
    fn cuStreamEndCapture_ptsz[498] (stream: StreamHandle, graph: *mut GraphHandle) |_call| end_capture(stream, graph, true);
    fn cuStreamIsCapturing[499] (stream: StreamHandle, status: *mut u32) |_call| capture_status(stream, status, false);
    fn cuStreamIsCapturing_ptsz[500] (stream: StreamHandle, status: *mut u32) |_call| capture_status(stream, status, true);
    fn cuEventCreate[118] (out: *mut EventHandle, flags: u32) |_call| {
        context::required()?;
        unsafe { give(out, Object::publish(Event { time: AtomicU64::new(0) }).handle()) }
    };
    fn cuEventDestroy_v2[325] (handle: EventHandle) |_call| event(handle).map(|event| { event.retire(); });
    fn cuEventRecord[119] (handle: EventHandle, stream: StreamHandle) |_call| record(handle, stream, false);
    fn cuEventRecord_ptsz[441] (handle: EventHandle, stream: StreamHandle) |_call| record(handle, stream, true);
    fn cuEventSynchronize[121] (handle: EventHandle) |_call| {
        timeline::sleep_until(event(handle)?.time.load(Ordering::Acquire));
        Ok(())
    };
    fn cuEventQuery[120] (handle: EventHandle) |_call| {
        if event(handle)?.time.load(Ordering::Acquire) <= timeline::now() { Ok(()) } else { Err(NOT_READY) }
    };
    fn cuEventElapsedTime[123] (out: *mut f32, start: EventHandle, end: EventHandle) |_call| elapsed(out, start, end);
    fn cuEventElapsedTime_v2[780] (out: *mut f32, start: EventHandle, end: EventHandle) |_call| elapsed(out, start, end);
}
