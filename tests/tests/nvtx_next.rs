//! Another NVTX tool behind ours: it gets every call, with its own handles, and the program its results.

mod nvtx_common;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use nvtx_common::{
    INJECTION, NEWEST, SHORT, VERSIONS, attach, compile, injected, logging_tool, ready, said,
    wheels,
};
use parcagpu_tests::lab::Lab;
use parcagpu_tests::need;
use parcagpu_tests::program::{Ended, Program};

const NEXT: &str = "PARCAGPU_NVTX_NEXT";

/// What the tool wrote down and the program printed, but for its thread id.
fn story(log: &Path, ended: &Ended) -> (String, String) {
    let printed = ended.stdout.lines().filter(|l| !l.starts_with("tid"));
    (
        fs::read_to_string(log).unwrap_or_default(),
        printed.collect::<Vec<_>>().join("\n"),
    )
}

#[track_caller]
fn check_transparent(lab: &Lab, wheels: &Path, client: &str, start: impl Fn() -> Program) {
    let tool = logging_tool(lab, wheels);
    let log = lab.file("log");
    let alone = start()
        .env(INJECTION, &tool)
        .env("NVTX_TOOL_LOG", &log)
        .run(SHORT)
        .ok();
    let alone = story(&log, &alone);
    assert!(alone.0.lines().count() > 40, "{client}: {}", alone.0);
    fs::remove_file(&log).expect("it was written");
    let behind = start()
        .env(NEXT, &tool)
        .env("NVTX_TOOL_LOG", &log)
        .run(SHORT)
        .ok();
    assert_eq!(behind.stderr, "");
    assert_eq!(story(&log, &behind), alone, "{client}");
}

#[test]
fn the_next_tool_and_the_program_see_no_difference() {
    let test = "the_next_tool_and_the_program_see_no_difference";
    let Some(wheels) = wheels(test) else {
        return;
    };
    for version in VERSIONS {
        let lab = Lab::new();
        let every = compile(&lab, "gcc", "every.c", &wheels.join(version), "every", &[]);
        check_transparent(&lab, &wheels, version, || injected(&lab, &every));
    }
    let lab = Lab::new();
    let folder = wheels.join("11.8");
    let library = folder.join("lib/libnvToolsExt.so.1");
    let more: [&OsStr; 2] = ["-DNVTX_V2".as_ref(), library.as_ref()];
    let every = compile(&lab, "gcc", "every.c", &folder, "every", &more);
    check_transparent(&lab, &wheels, "v2", || {
        injected(&lab, &every).env("LD_LIBRARY_PATH", folder.join("lib"))
    });
}

#[test]
fn both_are_served_while_somebody_listens() {
    let Some(wheels) = ready("both_are_served_while_somebody_listens") else {
        return;
    };
    let lab = Lab::new();
    let tool = logging_tool(&lab, &wheels);
    let log = lab.file("log");
    let every = compile(&lab, "gcc", "every.c", &wheels.join(NEWEST), "every", &[]);
    let trace = attach(&lab);
    injected(&lab, every)
        .env(NEXT, &tool)
        .env("NVTX_TOOL_LOG", &log)
        .run(SHORT)
        .ok();
    let events = trace.end();
    let said = said(&events.all);
    assert_eq!(said.len(), 30);
    assert_eq!(said[19].message, "registered");
    let log = fs::read_to_string(log).expect("the tool wrote it");
    assert!(log.contains("d_end 0x1001 0x3004"), "{log}");
}

#[test]
fn a_next_tool_that_cannot_be_had_is_told() {
    let test = "a_next_tool_that_cannot_be_had_is_told";
    let Some(wheels) = ready(test) else {
        return;
    };
    if !need::program(test, "gcc") {
        return;
    }
    let lab = Lab::new();
    let tool = logging_tool(&lab, &wheels);
    let every = compile(&lab, "gcc", "every.c", &wheels.join(NEWEST), "every", &[]);
    let log = lab.file("log");
    let library = lab.library();
    let cases: [(&Path, &str, &str); 4] = [
        (Path::new("/nonexistent.so"), "", "cannot open"),
        (
            Path::new("libm.so.6"),
            "",
            "has no InitializeInjectionNvtx2",
        ),
        (&library, "", "this library itself"),
        (&tool, "decline", "declined"),
    ];
    for (next, how, why) in cases {
        let trace = attach(&lab);
        let ended = injected(&lab, &every)
            .env(NEXT, next)
            .env("NVTX_TOOL", how)
            .env("NVTX_TOOL_LOG", &log)
            .run(SHORT)
            .ok();
        let events = trace.end();
        let errors = events.errors();
        assert!(
            errors
                .iter()
                .any(|(_, part, text)| part == "nvtx" && text.contains(why)),
            "{why}: {errors:?}"
        );
        // Ours goes on alone.
        assert_eq!(said(&events.all).len(), 30, "{why}");
        assert!(ended.stdout.contains("plain -2 -2"), "{}", ended.stdout);
        assert_eq!(fs::read_to_string(&log).unwrap_or_default(), "", "{why}");
    }
}

#[test]
fn threads_that_race_for_the_first_call_lose_nothing() {
    let Some(wheels) = ready("threads_that_race_for_the_first_call_lose_nothing") else {
        return;
    };
    // Clients before 12.9 initialise their tool once per racing thread.
    for version in VERSIONS {
        let lab = Lab::new();
        let tool = logging_tool(&lab, &wheels);
        let race = compile(&lab, "gcc", "race.c", &wheels.join(version), "race", &[]);
        let log = lab.file("log");
        let trace = attach(&lab);
        injected(&lab, race)
            .env(NEXT, &tool)
            .env("NVTX_TOOL", "slow")
            .env("NVTX_TOOL_LOG", &log)
            .run(SHORT)
            .ok();
        assert_eq!(said(&trace.end().all).len(), 8, "{version}");
        let log = fs::read_to_string(log).expect("the tool wrote it");
        assert_eq!(log, "mark_a racing\n".repeat(8), "{version}");
    }
}
