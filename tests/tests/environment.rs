//! Variables that make no sense: one error each, and the default is used.

use std::time::Duration;

use parcagpu_abi::status::Counter;
use parcagpu_tests::agent::{Agent, Options};
use parcagpu_tests::block;
use parcagpu_tests::cut_short::Error;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const SHORT: Duration = Duration::from_secs(10);

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// Values that make no sense, and names that do not exist: one error each, and the default is used.
#[test]
fn environment() {
    if !need::bpf("environment") {
        return;
    }
    let lab = Lab::new();
    let long = "9".repeat(10_240);
    let values = ["abc", "-1", "1e309", "NaN", &long];
    for variable in [
        "PARCAGPU_RATE_LIMIT",
        "PARCAGPU_GRAPH_RATE_LIMIT",
        "PARCAGPU_SAMPLING_FACTOR",
        "PARCAGPU_HOOK_ENGINE",
        "PARCAGPU_YIELD",
        "PARCAGPU_API_CALLBACKS",
        "PARCAGPU_CUBIN_MEMORY_MB",
    ] {
        let consumer = agent(&lab);
        for value in values {
            lab.host(Mode::Preload, "init launch 3 sync")
                .env(variable, value)
                .run(SHORT)
                .ok();
            let told = consumer.errors();
            let shown = &value[..value.len().min(20)];
            let matching: Vec<&Error> = told.iter().filter(|t| t.2.contains(shown)).collect();
            assert_eq!(matching.len(), 1, "{variable}={shown}: {told:?}");
            let (code, component, message) = matching[0];
            assert_eq!((*code, component.as_str()), (0, "configuration"));
            assert!(
                message.contains(variable) && message.contains("default"),
                "{message}"
            );
        }
        assert_eq!(consumer.errors().len(), values.len(), "{variable}");
    }
}

/// Several at once, names that do not exist among them; the defaults are in force.
#[test]
fn environment_defaults() {
    if !need::bpf("environment_defaults") {
        return;
    }
    use std::os::unix::ffi::OsStrExt;
    let lab = Lab::new();
    let consumer = agent(&lab);
    let mut host = lab
        .host(Mode::Preload, "init launch 3 sync gate")
        .env("PARCAGPU_RATE_LIMIT", "0")
        .env(
            "PARCAGPU_GRAPH_RATE_LIMIT",
            std::ffi::OsStr::from_bytes(b"\xff\xfe"),
        )
        .env("PARCAGPU_SAMPLING_FACTOR", "32")
        .env("PARCAGPU_NO_SUCH_THING", "1")
        .env("PARCAGPU_RATELIMIT", "5")
        .env("PARCAGPU_LIB", "/anything")
        .env("PARCAGPU_DEBUG", "")
        .start();
    host.wait_gate(1);
    let status = block::read(host.pid(), &lab.library()).unwrap();
    let order = std::sync::atomic::Ordering::Relaxed;
    let rate = |bits: &std::sync::atomic::AtomicU64| f64::from_bits(bits.load(order));
    assert_eq!(rate(&status.config.rate_limit), 100.0);
    assert_eq!(rate(&status.config.graph_rate_limit), 20.0);
    assert_eq!(status.config.sampling_factor.load(order), 20);
    assert_eq!(status.config.debug.load(order), 0);
    assert_eq!(status.get(Counter::Errors), 5);
    host.open_gate(1);
    assert_eq!(host.wait(SHORT).ok().stderr, "");
    let told = consumer.errors();
    assert_eq!(told.len(), 5, "{told:?}");
    for name in [
        "PARCAGPU_RATE_LIMIT",
        "PARCAGPU_GRAPH_RATE_LIMIT",
        "PARCAGPU_SAMPLING_FACTOR",
        "PARCAGPU_NO_SUCH_THING",
        "PARCAGPU_RATELIMIT ",
    ] {
        assert_eq!(
            told.iter().filter(|t| t.2.contains(name)).count(),
            1,
            "{name}: {told:?}"
        );
    }
}
