//! `parcagpu status --json` and its text, of processes in every state.

use std::time::Duration;

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Options};
use parcagpu_tests::block::{wait_delivered, wait_looks, wait_state};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::{Program, Running};
use serde_json::Value;

const SHORT: Duration = Duration::from_secs(10);

fn waiting(lab: &Lab, mode: Mode, words: &str) -> Running {
    let mut host = lab.host(mode, words).start();
    host.wait_gate(1);
    host
}

fn finish(mut host: Running) {
    host.open_gate(1);
    host.wait(SHORT).ok();
}

/// The one object for a process.
fn status(lab: &Lab, pid: u32) -> Value {
    let ended = lab
        .parcagpu(&format!("status --json --pid {pid}"))
        .run(SHORT)
        .ok();
    let json: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(1), "{json}");
    assert_eq!(json[0]["pid"], pid);
    assert_eq!(json[0]["library"], lab.library().display().to_string());
    assert_eq!(json[0]["library_deleted"], false);
    json[0].clone()
}

/// Reads other processes' memory: a right of root.
fn may_read(test: &str) -> bool {
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        need::skip(test, "root", "not root");
    }
    root
}

/// A program without CUDA so far.
#[test]
fn absent() {
    if !may_read("absent") {
        return;
    }
    let lab = Lab::new();
    let host = waiting(&lab, Mode::Preload, "gate");
    let json = status(&lab, host.pid());
    assert_eq!(json["state"], "absent", "{json}");
    assert_eq!(json["cupti_version"], 0);
    finish(host);
}

/// CUDA is in use and nobody listens.
#[test]
fn dormant() {
    if !may_read("dormant") {
        return;
    }
    let lab = Lab::new();
    for mode in [Mode::Preload, Mode::Injection] {
        let host = waiting(&lab, mode, "init launch 20 sync gate");
        // Nobody waits for our thread to ask for the driver where nobody listens.
        wait_looks(host.pid(), &lab.library());
        let json = status(&lab, host.pid());
        assert_eq!(json["state"], "dormant", "{json}");
        assert_eq!(json["block_pid"], host.pid());
        assert_eq!(json["driver_version"], 13000);
        assert_eq!(
            json["cupti_version"], 0,
            "CUPTI is not loaded before somebody listens"
        );
        assert_eq!(json["configuration"]["rate_limit"], 100.0);
        assert_eq!(json["configuration"]["graph_rate_limit"], 20.0);
        assert_eq!(json["configuration"]["pc_sampling_rate"], "off");
        assert_eq!(json["counters"]["eager_launches_sampled"], 0);
        let semaphores = json["semaphores"].as_object().expect("an object");
        assert!(semaphores.is_empty(), "{json}");
        finish(host);
    }
}

/// Somebody listens: counters, CUPTI, device.
#[test]
fn active() {
    if !need::bpf("active") {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let mut host = lab
        .host(
            Mode::Preload,
            "init gate launch 20 graph 3 replay 2 sync gate",
        )
        .env("PARCAGPU_RATE_LIMIT", "1000")
        .start();
    host.wait_gate(1);
    wait_state(host.pid(), &lab.library(), State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    wait_delivered(host.pid(), &lab.library());
    let json = status(&lab, host.pid());
    assert_eq!(json["state"], "active", "{json}");
    assert_eq!(json["cupti_version"], 130_001);
    assert!(
        json["cupti_path"]
            .as_str()
            .is_some_and(|p| p.ends_with("libcupti.so.13"))
    );
    assert_eq!(json["configuration"]["rate_limit"], 1000.0);
    let counters = &json["counters"];
    let number = |name: &str| {
        counters[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name}: {json}"))
    };
    let sampled = number("eager_launches_sampled");
    assert!(
        sampled >= 1 && sampled + number("eager_launches_refused") <= 23,
        "{json}"
    );
    assert_eq!(number("graph_launches_seen"), 2);
    assert!(number("graph_launches_sampled") >= 1);
    assert_eq!(number("ids_outstanding"), 0);
    assert_eq!(
        number("records_matched"),
        sampled + 3 * number("graph_launches_sampled")
    );
    assert_eq!(number("activations"), 1);
    assert_eq!(json["semaphores"]["cuda_correlation"], 1);
    assert_eq!(json["semaphores"].get("gpu_config"), None);
    let devices = json["devices"].as_array().expect("an array");
    assert!(devices.len() == 1 && devices[0]["ordinal"] == 0, "{json}");
    assert!(
        devices[0]["uuid"]
            .as_str()
            .is_some_and(|u| u.starts_with("GPU-")),
        "{json}"
    );
    let text = lab
        .parcagpu(&format!("status --pid {}", host.pid()))
        .run(SHORT)
        .ok()
        .stdout;
    assert!(text.contains("state         active"), "{text}");
    assert!(text.contains("cuda_correlation (1)"), "{text}");
    drop(agent);
    wait_state(host.pid(), &lab.library(), State::Dormant);
    assert_eq!(status(&lab, host.pid())["state"], "dormant");
    host.open_gate(2);
    host.wait(SHORT).ok();
}

/// Nothing can work: the state and the reason say so.
#[test]
fn stopped() {
    if !need::bpf("stopped") {
        return;
    }
    let lab = Lab::new();
    let _agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let mut host = lab
        .host(Mode::Preload, "init launch 5 gate")
        .env("MOCK_CUPTI_VERSION", "17")
        .start();
    host.wait_gate(1);
    wait_state(host.pid(), &lab.library(), State::Stopped);
    wait_looks(host.pid(), &lab.library());
    let json = status(&lab, host.pid());
    assert_eq!(json["state"], "stopped", "{json}");
    assert!(
        json["reason"]
            .as_str()
            .is_some_and(|r| r.contains("older than CUDA 11.8")),
        "{json}"
    );
    assert!(
        json["last_error"]
            .as_str()
            .is_some_and(|r| r.contains("11.8")),
        "{json}"
    );
    assert_eq!(json["counters"]["errors"], 1);
    finish(host);
}

/// A process without the library is refused by name; where there is none at all the list is empty.
#[test]
fn none() {
    if !may_read("none") {
        return;
    }
    let lab = Lab::new();
    let host = waiting(&lab, Mode::Bare, "gate");
    let ended = lab
        .parcagpu(&format!("status --json --pid {}", host.pid()))
        .run(SHORT);
    assert_eq!((ended.code(), ended.stdout.as_str()), (2, ""));
    assert!(ended.stderr.contains("does not map"), "{}", ended.stderr);
    finish(host);
    let ended = lab.parcagpu("status --pid 4194304").run(SHORT);
    assert_eq!(ended.code(), 2, "{}", ended.stderr);
    // A PID namespace of its own, so that the programs of other tests are not there.
    let alone = |words: &str| {
        Program::new("unshare", lab.path())
            .words("--pid --fork --mount-proc")
            .arg_path(&parcagpu_tests::artefacts::command())
            .words(words)
            .run(SHORT)
            .ok()
            .stdout
    };
    assert_eq!(alone("status --json"), "[]\n");
    assert!(
        alone("status").starts_with("no process"),
        "{}",
        alone("status")
    );
}
