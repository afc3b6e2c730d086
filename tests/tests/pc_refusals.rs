//! What can stand in the way of PC sampling: one error that names the cure, and kernels are timed all the same.

mod pc_common;

use std::time::Duration;

use parcagpu_abi::status::Counter;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::trace::{Events, Trace};
use parcagpu_tests::{artefacts, block, need};
use pc_common::{SHORT, refusals, sound, two_kernels};

/// A fault, and what becomes of it.
struct Case {
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// In the one error; none for no error.
    cure: Option<&'static str>,
    /// Samples come all the same.
    samples: bool,
    /// How long it is looked at.
    seconds: u64,
}

const FAIL: &str = "MOCK_FAIL";
const SCRIPT: &str = "MOCK_CUPTI_PC";

const CASES: [Case; 13] = [
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
        name: "another process samples",
        variables: &[(FAIL, "cuptiPCSamplingGetData=999")],
        cure: Some("another process or tool is sampling this GPU"),
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

/// What a consumer saw, and the program's count of dropped samples and full buffers.
fn run(case: &Case) -> (Events, u64, u64) {
    let lab = Lab::new();
    let mut host = two_kernels(&lab, "say ready spaced 50 30")
        .env(
            "PARCAGPU_CUPTI_PATH",
            artefacts::sim().join("libcupti.so.13"),
        )
        .envs(case.variables.iter().copied())
        .start();
    host.wait_stdout("ready");
    let trace = Trace::attach(&lab, &[host.pid()]);
    std::thread::sleep(Duration::from_secs(case.seconds));
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
    let kernels = events.records().len() as u64;
    assert!(
        kernels > (case.seconds - 2) * 40,
        "{name}: {kernels} kernels"
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
