//! Versions, errors, ids, clocks and the end.

use std::ffi::{c_char, c_void};

use crate::api::{self, INVALID_CONTEXT, INVALID_PARAMETER, INVALID_STREAM, SUCCESS, driver};
use crate::cupti_api;
use crate::{activity, callbacks, names, pc_sampling, settings};
use std::sync::atomic::Ordering;

fn context_info(context: *mut c_void) -> Option<(u32, u32)> {
    let (mut id, mut device) = (0, 0);
    // SAFETY: the client's handle, checked by the driver; our own locals.
    let result = unsafe { (driver()?.context_info)(context, &raw mut id, &raw mut device) };
    (result == 0).then_some((id, device))
}

cupti_api! {
    /// The API version.
    fn cuptiGetVersion[driverless](version: *mut u32) {
        if version.is_null() {
            return INVALID_PARAMETER;
        }
        unsafe { version.write(settings::get().version) };
        SUCCESS
    }

    /// Name of a result.
    fn cuptiGetResultString[driverless](result: i32, text: *mut *const c_char) {
        match (text.is_null(), names::result(result)) {
            (false, Some(name)) => {
                unsafe { text.write(name.as_ptr()) };
                SUCCESS
            }
            _ => INVALID_PARAMETER,
        }
    }

    /// Text of a result; the name again.
    fn cuptiGetErrorMessage[driverless](result: i32, text: *mut *const c_char) {
        match (text.is_null(), names::result(result)) {
            (false, Some(name)) => {
                unsafe { text.write(name.as_ptr()) };
                SUCCESS
            }
            _ => INVALID_PARAMETER,
        }
    }

    /// The calling thread's last failure.
    fn cuptiGetLastError[driverless]() { api::take_last_error() }

    /// Now, on the clock of the records.
    fn cuptiGetTimestamp(timestamp: *mut u64) {
        match (timestamp.is_null(), driver()) {
            (false, Some(driver)) => {
                unsafe { timestamp.write((driver.now)()) };
                SUCCESS
            }
            _ => INVALID_PARAMETER,
        }
    }

    /// Id of a context.
    fn cuptiGetContextId(context: *mut c_void, id: *mut u32) {
        match (id.is_null(), context_info(context)) {
            (true, _) => INVALID_PARAMETER,
            (false, None) => INVALID_CONTEXT,
            (false, Some(info)) => {
                unsafe { id.write(info.0) };
                SUCCESS
            }
        }
    }

    /// Device of a context.
    fn cuptiGetDeviceId(context: *mut c_void, id: *mut u32) {
        match (id.is_null(), context_info(context)) {
            (true, _) => INVALID_PARAMETER,
            (false, None) => INVALID_CONTEXT,
            (false, Some(info)) => {
                unsafe { id.write(info.1) };
                SUCCESS
            }
        }
    }

    /// Id of a stream.
    fn cuptiGetStreamIdEx(context: *mut c_void, stream: *mut c_void, per_thread: u8, id: *mut u32) {
        let Some(driver) = driver() else { return INVALID_PARAMETER };
        if id.is_null() {
            return INVALID_PARAMETER;
        }
        let result = unsafe { (driver.stream_id)(context, stream, i32::from(per_thread), id) };
        if result == 0 { SUCCESS } else { INVALID_STREAM }
    }

    /// Detaches CUPTI. As measured: graph launches fail from now on.
    fn cuptiFinalize() {
        activity::disable_all();
        pc_sampling::end_all();
        activity::flush(true);
        callbacks::detach();
        if let Some(driver) = driver() {
            driver.graphs_broken.store(1, Ordering::Release);
        }
        api::finalize();
        SUCCESS
    }
}
