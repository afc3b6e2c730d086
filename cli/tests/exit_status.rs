//! Every exit status has one meaning in all commands: the table of `--help`, the man pages and the README.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{PARCAGPU, bpf_or_skip, fixture, lib, parcagpu, skip, stderr};
use parcagpu_cli::options::help::EXIT_STATUS;

const COMMANDS: [&str; 7] = [
    "trace", "top", "run", "record", "report", "status", "doctor",
];

/// With single spaces: man pages and tables break lines elsewhere.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs it in a shell, which says where the output goes.
fn shell(script: &str) -> Output {
    Command::new("bash")
        .args(["-c", script])
        .env("PARCAGPU", PARCAGPU)
        .env("PARCAGPU_LIB", lib())
        .env("APP", &fixture().app)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn the_table_is_told_everywhere() {
    let table = squeezed(EXIT_STATUS);
    let said = |args: &[&str]| {
        let out = parcagpu(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        // The source of a man page escapes dashes.
        squeezed(
            &String::from_utf8(out.stdout)
                .unwrap()
                .replace("\\-", "-")
                .replace("\\*(Aq", "'"),
        )
    };
    assert!(said(&["--help"]).contains(&table));
    assert!(said(&["man"]).contains(&table));
    for command in COMMANDS {
        assert!(said(&[command, "--help"]).contains(&table), "{command}");
        assert!(said(&["man", command]).contains(&table), "{command}");
    }
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = squeezed(&fs::read_to_string(readme).unwrap()).replace('`', "");
    let rows = "| 0 | done, also when ended by Ctrl-C | | 1 | failed on the way, by no fault of yours: a full disk, say | \
        | 2 | wrong use, or something is missing or wrong that you can put right: rights, kernel, library, process, \
        file; doctor: one of its checks fails |";
    assert!(readme.contains(rows), "{rows}");
    let same = squeezed(&rows.replace('|', " "));
    assert!(table.contains(&same), "{same}\n{table}");
}

#[test]
fn one_is_a_fault_on_the_way() {
    // Nobody is asked for anything: there was no room for the answer.
    for args in ["status", "doctor", "man", "completions bash"] {
        let out = shell(&format!("$PARCAGPU {args} > /dev/full"));
        assert_eq!(out.status.code(), Some(1), "{args}: {}", stderr(&out));
        assert!(
            stderr(&out).contains("failed to write to stdout: "),
            "{args}: {}",
            stderr(&out)
        );
        let out = shell(&format!("$PARCAGPU {args} | true; exit ${{PIPESTATUS[0]}}"));
        assert_ne!(
            out.status.code(),
            Some(1),
            "who has read enough is served: {args}"
        );
    }
}

#[test]
fn two_is_what_the_user_can_put_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let text = file("text", b"this is no recording, only some text");
    let empty = file("empty", b"");
    let newer = file("newer", b"PARCAREC\x09\0\0\0\0\0\0\0");
    let folder = dir.path().to_str().unwrap();
    let nowhere = format!("{folder}/no/such/file");
    let own = std::process::id().to_string();
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec![], "Usage: "),
        (vec!["tops"], "unrecognized subcommand"),
        (vec!["top", "--nonsense"], "unexpected argument"),
        (
            vec!["report", &text],
            "this is no recording of parcagpu; parcagpu record makes them",
        ),
        (vec!["report", &empty], "it ends after 0 bytes"),
        (
            vec!["report", &newer],
            "its format is version 9; this program reads version 1",
        ),
        (vec!["report", folder], "is a folder, not a recording"),
        (vec!["report", &nowhere], "cannot open "),
        (
            vec!["report", &text, "-o", "x.pdf"],
            "these have one: .txt, .html, .pftrace,",
        ),
        (
            vec!["man", "tops"],
            "there is no command tops; the commands are: trace,",
        ),
        (
            vec!["status", "--pid", "4194304"],
            "there is no process 4194304",
        ),
        (
            vec!["status", "--pid", &own],
            "does not map a library with probes of provider parcagpu; it has to be started with it",
        ),
        (
            vec!["status", "--comm", ""],
            "--comm is given an empty word",
        ),
        (vec!["doctor", "--lib", &nowhere], ""),
        (
            vec!["run", "--force", "--", "true"],
            "--record FILE is missing",
        ),
        (vec!["run", "--", "--help"], "is no option of run"),
        (vec!["run", "--", ""], "the command is an empty word"),
    ];
    for (args, expected) in cases {
        let out = parcagpu(&args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", stderr(&out));
        assert!(
            stderr(&out).contains(expected),
            "{args:?}: {}",
            stderr(&out)
        );
    }
}

#[test]
fn missing_rights_are_two_in_every_command() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return skip("missing_rights_are_two_in_every_command", "not root");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pgpu");
    let file = file.to_str().unwrap();
    for args in [
        &["trace", "--seconds", "0"][..],
        &["top", "--once"],
        &["record", "--seconds", "0", "-o", file],
        &["record", "-o", file, "--", "true"],
        &["run", "--", "true"],
        &["doctor"],
    ] {
        let out = Command::new("setpriv")
            .args(["--bounding-set=-all", "--inh-caps=-all", PARCAGPU])
            .args(args)
            .env("PARCAGPU_LIB", lib())
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", stderr(&out));
        let said = stderr(&out) + &String::from_utf8_lossy(&out.stdout);
        assert!(said.contains("CAP_BPF, CAP_PERFMON"), "{args:?}: {said}");
        assert!(!Path::new(file).exists(), "{args:?}");
    }
}

#[test]
fn a_command_has_the_say_unless_its_results_are_lost() {
    const TEST: &str = "a_command_has_the_say_unless_its_results_are_lost";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let app = "'launch 2000 100 k'";
    for (options, exit, code, said) in [
        ("run", "exit 0", 0, "all 2,000 launches"),
        ("run", "exit 9", 9, "all 2,000 launches"),
        (
            "run -o /dev/full",
            "exit 0",
            1,
            "failed to write the results: ",
        ),
        (
            "run -o /dev/full",
            "exit 9",
            9,
            "failed to write the results: ",
        ),
        (
            "run --trace -o /dev/full",
            "exit 0",
            1,
            "failed to write the trace: ",
        ),
    ] {
        let out = shell(&format!(
            "$PARCAGPU {options} -- $APP preloaded {app} '{exit}'"
        ));
        assert_eq!(
            out.status.code(),
            Some(code),
            "{options}, {exit}: {}",
            stderr(&out)
        );
        assert!(
            stderr(&out).contains(said),
            "{options}, {exit}: {}",
            stderr(&out)
        );
    }
    let gone = shell(&format!(
        "$PARCAGPU run -o /dev/stdout -- $APP preloaded {app} 'sleep 50' | true; exit ${{PIPESTATUS[0]}}"
    ));
    assert_eq!(gone.status.code(), Some(0), "{}", stderr(&gone));
    // A recording on a disk that is full; what fits into a page was written before the launches.
    let dir = tempfile::tempdir().unwrap();
    let full = |command: &str| {
        let script = format!(
            "mount -t tmpfs -o size=4k none '{0}' && $PARCAGPU record -o '{0}/a.pgpu' {command}",
            dir.path().display()
        );
        let out = Command::new("unshare")
            .args(["-m", "bash", "-c", &script])
            .env("PARCAGPU", PARCAGPU)
            .env("PARCAGPU_LIB", lib())
            .env("APP", &fixture().app)
            .output()
            .unwrap();
        let said = stderr(&out);
        assert!(
            said.contains("No space left on device"),
            "{command}: {said}"
        );
        out.status.code()
    };
    let many = "-- $APP preloaded 'different 200' 'launch 2000 100 k'";
    assert_eq!(full(many), Some(1));
    assert_eq!(full(&format!("{many} 'exit 7'")), Some(7));
}
