//! What the simulated CUPTI and the simulated driver know of each other.
//!
//! This one file is compiled into both libraries. CUPTI asks the driver for it by
//! `cuGetExportTable` with [`LINK_UUID`], the way the real one gets at its driver, and fills in
//! [`DriverLink::tool`]; the driver looks at the tables of bytes before it calls back. Everything
//! here is `repr(C)` and lives as long as the process.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32};

/// Names the export table; a driver that does not know it is not ours.
pub const LINK_UUID: [u8; 16] = *b"parcagpu-sim-lnk";
/// Raised when anything in this file changes.
pub const LINK_VERSION: u32 = 6;

/// Callback domain of driver functions.
pub const DOMAIN_DRIVER: u32 = 1;
/// Callback domain of runtime functions.
pub const DOMAIN_RUNTIME: u32 = 2;
/// Highest callback id of an API domain, exclusive.
pub const API_CBIDS: usize = 1024;
/// Highest callback id of the other domains, exclusive.
pub const SMALL_CBIDS: usize = 64;

/// One API call while it runs, from entry to exit, on the calling thread's stack.
#[repr(C)]
#[derive(Debug)]
pub struct ApiCall {
    /// [`DOMAIN_DRIVER`] or [`DOMAIN_RUNTIME`].
    pub domain: u32,
    /// Callback id of the function.
    pub cbid: u32,
    /// The function's name, NUL-terminated, static.
    pub name: *const c_char,
    /// The function's `_params` struct.
    pub params: *const c_void,
    /// Name of the kernel for single-kernel launches, else null.
    pub symbol: *const c_char,
    /// Current context, or null.
    pub context: *mut c_void,
    /// Id of the current context, 0 without one.
    pub context_id: u32,
    /// Valid once `correlated` is set; any number, 0 too.
    pub correlation_id: u32,
    /// Non-zero when CUPTI gave the call an id.
    pub correlated: u32,
    /// The slot that entry and exit callback share.
    pub correlation_data: u64,
    /// Result of the call, valid at exit.
    pub result: i32,
}

/// One kernel's run on the virtual GPU, with its times already fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelRun {
    /// Mangled name, lives as long as the process.
    pub name: *const c_char,
    /// `CLOCK_REALTIME` ns.
    pub start: u64,
    /// `CLOCK_REALTIME` ns.
    pub end: u64,
    /// Device ordinal.
    pub device: u32,
    /// Context id.
    pub context_id: u32,
    /// Stream id.
    pub stream_id: u32,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// 0 regular, 1 cooperative.
    pub launch_type: u32,
    /// Executable graph, 0 outside graphs.
    pub graph_id: u32,
    /// Node in it, 0 outside graphs.
    pub graph_node_id: u64,
    /// Counts launches.
    pub grid_id: i64,
    /// The module's machine code, never freed.
    pub cubin: *const c_void,
    /// Its size in bytes.
    pub cubin_size: usize,
    /// Bytes of the kernel's own code.
    pub code_size: u64,
    /// Index of its symbol in the machine code.
    pub symbol: u32,
}

/// Who stood in the way of an exclusive hold on a context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Intruder {
    /// Calls inside.
    pub calls: u32,
    /// Thread of the one that entered last.
    pub tid: i32,
    /// Its function, static.
    pub function: *const c_char,
}

/// A loaded module.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModuleImage {
    /// Module id.
    pub id: u32,
    /// Handle.
    pub module: *mut c_void,
    /// Context it was loaded into.
    pub context: *mut c_void,
    /// Machine code in driver memory; never freed.
    pub cubin: *const c_void,
    /// Its size in bytes.
    pub cubin_size: usize,
}

/// What a resource callback is about.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// Callback id in the resource domain.
    pub cbid: u32,
    /// The context concerned, or null.
    pub context: *mut c_void,
    /// Stream handle, or null.
    pub handle: *mut c_void,
    /// The module for module callbacks, else null.
    pub module: *const ModuleImage,
}

/// Functions of the simulated CUPTI that the driver calls.
#[repr(C)]
#[derive(Debug)]
pub struct Tool {
    /// Gives the call a correlation id if it has none.
    pub correlate: unsafe extern "C" fn(*mut ApiCall),
    /// Entry of a function whose callback is on.
    pub enter: unsafe extern "C" fn(*mut ApiCall),
    /// Exit of a function whose callback is on.
    pub exit: unsafe extern "C" fn(*mut ApiCall),
    /// Kernels that a launch put on the GPU; only while kernel activity is on.
    pub kernels: unsafe extern "C" fn(*mut ApiCall, *const KernelRun, usize),
    /// Kernels that a launch put on the GPU; only while a context is PC sampled.
    pub sampled: unsafe extern "C" fn(*mut ApiCall, *const KernelRun, usize),
    /// A module was loaded; whether or not anybody wants to know.
    pub module_loaded: unsafe extern "C" fn(*const ModuleImage),
    /// It goes.
    pub module_unloaded: unsafe extern "C" fn(*const ModuleImage),
    /// A context is gone: its id. The thread still holds it.
    pub context_gone: unsafe extern "C" fn(u32),
    /// A resource came or goes, only while its callback is on.
    pub resource: unsafe extern "C" fn(*const Resource),
    /// A synchronisation finished: callback id, context, stream.
    pub synchronized: unsafe extern "C" fn(u32, *mut c_void, *mut c_void),
}

/// The table the driver hands out.
#[repr(C)]
#[derive(Debug)]
pub struct DriverLink {
    /// Bytes of this struct, as export tables begin.
    pub size: usize,
    /// [`LINK_VERSION`].
    pub version: u32,
    /// Driver functions whose callback is on.
    pub driver_callbacks: [AtomicU8; API_CBIDS],
    /// Runtime functions whose callback is on.
    pub runtime_callbacks: [AtomicU8; API_CBIDS],
    /// Resource events whose callback is on.
    pub resource_callbacks: [AtomicU8; SMALL_CBIDS],
    /// Synchronisation events whose callback is on.
    pub synchronize_callbacks: [AtomicU8; SMALL_CBIDS],
    /// 0: no kernel activity, else the record kind (3 or 10).
    pub kernel_activity: AtomicU32,
    /// Contexts with PC sampling.
    pub pc_sampling: AtomicU32,
    /// Contexts whose kernels PC sampling runs one at a time.
    pub pc_serialized: AtomicU32,
    /// Non-zero after `cuptiFinalize`: graph launches fail with 719.
    pub graphs_broken: AtomicU32,
    /// Graphs instantiated so far.
    pub graphs_instantiated: AtomicU32,
    /// CUPTI's side; null until it came.
    pub tool: AtomicPtr<Tool>,
    /// Whether `cuInit` has succeeded.
    pub initialized: extern "C" fn() -> i32,
    /// Nanoseconds of the GPU's clock (`CLOCK_REALTIME`).
    pub now: extern "C" fn() -> u64,
    /// Whether a call log is kept.
    pub logging: extern "C" fn() -> i32,
    /// Appends one line (without newline) to the call log.
    pub log: unsafe extern "C" fn(*const u8, usize),
    /// Result scripted for this call of the named function, `i32::MIN` for none. Counts calls.
    pub fault: unsafe extern "C" fn(*const u8, usize) -> i32,
    /// Id and device of a context; non-zero when the handle is none.
    pub context_info: unsafe extern "C" fn(*mut c_void, *mut u32, *mut u32) -> i32,
    /// When all work of a context so far is done; 0 when the handle is none.
    pub context_ready: unsafe extern "C" fn(*mut c_void) -> u64,
    /// Takes a context for oneself, after so many ns in which calls still get in: 0, or 1 and who is
    /// inside, or 2 when the handle is none.
    pub context_take: unsafe extern "C" fn(*mut c_void, u64, *mut Intruder) -> i32,
    /// Gives it back.
    pub context_give_back: unsafe extern "C" fn(*mut c_void),
    /// Id of a stream (context, stream, per-thread default stream); non-zero when unknown.
    pub stream_id: unsafe extern "C" fn(*mut c_void, *mut c_void, i32, *mut u32) -> i32,
}
