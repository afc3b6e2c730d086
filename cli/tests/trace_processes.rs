//! Which processes `parcagpu trace` watches: whenever they start, and in namespaces of their own.

mod common;

use std::fs;
use std::process::Command;

use common::{App, View, bpf_or_skip, fixture, lib, of, own_copy, parcagpu};

#[test]
fn programs_started_before_and_later_are_seen() {
    let Some(_turn) = bpf_or_skip("programs_started_before_and_later_are_seen") else {
        return;
    };
    let (_dir, early) = own_copy(&fixture().lib);
    let mut before = App::start(&early);
    let view = View::start(&["trace", "--json"]);
    before.obey("launch 3 100 before");
    // Another file, first mapped while we watch: found by the next scan.
    let (_dir2, late) = own_copy(&fixture().lib);
    // A view of one named file leaves the others alone.
    let other = View::start(&["trace", "--json", "--lib", lib()]);
    let mut after = App::start(&late);
    after.await_semaphores(&[1, 1, 0, 1]);
    after.obey("launch 4 100 after");
    let (lines, _) = other.end_json();
    assert_eq!(of(&lines, before.pid(), "activity_batch").len(), 0);
    assert_eq!(of(&lines, after.pid(), "activity_batch").len(), 0);
    let (early_pid, late_pid) = (before.pid(), after.pid());
    let (lines, _) = view.end_json();
    assert_eq!(of(&lines, early_pid, "activity_batch").len(), 3);
    assert_eq!(of(&lines, late_pid, "activity_batch").len(), 4);
    after.await_semaphores(&[0, 0, 0, 0]);
}

#[test]
fn a_file_replaced_on_disk_is_followed_and_told() {
    let Some(_turn) = bpf_or_skip("a_file_replaced_on_disk_is_followed_and_told") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    fs::remove_file(&copy).unwrap();
    fs::copy(&fixture().lib, &copy).unwrap();
    let view = View::start(&["trace", "--json", "--lib", copy.to_str().unwrap()]);
    app.obey("launch 5 100 old_copy");
    let mut fresh = App::start(&copy);
    fresh.obey("launch 6 100 new_copy");
    let (old_pid, new_pid) = (app.pid(), fresh.pid());
    let (lines, _) = view.end_json();
    assert_eq!(of(&lines, old_pid, "activity_batch").len(), 5);
    assert_eq!(of(&lines, new_pid, "activity_batch").len(), 6);
    let chosen = parcagpu(&["trace", "--pid", &old_pid.to_string(), "--seconds", "0"]);
    let err = String::from_utf8_lossy(&chosen.stderr);
    assert!(err.contains("deleted or replaced on disk"), "{err}");
}

#[test]
fn one_process_is_watched_and_no_other() {
    let Some(_turn) = bpf_or_skip("one_process_is_watched_and_no_other") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut watched = App::start(&copy);
    let mut other = App::start(&copy);
    let pid = watched.pid();
    let view = View::start(&["trace", "--json", "--pid", &pid.to_string()]);
    watched.await_semaphores(&[1, 1, 0, 1]);
    assert_eq!(other.semaphores(), [0, 0, 0, 0]);
    watched.obey("launch 2 100 mine");
    other.obey("launch 2 100 not_mine");
    let (lines, _) = view.end_json();
    assert_eq!(of(&lines, pid, "activity_batch").len(), 2);
    assert!(lines.iter().all(|l| l["pid"] == pid), "{lines:?}");
    watched.await_semaphores(&[0, 0, 0, 0]);
}

#[test]
fn two_consumers_at_once_one_leaves() {
    let Some(_turn) = bpf_or_skip("two_consumers_at_once_one_leaves") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    assert_eq!(app.semaphores(), [0, 0, 0, 0]);
    let path = copy.to_str().unwrap();
    let first = View::start(&["trace", "--json", "--lib", path]);
    app.await_semaphores(&[1, 1, 0, 1]);
    let second = View::start(&["trace", "--json", "--lib", path]);
    // The kernel counts probe sites in use, not those who use them.
    app.await_semaphores(&[1, 1, 0, 1]);
    app.obey("launch 10 100 both");
    let pid = app.pid();
    let (first, _) = first.end_json();
    app.await_semaphores(&[1, 1, 0, 1]);
    app.obey("launch 20 100 second_only");
    let (second, err) = second.end_json();
    app.await_semaphores(&[0, 0, 0, 0]);
    assert_eq!(of(&first, pid, "activity_batch").len(), 10);
    assert_eq!(of(&second, pid, "activity_batch").len(), 30);
    assert!(err.contains("all 30 launches"), "{err}");
}

#[test]
fn a_view_of_one_process_ends_with_it() {
    let Some(_turn) = bpf_or_skip("a_view_of_one_process_ends_with_it") else {
        return;
    };
    let app = App::start(&fixture().lib);
    let view = View::start(&["trace", "--json", "--pid", &app.pid().to_string()]);
    drop(app);
    view.wait();
}

#[test]
fn processes_of_a_pid_namespace_have_the_numbers_seen_there() {
    let Some(_turn) = bpf_or_skip("processes_of_a_pid_namespace_have_the_numbers_seen_there")
    else {
        return;
    };
    // Consumer and program share a PID namespace that is not the initial one.
    let script = format!(
        "'{}' run --lib '{}' --trace --json --output /dev/stdout -- '{}' preloaded 'launch 1 100 inside'",
        common::PARCAGPU,
        lib(),
        fixture().app.display()
    );
    let out = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let err = String::from_utf8_lossy(&out.stderr);
    let line = text.lines().find(|l| l.contains("activity_batch"));
    let line: serde_json::Value =
        serde_json::from_str(line.unwrap_or_else(|| panic!("{text}{err}"))).unwrap();
    let pid = line["pid"].as_u64().unwrap();
    assert!(pid > 0 && pid < 20, "{line}");
    assert!(err.contains("all 1 launch"), "{err}");
}

#[test]
fn a_library_of_another_mount_namespace_is_found() {
    let Some(_turn) = bpf_or_skip("a_library_of_another_mount_namespace_is_found") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let hidden = dir.path().join("libhidden.so");
    // The file exists on a tmpfs that only the app's namespace has.
    let script = format!(
        "mount -t tmpfs none '{0}' && cp '{1}' '{2}' && exec '{3}' '{2}' 'await 1' 'launch 9 100 hidden' 'sleep 200'",
        dir.path().display(),
        lib(),
        hidden.display(),
        fixture().app.display()
    );
    let mut app = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let view = View::start(&["trace", "--json"]);
    assert!(app.wait().unwrap().success());
    assert!(!hidden.exists());
    let (lines, _) = view.end_json();
    assert_eq!(of(&lines, app.id(), "activity_batch").len(), 9);
}
