//! Contexts and graphs while consumers come and go (B27, B31).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::wait_state;
use parcagpu_tests::full;
use parcagpu_tests::hosts::{Case, compile, engine, lab};
use parcagpu_tests::lab::Mode;
use parcagpu_tests::need;
use parcagpu_tests::trace::{Trace, number};

const SHORT: Duration = Duration::from_secs(10);

/// Eight threads make, use and destroy contexts on one to eight devices at once, with every kind of probe
/// listened to (module events come from inside the driver then), with and without one lock in CUPTI:
/// nothing hangs, all is as bare, and each device is told once (repeats for late consumers are the same event). Which
/// of the contexts are sampled is a matter of chance, but not where there is one at a time, in the end.
#[test]
fn contexts_in_parallel() {
    if !need::bpf("contexts_in_parallel") {
        return;
    }
    let lab = lab();
    let contexts = compile(&lab, "cases/contexts.c", "contexts", &[]);
    let rounds = full::pick(40, 200);
    for (devices, lock) in [(1, "1"), (3, "0"), (8, "1")] {
        let words = format!("8 {rounds} {devices}");
        let case = Case::new(&lab, &contexts, &words)
            .unlogged()
            .env("MOCK_CUDA_DEVICES", devices.to_string())
            .env("MOCK_CUPTI_LOCK", lock)
            .with("PARCAGPU_PC_SAMPLING_RATE", "100");
        let mut bare = case.build(Mode::Bare).start();
        bare.close_input();
        let bare = bare.wait(SHORT * 2).ok();
        for mode in Mode::WITH {
            let trace =
                Trace::attach_with(&lab, &[], &format!("--lib {}", lab.library().display()));
            let mut with = case.build(mode).start();
            for device in 0..devices {
                trace.until("the device of a context that is alone", |events| {
                    let mut configs = events.iter().filter(|e| e["probe"] == "gpu_config");
                    configs.any(|e| number(e, "device_id") == device)
                });
                with.open_gate(device as usize + 1);
            }
            let with = with.wait(SHORT * 2).ok();
            assert_eq!((&bare.stdout, with.stderr.as_str()), (&with.stdout, ""));
            let events = trace.end();
            let config = |event| {
                ["device_id", "sampling_factor", "clock_khz", "sm_count"].map(|f| number(event, f))
            };
            let told: BTreeSet<_> = events.of("gpu_config").map(config).collect();
            let told: Vec<u64> = told.iter().map(|config| config[0]).collect();
            assert_eq!(told, (0..devices).collect::<Vec<u64>>(), "{mode:?}");
        }
    }
}

/// Graphs are replayed all the time, made before and after the first consumer, while consumers attach and leave
/// twenty times: no crash, no hang, and records come after each attach.
#[test]
fn graphs_while_consumers_come_and_go() {
    if !need::bpf("graphs_while_consumers_come_and_go") {
        return;
    }
    let lab = lab();
    let words = "init graph 24 thread replayspaced 500 3600 end say up \
                 repeat 100000 graph 6 replay 5 sleep 50 end";
    let mut host = lab
        .host(Mode::Preload, words)
        .env("PARCAGPU_HOOK_ENGINE", engine())
        .env("PARCAGPU_GRAPH_RATE_LIMIT", "200")
        .start();
    host.wait_stdout("up");
    let (stay, away) = full::pick(
        (Duration::from_millis(300), Duration::from_millis(100)),
        (Duration::from_secs(2), Duration::from_secs(2)),
    );
    for turn in 0..20 {
        let consumer = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
        wait_state(host.pid(), &lab.library(), State::Active);
        let until = Instant::now() + stay;
        let graphs = |e: &[parcagpu_tests::agent::Event]| {
            e.iter().any(|e| e.kind == Kind::Record && e.graph != 0)
        };
        assert!(
            consumer.poll_until(|e| graphs(e) && Instant::now() > until),
            "turn {turn}"
        );
        assert_eq!(consumer.errors().len(), 0, "{:?}", consumer.errors());
        drop(consumer);
        wait_state(host.pid(), &lab.library(), State::Dormant);
        std::thread::sleep(away);
        assert!(host.runs(), "turn {turn}: {}", host.stderr());
    }
    assert_eq!(host.stderr(), "");
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
}
