//! The library that lives in the profiled process.

pub mod clock;
pub mod config;
pub mod cupti;
pub mod entry;
pub mod errors;
pub mod log;
pub mod metadata;
pub mod probes;
pub mod status;
