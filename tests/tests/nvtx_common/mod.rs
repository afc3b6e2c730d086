//! Real NVTX clients for the tests: headers and libraries from PyPI, programs of `tests/hosts/nvtx`.

#![allow(dead_code, reason = "each suite uses its part")]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use parcagpu_tests::artefacts;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::need;
use parcagpu_tests::program::{Program, Running};
use parcagpu_tests::trace::{Trace, number};
use serde_json::Value;

pub const SHORT: Duration = Duration::from_secs(10);
/// Variable by which a client finds its tool.
pub const INJECTION: &str = "NVTX_INJECTION64_PATH";
/// Headers of NVTX v3, by the CUDA version that brought them.
pub const VERSIONS: [&str; 4] = ["11.8", "12.1", "12.9", "13.5"];
/// For tests in which it does not matter.
pub const NEWEST: &str = "13.5";

/// Everything that `scripts/fetch-nvtx` gets; `None` when it cannot be had, which is then said aloud.
pub fn wheels(test: &str) -> Option<PathBuf> {
    static FETCHED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let fetch = || {
        let script = artefacts::root().join("scripts/fetch-nvtx");
        let fetched = Command::new(&script)
            .output()
            .map_err(|e| format!("{}: {e}", script.display()))?;
        if fetched.status.success() {
            let target = std::env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| artefacts::root().join("target"), PathBuf::from);
            return Ok(target.join("nvtx-wheels"));
        }
        let errors = String::from_utf8_lossy(&fetched.stderr);
        let first = errors.lines().next().unwrap_or("fetch-nvtx failed");
        Err(first.trim_end_matches(':').to_owned())
    };
    match FETCHED.get_or_init(fetch) {
        Ok(folder) => Some(folder.clone()),
        Err(reason) => {
            need::skip(test, "wheels", reason);
            None
        }
    }
}

/// BPF rights and the wheels.
pub fn ready(test: &str) -> Option<PathBuf> {
    if !need::bpf(test) {
        return None;
    }
    wheels(test)
}

/// Compiles a program, or with `-shared` a library, of `tests/hosts/nvtx` against headers of a version.
#[track_caller]
pub fn compile(
    lab: &Lab,
    compiler: &str,
    source: &str,
    headers: &Path,
    name: &str,
    more: &[&OsStr],
) -> PathBuf {
    let folder = artefacts::root().join("tests/hosts/nvtx");
    let result = lab.file(name);
    let language: &[&str] = match compiler {
        "g++" => &["-x", "c++", "-std=c++17"],
        _ => &["-std=gnu11"],
    };
    let output = Command::new(compiler)
        .args(language)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-isystem"])
        .arg(folder.join("stubs"))
        .arg("-isystem")
        .arg(headers.join("include"))
        .arg(folder.join(source))
        .args(["-x", "none"])
        .args(more)
        .args(["-ldl", "-lpthread", "-o"])
        .arg(&result)
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(
        output.status.success(),
        "{compiler} {source}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    result
}

/// A C program against the newest headers.
#[track_caller]
pub fn program(lab: &Lab, wheels: &Path, source: &str) -> PathBuf {
    let name = source.trim_end_matches(".c");
    compile(lab, "gcc", source, &wheels.join(NEWEST), name, &[])
}

/// A program without CUDA whose NVTX tool is this lab's library.
pub fn injected(lab: &Lab, path: impl AsRef<OsStr>) -> Program {
    Program::new(path, lab.path())
        .without("NVTX_DISABLE")
        .env(INJECTION, lab.library())
}

/// Attaches to this lab's library, for all processes.
#[track_caller]
pub fn attach(lab: &Lab) -> Trace {
    let library = lab.library();
    Trace::attach_with(lab, &[], &format!("--lib {}", library.display()))
}

/// An event, without what differs from run to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub kind: String,
    /// By name, "" for the default domain.
    pub domain: String,
    pub message: String,
    pub color: u64,
    pub payload: (u64, u64),
    pub thread: u64,
    pub range: u64,
    pub pid: u64,
}

/// Names told by `nvtx_resource_name`, by kind and id.
pub fn names(events: &[Value]) -> HashMap<(String, u64), String> {
    events
        .iter()
        .filter(|e| e["probe"] == "nvtx_resource_name")
        .map(|e| ((text(e, "kind"), number(e, "id")), text(e, "name")))
        .collect()
}

#[track_caller]
pub fn text(event: &Value, field: &str) -> String {
    event[field]
        .as_str()
        .unwrap_or_else(|| panic!("no text {field} in {event}"))
        .to_owned()
}

/// NVTX events in the order of their times, with domains by name.
pub fn said(events: &[Value]) -> Vec<Said> {
    let names = names(events);
    let mut nvtx: Vec<&Value> = events
        .iter()
        .filter(|e| e["probe"] == "nvtx_event_batch")
        .collect();
    nvtx.sort_by_key(|e| number(e, "timestamp_ns"));
    nvtx.iter()
        .map(|e| {
            let domain = match number(e, "domain_id") {
                0 => String::new(),
                id => names
                    .get(&("nvtx_domain".to_owned(), id))
                    .cloned()
                    .unwrap_or_else(|| format!("(domain {id})")),
            };
            Said {
                kind: text(e, "kind"),
                domain,
                message: text(e, "message"),
                color: number(e, "color"),
                payload: (number(e, "payload_type"), number(e, "payload")),
                thread: number(e, "thread"),
                range: number(e, "range_id"),
                pid: number(e, "pid"),
            }
        })
        .collect()
}

/// Starts a program and lets it come to its first gate.
#[track_caller]
pub fn at_first_gate(program: Program) -> Running {
    let mut running = program.start();
    running.wait_gate(1);
    running
}

/// A C function's copy of the tool that writes everything down.
#[track_caller]
pub fn logging_tool(lab: &Lab, wheels: &Path) -> PathBuf {
    let shared: [&OsStr; 2] = ["-shared".as_ref(), "-fPIC".as_ref()];
    compile(
        lab,
        "gcc",
        "tool.c",
        &wheels.join(NEWEST),
        "tool.so",
        &shared,
    )
}
