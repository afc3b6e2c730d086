//! PC sampling: configuration and the table of stall reasons. No samples are made yet: `GetData`
//! returns none.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use crate::api::{INVALID_CONTEXT, INVALID_OPERATION, INVALID_PARAMETER, SUCCESS, driver};
use crate::cupti_api;
use crate::settings;

/// Bytes of one name in the client's table.
const STRING_SIZE: usize = 128;

/// `CUpti_PCSampling{Enable,Disable,Start,Stop}Params`.
#[repr(C)]
pub struct ContextParams {
    size: usize,
    private: *mut c_void,
    context: *mut c_void,
}

/// `CUpti_PCSamplingGetDataParams`.
#[repr(C)]
pub struct GetDataParams {
    head: ContextParams,
    data: *mut SamplingData,
}

/// `CUpti_PCSamplingData`.
#[repr(C)]
pub struct SamplingData {
    size: usize,
    capacity: usize,
    total_samples: u64,
    dropped_samples: u64,
    total_pcs: usize,
    remaining_pcs: usize,
    range_id: u64,
    pcs: *mut c_void,
    foreign_samples: u64,
    buffer_full: u8,
}

/// `CUpti_PCSamplingConfigurationInfo`.
#[repr(C)]
pub struct ConfigurationInfo {
    attribute: u32,
    status: i32,
    data: [u64; 3],
}

/// `CUpti_PCSamplingConfigurationInfoParams`.
#[repr(C)]
pub struct ConfigurationParams {
    head: ContextParams,
    count: usize,
    infos: *mut ConfigurationInfo,
}

/// `CUpti_PCSamplingGetNumStallReasonsParams`.
#[repr(C)]
pub struct NumReasonsParams {
    head: ContextParams,
    count: *mut usize,
}

/// `CUpti_PCSamplingGetStallReasonsParams`.
#[repr(C)]
pub struct ReasonsParams {
    head: ContextParams,
    count: usize,
    indices: *mut u32,
    names: *mut *mut u8,
}

/// `CUpti_GetCubinCrcParams`.
#[repr(C)]
pub struct CubinCrcParams {
    size: usize,
    cubin_size: usize,
    cubin: *const u8,
    crc: u64,
}

const _: () = {
    assert!(size_of::<ContextParams>() == 24);
    assert!(size_of::<GetDataParams>() == 32);
    assert!(size_of::<SamplingData>() == 80);
    assert!(size_of::<ConfigurationInfo>() == 32);
    assert!(size_of::<ConfigurationParams>() == 40);
    assert!(size_of::<NumReasonsParams>() == 32);
    assert!(size_of::<ReasonsParams>() == 48);
    assert!(size_of::<CubinCrcParams>() == 32);
};

/// `CUpti_ComputeCrcCallbackFunc`.
pub type ComputeCrc = Option<unsafe extern "C" fn(*const c_void, usize, *mut u64)>;

static CRC: Mutex<ComputeCrc> = Mutex::new(None);

struct Sampling {
    started: bool,
    attributes: [u64; 10],
}

/// Sampling contexts by context id.
static CONTEXTS: Mutex<Option<HashMap<u32, Sampling>>> = Mutex::new(None);

/// Attribute numbers that exist: 1..=9. Defaults as documented; the period is CUPTI's choice on a
/// large GPU, 2^11.
const DEFAULTS: [u64; 10] = [0, 11, 0, 1 << 20, 512 << 20, 1, 0, 1, 0, 100];
const ATTRIBUTE_PERIOD: u32 = 1;

fn context_id(head: &ContextParams, size: usize) -> Result<u32, i32> {
    if head.size != size || !head.private.is_null() {
        return Err(INVALID_PARAMETER);
    }
    let (mut id, mut device) = (0, 0);
    let info = driver().ok_or(INVALID_CONTEXT)?.context_info;
    // SAFETY: the client's handle, checked by the driver; our own locals.
    if unsafe { info(head.context, &raw mut id, &raw mut device) } == 0 {
        Ok(id)
    } else {
        Err(INVALID_CONTEXT)
    }
}

fn with_context(head: &ContextParams, size: usize, act: impl FnOnce(&mut Sampling) -> i32) -> i32 {
    let id = match context_id(head, size) {
        Ok(id) => id,
        Err(code) => return code,
    };
    let mut contexts = CONTEXTS.lock().expect("nobody panics holding it");
    contexts
        .get_or_insert_default()
        .get_mut(&id)
        .map_or(INVALID_OPERATION, act)
}

unsafe fn configure(params: *mut ConfigurationParams, store: bool) -> i32 {
    // SAFETY: the client's struct and its array.
    let (params, infos) = unsafe {
        let Some(params) = params.as_mut() else {
            return INVALID_PARAMETER;
        };
        if params.count == 0 || params.infos.is_null() {
            return INVALID_PARAMETER;
        }
        let infos = std::slice::from_raw_parts_mut(params.infos, params.count);
        (params, infos)
    };
    with_context(&params.head, size_of::<ConfigurationParams>(), |sampling| {
        let mut result = SUCCESS;
        for info in infos {
            info.status = match info.attribute {
                ATTRIBUTE_PERIOD if store && !(5..=31).contains(&(info.data[0] as u32)) => 7,
                1..=9 => 0,
                _ => 1,
            };
            if info.status != 0 {
                result = INVALID_PARAMETER;
            } else if store {
                sampling.attributes[info.attribute as usize] = info.data[0];
            } else {
                info.data[0] = sampling.attributes[info.attribute as usize];
            }
        }
        result
    })
}

fn reason_name(index: usize) -> String {
    match index {
        0 => "smsp__pcsamp_sample_count".to_owned(),
        1 => "smsp__pcsamp_samples_data_dropped".to_owned(),
        _ => format!("smsp__pcsamp_warps_issue_stalled_reason_{index}"),
    }
}

cupti_api! {
    /// Turns sampling on for a context.
    fn cuptiPCSamplingEnable(params: *mut ContextParams) {
        let Some(params) = (unsafe { params.as_ref() }) else { return INVALID_PARAMETER };
        match context_id(params, size_of::<ContextParams>()) {
            Ok(id) => {
                let mut contexts = CONTEXTS.lock().expect("nobody panics holding it");
                let fresh = Sampling { started: false, attributes: DEFAULTS };
                contexts.get_or_insert_default().entry(id).or_insert(fresh);
                SUCCESS
            }
            Err(code) => code,
        }
    }

    /// Turns sampling off for a context.
    fn cuptiPCSamplingDisable(params: *mut ContextParams) {
        let Some(params) = (unsafe { params.as_ref() }) else { return INVALID_PARAMETER };
        match context_id(params, size_of::<ContextParams>()) {
            Ok(id) => {
                let mut contexts = CONTEXTS.lock().expect("nobody panics holding it");
                contexts.get_or_insert_default().remove(&id).map_or(INVALID_OPERATION, |_| SUCCESS)
            }
            Err(code) => code,
        }
    }

    /// Starts, where start and stop were asked for.
    fn cuptiPCSamplingStart(params: *mut ContextParams) {
        let Some(params) = (unsafe { params.as_ref() }) else { return INVALID_PARAMETER };
        with_context(params, size_of::<ContextParams>(), |sampling| {
            if sampling.attributes[6] == 0 || sampling.started {
                return INVALID_OPERATION;
            }
            sampling.started = true;
            SUCCESS
        })
    }

    /// Stops.
    fn cuptiPCSamplingStop(params: *mut ContextParams) {
        let Some(params) = (unsafe { params.as_ref() }) else { return INVALID_PARAMETER };
        with_context(params, size_of::<ContextParams>(), |sampling| {
            if !sampling.started {
                return INVALID_OPERATION;
            }
            sampling.started = false;
            SUCCESS
        })
    }

    /// What was sampled: nothing.
    fn cuptiPCSamplingGetData(params: *mut GetDataParams) {
        let Some(params) = (unsafe { params.as_mut() }) else { return INVALID_PARAMETER };
        let Some(data) = (unsafe { params.data.as_mut() }) else { return INVALID_PARAMETER };
        with_context(&params.head, size_of::<GetDataParams>(), |_| {
            data.total_samples = 0;
            data.dropped_samples = 0;
            data.total_pcs = 0;
            data.remaining_pcs = 0;
            data.foreign_samples = 0;
            if data.size >= size_of::<SamplingData>() {
                data.buffer_full = 0;
            }
            SUCCESS
        })
    }

    /// Sets attributes.
    fn cuptiPCSamplingSetConfigurationAttribute(params: *mut ConfigurationParams) { unsafe { configure(params, true) } }

    /// Reads attributes.
    fn cuptiPCSamplingGetConfigurationAttribute(params: *mut ConfigurationParams) { unsafe { configure(params, false) } }

    /// Number of stall reasons.
    fn cuptiPCSamplingGetNumStallReasons(params: *mut NumReasonsParams) {
        let Some(params) = (unsafe { params.as_mut() }) else { return INVALID_PARAMETER };
        if params.count.is_null() {
            return INVALID_PARAMETER;
        }
        match context_id(&params.head, size_of::<NumReasonsParams>()) {
            Ok(_) => {
                unsafe { params.count.write(settings::get().stall_reasons) };
                SUCCESS
            }
            Err(code) => code,
        }
    }

    /// Indices and names of the stall reasons, in no order, as hardware gives them.
    fn cuptiPCSamplingGetStallReasons(params: *mut ReasonsParams) {
        let Some(params) = (unsafe { params.as_mut() }) else { return INVALID_PARAMETER };
        let total = settings::get().stall_reasons;
        if params.indices.is_null() || params.names.is_null() || params.count < total {
            return INVALID_PARAMETER;
        }
        if let Err(code) = context_id(&params.head, size_of::<ReasonsParams>()) {
            return code;
        }
        for slot in 0..total {
            let index = total - 1 - slot;
            let mut name = reason_name(index).into_bytes();
            name.resize(STRING_SIZE, 0);
            unsafe {
                params.indices.add(slot).write(index as u32);
                std::ptr::copy_nonoverlapping(name.as_ptr(), *params.names.add(slot), STRING_SIZE);
            }
        }
        SUCCESS
    }

    /// CUPTI's checksum of a cubin; not CRC-32, and it does not read every byte.
    fn cuptiGetCubinCrc[driverless](params: *mut CubinCrcParams) {
        let Some(params) = (unsafe { params.as_mut() }) else { return INVALID_PARAMETER };
        if params.size != size_of::<CubinCrcParams>() || params.cubin.is_null() || params.cubin_size == 0 {
            return INVALID_PARAMETER;
        }
        let bytes = unsafe { std::slice::from_raw_parts(params.cubin, params.cubin_size) };
        let step = bytes.len() / 1024 + 1;
        let hash = bytes.iter().step_by(step).fold(0x811c_9dc5u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        params.crc = u64::from(hash ^ params.cubin_size as u32);
        SUCCESS
    }

    /// Names the client's own checksum for PC sample records.
    fn cuptiRegisterComputeCrcCallback[driverless](callback: ComputeCrc) {
        if callback.is_none() {
            return INVALID_PARAMETER;
        }
        *CRC.lock().expect("nobody panics holding it") = callback;
        SUCCESS
    }
}
