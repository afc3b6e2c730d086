//! A small stand-in for the CUDA runtime, so that runtime-level callbacks can be had without one.
//!
//! Each call makes `RUNTIME_API` callbacks around one driver call of the same correlation id, and
//! reaches the driver through its exported functions, so hooks see it.

use std::ffi::c_void;

use crate::entry::{Function, run_runtime};
use crate::graph::ExecHandle;
use crate::module::{self, KernelHandle};
use crate::stream::StreamHandle;

#[repr(C)]
struct LaunchParams {
    func: *const c_void,
    grid: [u32; 3],
    block: [u32; 3],
    args: *const *const c_void,
    shared: usize,
    stream: StreamHandle,
}

#[repr(C)]
struct GraphLaunchParams {
    exec: ExecHandle,
    stream: StreamHandle,
}

static LAUNCH: Function = Function {
    name: c"cudaLaunchKernel",
    cbid: 211,
    early: true,
};
static GRAPH_LAUNCH: Function = Function {
    name: c"cudaGraphLaunch",
    cbid: 311,
    early: true,
};

type LaunchKernel = unsafe extern "C" fn(
    KernelHandle,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    StreamHandle,
    *const *const c_void,
    *const *const c_void,
) -> i32;
type GraphLaunch = unsafe extern "C" fn(ExecHandle, StreamHandle) -> i32;

/// As `cudaLaunchKernel`, with a driver kernel handle; returns a `CUresult`.
///
/// # Safety
///
/// As `cuLaunchKernel`; the dimensions are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mockrt_launch(
    func: KernelHandle,
    grid: *const [u32; 3],
    block: *const [u32; 3],
    shared: u32,
    stream: StreamHandle,
    args: *const *const c_void,
) -> i32 {
    // SAFETY: the caller's dimensions.
    let (grid, block) = unsafe { (*grid, *block) };
    let params = LaunchParams {
        func: func.cast(),
        grid,
        block,
        args,
        shared: shared as usize,
        stream,
    };
    run_runtime(
        &LAUNCH,
        (&raw const params).cast(),
        || module::symbol(func),
        || {
            // SAFETY: the entry has this signature behind its naked body.
            unsafe {
                let launch = std::mem::transmute::<*const c_void, LaunchKernel>(
                    crate::launch::cuLaunchKernel::cuLaunchKernel as *const c_void,
                );
                launch(
                    func,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    shared,
                    stream,
                    args,
                    std::ptr::null(),
                )
            }
        },
    )
}

/// As `cudaGraphLaunch`; returns a `CUresult`.
///
/// # Safety
///
/// As `cuGraphLaunch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mockrt_graph_launch(exec: ExecHandle, stream: StreamHandle) -> i32 {
    let params = GraphLaunchParams { exec, stream };
    run_runtime(
        &GRAPH_LAUNCH,
        (&raw const params).cast(),
        std::ptr::null,
        || {
            // SAFETY: as above.
            unsafe {
                let launch = std::mem::transmute::<*const c_void, GraphLaunch>(
                    crate::graph::cuGraphLaunch::cuGraphLaunch as *const c_void,
                );
                launch(exec, stream)
            }
        },
    )
}
