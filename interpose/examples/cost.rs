//! Prints what the watch and the hooks cost, on this machine.
//!
//! `cargo run --release -p parcagpu-interpose --example cost` after building
//! the example `interpose_fixture` the same way. Programs alternate bare and
//! preloaded; start-up is the median of the pairs' differences.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAIRS: usize = 200;

fn main() {
    let here = std::env::current_exe().expect("own path");
    let fixture = here.with_file_name("libinterpose_fixture.so");
    assert!(
        fixture.exists(),
        "build the example interpose_fixture first"
    );
    let empty = here.with_file_name("libinterpose_empty.so");
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    gcc(
        dir.path(),
        "empty.c",
        &empty_source(dir.path()),
        &["-shared", "-fPIC"],
    );
    std::fs::rename(dir.path().join("empty.c.out"), &empty).expect("moved");

    for program in ["/bin/true", "/bin/bash"] {
        start_up(program, "an empty library", &empty);
        start_up(program, "the fixture", &fixture);
    }
    calls(dir.path(), &fixture);
}

fn empty_source(dir: &Path) -> PathBuf {
    let path = dir.join("empty.c");
    std::fs::write(&path, "int interpose_empty;\n").expect("written");
    path
}

fn gcc(dir: &Path, name: &str, source: &Path, flags: &[&str]) -> PathBuf {
    let out = dir.join(format!("{name}.out"));
    let status = Command::new("gcc")
        .args(["-O2", "-pthread", "-o"])
        .arg(&out)
        .arg(source)
        .args(flags)
        .status()
        .expect("gcc runs");
    assert!(status.success());
    out
}

fn start_up(program: &str, what: &str, library: &Path) {
    let mut differences: Vec<f64> = Vec::new();
    let mut bare_times: Vec<f64> = Vec::new();
    for _ in 0..PAIRS {
        let bare = time(program, None);
        let preloaded = time(program, Some(library));
        bare_times.push(bare.as_secs_f64() * 1e6);
        differences.push((preloaded.as_secs_f64() - bare.as_secs_f64()) * 1e6);
    }
    println!(
        "start-up of {program}: {:.0} us bare, {what} adds {:.0} us (median of {PAIRS} pairs)",
        median(&mut bare_times),
        median(&mut differences),
    );
}

fn time(program: &str, library: Option<&Path>) -> Duration {
    let mut command = Command::new(program);
    if program.ends_with("bash") {
        command.args(["-c", ":"]);
    }
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let started = Instant::now();
    let status = command.stdin(Stdio::null()).status().expect("starts");
    assert!(status.success());
    started.elapsed()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// ns a call of a short and of an 11-argument function, and the load.
fn calls(dir: &Path, fixture: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let host = gcc(dir, "host", &sources.join("host.c"), &[]);
    let target = gcc(
        dir,
        "target",
        &sources.join("target.c"),
        &["-shared", "-fPIC", "-DID=1"],
    );
    let named = dir.join("libtarget.so.1");
    std::fs::rename(target, &named).expect("renamed");
    let log = dir.join("log");
    for (what, want) in [
        ("bare", None),
        ("hooked, idle", Some("0")),
        ("hooked, handled", Some("255")),
    ] {
        let mut command = Command::new(&host);
        command.arg("measure").arg(&named);
        if let Some(groups) = want {
            command.env("LD_PRELOAD", fixture);
            command.env("FIXTURE_WANT", groups);
            command.env("FIXTURE_LOG", &log);
        }
        let output = command.output().expect("host runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let numbers: Vec<&str> = text.split_whitespace().collect();
        println!(
            "{what}: {} ns a call, {} ns a call with 11 arguments; dlopen {} us",
            numbers[0], numbers[1], numbers[2]
        );
    }
    let log = std::fs::read_to_string(log).expect("log");
    for line in log.lines().filter(|l| l.contains("hooked")) {
        println!("install: {}", line.rsplit(" | ").next().unwrap_or_default());
    }
}
