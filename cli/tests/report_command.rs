//! `parcagpu report` and its files: what it reads, what it writes by which name, and what it refuses.

#[path = "common/tape.rs"]
mod tape;

use std::path::Path;
use std::process::{Command, Output};

use parcagpu_cli::recording::writer::{Beginning, Writer};

fn parcagpu(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_parcagpu"))
        .current_dir(dir)
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_command_reads_a_file_and_writes_by_the_name_of_the_output() {
    let dir = tempfile::tempdir().unwrap();
    tape::write(&dir.path().join("run.pgpu"));
    let told = parcagpu(dir.path(), &["report", "run.pgpu"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains("7.00 us") && told.contains("vectorAdd(float const*"),
        "{told}"
    );
    assert!(told.contains("1 of 4 launches"), "{told}");
    for (name, begins) in [
        ("out.html", &b"<!doctype html>"[..]),
        ("out.svg", b"<?xml"),
        ("out.pb.gz", &[0x1f, 0x8b]),
        ("out.pftrace", b"\n"),
        ("out.jsonl", b"{\"type\":\"recording\""),
        ("out.folded", b"# sampled: 1 of 4"),
    ] {
        let run = parcagpu(dir.path(), &["report", "run.pgpu", "-o", name]);
        assert!(run.status.success(), "{run:?}");
        let made = std::fs::read(dir.path().join(name)).unwrap();
        assert!(made.starts_with(begins), "{name}");
    }
    let piped = parcagpu(
        dir.path(),
        &["report", "run.pgpu", "--format", "pprof", "-o", "-"],
    );
    assert!(piped.stdout.starts_with(&[0x1f, 0x8b]));
}

#[test]
fn what_cannot_be_read_or_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    tape::write(&dir.path().join("run.pgpu"));
    std::fs::write(dir.path().join("no"), "not a recording").unwrap();
    for file in ["no", "absent"] {
        let run = parcagpu(dir.path(), &["report", file]);
        assert!(!run.status.success());
        assert!(String::from_utf8(run.stderr).unwrap().contains(file));
    }
    std::os::unix::fs::symlink("elsewhere", dir.path().join("link.html")).unwrap();
    let run = parcagpu(dir.path(), &["report", "run.pgpu", "-o", "link.html"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(!dir.path().join("elsewhere").exists());
}

/// A recorder that was killed at once leaves its beginning, or less.
#[test]
fn what_is_there_of_a_recording_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.pgpu");
    let about = Beginning {
        command: "./app --fast".to_owned(),
        ..Beginning::default()
    };
    let file = std::fs::File::create(&path).unwrap();
    let mut w = Writer::new(file, &about).unwrap();
    w.clock(50, 1_000, 4);
    w.flush().unwrap();
    let report = |format: &str| {
        let run = parcagpu(dir.path(), &["report", "cut.pgpu", "--format", format]);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (run.status.success(), text(&run.stdout), text(&run.stderr))
    };
    let (done, told, _) = report("text");
    assert!(
        done && told.starts_with("recording of ./app --fast, 0 ns\n"),
        "{told}"
    );
    assert!(
        told.contains("the recorder was killed") && told.contains("before any event"),
        "{told}"
    );
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 7, 16, 30] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let (done, told, err) = report("html");
        assert!(!done && told.is_empty());
        assert!(
            err.contains("cut.pgpu") && err.contains("the recorder ended before"),
            "{err}"
        );
    }
}
