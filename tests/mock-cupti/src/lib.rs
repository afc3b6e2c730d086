//! Simulated CUPTI: `libcupti.so.13` for the simulated driver.
//!
//! Works on the simulated driver only: with any other `libcuda.so.1` in the process every call that
//! needs a driver returns 999. One subscriber, API and resource callbacks, kernel records in the
//! client's buffers, attributes and PC samples, as measured on an H200 with
//! CUDA 13.0.
//!
//! # Script
//!
//! Read from the environment at the first call. `MOCK_LOG` and `MOCK_FAIL` of the simulated driver
//! cover both libraries.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `MOCK_CUPTI_VERSION` | 130001 | what `cuptiGetVersion` says; also decides the record size |
//! | `MOCK_CUPTI_FIRST_CORRELATION` | 1 | first correlation id; ids wrap at 2^32 |
//! | `MOCK_CUPTI_LOCK` | 0 | 1: one lock is held during every call and callback; its holder may call in again, as clients do to read records in a completion callback |
//! | `MOCK_CUPTI_KERNEL_NAME` | unset | every kernel's name: `null`, `empty`, `invalid` (not UTF-8) or `length:N` |
//! | `MOCK_CUPTI_RECORDS` | unset | by commas: `none`, `zero:N` (times 0/0 in every N-th record), `duplicate:N`, `withhold:N` |
//! | `MOCK_CUPTI_BUFFER_RECORDS` | 0 | a buffer is full after this many records; 0: when no further one fits |
//! | `MOCK_CUPTI_EXIT_BUFFERS` | 0 | 1: complete buffers are delivered at process end, from a thread of CUPTI's |
//! | `MOCK_CUPTI_STRICT` | 0 | 1: these abort: a call after `cuptiFinalize`, a flush inside a callback, PC sampling of a context that is gone, two calls at once that switch callbacks |
//! | `MOCK_CUPTI_SWITCH_US` | 0 | how long a call takes that switches a callback |
//! | `MOCK_CUPTI_MODULES` | unset | by commas, what is told of the first, second, ... module: nothing (the truth), `edge` (the same right before memory that is not there), `empty`, `short`, `far`, `many`, `past`, `fatbin`, `ptx`, `null`, see `odd_modules` |
//! | `MOCK_CUPTI_STALL_REASONS` | 40 | number of stall reasons |
//! | `MOCK_CUPTI_PC` | unset | PC sampling, by commas, see below |
//!
//! `MOCK_CUPTI_PC`: `per-ms:N` (100) samples of a kernel that runs 1 ms, at a period of 2^20 cycles;
//! `pcs:N` (8) places in a kernel's code, the first of which comes most, or the one after `hot:N` (0) others; `window-us:N` (100) how long calls still get into a context
//! that start, stop or disable take; `hang`: what never returns on hardware does not, instead of
//! aborting; `no-period`, `no-buffer`: setting it is refused; `mute-period`: a period that was set
//! silences sampling; `full:N`: the first N calls of `GetData` find the hardware buffer full;
//! `dropped:N`, `foreign:N`: so many samples dropped, or of other kernels, in every call of `GetData`
//! that has records; `sparse`: one stall reason has index 200; `unterminated`: one stall reason's name
//! has no NUL. Results of calls are scripted by `MOCK_FAIL`.

#[path = "../../mock-cuda/src/link.rs"]
mod link;

mod activity;
mod api;
mod callbacks;
mod general;
mod names;
mod odd_modules;
mod pc_contexts;
mod pc_lock;
mod pc_records;
mod pc_samples;
mod pc_sampling;
mod pc_script;
mod pc_sys;
mod record;
mod settings;
mod stall_reasons;

/// Runs when the library is finalised.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

extern "C" fn finish() {
    if settings::get().exit_buffers {
        activity::flush_at_exit();
    }
}
