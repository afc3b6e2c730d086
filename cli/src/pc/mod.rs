//! PC samples: where inside their kernels the GPU's warps were, and what they waited for.
//!
//! * [`reasons`]: stall reasons by name, and what of them counts as a sample
//! * [`samples`]: adds up what the probes tell, raw; no code is looked at
//! * [`rows`]: kernels, their lines and what they wait for, made from the sums with the code at hand

pub mod reasons;
pub mod rows;
pub mod samples;
