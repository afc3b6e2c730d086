//! A recording of a program on the simulated driver: what it did is in the file, under the code that did it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::program::Program;
use parcagpu_tests::trace::number;
use parcagpu_tests::{artefacts, compilers, need};
use serde_json::Value;

const SHORT: Duration = Duration::from_secs(20);

/// `parcagpu record` of a program, with the simulated driver for the program only.
fn record(lab: &Lab, file: &Path, options: &str, program: &Path, words: &str) -> Program {
    let library = lab.library();
    lab.parcagpu(&format!(
        "record --lib {} -o {} {options} --",
        library.display(),
        file.display()
    ))
    .env("LD_LIBRARY_PATH", artefacts::sim())
    .arg_path(program)
    .words(words)
}

/// Everything in the file, by type.
fn read(lab: &Lab, file: &Path) -> BTreeMap<String, Vec<Value>> {
    let words = format!("report {} --format jsonl", file.display());
    let out = lab.parcagpu(&words).run(SHORT).ok().stdout;
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in out.lines() {
        let line: Value = serde_json::from_str(line).expect("a JSON object a line");
        let kind = line["type"].as_str().expect("with its type").to_owned();
        all.entry(kind).or_default().push(line);
    }
    all
}

/// A program that goes on: what is launched until the recorder leaves is there with all its kernels, and nothing else.
#[test]
fn a_part_of_a_program_that_goes_on() {
    if !need::bpf("a_part_of_a_program_that_goes_on") {
        return;
    }
    let lab = Lab::new();
    // One thread each: of two, one may meet the other at the switch, and is not sampled.
    for launches in ["spaced 50 3600", "graph 3 replayspaced 50 3600"] {
        let words = format!("init thread {launches} end gate stop join");
        let mut host = lab
            .host(Mode::Preload, &words)
            // Far above what it launches, also when it makes up for a pause.
            .env("PARCAGPU_RATE_LIMIT", "10000")
            .env("PARCAGPU_GRAPH_RATE_LIMIT", "10000")
            .env("MOCK_CUDA_KERNEL_NS", "2000")
            .start();
        host.wait_gate(1);
        // Somebody was there before: what was launched until we come is not ours.
        let other = Agent::parca(&lab.library(), -1, Options::default()).unwrap();
        assert!(other.poll_until(|e| e.iter().any(|e| e.kind == Kind::Record)));
        let file = lab.file("part.pgpu");
        let words = format!(
            "record --force --no-stacks --pid {} -o {}",
            host.pid(),
            file.display()
        );
        let mut recorder = lab.parcagpu(&words).start();
        recorder.wait_stderr("attached to");
        let before = other.events().len();
        // Half of them may be announcements, and three in four be kernels.
        assert!(other.poll_until(|e| e.len() >= before + 200));
        let told = recorder.interrupt(SHORT).ok().stderr;
        let all = read(&lab, &file);
        let about = &all["recording"][0];
        assert_eq!(about["whole"], true, "{told}{about}");
        let launched = all["launch"].len() as u64;
        assert!(launched >= 10, "{told}");
        assert_eq!(number(about, "launches_seen"), launched);
        assert_eq!(number(about, "kernels_without_launch"), 0, "{about}");
        assert_eq!(number(about, "launches_without_kernel"), 0, "{about}");
        let each = if launches.starts_with("graph") { 3 } else { 1 };
        assert_eq!(number(about, "kernels"), launched * each);
        let ends = format!("all {launched} launches");
        assert!(told.contains(&ends), "{told}");
        host.open_gate(1);
        host.wait(SHORT).ok();
    }
}

/// Launches of the demo, built as most programs are, hang under the functions that made them.
#[test]
fn launches_hang_under_their_code() {
    if !need::bpf("launches_hang_under_their_code") {
        return;
    }
    let lab = Lab::new();
    let file = lab.file("demo.pgpu");
    let words = "--threads 2 --launches 60 --hold 0.5";
    let ended = record(&lab, &file, "", &artefacts::demo(), words)
        .run(SHORT)
        .ok();
    let told = "recorded 120 launches, 120 kernels, 1 process";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    let all = read(&lab, &file);
    let about = &all["recording"][0];
    assert_eq!(
        (&about["whole"], &about["truncated"]),
        (&true.into(), &false.into())
    );
    let process = &all["process"][0];
    assert_eq!(
        (&process["comm"], number(process, "launches_seen")),
        (&"demo".into(), 120)
    );
    let uuid = process["devices"][0]["uuid"].as_str().expect("known");
    assert!(uuid.starts_with("GPU-"), "{uuid}");
    let stacks: BTreeMap<u64, Vec<&str>> = all["stack"]
        .iter()
        .map(|stack| {
            let frames = stack["frames"].as_array().expect("frames").iter();
            let names = frames.map(|f| f["function"].as_str().expect("a name"));
            (number(stack, "id"), names.collect())
        })
        .collect();
    let launches = &all["launch"];
    assert_eq!(launches.len(), 120);
    for launch in launches {
        let names = &stacks[&number(launch, "stack")];
        assert_eq!(names[..2], ["launch_kernel", "run"], "{names:?}");
        let ours = names
            .iter()
            .any(|n| n.contains("parcagpu") || n.contains("cupti"));
        assert!(!ours, "the library is cut off: {names:?}");
    }
    let threads: HashSet<u64> = launches.iter().map(|l| number(l, "tid")).collect();
    assert_eq!(threads.len(), 2);
    let kernels = &all["kernel"];
    assert_eq!(kernels.len(), 120);
    assert!(
        kernels
            .iter()
            .all(|k| k["launch_told"] == true && number(k, "gpu_ns") > 0)
    );
    // Both on the axis of the wall clock: a kernel begins near the return of its launch.
    let near = |n: u64| n.abs_diff(number(about, "begin_ns")) < 60_000_000_000;
    assert!(launches.iter().all(|l| near(number(l, "time_ns"))));
    assert!(kernels.iter().all(|k| near(number(k, "start_ns"))));
}

/// A graph's kernels belong to its launch; a sample is no whole; without stacks there are none.
#[test]
fn graphs_and_samples() {
    if !need::bpf("graphs_and_samples") {
        return;
    }
    let lab = Lab::new();
    let host = artefacts::host();
    let file = lab.file("graph.pgpu");
    let words = "init graph 10 replay 25 sync";
    record(&lab, &file, "--no-stacks --cubins", &host, words)
        .run(SHORT)
        .ok();
    let all = read(&lab, &file);
    assert_eq!((all["launch"].len(), all["kernel"].len()), (25, 250));
    assert!(!all.contains_key("stack"));
    let file = lab.file("sample.pgpu");
    record(&lab, &file, "--rate 0.001", &host, "init launch 10")
        .run(SHORT)
        .ok();
    let all = read(&lab, &file);
    let about = &all["recording"][0];
    assert_eq!(
        (
            number(about, "launches_sampled"),
            number(about, "launches_seen")
        ),
        (1, 10)
    );
    assert_eq!(about["whole"], false);
}

/// A recording at the library's default limits says in every output what share was sampled.
#[test]
fn a_sample_is_called_one_in_every_output() {
    if !need::bpf("a_sample_is_called_one_in_every_output") {
        return;
    }
    let lab = Lab::new();
    let file = lab.file("default.pgpu");
    let words = format!(
        "record --lib {} -o {} --format text,html,perfetto,pprof,folded,flamegraph,jsonl",
        lab.library().display(),
        file.display()
    );
    let mut recorder = lab.parcagpu(&words).start();
    recorder.wait_stderr("attached to");
    lab.program(Mode::Preload, artefacts::demo())
        .without("PARCAGPU_RATE_LIMIT")
        .without("PARCAGPU_GRAPH_RATE_LIMIT")
        .words("--threads 2 --launches 400 --rate 400 --hold 0.5")
        .run(SHORT)
        .ok();
    recorder.signal(libc::SIGINT);
    recorder.wait(SHORT).ok();
    let about = &read(&lab, &file)["recording"][0];
    let sampled = number(about, "launches_sampled");
    // For a second at least, 100 a second and thread, and one at once.
    assert!((150..800).contains(&sampled), "{about}");
    assert_eq!(number(about, "launches_seen"), 800);
    let share = format!("sampled: {sampled} of 800 launches (");
    for ending in ["txt", "html", "pftrace", "folded", "svg", "jsonl", "pb.gz"] {
        let made = fs::read(file.with_extension(ending)).expect("it was made");
        let made = match ending {
            "pb.gz" => unpacked(&made),
            _ => made,
        };
        let told = String::from_utf8_lossy(&made);
        assert!(told.contains(&share), "{ending} does not say {share}");
    }
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut out)
        .expect("gzip");
    out
}

/// What the README's quick start promises: the slowest kernel, and the line that waits most.
#[test]
fn the_slowest_kernel_and_its_line_are_found() {
    const TEST: &str = "the_slowest_kernel_and_its_line_are_found";
    if !need::bpf(TEST) || compilers::get(TEST).is_none() {
        return;
    }
    let lab = Lab::new();
    let root = artefacts::root();
    let script = root.join("scripts/demo");
    let mut demo = Program::new(script, lab.path()).words("--lines");
    demo.command().current_dir(&root);
    let ended = demo.run(Duration::from_secs(300)).ok();
    // Paths can be typed as they stand there.
    let shown = root.display().to_string();
    let from = ended.stderr.find("times are made up").unwrap_or(0);
    for text in [&ended.stdout, &ended.stderr[from..]] {
        let cargo = |l: &&str| !l.contains("Compiling") && !l.contains("warning");
        let mut lines = text.lines().filter(cargo);
        assert!(lines.all(|l| !l.contains(&shown)), "{text}");
    }
    let told = ended.stdout;
    if !ended.stderr.contains("simulated driver") {
        return assert!(told.contains("Where warps wait"), "{told}");
    }
    let after = |head: &str| {
        let mut lines = told.lines().skip_while(|line| !line.starts_with(head));
        lines.nth(2).unwrap_or_default().to_owned()
    };
    let kernel = after("Kernels by GPU time");
    assert!(
        kernel.contains("83.3 %") && kernel.ends_with("gather(float const*, int const*, float*)"),
        "{told}"
    );
    let line = after("Where warps wait");
    let (_, place) = line.split_once("docs/slow.cu:").expect(&told);
    let (number, reasons) = place.split_once(": ").expect(&told);
    let source = fs::read_to_string(artefacts::root().join("docs/slow.cu")).expect("readable");
    let number: usize = number.parse().expect("a number");
    let text = source.lines().nth(number - 1).expect("a line of it");
    assert_eq!(text.trim(), "sum += in[i];");
    assert!(reasons.starts_with("long_scoreboard 50.0 %"), "{told}");
}
