//! Preparing one context, and taking it down when it is destroyed.

use std::collections::HashMap;
use std::sync::Mutex;

use parcagpu_abi::pc_sample::STALL_REASON_SLOTS;

use super::api::Functions;
use super::drain::Records;
use super::metadata::{self, GpuConfig};
use super::sampling::Wanted;
use super::sys::{
    ATTRIBUTE_COLLECTION_MODE, ATTRIBUTE_DATA_BUFFER, ATTRIBUTE_HARDWARE_BUFFER, ATTRIBUTE_PERIOD,
    ATTRIBUTE_SCRATCH, ATTRIBUTE_START_STOP, COLLECTION_CONTINUOUS, COLLECTION_SERIALIZED,
    ConfigurationInfo, Data,
};
use super::{crc, refusal};
use crate::config::PcSamplingMode;
use crate::cupti::api::Api;
use crate::cupti::call::CuptiError;
use crate::cupti::driver::Driver;
use crate::cupti::sys::CUcontext;

/// CUPTI's memory for parsed records: some 88,000 PCs with every reason, by its documentation's figure.
const SCRATCH: u64 = 16 << 20;
/// Records that CUPTI can leave behind when sampling of a context ends.
const LEFT_BEHIND: usize = 1024;
/// In serialized mode CUPTI keeps the records of a window there, each with its launch's id; what does not fit is
/// added up without ids (measured with CUDA 13.0). A GPU of 132 SMs gives some 25,000 samples in 100 ms at a
/// period of 2^20 cycles.
const OF_A_WINDOW: usize = 32_768;

/// Buffers that CUPTI knows, by context. The lock is held for bookkeeping only.
static LEFT: Mutex<Option<HashMap<usize, Box<Records>>>> = Mutex::new(None);

fn info(attribute: u32, value: u64) -> ConfigurationInfo {
    ConfigurationInfo {
        attribute,
        status: 0,
        data: [value, 0, 0],
    }
}

/// Why a context is not sampled.
#[derive(Debug)]
pub struct Refusal {
    /// What CUPTI said.
    pub error: CuptiError,
    /// CUPTI had begun with the context.
    pub begun: bool,
}

/// Prepares a context; sampling is on afterwards, or can be started. Gives the number of stall reasons.
pub fn set_up(
    api: &Api,
    functions: &Functions,
    driver: Option<&Driver>,
    context: CUcontext,
    wanted: &Wanted,
) -> Result<usize, Refusal> {
    crc::register(functions);
    let begun = false;
    functions
        .enable(context)
        .map_err(|error| Refusal { error, begun })?;
    let begun = true;
    let refused = |error| Refusal { error, begun };
    let reasons = functions.stall_reasons(context).map_err(refused)?;
    let slots = reasons.len().max(STALL_REASON_SLOTS);
    let serialized = wanted.mode == PcSamplingMode::Serialized;
    let room = if serialized { OF_A_WINDOW } else { LEFT_BEHIND };
    let mut left = Box::new(Records::new(room, slots));
    let mode = if serialized {
        COLLECTION_SERIALIZED
    } else {
        COLLECTION_CONTINUOUS
    };
    let buffer: *mut Data = left.empty();
    let mut infos = vec![
        info(ATTRIBUTE_DATA_BUFFER, buffer as u64),
        info(ATTRIBUTE_COLLECTION_MODE, mode),
        info(ATTRIBUTE_START_STOP, serialized.into()),
        info(ATTRIBUTE_SCRATCH, SCRATCH),
    ];
    if wanted.factor != 0 {
        infos.push(info(ATTRIBUTE_PERIOD, wanted.factor.into()));
    }
    if wanted.hardware_buffer != 0 {
        infos.push(info(ATTRIBUTE_HARDWARE_BUFFER, wanted.hardware_buffer));
    }
    let configured = configure(functions, context, &mut infos);
    // From here on CUPTI may know the buffer, also where it refused other attributes.
    keep(context, left);
    configured.map_err(refused)?;
    metadata::keep_reasons(&reasons);
    publish(api, functions, driver, context, wanted);
    Ok(slots)
}

/// Keeps a buffer that CUPTI knows until its context is taken down.
fn keep(context: CUcontext, left: Box<Records>) {
    let mut buffers = LEFT.lock().unwrap_or_else(|e| e.into_inner());
    let earlier = buffers
        .get_or_insert_with(HashMap::new)
        .insert(context.0.addr(), left);
    // One of an earlier context at the same address, whose end nobody told, may still be known to CUPTI.
    std::mem::forget(earlier);
}

/// Sets the attributes. What the user chose and CUPTI refuses is told and left to CUPTI.
fn configure(
    functions: &Functions,
    context: CUcontext,
    infos: &mut Vec<ConfigurationInfo>,
) -> Result<(), CuptiError> {
    // SAFETY: the data buffer lives on the heap until the context is gone; the others are numbers.
    let Err(error) = (unsafe { functions.configure(context, infos) }) else {
        return Ok(());
    };
    let before = infos.len();
    infos.retain(|info| {
        let choice = match info.attribute {
            ATTRIBUTE_PERIOD => "PARCAGPU_SAMPLING_FACTOR",
            ATTRIBUTE_HARDWARE_BUFFER => "PARCAGPU_PC_HW_BUFFER_MB",
            _ => return true,
        };
        if info.status == 0 {
            return true;
        }
        let shown = match info.attribute {
            ATTRIBUTE_HARDWARE_BUFFER => info.data[0] >> 20,
            _ => info.data[0],
        };
        error.tell_as(
            refusal::COMPONENT,
            &format!("CUPTI does not accept {choice}={shown} on this GPU; its own choice is used"),
        );
        false
    });
    if infos.len() == before {
        return Err(error);
    }
    // SAFETY: as above.
    unsafe { functions.configure(context, infos) }
}

/// Tells what turns samples of this context into time.
fn publish(
    api: &Api,
    functions: &Functions,
    driver: Option<&Driver>,
    context: CUcontext,
    wanted: &Wanted,
) {
    let factor = match wanted.factor {
        0 => functions.attribute(context, ATTRIBUTE_PERIOD),
        _ => functions
            .attribute(context, ATTRIBUTE_PERIOD)
            .or(Ok(wanted.factor.into())),
    };
    let Ok(factor) = factor.inspect_err(|error| refusal::tell(*error)) else {
        return;
    };
    let Some(device) = api.device_of(context) else {
        return;
    };
    let Some((clock_khz, sm_count)) = driver.and_then(|driver| driver.speed(device)) else {
        return;
    };
    metadata::keep_config(GpuConfig {
        device,
        factor: factor as u32,
        clock_khz,
        sm_count,
    });
}

/// Ends sampling of a context that is being destroyed, on the thread that does it: nobody else may use it
/// any more. Gives the records that CUPTI left behind.
pub fn take_down(
    functions: &Functions,
    context: CUcontext,
) -> Result<Option<Box<Records>>, CuptiError> {
    let ended = functions.disable(context);
    let mut buffers = LEFT.lock().unwrap_or_else(|e| e.into_inner());
    let records = buffers
        .as_mut()
        .and_then(|all| all.remove(&context.0.addr()));
    if ended.is_err() {
        // CUPTI may still know it.
        std::mem::forget(records);
        return ended.map(|()| None);
    }
    Ok(records)
}
