//! Launches are seen once, whatever way they come and whatever hooks there are.

use std::collections::HashSet;
use std::time::Duration;

use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::compare::{self, transparent};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::count;
use parcagpu_tests::need;

const SHORT: Duration = Duration::from_secs(10);

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// Asserts that so many launches were told, each once and with its record.
#[track_caller]
fn assert_told(agent: &Agent, launches: usize, what: &str) {
    let ids = |kind| -> Vec<(u32, u32)> { agent.of(kind).iter().map(|e| (e.pid, e.id)).collect() };
    let (told, records) = (ids(Kind::Correlation), ids(Kind::Record));
    let unique: HashSet<(u32, u32)> = told.iter().copied().collect();
    assert_eq!((told.len(), unique.len()), (launches, launches), "{what}");
    agent.assert_records(launches);
    let records: HashSet<_> = records.into_iter().collect();
    let missing = unique.symmetric_difference(&records).count();
    assert!(
        missing == 0 || agent.cut_short() && records.is_subset(&unique),
        "{what}"
    );
}

/// Each hook engine, and none: every launch once, and the program is as bare.
#[test]
fn engines() {
    if !need::bpf("engines") {
        return;
    }
    let lab = Lab::new();
    let words = "streams 2 init launch 100 ex 50 coop 50 ptsz 50 fail 5 capture 5 sync count";
    for engine in ["auto", "detour", "none"] {
        let bare = compare::run(&lab, Mode::Bare, words, SHORT, |p| p);
        for mode in [Mode::Preload, Mode::Injection] {
            let consumer = agent(&lab);
            let with = compare::run(&lab, mode, words, SHORT, |p| {
                p.env("PARCAGPU_HOOK_ENGINE", engine)
                    .env("PARCAGPU_RATE_LIMIT", "1e9")
            });
            compare::same(&bare, &with);
            assert_eq!(
                count(&with.calls, "cuptiSubscribe"),
                1,
                "{engine}, {mode:?}"
            );
            assert_told(&consumer, 250, &format!("{engine}, {mode:?}"));
        }
    }
}

/// A driver whose `cuInit` looks itself up and calls what it finds (B01): no endless recursion, one
/// session.
#[test]
fn driver_calls_itself() {
    if !need::bpf("driver_calls_itself") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let words = "init launch 10 sync count";
    for run in transparent(&lab, words, SHORT, |p| {
        p.env("MOCK_CUDA_INIT_REENTERS", "1")
            .env("PARCAGPU_RATE_LIMIT", "1e9")
    }) {
        assert_eq!(count(&run.calls, "cuInit"), 3);
        assert_eq!(count(&run.calls, "cuptiSubscribe"), 1);
    }
    assert_told(&consumer, 20, "two runs");
}

/// Launches by addresses from `cuGetProcAddress_v2`, the same as the exported ones or internal copies
/// (B03): each is told once.
#[test]
fn looked_up_addresses() {
    if !need::bpf("looked_up_addresses") {
        return;
    }
    let lab = Lab::new();
    let words = "init launch 50 lookup 0 launch 50 lookup 1 launch 50 sync count";
    for copies in ["0", "1"] {
        for rate in ["1e9", "0.0001"] {
            let consumer = agent(&lab);
            let bare = compare::run(&lab, Mode::Bare, words, SHORT, |p| {
                p.env("MOCK_CUDA_COPIES", copies)
            });
            let with = compare::run(&lab, Mode::Preload, words, SHORT, |p| {
                p.env("MOCK_CUDA_COPIES", copies)
                    .env("PARCAGPU_RATE_LIMIT", rate)
            });
            compare::same(&bare, &with);
            let told = if rate == "1e9" { 150 } else { 1 };
            assert_told(&consumer, told, &format!("copies {copies}, rate {rate}"));
        }
    }
}

/// A driver that does not know newer functions (B03): nothing null is called.
#[test]
fn older_driver() {
    if !need::bpf("older_driver") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let absent = "cuLaunchKernelEx,cuLaunchKernelEx_ptsz,cuLibraryLoadData,cuModuleLoadDataEx,cuStreamIsCapturing";
    let words = "init launch 10 graph 2 sync count";
    let runs = transparent(&lab, words, SHORT, |p| {
        p.env("MOCK_CUDA_ABSENT", absent)
            .env("PARCAGPU_RATE_LIMIT", "1e9")
    });
    assert!(runs.iter().all(|run| run.ended.code() == 0));
    assert_told(&consumer, 20, "two runs");
}

/// Launches through the runtime are told once, at the level that is asked for: by default the driver's
/// (negative callback ids), with PARCAGPU_API_CALLBACKS=runtime the runtime's.
#[test]
fn runtime_launches() {
    if !need::bpf("runtime_launches") {
        return;
    }
    let lab = Lab::new();
    for mode in [Mode::Preload, Mode::Injection] {
        for (level, cbid) in [("driver", -307), ("runtime", 211)] {
            let consumer = agent(&lab);
            lab.program(mode, parcagpu_tests::artefacts::demo())
                .words("--via runtime --threads 2 --launches 50")
                .env("PARCAGPU_API_CALLBACKS", level)
                .env("PARCAGPU_RATE_LIMIT", "1e9")
                .run(SHORT)
                .ok();
            assert_told(&consumer, 100, &format!("{level}, {mode:?}"));
            let codes: HashSet<i32> = consumer
                .of(Kind::Correlation)
                .iter()
                .map(|e| e.code)
                .collect();
            assert_eq!(codes, HashSet::from([cbid]), "{level}, {mode:?}");
        }
    }
}

/// Driver launches beside them are told, too, at either level.
#[test]
fn driver_launches_at_runtime_level() {
    if !need::bpf("driver_launches_at_runtime_level") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    lab.host(Mode::Preload, "init launch 30 ex 30 sync")
        .env("PARCAGPU_API_CALLBACKS", "runtime")
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .run(SHORT)
        .ok();
    assert_told(&consumer, 60, "driver launches");
    assert!(consumer.of(Kind::Correlation).iter().all(|e| e.code < 0));
}
