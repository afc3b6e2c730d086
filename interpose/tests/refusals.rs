//! What cannot or must not be hooked is left alone and reported, and the
//! program runs as without us.

mod support;

use support::{Lab, engine};

#[test]
fn functions_that_cannot_be_hooked() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    let log = lab.compare(&["open", &target]);
    log.expect(1, 5);
    let report = &log.reports[0];
    for reason in [
        "targetShort: too short (3 bytes)",
        "targetJump: starts with a jump",
        "targetLoop: branches into its first bytes",
        "targetAlias: same code as targetInit",
        "targetMissing: not exported",
    ] {
        assert!(report.refused.contains(reason), "{reason}: {report:?}");
    }
    // A branch to behind a short jump, but into a long one.
    let back = report.hooked.iter().any(|name| name == "targetBack");
    assert_eq!(back, engine() == "detour", "{report:?}");
    assert_eq!(log.ends, [[5, if back { 4 } else { 3 }, 0]]);
}

#[test]
fn a_library_with_nothing_to_hook() {
    let lab = Lab::new();
    let plain = lab.library("target.c", "libplain.so", &["-DID=1"]);
    // Only the name is that of the target.
    let other = lab.library("link.c", "libtarget.so.2", &[&plain, "-Wl,-rpath,$ORIGIN"]);
    let log = lab.compare(&["link", &other]);
    assert_eq!(log.reports.len(), 1, "{log:?}");
    assert_eq!(
        log.reports[0].outcome,
        "not hooked: no function that can be"
    );
    assert!(log.reports[0].refused.contains("targetInit: not exported"));
}

#[test]
fn no_engine() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    let log = lab.compare_as("host", &["open", &target], &[("FIXTURE_ENGINE", "none")]);
    assert_eq!(log.reports[0].outcome, "not hooked: no engine");
    assert_eq!(log.reports[0].engine, "none");
    assert!(log.reports[0].reason.contains("switched off"));
    assert_eq!(log.calls(), 0);
    let log = lab.compare_as("host", &["space", &target], &[("FIXTURE_ENGINE", "none")]);
    assert_eq!(log.reports.len(), 0, "ld.so is left alone: {log:?}");
}

#[test]
fn code_that_may_not_be_written() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    for (mode, reason) in [
        ("mdwe", "PR_SET_MDWE"),
        ("deny", "seccomp filter: mprotect refused"),
        ("kill", "seccomp filter: the trial was killed by signal 31"),
        ("map", "seccomp filter: the trial was killed by signal 31"),
    ] {
        let log = lab.compare(&[mode, &target]);
        assert_eq!(log.reports.len(), 1, "{mode}: {log:?}");
        assert!(log.reports[0].outcome.contains(reason), "{mode}: {log:?}");
        assert_eq!(log.reports[0].engine, "none");
        assert_eq!(log.calls(), 0);
    }
}

#[test]
fn a_filter_that_does_not_mind() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    // As in a container: two copies, the second in another namespace.
    lab.compare(&["allow", &target]).expect(2, 10);
}
