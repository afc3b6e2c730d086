//! What a launch call costs more than bare, by criterion, on the simulated driver.
//!
//! One process has one configuration, so each state runs in a process of its own: this program starts
//! itself once per state. `benches/README.md` has the figures and how they were made.

mod common;

use std::cell::Cell;
use std::time::{Duration, Instant};

use common::{Buffer, Program, RECORDS};
use criterion::Criterion;

/// Samples per second and thread in the states that sample nothing, what they must, and everything.
const NOTHING: f64 = 1e-6;
const SOME: f64 = 1000.0;
const EVERYTHING: f64 = 1e9;
const STATE: &str = "PARCAGPU_BENCH_STATE";
const STATES: [&str; 7] = [
    "bare",
    "idle",
    "refused",
    "foreign",
    "sampled",
    "everything",
    "records",
];

fn main() {
    if let Ok(state) = std::env::var(STATE) {
        // SAFETY: no other thread is there yet; and it is no variable of the library.
        unsafe { std::env::remove_var(STATE) };
        return measure(&state);
    }
    let program = std::env::current_exe().expect("this program");
    for state in STATES {
        let status = std::process::Command::new(&program)
            .args(std::env::args_os().skip(1))
            .env(STATE, state)
            // Looked at when the library is loaded.
            .env("PARCAGPU_DISABLE", if state == "bare" { "1" } else { "0" })
            .status()
            .expect("this program again");
        assert!(status.success(), "{state}: {status}");
    }
}

fn measure(state: &str) {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let rate = match state {
        "sampled" => SOME,
        "everything" => EVERYTHING,
        _ => NOTHING,
    };
    let program = Program::start(rate, state == "bare");
    if !matches!(state, "bare" | "idle") {
        let session = program.listen();
        if state == "foreign" {
            // As if another thread had a sampled launch open all the time: CUPTI calls back for ours.
            session
                .sampler
                .switch
                .join(session)
                .expect("a switch to join");
        }
    }
    if state == "records" {
        for (name, announced) in [("unmatched", false), ("matched", true)] {
            criterion.bench_function(&format!("records/{name}, {RECORDS}"), |bencher| {
                bencher.iter_custom(|n| walks(n, announced));
            });
        }
    } else if state == "sampled" {
        let made = Cell::new(0);
        criterion.bench_function("launch/sampled", |bencher| {
            bencher.iter_custom(|n| one_by_one(&program, n, &made));
        });
    } else {
        criterion.bench_function(&format!("launch/{state}"), |bencher| {
            bencher.iter_custom(|n| in_chunks(&program, n, || program.launch()));
        });
        criterion.bench_function(&format!("graph/{state}"), |bencher| {
            bencher.iter_custom(|n| in_chunks(&program, n, || program.launch_graph()));
        });
    }
    program.synchronize();
}

/// The time of `n` launches, none of which waits for the simulated GPU: its queue is short.
fn in_chunks(program: &Program, n: u64, launch: impl Fn()) -> Duration {
    let (mut total, mut left) = (Duration::ZERO, n);
    while left > 0 {
        let chunk = left.min(64);
        program.synchronize();
        let began = Instant::now();
        for _ in 0..chunk {
            launch();
        }
        total += began.elapsed();
        left -= chunk;
    }
    total
}

/// The time of `n` buffers of records.
fn walks(n: u64, announced: bool) -> Duration {
    let session = parcagpu::session::get().expect("an active session");
    let (mut total, mut id) = (Duration::ZERO, 1 << 30);
    for _ in 0..n {
        let buffer = Buffer::full(session, id, announced);
        id += RECORDS as u32;
        let began = Instant::now();
        buffer.complete();
        total += began.elapsed();
    }
    total
}

/// The time of `n` launches, every one of which is sampled with its own switching on and off: fewer than tokens
/// come, and so few in a second that activity is not left on. `made`: launches so far.
fn one_by_one(program: &Program, n: u64, made: &Cell<u32>) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..n {
        if made.replace(made.get() + 1).is_multiple_of(40) {
            std::thread::sleep(Duration::from_secs(1));
        }
        let began = Instant::now();
        program.launch();
        total += began.elapsed();
    }
    total
}
