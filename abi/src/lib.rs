//! Layouts and names shared by `libparcagpu.so`, its consumers and the tests.
//!
//! Everything here is part of the published contract: a consumer may be built against one version
//! and read a process that carries another. Layouts are little endian, 64-bit, and held by
//! assertions; the C twin of this crate is `ebpf/parcagpu.h`.
//!
//! * [`probe`]: the eleven USDT probes, their arguments and what they mean
//! * [`kernel`]: the part of a CUPTI kernel record that every CUDA version shares
//! * [`pc_sample`]: PC sample records and their stall reasons
//! * [`nvtx`]: NVTX events
//! * [`status`]: the block a process publishes about its own state

pub mod kernel;
pub mod nvtx;
pub mod pc_sample;
pub mod probe;
pub mod status;
