//! Graphs of kernels.
//!
//! The kernels of a graph run one after the other on the stream of its launch. Every node has one
//! record, all with the correlation id of the launch.

use std::ffi::{c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::context::{self, give};
use crate::driver_api;
use crate::error::{Error, INVALID_VALUE, LAUNCH_FAILED, Outcome};
use crate::export;
use crate::handle::{Kind, Object};
use crate::launch::{self, Shape};
use crate::link::ApiCall;
use crate::module::{Kernel, KernelHandle};
use crate::stream::{self, StreamHandle};

/// A kernel node.
#[derive(Clone, Copy)]
pub struct Node {
    kernel: &'static Object<Kernel>,
    shape: Shape,
}

impl Node {
    /// A launch with its kernel and size.
    pub fn new(kernel: &'static Object<Kernel>, shape: Shape) -> Node {
        Node { kernel, shape }
    }
}

impl Kind for Node {
    const MAGIC: u32 = 0x4e6f_6407;
    const STALE: Error = INVALID_VALUE;
}

/// `CUgraphNode`.
pub type NodeHandle = *mut Object<Node>;

/// A graph being built.
pub struct Graph {
    nodes: Mutex<Vec<&'static Object<Node>>>,
}

impl Kind for Graph {
    const MAGIC: u32 = 0x4772_6108;
    const STALE: Error = INVALID_VALUE;
}

/// `CUgraph`.
pub type GraphHandle = *mut Object<Graph>;

impl Graph {
    /// An empty graph.
    pub fn create() -> &'static Object<Graph> {
        Object::publish(Graph {
            nodes: Mutex::new(Vec::new()),
        })
    }

    /// Appends a node.
    pub fn add(&self, node: Node) -> &'static Object<Node> {
        let node = Object::publish(node);
        self.nodes
            .lock()
            .expect("nobody panics holding it")
            .push(node);
        node
    }
}

/// An executable graph.
pub struct Exec {
    id: u32,
    nodes: Vec<Node>,
}

impl Kind for Exec {
    const MAGIC: u32 = 0x4578_6509;
    const STALE: Error = INVALID_VALUE;
}

/// `CUgraphExec`.
pub type ExecHandle = *mut Object<Exec>;

/// `CUDA_KERNEL_NODE_PARAMS` (v2); the first version ends before `kern`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NodeParams {
    func: KernelHandle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    parameters: *const *const c_void,
    extra: *const *const c_void,
    kern: KernelHandle,
    ctx: *mut c_void,
}

static NEXT_EXEC: AtomicU32 = AtomicU32::new(1);

fn graph(handle: GraphHandle) -> Result<&'static Object<Graph>, Error> {
    // SAFETY: a handle of the driver's, by contract of every graph call.
    unsafe { Object::get(handle) }
}

fn add_node(
    out: *mut NodeHandle,
    handle: GraphHandle,
    dependencies: *const NodeHandle,
    count: usize,
    params: *const NodeParams,
    second: bool,
) -> Outcome {
    if out.is_null() || params.is_null() || dependencies.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    let graph = graph(handle)?;
    let context = context::required()?;
    // SAFETY: the caller's struct; the two last members are read for the second version only.
    let (kernel, shape, arguments) = unsafe {
        let func = (*params).func;
        let kernel = if func.is_null() && second {
            (*params).kern
        } else {
            func
        };
        let shape = Shape {
            grid: (*params).grid,
            block: (*params).block,
            shared: (*params).shared,
            kind: 0,
        };
        (
            kernel,
            shape,
            !(*params).parameters.is_null() || !(*params).extra.is_null(),
        )
    };
    for index in 0..count {
        // SAFETY: the caller's array of `count` handles of ours.
        unsafe { Object::get(*dependencies.add(index))? };
    }
    let kernel = launch::checked(kernel, shape, context)?;
    if kernel.parameters > 0 && !arguments {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, graph.add(Node::new(kernel, shape)).handle()) }
}

fn instantiate(out: *mut ExecHandle, handle: GraphHandle) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let graph = graph(handle)?;
    context::required()?;
    let nodes = graph
        .nodes
        .lock()
        .expect("nobody panics holding it")
        .iter()
        .map(|node| ***node)
        .collect();
    let exec = Object::publish(Exec {
        id: NEXT_EXEC.fetch_add(1, Ordering::Relaxed),
        nodes,
    });
    export::LINK
        .graphs_instantiated
        .fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's out-pointer.
    unsafe { give(out, exec.handle()) }
}

fn graph_launch(
    call: &mut ApiCall,
    handle: ExecHandle,
    stream: StreamHandle,
    per_thread: bool,
) -> Outcome {
    // SAFETY: handles of the driver's, by contract of the call.
    let (exec, context) = unsafe { (Object::get(handle)?, context::required()?) };
    // SAFETY: as above.
    let stream = unsafe { stream::resolve(context, stream, per_thread)? };
    if export::LINK.graphs_broken.load(Ordering::Relaxed) != 0 {
        return Err(LAUNCH_FAILED);
    }
    let captured = stream.captured(|graph| {
        exec.nodes.iter().for_each(|node| {
            graph.add(*node);
        });
    })?;
    if captured.is_some() || exec.nodes.is_empty() {
        return Ok(());
    }
    exec.nodes
        .iter()
        .for_each(|node| crate::module::profiled(node.kernel, context));
    let _turn = export::turn(context);
    let observed = export::observed();
    let mut spans = Vec::new();
    stream.line.reserve(
        exec.nodes
            .iter()
            .map(|node| node.shape.duration(node.kernel)),
        |start, end| {
            if observed {
                spans.push((start, end));
            }
        },
    );
    if observed {
        let runs: Vec<_> = exec
            .nodes
            .iter()
            .zip(spans)
            .enumerate()
            .map(|(index, (node, span))| {
                let node_id = u64::from(exec.id) << 32 | index as u64;
                launch::run_of(
                    node.kernel,
                    node.shape,
                    span,
                    context,
                    stream,
                    (exec.id, node_id),
                )
            })
            .collect();
        export::kernels(call, &runs);
    }
    Ok(())
}

fn get_nodes(handle: GraphHandle, nodes: *mut NodeHandle, count: *mut usize) -> Outcome {
    if count.is_null() {
        return Err(INVALID_VALUE);
    }
    let graph = graph(handle)?;
    let all = graph.nodes.lock().expect("nobody panics holding it");
    // SAFETY: the caller's count, and room for that many handles.
    unsafe {
        if !nodes.is_null() {
            let room = *count;
            for index in 0..room {
                nodes.add(index).write(
                    all.get(index)
                        .map_or(std::ptr::null_mut(), |node| node.handle()),
                );
            }
            count.write(room.min(all.len()));
        } else {
            count.write(all.len());
        }
    }
    Ok(())
}

driver_api! {
    fn cuGraphCreate[501] (out: *mut GraphHandle, flags: u32) |_call| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        unsafe { give(out, Graph::create().handle()) }
    };
    fn cuGraphAddKernelNode[502] (out: *mut NodeHandle, graph: GraphHandle, dependencies: *const NodeHandle,
        count: usize, params: *const NodeParams) |_call| add_node(out, graph, dependencies, count, params, false);
    fn cuGraphAddKernelNode_v2[689] (out: *mut NodeHandle, graph: GraphHandle, dependencies: *const NodeHandle,
        count: usize, params: *const NodeParams) |_call| add_node(out, graph, dependencies, count, params, true);
    fn cuGraphGetNodes[534] (graph: GraphHandle, nodes: *mut NodeHandle, count: *mut usize)
        |_call| get_nodes(graph, nodes, count);
    fn cuGraphInstantiate[513] (out: *mut ExecHandle, graph: GraphHandle, error_node: *mut NodeHandle,
        text: *mut c_char, text_size: usize) |_call| instantiate(out, graph);
    fn cuGraphInstantiate_v2[578] (out: *mut ExecHandle, graph: GraphHandle, error_node: *mut NodeHandle,
        text: *mut c_char, text_size: usize) |_call| instantiate(out, graph);
    fn cuGraphInstantiateWithFlags[643] (out: *mut ExecHandle, graph: GraphHandle, flags: u64)
        |_call| instantiate(out, graph);
    fn cuGraphDestroy[517] (handle: GraphHandle) |_call| graph(handle).map(|graph| { graph.retire(); });
    fn cuGraphExecDestroy[516] (exec: ExecHandle) |_call| unsafe { Object::get(exec) }.map(|exec| { exec.retire(); });
    fn cuGraphLaunch[514] (exec: ExecHandle, stream: StreamHandle) |call| graph_launch(call, exec, stream, false);
    fn cuGraphLaunch_ptsz[515] (exec: ExecHandle, stream: StreamHandle) |call| graph_launch(call, exec, stream, true);
}
