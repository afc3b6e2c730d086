//! The launch functions of CUDA: their callback ids, what a call of each is, and where its stream is found.

use super::sys::{
    CUstream, CallbackData, GraphLaunchParams, LaunchCooperativeKernelParams, LaunchKernelExParams,
    LaunchKernelParams, driver_cbid as driver, runtime_cbid as runtime,
};
use crate::sampling::launch::{Kind, Launch};
use crate::session::Session;

/// How the callback of one function is read.
#[derive(Clone, Copy, Debug)]
pub struct LaunchFunction {
    /// Callback id in its domain.
    pub cbid: u32,
    /// Eager or of a graph.
    pub kind: Kind,
    many: bool,
    stream: Stream,
}

impl LaunchFunction {
    /// A call of it, with CUPTI's correlation id; `cbid` as it is announced.
    pub fn launch(&self, id: u32, cbid: i32) -> Launch {
        Launch {
            kind: self.kind,
            many: self.many,
            id,
            cbid,
        }
    }
}

/// Where the stream of a launch is found.
#[derive(Clone, Copy, Debug)]
enum Stream {
    Kernel,
    Cooperative,
    Ex,
    Graph,
    /// Not to be told from the parameters, or a default stream that cannot capture.
    None,
}

const fn eager(cbid: u32, stream: Stream) -> LaunchFunction {
    LaunchFunction {
        cbid,
        kind: Kind::Eager,
        many: false,
        stream,
    }
}

const fn graph(cbid: u32, stream: Stream) -> LaunchFunction {
    LaunchFunction {
        cbid,
        kind: Kind::Graph,
        many: true,
        stream,
    }
}

const fn multi_device(cbid: u32) -> LaunchFunction {
    LaunchFunction {
        cbid,
        kind: Kind::Eager,
        many: true,
        stream: Stream::None,
    }
}

/// Launch functions of the driver API.
pub const DRIVER: &[LaunchFunction] = &[
    eager(driver::LAUNCH_KERNEL, Stream::Kernel),
    eager(driver::LAUNCH_KERNEL_EX, Stream::Ex),
    eager(driver::LAUNCH_KERNEL_PTSZ, Stream::Kernel),
    eager(driver::LAUNCH_KERNEL_EX_PTSZ, Stream::Ex),
    graph(driver::GRAPH_LAUNCH, Stream::Graph),
    graph(driver::GRAPH_LAUNCH_PTSZ, Stream::Graph),
    eager(driver::LAUNCH_COOPERATIVE_KERNEL, Stream::Cooperative),
    eager(driver::LAUNCH_COOPERATIVE_KERNEL_PTSZ, Stream::Cooperative),
    multi_device(driver::LAUNCH_COOPERATIVE_KERNEL_MULTI_DEVICE),
    eager(driver::LAUNCH, Stream::None),
    eager(driver::LAUNCH_GRID, Stream::None),
    eager(driver::LAUNCH_GRID_ASYNC, Stream::None),
];

/// Launch functions of the runtime API. Their streams are read from the driver call inside them.
pub const RUNTIME: &[LaunchFunction] = &[
    eager(runtime::LAUNCH_KERNEL, Stream::None),
    eager(runtime::LAUNCH_KERNEL_PTSZ, Stream::None),
    eager(runtime::LAUNCH_KERNEL_EX_C, Stream::None),
    eager(runtime::LAUNCH_KERNEL_EX_C_PTSZ, Stream::None),
    graph(runtime::GRAPH_LAUNCH, Stream::None),
    graph(runtime::GRAPH_LAUNCH_PTSZ, Stream::None),
    eager(runtime::LAUNCH_COOPERATIVE_KERNEL, Stream::None),
    eager(runtime::LAUNCH_COOPERATIVE_KERNEL_PTSZ, Stream::None),
    multi_device(runtime::LAUNCH_COOPERATIVE_KERNEL_MULTI_DEVICE),
    eager(runtime::LAUNCH, Stream::None),
    eager(runtime::LAUNCH_PTSZ, Stream::None),
];

/// The bit of a launch function of the driver API in a set of them; `None` for other functions.
pub fn launch_bit(cbid: u32) -> Option<u64> {
    DRIVER.iter().position(|f| f.cbid == cbid).map(|i| 1 << i)
}

/// Whether a launch that the driver accepted went into a capture.
pub fn is_capturing(session: &Session, function: &LaunchFunction, data: &CallbackData) -> bool {
    let params = data.function_params;
    if params.is_null() {
        return false;
    }
    // SAFETY: the parameter struct belongs to the function, whose pointers the driver has followed
    // itself when it accepted the call.
    let stream: CUstream = unsafe {
        match function.stream {
            Stream::Kernel => (*params.cast::<LaunchKernelParams>()).stream,
            Stream::Cooperative => (*params.cast::<LaunchCooperativeKernelParams>()).stream,
            Stream::Ex => (*(*params.cast::<LaunchKernelExParams>()).config).stream,
            Stream::Graph => (*params.cast::<GraphLaunchParams>()).stream,
            Stream::None => return false,
        }
    };
    let per_thread = matches!(
        function.cbid,
        driver::LAUNCH_KERNEL_PTSZ
            | driver::LAUNCH_KERNEL_EX_PTSZ
            | driver::LAUNCH_COOPERATIVE_KERNEL_PTSZ
            | driver::GRAPH_LAUNCH_PTSZ
    );
    session
        .driver()
        .is_some_and(|driver| driver.is_capturing(stream, per_thread))
}
