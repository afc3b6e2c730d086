//! Consumers attaching and leaving, as the semaphores tell it.

use std::time::Duration;

use parcagpu_abi::probe::{ALL, CUDA_CORRELATION};
use parcagpu_abi::status::State;
use parcagpu_tests::agent::Agent;
use parcagpu_tests::block::{wait_delivered, wait_semaphores, wait_semaphores_that, wait_state};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::{Program, Running};

const SHORT: Duration = Duration::from_secs(10);

/// A program that has the library and waits.
fn waiting(lab: &Lab) -> Running {
    let mut host = lab.host(Mode::Preload, "gate").start();
    host.wait_gate(1);
    host
}

/// A bpftrace that counts every probe of this lab's library.
fn bpftrace(lab: &Lab, pid: Option<u32>) -> Running {
    let library = lab.library().display().to_string();
    let mut script = "BEGIN { printf(\"ready\\n\"); }".to_owned();
    for probe in ALL {
        script += &format!(
            " usdt:{library}:parcagpu:{} {{ @n = count(); }}",
            probe.name
        );
    }
    let mut program = Program::new("bpftrace", lab.path());
    if let Some(pid) = pid {
        program = program.args(["-p", &pid.to_string()]);
    }
    program.args(["-e", &script]).start()
}

fn finish(mut host: Running) {
    host.open_gate(1);
    host.wait(SHORT).ok();
}

/// libbpf: 1 while one consumer is there and 0 afterwards, for every probe, in a program that ran
/// before and in one that started later.
#[test]
fn libbpf_counts_one() {
    if !need::bpf("libbpf_counts_one") {
        return;
    }
    let lab = Lab::new();
    let early = waiting(&lab);
    wait_semaphores(early.pid(), &lab.library(), 0);
    let agent = Agent::counting(&lab.library(), -1).unwrap();
    wait_semaphores(early.pid(), &lab.library(), 1);
    let late = waiting(&lab);
    wait_semaphores(late.pid(), &lab.library(), 1);
    drop(agent);
    wait_semaphores(early.pid(), &lab.library(), 0);
    wait_semaphores(late.pid(), &lab.library(), 0);
    finish(early);
    finish(late);
}

/// The same with the distribution's bpftrace.
#[test]
fn bpftrace_counts_one() {
    if !need::bpf("bpftrace_counts_one") || !need::program("bpftrace_counts_one", "bpftrace") {
        return;
    }
    let lab = Lab::new();
    let early = waiting(&lab);
    let client = bpftrace(&lab, None);
    wait_semaphores(early.pid(), &lab.library(), 1);
    let late = waiting(&lab);
    wait_semaphores(late.pid(), &lab.library(), 1);
    client.interrupt(SHORT).ok();
    wait_semaphores(early.pid(), &lab.library(), 0);
    wait_semaphores(late.pid(), &lab.library(), 0);
    finish(early);
    finish(late);
}

/// Attached to one process, another one with the same library stays as it is.
#[test]
fn one_process_only() {
    if !need::bpf("one_process_only") {
        return;
    }
    let lab = Lab::new();
    let (chosen, other) = (waiting(&lab), waiting(&lab));
    let agent = Agent::counting(&lab.library(), chosen.pid().cast_signed()).unwrap();
    wait_semaphores(chosen.pid(), &lab.library(), 1);
    wait_semaphores(other.pid(), &lab.library(), 0);
    drop(agent);
    wait_semaphores(chosen.pid(), &lab.library(), 0);
    finish(chosen);
    finish(other);
}

/// Two clients, one killed without a chance to tidy up: the other goes on, and only when it leaves is
/// nobody there. (Whether two read as 1 or 2 is the kernel's affair: newer ones count breakpoints.)
#[test]
fn two_clients_one_killed() {
    let test = "two_clients_one_killed";
    if !need::bpf(test) || !need::program(test, "bpftrace") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab
        .host(Mode::Preload, "init gate launch 10 sync gate")
        .start();
    host.wait_gate(1);
    let mut client = bpftrace(&lab, None);
    client.wait_stdout("ready");
    let raised = |value| value == 1 || value == 2;
    wait_semaphores_that(host.pid(), &lab.library(), "raised", raised);
    let agent = Agent::counting(&lab.library(), -1).unwrap();
    wait_semaphores_that(host.pid(), &lab.library(), "raised", raised);
    client.signal(libc::SIGKILL);
    assert_eq!(client.wait(SHORT).code(), -libc::SIGKILL);
    wait_semaphores(host.pid(), &lab.library(), 1);
    wait_state(host.pid(), &lab.library(), State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    assert!(
        agent.firings(CUDA_CORRELATION) > 0,
        "the other one sees launches"
    );
    drop(agent);
    wait_semaphores(host.pid(), &lab.library(), 0);
    host.open_gate(2);
    host.wait(SHORT).ok();
}

/// `parcagpu.bt` prints a launch, its kernel and an error of a simulated run.
#[test]
fn bpftrace_view() {
    if !need::bpf("bpftrace_view") || !need::program("bpftrace_view", "bpftrace") {
        return;
    }
    let lab = Lab::new();
    let script = parcagpu_tests::artefacts::root().join("parcagpu.bt");
    let mut view = Program::new("bpftrace", lab.path())
        .arg_path(&script)
        .arg_path(&lab.library())
        .start();
    view.wait_stdout("listening");
    view.wait_for_events();
    let words = "kernel viewed_kernel init launch 10 graph 3 replay 1 sync gate";
    let mut host = lab
        .host(Mode::Preload, words)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .env("PARCAGPU_NONSENSE", "1")
        .start();
    let pid = host.pid();
    host.wait_gate(1);
    wait_delivered(pid, &lab.library());
    host.open_gate(1);
    host.wait(SHORT).ok();
    view.wait_lines(&format!("{pid} {pid} cuda_correlation id="), 11);
    view.wait_lines(" activity_batch id=", 13);
    view.wait_lines("PARCAGPU_NONSENSE", 1);
    let ended = view.interrupt(SHORT).ok();
    let lines_with = |text: &str| {
        let mine = ended
            .stdout
            .lines()
            .filter(|l| l.starts_with(&format!("{pid} ")));
        mine.filter(|l| l.contains(text)).count()
    };
    let output = || format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(lines_with(" cuda_correlation id="), 11, "{}", output());
    assert_eq!(lines_with(" activity_batch id="), 13, "{}", output());
    assert!(lines_with("viewed_kernel") >= 23, "{}", output());
    assert!(
        lines_with(" error code=0 configuration: PARCAGPU_NONSENSE") >= 1,
        "{}",
        output()
    );
}
