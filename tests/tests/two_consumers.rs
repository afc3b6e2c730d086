//! Two consumers of one program: each sees what it should, whoever comes late or leaves.

use std::time::Duration;

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::artefacts;
use parcagpu_tests::block::{wait_delivered, wait_state};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log;
use parcagpu_tests::need;
use parcagpu_tests::program::{Program, Running};

const SHORT: Duration = Duration::from_secs(10);

fn bpftrace(lab: &Lab) -> Running {
    let mut view = Program::new("bpftrace", lab.path())
        .arg_path(&artefacts::root().join("parcagpu.bt"))
        .arg_path(&lab.library())
        .start();
    view.wait_stdout("listening");
    view.wait_for_events();
    view
}

fn top(lab: &Lab, pid: u32) -> Running {
    let mut view = lab.parcagpu(&format!("top --json --pid {pid}")).start();
    view.wait_stderr("attached to");
    view
}

/// Launches and records that `top --json` counted.
fn counted(top: Running) -> (u64, u64) {
    let ended = top.interrupt(SHORT).ok();
    let json: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(json["events_dropped"], 0);
    let process = &json["processes"][0];
    let number = |key: &str| {
        process[key]
            .as_u64()
            .unwrap_or_else(|| panic!("no {key}: {json}"))
    };
    (number("launches_told"), number("records"))
}

/// Launches and records that `parcagpu.bt` printed, which leaves when it has printed so many of both.
fn printed(mut bpftrace: Running, expected: usize) -> (u64, u64) {
    bpftrace.wait_lines(" cuda_correlation id=", expected);
    bpftrace.wait_lines(" activity_batch id=", expected);
    let ended = bpftrace.interrupt(SHORT).ok();
    let lines = |what: &str| ended.stdout.lines().filter(|l| l.contains(what)).count() as u64;
    (lines(" cuda_correlation id="), lines(" activity_batch id="))
}

/// Host words with a gate between phases of launches.
fn host(lab: &Lab, phases: &[u64]) -> Running {
    let mut words = "init gate".to_owned();
    for launches in phases {
        words += &format!(" launch {launches} sync gate");
    }
    let mut host = lab
        .host(Mode::Preload, &words)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .env("MOCK_LOG", lab.file("calls"))
        .start();
    host.wait_gate(1);
    host
}

fn mock_launches(lab: &Lab) -> u64 {
    mock_log::count(&mock_log::read(&lab.file("calls")), "cuLaunchKernel") as u64
}

/// bpftrace from the start to the end; `top` comes late.
#[test]
fn one_late() {
    if !need::bpf("one_late") || !need::program("one_late", "bpftrace") {
        return;
    }
    let lab = Lab::new();
    let mut host = host(&lab, &[100, 250]);
    let early = bpftrace(&lab);
    wait_state(host.pid(), &lab.library(), State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    // What was launched is delivered before the next consumer comes or goes.
    wait_delivered(host.pid(), &lab.library());
    let late = top(&lab, host.pid());
    host.open_gate(2);
    host.wait_gate(3);
    wait_delivered(host.pid(), &lab.library());
    assert_eq!(mock_launches(&lab), 350);
    assert_eq!(counted(late), (250, 250));
    host.open_gate(3);
    host.wait(SHORT).ok();
    assert_eq!(printed(early, 350), (350, 350));
}

/// Both from the start; bpftrace leaves early, `top` sees all.
#[test]
fn one_leaves() {
    if !need::bpf("one_leaves") || !need::program("one_leaves", "bpftrace") {
        return;
    }
    let lab = Lab::new();
    let mut host = host(&lab, &[120, 200]);
    let leaving = bpftrace(&lab);
    let staying = top(&lab, host.pid());
    wait_state(host.pid(), &lab.library(), State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    // What was launched is delivered before the next consumer comes or goes.
    wait_delivered(host.pid(), &lab.library());
    assert_eq!(printed(leaving, 120), (120, 120));
    host.open_gate(2);
    host.wait_gate(3);
    wait_delivered(host.pid(), &lab.library());
    assert_eq!(counted(staying), (320, 320));
    assert_eq!(mock_launches(&lab), 320);
    wait_state(host.pid(), &lab.library(), State::Dormant);
    host.open_gate(3);
    host.wait(SHORT).ok();
}

/// Errors are told to a consumer that comes second, too, long after the first one.
#[test]
fn metadata_for_the_second() {
    if !need::bpf("metadata_for_the_second") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab
        .host(Mode::Preload, "init gate")
        .env("PARCAGPU_NO_SUCH_THING", "1")
        .start();
    host.wait_gate(1);
    let first = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let told =
        |events: &[parcagpu_tests::agent::Event]| events.iter().any(|e| e.kind == Kind::Error);
    assert!(first.poll_until(told), "the first");
    // All that is told again because of the first one: three times in five seconds.
    std::thread::sleep(Duration::from_secs(6));
    let second = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    assert!(second.poll_until(told), "the second");
    host.open_gate(1);
    host.wait(SHORT).ok();
}
