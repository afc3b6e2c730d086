//! Many events a second: what was sent was received or is counted as dropped.
//!
//! `scripts/bench --load` runs the same at full size with the released command, next to a reader that only
//! counts (`examples/ring_reader.rs`), and prints what was received:
//! `PARCAGPU_LOAD=RECORDS_A_SECOND,SECONDS,COMMAND,READER`.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{App, View, bpf_or_skip, fixture};
use parcagpu_cli::recording::reader;

/// Ring buffer of all consumers, MiB.
const RING: &str = "16";

struct Size {
    rate: u32,
    milliseconds: u32,
    command: PathBuf,
    /// `None`: not the full size.
    reader: Option<PathBuf>,
}

impl Size {
    fn wanted() -> Self {
        let text = std::env::var("PARCAGPU_LOAD").unwrap_or_default();
        let words: Vec<&str> = text.split(',').collect();
        match words[..] {
            [rate, seconds, command, reader] => Self {
                rate: rate.parse().unwrap(),
                milliseconds: seconds.parse::<u32>().unwrap() * 1000,
                command: command.into(),
                reader: Some(reader.into()),
            },
            _ => Self {
                rate: 200_000,
                milliseconds: 700,
                command: common::PARCAGPU.into(),
                reader: None,
            },
        }
    }
}

/// What an app sent, and for how long, s.
fn sent(said: &str) -> (u64, f64) {
    let words: Vec<&str> = said.split(' ').collect();
    let [_, sent, _, seconds] = words[..] else {
        panic!("{said}")
    };
    (sent.parse().unwrap(), seconds.parse().unwrap())
}

/// Largest resident memory of a process so far, MB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kb = line.unwrap().trim().trim_end_matches(" kB");
    kb.parse::<u64>().unwrap() / 1000
}

/// Time on a CPU of a process so far, ns.
fn cpu_ns(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|n| n.parse::<u64>().unwrap()).sum();
    ticks * 10_000_000
}

/// What a consumer cost.
#[derive(Clone, Copy)]
struct Cost {
    memory: u64,
    cpu_ns: u64,
}

impl Cost {
    fn of(pid: u32) -> Self {
        Self {
            memory: peak(pid),
            cpu_ns: cpu_ns(pid),
        }
    }
}

fn report(what: &str, (sent, seconds): (u64, f64), received: u64, dropped: u64, cost: Cost) {
    assert_eq!(
        sent,
        received + dropped,
        "{what}: each is received or dropped"
    );
    println!(
        "{what:<42} {:>10.0} records/s sent, {received} of {sent} received ({:.2} %), {dropped} dropped, {} MB, {} ns of CPU each",
        sent as f64 / seconds,
        100.0 * received as f64 / sent as f64,
        cost.memory,
        cost.cpu_ns / received.max(1),
    );
}

/// Runs `parcagpu record` while the app obeys; kernels and losses in the file.
fn record(size: &Size, lib: &Path, order: &str) -> ((u64, f64), u64, u64, Cost) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("load.pgpu");
    let mut command = Command::new(&size.command);
    command
        .args(["record", "--ring-mib", RING, "-o"])
        .arg(&file);
    let view = View::of(command.arg("--lib").arg(lib));
    let mut app = App::start(lib);
    app.await_consumer();
    let said = app.obey(order);
    let cost = Cost::of(view.pid());
    view.end();
    let r = reader::read(&file).unwrap();
    assert!(!r.truncated);
    let dropped = r.losses.iter().map(|(_, n)| n).sum();
    (sent(&said), r.kernels.len() as u64, dropped, cost)
}

#[test]
fn every_record_sent_is_received_or_counted_as_dropped() {
    let Some(_turn) = bpf_or_skip("every_record_sent_is_received_or_counted_as_dropped") else {
        return;
    };
    let size = Size::wanted();
    let flood = format!("flood {} {}", size.rate, size.milliseconds);
    let (sent_, received, dropped, cost) = record(&size, &fixture().lib, &flood);
    report(
        "activity_batch, parcagpu record",
        sent_,
        received,
        dropped,
        cost,
    );
    if let Some(reader) = &size.reader {
        let mut command = Command::new(reader);
        let view = View::of(command.arg(&fixture().lib).arg(RING));
        let mut app = App::start(&fixture().lib);
        // It was attached before the app began.
        let said = app.obey(&flood);
        let cost = Cost::of(view.pid());
        let (_, err) = view.end();
        let words: Vec<&str> = err.trim().split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        report(
            "activity_batch, bare ring-buffer reader",
            sent(&said),
            number(1),
            number(3),
            cost,
        );
    }
    let singles = format!("singles {}", (size.milliseconds / 5).max(200));
    let (sent_, received, dropped, cost) = record(&size, &fixture().lib_without_batch, &singles);
    report(
        "kernel_executed flat out, parcagpu record",
        sent_,
        received,
        dropped,
        cost,
    );
}
