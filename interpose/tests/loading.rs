//! Every way by which a library comes into a process: it is hooked before the
//! program can call it, and the program runs as without us.

mod support;

use support::{Lab, fixture, text};

/// Calls of `targetInit` by the program's `use`: three, one from within the
/// library, one under its other name.
const USE: usize = 5;

#[test]
fn by_path() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    lab.compare(&["open", &target]).expect(1, USE);
    lab.compare(&["deep", &target]).expect(1, USE);
}

#[test]
fn by_the_old_hash_table() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &["-Wl,--hash-style=sysv"]);
    lab.compare(&["open", &target]).expect(1, USE);
}

#[test]
fn by_a_chain_of_search_paths() {
    let lab = Lab::new();
    // Each is found only by the RUNPATH of the one before.
    lab.target("a/b/libtarget.so.1", 1, &[]);
    lab.library(
        "link.c",
        "a/libmiddle.so",
        &[
            "-DNEXT=\"libtarget.so.1\"",
            "-DFUNCTION=\"targetInit\"",
            "-Wl,-rpath,$ORIGIN/b",
        ],
    );
    let first = lab.library(
        "link.c",
        "libfirst.so",
        &[
            "-DNEXT=\"libmiddle.so\"",
            "-DFUNCTION=\"linkCall\"",
            "-Wl,-rpath,$ORIGIN/a",
        ],
    );
    lab.compare(&["link", &first]).expect(1, 3);
}

#[test]
fn as_a_dependency() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &["-DCONSTRUCTOR"]);
    let link = lab.library("link.c", "liblink.so", &[&target, "-Wl,-rpath,$ORIGIN"]);
    lab.compare(&["link", &link]).expect(1, 2);
}

#[test]
fn in_a_constructor() {
    let lab = Lab::new();
    lab.target("libtarget.so.1", 1, &[]);
    let early = lab.library(
        "link.c",
        "libearly.so",
        &[
            "-DEARLY",
            "-DNEXT=\"libtarget.so.1\"",
            "-DFUNCTION=\"targetInit\"",
            "-Wl,-rpath,$ORIGIN",
        ],
    );
    lab.compare(&["link", &early]).expect(1, 2);
}

#[test]
fn by_many_threads_at_once() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    let log = lab.compare(&["race", &target]);
    assert_eq!(log.calls(), 8 * 50 * 200);
    assert!(log.reports.iter().all(|r| r.outcome == "hooked"), "{log:?}");
}

#[test]
fn by_threads_while_the_first_namespace_is_made() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    for pause in ["0", "300", "1000", "3000", "10000"] {
        let log = lab.compare(&["mixed", &target, pause]);
        assert_eq!(log.calls(), 8 * 50 * 200 + 1);
        assert!(log.reports.iter().all(|r| r.outcome == "hooked"), "{log:?}");
    }
}

#[test]
fn into_other_namespaces() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &["-DCONSTRUCTOR"]);
    lab.compare(&["space", &target]).expect(1, USE + 1);
    let log = lab.compare(&["spaces", &target]);
    log.expect(21, 1 + 20 * 3);
    let copies: Vec<&str> = log.reports.iter().map(|r| r.copy.as_str()).collect();
    assert_eq!(copies[0], "copy Some(0)");
    assert!(
        copies[1..].iter().all(|c| *c == "copy Some(1)"),
        "{copies:?}"
    );
}

#[test]
fn with_the_program() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &["-DCONSTRUCTOR"]);
    lab.program("linked", &["-DLINKED", &target, "-Wl,-rpath,$ORIGIN"]);
    let log = lab.compare_as("linked", &["linked"], &[]);
    // Its own constructor's call is seen, too.
    log.expect(1, 1 + 1 + USE);
    // The program's loader run by hand.
    let program = lab.path("linked");
    let fixture = fixture();
    let preload = [
        "--preload",
        fixture.to_str().expect("UTF-8"),
        &program,
        "linked",
    ];
    let loader = std::fs::canonicalize("/lib64/ld-linux-x86-64.so.2").expect("the loader");
    std::os::unix::fs::symlink(loader, lab.path("ld.so")).expect("link made");
    let (output, log) = lab.logged("ld.so", &preload, &[]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    log.expect(1, 1 + 1 + USE);
}

#[test]
fn with_a_program_that_has_its_own_init_call() {
    let lab = Lab::new();
    // -pg: the program's __gmon_start__ comes before ours where a library
    // that it is linked with needs one.
    let one = lab.target("libtarget.so.1", 1, &[]);
    let two = lab.target("two/libtarget.so.1", 2, &[]);
    lab.program("counted", &["-pg", "-DLINKED", &one, "-Wl,-rpath,$ORIGIN"]);
    lab.compare_as("counted", &["linked"], &[])
        .expect(1, 1 + USE);
    lab.compare_as("counted", &["open", &two], &[])
        .expect(2, USE);
}

#[test]
fn unloaded_and_loaded_again() {
    let lab = Lab::new();
    let one = lab.target("libtarget.so.1", 1, &[]);
    let two = lab.target("two/libtarget.so.1", 2, &[]);
    for paths in [vec!["reload", &one], vec!["reload", &one, &two]] {
        let log = lab.compare(&paths);
        log.expect(200, 200);
        assert!(log.reports.iter().all(|r| r.copy == "copy Some(0)"));
    }
}

#[test]
fn one_after_the_other_at_other_places() {
    let lab = Lab::new();
    // More than can be hooked at once, with never more than two mapped.
    let paths: Vec<String> = (1..=12)
        .map(|id| {
            let pad = format!("-DPAD={}", 20_000 * id);
            lab.target(&format!("{id}/libtarget.so.1"), id, &[&pad])
        })
        .collect();
    let arguments = ["walk"].into_iter().chain(paths.iter().map(String::as_str));
    let arguments: Vec<&str> = arguments.collect();
    lab.compare(&arguments).expect(12, 12);
}

#[test]
fn several_copies() {
    let lab = Lab::new();
    let paths: Vec<String> = (1..=6)
        .map(|id| lab.target(&format!("{id}/libtarget.so.1"), id, &[]))
        .collect();
    let arguments = |n: usize| {
        let paths = paths[..n].iter().map(String::as_str);
        ["copies"].into_iter().chain(paths).collect::<Vec<_>>()
    };
    // Each copy is used; then the first is unloaded, and the others again.
    lab.compare(&arguments(2)).expect(2, 3 * USE);
    lab.compare(&arguments(4)).expect(4, 7 * USE);
    let log = lab.compare(&arguments(6));
    assert_eq!(log.calls(), 7 * USE);
    let outcomes: Vec<&str> = log.reports.iter().map(|r| r.outcome.as_str()).collect();
    assert_eq!(outcomes[..4], ["hooked"; 4]);
    assert_eq!(outcomes[4], "not hooked: 1 more than 4 copies");
    assert_eq!(outcomes[5], "not hooked: 2 more than 4 copies");
}

#[test]
fn before_us() {
    let lab = Lab::new();
    let one = lab.target("libtarget.so.1", 1, &[]);
    let two = lab.target("two/libtarget.so.1", 2, &[]);
    let fixture = fixture();
    let fixture = fixture.to_str().expect("UTF-8");
    let (output, log) = lab.logged("host", &["late", &one, fixture, &two], &[]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let outcomes: Vec<&str> = log.reports.iter().map(|r| r.outcome.as_str()).collect();
    assert_eq!(outcomes, ["not hooked: it was loaded before us", "hooked"]);
    // Only the copy that came after us is seen.
    assert_eq!(log.calls(), USE);
    let bare = lab.logged("host", &["late", &one, &two], &[]).0;
    assert_eq!(text(&output.stdout), text(&bare.stdout));
}

#[test]
fn without_start_up_code() {
    let lab = Lab::new();
    let seldom = lab.target("libtarget.so.1", 1, &["-nostartfiles"]);
    let usual = lab.target("two/libtarget.so.1", 2, &[]);
    // Nobody tells of it when it is loaded; found later, it may be running.
    // In another namespace the loader tells.
    let log = lab.compare(&["seldom", &seldom, &usual]);
    let outcomes: Vec<&str> = log.reports.iter().map(|r| r.outcome.as_str()).collect();
    let late = "not hooked: it was loaded before us";
    let mut sorted = outcomes.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["hooked", "hooked", late]);
    assert_eq!(log.calls(), 2 * USE);
    // Found only by the first look at the loader's own lists.
    let log = lab.compare(&["seldom", &seldom, ""]);
    let mut outcomes: Vec<&str> = log.reports.iter().map(|r| r.outcome.as_str()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["hooked", late]);
    assert_eq!(log.calls(), USE);
}

#[test]
fn in_a_forked_child() {
    let lab = Lab::new();
    let one = lab.target("libtarget.so.1", 1, &[]);
    let two = lab.target("two/libtarget.so.1", 2, &[]);
    let log = lab.compare(&["fork", &one, &two]);
    // One call of the parent, two of the child.
    log.expect(2, 3);
}

#[test]
fn failures_are_the_loaders_own() {
    let lab = Lab::new();
    lab.compare(&["fail"]).expect(0, 0);
}
