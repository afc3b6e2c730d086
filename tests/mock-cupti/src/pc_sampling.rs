//! The calls of PC sampling.
//!
//! The order of locks is the real one, see [`pc_lock`]: every call takes the lock, start, stop and
//! disable also the context. Stop and disable wait for queued kernels when those are not run one at
//! a time. Sizes of buffers are kept and change nothing.

use crate::api::{INVALID_CONTEXT, INVALID_OPERATION, INVALID_PARAMETER, SUCCESS, driver};
use crate::pc_contexts::{BAD_TYPE, CRC, ComputeCrc, Contexts, START_STOP, Sampling, cubin_crc};
use crate::pc_records::{fetch, fit, leave};
use crate::pc_sys::{
    ConfigurationParams, ContextParams, CubinCrcParams, GetDataParams, NumReasonsParams,
    ReasonsParams,
};
use crate::{cupti_api, pc_lock, settings, stall_reasons};

/// Bytes of one name in the client's table.
const STRING_SIZE: usize = 128;

fn context_id(head: &ContextParams, size: usize) -> Result<u32, i32> {
    if head.size != size || !head.private.is_null() {
        return Err(INVALID_PARAMETER);
    }
    let (mut id, mut device) = (0, 0);
    let info = driver().ok_or(INVALID_CONTEXT)?.context_info;
    // SAFETY: the client's handle, checked by the driver; our own locals.
    if unsafe { info(head.context, &raw mut id, &raw mut device) } == 0 {
        return Ok(id);
    }
    if settings::get().strict && !head.context.is_null() {
        eprintln!("simulated CUPTI: PC sampling of a context that is gone");
        std::process::abort();
    }
    Err(INVALID_CONTEXT)
}

/// For most calls: a context that is sampled, under the lock.
fn with_context(
    head: &ContextParams,
    size: usize,
    act: impl FnOnce(&mut Contexts, u32) -> i32,
) -> i32 {
    let id = match context_id(head, size) {
        Ok(id) => id,
        Err(code) => return code,
    };
    let mut locked = pc_lock::lock();
    let contexts = locked.contexts();
    if contexts.sampled.contains_key(&id) {
        let result = act(contexts, id);
        contexts.announce();
        result
    } else {
        INVALID_OPERATION
    }
}

/// All sampling ends, for `cuptiFinalize`. What the real one does with it was not measured.
pub fn end_all() {
    let mut locked = pc_lock::lock();
    let contexts = locked.contexts();
    contexts.sampled.clear();
    contexts.announce();
}

/// For start, stop and disable, which take the context too; `wait` for queued kernels.
unsafe fn alone(
    params: *const ContextParams,
    name: &str,
    wait: bool,
    possible: impl Fn(&Sampling) -> bool,
    act: impl FnOnce(&mut Contexts, u32),
) -> i32 {
    // SAFETY: the client's struct.
    let Some(params) = (unsafe { params.as_ref() }) else {
        return INVALID_PARAMETER;
    };
    let id = match context_id(params, size_of::<ContextParams>()) {
        Ok(id) => id,
        Err(code) => return code,
    };
    let mut locked = pc_lock::lock();
    let Some(serialized) = locked
        .contexts()
        .sampled
        .get(&id)
        .filter(|sampling| possible(sampling))
        .map(Sampling::serialized)
    else {
        return INVALID_OPERATION;
    };
    let alone = match locked.take(params.context, name) {
        Ok(alone) => alone,
        Err(code) => return code,
    };
    if wait && !serialized {
        alone.synchronize();
    }
    let contexts = locked.contexts();
    act(contexts, id);
    contexts.announce();
    SUCCESS
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
    with_context(
        &params.head,
        size_of::<ConfigurationParams>(),
        |contexts, id| {
            let Some(sampling) = contexts.sampled.get_mut(&id) else {
                return INVALID_OPERATION;
            };
            let mut result = SUCCESS;
            for info in infos {
                info.status = match info.attribute {
                    // SAFETY: the client's values.
                    attribute if store => unsafe { sampling.set(attribute, &info.data) },
                    attribute @ 1..=9 => {
                        info.data[0] = sampling.attributes[attribute as usize];
                        0
                    }
                    _ => BAD_TYPE,
                };
                if info.status != 0 {
                    result = INVALID_PARAMETER;
                }
            }
            result
        },
    )
}

cupti_api! {
    /// Turns sampling on for a context. At any time, from any thread.
    fn cuptiPCSamplingEnable(params: *mut ContextParams) {
        let Some(params) = (unsafe { params.as_ref() }) else { return INVALID_PARAMETER };
        match context_id(params, size_of::<ContextParams>()) {
            Ok(id) => {
                let mut locked = pc_lock::lock();
                if locked.contexts().sampled.keys().any(|sampled| *sampled != id) {
                    eprintln!("simulated CUPTI: a second context is sampled; the real one ends itself, and crashes");
                    std::process::abort();
                }
                locked.contexts().sampled.entry(id).or_insert_with(Sampling::new);
                locked.contexts().announce();
                SUCCESS
            }
            Err(code) => code,
        }
    }

    /// Turns sampling off for a context. What was not fetched goes into the client's data buffer.
    fn cuptiPCSamplingDisable(params: *mut ContextParams) {
        let act = |contexts: &mut Contexts, id| {
            leave(contexts, id);
            contexts.sampled.remove(&id);
        };
        unsafe { alone(params, "cuptiPCSamplingDisable", true, |_| true, act) }
    }

    /// Starts, where start and stop were asked for.
    fn cuptiPCSamplingStart(params: *mut ContextParams) {
        let possible = |sampling: &Sampling| sampling.attributes[START_STOP as usize] != 0 && !sampling.started;
        let act = |contexts: &mut Contexts, id| {
            if let Some(sampling) = contexts.sampled.get_mut(&id) {
                sampling.started = true;
                sampling.range += 1;
            }
        };
        unsafe { alone(params, "cuptiPCSamplingStart", false, possible, act) }
    }

    /// Stops.
    fn cuptiPCSamplingStop(params: *mut ContextParams) {
        let act = |contexts: &mut Contexts, id| {
            if let Some(sampling) = contexts.sampled.get_mut(&id) {
                sampling.started = false;
            }
        };
        unsafe { alone(params, "cuptiPCSamplingStop", true, |sampling| sampling.started, act) }
    }

    /// What was sampled since the last call.
    fn cuptiPCSamplingGetData(params: *mut GetDataParams) {
        let Some(params) = (unsafe { params.as_mut() }) else { return INVALID_PARAMETER };
        let Some(data) = (unsafe { params.data.as_mut() }) else { return INVALID_PARAMETER };
        if !unsafe { fit(data) } {
            return INVALID_PARAMETER;
        }
        with_context(&params.head, size_of::<GetDataParams>(), |contexts, id| unsafe { fetch(contexts, id, data) })
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
            let (index, name) = stall_reasons::entry(slot, STRING_SIZE);
            unsafe {
                params.indices.add(slot).write(index);
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
        params.crc = cubin_crc(bytes);
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
