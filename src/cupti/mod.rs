//! CUPTI: its layouts, its symbols, and the one subscriber we hold.
//!
//! Nothing is linked against; every function is looked up in the libcupti that fits the process.
//!
//! * [`sys`], [`result`]: layouts, constants, names of result codes
//! * [`locate`], [`api`], [`call`]: which libcupti, its functions, and what is told of calls that fail
//! * [`driver`]: the few functions of libcuda that we call
//! * [`callbacks`], [`launch_functions`]: launches as the subscriber sees them
//! * [`activity`], [`pool`]: kernel records and the buffers they come in

pub mod activity;
pub mod api;
pub mod call;
pub mod callbacks;
pub mod driver;
pub mod launch_functions;
pub mod locate;
pub mod pool;
pub mod result;
pub mod sys;
