//! The main job: launches and kernel times reach a consumer.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Event, Kind, Losses, Options};
use parcagpu_tests::block;
use parcagpu_tests::cut_short;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::Program;
use parcagpu_tests::trace::{Events, Trace, number};
use serde_json::Value;

const SHORT: Duration = Duration::from_secs(10);

/// `parcagpu run` of host words, with the simulated driver for the host only.
fn run(lab: &Lab, options: &str, words: &str) -> Program {
    let host = parcagpu_tests::artefacts::host();
    lab.parcagpu(&format!(
        "run --lib {} {options} --",
        lab.library().display()
    ))
    .env("LD_LIBRARY_PATH", parcagpu_tests::artefacts::sim())
    .arg_path(&host)
    .words(words)
}

fn sorted(mut ids: Vec<u64>) -> Vec<u64> {
    ids.sort_unstable();
    ids
}

/// Ten launches and exit show ten under an attached trace, in both modes.
#[test]
fn ten_under_trace() {
    if !need::bpf("ten_under_trace") {
        return;
    }
    let lab = Lab::new();
    for mode in [Mode::Preload, Mode::Injection] {
        // Injected, the library is there from cuInit on.
        let words = match mode {
            Mode::Injection => "init gate launch 10",
            _ => "gate init launch 10",
        };
        let mut host = lab
            .host(mode, words)
            .env("PARCAGPU_RATE_LIMIT", "1e9")
            .start();
        host.wait_gate(1);
        let trace = Trace::attach(&lab, &[host.pid()]);
        if mode == Mode::Injection {
            block::wait_state(host.pid(), &lab.library(), State::Active);
        }
        host.open_gate(1);
        host.wait(SHORT).ok();
        let events = trace.end();
        let launches = sorted(events.launches());
        assert_eq!(launches.len(), 10, "{mode:?}: {}", events.stderr);
        let records = sorted(events.records());
        cut_short::records(records.len(), 10, events.cut_short());
        let among = |id: &u64| launches.binary_search(id).is_ok();
        assert!(records.iter().all(among), "{mode:?}: {records:?}");
        assert_eq!(events.errors(), [], "{mode:?}");
    }
}

/// Ten launches and exit show "all 10 launches" under `parcagpu run`.
#[test]
fn ten_under_run() {
    if !need::bpf("ten_under_run") {
        return;
    }
    let lab = Lab::new();
    let ended = run(&lab, "", "kernel shown init launch 10 say done")
        .run(SHORT)
        .ok();
    assert_eq!(ended.stdout, "done\n", "the program's output is its own");
    assert!(ended.stderr.contains("all 10 launches"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("10 kernel records"),
        "{}",
        ended.stderr
    );
    let row = ended.stderr.lines().find(|line| line.ends_with("shown"));
    assert!(
        row.is_some_and(|row| row.contains("100.0 %")),
        "{}",
        ended.stderr
    );
}

/// A sample is called one: the first launch's, since no other token comes in a test's time.
#[test]
fn sample_under_run() {
    if !need::bpf("sample_under_run") {
        return;
    }
    let lab = Lab::new();
    let ended = run(&lab, "--rate 0.001", "init launch 10").run(SHORT).ok();
    assert!(
        ended
            .stderr
            .contains("1 of 10 launches; shares are of the sample"),
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("all "), "{}", ended.stderr);
}

/// Launches that the driver refused, or that went into a capture, make no sample of a whole.
#[test]
fn what_did_not_run_is_not_missing() {
    if !need::bpf("what_did_not_run_is_not_missing") {
        return;
    }
    let lab = Lab::new();
    let words = "init launch 3 sync capture 2 fail 1 graph 2 replay 1 sync";
    let ended = run(&lab, "", words).run(SHORT).ok();
    assert!(ended.stderr.contains("all 4 launches"), "{}", ended.stderr);
}

/// `run` ends as its command does.
#[test]
fn exit_status_under_run() {
    if !need::bpf("exit_status_under_run") {
        return;
    }
    let lab = Lab::new();
    let code = |words: &str| run(&lab, "", words).run(SHORT).code();
    assert_eq!(code("exit 0"), 0);
    assert_eq!(code("init launch 3 exit 7"), 7);
    assert_eq!(code("init launch 3 _exit 8"), 8);
    assert_eq!(code("init launch 3 raise 15"), 128 + 15);
    assert_eq!(code("init abort"), 128 + 6);
}

/// The JSON of `run`: every launch, each kernel of several streams and modules.
#[test]
fn streams_and_modules() {
    if !need::bpf("streams_and_modules") {
        return;
    }
    let lab = Lab::new();
    let out = lab.file("run.json");
    let options = format!("--trace --json --raw-names --output {}", out.display());
    let words =
        "streams 4 modules 3 kernel part init thread launch 60 end thread launch 60 end join sync";
    run(&lab, &options, words).run(SHORT).ok();
    let text = fs::read_to_string(&out).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let records: Vec<&Value> = events
        .iter()
        .filter(|e| e["probe"] == "activity_batch")
        .collect();
    let cut_short = Events::read(&text).cut_short();
    cut_short::records(records.len(), 120, cut_short);
    let streams: HashSet<u64> = records.iter().map(|r| number(r, "stream_id")).collect();
    assert!(streams.len() == 4 || cut_short, "{streams:?}");
    let names: HashSet<&str> = records.iter().filter_map(|r| r["name"].as_str()).collect();
    let all = HashSet::from(["part0", "part1", "part2"]);
    assert!(
        names == all || cut_short && names.is_subset(&all),
        "{names:?}"
    );
    let launching: HashSet<u64> = events
        .iter()
        .filter(|e| e["probe"] == "cuda_correlation")
        .map(|e| number(e, "tid"))
        .collect();
    assert_eq!(launching.len(), 2, "launches are told on their threads");
}

/// Each replay of a graph gives a record per node, with graph id and node id.
#[test]
fn graphs() {
    if !need::bpf("graphs") {
        return;
    }
    let lab = Lab::new();
    let mut host = lab
        .host(Mode::Preload, "gate init graph 10 replay 25 sync")
        .env("PARCAGPU_GRAPH_RATE_LIMIT", "1e9")
        .start();
    host.wait_gate(1);
    let trace = Trace::attach(&lab, &[host.pid()]);
    host.open_gate(1);
    host.wait(SHORT).ok();
    let events = trace.end();
    let launches = events.launches();
    assert_eq!(launches.len(), 25);
    assert!(events.of("cuda_correlation").all(|e| e["cbid"] == -514));
    let mut graph_ids = HashSet::new();
    let mut nodes_of_all = HashSet::new();
    for id in launches {
        let own: Vec<&Value> = events
            .of("activity_batch")
            .filter(|e| number(e, "correlation_id") == id)
            .collect();
        let nodes: HashSet<u64> = own.iter().map(|e| number(e, "graph_node_id")).collect();
        assert_eq!(
            (own.len(), nodes.len()),
            (10, 10),
            "records and nodes of {id}"
        );
        graph_ids.extend(own.iter().map(|e| number(e, "graph_id")));
        nodes_of_all.extend(nodes);
    }
    assert_eq!(
        (graph_ids.len(), nodes_of_all.len()),
        (1, 10),
        "one graph, the same nodes each time"
    );
    assert!(!graph_ids.contains(&0) && !nodes_of_all.contains(&0));
}

fn records_among(events: &[Event]) -> usize {
    events.iter().filter(|e| e.kind == Kind::Record).count()
}

/// A million launches of four threads, every one sampled: each is told once and has its kernel once.
#[test]
fn million() {
    if !need::bpf("million") {
        return;
    }
    const THREADS: usize = 4;
    const TURNS: usize = 8;
    const EACH: usize = 31_250;
    let lab = Lab::new();
    let options = Options {
        names: false,
        ring: 256 << 20,
        ..Options::default()
    };
    let agent = Agent::parca(&lab.library(), -1, options).unwrap();
    let thread = format!("thread launch {EACH} end ");
    let turn = format!("{} join sync gate ", thread.repeat(THREADS));
    let words = format!("streams 4 init {}", turn.repeat(TURNS));
    let mut host = lab
        .host(Mode::Preload, &words)
        .env("PARCAGPU_RATE_LIMIT", "1000000")
        .env("MOCK_CUDA_KERNEL_NS", "500")
        .start();
    let pid = host.pid();
    for turn in 1..=TURNS {
        agent.poll_to_gate(&mut host, turn);
        // The buffers of one turn are no more than the library has, so that none is refused however late they are
        // delivered. The last one, which is not full, comes when it may.
        let full = THREADS * EACH * turn - 1000;
        let came =
            agent.poll_until(|events| events.len() > 2 * full && records_among(events) >= full);
        assert!(came, "turn {turn}: {:?}", agent.losses());
        host.open_gate(turn);
    }
    host.wait_with(SHORT, || agent.poll(Duration::from_millis(20)))
        .ok();
    let unique = |kind| {
        let events = agent.of(kind);
        assert!(events.iter().all(|e| e.pid == pid));
        let ids: HashSet<u32> = events.iter().map(|e| e.id).collect();
        assert_eq!(ids.len(), events.len(), "{kind:?}: no id twice");
        ids
    };
    let (launches, records) = (unique(Kind::Correlation), unique(Kind::Record));
    assert_eq!(agent.losses(), Losses::default());
    assert_eq!(launches.len(), THREADS * EACH * TURNS);
    agent.assert_records(THREADS * EACH * TURNS);
    assert!(records.is_subset(&launches));
}

/// Looks of our thread, ten a second at most, in which all is delivered that has finished: it flushes twice a second.
const DELIVERED: u64 = 7;

/// A record is told by looks of our thread, though the program then idles.
#[test]
fn idle_program_keeps_nothing_back() {
    if !need::bpf("idle_program_keeps_nothing_back") {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let words = "init launch 20 sync gate";
    let mut host = lab
        .host(Mode::Preload, words)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    host.wait_gate(1);
    block::wait_more_looks(host.pid(), &lab.library(), DELIVERED);
    assert_eq!(agent.of(Kind::Record).len(), 20);
    host.open_gate(1);
    host.wait(SHORT).ok();
}

/// A kernel that runs holds its buffer back, which the status block tells; once it ends its record, and
/// those of the others in the buffer, are told.
#[test]
fn long_kernel() {
    if !need::bpf("long_kernel") {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let words = "kernel long_ns2000000000 init launch 3 say launched sync gate";
    let mut host = lab
        .host(Mode::Preload, words)
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .start();
    host.wait_stdout("launched");
    let oldest = || {
        let status = block::read(host.pid(), &lab.library()).unwrap();
        let order = std::sync::atomic::Ordering::Relaxed;
        status.oldest_buffer_ns.load(order)
    };
    // Told after a flush, seconds before they end.
    assert!(
        agent.poll_until(|events| oldest() != 0 && events.iter().all(|e| e.kind != Kind::Record)),
        "a buffer is out, and held back"
    );
    host.wait_gate(1);
    block::wait_more_looks(host.pid(), &lab.library(), DELIVERED);
    assert_eq!(agent.of(Kind::Record).len(), 3);
    for record in agent.of(Kind::Record) {
        assert_eq!(record.end - record.start, 2_000_000_000);
    }
    host.open_gate(1);
    host.wait(SHORT).ok();
}

/// A program that is stopped while it ends, or whose machine is: the time in which it stood still is not what its end
/// waits for our thread.
#[test]
fn stopped_while_it_ends() {
    if !need::bpf("stopped_while_it_ends") {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let mut host = lab
        .host(Mode::Preload, "init launch 20 sync say over")
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .env("PARCAGPU_CUPTI_PATH", lab.slow_cupti())
        .env("SLOW_FLUSH_MS", "60")
        .start();
    host.wait_stdout("over");
    if host.runs() {
        host.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(800));
        host.signal(libc::SIGCONT);
    }
    host.wait(SHORT).ok();
    assert_eq!(agent.errors().len(), 0, "{:?}", agent.errors());
    assert_eq!(agent.of(Kind::Record).len(), 20);
}
