//! `parcagpu record` through real eBPF, against the fixture.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{App, PATIENCE, View, bpf_or_skip, fixture, lib, parcagpu};
use parcagpu_cli::recording::model::{RangeKind, Recording};
use parcagpu_cli::recording::reader;
use parcagpu_cli::text::{count, plural};
use tempfile::TempDir;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("a.pgpu");
    (dir, path)
}

fn read(path: &Path) -> Recording {
    reader::read(path).unwrap()
}

fn start<'a>(path: &'a Path, more: &[&'a str]) -> View {
    let mut args = vec!["record", "--lib", lib(), "-o", path.to_str().unwrap()];
    args.extend(more);
    View::start(&args)
}

/// Index of the process with this number.
fn index(r: &Recording, pid: u32) -> u32 {
    let index = r.processes.iter().position(|p| p.pid == pid);
    u32::try_from(index.expect("the process was recorded")).unwrap()
}

#[test]
fn what_the_program_did_is_in_the_file() {
    let Some(_turn) = bpf_or_skip("what_the_program_did_is_in_the_file") else {
        return;
    };
    let (_dir, path) = place();
    let view = start(&path, &["--cubins"]);
    let mut app = App::start(&fixture().lib);
    for command in ["all", "launch 300 1500 several", "metadata"] {
        app.obey(command);
    }
    let pid = app.pid();
    let (_, err) = view.end();
    assert!(err.contains("recorded 301 launches, 301 kernels"), "{err}");
    let r = read(&path);
    assert!(!r.truncated && r.damage.is_none());
    assert_eq!(r.losses, []);
    assert_eq!(r.about.command, "all processes");
    assert!(r.about.begin_ns < r.about.end_ns && r.clocks.uncertainty_ns < 1_000_000);
    let of = index(&r, pid);
    let p = &r.processes[of as usize];
    let name = |id: u32| r.names[id as usize].as_str();
    assert_eq!((p.comm.as_str(), p.threads[&pid].as_str()), ("app", "app"));
    // One of "all" is announced and not counted by the fixture.
    assert_eq!((p.launches_sampled, p.launches_seen), (301, Some(301)));
    assert_eq!(
        (p.devices[&1].clock_khz, p.devices[&1].sampling_factor),
        (1_980_000, 20)
    );
    assert_eq!(p.stall_reasons[..2], ["stall_none", "stall_wait"]);

    let several: Vec<_> = r
        .kernels
        .iter()
        .filter(|k| name(k.name) == "several")
        .collect();
    assert_eq!(several.len(), 300);
    for kernel in several {
        assert_eq!(kernel.end_ns - kernel.start_ns, 1500);
        let launch = r.launches[kernel.launch.unwrap() as usize];
        assert_eq!(
            (launch.correlation_id, launch.process),
            (kernel.correlation_id, of)
        );
        assert_eq!(
            (launch.cbid, launch.tid, name(launch.name)),
            (-307, pid, "several")
        );
        let range = r.about.begin_ns..r.about.end_ns;
        assert!(
            range.contains(&launch.time_ns),
            "on the axis of the wall clock"
        );
    }
    let one = r.kernels.iter().find(|k| k.graph_id == 3).unwrap();
    assert_eq!(
        (one.device, one.context, one.stream, one.registers),
        (1, 2, 7, 32)
    );
    assert_eq!(
        (one.grid, one.block, one.graph_node_id),
        ([4, 5, 6], [32, 2, 1], 0x9_0000_0001)
    );
    assert_eq!(
        (one.static_shared_memory, one.dynamic_shared_memory),
        (11, 12)
    );
    assert_eq!(name(one.name), "_Z9vectorAddPKfS0_Pfi");

    let sample = &r.pc_samples[0];
    assert_eq!(
        (sample.crc, sample.pc_offset, sample.correlation_id),
        (0xdead_beef, 0x120, 77)
    );
    assert_eq!(
        (name(sample.function), sample.reasons.as_slice()),
        ("_Z9vectorAddPKfS0_Pfi", &[(1, 40), (0, 2)][..])
    );
    // The fixture's cubin has not the checksum it announces: not kept, and counted.
    assert!(p.cubins[&0xdead_beef].is_empty());
    assert!(
        r.gaps
            .iter()
            .any(|(what, n)| what == "cubins not kept" && *n > 0),
        "{:?}",
        r.gaps
    );
    let mark = r.ranges.iter().find(|range| range.process == of).unwrap();
    assert_eq!(
        (mark.kind, name(mark.name), mark.tid),
        (RangeKind::Mark, "a mark", 42)
    );
    let error = &r.errors[0];
    assert_eq!(
        (error.code, error.component.as_str(), error.message.as_str()),
        (-5, "cupti", "something \"broke\"\n")
    );
}

#[test]
fn hostile_names_and_records_are_counted() {
    let Some(_turn) = bpf_or_skip("hostile_names_and_records_are_counted") else {
        return;
    };
    let (_dir, path) = place();
    let view = start(&path, &[]);
    let mut app = App::start(&fixture().lib);
    app.obey("odd");
    app.obey("notime 3");
    let pid = app.pid();
    view.end();
    let r = read(&path);
    let of = index(&r, pid);
    assert_eq!(r.kernels.len(), 6 + 1 + 128 + 3);
    assert_eq!(
        r.kernels
            .iter()
            .filter(|k| (k.start_ns, k.end_ns) == (0, 0))
            .count(),
        3
    );
    let names: Vec<&str> = r
        .kernels
        .iter()
        .map(|k| r.names[k.name as usize].as_str())
        .collect();
    for expected in [
        "",
        "(unreadable)",
        "caf\u{fffd}\u{fffd}",
        &"e".repeat(255),
        &("l".repeat(255) + "…"),
    ] {
        assert!(names.contains(&expected), "{expected}");
    }
    assert_eq!(
        r.losses,
        [("activity_batch records unreadable".to_owned(), 1)]
    );
    assert!(!r.processes[of as usize].is_whole());
    let gaps = ["names cut", "names unreadable"].map(|what| (what.to_owned(), 1));
    assert!(gaps.iter().all(|gap| r.gaps.contains(gap)), "{:?}", r.gaps);
}

#[test]
fn a_killed_recorder_leaves_all_but_the_last_second() {
    let Some(_turn) = bpf_or_skip("a_killed_recorder_leaves_all_but_the_last_second") else {
        return;
    };
    let (_dir, path) = place();
    let mut recorder = Command::new(common::PARCAGPU)
        .args(["record", "--lib", lib(), "-o", path.to_str().unwrap()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut app = App::start(&fixture().lib);
    app.await_consumer();
    app.obey("launch 5000 100 early");
    let pid = app.pid();
    let written = |n: usize| {
        let r = reader::read(&path);
        r.is_ok_and(|r| {
            r.kernels.len() >= n && r.processes.iter().any(|p| p.launches_seen == Some(5000))
        })
    };
    let began = Instant::now();
    while !written(5000) {
        assert!(began.elapsed() < PATIENCE, "{:?}", reader::read(&path));
        std::thread::sleep(Duration::from_millis(50));
    }
    app.obey("launch 100 100 late");
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let r = read(&path);
    assert!(r.truncated && r.damage.is_none());
    assert_eq!(r.processes[index(&r, pid) as usize].comm, "app");
    assert!(r.kernels.len() >= 5000 && r.about.end_ns > r.about.begin_ns);
}

#[test]
fn stacks_name_the_functions_that_launched() {
    let Some(_turn) = bpf_or_skip("stacks_name_the_functions_that_launched") else {
        return;
    };
    for (options, stacks) in [(&[][..], true), (&["--no-stacks"], false)] {
        let (_dir, path) = place();
        let view = start(&path, options);
        let mut app = App::start(&fixture().lib);
        app.obey("launch 50 100 k");
        app.obey("launch 50 100 k");
        let pid = app.pid();
        view.end();
        let r = read(&path);
        let of = index(&r, pid);
        let launches: Vec<_> = r.launches.iter().filter(|l| l.process == of).collect();
        assert_eq!(launches.len(), 100);
        assert_eq!(
            launches.iter().all(|l| l.stack != 0),
            stacks,
            "{:?}",
            r.gaps
        );
        if !stacks {
            assert_eq!(r.stacks, [Vec::<u32>::new()]);
            continue;
        }
        // All from one place: one stack. Frames of the fixture, which stands for our library, are cut off.
        assert!(launches.iter().all(|l| l.stack == launches[0].stack));
        let stack = &r.stacks[launches[0].stack as usize];
        let functions: Vec<&str> = stack
            .iter()
            .map(|f| r.names[r.frames[*f as usize].function as usize].as_str())
            .collect();
        assert_eq!(functions[..2], ["obey", "main"], "{functions:?}");
        let frame = &r.frames[stack[0] as usize];
        assert!(r.names[frame.module as usize].ends_with("/app"));
        assert!(r.names[frame.file as usize].ends_with("app.c") && frame.line > 0);
    }
}

/// Launches without a stack and PC samples are the same numbers, in the same words, at the end of the recording
/// and in its report: launches that come too fast, and of a process that is gone at once; samples before and after
/// the names of their reasons, some of which overlap.
#[test]
fn the_end_counts_what_the_report_counts() {
    let Some(_turn) = bpf_or_skip("the_end_counts_what_the_report_counts") else {
        return;
    };
    let (_dir, path) = place();
    let view = start(&path, &[]);
    let mut app = App::start(&fixture().lib);
    let sample = "pc 0x1 1 16 kernel 0:5 1:3 2:1";
    app.obey(sample);
    app.obey("stalls wait wait_not_issued selected");
    app.obey(sample);
    for _ in 0..40 {
        app.obey("fork launch 3 100 short");
    }
    app.obey("launch 30000 100 fast");
    let (_, err) = view.end();
    assert!(err.contains("(12 PC samples, "), "{err}");
    let report = parcagpu(&["report", path.to_str().unwrap()]);
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.contains(", of 12 PC samples ("), "{report}");
    let without = |text: &str| {
        let line = text.lines().find(|l| l.contains(" without a CPU stack: "));
        line.map(|line| line.trim().to_owned())
    };
    let (at_the_end, reported) = (without(&err), without(&report));
    assert_eq!(at_the_end, reported, "{err}\n{report}");
    let r = read(&path);
    let missing = r
        .launches
        .iter()
        .filter(|l| r.stacks[l.stack as usize].is_empty());
    let missing = missing.count() as u64;
    assert_eq!(at_the_end.is_some(), missing > 0, "{err}");
    if let Some(line) = at_the_end {
        let (numbers, why) = line.split_once(" without a CPU stack: ").unwrap();
        let of = plural(r.launches.len() as u64, "sampled launch");
        assert_eq!(numbers, format!("{} of {of}", count(missing)));
        let number = |part: &str| {
            part.split(' ')
                .next()
                .unwrap()
                .replace(',', "")
                .parse::<u64>()
        };
        let sum: u64 = why.split(", ").map(|part| number(part).unwrap()).sum();
        assert_eq!(sum, missing, "{line}");
    }
}

#[test]
fn a_command_is_recorded_and_keeps_its_status_and_output() {
    let Some(_turn) = bpf_or_skip("a_command_is_recorded_and_keeps_its_status_and_output") else {
        return;
    };
    let (_dir, path) = place();
    let file = path.to_str().unwrap();
    let app = fixture().app.to_str().unwrap();
    let words = ["preloaded", "launch 10 100 mine", "echo 5", "exit 7"];
    let mut args = vec!["record", "--lib", lib(), "-o", file, "--", app];
    args.extend(words);
    let out = parcagpu(&args);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{err}");
    assert_eq!(out.stdout, b"echo 5\n");
    assert!(
        err.contains("recorded 10 launches, 10 kernels, 1 process"),
        "{err}"
    );
    assert!(
        err.contains("all 10 launches") && !err.contains("TOTAL"),
        "{err}"
    );
    let r = read(&path);
    assert!(r.processes[0].is_whole(), "{:?}", r.processes[0]);
    assert!(
        r.about
            .command
            .ends_with("app preloaded launch 10 100 mine echo 5 exit 7")
    );

    // The file is there now: nothing is started and nothing is written over.
    let again = parcagpu(&args);
    let err = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2), "{err}");
    assert!(
        err.contains("is there already; --force replaces it"),
        "{err}"
    );
    let mut args = vec![
        "run",
        "--lib",
        lib(),
        "--record",
        file,
        "--force",
        "--",
        app,
    ];
    args.extend(words);
    let table = parcagpu(&args);
    let err = String::from_utf8_lossy(&table.stderr);
    assert!(
        err.contains("recorded 10 launches") && err.contains("TOTAL"),
        "{err}"
    );
    assert_eq!(read(&path).kernels.len(), 10);
}

#[test]
fn what_makes_no_sense_is_refused_and_leaves_no_file() {
    let Some(_turn) = bpf_or_skip("what_makes_no_sense_is_refused_and_leaves_no_file") else {
        return;
    };
    let (_dir, path) = place();
    let file = path.to_str().unwrap();
    let page = path.with_extension("html");
    let page = page.to_str().unwrap();
    let cases: [(&[&str], &str); 6] = [
        (
            &["record", "-o", page, "--seconds", "0"],
            "has the ending of a report; --format html makes one of the recording",
        ),
        (
            &["run", "--lib", lib(), "--record", page, "--", "true"],
            "has the ending of a report; --format html makes one of the recording",
        ),
        (
            &["record", "-o", file, "--pid", "4194304"],
            "there is no process 4194304",
        ),
        (
            &["record", "-o", file, "--lib", "/nowhere.so"],
            "cannot open library",
        ),
        (
            &["record", "-o", file, "--pid", "1", "--", "true"],
            "a command was given",
        ),
        (
            &["run", "--no-stacks", "--", "true"],
            "--record FILE is missing",
        ),
    ];
    for (args, expected) in cases {
        let out = parcagpu(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(expected), "{args:?}: {err}");
        assert!(!path.exists() && !Path::new(page).exists(), "{args:?}");
    }
    let out = parcagpu(&["record", "--lib", lib(), "-o", file, "--", "/nowhere/app"]);
    assert_eq!(out.status.code(), Some(127));
    assert!(!path.exists());
}
