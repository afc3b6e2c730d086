//! What can stand in the way of PC sampling: one error that names the cure, and kernels are timed all the same.

mod pc_common;

use std::time::{Duration, Instant};

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::{self, count};
use parcagpu_tests::program::{Ended, Running, WATCHDOG};
use parcagpu_tests::trace::{Events, Trace};
use parcagpu_tests::{artefacts, block, need, together};
use pc_common::{SHORT, program_in, refusals, sound, two_kernels};

/// A fault, and what becomes of it.
struct Case {
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// In the one error; none for no error.
    cure: Option<&'static str>,
    /// Samples come all the same.
    samples: bool,
    /// How long it is looked at, at least.
    seconds: u64,
}

const FAIL: &str = "MOCK_FAIL";
const SCRIPT: &str = "MOCK_CUPTI_PC";

const CASES: [Case; 12] = [
    Case {
        name: "only administrators",
        variables: &[(FAIL, "cuptiPCSamplingEnable=35")],
        cure: Some("NVreg_RestrictProfilingToAdminUsers=0"),
        samples: false,
        seconds: 6,
    },
    Case {
        name: "another tool has the counters",
        variables: &[(FAIL, "cuptiPCSamplingEnable=26")],
        cure: Some("another tool has the counters"),
        samples: false,
        seconds: 6,
    },
    Case {
        name: "no support",
        variables: &[(FAIL, "cuptiPCSamplingEnable=27")],
        cure: Some("cannot do it"),
        samples: false,
        seconds: 6,
    },
    Case {
        name: "a part of a GPU",
        variables: &[(FAIL, "cuptiPCSamplingEnable=43")],
        cure: Some("MIG"),
        samples: false,
        seconds: 6,
    },
    Case {
        name: "an old driver",
        variables: &[("MOCK_CUDA_VERSION", "12060")],
        cure: Some("12.8 is needed"),
        samples: false,
        seconds: 6,
    },
    Case {
        name: "an old CUPTI",
        variables: &[("MOCK_CUPTI_VERSION", "21")],
        cure: Some("older than that of CUDA 12.4"),
        samples: false,
        seconds: 6,
    },
    Case {
        name: "a period",
        variables: &[(SCRIPT, "no-period"), ("PARCAGPU_SAMPLING_FACTOR", "14")],
        cure: Some("PARCAGPU_SAMPLING_FACTOR=14"),
        samples: true,
        seconds: 6,
    },
    Case {
        name: "a buffer size",
        variables: &[(SCRIPT, "no-buffer"), ("PARCAGPU_PC_HW_BUFFER_MB", "64")],
        cure: Some("PARCAGPU_PC_HW_BUFFER_MB=64"),
        samples: true,
        seconds: 6,
    },
    Case {
        name: "a period that silences",
        variables: &[(SCRIPT, "mute-period")],
        cure: Some("PARCAGPU_SAMPLING_FACTOR=0"),
        samples: false,
        // Silence is told after ten seconds.
        seconds: 13,
    },
    Case {
        name: "many stall reasons",
        variables: &[(SCRIPT, "sparse"), ("MOCK_CUPTI_STALL_REASONS", "100")],
        cure: Some("100 stall reasons"),
        samples: true,
        seconds: 6,
    },
    Case {
        name: "a full buffer",
        variables: &[(SCRIPT, "full:5")],
        cure: None,
        samples: true,
        seconds: 6,
    },
    Case {
        name: "dropped samples",
        variables: &[(SCRIPT, "dropped:3,foreign:2,unterminated")],
        cure: None,
        samples: true,
        seconds: 6,
    },
];

impl Case {
    /// Whether what is to come has come: kernels for most of the time, the error, samples.
    fn is_told(&self, events: &[serde_json::Value]) -> bool {
        let count = |probe: &str| events.iter().filter(|e| e["probe"] == probe).count() as u64;
        count("activity_batch") > self.kernels()
            && (self.cure.is_none() || count("error") > 0)
            && (!self.samples || count("pc_sample_batch") > 0)
    }

    /// It launches 50 a second.
    fn kernels(&self) -> u64 {
        (self.seconds - 2) * 40
    }
}

/// What a consumer saw, and the program's count of dropped samples and full buffers.
fn run(case: &Case) -> (Events, u64, u64) {
    let lab = Lab::new();
    let mut host = two_kernels(&lab, "say ready spaced 50 3600")
        .env(
            "PARCAGPU_CUPTI_PATH",
            artefacts::sim().join("libcupti.so.13"),
        )
        .envs(case.variables.iter().copied())
        .start();
    host.wait_stdout("ready");
    let trace = Trace::attach(&lab, &[host.pid()]);
    let (began, seconds) = (Instant::now(), Duration::from_secs(case.seconds));
    while began.elapsed() < seconds || !case.is_told(&trace.so_far()) {
        assert!(
            began.elapsed() < 3 * seconds + WATCHDOG,
            "{}: not told",
            case.name
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let counter = |counter| block::counter(host.pid(), &lab.library(), counter);
    let (dropped, full) = (counter(Counter::PcDropped), counter(Counter::PcBufferFull));
    let events = trace.end();
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
    (events, dropped, full)
}

fn check(case: &Case) {
    let name = case.name;
    let (events, dropped, full) = run(case);
    let errors = refusals(&events);
    match case.cure {
        Some(cure) => {
            assert_eq!(errors.len(), 1, "{name}: {errors:?}");
            assert!(errors[0].1.contains(cure), "{name}: {errors:?}");
        }
        None => assert_eq!(errors, [], "{name}"),
    }
    assert_eq!(
        events.errors().len(),
        errors.len(),
        "{name}: {:?}",
        events.errors()
    );
    assert_eq!(sound(&events).is_empty(), !case.samples, "{name}");
    assert_eq!(dropped > 0, name == "dropped samples", "{name}: {dropped}");
    assert_eq!(full > 0, name == "a full buffer", "{name}: {full}");
}

/// All at the same time: they mostly wait.
#[test]
fn each_names_its_cure() {
    if !need::bpf("each_names_its_cure") {
        return;
    }
    let wrong: Vec<&str> = std::thread::scope(|scope| {
        let running: Vec<_> = CASES
            .iter()
            .map(|case| (case.name, scope.spawn(|| check(case))))
            .collect();
        let outcomes = running
            .into_iter()
            .map(|(name, thread)| (name, thread.join()));
        outcomes
            .filter(|(_, outcome)| outcome.is_err())
            .map(|(name, _)| name)
            .collect()
    });
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What is refused with 35 ends nothing (B32): whichever call it is, two contexts with 50 launches each have all
/// their records, no sample is told, the refusal is told once, and each context was tried once.
#[test]
fn refused_at_any_call() {
    if !need::bpf("refused_at_any_call") {
        return;
    }
    const ENABLE: &str = "cuptiPCSamplingEnable";
    const CONFIGURE: &str = "cuptiPCSamplingSetConfigurationAttribute";
    let cases: [(&str, i64); 7] = [
        (ENABLE, 35),
        (CONFIGURE, 35),
        ("cuptiPCSamplingGetNumStallReasons", 35),
        ("cuptiPCSamplingGetStallReasons", 35),
        // Not supported; a virtual GPU.
        (CONFIGURE, 27),
        (ENABLE, 33),
        (ENABLE, 40),
    ];
    // The second context's launches come when a consumer has been told about the first one's refusal.
    let words = "init gate context module 0 launch sampled_0 50 sync gate \
                 context module 1 launch sampled_1 50 sync gate";
    together::at_once(cases, |(function, code)| {
        let lab = Lab::new();
        let log = lab.file("calls");
        let start = |mode| -> Running {
            let mut program = program_in(&lab, mode, words)
                .env("MOCK_FAIL", format!("{function}={code}"))
                .env("MOCK_LOG", &log)
                .env("PARCAGPU_RATE_LIMIT", "1e9")
                .start();
            program.wait_gate(1);
            if mode != Mode::Bare {
                block::wait_state(program.pid(), &lab.library(), State::Active);
            }
            program.open_gate(1);
            program
        };
        let told = |ended: Ended| (ended.code(), ended.stdout, ended.stderr);
        let what = format!("{function}={code}");
        let mut bare = start(Mode::Bare);
        bare.open_gate(2);
        bare.open_gate(3);
        let bare = told(bare.wait(SHORT));
        std::fs::remove_file(&log).expect("the bare run wrote it");
        let trace = pc_common::attach(&lab);
        let mut with = start(Mode::Preload);
        for context in 1..=2 {
            with.wait_gate(context + 1);
            let deadline = Instant::now() + WATCHDOG;
            while count(&mock_log::read(&log), function) < context {
                assert!(Instant::now() < deadline, "{what}: context {context}");
                std::thread::sleep(Duration::from_millis(20));
            }
            trace.until("the refusal is told", |events| {
                events.iter().any(|e| e["probe"] == "error")
            });
            // Nor is it tried again.
            block::wait_more_looks(with.pid(), &lab.library(), 3);
            if context == 1 {
                with.open_gate(2);
            }
        }
        block::wait_delivered(with.pid(), &lab.library());
        // Without its end, which waits for our thread with a bound only, and tells so.
        let events = trace.end();
        with.open_gate(3);
        let with = told(with.wait(SHORT));
        assert_eq!(bare, with, "{what}");
        assert_eq!(
            (events.launches().len(), events.records().len()),
            (100, 100),
            "{what}"
        );
        assert_eq!(events.of("pc_sample_batch").count(), 0, "{what}");
        let errors = events.errors();
        assert_eq!(errors.len(), 1, "{what}: {errors:?}");
        assert_eq!(
            (errors[0].0, errors[0].1.as_str()),
            (code, "pc sampling"),
            "{what}: {errors:?}"
        );
        let calls = mock_log::read(&log);
        assert_eq!(
            (count(&calls, ENABLE), count(&calls, function)),
            (2, 2),
            "{what}: two contexts"
        );
        assert_eq!(count(&calls, "cuptiPCSamplingGetData"), 0, "{what}");
    });
}
