//! Start, fork and exit of the process.
//!
//! * Start happens once, by whoever learns first that CUDA is being initialised.
//! * A child forked from a process that uses CUDA cannot use CUDA; it gets a block that says so and
//!   does nothing. A child forked before that starts over by itself, whatever the parent's threads were at
//!   ([`crate::sheltered`]).
//! * Exit waits for our thread, at most 400 ms, without the time in which the process was stopped; `_exit` and signals
//!   end it without us.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use once_cell::race::{OnceBool, OnceBox};
use parcagpu_abi::status::{Counter, State, Status};
use parcagpu_interpose::Uncancelled;

use crate::config::{self, ApiCallbacks, Config};
use crate::cupti::locate::file_of;
use crate::hooks::{self, coexist, installed};
use crate::machine::Machine;
use crate::{clock, entry, errors, log, nvtx, pc, probes, session, sheltered, status, watch};

/// Longest time that `cuInit` waits for CUPTI when a consumer listens already: launches before that are lost to it.
/// On a busy machine our thread may be without a processor for long; longer than this it waits for a lock that the
/// program has.
const ACTIVE_LIMIT: Duration = Duration::from_secs(3);
/// Longest time the end of the process waits for us.
const EXIT_LIMIT: Duration = Duration::from_millis(400);

static MAIN_LEFT: AtomicBool = AtomicBool::new(false);
/// Another thread loaded us, so that the first one leaves without a word.
static MAIN_UNSEEN: AtomicBool = AtomicBool::new(false);
/// `CLOCK_MONOTONIC` ns.
static STARTED_AT: AtomicU64 = AtomicU64::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicBool = AtomicBool::new(false);
static IN_CHILD: AtomicBool = AtomicBool::new(false);
static EXIT_REGISTERED: AtomicU32 = AtomicU32::new(0);

/// Whether this process was forked from one that had a session.
#[inline]
pub fn in_forked_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed) || is_wiped()
}

/// A page that reads 1, and 0 in a copy of this process, however that was made.
static MARK: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// A child made by a bare `clone` runs no handler of ours; asking for the process id would be a system call,
/// which the program may have forbidden itself.
#[inline]
fn is_wiped() -> bool {
    let mark = MARK.load(Ordering::Relaxed);
    // SAFETY: a page of ours that is never unmapped.
    !mark.is_null() && unsafe { mark.read_volatile() } == 0
}

/// Makes the page. Without it such a child counts as this process, and its end waits for a thread that it
/// does not have.
fn mark_process() {
    const PAGE: usize = 4096;
    // SAFETY: a new private page; the kernel clears it in copies of the process.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mode = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), PAGE, mode, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return;
        }
        if libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) == 0 {
            page.cast::<u8>().write_volatile(1);
            MARK.store(page.cast(), Ordering::Relaxed);
        } else {
            libc::munmap(page, PAGE);
        }
    }
}

/// Whether this copy of the library has nothing to do: it was switched off, or the loader has another
/// copy in front of it, whose status block is the one that the name finds. Two copies would hook the
/// same functions and take CUPTI from each other.
pub fn is_off() -> bool {
    // Asked with and without the loader's lock held, and it asks the loader: threads may race for the
    // answer, which is the same for all, but none may wait for another.
    static OFF: OnceBool = OnceBool::new();
    OFF.get_or_init(|| {
        if config::disabled() {
            status::set_state(State::Stopped, "switched off by PARCAGPU_DISABLE");
            return true;
        }
        // Not RTLD_DEFAULT: linked with -Bsymbolic, we are looked into first when we ask.
        // SAFETY: the program's own handle, which is always open, and a terminated name.
        let first = unsafe {
            let program = libc::dlopen(std::ptr::null(), libc::RTLD_LAZY);
            libc::dlsym(program, c"parcagpu_status".as_ptr())
        };
        let ours: *const Status = status::block();
        let other = !first.is_null() && !std::ptr::addr_eq(first, ours);
        if other {
            status::set_state(
                State::Stopped,
                "another copy of the library is in charge of this process",
            );
        }
        other
    })
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = on_load;

/// Runs when the library is loaded, in every program: a few looks, and a handler for forks.
extern "C" fn on_load() {
    entry::barrier((), || {
        log::remember_stderr();
        own_path();
        if !is_off() {
            watch_forks();
            watch_main_thread();
        }
    });
}

/// The file of this library. Asked for the first time when the library is loaded, so that nobody waits for
/// the loader's lock later.
pub fn own_path() -> Option<&'static Path> {
    static PATH: OnceBox<Option<PathBuf>> = OnceBox::new();
    PATH.get_or_init(|| Box::new(file_of(on_load as *const std::ffi::c_void)))
        .as_deref()
}

/// Who starts the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A thread that may hold the loader's or the driver's locks, so that no other thread can do it: the
    /// driver's, from inside `cuInit`, or one that runs a constructor.
    Here,
    /// A hook on any other thread, after the driver is ready. Somebody may hold the loader's lock and wait
    /// for this thread, so our own does what needs it.
    Aside,
}

/// Starts the session. Idempotent; concurrent calls return at once. Consumers that listen already lose
/// nothing: the session is active for them when this returns, unless that takes three seconds.
pub fn start(way: Way) {
    if is_off() || in_forked_child() {
        return;
    }
    // A thread that is to be cancelled is cancelled after this, not in the middle.
    let _whole = Uncancelled::begin();
    watch_forks();
    if STARTED.swap(true, Ordering::AcqRel) {
        if way == Way::Aside {
            await_begin();
        }
        return;
    }
    entry::silence_panics();
    // Others come here until the session has begun, so that their launches are not missed.
    hooks::want(!hooks::BOOT, false);
    installed::withdraw();
    STARTED_AT.store(clock::monotonic_ns(), Ordering::Release);
    nvtx::offer();
    let (config, problems) = Config::from_environment();
    log::set_level(config.debug);
    let block = status::block();
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    block.pid.store(pid as u32, Ordering::Relaxed);
    block
        .started_ns
        .store(clock::realtime_ns(), Ordering::Relaxed);
    status::set_config(&config);
    if config.api_callbacks == ApiCallbacks::Runtime {
        installed::decide_in_callbacks();
    }
    let session = session::make(config);
    let pc = session.pc.as_ref();
    if pc.is_some_and(pc::Sampling::counts_launches) {
        hooks::want(hooks::GATE, true);
    }
    mark_process();
    register_exit();
    for problem in &problems {
        errors::report(0, "configuration", &problem.0);
    }
    let mut machine = Machine::new(session);
    if way == Way::Here {
        machine.begin();
    }
    if !watch::start(machine, way) {
        status::set_state(State::Stopped, "the watch thread could not be started");
    } else if way == Way::Aside {
        await_begin();
    }
}

/// Waits for a session that another thread begins, if a consumer listens, or if CUPTI has to come before the
/// first context, for PC sampling: until [`ACTIVE_LIMIT`] after it was started, whoever waits.
fn await_begin() {
    let pcs = session::get().is_some_and(|session| session.pc.is_some());
    if !pcs && !probes::session_wanted() && !probes::cubin_loaded::enabled() {
        return;
    }
    let started = STARTED_AT.load(Ordering::Acquire);
    let since = Duration::from_nanos(clock::monotonic_ns().saturating_sub(started));
    watch::await_begin(ACTIVE_LIMIT.saturating_sub(since));
}

/// Whether the program is over but for us: its first thread has left by `pthread_exit`, and there is no
/// other. Asks the kernel only once the first thread has left, or when it could not be watched.
pub fn is_alone() -> bool {
    (MAIN_LEFT.load(Ordering::Relaxed) || MAIN_UNSEEN.load(Ordering::Relaxed) && main_has_left())
        && std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() <= 2)
}

/// Whether the first thread has left, as the kernel knows: it takes a thread's list of robust locks away
/// when the thread ends. glibc gives every thread one.
fn main_has_left() -> bool {
    let (mut head, mut len) = (std::ptr::dangling_mut::<libc::c_void>(), 0usize);
    // SAFETY: writes an address and a size, of a thread of this process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            libc::getpid(),
            &raw mut head,
            &raw mut len,
        )
    };
    result == 0 && head.is_null()
}

/// Lets us learn that the first thread leaves, if this is it.
fn watch_main_thread() {
    unsafe extern "C" fn on_main_left(_value: *mut libc::c_void) {
        MAIN_LEFT.store(true, Ordering::Relaxed);
    }
    // SAFETY: neither call has preconditions.
    if unsafe { libc::gettid() != libc::getpid() } {
        MAIN_UNSEEN.store(true, Ordering::Relaxed);
        return;
    }
    let mut key = 0;
    // SAFETY: the destructor is a function of ours, which is never unmapped; any value but null has it called
    // when this thread ends by itself. The end of the process does not call it.
    unsafe {
        if libc::pthread_key_create(&mut key, Some(on_main_left)) == 0 {
            libc::pthread_setspecific(key, (&raw const MAIN_LEFT).cast());
        }
    }
}

/// Registers the exit handler, which is called before those that were registered earlier. It does its
/// work the first time it is called.
pub fn register_exit() {
    // A library that is loaded anew all the time must not fill the list.
    if EXIT_REGISTERED.fetch_add(1, Ordering::Relaxed) < 2 {
        // SAFETY: a function of ours, which is never unmapped.
        unsafe { libc::atexit(on_exit) };
    }
}

extern "C" fn on_exit() {
    if in_forked_child() {
        return;
    }
    if ENDING.swap(true, Ordering::Relaxed) {
        // Registered twice, and waited already.
        return;
    }
    entry::barrier((), || {
        let done = watch::finish(EXIT_LIMIT);
        let pc = session::get().and_then(|session| session.pc.as_ref());
        if !done && (status::is_owing() || pc.is_some_and(pc::Sampling::owes)) {
            errors::report_last(
                "exit",
                &format!(
                    "the process ends before everything was delivered: kernel times and PC samples may be \
                     missing (waited for {} ms)",
                    EXIT_LIMIT.as_millis()
                ),
            );
        }
        status::block()
            .state
            .store(State::Stopped as u32, Ordering::Relaxed);
        if let Some(session) = session::get() {
            session.set_active(false);
            log_counters();
        }
    });
}

/// The last word of the debug log.
fn log_counters() {
    if !log::enabled(1) {
        return;
    }
    let block = status::block();
    for counter in Counter::ALL {
        let value = block.get(*counter);
        if value != 0 {
            crate::debug_log!(1, "{} {value}", counter.name());
        }
    }
}

/// Registers the handler for forked children. Idempotent: done when the library is loaded, and by whoever comes
/// before that.
pub fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: a function of ours, which is never unmapped, and does only what a forked child may.
        unsafe { libc::pthread_atfork(None, None, Some(on_fork_child)) };
    }
}

/// Between fork and exec only what is async-signal-safe may run: atomics, `fstat` and `close`.
unsafe extern "C" fn on_fork_child() {
    sheltered::forked();
    status::end_text_in_child();
    coexist::forget_calls();
    nvtx::forget_set_up();
    if !STARTED.load(Ordering::Relaxed) {
        return;
    }
    IN_CHILD.store(true, Ordering::Relaxed);
    hooks::want(u8::MAX, false);
    if let Some(session) = session::get() {
        session.set_active(false);
    }
    // The parent's, which may end before its child.
    pc::claim::release();
    status::reset_in_child();
}
