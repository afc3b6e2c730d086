//! Modules that CUPTI tells of with images that are none, lie about their length or end where memory ends (B42):
//! nothing is read that is not there, and the good ones are told.

use std::time::Duration;

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::hosts::compile;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::trace::{Trace, number};
use parcagpu_tests::{block, cut_short, need};

const SHORT: Duration = Duration::from_secs(10);

/// What CUPTI tells of the modules, one after the other; the last one is as it should be.
const MODULES: [&str; 10] = [
    "empty", "short", "far", "many", "past", "fatbin", "ptx", "null", "edge", "",
];

#[test]
fn odd_modules() {
    if !need::bpf("odd_modules") {
        return;
    }
    let lab = Lab::new();
    let program = compile(&lab, "pc/program.c", "program", &[]);
    let loads: String = (0..MODULES.len())
        .map(|i| format!("module {i} launch sampled_{i} 2 sync "))
        .collect();
    let words = format!("init context gate {loads} gate unload");
    for mode in Mode::WITH {
        let mut host = lab
            .program(mode, &program)
            .words(&words)
            .env("MOCK_CUPTI_MODULES", MODULES.join(","))
            .env("PARCAGPU_RATE_LIMIT", "1e9")
            .start();
        let (pid, library) = (host.pid(), lab.library());
        host.wait_gate(1);
        let trace = Trace::attach(&lab, &[pid]);
        block::wait_state(pid, &library, State::Active);
        // Modules are seen from the first look on after that.
        block::wait_looks(pid, &library);
        host.open_gate(1);
        host.wait_gate(2);
        trace.until("both good ones", |events| {
            let loaded = events.iter().filter(|e| e["probe"] == "cubin_loaded");
            loaded.count() >= 2
        });
        assert_eq!(block::counter(pid, &library, Counter::CubinsKept), 2);
        assert_eq!(block::counter(pid, &library, Counter::Panics), 0);
        host.open_gate(2);
        let ended = host.wait(SHORT).ok();
        assert_eq!(
            (ended.stdout.as_str(), ended.stderr.as_str()),
            ("gate\ngate\n", ""),
            "{mode:?}"
        );
        let events = trace.end();
        // The edge's and the last one's, as far as they say themselves.
        assert_eq!(events.of("cubin_loaded").count(), 2, "{mode:?}");
        assert!(
            events
                .of("cubin_loaded")
                .all(|event| number(event, "size") > 64),
            "{mode:?}"
        );
        let records = events.records().len();
        cut_short::records(records, 2 * MODULES.len(), events.cut_short());
        let errors = events.errors();
        let why = |text: &str| errors.iter().filter(|error| error.2.contains(text)).count();
        assert!(
            errors
                .iter()
                .all(|e| e.1 == "cubin" && e.2.contains("the image of a module is not told")),
            "{mode:?}: {errors:?}"
        );
        for text in ["it cannot be read", "it is damaged", "no address"] {
            assert!(why(text) > 0, "{mode:?}: {text}: {errors:?}");
        }
    }
}
