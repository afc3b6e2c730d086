//! What was put in, and what is done where it was not.
//!
//! [`report`] is told of every mapped copy of a watched library, by the loader's thread and under the
//! loader's lock: it writes numbers and texts and calls nothing that loads.

use std::sync::atomic::{AtomicU32, Ordering};

use parcagpu_abi::status::State;
use parcagpu_interpose::{Choice, EngineKind, Outcome, Refusal, Report};

use crate::config;
use crate::cupti::driver::Driver;
use crate::cupti::sys::driver_cbid as cbid;
use crate::environment::Ours;
use crate::{entry, errors, lifecycle, status};

/// Name of the variable by which the driver finds a library to load in `cuInit`.
const INJECTION: &str = "CUDA_INJECTION64_PATH";

/// The launch functions that are hooked: name, callback id, and whether it is the twin for
/// per-thread default streams.
const LAUNCHES: [(&str, u32, bool); 8] = [
    ("cuLaunchKernel", cbid::LAUNCH_KERNEL, false),
    ("cuLaunchKernel_ptsz", cbid::LAUNCH_KERNEL_PTSZ, true),
    ("cuLaunchKernelEx", cbid::LAUNCH_KERNEL_EX, false),
    ("cuLaunchKernelEx_ptsz", cbid::LAUNCH_KERNEL_EX_PTSZ, true),
    (
        "cuLaunchCooperativeKernel",
        cbid::LAUNCH_COOPERATIVE_KERNEL,
        false,
    ),
    (
        "cuLaunchCooperativeKernel_ptsz",
        cbid::LAUNCH_COOPERATIVE_KERNEL_PTSZ,
        true,
    ),
    ("cuGraphLaunch", cbid::GRAPH_LAUNCH, false),
    ("cuGraphLaunch_ptsz", cbid::GRAPH_LAUNCH_PTSZ, true),
];

/// Bit `i`: sampling of `LAUNCHES[i]` is decided in its hook.
static DECIDES: AtomicU32 = AtomicU32::new(0);

/// Whether launches with this driver callback id are decided upon in their hook, not in CUPTI's
/// callback.
#[inline]
pub fn decides(driver_cbid: u32) -> bool {
    LAUNCHES
        .iter()
        .position(|(_, cbid, _)| *cbid == driver_cbid)
        .is_some_and(|i| DECIDES.load(Ordering::Relaxed) & (1 << i) != 0)
}

/// Whether that is so of all of them.
pub fn decides_all() -> bool {
    DECIDES.load(Ordering::Relaxed).count_ones() as usize == LAUNCHES.len()
}

/// Leaves every decision to CUPTI's callbacks.
pub fn decide_in_callbacks() {
    DECIDES.store(0, Ordering::Relaxed);
}

/// A driver that hands out other functions than it exports runs launches that no hook sees; those
/// functions are left to CUPTI's callbacks.
pub fn verify(driver: &Driver) {
    for (i, (name, _, per_thread)) in LAUNCHES.iter().enumerate() {
        let base = name.trim_end_matches("_ptsz");
        if driver.hands_out_another(name, base, *per_thread) {
            DECIDES.fetch_and(!(1 << i), Ordering::Relaxed);
            crate::debug_log!(1, "{name}: cuGetProcAddress gives another function");
        }
    }
}

/// The engine that is asked for; an error in the variable is told when the session starts.
pub fn choice() -> Choice {
    if lifecycle::is_off() {
        return Choice::None;
    }
    std::env::var("PARCAGPU_HOOK_ENGINE")
        .ok()
        .and_then(|name| name.parse().ok())
        .unwrap_or_default()
}

/// Told once for every mapped copy of a watched library.
pub fn report(report: &Report) {
    if lifecycle::is_off() {
        return;
    }
    entry::silence_panics();
    lifecycle::watch_forks();
    crate::log::remember_stderr();
    crate::log::set_level(config::debug_level_of_environment());
    crate::debug_log!(
        1,
        "{}: {} by engine {:?} in {:?}",
        report.library,
        report.outcome,
        report.engine,
        report.took
    );
    for (name, refusal) in &report.refused {
        crate::debug_log!(1, "{name} is left alone: {refusal}");
        // Older drivers lack newer functions, and a function that shares another's code is hooked with
        // it.
        if !matches!(refusal, Refusal::Missing | Refusal::SameAs(_)) {
            errors::report(0, "hooks", &format!("{name} is left alone: {refusal}"));
        }
    }
    match report.outcome {
        Outcome::Hooked | Outcome::LateLoad | Outcome::NoEngine => {}
        // What this process may not do was told when the driver came.
        Outcome::NotPermitted(_) if !is_driver(&report.library) => {}
        _ => errors::report(
            0,
            "hooks",
            &format!("{}: {}", report.library, report.outcome),
        ),
    }
    if is_driver(&report.library) {
        report_driver(report);
    }
}

fn is_driver(library: &str) -> bool {
    library
        .rsplit('/')
        .next()
        .is_some_and(|name| name.starts_with("libcuda.so"))
}

fn report_driver(report: &Report) {
    let block = status::block();
    if report.outcome == Outcome::Hooked {
        for (i, (name, _, _)) in LAUNCHES.iter().enumerate() {
            let shared = |(other, refusal): &(&str, Refusal)| {
                other == name && matches!(refusal, Refusal::SameAs(_))
            };
            if report.hooked.contains(name) || report.refused.iter().any(shared) {
                DECIDES.fetch_or(1 << i, Ordering::Relaxed);
            }
        }
    }
    if block.state.load(Ordering::Relaxed) != State::Absent as u32 {
        return;
    }
    let hooked = report.engine != EngineKind::None;
    let asked = match choice() {
        Choice::Gum => Some(EngineKind::Gum),
        Choice::Detour => Some(EngineKind::Detour),
        Choice::Auto | Choice::None => None,
    };
    if let Some(asked) = asked
        && hooked
        && asked != report.engine
    {
        errors::report(
            0,
            "configuration",
            &format!(
                "PARCAGPU_HOOK_ENGINE={} cannot be had: {}; using {}",
                asked.name(),
                report.reason,
                report.engine.name()
            ),
        );
    }
    status::set_text(&block.engine, report.engine.name());
    let reason = if hooked {
        report.reason.to_owned()
    } else {
        format!("{}. {}", report.outcome, report.reason)
    };
    status::set_text(&block.engine_reason, reason.trim_end_matches([' ', '.']));
    if hooked {
        status::set_state(State::Hooked, "CUDA is not initialised yet");
    }
    if report.outcome != Outcome::LateLoad
        && let Some(path) = lifecycle::own_path()
    {
        ASKED.set(INJECTION, path.as_os_str());
    }
}

/// The second way in: the driver loads what this variable names, should a client call functions that it
/// does not export, or should `cuInit` not be hooked.
static ASKED: Ours = Ours::new();

/// We are in: neither the driver nor the program's children are to find that variable.
pub fn withdraw() {
    ASKED.withdraw();
}
