//! `parcagpu top` without a terminal, alone and beside parcagpu.bt.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{App, PATIENCE, View, bpf_or_skip, fixture, own_copy};
use serde_json::Value;

#[test]
fn top_counts_from_when_it_came() {
    let Some(_turn) = bpf_or_skip("top_counts_from_when_it_came") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    app.obey("launch 500 100 before");
    let pid = app.pid();
    let view = View::start(&["top", "--json", "--pid", &pid.to_string()]);
    assert_eq!(app.semaphores(), [1, 1, 0, 1]);
    app.obey("launch 200 100 during");
    app.obey("seen 800");
    let (out, _) = view.end();
    let json: Value = serde_json::from_str(&out).unwrap();
    let process = &json["processes"][0];
    assert_eq!(process["pid"], pid);
    assert_eq!(
        (&process["launches_told"], &process["launches_seen"]),
        (&200.into(), &1000.into())
    );
    assert_eq!(process["kernels"].as_array().unwrap().len(), 1);
    app.await_semaphores(&[0, 0, 0, 0]);
}

#[test]
fn top_waits_for_the_records_of_its_launches_and_for_no_others() {
    const TEST: &str = "top_waits_for_the_records_of_its_launches_and_for_no_others";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let mut slow = App::start(&fixture().lib);
    let mut quick = App::start(&fixture().lib);
    let pids = [slow.pid().to_string(), quick.pid().to_string()];
    let both = ["top", "--pid", &pids[0], "--pid", &pids[1]];
    let view = View::start(&[&both[..], &["--json"]].concat());
    slow.obey("unmatched 5");
    let interrupted = Instant::now();
    view.interrupt();
    // Most of it while the records of the others are waited for.
    for _ in 0..20 {
        quick.obey("launch 7 100 k");
        std::thread::sleep(Duration::from_millis(20));
    }
    slow.obey("matched 5 k");
    let in_time = interrupted.elapsed() < Duration::from_millis(1500);
    let json: Value = serde_json::from_str(&view.wait()).unwrap();
    let of = |pid: u32, field: &str| {
        let mut all = json["processes"].as_array().unwrap().iter();
        let process = all.find(|p| p["pid"] == pid).unwrap();
        process[field].as_u64().unwrap()
    };
    let told = |pid| ["launches_told", "records", "outstanding"].map(|field| of(pid, field));
    // Records are not waited for longer than it takes the library.
    let whole = |[launches, records, outstanding]: [u64; 3]| {
        launches == records + outstanding && (outstanding == 0 || !in_time)
    };
    let (slow_told, quick_told) = (told(slow.pid()), told(quick.pid()));
    assert!(slow_told[0] == 5 && whole(slow_told), "{json}");
    // Whichever launch was the last one that was taken, no record of a later one was.
    assert!(quick_told[0] <= 140 && whole(quick_told), "{json}");

    let view = View::start(&both);
    slow.obey("unmatched 2");
    let (out, _) = view.end();
    assert!(out.contains("2 launched without a record so far"), "{out}");
    // Ends by itself.
    View::start(&[&both[..], &["--once"]].concat()).wait();
}

#[test]
fn top_and_the_bpftrace_view_together() {
    let Some(_turn) = bpf_or_skip("top_and_the_bpftrace_view_together") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../parcagpu.bt");
    let mut bpftrace = Command::new("bpftrace")
        .arg(script)
        .arg(&copy)
        .stdout(Stdio::piped())
        .spawn()
        .expect("bpftrace is not there");
    app.await_semaphores(&[1, 1, 0, 1]);
    let mut out = BufReader::new(bpftrace.stdout.take().unwrap());
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let printed = Arc::clone(&lines);
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        while out.read_line(&mut line).unwrap() > 0 {
            printed.lock().unwrap().push(std::mem::take(&mut line));
        }
    });
    let pid = app.pid();
    let told = |probe: &str, text: &str| {
        let head = format!("{pid} {pid} {probe} ");
        let lines = lines.lock().unwrap();
        let here = |l: &&String| l.starts_with(&head) && l.contains(text);
        lines.iter().filter(here).count()
    };
    let await_told = |probe: &str, text: &str, count: usize| {
        let began = Instant::now();
        while told(probe, text) < count {
            let lines = lines.lock().unwrap();
            assert!(began.elapsed() < PATIENCE, "{probe} {text}: {lines:?}");
            drop(lines);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // A semaphore rises before the consumer's program is in place.
    let probes = parcagpu_abi::probe::ALL
        .iter()
        .filter(|p| **p != parcagpu_abi::probe::KERNEL_EXECUTED);
    let began = Instant::now();
    while probes.clone().any(|p| told(p.name, "") == 0) {
        let lines = lines.lock().unwrap();
        assert!(began.elapsed() < PATIENCE, "not attached: {lines:?}");
        drop(lines);
        app.obey("all");
        std::thread::sleep(Duration::from_millis(100));
    }
    let view = View::start(&["top", "--json", "--pid", &pid.to_string()]);
    app.obey("launch 130 100 both");
    let (top, _) = view.end();
    // One leaves, the other goes on.
    app.await_semaphores(&[1, 1, 0, 1]);
    app.obey("launch 10 100 alone");
    // bpftrace may throw away what it has not printed when it is interrupted.
    await_told("activity_batch", "ns=100 both", 130);
    await_told("activity_batch", "ns=100 alone", 10);
    // And it forgets an interrupt that comes while it prints: then it gets another.
    let began = Instant::now();
    while bpftrace.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "bpftrace goes on");
        // SAFETY: the child is ours and was not waited for.
        unsafe { libc::kill(bpftrace.id().cast_signed(), libc::SIGINT) };
        std::thread::sleep(Duration::from_millis(500));
    }
    app.await_semaphores(&[0, 0, 0, 0]);
    reader.join().unwrap();
    assert_eq!(told("activity_batch", "ns=100 both"), 130);
    assert_eq!(told("activity_batch", "ns=100 alone"), 10);
    assert!(told("error", "cupti: something \"broke\"") > 0);
    let json: Value = serde_json::from_str(&top).unwrap();
    assert_eq!(json["processes"][0]["records"], 130);
}
