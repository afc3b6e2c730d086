//! What the tests of PC sampling share: a sampled program, a consumer, and what it saw of samples.
#![allow(dead_code, reason = "every suite uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use parcagpu_tests::hosts;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::program::Program;
use parcagpu_tests::trace::{Events, Trace, number};
use serde_json::Value;

/// For programs whose end is near.
pub const SHORT: Duration = Duration::from_secs(10);
/// So many pairs a second that every interval is a window.
pub const ALL: &str = "1000000";

/// A consumer of every process of this lab's library, there before any.
#[track_caller]
pub fn attach(lab: &Lab) -> Trace {
    let library = lab.library();
    Trace::attach_with(lab, &[], &format!("--lib {}", library.display()))
}

/// A program with everything sampled; later variables win.
pub fn sampled(program: Program) -> Program {
    program
        .env("PARCAGPU_HOOK_ENGINE", hosts::engine())
        .env("PARCAGPU_PC_SAMPLING_RATE", ALL)
        .env("MOCK_CUPTI_STRICT", "1")
        .env(
            "MOCK_CUDA_KERNEL_NS",
            "1000000,host_kernel0=1000000,host_kernel1=3000000",
        )
}

/// The host program with two kernels of 1 and 3 ms, in turn.
pub fn two_kernels(lab: &Lab, words: &str) -> Program {
    sampled(lab.host(Mode::Preload, &format!("modules 2 init {words}")))
}

/// `hosts/pc/program.c` with words.
pub fn program(lab: &Lab, words: &str) -> Program {
    program_in(lab, Mode::Preload, words)
}

/// The same in any mode.
pub fn program_in(lab: &Lab, mode: Mode, words: &str) -> Program {
    let path: PathBuf = lab.file("pc-program");
    if !path.exists() {
        hosts::compile(lab, "pc/program.c", "pc-program", &[]);
    }
    sampled(lab.program(mode, path).words(words))
}

/// Whether a process samples the simulated GPU with this number, as the kernel writes it down.
pub fn is_claimed(gpu: u32) -> bool {
    // Its UUID is text but for the number.
    let number: String = gpu.to_le_bytes().map(|b| format!("{b:02x}")).concat();
    let name = format!("@parcagpu/pc-sampling/GPU-73696d75-6c61-7465-642d-{number}3030");
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("the list of sockets");
    sockets.contains(&name)
}

/// A PC sample.
#[derive(Clone, Debug)]
pub struct Sample {
    pub time: u64,
    pub crc: u64,
    pub offset: u64,
    pub id: u64,
    pub name: String,
    /// Name and samples.
    pub reasons: Vec<(String, u64)>,
    pub event: Value,
}

impl Sample {
    /// Samples; a part of a reason is not counted again.
    pub fn count(&self) -> u64 {
        let whole = self
            .reasons
            .iter()
            .filter(|r| !r.0.ends_with("_not_issued"));
        whole.map(|r| r.1).sum()
    }
}

/// All samples, with the names of their reasons from the table that was told.
pub fn samples(events: &Events) -> Vec<Sample> {
    let table = events.of("stall_reason_map").next();
    let names = table.and_then(|table| table["names"].as_array());
    let name = |index: u64| {
        let name = names.and_then(|names| names.get(index as usize));
        name.and_then(Value::as_str).unwrap_or("").to_owned()
    };
    let sample = |event: &Value| Sample {
        time: number(event, "time_ns"),
        crc: number(event, "cubin_crc"),
        offset: number(event, "pc_offset"),
        id: number(event, "correlation_id"),
        name: event["name"].as_str().expect("a name").to_owned(),
        reasons: event["stall_reasons"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|r| (name(number(r, "index")), number(r, "samples")))
            .collect(),
        event: event.clone(),
    };
    events.of("pc_sample_batch").map(sample).collect()
}

/// Samples by kernel.
pub fn by_kernel(samples: &[Sample]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for sample in samples {
        *sums.entry(sample.name.clone()).or_default() += sample.count();
    }
    sums
}

/// Checksums that `cubin_loaded` told.
pub fn cubins(events: &Events) -> BTreeSet<u64> {
    let loaded = events.of("cubin_loaded");
    loaded.map(|event| number(event, "cubin_crc")).collect()
}

/// Errors of PC sampling.
pub fn refusals(events: &Events) -> Vec<(i64, String)> {
    let errors = events.errors().into_iter();
    errors
        .filter(|error| error.1 == "pc sampling")
        .map(|error| (error.0, error.2))
        .collect()
}

/// Asserts what holds for every sample: a known cubin, an instruction in it, reasons with names.
#[track_caller]
pub fn sound(events: &Events) -> Vec<Sample> {
    let (samples, cubins) = (samples(events), cubins(events));
    for sample in &samples {
        let known =
            |r: &(String, u64)| r.0.starts_with("smsp__pcsamp_warps_issue_stalled_") && r.1 > 0;
        assert!(
            cubins.contains(&sample.crc),
            "{} of {cubins:?}",
            sample.event
        );
        assert!(sample.offset.is_multiple_of(16), "{}", sample.event);
        assert!(sample.reasons.iter().all(known), "{}", sample.event);
    }
    samples
}
