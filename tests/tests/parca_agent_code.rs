//! PC samples and code as Parca's agent reads them: 60 bytes of a record, all 64 stall reasons whatever the count, the
//! whole table of their names; and a sample counts only if its code was announced.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use parcagpu_tests::agent::{Agent, Losses, Options};
use parcagpu_tests::agent_code::Code;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::WATCHDOG;

const SHORT: Duration = Duration::from_secs(20);
/// Kernels of 1 ms, of which the simulated GPU has 100 samples each; every one of them is wanted.
const SAMPLED: [(&str, &str); 3] = [
    ("PARCAGPU_PC_SAMPLING_RATE", "1e6"),
    ("PARCAGPU_RATE_LIMIT", "1e9"),
    ("MOCK_CUDA_KERNEL_NS", "1000000"),
];

/// Runs a host of two modules under an agent that was there first, until that was told enough; its process.
#[track_caller]
fn observe(
    lab: &Lab,
    agent: &Agent,
    variables: &[(&str, &str)],
    enough: impl Fn(&Code) -> bool,
    at_gate: impl FnOnce(u32),
) -> u32 {
    let words = "modules 2 kernel sampled_kernel init thread spaced 400 3600 end gate";
    let mut host = lab
        .host(Mode::Preload, words)
        .envs(SAMPLED)
        .envs(variables.iter().copied())
        .start();
    let pid = host.pid();
    agent.poll_to_gate(&mut host, 1);
    let deadline = Instant::now() + WATCHDOG;
    while !enough(&agent.code()) {
        let (samples, dropped) = (agent.code().samples.len(), agent.code().unannounced);
        assert!(
            Instant::now() < deadline,
            "{samples} samples, {dropped} dropped"
        );
        agent.poll(Duration::from_millis(20));
    }
    at_gate(pid);
    // Not by its own end, which waits for our thread with a bound only, and tells so.
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
    pid
}

/// Some samples, of either module's kernel.
fn many(code: &Code) -> bool {
    let crcs: HashSet<u64> = code.samples.iter().map(|s| s.crc).collect();
    code.samples.len() >= 16 && crcs.len() == 2
}

/// Each sample can be read whole, has reasons of the table, lies in announced code that can be read back, and belongs
/// to no launch, as continuous sampling has none.
#[test]
fn samples_are_read_whole_and_joined_with_their_code() {
    const TEST: &str = "samples_are_read_whole_and_joined_with_their_code";
    if !need::bpf(TEST) {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::parca_sampling(&lab.library(), -1, Options::default()).unwrap();
    let pid = observe(&lab, &agent, &[], many, |pid| {
        let code = agent.code();
        assert_eq!(code.cubins.len(), 2, "{:?}", code.cubins);
        for cubin in code.cubins.values() {
            assert_eq!(cubin.pid, pid);
            let bytes = cubin.read().unwrap();
            assert_eq!(u64::from(crc32fast::hash(&bytes)), cubin.crc);
        }
    });
    assert_eq!(agent.losses(), Losses::default());
    assert_eq!(agent.errors().len(), 0, "{:?}", agent.errors());
    let code = agent.code();
    assert_eq!(code.unannounced, 0);
    assert!(code.samples.len() >= 16, "{} samples", code.samples.len());
    let names = code.reason_names(pid);
    assert_eq!(names.len(), 40);
    let (_, table) = &code.reasons[&pid];
    assert_eq!(table.len(), 64);
    assert!(table[40..].iter().all(|name| *name == [0; 64]));
    for sample in &code.samples {
        assert_eq!((sample.pid, sample.correlation_id), (pid, 0));
        let name = sample.name.as_deref().unwrap();
        assert!(name.starts_with(b"sampled_kernel"), "{sample:?}");
        let used = usize::try_from(sample.reason_count).unwrap();
        assert!((1..=64).contains(&used), "{sample:?}");
        for (reason, samples) in &sample.reasons[..used] {
            let name = &names[*reason as usize];
            assert!(name.starts_with("smsp__pcsamp_"), "{sample:?}");
            assert!(*samples > 0 && *samples < 1_000_000, "{sample:?}");
        }
    }
    let crcs: HashSet<u64> = code.samples.iter().map(|s| s.crc).collect();
    assert_eq!(crcs.len(), 2, "both modules' kernels have samples");
    // ns per sample = 2^factor x 1e6 / clock.
    let config = code.configs[&pid];
    assert_eq!((config.device, config.factor), (0, 20));
    assert!(config.clock_khz > 0 && config.sm_count > 0, "{config:?}");
}

/// Without the announcements nothing of a sample can be believed: all are dropped.
#[test]
fn samples_of_code_that_was_not_announced_are_dropped() {
    const TEST: &str = "samples_of_code_that_was_not_announced_are_dropped";
    if !need::bpf(TEST) {
        return;
    }
    let lab = Lab::new();
    let mut agent = Agent::load(Options::default()).unwrap();
    agent.attach(&lab.library(), -1, "pc_sample_batch").unwrap();
    observe(&lab, &agent, &[], |code| code.unannounced >= 16, |_| {});
    let code = agent.code();
    assert!(code.unannounced >= 16, "{} dropped", code.unannounced);
    assert_eq!(code.samples.len(), 0);
    assert_eq!(agent.losses(), Losses::default());
}

/// More stall reasons than the table has places: the table stays whole, and records can still be read.
#[test]
fn more_than_64_stall_reasons() {
    const TEST: &str = "more_than_64_stall_reasons";
    if !need::bpf(TEST) {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::parca_sampling(&lab.library(), -1, Options::default()).unwrap();
    let variables = [("MOCK_CUPTI_STALL_REASONS", "70")];
    let pid = observe(&lab, &agent, &variables, many, |_| {});
    assert_eq!(agent.losses(), Losses::default());
    let code = agent.code();
    assert_eq!(code.unannounced, 0);
    assert!(code.samples.len() >= 16, "{} samples", code.samples.len());
    let (count, table) = &code.reasons[&pid];
    assert_eq!((*count, table.len()), (64, 64));
    assert!(code.samples.iter().all(|s| s.reason_count <= 64));
    let told = agent.errors();
    assert!(
        told.iter()
            .any(|(_, _, message)| message.contains("70 stall reasons")),
        "{told:?}"
    );
}
