//! When CUPTI is missing, old, broken, silent or taken: the program notices nothing, the consumer is
//! told what is wrong, once.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Kind, Losses, Options};
use parcagpu_tests::block::{self, wait_state};
use parcagpu_tests::compare;
use parcagpu_tests::cut_short::{self, Error};
use parcagpu_tests::full;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::{self, count};
use parcagpu_tests::need;
use parcagpu_tests::program::{Program, WATCHDOG};
use parcagpu_tests::trace::Trace;

const SHORT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
/// Some launches after the other, with time for our thread in between.
const WORDS: &str = "streams 2 init repeat 20 launch 10 sleep 50 end launch 100 graph 3 replay 10 sync count exit 9";

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// What a faulty run told and called.
struct Faulty {
    errors: Vec<Error>,
    calls: Vec<mock_log::Call>,
    launches: usize,
    records: usize,
    cut_short: bool,
}

/// Runs bare and, under a consumer, with the library; both must be the same.
#[track_caller]
fn run(lab: &Lab, mode: Mode, more: impl Fn(Program) -> Program) -> Faulty {
    let consumer = agent(lab);
    let bare = compare::run(lab, Mode::Bare, WORDS, SHORT, &more);
    let with = compare::run(lab, mode, WORDS, SHORT, &more);
    compare::same(&bare, &with);
    cut_short::check(&with.ended, consumer.cut_short());
    assert_eq!(consumer.losses(), Losses::default());
    Faulty {
        errors: consumer.errors(),
        cut_short: consumer.cut_short(),
        calls: with.calls,
        launches: consumer.of(Kind::Correlation).len(),
        records: consumer.of(Kind::Record).len(),
    }
}

/// Exactly one error was told, with this code and these words in its message.
#[track_caller]
fn assert_one(errors: &[Error], code: i64, words: &[&str]) {
    assert_eq!(errors.len(), 1, "{errors:?}");
    let (told, _, message) = errors.first().expect("there is one");
    assert_eq!(*told, code, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

/// A folder with the simulated driver only.
fn without_cupti(lab: &Lab) -> PathBuf {
    let folder = lab.file("driver-only");
    fs::create_dir_all(&folder).unwrap();
    let name = "libcuda.so.1";
    fs::copy(
        parcagpu_tests::artefacts::sim().join(name),
        folder.join(name),
    )
    .unwrap();
    folder
}

/// No libcupti anywhere, and one that is named but not there.
#[test]
fn cupti_missing() {
    if !need::bpf("cupti_missing") {
        return;
    }
    let lab = Lab::new();
    let folder = without_cupti(&lab);
    for mode in [Mode::Preload, Mode::Injection] {
        let faulty = run(&lab, mode, |p| p.env("LD_LIBRARY_PATH", &folder));
        assert_one(
            &faulty.errors,
            0,
            &["libcupti.so.13", "PARCAGPU_CUPTI_PATH"],
        );
        assert_eq!((faulty.launches, faulty.records), (0, 0));
    }
    let named = |p: Program| {
        p.env("LD_LIBRARY_PATH", &folder)
            .env("PARCAGPU_CUPTI_PATH", "/nonexistent/libcupti.so")
    };
    let faulty = run(&lab, Mode::Preload, named);
    assert_one(&faulty.errors, 0, &["/nonexistent/libcupti.so"]);
}

/// A libcupti that lacks a function.
#[test]
fn cupti_without_a_function() {
    if !need::bpf("cupti_without_a_function") {
        return;
    }
    let lab = Lab::new();
    let cupti = lab.patched_cupti("cuptiActivityFlushAll", "cuptiActivityFlushXyz");
    let faulty = run(&lab, Mode::Preload, |p| {
        p.env("PARCAGPU_CUPTI_PATH", &cupti)
    });
    assert_one(
        &faulty.errors,
        0,
        &["cuptiActivityFlushAll", &cupti.display().to_string()],
    );
    assert_eq!(count(&faulty.calls, "cuptiSubscribe"), 0);
}

/// A libcupti older than CUDA 11.8.
#[test]
fn cupti_too_old() {
    if !need::bpf("cupti_too_old") {
        return;
    }
    let lab = Lab::new();
    let faulty = run(&lab, Mode::Preload, |p| p.env("MOCK_CUPTI_VERSION", "17"));
    assert_one(&faulty.errors, 0, &["17", "11.8"]);
    assert_eq!(count(&faulty.calls, "cuptiSubscribe"), 0);
}

/// Every version that is supported works, whatever the size of its records.
#[test]
fn cupti_versions() {
    if !need::bpf("cupti_versions") {
        return;
    }
    let lab = Lab::new();
    for version in ["18", "22", "28", "130001", "130101", "130301", "130401"] {
        let faulty = run(&lab, Mode::Preload, |p| {
            p.env("MOCK_CUPTI_VERSION", version)
                .env("PARCAGPU_RATE_LIMIT", "1e9")
                .env("PARCAGPU_GRAPH_RATE_LIMIT", "1e9")
        });
        assert!(faulty.errors.is_empty(), "{version}: {:?}", faulty.errors);
        assert_eq!(faulty.launches, 310, "{version}");
        cut_short::records(faulty.records, 330, faulty.cut_short);
    }
}

/// The stub driver of a toolkit: every call fails, and nothing starts.
#[test]
fn stub_driver() {
    let lab = Lab::new();
    for run in compare::transparent(&lab, "init", SHORT, |p| p.env("MOCK_CUDA_STUB", "1")) {
        assert_eq!(run.ended.code(), 70, "the host program's own failure");
        assert!(run.calls.iter().all(|c| !c.is_cupti()));
    }
}

/// Each call that can fail does: one error with CUPTI's number and name, and the program goes on.
#[test]
fn failing_calls() {
    if !need::bpf("failing_calls") {
        return;
    }
    let lab = Lab::new();
    for (function, code, name) in [
        ("cuptiGetVersion", 999, "CUPTI_ERROR_UNKNOWN"),
        ("cuptiSubscribe", 999, "CUPTI_ERROR_UNKNOWN"),
        (
            "cuptiActivityRegisterCallbacks",
            1,
            "CUPTI_ERROR_INVALID_PARAMETER",
        ),
        ("cuptiActivityEnable", 15, "CUPTI_ERROR_NOT_INITIALIZED"),
        ("cuptiActivityFlushAll", 999, "CUPTI_ERROR_UNKNOWN"),
    ] {
        let script = format!("{function}={code}");
        let faulty = run(&lab, Mode::Preload, |p| p.env("MOCK_FAIL", &script));
        let number = format!("({code})");
        // A version that cannot be asked for makes the library unusable, as a missing function does.
        let told = if function == "cuptiGetVersion" {
            0
        } else {
            code
        };
        // What CUPTI keeps for want of a flush is missing at the end, which is told as well.
        assert!(faulty.cut_short || function != "cuptiActivityFlushAll");
        assert_one(&faulty.errors, told, &[function]);
        let (_, component, message) = faulty.errors.first().unwrap();
        assert_eq!(component, "cupti");
        if function != "cuptiActivityEnable" {
            assert!(message.contains(name), "{message}");
        }
        assert!(message.contains(&number), "{message}");
        if function != "cuptiActivityFlushAll" {
            assert_eq!(faulty.records, 0, "{function}");
        }
    }
}

/// A subscription that cannot be given up: the next consumer is told, and the program goes on.
#[test]
fn failing_unsubscribe() {
    if !need::bpf("failing_unsubscribe") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab
        .host(
            Mode::Preload,
            "init thread spaced 200 3600 end gate stop join sync count exit 9",
        )
        .env("MOCK_FAIL", "cuptiUnsubscribe=999")
        .start();
    host.wait_gate(1);
    let first = agent(&lab);
    wait_state(host.pid(), &lab.library(), State::Active);
    drop(first);
    wait_state(host.pid(), &lab.library(), State::Dormant);
    // One that comes before it was noticed that the other one has gone is told what there was some seconds later.
    block::wait_semaphores(host.pid(), &lab.library(), 0);
    block::wait_looks(host.pid(), &lab.library());
    let second = agent(&lab);
    second.poll_until(|e| e.iter().any(|e| e.kind == Kind::Error));
    block::wait_looks(host.pid(), &lab.library());
    let told = second.errors();
    let unsubscribe = told
        .iter()
        .filter(|t| t.0 == 999 && t.2.contains("cuptiUnsubscribe"));
    assert_eq!(unsubscribe.count(), 1, "{told:?}");
    host.open_gate(1);
    let ended = host.wait(SHORT);
    assert_eq!(ended.code(), 9);
    assert!(ended.stdout.ends_with(" replayed 0\n"), "{}", ended.stdout);
}

/// Callbacks that cannot be switched on: told, and nothing is sampled that would be without a record.
#[test]
fn failing_callbacks() {
    if !need::bpf("failing_callbacks") {
        return;
    }
    let lab = Lab::new();
    let faulty = run(&lab, Mode::Preload, |p| {
        p.env("MOCK_FAIL", "cuptiEnableCallback=1")
    });
    assert!(!faulty.errors.is_empty());
    for (code, component, message) in &faulty.errors {
        assert_eq!((*code, component.as_str()), (1, "cupti"), "{message}");
        assert!(message.contains("cuptiEnableCallback"), "{message}");
    }
    // One for each launch function at the most, not one for each launch.
    assert!(faulty.errors.len() <= 16, "{:?}", faulty.errors);
    assert_eq!((faulty.launches, faulty.records), (0, 0));
}

/// Callbacks are switched by launching threads and, for a consumer of code, by ours: never two at once. One that is
/// refused is tried again.
#[test]
fn calls_that_must_not_meet() {
    if !need::bpf("calls_that_must_not_meet") {
        return;
    }
    let lab = Lab::new();
    let log = lab.file("calls");
    let words = "modules 3 init say up thread spaced 400 3600 end thread spaced 400 3600 end gate stop join sync";
    let mut host = lab
        .host(Mode::Preload, words)
        .env("MOCK_CUPTI_STRICT", "1")
        .env("MOCK_CUPTI_SWITCH_US", "50")
        .env(
            "MOCK_FAIL",
            "cuptiEnableCallback=1@1,cuptiEnableCallback=1@100",
        )
        .env("MOCK_LOG", &log)
        .start();
    host.wait_stdout("up");
    let trace = Trace::attach(&lab, &[host.pid()]);
    trace.until("launches and modules", |events| {
        let of = |probe: &str| events.iter().filter(|e| e["probe"] == probe).count();
        of("cuda_correlation") > 200 && of("cubin_loaded") >= 3
    });
    let switched = || -> Vec<bool> {
        let calls = mock_log::read(&log);
        let profiled = calls
            .iter()
            .filter(|c| c.name == "cuptiEnableCallback" && c.arguments.ends_with(" 3 8"));
        profiled.map(|c| c.arguments.starts_with('1')).collect()
    };
    let deadline = Instant::now() + WATCHDOG;
    while switched().len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", switched());
        std::thread::sleep(Duration::from_millis(20));
    }
    host.open_gate(1);
    host.wait(SHORT).ok();
    let events = trace.end();
    assert_eq!(events.of("cubin_loaded").count(), 3);
    assert_eq!(events.errors(), []);
    assert!(
        switched().starts_with(&[true, false, true]),
        "{:?}",
        switched()
    );
}

/// Somebody else is CUPTI's subscriber: nothing of activity is called, the state says so, and CUPTI is
/// asked again with growing pauses; when it is free, we are there.
#[test]
fn cupti_taken() {
    if !need::bpf("cupti_taken") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let log = lab.file("calls");
    let began = Instant::now();
    let mut host = lab
        .host(
            Mode::Preload,
            "init say up thread spaced 200 3600 end gate stop join sync",
        )
        .env("MOCK_LOG", &log)
        .env(
            "MOCK_FAIL",
            "cuptiSubscribe=39@1,cuptiSubscribe=39@2,cuptiSubscribe=39@3",
        )
        .start();
    host.wait_stdout("up");
    let pid = host.pid();
    wait_state(pid, &lab.library(), State::Yielded);
    assert!(consumer.poll_until(|e| e.iter().any(|e| e.kind == Kind::Error)));
    assert_one(&consumer.errors(), 39, &["MULTIPLE_SUBSCRIBERS"]);
    wait_state(pid, &lab.library(), State::Active);
    // At 0, 1, 3 and 7 seconds.
    let waited = began.elapsed();
    assert!(waited >= SECOND * 7, "all in {waited:?}");
    let calls = mock_log::read(&log);
    assert_eq!(count(&calls, "cuptiSubscribe"), 4);
    let refused = calls
        .iter()
        .take_while(|c| c.name != "cuptiSubscribe" || c.result != 0);
    let others: BTreeSet<&str> = refused
        .filter(|c| c.is_cupti() && c.name.contains("Activity"))
        .map(|c| c.name.as_str())
        .collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(consumer.poll_until(|e| e.iter().any(|e| e.kind == Kind::Record)));
    host.open_gate(1);
    host.wait(SHORT).ok();
    assert_one(&consumer.errors(), 39, &[]);
}

/// Every call succeeds and no record comes: that is told.
#[test]
fn silence() {
    if !need::bpf("silence") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let mut host = lab
        .host(
            Mode::Preload,
            "init thread spaced 100 3600 end gate stop join sync",
        )
        .env("MOCK_CUPTI_RECORDS", "none")
        .start();
    assert!(consumer.poll_until(|e| e.iter().any(|e| e.kind == Kind::Error)));
    host.open_gate(1);
    host.wait(SHORT).ok();
    assert_one(&consumer.errors(), 0, &["no kernel record"]);
    assert!(!consumer.of(Kind::Correlation).is_empty());
}

/// CUPTI holds one lock in every call and callback; sixteen threads launch while consumers come and go: nothing
/// hangs, and each of them sees records.
#[test]
fn one_lock_in_cupti() {
    if !need::bpf("one_lock_in_cupti") {
        return;
    }
    let lab = Lab::new();
    let words = format!(
        "init {} thread graph 3 replayflat 3600 end gate exit 5",
        "thread flat 3600 end ".repeat(16)
    );
    let mut host = lab
        .host(Mode::Preload, &words)
        .env("MOCK_CUPTI_LOCK", "1")
        .env("PARCAGPU_RATE_LIMIT", "1000")
        .start();
    host.wait_gate(1);
    let (until, mut turns) = (Instant::now() + SECOND * full::pick(5, 60), 0);
    while turns < 4 || Instant::now() < until {
        let consumer = agent(&lab);
        let sees = consumer.poll_until(|e| e.iter().any(|e| e.kind == Kind::Record));
        assert!(
            sees,
            "turn {turns}: {}",
            parcagpu_tests::program::stacks(host.pid())
        );
        drop(consumer);
        std::thread::sleep(Duration::from_millis(300));
        turns += 1;
    }
    host.open_gate(1);
    assert_eq!(host.wait(SHORT).code(), 5);
}
