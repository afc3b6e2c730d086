//! Calls that hooks must neither miss, count twice nor disturb.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use parcagpu_tests::artefacts::sim;
use parcagpu_tests::drivers::driver_without;
use parcagpu_tests::full;
use parcagpu_tests::hosts::{Case, Consumer, compile, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

fn ways(lab: &Lab) -> PathBuf {
    compile(lab, "interposer/ways.c", "ways", &[])
}

/// Ten launches by every entry point and its twin for per-thread default streams: each kernel has
/// exactly one launch, under the callback id of its function.
#[test]
fn every_entry_point() {
    if !need::bpf("every_entry_point") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let words = "open libcuda.so.1 init context launch 10 ptsz 10 ex 10 exptsz 10 coop 10 coopptsz 10 \
                 graph 10 graphptsz 10 sync";
    for engine in [None, Some("none")] {
        let mut case = Case::new(&lab, &ways, words);
        if let Some(engine) = engine {
            case = case.with("PARCAGPU_HOOK_ENGINE", engine);
        }
        let seen = case.check();
        seen.launches(80).no_errors();
        assert_eq!(seen.events.records().len(), 80);
        let mut counts = HashMap::new();
        for id in seen.events.callbacks() {
            *counts.entry(id).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 8, "{counts:?}");
        assert!(
            counts.iter().all(|(id, n)| *id < 0 && *n == 10),
            "{counts:?}"
        );
    }
}

/// The same through CUPTI's runtime callbacks, which the simulated runtime makes for its own calls
/// only: driver calls outside them are told as ever.
#[test]
fn every_entry_point_with_runtime_callbacks() {
    if !need::bpf("every_entry_point_with_runtime_callbacks") {
        return;
    }
    let lab = lab();
    let words = "open libcuda.so.1 init context launch 10 ptsz 10 ex 10 coop 10 graph 10 sync";
    let seen = Case::new(&lab, ways(&lab), words)
        .with("PARCAGPU_API_CALLBACKS", "runtime")
        .check();
    seen.launches(50).no_errors();
}

/// A driver that hands out internal copies by `cuGetProcAddress`: launches by those, by the exported
/// functions and by both are told once each.
#[test]
fn copies_by_address() {
    if !need::bpf("copies_by_address") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    for flags in [0, 2] {
        for copies in ["0", "1"] {
            let words = format!(
                "open libcuda.so.1 byaddress {flags} init context launch 100 ex 10 coop 5 graph 5 sync \
                 second open libcuda.so.1 context launch 100 ex 10 ptsz 5 graph 5 first launch 20 sync"
            );
            println!("flags {flags}, copies {copies}");
            let seen = Case::new(&lab, &ways, &words)
                .env("MOCK_CUDA_COPIES", copies)
                .check();
            seen.launches(260).no_errors();
            assert_eq!(seen.subscriptions(), 1);
        }
    }
}

/// An old driver: no `cuGetProcAddress_v2`, no `cuModuleLoadDataEx`, no `cuLibraryLoadData`, no
/// `cuLaunchKernelEx`, and the older lookup asked before `cuInit`.
#[test]
fn old_driver() {
    if !need::bpf("old_driver") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let missing = [
        "cuGetProcAddress_v2",
        "cuModuleLoadDataEx",
        "cuLibraryLoadData",
        "cuLaunchKernelEx",
    ];
    let driver = driver_without(&lab, "old", &missing);
    let absent = "cuModuleLoadDataEx,cuLibraryLoadData,cuLaunchKernelEx,cuGetProcAddress_v2";
    for copies in ["0", "1"] {
        println!("copies {copies}");
        let words = "open libcuda.so.1 byaddress 0 init context launch 100 coop 10 graph 5 sync";
        let seen = Case::new(&lab, &ways, words)
            .driver(&driver)
            .env("MOCK_CUDA_ABSENT", absent)
            .env("MOCK_CUDA_VERSION", "11030")
            .env("MOCK_CUDA_COPIES", copies)
            .with("PARCAGPU_CUPTI_PATH", sim().join("libcupti.so.13"))
            .check();
        assert!(
            seen.with.ended.stdout.contains("cuLaunchKernel: 0 found"),
            "{}",
            seen.with.ended.stdout
        );
        assert!(seen.with.ended.stdout.contains("null"), "some are missing");
        seen.launches(115).no_errors();
    }
}

/// Arguments that the driver refuses, images that nobody may read, failures: same results,
/// out-parameters and errno as bare, and nothing is read.
#[test]
fn bad_arguments() {
    if !need::bpf("bad_arguments") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    for engine in ["detour", "none"] {
        for mode in [Mode::Preload, Mode::Injection] {
            let words = "open libcuda.so.1 init context bad launch 3 sync bad launch 3 sync";
            // The last of four, three and two calls each time `bad` is done.
            let fail = "cuModuleLoadData=200@4,cuModuleLoadData=200@7,cuModuleLoadDataEx=200@3,\
                        cuModuleLoadDataEx=200@6,cuLibraryLoadData=200@2,cuLibraryLoadData=200@4";
            let mut case = Case::new(&lab, &ways, words)
                .mode(mode)
                .env("MOCK_FAIL", fail);
            if engine == "none" {
                case = case.with("PARCAGPU_HOOK_ENGINE", engine);
            }
            let seen = case.check();
            let lines = seen.with.ended.stdout.lines();
            let set = lines.filter(|l| l.contains("= 0,")).count();
            assert_eq!(set, 0, "all are refused: {}", seen.with.ended.stdout);
            seen.launches(6).no_errors();
        }
    }
}

/// The same bad arguments as the first calls after `cuInit`, with nobody listening.
#[test]
fn bad_arguments_first() {
    let lab = lab();
    let words = "open libcuda.so.1 initflags 65535 initflags 1 init bad context launch 3 sync";
    let fail = "cuModuleLoadData=200@3,cuModuleLoadDataEx=200@3,cuLibraryLoadData=200@2";
    let case = Case::new(&lab, ways(&lab), words).env("MOCK_FAIL", fail);
    let bare = case.bare();
    assert_eq!(bare.ended.code(), 0, "{}", bare.ended.stderr);
    let with = case.build(Mode::Preload).run(Duration::from_secs(10));
    assert_eq!(bare.ended.stdout, with.stdout);
    assert_eq!((with.code(), with.stderr.as_str()), (0, ""));
}

/// A loop of dlopen and dlclose beside eight launching threads: nothing is lost or reported, and the loop makes a
/// launch no dearer than it does bare (B08), in processor time: others use the machine, too.
#[test]
fn loads_beside_launches() {
    if !need::bpf("loads_beside_launches") {
        return;
    }
    let lab = lab();
    let small = compile(
        &lab,
        "interposer/churn.c",
        "libchurn.so",
        &["-shared", "-fPIC"],
    );
    const RATE: u64 = 20;
    let seconds = full::pick(3, 30);
    let turn = format!("churn 8 - 1 churn 8 {} 1 ", small.display());
    let words = format!(
        "open libcuda.so.1 init context {} sync say done",
        turn.repeat(seconds as usize)
    );
    let rates = lab.file("rates");
    let case = Case::new(&lab, ways(&lab), &words)
        .unlogged()
        .env("LAUNCHES_FILE", &rates)
        .with("PARCAGPU_RATE_LIMIT", RATE.to_string());
    // What a launch takes with the loop, in times of that without it.
    let dearer = || {
        let text = std::fs::read_to_string(&rates).expect("the program wrote it");
        std::fs::remove_file(&rates).expect("it is there");
        let number = |word: &str| word.parse::<f64>().expect("a number");
        let turns: Vec<(f64, f64)> = text
            .lines()
            .map(|line| line.split_once(' ').expect("launches and nanoseconds"))
            .map(|(launches, ns)| (number(launches), number(ns)))
            .collect();
        println!("launches and nanoseconds: {turns:?}");
        let cost = |from: usize| {
            let turns = || turns[from..].iter().step_by(2);
            turns().map(|turn| turn.1).sum::<f64>() / turns().map(|turn| turn.0).sum::<f64>()
        };
        cost(1) / cost(0)
    };
    let bare = case
        .build(Mode::Bare)
        .run(Duration::from_secs(3 * seconds))
        .ok();
    let bare_dearer = dearer();
    let consumer = Consumer::new(&lab);
    let host = case.build(Mode::Preload).start();
    let ended = host
        .wait_with(Duration::from_secs(3 * seconds), || consumer.poll())
        .ok();
    assert_eq!(ended.stdout, bare.stdout);
    assert_eq!(ended.stderr, "");
    let with_dearer = dearer();
    println!("times: {with_dearer:.2}, bare {bare_dearer:.2}");
    assert!(
        with_dearer < 1.5 * bare_dearer,
        "{with_dearer:.2} times what a launch takes, bare {bare_dearer:.2}"
    );
    let told = consumer.end();
    let count = told.launches().len() as u64;
    // Eight threads, so many a second each, and the first one of each in every turn: in some it may not come to one.
    let most = 8 * (RATE * (ended.took.as_secs() + 1) + 2 * seconds);
    let least = 8 * seconds;
    assert!((least..=most).contains(&count), "{count} launches");
    assert_eq!(told.errors(), []);
}
