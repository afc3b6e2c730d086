//! The probes as Parca's agent reads them: by position, by fixed offsets, names cut at 255 bytes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parcagpu_abi::status::Counter;
use parcagpu_tests::agent::{Agent, Event, Kind, Losses, Options};
use parcagpu_tests::block;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const SHORT: Duration = Duration::from_secs(10);

/// Runs host words under an agent that was there first, until all is delivered; the process.
fn observe(lab: &Lab, agent: &Agent, words: &str, variables: &[(&str, &str)]) -> u32 {
    let mut host = lab
        .host(Mode::Preload, &format!("{words} gate"))
        .env("PARCAGPU_RATE_LIMIT", "1e9")
        .env("PARCAGPU_GRAPH_RATE_LIMIT", "1e9")
        .envs(variables.iter().copied())
        .start();
    let pid = host.pid();
    agent.poll_to_gate(&mut host, 1);
    block::wait_delivered(pid, &lab.library());
    // Not by its own end, which waits for our thread with a bound only, and tells so.
    host.signal(libc::SIGKILL);
    host.wait(SHORT);
    pid
}

fn ids(events: &[Event]) -> Vec<u32> {
    events.iter().map(|event| event.id).collect()
}

/// Every launch of every kind is announced once with a stack, and every record follows an
/// announcement.
#[test]
fn all_records_with_their_ids() {
    if !need::bpf("all_records_with_their_ids") {
        return;
    }
    let lab = Lab::new();
    let options = Options {
        stacks: true,
        ..Options::default()
    };
    let agent = Agent::parca(&lab.library(), -1, options).unwrap();
    let words = "streams 3 modules 2 kernel agent_kernel init launch 300 ex 100 coop 100 ptsz 100 \
                 graph 5 replay 20 sync";
    let pid = observe(&lab, &agent, words, &[]);
    let launches = agent.of(Kind::Correlation);
    let records = agent.of(Kind::Record);
    assert!(
        agent.of(Kind::Error).is_empty(),
        "{:?}",
        agent.of(Kind::Error)
    );
    assert_eq!(launches.len(), 620);
    assert_eq!(records.len(), 600 + 20 * 5);
    assert!(
        launches
            .iter()
            .all(|l| l.pid == pid && l.tid == pid && l.has_stack)
    );
    let announced: HashSet<u32> = ids(&launches).into_iter().collect();
    assert_eq!(announced.len(), launches.len(), "ids are unique");
    let mut per_id: HashMap<u32, Vec<&Event>> = HashMap::new();
    for record in &records {
        per_id.entry(record.id).or_default().push(record);
        assert!(record.code == 3 || record.code == 10, "kind of {record:?}");
        assert!(record.end > record.start && record.start > 0, "{record:?}");
    }
    let mut codes: HashMap<i32, usize> = HashMap::new();
    for launch in &launches {
        *codes.entry(launch.code).or_default() += 1;
        let own = per_id.remove(&launch.id).unwrap_or_default();
        let graph = matches!(-launch.code, 514 | 515);
        assert_eq!(
            own.len(),
            if graph { 5 } else { 1 },
            "records of {launch:?}"
        );
        let nodes: HashSet<u64> = own.iter().map(|r| r.node).collect();
        assert_eq!(nodes.len(), own.len(), "nodes of {launch:?}");
        assert!(
            own.iter().all(|r| (r.graph != 0) == graph),
            "graph ids of {own:?}"
        );
        for record in own {
            let name = record.name.as_deref().unwrap_or_default();
            assert!(name.starts_with(b"agent_kernel"), "{record:?}");
        }
    }
    assert_eq!(per_id.len(), 0, "records without announcement");
    let wanted = [
        (-307, 300),
        (-652, 100),
        (-477, 100),
        (-442, 100),
        (-514, 20),
    ];
    assert_eq!(codes, HashMap::from(wanted));
    assert_eq!(agent.losses(), Losses::default());
}

/// Sampled at the default rate, no record comes whose launch was not announced.
#[test]
fn no_record_without_announcement() {
    if !need::bpf("no_record_without_announcement") {
        return;
    }
    let lab = Lab::new();
    let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    let words = "init graph 4 thread flat 3600 end thread flat 3600 end thread replayflat 3600 end \
                 gate stop join sync gate";
    let mut host = lab
        .host(Mode::Preload, words)
        .env("PARCAGPU_RATE_LIMIT", "100")
        .env("PARCAGPU_GRAPH_RATE_LIMIT", "20")
        .start();
    let announced = |events: &[Event]| {
        let launches = events.iter().filter(|e| e.kind == Kind::Correlation);
        launches.count()
    };
    let enough = agent.poll_until(|events| announced(events) >= 300);
    assert!(enough, "{} launches", announced(&agent.events()));
    host.open_gate(1);
    agent.poll_to_gate(&mut host, 2);
    block::wait_delivered(host.pid(), &lab.library());
    host.open_gate(2);
    host.wait_with(SHORT, || agent.poll(Duration::from_millis(20)))
        .ok();
    let announced: HashSet<u32> = ids(&agent.of(Kind::Correlation)).into_iter().collect();
    let records = ids(&agent.of(Kind::Record));
    let strangers: Vec<&u32> = records
        .iter()
        .filter(|id| !announced.contains(id))
        .collect();
    assert!(
        strangers.is_empty(),
        "records of unannounced launches: {strangers:?}"
    );
    let with: HashSet<u32> = records.into_iter().collect();
    assert_eq!(with, announced, "each announced launch has its record");
}

/// `kernel_executed` and `activity_batch` carry the same records.
#[test]
fn both_probes_tell_the_same() {
    if !need::bpf("both_probes_tell_the_same") {
        return;
    }
    let lab = Lab::new();
    let mut agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
    agent.attach(&lab.library(), -1, "kernel_executed").unwrap();
    observe(
        &lab,
        &agent,
        "streams 2 init launch 500 graph 3 replay 30 sync",
        &[],
    );
    let key = |e: &Event| {
        let place = (e.device, e.stream, e.graph, e.node);
        (e.id, place, e.start, e.end, e.name.clone())
    };
    let sorted = |kind| {
        let mut all: Vec<_> = agent.of(kind).iter().map(key).collect();
        all.sort();
        all
    };
    let kernels = sorted(Kind::Kernel);
    assert_eq!(kernels.len(), 590);
    assert_eq!(kernels, sorted(Kind::Record));
}

/// Names are whole up to 255 bytes and cut there, whatever their length; a null pointer is empty or
/// unreadable, never a fault; bytes that are not UTF-8 arrive as they are.
#[test]
fn names_of_all_kinds() {
    if !need::bpf("names_of_all_kinds") {
        return;
    }
    let letters = |n: usize| (0..n).map(|i| b'a' + (i % 26) as u8).collect::<Vec<u8>>();
    let mut cases = vec![
        ("empty".to_owned(), Vec::new()),
        ("null".to_owned(), Vec::new()),
        ("invalid".to_owned(), b"bad\xff\xfe\x80name".to_vec()),
    ];
    for length in [1, 127, 128, 254, 255, 256, 4095, 4096, 65_536, 600_000] {
        cases.push((format!("length:{length}"), letters(length.min(255))));
    }
    let lab = Lab::new();
    for (script, wanted) in cases {
        let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
        let variables = [("MOCK_CUPTI_KERNEL_NAME", script.as_str())];
        observe(&lab, &agent, "init launch 5 sync", &variables);
        for kind in [Kind::Correlation, Kind::Record] {
            let events = agent.of(kind);
            assert_eq!(events.len(), 5, "{script}: {kind:?}");
            for event in events {
                let name = event.name.unwrap_or_default();
                // The launch knows the function's name where CUPTI gives it no kernel's.
                if script == "null" && kind == Kind::Correlation {
                    continue;
                }
                assert_eq!(name, wanted, "{script}: {kind:?}");
            }
        }
        assert_eq!(agent.losses().unreadable, 0, "{script}");
    }
}

/// Buffers of any number of records arrive in batches of 1 to 128, each record once. Where CUPTI
/// fills tiny buffers faster than they can be emptied, what it dropped is counted.
#[test]
fn batches() {
    if !need::bpf("batches") {
        return;
    }
    let lab = Lab::new();
    for records in ["1", "127", "128", "129", "1000"] {
        let agent = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
        let mut host = lab
            .host(Mode::Preload, "init launch 2600 sync gate")
            .env("PARCAGPU_RATE_LIMIT", "1e9")
            .env("MOCK_CUPTI_BUFFER_RECORDS", records)
            .start();
        host.wait_gate(1);
        block::wait_delivered(host.pid(), &lab.library());
        let counter = |which| block::counter(host.pid(), &lab.library(), which);
        let dropped = counter(Counter::RecordsDroppedByCupti);
        let refused = counter(Counter::BuffersRefused);
        host.open_gate(1);
        host.wait(SHORT).ok();
        let launches: HashSet<u32> = ids(&agent.of(Kind::Correlation)).into_iter().collect();
        let kernels = ids(&agent.of(Kind::Record));
        let unique: HashSet<u32> = kernels.iter().copied().collect();
        assert_eq!(launches.len(), 2600, "{records} a buffer");
        assert_eq!(
            unique.len(),
            kernels.len(),
            "{records} a buffer: records come once"
        );
        assert!(unique.is_subset(&launches), "{records} a buffer");
        assert_eq!(
            kernels.len() as u64 + dropped,
            2600,
            "{records} a buffer: {dropped} dropped, {refused} buffers refused"
        );
        assert!(dropped == 0 || refused > 0, "{records} a buffer");
        assert!(
            records == "1" || dropped == 0,
            "{records} a buffer: {dropped} dropped"
        );
        assert_eq!(agent.losses(), Losses::default(), "{records} a buffer");
    }
}
