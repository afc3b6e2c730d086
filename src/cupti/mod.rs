//! CUPTI: its layouts, its symbols, and the one subscriber we hold.
//!
//! Nothing is linked against; every function is looked up in the libcupti that fits the process.

pub mod result;
pub mod sys;
