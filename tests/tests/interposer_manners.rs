//! Programs without CUDA, and what the library leaves alone.

use std::path::Path;

use parcagpu_tests::artefacts;
use parcagpu_tests::cut_short;
use parcagpu_tests::hosts::{Case, Consumer, compile, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::trace::Events;

/// Bare and with the library, with a consumer listening if there can be one; gives the output.
#[track_caller]
fn same(lab: &Lab, case: &Case<'_>, launches: usize) -> String {
    let bare = case.bare();
    let consumer = need::bpf("programs without CUDA, listened to").then(|| Consumer::new(lab));
    let with = case
        .build(Mode::Preload)
        .run(std::time::Duration::from_secs(20));
    assert_eq!(bare.ended.code(), with.code(), "{}", with.stderr);
    assert_eq!(bare.ended.stdout, with.stdout);
    assert_eq!(bare.ended.stderr, with.stderr);
    if let Some(consumer) = consumer {
        let told = consumer.end();
        assert_eq!(told.launches().len(), launches);
        assert_eq!(told.errors(), []);
    }
    with.stdout
}

/// Output, status and environment of small programs are their own; there is one thread, and neither
/// libcuda nor libcupti is mapped.
#[test]
fn programs_without_cuda() {
    let lab = lab();
    let look = "env -u LD_PRELOAD -u MOCK_LOG -u _ | grep -v ^PARCAGPU_ | cut -d= -f1 | sort; \
                env -u LD_PRELOAD -u MOCK_LOG -u _ | grep -v ^PARCAGPU_ | sort | cksum; ls /proc/$$/task | wc -l; \
                grep -c libcu /proc/$$/maps; exit 3";
    for (program, arguments) in [
        ("true", vec![]),
        ("false", vec![]),
        ("bash", vec!["-c", look]),
        ("bash", vec!["-c", "(exec true); kill -9 $$"]),
        ("git", vec!["--version"]),
        ("ls", vec!["/there/is/nothing"]),
    ] {
        let mut case = Case::new(&lab, program, "");
        for argument in &arguments {
            case = case.arg(argument);
        }
        let output = same(&lab, &case, 0);
        if arguments.last() == Some(&look) {
            assert!(
                output.ends_with("\n1\n0\n"),
                "threads and mappings: {output}"
            );
        }
    }
}

/// Python: its threads are its own.
#[test]
fn python_without_cuda() {
    if !need::program("python_without_cuda", "python3") {
        return;
    }
    let lab = lab();
    let script = "
import ctypes, os, sys, threading, subprocess
def look():
    maps = open('/proc/self/maps').read()
    print(len(os.listdir('/proc/self/task')), 'libcuda' in maps, 'libcupti' in maps)
look()
t = threading.Thread(target=look); t.start(); t.join()
print(os.environ.get('CUDA_INJECTION64_PATH'), os.environ.get('NVTX_INJECTION64_PATH'))
print(ctypes.CDLL('libm.so.6').abs(-3))
try:
    ctypes.CDLL('libnone.so.5')
except OSError as e:
    print(e)
print(subprocess.run(['sh', '-c', 'echo child; exit 4']).returncode)
sys.exit(5)
";
    let case = Case::new(&lab, "python3", "").arg("-c").arg(script);
    let output = same(&lab, &case, 0);
    assert!(
        output.starts_with("1 False False\n2 False False\nNone None\n3\n"),
        "{output}"
    );
}

/// In the environment of a CUDA program nothing changes but the variable by which NVTX is asked to load us,
/// and, until CUDA is initialised, the one by which the driver is; and those only where the program has none.
#[test]
fn environment_of_a_cuda_program() {
    let lab = lab();
    let ways = compile(&lab, "interposer/ways.c", "ways", &[]);
    let words = "environment say -- open libcuda.so.1 environment say -- init context launch 5 sync environment";
    let case = Case::new(&lab, ways, words);
    let run = |case: &Case<'_>| {
        let limit = std::time::Duration::from_secs(20);
        case.build(Mode::Preload).run(limit).ok().stdout
    };
    let set = |name: &str| format!("set: {name}={}\n", lab.library().display());
    let (cuda, nvtx) = (set("CUDA_INJECTION64_PATH"), set("NVTX_INJECTION64_PATH"));
    assert_eq!(run(&case), format!("--\n{cuda}--\ncuInit 0\n{nvtx}"));
    let case = case
        .with("CUDA_INJECTION64_PATH", "/nonexistent")
        .with("NVTX_INJECTION64_PATH", "");
    assert_eq!(run(&case), "--\n--\ncuInit 0\n");
}

/// The library does not claim shadow-stack support, as its hooks are not made for it.
#[test]
fn no_claim_of_shadow_stacks() {
    if !need::program("no_claim_of_shadow_stacks", "readelf") {
        return;
    }
    let notes = |file: &Path| {
        let output = std::process::Command::new("readelf")
            .arg("-nW")
            .arg(file)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let lab = lab();
    let own = notes(&lab.library());
    assert!(own.contains("stapsdt"), "readelf reads the notes");
    assert!(!own.contains("SHSTK"), "{own}");
    // It would show: a library that does claim it.
    let claiming = compile(
        &lab,
        "interposer/churn.c",
        "libclaims.so",
        &["-shared", "-fPIC", "-fcf-protection=full", "-nostdlib"],
    );
    assert!(notes(&claiming).contains("SHSTK"));
}

/// Under `parcagpu run` a program that preloads the library by itself has two copies of it: all
/// launches are told once.
#[test]
fn preloaded_and_run() {
    if !need::bpf("preloaded_and_run") {
        return;
    }
    let lab = lab();
    let ways = compile(&lab, "interposer/ways.c", "ways", &[]);
    let out = lab.file("run.json");
    let words = format!(
        "run --lib {} --trace --json --output {} -- env LD_LIBRARY_PATH={} {} open libcuda.so.1 init context \
         launch 10 graph 2 sync say done",
        lab.library().display(),
        out.display(),
        artefacts::sim().display(),
        ways.display()
    );
    for also in [false, true] {
        let mut program = lab.parcagpu(&words);
        if also {
            // In front of what `run` adds or behind it: one of them does the work.
            program = program.env("LD_PRELOAD", lab.library());
        }
        let ended = program.run(std::time::Duration::from_secs(20)).ok();
        assert_eq!(ended.stdout, "cuInit 0\ndone\n");
        let text = std::fs::read_to_string(&out).unwrap();
        let events = Events::read(&text);
        let launches = events.launches().len();
        if also && launches == 0 {
            // The program's own copy may be the one in charge; then `run` has to say so.
            assert!(ended.stderr.contains("another copy"), "{}", ended.stderr);
        } else {
            assert_eq!(launches, 12, "also {also}: {}", ended.stderr);
            cut_short::records(events.records().len(), 12, events.cut_short());
        }
    }
}

/// A script between `run` and the program that puts another copy of the library in front: that one is
/// in charge, and `run` says why its own sees nothing.
#[test]
fn another_copy_in_front_of_the_one_of_run() {
    if !need::bpf("another_copy_in_front_of_the_one_of_run") {
        return;
    }
    let lab = lab();
    let ways = compile(&lab, "interposer/ways.c", "ways", &[]);
    let script = format!(
        "LD_LIBRARY_PATH={} LD_PRELOAD={}:$LD_PRELOAD exec {} open libcuda.so.1 init context launch 10 sync gate say done",
        artefacts::sim().display(),
        lab.library().display(),
        ways.display()
    );
    let mut run = lab
        .parcagpu(&format!("run --lib {} --", lab.library().display()))
        .args(["sh", "-c", script.as_str()])
        .start();
    run.wait_gate(1);
    // Some looks at the program.
    run.wait_sleeps(20);
    run.open_gate(1);
    let ended = run.wait(std::time::Duration::from_secs(20)).ok();
    assert_eq!(ended.stdout, "cuInit 0\ngate\ndone\n");
    assert!(
        ended.stderr.contains("all 10 launches") || ended.stderr.contains("another copy"),
        "{}",
        ended.stderr
    );
}
