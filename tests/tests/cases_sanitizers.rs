//! Programs built with sanitizers, and valgrind: they find nothing of ours to complain about (B55).

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use parcagpu_tests::hosts::{Consumer, compile, engine, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::{Ended, Program};

const LIMIT: Duration = Duration::from_secs(60);
/// No fork: what a thread had that is not there in the child is lost, whosever thread it was.
const WORDS: &str = "streams 2 modules 2 init launch 50 ex 10 coop 10 fail 3 capture 4 graph 3 replay 5 \
                     thread launch 50 end thread graph 2 replay 20 end join sync launch 20 sync count";

/// The compiler's runtime library of a sanitizer; `None`, told, where it is not installed.
fn runtime(test: &str, library: &str) -> Option<PathBuf> {
    let output = Command::new("gcc")
        .arg(format!("-print-file-name={library}"))
        .output()
        .expect("gcc is there");
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !path.is_absolute() {
        need::skip(test, library, &format!("{library} is not installed"));
        return None;
    }
    path.canonicalize().ok()
}

/// The tests' host program, built with options of its own.
fn host(lab: &Lab, name: &str, options: &[&str]) -> PathBuf {
    let process = parcagpu_tests::artefacts::root().join("tests/hosts/process.c");
    let mut arguments = vec![process.to_str().expect("a plain path")];
    arguments.extend(options);
    compile(lab, "host.c", name, &arguments)
}

fn prepared(program: Program, sampled: bool) -> Program {
    program
        .env("PARCAGPU_HOOK_ENGINE", engine())
        .env("PARCAGPU_RATE_LIMIT", if sampled { "1e9" } else { "100" })
        .words(WORDS)
}

/// As bare, and no report.
#[track_caller]
fn assert_clean(bare: &Ended, with: &Ended, what: &str) {
    assert_eq!(bare.code(), with.code(), "{what}: {}", with.stderr);
    assert_eq!(bare.stdout, with.stdout, "{what}: {}", with.stderr);
    let reports = with
        .stderr
        .split("\n\n")
        .flat_map(|part| part.split("== \n"));
    for report in reports {
        assert!(!is_about_us(report), "{what}: {report}");
    }
}

/// Whether a report's innermost frame, but for the allocator's, is ours; the simulated libraries have lasting
/// objects of their own, made in calls that come through our hooks.
fn is_about_us(report: &str) -> bool {
    let first = |words: &[&str]| {
        let has = |line: &str| words.iter().any(|word| line.contains(word));
        report.lines().position(has).unwrap_or(usize::MAX)
    };
    let ours = first(&["libparcagpu.so", "parcagpu::", "parcagpu_interpose::"]);
    let theirs = first(&["libcuda.so", "libcupti.so", "mock_cuda::", "mock_cupti::"]);
    ours < theirs
}

#[test]
fn whose_report_it_is() {
    let ours = "lost\n at malloc\n by parcagpu::watch::start\n by mock_cuda::init\n";
    let theirs =
        "lost\n at malloc\n by mock_cuda::graph\n by parcagpu_interpose::handle\n by main\n";
    assert!(is_about_us(ours) && !is_about_us(theirs) && !is_about_us("lost\n by main"));
}

/// With the sanitizer's runtime first, as it wants it, and with us first; with nobody listening and with a
/// consumer.
fn under(test: &str, library: &str, options: &[&str], environment: &[(&str, &str)]) {
    let Some(runtime) = runtime(test, library) else {
        return;
    };
    let lab = lab();
    let host = host(&lab, test, options);
    let run = |mode, preload: OsString| {
        let program = lab.program(mode, &host).envs(environment.iter().copied());
        let program = if preload.is_empty() {
            program
        } else {
            program.env("LD_PRELOAD", preload)
        };
        prepared(program, need::may_bpf()).run(LIMIT)
    };
    let bare = run(Mode::Bare, OsString::new());
    assert_eq!(bare.code(), 0, "bare: {}", bare.stderr);
    let (theirs, ours) = (runtime.into_os_string(), lab.library().into_os_string());
    let mut both = theirs;
    both.push(":");
    both.push(&ours);
    for preload in [both, ours] {
        let what = preload.to_string_lossy().into_owned();
        assert_clean(&bare, &run(Mode::Bare, preload.clone()), &what);
        if need::may_bpf() {
            let consumer = Consumer::new(&lab);
            assert_clean(&bare, &run(Mode::Bare, preload), &what);
            assert!(!consumer.end().launches().is_empty(), "{what}");
        }
    }
    assert_clean(&bare, &run(Mode::Injection, OsString::new()), "injection");
}

/// Addresses, and what is lost at the end.
#[test]
fn address_sanitizer() {
    let options = ["-fsanitize=address", "-fno-omit-frame-pointer"];
    // What the simulated libraries keep does not change the exit status.
    let environment = [
        (
            "ASAN_OPTIONS",
            "verify_asan_link_order=0:detect_leaks=1:exitcode=77",
        ),
        ("LSAN_OPTIONS", "exitcode=0"),
    ];
    under("address_sanitizer", "libasan.so", &options, &environment);
}

/// Undefined behaviour.
#[test]
fn undefined_behaviour_sanitizer() {
    let options = ["-fsanitize=undefined"];
    let environment = [("UBSAN_OPTIONS", "print_stacktrace=1")];
    under(
        "undefined_behaviour_sanitizer",
        "libubsan.so",
        &options,
        &environment,
    );
}

/// Threads. Ours are not built with it, so that it knows nothing of their locks: what it must not do is hang or
/// crash with us.
#[test]
fn thread_sanitizer() {
    let options = ["-fsanitize=thread"];
    let environment = [("TSAN_OPTIONS", "report_bugs=0")];
    under("thread_sanitizer", "libtsan.so", &options, &environment);
}

/// Valgrind's memcheck.
#[test]
fn memcheck() {
    if !need::program("memcheck", "valgrind") {
        return;
    }
    let lab = lab();
    let run = |mode| {
        let program = lab
            .program(mode, "valgrind")
            .words("--quiet --leak-check=full --show-leak-kinds=definite")
            .arg_path(&parcagpu_tests::artefacts::host());
        prepared(program, false).run(LIMIT)
    };
    let bare = run(Mode::Bare);
    let with = run(Mode::Preload);
    assert_clean(&bare, &with, "valgrind");
}
