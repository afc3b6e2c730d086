//! Simulated CUDA driver: `libcuda.so.1` for machines without a GPU.
//!
//! Faithful where a profiler can tell: function bodies that hooks can patch, the
//! `CUDA_INJECTION64_PATH` protocol, contexts, streams, modules, graphs and their failures, result
//! codes, and time: kernels take time on a virtual GPU, though nothing runs. x86-64 Linux only.
//! Module `link` is the way to the simulated CUPTI.
//!
//! # Script
//!
//! Read from the environment at the first call.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `MOCK_LOG` | unset | file for the call log of both libraries, see module `log` |
//! | `MOCK_LOG_TIMES` | unset | 1: with the time of each call |
//! | `MOCK_FAIL` | unset | results to return, for functions of both libraries, see module `faults` |
//! | `MOCK_RAISE` | unset | signals to raise inside calls of the driver, see module `faults` |
//! | `MOCK_CUDA_STUB` | 0 | 1: every call returns 34, as the stub library of a toolkit |
//! | `MOCK_CUDA_VERSION` | 13000 | what `cuDriverGetVersion` says |
//! | `MOCK_CUDA_DEVICES` | 1 | number of devices; 0: `cuInit` returns 100 |
//! | `MOCK_CUDA_GPU` | process id | in the UUIDs: processes with the same number share their devices |
//! | `MOCK_CUDA_SM` | 90 | compute capability: what runs of a fat binary |
//! | `MOCK_CUDA_KERNEL_NS` | 2000 | kernel duration in ns per 1024 blocks or part: a default and rules, `2000,gemm=50000` (part of the name, first match); a name with `_ns<digits>` carries its own |
//! | `MOCK_CUDA_LATENCY_NS` | 3000 | from a launch to the start of its kernel on an idle stream |
//! | `MOCK_CUDA_QUEUE` | 1024 | outstanding launches per stream; then a launch waits |
//! | `MOCK_CUDA_HOLDS` | calls | which calls hold their context while they work (module `hold`): `launches` (and loads), `calls` (all but those that wait or ask), `all` |
//! | `MOCK_CUDA_INIT_REENTERS` | 0 | 1: `cuInit` looks itself up (own handle, default scope) and calls both |
//! | `MOCK_CUDA_COPIES` | 0 | 1: `cuGetProcAddress` gives internal copies, not the exported functions |
//! | `MOCK_CUDA_ABSENT` | unset | names, by commas, that `cuGetProcAddress` does not know |
//!
//! The variables of the simulated CUPTI are in its own documentation.

mod context;
mod cubin;
mod entry;
mod error;
mod export;
mod fatbin;
mod faults;
mod graph;
mod handle;
mod hold;
mod image;
mod init;
mod launch;
mod link;
mod log;
mod lookup;
mod memory;
mod module;
mod runtime;
mod settings;
mod stream;
mod timeline;

/// Runs when the library is finalised: the log ends where its last line ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

extern "C" fn finish() {
    log::trim();
}
