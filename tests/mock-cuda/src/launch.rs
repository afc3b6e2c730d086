//! Kernel launches.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::context::{self, Context};
use crate::driver_api;
use crate::error::{Error, INVALID_HANDLE, INVALID_VALUE, Outcome};
use crate::export;
use crate::graph::Node;
use crate::handle::Object;
use crate::link::{ApiCall, KernelRun};
use crate::module::{self, Kernel, KernelHandle};
use crate::stream::{self, Stream, StreamHandle};

const MAX_THREADS: u64 = 1024;
const MAX_SHARED: u32 = 232_448;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: StreamHandle,
    attributes: *const c_void,
    attribute_count: u32,
}

const _: () = assert!(size_of::<LaunchConfig>() == 56);

/// What one launch asks for.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// 0 regular, 1 cooperative.
    pub kind: u32,
}

impl Shape {
    /// The driver's limits.
    pub fn check(&self) -> Outcome {
        let threads: u64 = self.block.iter().map(|side| u64::from(*side)).product();
        let blocks: u128 = self.grid.iter().map(|side| u128::from(*side)).product();
        let good = blocks > 0
            && (1..=MAX_THREADS).contains(&threads)
            && self.grid[0] <= i32::MAX as u32
            && self.grid[1] <= 65535
            && self.grid[2] <= 65535
            && self.block[2] <= 64
            && self.shared <= MAX_SHARED;
        if good { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// How long a kernel runs at this size.
    pub fn duration(&self, kernel: &Kernel) -> u64 {
        let blocks: u64 = self.grid.iter().map(|side| u64::from(*side)).product();
        kernel.duration * blocks.div_ceil(1024)
    }
}

fn launch(
    call: &mut ApiCall,
    handle: KernelHandle,
    shape: Shape,
    stream: StreamHandle,
    per_thread: bool,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> Outcome {
    if handle.is_null() {
        return Err(INVALID_HANDLE);
    }
    let context = context::required()?;
    let kernel = module::runnable(handle, context)?;
    shape.check()?;
    if !parameters.is_null() && !extra.is_null()
        || kernel.parameters > 0 && parameters.is_null() && extra.is_null()
    {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the API passes a handle of ours.
    let stream = unsafe { stream::resolve(context, stream, per_thread)? };
    if stream
        .captured(|graph| graph.add(Node::new(kernel, shape)))?
        .is_some()
    {
        return Ok(());
    }
    module::profiled(kernel, context);
    let _turn = export::turn(context);
    let mut span = (0, 0);
    stream
        .line
        .reserve(std::iter::once(shape.duration(kernel)), |start, end| {
            span = (start, end)
        });
    if export::observed() {
        let run = run_of(kernel, shape, span, context, stream, (0, 0));
        export::kernels(call, &[run]);
    }
    Ok(())
}

/// The record of one kernel; `graph` is graph and node id.
pub fn run_of(
    kernel: &'static Kernel,
    shape: Shape,
    span: (u64, u64),
    context: &Context,
    stream: &Stream,
    graph: (u32, u64),
) -> KernelRun {
    KernelRun {
        name: kernel.name.as_ptr(),
        start: span.0,
        end: span.1,
        device: context.device as u32,
        context_id: context.id,
        stream_id: stream.id,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        launch_type: shape.kind,
        graph_id: graph.0,
        graph_node_id: graph.1,
        grid_id: context.grids.fetch_add(1, Ordering::Relaxed),
        cubin: kernel.image.cubin.as_ptr().cast(),
        cubin_size: kernel.image.cubin.len(),
        code_size: kernel.code_size,
        symbol: kernel.symbol,
    }
}

fn launch_ex(
    call: &mut ApiCall,
    config: *const LaunchConfig,
    function: KernelHandle,
    parameters: *const *const c_void,
    extra: *const *const c_void,
    per_thread: bool,
) -> Outcome {
    if config.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's struct, which the driver reads too.
    let config = unsafe { *config };
    if config.attribute_count > 0 && config.attributes.is_null() {
        return Err(INVALID_VALUE);
    }
    let shape = Shape {
        grid: config.grid,
        block: config.block,
        shared: config.shared,
        kind: 0,
    };
    launch(
        call,
        function,
        shape,
        config.stream,
        per_thread,
        parameters,
        extra,
    )
}

driver_api! {
    fn cuLaunchKernel[307] (f: KernelHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: StreamHandle, parameters: *const *const c_void,
        extra: *const *const c_void) kernel(f)
        |call| launch(call, f, Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, kind: 0 },
            stream, false, parameters, extra);
    fn cuLaunchKernel_ptsz[442] (f: KernelHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: StreamHandle, parameters: *const *const c_void,
        extra: *const *const c_void) kernel(f)
        |call| launch(call, f, Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, kind: 0 },
            stream, true, parameters, extra);
    fn cuLaunchKernelEx[652] (config: *const LaunchConfig, f: KernelHandle, parameters: *const *const c_void,
        extra: *const *const c_void) kernel(f) |call| launch_ex(call, config, f, parameters, extra, false);
    fn cuLaunchKernelEx_ptsz[653] (config: *const LaunchConfig, f: KernelHandle, parameters: *const *const c_void,
        extra: *const *const c_void) kernel(f) |call| launch_ex(call, config, f, parameters, extra, true);
    fn cuLaunchCooperativeKernel[477] (f: KernelHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
        block_y: u32, block_z: u32, shared: u32, stream: StreamHandle, parameters: *const *const c_void) kernel(f)
        |call| launch(call, f, Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, kind: 1 },
            stream, false, parameters, std::ptr::null());
    fn cuLaunchCooperativeKernel_ptsz[478] (f: KernelHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
        block_y: u32, block_z: u32, shared: u32, stream: StreamHandle, parameters: *const *const c_void) kernel(f)
        |call| launch(call, f, Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, kind: 1 },
            stream, true, parameters, std::ptr::null());
}

/// The kernel that a graph node or a launch names, checked and loaded.
pub fn checked(
    handle: KernelHandle,
    shape: Shape,
    context: &'static Object<Context>,
) -> Result<&'static Object<Kernel>, Error> {
    if handle.is_null() {
        return Err(INVALID_VALUE);
    }
    let kernel = module::runnable(handle, context)?;
    shape.check()?;
    Ok(kernel)
}
