//! Contexts with PC sampling: configuration, kernels that are sampled, checksums of their code.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::api::driver;
use crate::callbacks::TOOL;
use crate::link::{ApiCall, KernelRun, ModuleImage};
use crate::pc_samples::Samples;
use crate::pc_sys::SamplingData;
use crate::{pc_lock, pc_script};

/// `CUpti_ComputeCrcCallbackFunc`.
pub type ComputeCrc = Option<unsafe extern "C" fn(*const c_void, usize, *mut u64)>;

/// The client's own checksum.
pub static CRC: Mutex<ComputeCrc> = Mutex::new(None);

/// Attribute numbers that exist: 1..=9. Defaults as documented; the period is CUPTI's choice on a
/// large GPU, 2^11.
const DEFAULTS: [u64; 10] = [0, 11, 0, 1 << 20, 512 << 20, 1, 0, 1, 0, 100];
/// Attribute.
pub const PERIOD: u32 = 1;
const STALL_REASONS: u32 = 2;
const HARDWARE_BUFFER: u32 = 4;
/// Attribute.
pub const MODE: u32 = 5;
/// Attribute.
pub const START_STOP: u32 = 6;
/// Attribute.
pub const DATA_BUFFER: u32 = 8;
const SERIALIZED: u64 = 2;
/// Attribute states: the type and the value are wrong.
pub const BAD_TYPE: i32 = 1;
const BAD_VALUE: i32 = 7;

/// One sampled context.
pub struct Sampling {
    /// Between start and stop.
    pub started: bool,
    /// Counts starts.
    pub range: u64,
    /// By number.
    pub attributes: [u64; 10],
    period_set: bool,
    /// Indices of the stall reasons that are wanted, if not all are.
    pub wanted: Option<Vec<u32>>,
    /// What was sampled.
    pub samples: Samples,
}

/// Everything under CUPTI's lock of PC sampling.
#[derive(Default)]
pub struct Contexts {
    /// By context id.
    pub sampled: HashMap<u32, Sampling>,
    /// Checksums of machine code, asked for once.
    checksums: HashMap<(usize, usize), u64>,
}

impl Sampling {
    /// As CUPTI begins.
    pub fn new() -> Self {
        Self {
            started: false,
            range: 0,
            attributes: DEFAULTS,
            period_set: false,
            wanted: None,
            samples: Samples::default(),
        }
    }

    /// One kernel at a time.
    pub fn serialized(&self) -> bool {
        self.attributes[MODE as usize] == SERIALIZED
    }

    fn running(&self) -> bool {
        self.started || self.attributes[START_STOP as usize] == 0
    }

    /// Samples up to now.
    pub fn pass(&mut self, now: u64) {
        let mute = self.period_set && pc_script::get().mute_period;
        let room = self.room();
        self.samples
            .pass(now, self.attributes[PERIOD as usize], !mute, room);
    }

    /// Places that keep their correlation ids until samples are fetched: as many as the client's data buffer has
    /// records (measured; what comes then is added up without).
    fn room(&self) -> usize {
        let address = self.attributes[DATA_BUFFER as usize] as usize;
        let data: *const SamplingData = std::ptr::with_exposed_provenance(address);
        // SAFETY: null or the client's struct, which lives until the context is gone.
        unsafe { data.as_ref() }.map_or(usize::MAX, |data| data.capacity)
    }

    /// Sets an attribute if the value is good; its status.
    ///
    /// # Safety
    ///
    /// The list of stall reasons is readable.
    pub unsafe fn set(&mut self, attribute: u32, data: &[u64; 3]) -> i32 {
        let script = pc_script::get();
        let value = data[0] as u32;
        if !(1..=9).contains(&attribute) {
            return BAD_TYPE;
        }
        let good = match attribute {
            PERIOD => (5..=31).contains(&value) && !script.no_period,
            HARDWARE_BUFFER => data[0] > 0 && !script.no_buffer,
            MODE => (1..=2).contains(&value),
            START_STOP => value <= 1,
            STALL_REASONS => data[0] > 0 && data[1] != 0,
            _ => true,
        };
        if !good {
            return BAD_VALUE;
        }
        self.period_set |= attribute == PERIOD;
        if attribute == STALL_REASONS {
            let indices: *const u32 = std::ptr::with_exposed_provenance(data[1] as usize);
            // SAFETY: the client's array of as many indices.
            let indices = unsafe { std::slice::from_raw_parts(indices, data[0] as usize) };
            self.wanted = Some(indices.to_vec());
        } else {
            let narrow = matches!(attribute, PERIOD | MODE | START_STOP);
            self.attributes[attribute as usize] = if narrow { value.into() } else { data[0] };
        }
        0
    }
}

impl Contexts {
    /// Tells the driver what it has to look at.
    pub fn announce(&self) {
        if let Some(driver) = driver() {
            let count = |fits: fn(&Sampling) -> bool| {
                self.sampled.values().filter(|s| fits(s)).count() as u32
            };
            let serialized = count(|s| s.serialized() && s.running());
            driver.pc_serialized.store(serialized, Ordering::Release);
            driver.pc_sampling.store(count(|_| true), Ordering::Release);
        }
    }

    /// With the function that the client has named by now, or CUPTI's own; on the thread that loads the module, or
    /// that launches from one which was there before CUPTI.
    fn ask_for_checksum(&mut self, cubin: *const c_void, size: usize) -> u64 {
        *self
            .checksums
            .entry((cubin.addr(), size))
            .or_insert_with(|| {
                let callback = *CRC.lock().expect("nobody panics holding it");
                let mut crc = 0;
                // SAFETY: machine code is never freed; the callback is the client's.
                unsafe {
                    match callback {
                        Some(callback) => callback(cubin, size, &raw mut crc),
                        None => crc = cubin_crc(std::slice::from_raw_parts(cubin.cast(), size)),
                    }
                }
                crc
            })
    }
}

/// A module was loaded. Measured: a function that is named later is not asked.
pub unsafe extern "C" fn module_loaded(module: *const ModuleImage) {
    // SAFETY: the driver's struct, alive through the call.
    let module = unsafe { &*module };
    pc_lock::lock()
        .contexts()
        .ask_for_checksum(module.cubin, module.cubin_size);
}

/// A module goes; functions that were sampled have its checksum.
pub unsafe extern "C" fn module_unloaded(module: *const ModuleImage) {
    // SAFETY: the driver's struct, alive through the call.
    let module = unsafe { &*module };
    let key = (module.cubin.addr(), module.cubin_size);
    pc_lock::lock().contexts().checksums.remove(&key);
}

/// Kernels of a launch, inside their context.
pub unsafe extern "C" fn sampled(call: *mut ApiCall, runs: *const KernelRun, count: usize) {
    // SAFETY: the driver's call and array, alive through this call.
    let (call, runs) = unsafe {
        (TOOL.correlate)(call);
        (&*call, std::slice::from_raw_parts(runs, count))
    };
    let mut locked = pc_lock::lock();
    for run in runs {
        let checksum = locked
            .contexts()
            .ask_for_checksum(run.cubin, run.cubin_size);
        let Some(sampling) = locked.contexts().sampled.get_mut(&run.context_id) else {
            continue;
        };
        if sampling.running() {
            let id = if sampling.serialized() {
                call.correlation_id
            } else {
                0
            };
            sampling.samples.add(run, id, checksum);
            if sampling.samples.crowded() {
                sampling.pass(driver().map_or(0, |driver| (driver.now)()));
            }
        }
    }
}

/// A context goes; the driver holds it.
pub unsafe extern "C" fn context_gone(id: u32) {
    let mut locked = pc_lock::lock();
    locked.contexts().sampled.remove(&id);
    locked.contexts().announce();
}

/// CUPTI's own checksum: not CRC-32, and not of every byte.
pub fn cubin_crc(bytes: &[u8]) -> u64 {
    let step = bytes.len() / 1024 + 1;
    let hash = bytes
        .iter()
        .step_by(step)
        .fold(0x811c_9dc5u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
    u64::from(hash ^ bytes.len() as u32)
}
