//! Forks, exec and every way to end: as without the library, and no later.

use std::fs;
use std::time::{Duration, Instant};

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block;
use parcagpu_tests::compare::same_output;
use parcagpu_tests::full;
use parcagpu_tests::hosts::compile;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const SHORT: Duration = Duration::from_secs(10);

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// The end of a program waits for the last records, and they come while it does. On a machine that stands still at
/// that moment they do not, and tests that look at what came at the end allow for it; not every time.
#[test]
fn an_end_that_is_not_cut_short() {
    const TRIES: usize = 30;
    if !need::bpf("an_end_that_is_not_cut_short") {
        return;
    }
    let lab = Lab::new();
    for mode in Mode::WITH {
        let whole = (0..TRIES).any(|_| {
            let consumer = agent(&lab);
            let host = lab.host(mode, "init launch 10 sync");
            host.env("PARCAGPU_RATE_LIMIT", "1e9").run(SHORT).ok();
            consumer.assert_records(10);
            !consumer.cut_short()
        });
        assert!(whole, "{mode:?}: {TRIES} ends were cut short");
    }
}

/// Launches after the last event are counted, too, where the end has nothing else to tell.
#[test]
fn the_last_launches_are_counted() {
    if !need::bpf("the_last_launches_are_counted") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab
        .host(
            Mode::Preload,
            "init gate launch 1 sync gate launch 5000 sync gate",
        )
        .env("PARCAGPU_RATE_LIMIT", "0.001")
        .start();
    host.wait_gate(1);
    let (pid, library) = (host.pid(), lab.library());
    // Its looks at the counters are a second apart.
    let mut view = lab.parcagpu(&format!("top --json --pid {pid}")).start();
    view.wait_stderr("attached to");
    block::wait_state(pid, &library, State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    block::wait_delivered(pid, &library);
    host.open_gate(2);
    host.open_gate(3);
    host.wait(SHORT).ok();
    let ended = view.wait(SHORT).ok();
    let json: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let process = &json["processes"][0];
    let number = |key: &str| process[key].as_u64();
    assert_eq!(number("launches_told"), Some(1), "{json}");
    assert_eq!(number("launches_seen"), Some(5001), "{json}");
}

/// A child forked before CUDA is used starts over by itself; consumers see it.
#[test]
fn fork_before_cuda() {
    if !need::bpf("fork_before_cuda") {
        return;
    }
    let lab = Lab::new();
    same_output(&lab, "fork init launch 10 sync count end say parent", |p| p);
    same_output(
        &lab,
        "fork init launch 10 sync end init launch 5 sync count",
        |p| p,
    );
    let consumer = agent(&lab);
    let mut host = lab
        .host(Mode::Preload, "fork init launch 10 sync end gate")
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    host.wait_gate(1);
    let parent = host.pid();
    assert_ne!(
        block::read(parent, &lab.library()).map(|s| block::state(&s)),
        Some(State::Active)
    );
    host.open_gate(1);
    host.wait(SHORT).ok();
    let launches = consumer.of(Kind::Correlation);
    assert_eq!(launches.len(), 10);
    assert!(launches.iter().all(|l| l.pid != parent));
    consumer.assert_records(10);
}

/// The same while other threads are in a lock of ours at any moment, which the child then has without the thread.
#[test]
fn fork_beside_threads_in_our_locks() {
    let lab = Lab::new();
    let forks = compile(&lab, "cases/forks.c", "forks", &[]);
    // The program itself gives a child up after 120 s.
    lab.program(Mode::Preload, forks)
        .words(full::pick("100", "5000"))
        .run(Duration::from_secs(180))
        .ok();
}

/// A child forked after that cannot use CUDA, and says that it is over.
#[test]
fn fork_after_cuda() {
    if !need::bpf("fork_after_cuda") {
        return;
    }
    let lab = Lab::new();
    same_output(
        &lab,
        "init launch 5 fork launch 1 end launch 5 sync count",
        |p| p,
    );
    same_output(
        &lab,
        "init launch 5 fork say child end launch 5 sync count",
        |p| p,
    );
    same_output(&lab, "init launch 5 fork exit 4 end exit 5", |p| p);
    same_output(&lab, "init launch 5 fork _exit 4 end exit 5", |p| p);
    let busy = "init thread flat 1 end repeat 20 fork say child end end join sync";
    same_output(&lab, busy, |p| p);
    let consumer = agent(&lab);
    let mut host = lab
        .host(
            Mode::Preload,
            "init launch 5 fork gate end sync launch 5 sync",
        )
        .start();
    host.wait_gate(1);
    let parent = host.pid();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let child: u32 = children.trim().parse().unwrap();
    let status = block::read(child, &lab.library()).unwrap();
    assert_eq!(
        block::state(&status),
        State::Stopped,
        "{}",
        status.reason.load()
    );
    assert_ne!(status.reason.load(), "");
    assert_eq!(
        status.get(Counter::EagerSampled),
        0,
        "the parent's numbers are not the child's"
    );
    assert_eq!(block::threads(child).len(), 1);
    block::wait_state(parent, &lab.library(), State::Active);
    host.open_gate(1);
    host.wait(SHORT).ok();
    drop(consumer);
}

/// exec starts a new program, which is seen like the first.
#[test]
fn exec() {
    if !need::bpf("exec") {
        return;
    }
    let lab = Lab::new();
    let host = parcagpu_tests::artefacts::host().display().to_string();
    let words = format!("init launch 5 sync exec {host} init launch 7 sync count nofds");
    same_output(&lab, &words, |p| p);
    let consumer = agent(&lab);
    lab.host(Mode::Preload, &words)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .run(SHORT)
        .ok();
    // The first program's last records die with it, as with _exit.
    assert_eq!(consumer.of(Kind::Correlation).len(), 12);
    let records = consumer.of(Kind::Record).len();
    assert!(records >= 7 || consumer.cut_short(), "{records}");
}

const EXITS: [&str; 7] = [
    "",
    "exit 3",
    "_exit 3",
    "quick_exit 3",
    "exitthread 3",
    "abort",
    "raise 15",
];

/// Every way to end, with launches just made.
#[test]
fn exits() {
    if !need::bpf("exits") {
        return;
    }
    let lab = Lab::new();
    for _ in 0..full::pick(1, 100) {
        for end in EXITS {
            same_output(
                &lab,
                &format!("init launch 200 graph 3 replay 10 {end}"),
                |p| p,
            );
        }
    }
}

/// Every way to end while other threads go on launching, and CUPTI delivers buffers at the end.
#[test]
fn exits_with_threads() {
    if !need::bpf("exits_with_threads") {
        return;
    }
    let lab = Lab::new();
    for _ in 0..full::pick(1, 100) {
        for end in EXITS {
            let words = format!(
                "init thread flat 60 end thread flat 60 end thread graph 3 replayflat 60 end sleep 150 {end}"
            );
            same_output(&lab, &words, |p| {
                p.env("MOCK_CUPTI_EXIT_BUFFERS", "1")
                    .env("MOCK_CUPTI_STRICT", "1")
            });
        }
    }
}

/// A flush that blocks for ever does not hold the end of the program.
#[test]
fn exit_while_flush_blocks() {
    if !need::bpf("exit_while_flush_blocks") {
        return;
    }
    let lab = Lab::new();
    let cupti = lab.slow_cupti();
    for mode in Mode::WITH {
        let consumer = agent(&lab);
        let mut host = lab
            .host(mode, "init launch 20 sleep 200 gate exit 5")
            .env("PARCAGPU_CUPTI_PATH", &cupti)
            .env("SLOW_FLUSH_MS", "3600000")
            .start();
        let began = Instant::now();
        host.open_gate(1);
        assert_eq!(host.wait(SHORT).code(), 5);
        // Its bound is 400 ms; this ends a wait that has none.
        assert!(began.elapsed() < SHORT * 2, "{mode:?}");
        assert!(
            !consumer.of(Kind::Correlation).is_empty(),
            "{mode:?}: it was active"
        );
        let errors = consumer.all_errors();
        assert!(consumer.cut_short(), "{mode:?}: {errors:?}");
    }
}

/// A flush that comes back when the end has not waited for it is the last one: libcupti may be gone by then.
#[test]
fn exit_does_not_wait_and_nothing_begins_afterwards() {
    if !need::bpf("exit_does_not_wait_and_nothing_begins_afterwards") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let host = lab
        .host(Mode::Preload, "init launch 20 sleep 900 exit 5")
        .env("PARCAGPU_CUPTI_PATH", lab.slow_cupti())
        .env("SLOW_FLUSH_MS", "1500")
        .env("SLOW_END_MS", "1800")
        .start();
    assert_eq!(host.wait(SHORT).code(), 5);
    assert!(consumer.cut_short(), "{:?}", consumer.all_errors());
}

/// Where nothing was launched nothing is missing, and no error is told, however long CUPTI takes.
#[test]
fn exit_without_launches_while_flush_blocks() {
    if !need::bpf("exit_without_launches_while_flush_blocks") {
        return;
    }
    let lab = Lab::new();
    let cupti = lab.slow_cupti();
    let consumer = agent(&lab);
    let mut host = lab
        .host(Mode::Preload, "init sleep 200 gate exit 5")
        .env("PARCAGPU_CUPTI_PATH", &cupti)
        .env("SLOW_FLUSH_MS", "10000")
        .start();
    host.wait_gate(1);
    let began = Instant::now();
    host.open_gate(1);
    assert_eq!(host.wait(SHORT).code(), 5);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(350), "it blocked: {took:?}");
    let errors = consumer.all_errors();
    assert!(errors.is_empty(), "{errors:?}");
}

/// A program that ends while its kernels run does not wait for them; they are told without times.
#[test]
fn exit_while_kernels_run() {
    if !need::bpf("exit_while_kernels_run") {
        return;
    }
    let lab = Lab::new();
    let words = "kernel endless_ns60000000000 init launch 3 exit 4";
    same_output(&lab, words, |p| p);
    let consumer = agent(&lab);
    let host = lab
        .host(Mode::Preload, words)
        .env("PARCAGPU_RATE_LIMIT", "1e9");
    assert_eq!(host.run(SHORT).code(), 4);
    assert_eq!(consumer.of(Kind::Correlation).len(), 3);
    consumer.assert_records(3);
    let records = consumer.of(Kind::Record);
    assert!(
        records.iter().all(|r| r.start == 0 && r.end == 0),
        "{records:?}"
    );
}
