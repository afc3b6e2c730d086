//! A guest's manners: nothing in programs that are none of our business, no
//! trace in errno, results or arguments, no harm from a handler that panics.

mod support;

use std::process::Command;

use support::{Lab, fixture, text};

#[test]
fn nothing_in_other_programs() {
    let lab = Lab::new();
    // Prints its environment and the number of its threads.
    let log = lab.compare(&["nothing"]);
    log.expect(0, 0);
    let output = Command::new("cat")
        .arg("/proc/self/maps")
        .env("LD_PRELOAD", fixture())
        .output()
        .expect("cat runs");
    let maps = text(&output.stdout);
    assert!(maps.contains("libinterpose_fixture.so"));
    // ld.so's code is as it was, and nothing is writable code.
    assert!(!maps.lines().any(|l| l.contains("rwx")), "{maps}");
}

#[test]
fn an_idle_set_goes_straight_through() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    for (groups, calls, others) in [("0", 0, 0), ("1", 5, 0), ("2", 0, others())] {
        let log = lab.compare_as("host", &["open", &target], &[("FIXTURE_WANT", groups)]);
        log.expect(1, calls);
        assert_eq!(log.ends, [[calls, others, 0]]);
    }
}

/// Calls of the functions besides `targetInit` that are hooked.
fn others() -> usize {
    if support::engine() == "detour" { 4 } else { 3 }
}

#[test]
fn a_panic_stays_inside() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    for when in ["before", "after"] {
        // The library counts its calls, and the program prints the count.
        let log = lab.compare_as("host", &["open", &target], &[("FIXTURE_PANIC", when)]);
        log.expect(1, 5);
        assert_eq!(log.ends, [[5, others(), 5]]);
    }
}

#[test]
fn a_thread_may_be_cancelled_in_a_call() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    for groups in ["0", "255"] {
        let log = lab.compare_as("host", &["cancel", &target], &[("FIXTURE_WANT", groups)]);
        let handled = usize::from(groups != "0");
        assert_eq!(log.ends, [[0, handled, 0]]);
    }
}

#[test]
fn a_call_may_be_left_by_a_jump() {
    let lab = Lab::new();
    let target = lab.target("libtarget.so.1", 1, &[]);
    for groups in ["0", "255"] {
        let log = lab.compare_as("host", &["jump", &target], &[("FIXTURE_WANT", groups)]);
        let handled = if groups == "0" { 0 } else { 3 };
        assert_eq!(log.ends, [[0, handled, 0]]);
    }
}

#[test]
fn exports_what_the_loader_calls() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(fixture())
        .output()
        .expect("nm runs");
    let names = text(&output.stdout);
    let exported = |name: &str| names.lines().any(|l| l.ends_with(&format!(" T {name}")));
    assert!(exported("__gmon_start__"), "{names}");
    assert!(
        exported("dlmopen") || !cfg!(target_arch = "x86_64"),
        "{names}"
    );
}
