//! The library in a process of its own on the simulated driver: hooks in place, the session started, and
//! a consumer pretended by its semaphores. There is no BPF: what a uprobe costs is the kernel's.
//!
//! The simulated driver is looked for in `target/sim`; `scripts/sim --bare -- true` puts it there.

#![allow(dead_code, reason = "each benchmark uses a part")]

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parcagpu::cupti::activity;
use parcagpu::cupti::pool::BUFFER_SIZE;
use parcagpu::cupti::sys::CUcontext;
use parcagpu::session::{self, Session};
use parcagpu::{hooks, probes, status};
use parcagpu_abi::kernel::{KIND_CONCURRENT_KERNEL, KernelRecord};
use parcagpu_abi::status::State;

type Ptr = *mut c_void;
type Launch =
    unsafe extern "C" fn(Ptr, u32, u32, u32, u32, u32, u32, u32, Ptr, *mut Ptr, *mut Ptr) -> u32;
type LaunchGraph = unsafe extern "C" fn(Ptr, Ptr) -> u32;

const PTX: &std::ffi::CStr = c".version 6.3
.target sm_75
.address_size 64
.visible .entry empty_kernel()
{
	ret;
}
";
/// Bytes of a kernel record of CUDA 13.0.
const RECORD_SIZE: usize = 216;
/// Records in a [`Buffer`].
pub const RECORDS: usize = 500;
/// Nodes of the graph.
pub const NODES: usize = 10;

/// A program that uses CUDA, with the library in it.
pub struct Program {
    launch: Launch,
    launch_graph: LaunchGraph,
    synchronize: unsafe extern "C" fn(Ptr) -> u32,
    kernel: Ptr,
    stream: Ptr,
    graph: Ptr,
}

fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"),
        PathBuf::from,
    );
    target.join("sim")
}

fn open(name: &str) -> Ptr {
    let path = folder().join(name);
    let c = CString::new(path.to_str().expect("a path in UTF-8")).expect("no NUL");
    // SAFETY: a terminated name of a library that is made for this.
    let library = unsafe { libc::dlopen(c.as_ptr(), libc::RTLD_NOW) };
    assert!(
        !library.is_null(),
        "{} is not there: run scripts/sim --bare -- true",
        path.display()
    );
    library
}

/// A function of a library.
///
/// # Safety
/// `F` is its type.
unsafe fn function<F: Copy>(library: Ptr, name: &std::ffi::CStr) -> F {
    // SAFETY: an open library and a terminated name.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?}");
    // SAFETY: the caller says so.
    unsafe { std::mem::transmute_copy(&address) }
}

fn check(result: u32, what: &str) {
    assert_eq!(result, 0, "{what}");
}

impl Program {
    /// Starts CUDA. `rate`: samples per second and thread, of both kinds. `bare`: the
    /// environment has `PARCAGPU_DISABLE=1`, and the library does nothing at all.
    pub fn start(rate: f64, bare: bool) -> Self {
        // SAFETY: no other thread is there yet.
        unsafe {
            std::env::set_var("PARCAGPU_RATE_LIMIT", rate.to_string());
            std::env::set_var("PARCAGPU_GRAPH_RATE_LIMIT", rate.to_string());
            std::env::set_var("PARCAGPU_CUPTI_PATH", folder().join("libcupti.so.13"));
        }
        // Keeps the linker from dropping the watch, and so the hooks.
        std::hint::black_box(&raw const hooks::WATCH);
        let driver = open("libcuda.so.1");
        // SAFETY: functions of the driver API by their own types, called as its manual says.
        unsafe {
            let init: unsafe extern "C" fn(u32) -> u32 = function(driver, c"cuInit");
            let retain: unsafe extern "C" fn(*mut Ptr, i32) -> u32 =
                function(driver, c"cuDevicePrimaryCtxRetain");
            let set: unsafe extern "C" fn(Ptr) -> u32 = function(driver, c"cuCtxSetCurrent");
            let load: unsafe extern "C" fn(*mut Ptr, *const c_void) -> u32 =
                function(driver, c"cuModuleLoadData");
            let get: unsafe extern "C" fn(*mut Ptr, Ptr, *const i8) -> u32 =
                function(driver, c"cuModuleGetFunction");
            let stream_create: unsafe extern "C" fn(*mut Ptr, u32) -> u32 =
                function(driver, c"cuStreamCreate");
            let begin: unsafe extern "C" fn(Ptr, i32) -> u32 =
                function(driver, c"cuStreamBeginCapture_v2");
            let end: unsafe extern "C" fn(Ptr, *mut Ptr) -> u32 =
                function(driver, c"cuStreamEndCapture");
            let instantiate: unsafe extern "C" fn(*mut Ptr, Ptr, u64) -> u32 =
                function(driver, c"cuGraphInstantiateWithFlags");
            let null = std::ptr::null_mut;
            let (mut context, mut module) = (null(), null());
            check(init(0), "cuInit");
            check(retain(&mut context, 0), "cuDevicePrimaryCtxRetain");
            check(set(context), "cuCtxSetCurrent");
            check(load(&mut module, PTX.as_ptr().cast()), "cuModuleLoadData");
            let mut program = Self {
                launch: function(driver, c"cuLaunchKernel"),
                launch_graph: function(driver, c"cuGraphLaunch"),
                synchronize: function(driver, c"cuStreamSynchronize"),
                kernel: null(),
                stream: null(),
                graph: null(),
            };
            let name = c"empty_kernel".as_ptr();
            check(
                get(&mut program.kernel, module, name),
                "cuModuleGetFunction",
            );
            check(stream_create(&mut program.stream, 1), "cuStreamCreate");
            let mut graph = null();
            check(begin(program.stream, 1), "cuStreamBeginCapture");
            for _ in 0..NODES {
                program.launch();
            }
            check(end(program.stream, &mut graph), "cuStreamEndCapture");
            check(
                instantiate(&mut program.graph, graph, 0),
                "cuGraphInstantiate",
            );
            let state = if bare { State::Stopped } else { State::Dormant };
            assert_eq!(status::state(), state);
            program
        }
    }

    /// One `cuLaunchKernel`.
    #[inline]
    pub fn launch(&self) {
        let null = std::ptr::null_mut;
        // SAFETY: a kernel without parameters.
        let result = unsafe {
            (self.launch)(
                self.kernel,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                self.stream,
                null(),
                null(),
            )
        };
        assert_eq!(result, 0);
    }

    /// One `cuGraphLaunch`.
    #[inline]
    pub fn launch_graph(&self) {
        // SAFETY: a graph that was instantiated.
        let result = unsafe { (self.launch_graph)(self.graph, self.stream) };
        assert_eq!(result, 0);
    }

    /// Waits for the simulated GPU.
    pub fn synchronize(&self) {
        // SAFETY: a stream of ours.
        check(
            unsafe { (self.synchronize)(self.stream) },
            "cuStreamSynchronize",
        );
    }

    /// Pretends a consumer of launches and kernels, and waits until it is noticed.
    pub fn listen(&self) -> &'static Session {
        for probe in ["cuda_correlation", "activity_batch"] {
            // SAFETY: the semaphore of a probe of ours; the kernel does the same.
            unsafe { semaphore(probe).write_volatile(1) };
        }
        let until = Instant::now() + Duration::from_secs(5);
        while status::state() != State::Active {
            assert!(Instant::now() < until, "{:?}", status::state());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(probes::cuda_correlation::enabled());
        session::get().expect("an active session")
    }
}

/// A buffer that CUPTI would have filled with kernel records.
pub struct Buffer {
    start: *mut u8,
    valid: usize,
}

impl Buffer {
    /// Full of records with ids from `first` on. `announced`: of launches that were sampled.
    pub fn full(session: &Session, first: u32, announced: bool) -> Self {
        let (mut start, mut size, mut records) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: three places to write to, as CUPTI gives them.
        unsafe { activity::REQUEST(&mut start, &mut size, &mut records) };
        assert!(!start.is_null());
        for i in 0..RECORDS {
            // SAFETY: all-zero is a valid record: integers and a null pointer.
            let mut record: KernelRecord = unsafe { std::mem::zeroed() };
            record.kind = KIND_CONCURRENT_KERNEL;
            record.correlation_id = first + i as u32;
            record.name = c"kernel".as_ptr();
            if announced {
                session
                    .sampler
                    .correlation
                    .begin(record.correlation_id, false);
                session.sampler.correlation.announce(record.correlation_id);
            }
            assert!((i + 1) * RECORD_SIZE <= size);
            // SAFETY: within the buffer, as just said; 8-aligned.
            unsafe {
                start
                    .add(i * RECORD_SIZE)
                    .cast::<KernelRecord>()
                    .write(record)
            };
        }
        Self {
            start,
            valid: RECORDS * RECORD_SIZE,
        }
    }

    /// CUPTI returns it.
    pub fn complete(self) {
        let context = CUcontext(std::ptr::null_mut());
        // SAFETY: a buffer that was asked for, with so many bytes of records.
        unsafe { activity::COMPLETE(context, 0, self.start, BUFFER_SIZE, self.valid) };
    }
}

/// Where the semaphore of a probe is, from the note in this program's file.
fn semaphore(probe: &str) -> *mut u16 {
    let file = std::fs::read("/proc/self/exe").expect("this program's file");
    let elf = goblin::elf::Elf::parse(&file).expect("an ELF file");
    let mut found = None;
    for note in elf
        .iter_note_sections(&file, Some(".note.stapsdt"))
        .expect("notes")
    {
        let note = note.expect("a whole note").desc;
        let text = note[24..].split(|b| *b == 0).nth(1).expect("a name");
        if text == probe.as_bytes() {
            let address = note[16..24].try_into().expect("8 bytes");
            found = Some(u64::from_le_bytes(address));
        }
    }
    let address = found.expect("the note of the probe") as usize;
    // The note has the address as linked.
    let base = elf
        .syms
        .iter()
        .find(|sym| elf.strtab.get_at(sym.st_name) == Some("parcagpu_status"))
        .expect("the status block")
        .st_value as usize;
    let slide = (&raw const status::parcagpu_status) as usize - base;
    (address + slide) as *mut u16
}
