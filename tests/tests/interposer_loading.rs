//! Every way in which a program may bring the driver in: the hooks are there, the program notices
//! nothing.

use std::fs;
use std::path::PathBuf;

use parcagpu_tests::artefacts::sim;
use parcagpu_tests::hosts::{Case, compile, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const WORK: &str = "init context launch 10 sync launch 5 sync say done";

fn ways(lab: &Lab) -> PathBuf {
    compile(lab, "interposer/ways.c", "ways", &[])
}

fn driver() -> String {
    sim().join("libcuda.so.1").display().to_string()
}

/// Opened by its soname or path, with any scope, by any thread.
#[test]
fn opened() {
    if !need::bpf("opened") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let path = driver();
    for open in [
        "open libcuda.so.1".to_owned(),
        format!("open {path}"),
        format!("openlocal {path}"),
        "openglobal libcuda.so.1".to_owned(),
        "openthread libcuda.so.1".to_owned(),
        "open libcuda.so.1 open libcuda.so.1".to_owned(),
    ] {
        println!("{open}");
        let seen = Case::new(&lab, &ways, &format!("{open} {WORK}")).check();
        assert_eq!(seen.with.ended.stdout, "cuInit 0\ndone\n");
        seen.launches(15).no_errors();
        assert_eq!(seen.subscriptions(), 1, "{open}");
    }
}

/// Opened and initialised by a library's constructor.
#[test]
fn in_a_constructor() {
    if !need::bpf("in_a_constructor") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let plugin = compile(
        &lab,
        "interposer/plugin.c",
        "libplugin.so",
        &["-shared", "-fPIC", "-DCONSTRUCTOR"],
    );
    let words = format!("plugin {} {WORK}", plugin.display());
    let seen = Case::new(&lab, ways, &words).check();
    seen.launches(15).no_errors();
    assert_eq!(seen.subscriptions(), 1);
}

/// Linked: mapped before anybody's first instruction.
#[test]
fn linked() {
    if !need::bpf("linked") {
        return;
    }
    let lab = lab();
    let path = driver();
    for flag in ["-Wl,-z,lazy", "-Wl,-z,now"] {
        let arguments = ["-DLINKED", "-Wl,--no-as-needed", flag, &path];
        let linked = compile(&lab, "interposer/ways.c", "linked", &arguments);
        for mode in [Mode::Preload, Mode::Injection] {
            let case = Case::new(&lab, &linked, &format!("linked {WORK}")).mode(mode);
            let seen = case.check();
            seen.launches(15).no_errors();
            assert_eq!(seen.subscriptions(), 1, "{flag} {mode:?}");
        }
    }
}

/// Mapped twice, and both copies used: CUPTI, which knows the first one, tells of its launches, and
/// the other one works as bare.
#[test]
fn twice() {
    if !need::bpf("twice") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let other = lab.file("other");
    fs::create_dir(&other).unwrap();
    fs::copy(driver(), other.join("libcuda.so.1")).unwrap();
    let words = format!(
        "open libcuda.so.1 second open {}/libcuda.so.1 first {WORK} second {WORK} first launch 5",
        other.display()
    );
    let seen = Case::new(&lab, ways, &words).unlogged().check();
    let ours = seen.events.launches().len();
    assert!(ours == 20 || ours == 35, "{ours} launches");
    seen.launches(ours);
}

/// Opened and closed before it is used, itself and other copies, also at the same addresses.
#[test]
fn opened_and_closed_before() {
    if !need::bpf("opened_and_closed_before") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let other = lab.file("other");
    fs::create_dir(&other).unwrap();
    fs::copy(driver(), other.join("libcuda.so.1")).unwrap();
    let other = other.join("libcuda.so.1").display().to_string();
    for before in [
        format!("openclose {} 20", driver()),
        format!("openclose {other} 20"),
        format!(
            "openclose {other} 1 openclose {} 1 openclose {other} 1",
            driver()
        ),
    ] {
        // One copy at a time is there; still, each takes the log's file as its own.
        let words = format!("{before} open libcuda.so.1 {WORK}");
        let seen = Case::new(&lab, &ways, &words).unlogged().check();
        seen.launches(15).no_errors();
    }
}

/// In a namespace of its own: as bare, whatever can be seen there.
#[test]
fn in_another_namespace() {
    if !need::bpf("in_another_namespace") {
        return;
    }
    let lab = lab();
    let words = format!("openspace libcuda.so.1 {WORK}");
    let seen = Case::new(&lab, ways(&lab), &words).check();
    let launches = seen.events.launches().len();
    assert!(
        launches == 15 || !seen.events.errors().is_empty(),
        "{launches} launches, and not a word"
    );
}

/// The base namespace is served as ever when the program uses others too.
#[test]
fn beside_another_namespace() {
    if !need::bpf("beside_another_namespace") {
        return;
    }
    let lab = lab();
    let words = format!("open libcuda.so.1 {WORK} second openspace libcuda.so.1 {WORK}");
    let seen = Case::new(&lab, ways(&lab), &words).unlogged().check();
    assert!(seen.events.launches().len() >= 15);
}

/// A chain of libraries that only RUNPATH `$ORIGIN` leads along, and the texts of failures.
#[test]
fn search_paths_and_failures() {
    if !need::bpf("search_paths_and_failures") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let deep = lab.file("a/b/c");
    fs::create_dir_all(&deep).unwrap();
    fs::copy(driver(), deep.join("libcuda.so.1")).unwrap();
    for (name, next, runpath) in [
        ("a/libone.so", "libtwo.so", "$ORIGIN/b"),
        ("a/b/libtwo.so", "libcuda.so.1", "$ORIGIN/c"),
    ] {
        let next = format!("-DNEXT=\"{next}\"");
        let runpath = format!("-Wl,--enable-new-dtags,-rpath,{runpath}");
        let arguments = ["-shared", "-fPIC", &next, &runpath];
        compile(&lab, "interposer/plugin.c", name, &arguments);
    }
    let broken = lab.file("broken.so");
    fs::write(&broken, "no library at all").unwrap();
    // Nothing but RUNPATH finds the driver of the chain; CUPTI takes it by its soname afterwards.
    let words = format!(
        "failopen libtwo.so failopen libnone.so.7 failopen {0} plugin {1} {WORK} failopen libone.so failopen {0}",
        broken.display(),
        lab.file("a/libone.so").display()
    );
    let seen = Case::new(&lab, ways, &words).check();
    assert!(
        seen.with
            .ended
            .stdout
            .contains("libtwo.so: cannot open shared object file"),
        "{}",
        seen.with.ended.stdout
    );
    seen.launches(15).no_errors();
}

/// A driver whose `cuInit` looks itself up and calls what it finds.
#[test]
fn driver_calls_its_own_init() {
    if !need::bpf("driver_calls_its_own_init") {
        return;
    }
    let lab = lab();
    let path = driver();
    let linked = compile(
        &lab,
        "interposer/ways.c",
        "linked",
        &["-DLINKED", "-Wl,--no-as-needed", &path],
    );
    let ways = ways(&lab);
    for (program, words) in [
        (&ways, format!("open libcuda.so.1 {WORK}")),
        (&linked, format!("linked {WORK}")),
    ] {
        for mode in [Mode::Preload, Mode::Injection] {
            let seen = Case::new(&lab, program, &words)
                .mode(mode)
                .env("MOCK_CUDA_INIT_REENTERS", "1")
                .check();
            let inits = parcagpu_tests::mock_log::count(&seen.with.calls, "cuInit");
            assert!(inits >= 2, "{inits} calls");
            seen.launches(15).no_errors();
            assert_eq!(seen.subscriptions(), 1);
        }
    }
}

/// `cuInit` by 16 threads at once starts one session.
#[test]
fn init_by_many_threads() {
    if !need::bpf("init_by_many_threads") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    for mode in [Mode::Preload, Mode::Injection, Mode::Preload] {
        let words = "open libcuda.so.1 inits 16 context launch 10 threads 8 10 sync";
        let seen = Case::new(&lab, &ways, words).mode(mode).check();
        assert_eq!(seen.with.ended.stdout, "16 of 16 cuInit\n");
        seen.launches(90).no_errors();
        assert_eq!(seen.subscriptions(), 1);
    }
}

/// `cuInit` that fails starts nothing; the one that succeeds does.
#[test]
fn init_fails_first() {
    if !need::bpf("init_fails_first") {
        return;
    }
    let lab = lab();
    let words = "open libcuda.so.1 initflags 1 init init init context launch 10 sync";
    let seen = Case::new(&lab, ways(&lab), words)
        .env("MOCK_FAIL", "cuInit=999@2,cuInit=100@3")
        .check();
    assert_eq!(
        seen.with.ended.stdout,
        "cuInit 1\ncuInit 999\ncuInit 100\ncuInit 0\n"
    );
    seen.launches(10).no_errors();
    assert_eq!(seen.subscriptions(), 1);
}
