//! Between consumers: one thread that keeps out of the way, and nothing that grows.

use std::fs;
use std::time::Duration;

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::{self, looks_until, wait_state};
use parcagpu_tests::full;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const SHORT: Duration = Duration::from_secs(10);
/// How often a consumer comes and goes in `attach_and_detach`; 1000 takes some eight minutes.
const CYCLES: &str = "PARCAGPU_TEST_CYCLES";
const FEW_CYCLES: usize = 25;
/// Records in one of CUPTI's buffers there.
const RECORDS: usize = 16;

/// Name, nice value and scheduling policy of every thread.
fn threads(pid: u32) -> Vec<(String, i64, i64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
    let of = |path: std::path::PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        // Fields 3 and on.
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let number = |field: usize| fields[field - 3].parse().ok();
        let name = head.split_once('(')?.1.to_owned();
        Some((name, number(19)?, number(41)?))
    };
    tasks.flatten().filter_map(|task| of(task.path())).collect()
}

fn resident_kib(pid: u32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let field = line.and_then(|line| line.split_whitespace().nth(1));
    field.expect("VmRSS").parse().expect("a number")
}

/// Our thread gives way to the program's, whose own priorities stay.
#[test]
fn the_thread_has_a_low_priority() {
    let lab = Lab::new();
    for mode in Mode::WITH {
        let mut host = lab.host(mode, "init gate").start();
        host.wait_gate(1);
        // After its first look.
        block::wait_looks(host.pid(), &lab.library());
        let (ours, others): (Vec<_>, Vec<_>) = threads(host.pid())
            .into_iter()
            .partition(|(name, ..)| name == "parcagpu");
        let policy = i64::from(libc::SCHED_BATCH);
        assert_eq!(ours, [("parcagpu".to_owned(), 5, policy)], "{mode:?}");
        assert!(!others.is_empty());
        for (name, nice, policy) in others {
            assert_eq!((nice, policy), (0, 0), "{mode:?}: {name}");
        }
        host.open_gate(1);
        host.wait(SHORT).ok();
    }
}

/// But not before what the program waits for: that a consumer who is there already is served when CUDA is.
#[test]
fn the_priority_is_low_when_nobody_waits() {
    if !need::bpf("the_priority_is_low_when_nobody_waits") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("subscribers");
    let first = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let mut host = lab
        .host(Mode::Preload, "init gate")
        .env("PARCAGPU_CUPTI_PATH", lab.slow_cupti())
        .env("SUBSCRIBERS", &log)
        .start();
    host.wait_gate(1);
    wait_state(host.pid(), &lab.library(), State::Active);
    drop(first);
    wait_state(host.pid(), &lab.library(), State::Dormant);
    let _second = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    wait_state(host.pid(), &lab.library(), State::Active);
    let policies = [libc::SCHED_OTHER, libc::SCHED_BATCH];
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        format!("0 {}\n5 {}\n", policies[0], policies[1])
    );
    host.open_gate(1);
    host.wait(SHORT).ok();
}

/// A child that does not use CUDA has no thread of ours, whenever it was forked.
#[test]
fn children_without_cuda_have_no_thread() {
    let lab = Lab::new();
    for words in ["fork gate end", "init launch 5 sync fork gate end"] {
        let mut host = lab
            .host(Mode::Preload, &format!("{words} say forked init"))
            .start();
        host.wait_gate(1);
        let children = format!("/proc/{0}/task/{0}/children", host.pid());
        let children = fs::read_to_string(children).expect("the parent is there");
        let child = children.trim().parse().expect("one process id");
        // One that comes late would come at a look.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(threads(child).len(), 1, "{words}");
        host.open_gate(1);
        host.wait(SHORT).ok();
    }
}

/// A consumer that comes and goes leaves no descriptor, thread, mapping or memory behind; it is served at the first
/// look of our thread, and everything is off at the first one after it left.
#[test]
fn attach_and_detach() {
    if !need::bpf("attach_and_detach") {
        return;
    }
    let cycles = std::env::var(CYCLES).map_or_else(
        |_| full::pick(FEW_CYCLES, 200),
        |n| n.parse().expect("a number"),
    );
    assert!(cycles >= 10, "{CYCLES} is too small to tell anything");
    let lab = Lab::new();
    let mut host = lab.host(Mode::Preload, "init say up thread spaced 500 3600 end gate");
    host = host.env("MOCK_CUPTI_BUFFER_RECORDS", RECORDS.to_string());
    let mut host = host.start();
    host.wait_stdout("up");
    let (mut served, mut off) = (Vec::new(), Vec::new());
    let (mut held, mut memory) = (Vec::new(), Vec::new());
    for cycle in 0..cycles {
        let consumer = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
        served.push(looks_until(host.pid(), &lab.library(), State::Active));
        if cycle % 5 == 0 {
            // With the first full buffer CUPTI starts a thread, which is not to be counted as ours.
            let records = if cycle == 0 { 2 * RECORDS } else { 0 };
            let seen = consumer.poll_until(|events| {
                let came = events.iter().filter(|e| e.kind == Kind::Record);
                !events.is_empty() && came.count() >= records
            });
            assert!(seen, "cycle {cycle}");
        }
        drop(consumer);
        // The kernel takes its time to detach.
        block::wait_semaphores(host.pid(), &lab.library(), 0);
        off.push(looks_until(host.pid(), &lab.library(), State::Dormant));
        held.push(block::holdings(host.pid()));
        memory.push(resident_kib(host.pid()));
    }
    let (early, late) = (held[4], held[cycles - 1]);
    assert_eq!((early.0, early.1), (late.0, late.1), "{held:?}");
    // After a cycle in which a thread stood still there may be more buffers for a moment, which is no growth.
    let least = |last: &[(usize, usize, usize)]| last.iter().map(|held| held.2).min();
    let mappings = least(&held[cycles - 5..]).expect("five of them");
    assert!(mappings <= early.2 + 4, "mappings: {held:?}");
    let grown = memory[cycles - 5..].iter().min().expect("five of them") - memory[4];
    assert!(grown < 1024, "{grown} KiB: {memory:?}");
    assert!(served.iter().all(|looks| *looks <= 1), "{served:?}");
    // A launch that is inside at the moment leaves it to the next look.
    off.sort_unstable();
    assert!(off[cycles / 2] <= 1, "{off:?}");
    let activations = block::counter(host.pid(), &lab.library(), Counter::Activations);
    assert_eq!(activations, cycles as u64);
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
}
