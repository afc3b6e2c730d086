//! Handing CUPTI over and being a guest while a lot goes on.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::block;
use parcagpu_tests::hosts::{Case, Consumer, compile, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::WATCHDOG;
use parcagpu_tests::together::at_once;

const LOAD: &str = "init launch 10 load libcupti.so.13";
const SHORT: Duration = Duration::from_secs(20);

fn tool(lab: &Lab) -> PathBuf {
    compile(lab, "coexist/tool.c", "tool", &[])
}

/// Numbers of the lines `records N foreign N ..`.
fn reports(stdout: &str) -> Vec<(u64, u64)> {
    let lines = stdout.lines().filter(|l| l.starts_with("records "));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[1].parse().unwrap(), words[3].parse().unwrap())
        })
        .collect()
}

/// Traces of the program's own while its threads launch all the time: no buffer of ours reaches it,
/// and we are back after each.
#[test]
fn traces_under_load() {
    if !need::bpf("traces_under_load") {
        return;
    }
    let cases = [("0", "100"), ("1", "100"), ("0", "1e9")];
    at_once(cases, |(lock, rate)| {
        let lab = lab();
        let tool = tool(&lab);
        let words = format!(
            "{LOAD} thread until 3600 launch 1 sleep 1 end end thread until 3600 launch 1 sleep 1 end end \
             gate repeat 3 sleep 100 subscribe register on launch 1 sync sleep 100 flush 0 off flush 1 report unsubscribe gate end \
             stop join sync say done"
        );
        let case = Case::new(&lab, &tool, &words)
            .unlogged()
            .env("MOCK_CUPTI_LOCK", lock)
            .with("PARCAGPU_RATE_LIMIT", rate);
        let consumer = Consumer::new(&lab);
        let mut host = case.build(Mode::Preload).start();
        for gate in 1..=4 {
            // Again after each trace.
            block::wait_state(host.pid(), &lab.library(), State::Active);
            let deadline = Instant::now() + WATCHDOG;
            while consumer.so_far().records().len() < 20 * gate {
                assert!(host.runs(), "{}", host.stderr());
                assert!(
                    Instant::now() < deadline,
                    "{lock}, {rate}: {} records at gate {gate}",
                    consumer.so_far().records().len()
                );
                consumer.poll();
            }
            host.open_gate(gate);
            if gate < 4 {
                host.wait_gate(gate + 1);
            }
        }
        let ended = host.wait_with(SHORT, || consumer.poll()).ok();
        assert_eq!(ended.stderr, "");
        let reports = reports(&ended.stdout);
        assert_eq!(reports.len(), 3, "{}", ended.stdout);
        for (records, foreign) in reports {
            assert!(records > 0 && foreign == 0, "{}", ended.stdout);
        }
        let told = consumer.end();
        let errors = told.errors();
        let turns = errors.iter().filter(|e| e.0 == 39 && e.1 == "yield");
        assert_eq!(turns.count(), errors.len(), "{errors:?}");
        // One for each trace; more where the tool stood still in one until it counted as quiet.
        assert!((3..=9).contains(&errors.len()), "{errors:?}");
        assert!(told.launches().len() > 100, "{}", told.launches().len());
    });
}

/// Handed over while a kernel of a launch that we sampled still runs and holds our buffer.
#[test]
fn handed_over_beside_a_long_kernel() {
    if !need::bpf("handed_over_beside_a_long_kernel") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe register on launch 2 sync flush 0 report off unsubscribe gate launch 2 sync"
    );
    let seen = Case::new(&lab, tool(&lab), &words)
        .back_at_gates(1)
        .env("MOCK_CUDA_KERNEL_NS", "100000000")
        .check();
    assert_eq!(reports(&seen.with.ended.stdout), [(2, 0)]);
    assert_eq!(seen.events.launches().len(), 12);
}

/// A tool that subscribes by `cuptiSubscribe_v2`: its subscription is not shared, even when it is
/// quiet, and when it ends we are back.
#[test]
fn second_version_of_subscribe() {
    if !need::bpf("second_version_of_subscribe") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe2 register resource 1 on launch 50 sync flush 0 off report sleep 2500 launch 7 sync \
         on launch 5 sync flush 0 off report unsubscribe gate launch 20 sync"
    );
    let seen = Case::new(&lab, tool(&lab), &words).back_at_gates(1).check();
    let reports = reports(&seen.with.ended.stdout);
    assert_eq!(reports, [(50, 0), (5, 0)]);
    seen.launches(30).one_error("CUPTI is held by");
}

/// Consumers come and go while we are the guest of a quiet tracer; its next trace is whole.
#[test]
fn consumers_of_a_guest() {
    if !need::bpf("consumers_of_a_guest") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe register launches 1 on launch 10 sync flush 0 off report gate launch 20 sync gate \
         launch 3 sync on launch 30 sync flush 0 off report gate launch 5 sync gate report"
    );
    let case = Case::new(&lab, tool(&lab), &words);
    let mut host = case.build(Mode::Preload).start();
    let (pid, library) = (host.pid(), lab.library());
    host.wait_gate(1);
    let guest = Consumer::new(&lab);
    block::wait_state(pid, &library, State::Active);
    host.open_gate(1);
    host.wait_gate(2);
    let told = guest.end();
    assert_eq!(told.launches().len(), 20);
    block::wait_state(pid, &library, State::Dormant);
    host.open_gate(2);
    host.wait_gate(3);
    let second = Consumer::new(&lab);
    block::wait_state(pid, &library, State::Active);
    host.open_gate(3);
    host.wait_gate(4);
    let deadline = Instant::now() + WATCHDOG;
    while second.so_far().records().len() < 5 && Instant::now() < deadline {
        second.poll();
    }
    let told = second.end();
    assert_eq!((told.launches().len(), told.records().len()), (5, 5));
    host.open_gate(4);
    let ended = host.wait(SHORT).ok();
    assert_eq!(reports(&ended.stdout), [(10, 0), (30, 0), (0, 0)]);
    // 20, 3 and 30 launches with an entry and an exit each, and then 5.
    for line in ["driver 20 ", "driver 106 ", "driver 10 "] {
        assert!(ended.stdout.contains(line), "{line}: {}", ended.stdout);
    }
}

/// The process ends, or forks, while we are a guest.
#[test]
fn ends_of_a_guest() {
    if !need::bpf("ends_of_a_guest") {
        return;
    }
    let ends = [
        ("exit 7", 7),
        ("fork say child exit 3 end launch 5 sync exit 8", 8),
        ("unsubscribe exit 9", 9),
        ("finalize exit 6", 6),
    ];
    at_once(ends, |(end, status)| {
        let lab = lab();
        let tool = tool(&lab);
        let words = format!(
            "{LOAD} subscribe register launches 1 on launch 10 sync flush 0 off report gate launch 20 \
             sync report {end}"
        );
        let case = Case::new(&lab, &tool, &words).back_at_gates(1);
        let bare = case.bare();
        assert_eq!(bare.ended.code(), status, "{end}");
        let seen = case.check_against(bare);
        let more = if end.starts_with("fork") { 5 } else { 0 };
        seen.launches(30 + more);
    });
}

/// Many threads subscribe at once: as bare, exactly one of them gets through at a time.
#[test]
fn subscribers_at_once() {
    if !need::bpf("subscribers_at_once") {
        return;
    }
    let lab = lab();
    let tool = tool(&lab);
    let words = format!(
        "{LOAD} subscribe thread repeat 200 attempt end end thread repeat 200 attempt end end join refused \
         unsubscribe launch 3 sync"
    );
    for lock in ["0", "1"] {
        let seen = Case::new(&lab, &tool, &words)
            .env("MOCK_CUPTI_LOCK", lock)
            .check();
        let stdout = &seen.with.ended.stdout;
        assert!(stdout.contains("refused 400"), "{stdout}");
        assert!(seen.events.launches().len() >= 10);
    }
}
