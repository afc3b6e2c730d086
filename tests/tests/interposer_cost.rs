//! What the hooks cost a program at its start, and when the driver is loaded.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parcagpu_tests::artefacts::sim;
use parcagpu_tests::hosts::{Case, compile, engine, lab};
use parcagpu_tests::lab::Mode;

const PAIRS: usize = 200;
/// For a program without CUDA.
const START: Duration = Duration::from_micros(500);

fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Start to end of a program that does nothing, in ns.
fn start(preload: Option<&std::path::Path>) -> i128 {
    let mut command = Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null());
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let began = Instant::now();
    let status = command.status().expect("it starts");
    let took = began.elapsed();
    assert!(status.success());
    took.as_nanos().cast_signed()
}

/// A program without CUDA starts within half a millisecond of bare: median of 200 pairs.
#[test]
fn a_program_without_cuda() {
    let lab = lab();
    let library = lab.library();
    for warm_up in [None, Some(library.as_path())] {
        start(warm_up);
    }
    let differences: Vec<i128> = (0..PAIRS)
        .map(|i| {
            // Which of a pair comes first changes, as the second one may find warmer caches.
            if i % 2 == 0 {
                let bare = start(None);
                start(Some(&library)) - bare
            } else {
                let with = start(Some(&library));
                with - start(None)
            }
        })
        .collect();
    let median = median(differences);
    println!("start-up: {} us more than bare", median / 1000);
    assert!(
        median < START.as_nanos().cast_signed(),
        "{} us more than bare",
        median / 1000
    );
}

/// Hooks are in within 1 ms by gum and 25 ms by detour: best of ten, since others use the machine.
#[test]
fn installation() {
    let lab = lab();
    let ways = compile(&lab, "interposer/ways.c", "ways", &[]);
    let words = format!("open {}", sim().join("libcuda.so.1").display());
    let limit = match engine().as_str() {
        "gum" => Duration::from_millis(1),
        _ => Duration::from_millis(25),
    };
    let best = (0..10)
        .map(|_| {
            let ended = Case::new(&lab, &ways, &words)
                .with("PARCAGPU_DEBUG", "1")
                .build(Mode::Preload)
                .run(Duration::from_secs(10))
                .ok();
            let line = ended
                .stderr
                .lines()
                .find(|l| l.contains("hooked by engine"))
                .unwrap_or_else(|| panic!("no word of hooks: {}", ended.stderr));
            let text = line.rsplit(' ').next().expect("a time");
            let (number, unit) = text.split_at(
                text.find(|c: char| c.is_alphabetic() || c == 'µ')
                    .expect("a unit"),
            );
            let number: f64 = number.parse().expect("a number");
            Duration::from_secs_f64(match unit {
                "ms" => number / 1e3,
                "µs" => number / 1e6,
                "ns" => number / 1e9,
                _ => number,
            })
        })
        .min()
        .expect("ten runs");
    println!("hooks in within {best:?}");
    assert!(best < limit, "{best:?}, not {limit:?}");
}
