//! Simulated CUPTI: `libcupti.so.13` for the simulated driver.
//!
//! Works on the simulated driver only: with any other `libcuda.so.1` in the process every call that
//! needs a driver returns 999. One subscriber, API and resource callbacks, kernel records in the
//! client's buffers, attributes and PC sampling configuration, as measured on an H200 with
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
//! | `MOCK_CUPTI_STRICT` | 0 | 1: a call after `cuptiFinalize` aborts, and so does a flush inside a callback |
//! | `MOCK_CUPTI_STALL_REASONS` | 40 | number of stall reasons |

#[path = "../../mock-cuda/src/link.rs"]
mod link;

mod activity;
mod api;
mod callbacks;
mod general;
mod names;
mod pc_sampling;
mod record;
mod settings;

/// Runs when the library is finalised.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

extern "C" fn finish() {
    if settings::get().exit_buffers {
        activity::flush_at_exit();
    }
}
