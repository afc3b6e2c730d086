//! Consumers coming and going, forks, exits: the program notices nothing and nothing is left behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::{self, wait_state};
use parcagpu_tests::compare::{self, transparent};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::{self, count};
use parcagpu_tests::need;
use parcagpu_tests::program::{Ended, Program};
use parcagpu_tests::trace::Trace;

const SHORT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
const MODES: [Mode; 2] = [Mode::Preload, Mode::Injection];

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// Bare, then in both modes under a consumer: exit status, stdout and stderr are the same. Gives the
/// runs with the library.
#[track_caller]
fn same_output(lab: &Lab, words: &str, more: impl Fn(Program) -> Program) -> Vec<Ended> {
    let bare = more(lab.host(Mode::Bare, words)).run(SHORT);
    MODES
        .into_iter()
        .map(|mode| {
            let agent = agent(lab);
            let host = more(lab.host(mode, words).env("PARCAGPU_RATE_LIMIT", "1e9")).start();
            let with = host.wait_with(SHORT, || agent.poll(Duration::from_millis(5)));
            let told = |e: &Ended| (e.code(), e.stdout.clone(), e.stderr.clone());
            assert_eq!(told(&bare), told(&with), "{mode:?}: {words}");
            assert!(
                with.took < bare.took + SECOND,
                "{mode:?}: {:?}, bare {:?}: {words}",
                with.took,
                bare.took
            );
            with
        })
        .collect()
}

/// Without a consumer every call of the program and every result is as bare, and no CUPTI is called.
#[test]
fn dormant_is_transparent() {
    let lab = Lab::new();
    let words = "streams 2 modules 2 init launch 50 ex 10 coop 10 ptsz 10 fail 3 capture 4 graph 3 replay 5 \
                 thread launch 20 end join sync count exit 3";
    for run in transparent(&lab, words, SHORT, |p| p) {
        let cupti: Vec<_> = run.calls.iter().filter(|c| c.is_cupti()).collect();
        assert!(cupti.is_empty(), "{cupti:?}");
    }
}

/// With one, too, but for calls of CUPTI.
#[test]
fn active_is_transparent() {
    if !need::bpf("active_is_transparent") {
        return;
    }
    let lab = Lab::new();
    let agent = agent(&lab);
    let words = "streams 2 modules 2 init launch 50 ex 10 coop 10 ptsz 10 fail 3 capture 4 graph 3 replay 5 \
                 thread launch 20 end join sync count exit 3";
    for rate in ["100", "1e9"] {
        for run in transparent(&lab, words, SHORT, |p| p.env("PARCAGPU_RATE_LIMIT", rate)) {
            assert_eq!(count(&run.calls, "cuptiSubscribe"), 1);
        }
    }
    assert!(!agent.of(Kind::Correlation).is_empty());
}

/// A consumer of a program that runs makes it active, leaving makes it dormant, each within a second;
/// what was switched on was switched off.
#[test]
fn joining_and_leaving() {
    if !need::bpf("joining_and_leaving") {
        return;
    }
    let lab = Lab::new();
    for mode in MODES {
        let log = lab.file(&format!("{mode:?}.log"));
        let mut host = lab
            .host(mode, "init say up thread spaced 200 6 end join")
            .env("MOCK_LOG", &log)
            .start();
        host.wait_stdout("up");
        wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
        std::thread::sleep(Duration::from_millis(700));
        let consumer = agent(&lab);
        wait_state(host.pid(), &lab.library(), State::Active, SECOND);
        assert!(
            consumer.poll_until(SECOND * 3, |events| events
                .iter()
                .any(|e| e.kind == Kind::Record)),
            "{mode:?}: records come"
        );
        drop(consumer);
        wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
        // Buffers that are still out are asked for, then nothing is called any more.
        std::thread::sleep(SECOND * 2);
        let before = mock_log::read(&log).iter().filter(|c| c.is_cupti()).count();
        std::thread::sleep(SECOND);
        let calls = mock_log::read(&log);
        assert_eq!(
            calls.iter().filter(|c| c.is_cupti()).count(),
            before,
            "{mode:?}"
        );
        assert_eq!(count(&calls, "cuptiSubscribe"), 1, "{mode:?}");
        assert_eq!(count(&calls, "cuptiUnsubscribe"), 1, "{mode:?}");
        assert_eq!(
            count(&calls, "cuptiActivityEnable"),
            count(&calls, "cuptiActivityDisable"),
            "{mode:?}"
        );
        let switched = |on: &str| {
            let of = calls
                .iter()
                .filter(|c| c.name == "cuptiEnableCallback" && c.arguments.starts_with(on));
            of.count()
        };
        assert!(
            switched("1 ") > 0 && switched("1 ") == switched("0 "),
            "{mode:?}"
        );
        assert_eq!(count(&calls, "cuptiFinalize"), 0, "never in a live program");
        host.wait(SHORT).ok();
    }
}

/// Twenty consumers in turn: no descriptor, thread or mapping more than after the third, and events
/// for the last as for the first.
#[test]
fn twenty_consumers_in_turn() {
    if !need::bpf("twenty_consumers_in_turn") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab.host(Mode::Preload, "init say up spaced 500 30").start();
    host.wait_stdout("up");
    let mut held = Vec::new();
    for turn in 0..20 {
        let consumer = agent(&lab);
        wait_state(host.pid(), &lab.library(), State::Active, SECOND);
        let seen = consumer.poll_until(SECOND * 2, |events| !events.is_empty());
        assert!(seen, "turn {turn}");
        drop(consumer);
        wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
        held.push(block::holdings(host.pid()));
    }
    let (early, late) = (held[2], held[19]);
    assert_eq!(
        (early.0, early.1),
        (late.0, late.1),
        "descriptors and threads: {held:?}"
    );
    // Buffers that CUPTI still has are memory of their own for a while.
    assert!(late.2 <= early.2 + 4, "mappings: {held:?}");
    let activations = block::counter(host.pid(), &lab.library(), Counter::Activations);
    assert_eq!(activations, 20);
}

/// A consumer that attaches and detaches as fast as it can: what was switched on is switched off, and the
/// program runs on.
#[test]
fn flapping_consumer() {
    if !need::bpf("flapping_consumer") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let mut host = lab
        .host(
            Mode::Preload,
            "init say up thread spaced 1000 4 end thread spaced 1000 4 end join count",
        )
        .env("MOCK_LOG", &log)
        .start();
    host.wait_stdout("up");
    let mut consumer = Agent::load(Options::default()).unwrap();
    let (began, mut turns) = (Instant::now(), 0);
    while began.elapsed() < SECOND * 3 {
        consumer
            .attach(&lab.library(), -1, "activity_batch")
            .unwrap();
        consumer
            .attach(&lab.library(), -1, "cuda_correlation")
            .unwrap();
        // Now shorter, now longer than our thread's period.
        std::thread::sleep(Duration::from_millis([0, 30, 150][turns % 3]));
        consumer.detach();
        turns += 1;
    }
    wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
    let calls = mock_log::read(&log);
    assert_eq!(
        count(&calls, "cuptiSubscribe"),
        count(&calls, "cuptiUnsubscribe")
    );
    assert_eq!(
        count(&calls, "cuptiActivityEnable"),
        count(&calls, "cuptiActivityDisable")
    );
    assert!(turns >= 10, "{turns}");
    let ended = host.wait(SHORT).ok();
    assert!(
        ended.stdout.ends_with("launched 8000 replayed 0\n"),
        "{}",
        ended.stdout
    );
}

/// A consumer that is killed leaves as one that detaches.
#[test]
fn killed_consumer() {
    if !need::bpf("killed_consumer") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab.host(Mode::Preload, "init say up spaced 200 20").start();
    host.wait_stdout("up");
    let trace = Trace::attach(&lab, &[host.pid()]);
    wait_state(host.pid(), &lab.library(), State::Active, SECOND);
    trace.kill();
    wait_state(host.pid(), &lab.library(), State::Dormant, SECOND);
    let again = Trace::attach(&lab, &[host.pid()]);
    wait_state(host.pid(), &lab.library(), State::Active, SECOND);
    std::thread::sleep(SECOND);
    assert!(
        !again.end().launches().is_empty(),
        "the next one sees launches"
    );
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
    assert_eq!(consumer.of(Kind::Record).len(), 10);
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
    let status = block::read(parent, &lab.library()).unwrap();
    assert_eq!(block::state(&status), State::Active);
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
    assert!(consumer.of(Kind::Record).len() >= 7);
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
    for end in EXITS {
        same_output(
            &lab,
            &format!("init launch 200 graph 3 replay 10 {end}"),
            |p| p,
        );
    }
}

/// Every way to end while other threads go on launching, and CUPTI delivers buffers at the end.
#[test]
fn exits_with_threads() {
    if !need::bpf("exits_with_threads") {
        return;
    }
    let lab = Lab::new();
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

/// A flush that blocks for ten seconds does not hold the end of the program.
#[test]
fn exit_while_flush_blocks() {
    if !need::bpf("exit_while_flush_blocks") {
        return;
    }
    let lab = Lab::new();
    let cupti = lab.slow_cupti();
    let words = "init launch 20 sleep 200 exit 5";
    let bare = lab.host(Mode::Bare, words).run(SHORT);
    for mode in MODES {
        let consumer = agent(&lab);
        let with = lab
            .host(mode, words)
            .env("PARCAGPU_CUPTI_PATH", &cupti)
            .env("SLOW_FLUSH_MS", "10000")
            .run(SHORT);
        assert_eq!(with.code(), 5);
        assert!(
            with.took < bare.took + Duration::from_millis(500),
            "{mode:?}: {:?}, bare {:?}",
            with.took,
            bare.took
        );
        assert!(
            !consumer.of(Kind::Correlation).is_empty(),
            "{mode:?}: it was active"
        );
    }
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
    let records = consumer.of(Kind::Record);
    assert_eq!(records.len(), 3);
    assert!(
        records.iter().all(|r| r.start == 0 && r.end == 0),
        "{records:?}"
    );
}

/// A program without CUDA: no thread, no CUPTI, no output, no change of its environment, even with a
/// consumer attached.
#[test]
fn without_cuda() {
    if !need::bpf("without_cuda") {
        return;
    }
    let lab = Lab::new();
    let _agent = agent(&lab);
    let mut host = lab.host(Mode::Preload, "gate say done").start();
    host.wait_gate(1);
    assert_eq!(block::threads(host.pid()).len(), 1);
    assert!(!block::maps(host.pid(), "libcupti") && !block::maps(host.pid(), "libcuda"));
    host.open_gate(1);
    let ended = host.wait(SHORT).ok();
    assert_eq!(
        (ended.stdout.as_str(), ended.stderr.as_str()),
        ("gate\ndone\n", "")
    );
    let environment = |mode| {
        let ended = lab.program(mode, "env").run(SHORT).ok();
        assert_eq!(ended.stderr, "");
        let lines = ended
            .stdout
            .lines()
            .filter(|l| !l.starts_with("LD_PRELOAD=") && !l.starts_with("_="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(environment(Mode::Bare), environment(Mode::Preload));
    let shell = |mode| {
        let program = lab
            .program(mode, "sh")
            .args(["-c", "(exit 3); echo $?; sh -c 'echo inner; exit 4'"]);
        let ended = program.run(SHORT);
        (ended.code(), ended.stdout, ended.stderr)
    };
    assert_eq!(shell(Mode::Bare), shell(Mode::Preload));
}

/// `PARCAGPU_DISABLE=1`: the library does nothing at all.
#[test]
fn disabled() {
    if !need::bpf("disabled") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let words = "init launch 20 sync count";
    for run in transparent(&lab, words, SHORT, |p| p.env("PARCAGPU_DISABLE", "1")) {
        assert!(run.calls.iter().all(|c| !c.is_cupti()));
        assert_eq!(
            count(&run.calls, "cuDriverGetVersion"),
            0,
            "not even a query"
        );
    }
    for mode in MODES {
        let mut host = lab
            .host(mode, "init launch 20 gate")
            .env("PARCAGPU_DISABLE", "1")
            .start();
        host.wait_gate(1);
        assert_eq!(block::threads(host.pid()).len(), 1, "{mode:?}");
        host.open_gate(1);
        host.wait(SHORT).ok();
    }
    assert!(consumer.events().is_empty());
}

/// Eight threads call `InitializeInjection` at once: one session, and it works.
#[test]
fn initialised_by_eight_threads() {
    if !need::bpf("initialised_by_eight_threads") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let words = format!(
        "init inject {} 8 launch 10 sync gate",
        lab.library().display()
    );
    let log = lab.file("calls");
    let mut host = lab
        .host(Mode::Bare, &words)
        .env("MOCK_LOG", &log)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    host.wait_gate(1);
    assert!(host.stdout().contains("injected 8\n"));
    let ours = block::threads(host.pid())
        .iter()
        .filter(|name| *name == "parcagpu")
        .count();
    assert_eq!(ours, 1);
    host.open_gate(1);
    host.wait(SHORT).ok();
    assert_eq!(count(&mock_log::read(&log), "cuptiSubscribe"), 1);
    assert_eq!(consumer.of(Kind::Correlation).len(), 10);
    assert_eq!(consumer.of(Kind::Record).len(), 10);
}

fn assert_host_bytes(file: &Path) {
    assert_eq!(
        fs::read_to_string(file).unwrap(),
        "host bytes\n",
        "{}",
        file.display()
    );
}

/// With stdin, stdout and stderr closed at the start, our log goes into none of the program's files.
/// (A library that the driver loads later cannot tell whose descriptor 2 is: there without a log.)
#[test]
fn closed_stdio() {
    if !need::bpf("closed_stdio") {
        return;
    }
    let lab = Lab::new();
    let _agent = agent(&lab);
    let files = ["a", "b", "c"].map(|name| lab.file(name));
    let owned: Vec<String> = files
        .iter()
        .map(|f| format!("ownfile {}", f.display()))
        .collect();
    let script = format!(
        "exec {} {} init launch 20 sync exit 6 <&- >&- 2>&-",
        parcagpu_tests::artefacts::host().display(),
        owned.join(" ")
    );
    for (mode, debug) in [(Mode::Preload, "2"), (Mode::Injection, "0")] {
        let ended = lab
            .program(mode, "sh")
            .env("PARCAGPU_DEBUG", debug)
            .args(["-c", &script])
            .run(SHORT);
        assert_eq!(ended.code(), 6, "{mode:?}");
        for file in &files {
            assert_host_bytes(file);
        }
    }
}

/// A program that closes every descriptor above 2 and opens its own finds only its bytes in it.
#[test]
fn closed_descriptors() {
    if !need::bpf("closed_descriptors") {
        return;
    }
    let lab = Lab::new();
    let file = lab.file("own");
    let words = format!(
        "init launch 5 close3 ownfile {} launch 10000 sync count",
        file.display()
    );
    same_output(&lab, &words, |p| p);
    assert_host_bytes(&file);
}

/// Signals that the program blocks and waits for all come to it; its masks and handlers are as bare;
/// our thread blocks everything.
#[test]
fn signals() {
    if !need::bpf("signals") {
        return;
    }
    let lab = Lab::new();
    let ended = same_output(
        &lab,
        "init mask block launch 50 mask selfsig 1000 fork mask end",
        |p| p,
    );
    assert!(
        ended
            .iter()
            .all(|e| e.stdout.contains("signals taken 4000"))
    );
    let _agent = agent(&lab);
    let mut host = lab.host(Mode::Preload, "init gate").start();
    host.wait_gate(1);
    let pid = host.pid();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        if !status.starts_with("Name:\tparcagpu\n") {
            continue;
        }
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("SigBlk:\t"))
            .unwrap();
        let blocked = u64::from_str_radix(line, 16).unwrap();
        for signal in [1, 2, 10, 12, 13, 14, 15, 17, 27] {
            assert_ne!(blocked & (1 << (signal - 1)), 0, "signal {signal}: {line}");
        }
    }
    host.open_gate(1);
    host.wait(SHORT).ok();
}

/// An empty environment but for the preload.
#[test]
fn empty_environment() {
    let lab = Lab::new();
    let words = "init launch 5 sync count";
    let bare = compare::run(&lab, Mode::Bare, words, SHORT, |p| p);
    let ended = lab
        .host(Mode::Bare, words)
        .bare_environment()
        .env("LD_LIBRARY_PATH", parcagpu_tests::artefacts::sim())
        .env("LD_PRELOAD", lab.library())
        .run(SHORT)
        .ok();
    assert_eq!(
        (ended.stdout, ended.stderr),
        (bare.ended.stdout, String::new())
    );
}

/// The end is not later than bare by what our thread's period would make it.
#[test]
fn exit_is_prompt() {
    if !need::bpf("exit_is_prompt") {
        return;
    }
    let lab = Lab::new();
    let _agent = agent(&lab);
    for _ in 0..5 {
        let mut host = lab.host(Mode::Preload, "init launch 5 sync gate").start();
        host.wait_gate(1);
        let began = Instant::now();
        host.open_gate(1);
        host.wait(SHORT).ok();
        assert!(
            began.elapsed() < Duration::from_millis(500),
            "{:?}",
            began.elapsed()
        );
    }
}
