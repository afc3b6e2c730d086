//! PC sampling: where inside a kernel the GPU waits.
//!
//! On where `PARCAGPU_PC_SAMPLING_RATE` is set and somebody listens to `pc_sample_batch`. What CUPTI can do
//! in somebody else's program decides the shape (measured on an H200 with CUDA 13.0):
//!
//! - `cuptiPCSamplingStart`, `Stop` and `Disable` take a lock of CUPTI's and then the context's; a launch
//!   takes them the other way round. Called while *any* thread is inside a launch they never return.
//!   `Enable` and `GetData` take CUPTI's lock only, and are safe at any time, from any thread.
//! - `Stop` and `Disable` in continuous mode wait for every kernel that is queued.
//!
//! So in **continuous** mode a context is enabled once, when the first consumer is there, and never stopped
//! before it is destroyed: the hardware goes on (no measurable cost in kernels, half a microsecond a launch),
//! and what nobody wants is thrown away. The rate is held by windows of one drain interval ([`window`],
//! [`controller`]); outside of them samples are fetched only to be dropped. In **serialized** mode sampling
//! starts and stops at launch boundaries, behind a gate that keeps other launches out for those few
//! microseconds ([`serial`]).
//!
//! One context of one process samples a GPU ([`contexts`], [`claim`]): beside a second one CUPTI ends itself, and may
//! take the program with it.
//!
//! One more fact: once a context is sampled, CUPTI refuses to switch kernel activity on, and goes on with it
//! where it is on already; so it is switched on before and stays ([`crate::session::Session::pin_kernels`]).
//!
//! Threads: our own thread drains ten times a second and sets contexts up; the program's threads tell of
//! contexts and modules ([`changes`]) and, where one goes, drain once more. The only lock
//! held across a CUPTI call is [`drain`]'s, and it is only ever tried.

pub mod api;
pub mod changes;
pub mod choice;
pub mod claim;
pub mod contexts;
pub mod controller;
pub mod crc;
pub mod door;
pub mod drain;
pub mod gate;
pub mod hold;
pub mod metadata;
pub mod passing;
pub mod refusal;
pub mod sampling;
pub mod serial;
pub mod setup;
pub mod sys;
pub mod turns;
pub mod window;

pub use passing::Pass;
pub use sampling::Sampling;
