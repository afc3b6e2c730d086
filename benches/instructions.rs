//! The same states as `launch`, counted: run under callgrind, which counts the instructions of
//! [`measured`] alone. `scripts/bench --hot-path` does so.
//!
//!     instructions STATE launch|graph|records COUNT

mod common;

use common::{Buffer, Program, RECORDS};

/// Fits the simulated GPU's queue.
const CHUNK: usize = 64;

/// What is counted; its own loop is two instructions or so a turn.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn measured(program: &Program, graph: bool, n: usize) {
    for _ in 0..n {
        if graph {
            program.launch_graph();
        } else {
            program.launch();
        }
    }
}

/// What is counted where records are walked.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn measured_walk(buffer: Buffer) {
    buffer.complete();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [state, kind, count] = &arguments[..] else {
        // `cargo bench` runs this without arguments of ours.
        return;
    };
    let Ok(count) = count.parse::<usize>() else {
        return;
    };
    let rate = match state.as_str() {
        // Below the rate from which activity is left on.
        "sampled" => 50_000.0,
        "everything" => 1e9,
        _ => 1e-6,
    };
    let program = Program::start(rate, state == "bare");
    if kind == "records" {
        let session = program.listen();
        for buffer in 0..count.div_ceil(RECORDS) {
            let first = 1_000_000 + (buffer * RECORDS) as u32;
            measured_walk(Buffer::full(session, first, state == "matched"));
        }
        return;
    }
    if !matches!(state.as_str(), "bare" | "idle") {
        let session = program.listen();
        if state == "foreign" {
            session
                .sampler
                .switch
                .join(session)
                .expect("a switch to join");
        }
    }
    // What happens once has happened.
    for _ in 0..2 {
        program.launch();
        program.launch_graph();
    }
    program.synchronize();
    // Long enough for a bucket to fill up.
    std::thread::sleep(std::time::Duration::from_millis(200));
    for _ in 0..count.div_ceil(CHUNK) {
        measured(&program, kind == "graph", CHUNK);
        program.synchronize();
    }
}
