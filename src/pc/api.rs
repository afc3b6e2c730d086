//! The functions of the PC Sampling API.

use std::ffi::c_char;
use std::mem::size_of;

use super::sys::{
    ComputeCrc, ConfigurationInfo, ConfigurationParams, ContextParams, Data, GetDataParams,
    NumReasonsParams, REASON_NAME, ReasonsParams,
};
use crate::cupti::api::symbols;
use crate::cupti::call::{self, CuptiError};
use crate::cupti::sys::{CUPTI_ERROR_UNKNOWN, CUcontext, CUptiResult};
use crate::session;

symbols! { Functions, NAMES;
    /// Prepare a context.
    enable = "cuptiPCSamplingEnable": fn(*mut ContextParams) -> CUptiResult;
    /// The opposite.
    disable = "cuptiPCSamplingDisable": fn(*mut ContextParams) -> CUptiResult;
    /// Begin sampling.
    start = "cuptiPCSamplingStart": fn(*mut ContextParams) -> CUptiResult;
    /// End sampling.
    stop = "cuptiPCSamplingStop": fn(*mut ContextParams) -> CUptiResult;
    /// Fetch records.
    get_data = "cuptiPCSamplingGetData": fn(*mut GetDataParams) -> CUptiResult;
    /// Set attributes.
    configure = "cuptiPCSamplingSetConfigurationAttribute": fn(*mut ConfigurationParams) -> CUptiResult;
    /// Read attributes.
    configuration = "cuptiPCSamplingGetConfigurationAttribute": fn(*mut ConfigurationParams) -> CUptiResult;
    /// How many stall reasons there are.
    num_reasons = "cuptiPCSamplingGetNumStallReasons": fn(*mut NumReasonsParams) -> CUptiResult;
    /// Their names.
    reasons = "cuptiPCSamplingGetStallReasons": fn(*mut ReasonsParams) -> CUptiResult;
    /// Name who computes the checksums in records.
    register_crc = "cuptiRegisterComputeCrcCallback": fn(ComputeCrc) -> CUptiResult;
}

fn head<Params>(context: CUcontext) -> ContextParams {
    ContextParams {
        size: size_of::<Params>(),
        private: std::ptr::null_mut(),
        context,
    }
}

/// Makes a call, see [`call::call`]. One that fails for a reason that CUPTI does not know is its last one.
fn call(function: &'static str, act: impl FnOnce() -> CUptiResult) -> Result<(), CuptiError> {
    let outcome = call::call(function, act);
    if outcome.is_err_and(|error| error.code == CUPTI_ERROR_UNKNOWN)
        && let Some(session) = session::get()
    {
        session.lose_cupti();
    }
    outcome
}

impl Functions {
    /// Prepares a context. Takes 70 to 120 ms on an H200; sampling begins with the next launch unless start
    /// and stop are asked for.
    pub fn enable(&self, context: CUcontext) -> Result<(), CuptiError> {
        let mut params = head::<ContextParams>(context);
        // SAFETY: the struct says its size; CUPTI checks the context.
        call("cuptiPCSamplingEnable", || unsafe {
            (self.enable)(&mut params)
        })
    }

    /// Ends all sampling of a context. Only where no thread can be inside a launch, see [`crate::pc`].
    pub fn disable(&self, context: CUcontext) -> Result<(), CuptiError> {
        let mut params = head::<ContextParams>(context);
        // SAFETY: as above.
        call("cuptiPCSamplingDisable", || unsafe {
            (self.disable)(&mut params)
        })
    }

    /// Begins sampling. Only where no thread can be inside a launch, see [`crate::pc`].
    pub fn start(&self, context: CUcontext) -> Result<(), CuptiError> {
        let mut params = head::<ContextParams>(context);
        // SAFETY: as above.
        call("cuptiPCSamplingStart", || unsafe {
            (self.start)(&mut params)
        })
    }

    /// Ends sampling. Only where no thread can be inside a launch, see [`crate::pc`].
    pub fn stop(&self, context: CUcontext) -> Result<(), CuptiError> {
        let mut params = head::<ContextParams>(context);
        // SAFETY: as above.
        call("cuptiPCSamplingStop", || unsafe {
            (self.stop)(&mut params)
        })
    }

    /// Fetches records into `data`.
    ///
    /// # Safety
    /// `data` says its size and the room at its pointers, and everything there is writable.
    pub unsafe fn get_data(&self, context: CUcontext, data: &mut Data) -> Result<(), CuptiError> {
        let mut params = GetDataParams {
            head: head::<GetDataParams>(context),
            data,
        };
        // SAFETY: the struct says its size; the rest by the caller's promise.
        call("cuptiPCSamplingGetData", || unsafe {
            (self.get_data)(&mut params)
        })
    }

    /// Sets attributes; each entry's status says what became of it.
    ///
    /// # Safety
    /// Pointers in `infos` are what their attributes ask for, and live as long as the context is sampled.
    pub unsafe fn configure(
        &self,
        context: CUcontext,
        infos: &mut [ConfigurationInfo],
    ) -> Result<(), CuptiError> {
        let mut params = ConfigurationParams {
            head: head::<ConfigurationParams>(context),
            count: infos.len(),
            infos: infos.as_mut_ptr(),
        };
        // SAFETY: the struct says its size and the length of the array; the rest by the caller's promise.
        call("cuptiPCSamplingSetConfigurationAttribute", || unsafe {
            (self.configure)(&mut params)
        })
    }

    /// Reads an attribute that is a number.
    pub fn attribute(&self, context: CUcontext, attribute: u32) -> Result<u64, CuptiError> {
        let mut info = ConfigurationInfo {
            attribute,
            ..ConfigurationInfo::default()
        };
        let mut params = ConfigurationParams {
            head: head::<ConfigurationParams>(context),
            count: 1,
            infos: &raw mut info,
        };
        // SAFETY: the struct says its size and that there is one entry.
        call("cuptiPCSamplingGetConfigurationAttribute", || unsafe {
            (self.configuration)(&mut params)
        })
        .map(|()| info.data[0])
    }

    /// Index and name of every stall reason, in no order.
    pub fn stall_reasons(&self, context: CUcontext) -> Result<Vec<(u32, Vec<u8>)>, CuptiError> {
        let mut count = 0usize;
        let mut params = NumReasonsParams {
            head: head::<NumReasonsParams>(context),
            count: &raw mut count,
        };
        // SAFETY: the struct says its size; writes one number.
        call("cuptiPCSamplingGetNumStallReasons", || unsafe {
            (self.num_reasons)(&mut params)
        })?;
        let mut indices = vec![0u32; count];
        let mut bytes = vec![0 as c_char; count * REASON_NAME];
        let mut names: Vec<*mut c_char> = bytes
            .chunks_mut(REASON_NAME)
            .map(<[c_char]>::as_mut_ptr)
            .collect();
        let mut params = ReasonsParams {
            head: head::<ReasonsParams>(context),
            count,
            indices: indices.as_mut_ptr(),
            names: names.as_mut_ptr(),
        };
        // SAFETY: both arrays have `count` entries, each name has room for the longest.
        call("cuptiPCSamplingGetStallReasons", || unsafe {
            (self.reasons)(&mut params)
        })?;
        let names = bytes.chunks(REASON_NAME).map(|name| {
            let name = name.iter().map(|byte| byte.cast_unsigned());
            name.take_while(|byte| *byte != 0).collect()
        });
        Ok(indices.into_iter().zip(names).collect())
    }

    /// Makes records carry the checksum that `compute` gives.
    pub fn register_crc(&self, compute: ComputeCrc) -> Result<(), CuptiError> {
        // SAFETY: a function of ours, which is never unmapped.
        call("cuptiRegisterComputeCrcCallback", || unsafe {
            (self.register_crc)(compute)
        })
    }
}
