//! Real NVTX clients: every call becomes the right event.

mod nvtx_common;

use std::ffi::OsStr;
use std::path::Path;

use nvtx_common::{
    NEWEST, SHORT, Said, VERSIONS, at_first_gate, attach, compile, injected, names, program, ready,
    said,
};
use parcagpu_tests::artefacts;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::Program;

type Expected = (&'static str, &'static str, &'static str, u64, (u64, u64));

/// What `every.c` says, in order: kind, domain, text, colour, payload type and payload.
const EVERY: &[Expected] = &[
    ("mark", "", "mark ex", 0xff11_2233, (0, 0)),
    ("mark", "", "mark a", 0, (0, 0)),
    ("mark", "", "mark w é中", 0, (0, 0)),
    (
        "push",
        "",
        "push ex",
        0x8044_5566,
        (1, 0x1234_5678_9abc_def0),
    ),
    ("push", "", "push a", 0, (0, 0)),
    ("push", "", "push w 中", 0, (0, 0)),
    ("pop", "", "", 0, (0, 0)),
    ("pop", "", "", 0, (0, 0)),
    ("pop", "", "", 0, (0, 0)),
    ("start", "", "start ex", 0, (5, 0xffff_fffb)),
    ("start", "", "start a", 0, (0, 0)),
    ("start", "", "start w", 0, (0, 0)),
    ("end", "", "", 0, (0, 0)),
    ("end", "", "", 0, (0, 0)),
    ("mark", "", "i64", 0, (2, u64::MAX - 1)),
    ("mark", "", "f64", 0, (3, 0x3ff8_0000_0000_0000)),
    ("mark", "", "u32", 0, (4, 7)),
    ("mark", "", "f32", 0, (6, 0x3f00_0000)),
    ("mark", "", "extended", 0, (0, 0)),
    ("mark", "test.domain", "registered", 0, (0, 0)),
    ("push", "test.wïde", "registered 中", 0, (0, 0)),
    ("push", "test.domain", "registered", 0, (0, 0)),
    ("pop", "test.domain", "", 0, (0, 0)),
    ("pop", "test.wïde", "", 0, (0, 0)),
    ("start", "test.domain", "domain start", 0xff00_ff00, (0, 0)),
    ("mark", "", "default domain", 0, (0, 0)),
    ("mark", "test.domain", "after destroy", 0, (0, 0)),
    ("end", "", "", 0, (0, 0)),
    ("end", "test.domain", "", 0, (0, 0)),
    ("mark", "", "last", 0, (0, 0)),
];

/// Starts by text and ends by position: which belong together.
const PAIRS: [(&str, usize); 4] = [
    ("start w", 12),
    ("start ex", 13),
    ("start a", 27),
    ("domain start", 28),
];

#[track_caller]
fn check_every(client: &str, lab: &Lab, program: Program) {
    let trace = attach(lab);
    let ended = program.run(SHORT).ok();
    let events = trace.end();
    let said = said(&events.all);
    let plain: Vec<_> = said
        .iter()
        .map(|s| {
            (
                s.kind.as_str(),
                s.domain.as_str(),
                s.message.as_str(),
                s.color,
                s.payload,
            )
        })
        .collect();
    assert_eq!(plain, EVERY, "{client}");

    for (start, end) in PAIRS {
        let start = said
            .iter()
            .find(|s| s.message == start)
            .expect("it is there");
        assert_ne!(start.range, 0);
        assert_eq!(start.range, said[end].range, "{client}: {}", start.message);
    }
    let main: u64 = ended
        .stdout
        .lines()
        .find_map(|l| l.strip_prefix("tid "))
        .and_then(|n| n.parse().ok())
        .expect("the program says it");
    for (i, s) in said.iter().enumerate() {
        assert_eq!(
            s.thread == main,
            i != 27 && i != 28,
            "{client}: thread of {s:?}"
        );
    }
    // A tool that does not count levels.
    for line in ["plain -2 -2", "domain -2 -2", "ids 1", "resource 1"] {
        assert!(ended.stdout.contains(line), "{client}: {}", ended.stdout);
    }
    let names = names(&events.all);
    for (kind, id, name) in [
        ("os_thread", main, "main thread"),
        ("os_thread", 999_999, "other thread"),
        ("os_thread", 888_888, "resource thread"),
        ("cuda_device", 3, "device 3"),
        ("cuda_device", 4, "device 4"),
        ("cuda_stream", 0x20, "stream 20"),
        ("cuda_stream", 0x40, "stream 40"),
    ] {
        let told = names.get(&(kind.to_owned(), id)).map(String::as_str);
        assert_eq!(told, Some(name), "{client}: {kind} {id}");
    }
    let domains = names
        .keys()
        .filter(|(kind, _)| kind == "nvtx_domain")
        .count();
    assert_eq!(domains, 2, "{client}: {names:?}");
    assert_eq!(events.errors(), [], "{client}");
}

#[test]
fn c_and_cpp_clients_of_every_version() {
    let Some(wheels) = ready("c_and_cpp_clients_of_every_version") else {
        return;
    };
    for version in VERSIONS {
        for compiler in ["gcc", "g++"] {
            let lab = Lab::new();
            let every = compile(
                &lab,
                compiler,
                "every.c",
                &wheels.join(version),
                "every",
                &[],
            );
            let program = injected(&lab, every);
            check_every(
                &format!("{compiler} with headers of {version}"),
                &lab,
                program,
            );
        }
    }
}

#[test]
fn a_client_of_the_v2_library() {
    let Some(wheels) = ready("a_client_of_the_v2_library") else {
        return;
    };
    for version in ["11.8", "12.1"] {
        let lab = Lab::new();
        let folder = wheels.join(version);
        let library = folder.join("lib/libnvToolsExt.so.1");
        let more: [&OsStr; 2] = ["-DNVTX_V2".as_ref(), library.as_ref()];
        let every = compile(&lab, "gcc", "every.c", &folder, "every", &more);
        let program = injected(&lab, every).env("LD_LIBRARY_PATH", folder.join("lib"));
        check_every(&format!("v2 library of {version}"), &lab, program);
    }
}

#[test]
fn preloaded_as_well() {
    let Some(wheels) = ready("preloaded_as_well") else {
        return;
    };
    let lab = Lab::new();
    let every = compile(&lab, "gcc", "every.c", &wheels.join(NEWEST), "every", &[]);
    let program = injected(&lab, every).env("LD_PRELOAD", lab.library());
    check_every("preloaded", &lab, program);
}

#[test]
fn three_clients_in_three_libraries_share_handles() {
    let Some(wheels) = ready("three_clients_in_three_libraries_share_handles") else {
        return;
    };
    let lab = Lab::new();
    let mut libraries = Vec::new();
    for (copy, version) in [("one", "11.8"), ("two", "12.9"), ("three", "13.5")] {
        let define = format!("-DCOPY={copy}");
        let more: [&OsStr; 3] = ["-shared".as_ref(), "-fPIC".as_ref(), define.as_ref()];
        let name = format!("lib{copy}.so");
        libraries.push(compile(
            &lab,
            "gcc",
            "copy.c",
            &wheels.join(version),
            &name,
            &more,
        ));
    }
    let more: Vec<&OsStr> = libraries.iter().map(|l| l.as_ref()).collect();
    let copies = compile(
        &lab,
        "gcc",
        "copies.c",
        &wheels.join(NEWEST),
        "copies",
        &more,
    );
    let mut running = at_first_gate(injected(&lab, copies));
    let trace = attach(&lab);
    running.open_gate(1);
    let ended = running.wait(SHORT).ok();
    assert!(ended.stdout.contains("unique 1"), "{}", ended.stdout);
    let events = trace.end();
    let said = said(&events.all);
    let ids: Vec<u64> = said[..3].iter().map(|s| s.range).collect();
    let plain: Vec<_> = said
        .iter()
        .map(|s| {
            let range = ids.iter().position(|id| *id == s.range);
            (
                s.kind.as_str(),
                s.domain.as_str(),
                s.message.as_str(),
                range,
            )
        })
        .collect();
    assert_eq!(
        plain,
        [
            ("start", "shared", "from three", Some(0)),
            ("start", "shared", "from one", Some(1)),
            ("start", "shared", "from one", Some(2)),
            ("push", "shared", "from three", None),
            ("push", "shared", "from one", None),
            ("pop", "shared", "", None),
            ("pop", "shared", "", None),
            ("end", "shared", "", Some(0)),
            ("end", "third", "", Some(2)),
            ("end", "shared", "", Some(1)),
            ("push", "shared", "from three", None),
            ("pop", "shared", "", None),
        ]
    );
}

const PYTHON: &str = r#"
import nvtx, threading
with nvtx.annotate("a", color="red"):
    pass
nvtx.push_range("p é中", color="green", domain="lib.x", category="io", payload=42)
nvtx.pop_range(domain="lib.x")
nvtx.push_range("q", domain="lib.x", payload=1.5)
nvtx.pop_range(domain="lib.x")
nvtx.mark("m")
r = nvtx.start_range("s", domain="lib.x")
def end():
    nvtx.end_range(r)
t = threading.Thread(target=end)
t.start()
t.join()
@nvtx.annotate()
def func():
    pass
func()
d = nvtx.Domain("lib.y")
a = d.get_event_attributes("object", color="blue")
d.push_range(a)
d.pop_range()
"#;

fn python(lab: &Lab, wheels: &Path, script: &str) -> Program {
    injected(lab, "python3")
        .args(["-c", script])
        .env("PYTHONPATH", wheels.join("python/python"))
}

#[test]
fn the_python_package() {
    let Some(wheels) = ready("the_python_package") else {
        return;
    };
    let lab = Lab::new();
    let trace = attach(&lab);
    python(&lab, &wheels, PYTHON).run(SHORT).ok();
    let events = trace.end();
    let said = said(&events.all);
    // Alpha is what the package sends: none.
    let plain: Vec<_> = said
        .iter()
        .map(|s| {
            (
                s.kind.as_str(),
                s.domain.as_str(),
                s.message.as_str(),
                s.color,
                s.payload,
            )
        })
        .collect();
    let expected: [Expected; 13] = [
        ("push", "", "a", 0x00ff_0000, (0, 0)),
        ("pop", "", "", 0, (0, 0)),
        ("push", "lib.x", "p é中", 0x0000_8000, (2, 42)),
        ("pop", "lib.x", "", 0, (0, 0)),
        ("push", "lib.x", "q", 0x0000_00ff, (3, 1.5f64.to_bits())),
        ("pop", "lib.x", "", 0, (0, 0)),
        ("mark", "", "m", 0x0000_00ff, (0, 0)),
        ("start", "lib.x", "s", 0x0000_00ff, (0, 0)),
        ("end", "lib.x", "", 0, (0, 0)),
        ("push", "", "func", 0x0000_00ff, (0, 0)),
        ("pop", "", "", 0, (0, 0)),
        ("push", "lib.y", "object", 0x0000_00ff, (0, 0)),
        ("pop", "lib.y", "", 0, (0, 0)),
    ];
    assert_eq!(plain, expected);
    assert_eq!(said[7].range, said[8].range);
    assert_ne!(said[7].thread, said[8].thread);
}

#[test]
fn forked_workers_of_python_tell_their_own_story() {
    let Some(wheels) = ready("forked_workers_of_python_tell_their_own_story") else {
        return;
    };
    let script = r#"
import nvtx, os
nvtx.push_range("parent", domain="both")
children = []
for i in range(3):
    pid = os.fork()
    if pid == 0:
        nvtx.push_range("parent", domain="both")
        nvtx.pop_range(domain="both")
        nvtx.push_range(f"child {i}", domain=f"child {i}")
        nvtx.pop_range(domain=f"child {i}")
        # As a worker ends that wants its exit handlers to run.
        raise SystemExit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
nvtx.pop_range(domain="both")
"#;
    let lab = Lab::new();
    let trace = attach(&lab);
    python(&lab, &wheels, script).run(SHORT).ok();
    let events = trace.end();
    let mut by_process: Vec<(u64, Vec<Said>)> = Vec::new();
    for pid in events
        .of("nvtx_event_batch")
        .map(|e| e["pid"].as_u64().unwrap())
    {
        if by_process.iter().all(|(known, _)| *known != pid) {
            let own: Vec<_> = events
                .all
                .iter()
                .filter(|e| e["pid"] == pid)
                .cloned()
                .collect();
            by_process.push((pid, said(&own)));
        }
    }
    let mut stories: Vec<Vec<String>> = by_process
        .iter()
        .map(|(pid, said)| {
            assert!(said.iter().all(|s| s.thread == *pid), "{said:?}");
            let line = |s: &Said| format!("{} {} {}", s.kind, s.domain, s.message);
            said.iter().map(line).collect()
        })
        .collect();
    stories.sort();
    // Domains that the parent made are the children's too, who tell their names themselves.
    assert_eq!(stories.len(), 4, "{stories:?}");
    for i in 0..3 {
        let own = format!("child {i}");
        let expected = [
            "push both parent".to_owned(),
            "pop both ".to_owned(),
            format!("push {own} {own}"),
            format!("pop {own} "),
        ];
        assert!(stories.iter().any(|s| *s == expected), "{stories:?}");
    }
    assert!(stories.contains(&vec!["push both parent".to_owned(), "pop both ".to_owned()]));
}

#[test]
fn run_brings_nvtx_along() {
    let Some(wheels) = ready("run_brings_nvtx_along") else {
        return;
    };
    let lab = Lab::new();
    let every = compile(&lab, "gcc", "every.c", &wheels.join(NEWEST), "every", &[]);
    let output = lab.file("trace.jsonl");
    let run = Program::new(artefacts::command(), lab.path())
        .words("run --trace --json --output")
        .arg_path(&output)
        .args(["--lib"])
        .arg_path(&lab.library())
        .args(["--"])
        .arg_path(&every);
    run.run(SHORT).ok();
    let lines = std::fs::read_to_string(&output).expect("it was written");
    let events: Vec<serde_json::Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    assert_eq!(said(&events).len(), EVERY.len());
    assert_eq!(said(&events)[0].message, "mark ex");
}

/// A program that uses NVTX and no CUDA: `run` and `status` say so.
#[test]
fn a_program_without_cuda_is_told_from_one_that_is_silent() {
    let Some(wheels) = ready("a_program_without_cuda_is_told_from_one_that_is_silent") else {
        return;
    };
    let lab = Lab::new();
    let idle = program(&lab, &wheels, "idle.c");
    let mut host = at_first_gate(injected(&lab, &idle));
    let ended = lab
        .parcagpu(&format!("status --json --pid {}", host.pid()))
        .run(SHORT)
        .ok();
    let status: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(status[0]["state"], "absent");
    assert_eq!(status[0]["reason"], parcagpu_abi::status::NVTX_ONLY);
    host.open_gate(1);
    host.wait_gate(2);
    host.open_gate(2);
    host.wait_gate(3);
    drop(host);
    let mut run = Program::new(artefacts::command(), lab.path())
        .words("run --lib")
        .arg_path(&lab.library())
        .arg_path(Path::new("--"))
        .arg_path(&idle)
        .start();
    run.wait_gate(1);
    // Several looks of `run` at its program, which waits for the end of its input.
    run.wait_sleeps(10);
    run.close_input();
    let run = run.wait(SHORT);
    assert!(
        run.stderr.contains("it used NVTX and not CUDA"),
        "{}",
        run.stderr
    );
}
