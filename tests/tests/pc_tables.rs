//! Tables of stall reasons of any size and order (B39): what is told of them, and samples by their names.

mod pc_common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parcagpu_abi::pc_sample::{STALL_REASON_NAME_LEN, STALL_REASON_SLOTS};
use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::WATCHDOG;
use parcagpu_tests::trace::{Events, number};
use parcagpu_tests::{block, need, together};
use pc_common::{SHORT, by_kernel, program, refusals, samples};

/// The simulated CUPTI's table.
#[derive(Clone, Copy, Debug)]
struct Table {
    reasons: usize,
    /// The highest index is 200.
    sparse: bool,
    /// The name of index 2 fills its field.
    unterminated: bool,
}

/// Reasons of samples: place from the table's end, name, and how many in ten samples have it; a part of a reason
/// is counted there as well.
const SAMPLED: [(usize, &str, f64); 5] = [
    (0, "long_scoreboard", 5.0),
    (1, "long_scoreboard_not_issued", 3.0),
    (2, "wait", 3.0),
    (3, "wait_not_issued", 1.0),
    (36, "selected", 2.0),
];
const PREFIX: &str = "smsp__pcsamp_warps_issue_stalled_";

impl Table {
    /// Index of what stands at a place, counted from the end; indices 0 and 1 are no reasons.
    fn index(self, from_end: usize) -> Option<usize> {
        let place = self.reasons.checked_sub(from_end + 1)?;
        match place {
            0 | 1 => None,
            _ if self.sparse && from_end == 0 => Some(200),
            _ => Some(place),
        }
    }

    /// Reasons that the table which is told has no room for.
    fn beyond(self) -> usize {
        let places = 0..self.reasons;
        let far = |place: &usize| {
            *place >= STALL_REASON_SLOTS || self.sparse && *place + 1 == self.reasons
        };
        places.filter(far).count()
    }
}

fn check_names(table: Table, events: &Events) {
    for told in events.of("stall_reason_map") {
        let count = number(told, "count") as usize;
        let names: Vec<&str> = told["names"]
            .as_array()
            .expect("names")
            .iter()
            .map(|name| name.as_str().expect("text"))
            .collect();
        // Up to the highest index that fits.
        assert_eq!(
            (count, names.len()),
            (table.reasons - table.beyond(), count),
            "{table:?}"
        );
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{table:?}: {names:?}");
        assert!(names.iter().all(|name| !name.is_empty()), "{table:?}");
        let counters = [
            "smsp__pcsamp_sample_count",
            "smsp__pcsamp_samples_data_dropped",
        ];
        for (name, expected) in names.iter().zip(counters) {
            assert_eq!(*name, expected, "{table:?}");
        }
        if table.unterminated {
            assert_eq!(names[2], "x".repeat(STALL_REASON_NAME_LEN - 1), "{table:?}");
        }
        for (from_end, name, _) in SAMPLED {
            if let Some(index) = table.index(from_end).filter(|i| *i < STALL_REASON_SLOTS) {
                assert_eq!(names[index], format!("{PREFIX}{name}"), "{table:?}");
            }
        }
    }
}

fn check(table: Table) {
    let lab = Lab::new();
    let script = [
        (table.sparse, "sparse"),
        (table.unterminated, "unterminated"),
    ];
    let script: Vec<&str> = script.iter().filter(|s| s.0).map(|s| s.1).collect();
    let trace = pc_common::attach(&lab);
    let mut host = program(
        &lab,
        "init gate context module 0 launch sampled_0 500 sync gate sync",
    )
    .env("MOCK_CUPTI_PC", script.join(","))
    .env("MOCK_CUPTI_STALL_REASONS", table.reasons.to_string())
    .env("PARCAGPU_RATE_LIMIT", "1e9")
    .start();
    host.wait_gate(1);
    block::wait_state(host.pid(), &lab.library(), State::Active);
    // Samples are wanted from the end of that look on.
    block::wait_looks(host.pid(), &lab.library());
    host.open_gate(1);
    host.wait_gate(2);
    // 500 ms of a kernel: 50,000 samples, of which the first some are from before the context was ready.
    let sampled = || block::counter(host.pid(), &lab.library(), Counter::PcSamples);
    let deadline = Instant::now() + WATCHDOG;
    while sampled() < 40_000 {
        assert!(
            Instant::now() < deadline,
            "{table:?}: {} samples",
            sampled()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    block::wait_delivered(host.pid(), &lab.library());
    let events = trace.end();
    host.open_gate(2);
    let ended = host.wait(SHORT).ok();
    assert_eq!(ended.stderr, "", "{table:?}");

    assert!(
        events.of("stall_reason_map").next().is_some(),
        "{table:?}: a table is told"
    );
    check_names(table, &events);
    let errors = refusals(&events);
    assert_eq!(errors.len(), events.errors().len(), "{table:?}");
    match table.beyond() {
        0 => assert_eq!(errors, [], "{table:?}"),
        beyond => {
            let told = format!(
                "{} stall reasons; the {beyond} with an index above 63",
                table.reasons
            );
            assert_eq!(errors.len(), 1, "{table:?}: {errors:?}");
            assert!(errors[0].1.contains(&told), "{table:?}: {errors:?}");
        }
    }
    // By name: what is told has its share; what has no name is not told under another's.
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    for (name, count) in samples(&events).into_iter().flat_map(|s| s.reasons) {
        *counts.entry(name).or_default() += count as f64;
    }
    let expected: BTreeMap<String, f64> = SAMPLED
        .into_iter()
        .filter(|s| table.index(s.0).is_some_and(|i| i < STALL_REASON_SLOTS))
        .map(|(_, name, share)| (format!("{PREFIX}{name}"), share))
        .collect();
    assert!(
        counts.keys().eq(expected.keys()),
        "{table:?}: {counts:?}, not {expected:?}"
    );
    let (sum, shares): (f64, f64) = (counts.values().sum(), expected.values().sum());
    for (name, share) in expected {
        let is = counts[&name] / sum * shares;
        assert!(
            (is - share).abs() < 0.2,
            "{table:?}: {name}: {is}, not {share}"
        );
    }
    let kernels = by_kernel(&samples(&events));
    assert!(
        kernels.keys().all(|kernel| kernel == "sampled_0"),
        "{table:?}: {kernels:?}"
    );
    assert_eq!(events.records().len(), 500, "{table:?}");
}

/// Every size at which something changes, and the shapes of B39: indices in mixed order (all of them), one of 200,
/// a name without terminator.
#[test]
fn sizes_and_shapes() {
    if !need::bpf("sizes_and_shapes") {
        return;
    }
    let table = |reasons| Table {
        reasons,
        sparse: false,
        unterminated: false,
    };
    let tables = [0, 1, 3, 63, 64, 65, 100, 300].map(table);
    let shaped = [40, 64, 65].map(|reasons| Table {
        sparse: true,
        ..table(reasons)
    });
    let unterminated = Table {
        unterminated: true,
        ..table(40)
    };
    let all = tables.into_iter().chain(shaped).chain([unterminated]);
    together::at_once(all, check);
}
