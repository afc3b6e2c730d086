//! The library coming in late, twice, or in two copies.

use std::fs;
use std::path::PathBuf;

use parcagpu_tests::hosts::{Case, compile, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const WORK: &str = "init context launch 10 sync launch 5 sync say done";

fn ways(lab: &Lab) -> PathBuf {
    compile(lab, "interposer/ways.c", "ways", &[])
}

/// The same library by LD_PRELOAD and by the driver: one session.
#[test]
fn preloaded_and_injected() {
    if !need::bpf("preloaded_and_injected") {
        return;
    }
    let lab = lab();
    let seen = Case::new(&lab, ways(&lab), &format!("open libcuda.so.1 {WORK}"))
        .with_library("CUDA_INJECTION64_PATH")
        .check();
    seen.launches(15).no_errors();
    assert_eq!(seen.subscriptions(), 1);
}

/// Two copies of the library preloaded: the first does the work, the second stays out.
#[test]
fn two_copies() {
    if !need::bpf("two_copies") {
        return;
    }
    let lab = lab();
    let copy = lab.file("second.so");
    fs::copy(lab.library(), &copy).unwrap();
    let both = format!("{}:{}", lab.library().display(), copy.display());
    let words = format!("open libcuda.so.1 {WORK}");
    let case = Case::new(&lab, ways(&lab), &words).with("LD_PRELOAD", both.as_str());
    let seen = case.check();
    seen.launches(15).no_errors();
    assert_eq!(seen.subscriptions(), 1);

    let words = "open libcuda.so.1 init context gate launch 5 sync";
    let case = Case::new(&lab, lab.file("ways"), words).with("LD_PRELOAD", both);
    let mut host = case.build(Mode::Preload).start();
    host.wait_gate(1);
    let reason = |library| {
        let block = parcagpu_tests::block::read(host.pid(), library).unwrap();
        block.reason.load()
    };
    let why = reason(&copy);
    assert!(why.starts_with("another copy"), "{why}");
    let why = reason(&lab.library());
    assert!(!why.starts_with("another copy"), "{why}");
    host.open_gate(1);
    host.wait(std::time::Duration::from_secs(10)).ok();
}

/// Our library opened late, when CUDA is in use: nothing is patched, CUPTI's callbacks tell.
#[test]
fn opened_late() {
    if !need::bpf("opened_late") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    for scope in ["local", "global"] {
        // Bare, some other library is opened in its place.
        let other = compile(
            &lab,
            "interposer/plugin.c",
            "libother.so",
            &["-shared", "-fPIC"],
        );
        let words = |library: &std::path::Path, inject: &str| {
            format!(
                "open libcuda.so.1 init context launch 7 sync late {} {scope} {inject} launch 10 ex 5 sync say done",
                library.display()
            )
        };
        let bare = Case::new(&lab, &ways, &words(&other, "say injected1"))
            .mode(Mode::Bare)
            .bare();
        let with = Case::new(&lab, &ways, &words(&lab.library(), "inject")).mode(Mode::Bare);
        let mut bare = bare;
        bare.ended.stdout = bare.ended.stdout.replace("injected1", "injected 1");
        let seen = with.check_against(bare);
        seen.launches(15);
        assert_eq!(seen.subscriptions(), 1, "{scope}");
    }
}

/// Our library opened after the driver but before `cuInit`, which then loads it by the variable.
#[test]
fn opened_late_then_injected() {
    if !need::bpf("opened_late_then_injected") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let other = compile(
        &lab,
        "interposer/plugin.c",
        "libother.so",
        &["-shared", "-fPIC"],
    );
    for scope in ["local", "global"] {
        let words = |library: &std::path::Path| {
            format!(
                "open libcuda.so.1 late {} {scope} {WORK}",
                library.display()
            )
        };
        let bare = Case::new(&lab, &ways, &words(&other)).bare();
        let with = Case::new(&lab, &ways, &words(&lab.library()))
            .mode(Mode::Bare)
            .with_library("CUDA_INJECTION64_PATH");
        let seen = with.check_against(bare);
        seen.launches(15);
        assert_eq!(seen.subscriptions(), 1, "{scope}");
    }
}
