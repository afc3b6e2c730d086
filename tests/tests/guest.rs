//! A guest in any process: what the program does, prints and holds is as without the library.

use std::fs;
use std::path::Path;
use std::time::Duration;

use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block;
use parcagpu_tests::compare::{self, same_output, transparent};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log::count;
use parcagpu_tests::need;

const SHORT: Duration = Duration::from_secs(10);

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).unwrap()
}

/// A program without CUDA: no thread, no CUPTI, no output, no change of its environment, even with a
/// consumer attached.
#[test]
fn without_cuda() {
    if !need::bpf("without_cuda") {
        return;
    }
    let lab = Lab::new();
    let _agent = agent(&lab);
    let mut host = lab.host(Mode::Preload, "gate say done").start();
    host.wait_gate(1);
    assert_eq!(block::threads(host.pid()).len(), 1);
    assert!(!block::maps(host.pid(), "libcupti") && !block::maps(host.pid(), "libcuda"));
    host.open_gate(1);
    let ended = host.wait(SHORT).ok();
    assert_eq!(
        (ended.stdout.as_str(), ended.stderr.as_str()),
        ("gate\ndone\n", "")
    );
    let environment = |mode| {
        let ended = lab.program(mode, "env").run(SHORT).ok();
        assert_eq!(ended.stderr, "");
        let lines = ended
            .stdout
            .lines()
            .filter(|l| !l.starts_with("LD_PRELOAD=") && !l.starts_with("_="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(environment(Mode::Bare), environment(Mode::Preload));
    let shell = |mode| {
        let program = lab
            .program(mode, "sh")
            .args(["-c", "(exit 3); echo $?; sh -c 'echo inner; exit 4'"]);
        let ended = program.run(SHORT);
        (ended.code(), ended.stdout, ended.stderr)
    };
    assert_eq!(shell(Mode::Bare), shell(Mode::Preload));
}

/// `PARCAGPU_DISABLE=1`: the library does nothing at all.
#[test]
fn disabled() {
    if !need::bpf("disabled") {
        return;
    }
    let lab = Lab::new();
    let consumer = agent(&lab);
    let words = "init launch 20 sync count";
    for run in transparent(&lab, words, SHORT, |p| p.env("PARCAGPU_DISABLE", "1")) {
        assert!(run.calls.iter().all(|c| !c.is_cupti()));
        assert_eq!(
            count(&run.calls, "cuDriverGetVersion"),
            0,
            "not even a query"
        );
    }
    for mode in Mode::WITH {
        let mut host = lab
            .host(mode, "init launch 20 gate")
            .env("PARCAGPU_DISABLE", "1")
            .start();
        host.wait_gate(1);
        assert_eq!(block::threads(host.pid()).len(), 1, "{mode:?}");
        host.open_gate(1);
        host.wait(SHORT).ok();
    }
    assert!(consumer.events().is_empty());
}

fn assert_host_bytes(file: &Path) {
    assert_eq!(
        fs::read_to_string(file).unwrap(),
        "host bytes\n",
        "{}",
        file.display()
    );
}

/// With stdin, stdout and stderr closed at the start, our log goes into none of the program's files.
/// (A library that the driver loads later cannot tell whose descriptor 2 is: there without a log.)
#[test]
fn closed_stdio() {
    if !need::bpf("closed_stdio") {
        return;
    }
    let lab = Lab::new();
    let _agent = agent(&lab);
    let files = ["a", "b", "c"].map(|name| lab.file(name));
    let owned: Vec<String> = files
        .iter()
        .map(|f| format!("ownfile {}", f.display()))
        .collect();
    let script = format!(
        "exec {} {} init launch 20 sync exit 6 <&- >&- 2>&-",
        parcagpu_tests::artefacts::host().display(),
        owned.join(" ")
    );
    for (mode, debug) in [(Mode::Preload, "2"), (Mode::Injection, "0")] {
        let ended = lab
            .program(mode, "sh")
            .env("PARCAGPU_DEBUG", debug)
            .args(["-c", &script])
            .run(SHORT);
        assert_eq!(ended.code(), 6, "{mode:?}");
        for file in &files {
            assert_host_bytes(file);
        }
    }
}

/// A program that closes every descriptor above 2 and opens its own finds only its bytes in it.
#[test]
fn closed_descriptors() {
    if !need::bpf("closed_descriptors") {
        return;
    }
    let lab = Lab::new();
    let file = lab.file("own");
    let words = format!(
        "init launch 5 close3 ownfile {} launch 10000 sync sleep 300 launch 10 sync count",
        file.display()
    );
    same_output(&lab, &words, |p| p);
    assert_host_bytes(&file);
}

/// Signals that the program blocks and waits for all come to it; its masks and handlers are as bare;
/// our thread blocks everything.
#[test]
fn signals() {
    if !need::bpf("signals") {
        return;
    }
    let lab = Lab::new();
    let ended = same_output(
        &lab,
        "init mask block launch 50 mask selfsig 1000 fork mask end",
        |p| p,
    );
    assert!(
        ended
            .iter()
            .all(|e| e.stdout.contains("signals taken 4000"))
    );
    let _agent = agent(&lab);
    let mut host = lab.host(Mode::Preload, "init gate").start();
    host.wait_gate(1);
    let pid = host.pid();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        if !status.starts_with("Name:\tparcagpu\n") {
            continue;
        }
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("SigBlk:\t"))
            .unwrap();
        let blocked = u64::from_str_radix(line, 16).unwrap();
        for signal in [1, 2, 10, 12, 13, 14, 15, 17, 27] {
            assert_ne!(blocked & (1 << (signal - 1)), 0, "signal {signal}: {line}");
        }
    }
    host.open_gate(1);
    host.wait(SHORT).ok();
}

/// An empty environment but for the preload.
#[test]
fn empty_environment() {
    let lab = Lab::new();
    let words = "init launch 5 sync count";
    let bare = compare::run(&lab, Mode::Bare, words, SHORT, |p| p);
    let ended = lab
        .host(Mode::Bare, words)
        .bare_environment()
        .env("LD_LIBRARY_PATH", parcagpu_tests::artefacts::sim())
        .env("LD_PRELOAD", lab.library())
        .run(SHORT)
        .ok();
    assert_eq!(
        (ended.stdout, ended.stderr),
        (bare.ended.stdout, String::new())
    );
}

/// Without a consumer every call of the program and every result is as bare, and no CUPTI is called.
#[test]
fn dormant_is_transparent() {
    let lab = Lab::new();
    let words = "streams 2 modules 2 init launch 50 ex 10 coop 10 ptsz 10 fail 3 capture 4 graph 3 replay 5 \
                 thread launch 20 end join sync count exit 3";
    for run in transparent(&lab, words, SHORT, |p| p) {
        let cupti: Vec<_> = run.calls.iter().filter(|c| c.is_cupti()).collect();
        assert!(cupti.is_empty(), "{cupti:?}");
    }
}

/// With one, too, but for calls of CUPTI.
#[test]
fn active_is_transparent() {
    if !need::bpf("active_is_transparent") {
        return;
    }
    let lab = Lab::new();
    let agent = agent(&lab);
    let words = "streams 2 modules 2 init launch 50 ex 10 coop 10 ptsz 10 fail 3 capture 4 graph 3 replay 5 \
                 thread launch 20 end join sync count exit 3";
    for rate in ["100", "1e9"] {
        for run in transparent(&lab, words, SHORT, |p| p.env("PARCAGPU_RATE_LIMIT", rate)) {
            assert_eq!(count(&run.calls, "cuptiSubscribe"), 1);
        }
    }
    assert!(!agent.of(Kind::Correlation).is_empty());
}
