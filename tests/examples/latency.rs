//! How soon consumers are served, and what the library holds up: the times that are promised, next to what was
//! measured. On the simulated driver; needs the rights that BPF needs. Started by `scripts/bench --latency`.
//!
//!     latency [--rounds N] [--check]
//!
//! `--check`: exit status 1 when nine of ten rounds are not within a promise.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::agent::{Agent, Kind, Options};
use parcagpu_tests::block::{self, wait_state};
use parcagpu_tests::hosts::{Case, compile, engine};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const LIMIT: Duration = Duration::from_secs(10);

/// A promise, and how it was kept.
struct Row {
    what: &'static str,
    promised: Duration,
    /// Of `times`, in order: the share that is to be within the promise.
    share: f64,
    times: Vec<Duration>,
}

impl Row {
    fn new(what: &'static str, promised: Duration, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self {
            what,
            promised,
            share: 0.9,
            times,
        }
    }

    /// A cost beside which a busy machine has others: what it is in the middle counts.
    fn of_the_median(self) -> Self {
        Self { share: 0.5, ..self }
    }

    fn at(&self, share: f64) -> Duration {
        let last = self.times.len() - 1;
        self.times[(last as f64 * share).round() as usize]
    }

    fn is_kept(&self) -> bool {
        self.at(self.share) <= self.promised
    }

    fn print(&self) {
        let ms = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
        let kept = if self.is_kept() { "" } else { " MISSED" };
        println!(
            "| {} | {} | {} | {} | {}{kept} |",
            self.what,
            ms(self.at(0.5)),
            ms(self.at(0.9)),
            ms(self.at(1.0)),
            ms(self.promised)
        );
    }
}

fn took(act: impl FnOnce()) -> Duration {
    let began = Instant::now();
    act();
    began.elapsed()
}

fn agent(lab: &Lab) -> Agent {
    Agent::parca(&lab.library(), -1, Options::default()).expect("it attaches")
}

/// A consumer comes and goes in a program that launches.
fn attach_and_leave(rounds: usize) -> [Row; 2] {
    let lab = Lab::new();
    let words = "init say up thread spaced 500 36000 end gate";
    let mut host = lab.host(Mode::Preload, words).start();
    host.wait_stdout("up");
    let (pid, library) = (host.pid(), lab.library());
    let (mut served, mut off) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let consumer = agent(&lab);
        served.push(took(|| wait_state(pid, &library, State::Active)));
        drop(consumer);
        // The kernel takes its time to detach.
        block::wait_semaphores(pid, &library, 0);
        off.push(took(|| wait_state(pid, &library, State::Dormant)));
    }
    [
        Row::new("attached until active", Duration::from_millis(200), served),
        Row::new("left until all is off", Duration::from_secs(1), off),
    ]
}

/// A program that launched and then idles: age of its last record when that is told.
fn record(rounds: usize) -> Row {
    let lab = Lab::new();
    let agent = agent(&lab);
    let ages = (0..rounds).map(|_| {
        let words = "init launch 20 sync now gate";
        let mut host = lab
            .host(Mode::Preload, words)
            .env("PARCAGPU_RATE_LIMIT", "1e9")
            .start();
        let pid = host.pid();
        host.wait_gate(1);
        let last = || {
            let records = agent.of(Kind::Record);
            let own = records.iter().filter(|e| e.pid == pid);
            let times: Vec<u64> = own.map(|e| e.time_ns).collect();
            (times.len() == 20).then(|| times.into_iter().max().unwrap_or_default())
        };
        agent.poll_until(|_| last().is_some());
        let stdout = host.stdout();
        let line = stdout.lines().find_map(|l| l.strip_prefix("now "));
        let end: u64 = line.and_then(|n| n.parse().ok()).expect("a time");
        host.open_gate(1);
        host.wait(LIMIT).ok();
        Duration::from_nanos(last().expect("twenty records").saturating_sub(end))
    });
    let ages = ages.collect();
    Row::new("finished until told", Duration::from_secs(1), ages)
}

/// The end of a program with a consumer and with records to deliver.
fn exit(rounds: usize) -> Row {
    let lab = Lab::new();
    let _consumer = agent(&lab);
    let end = |mode| {
        let mut host = lab.host(mode, "init launch 5 sync gate").start();
        host.wait_gate(1);
        took(|| {
            host.open_gate(1);
            host.wait(LIMIT).ok();
        })
    };
    let ends = (0..rounds).map(|_| end(Mode::Preload).saturating_sub(end(Mode::Bare)));
    Row::new(
        "the end, later than bare",
        Duration::from_millis(100),
        ends.collect(),
    )
}

/// Start to end of a program that does nothing.
fn start(preload: Option<&Path>) -> Duration {
    let mut command = Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null());
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    took(|| assert!(command.status().expect("it starts").success()))
}

/// A program without CUDA.
fn without_cuda(rounds: usize) -> Row {
    let lab = Lab::new();
    let library = lab.library();
    let more = (0..10 * rounds).map(|i| {
        // Which of a pair comes first changes, as the second one may find warmer caches.
        let (bare, with) = if i % 2 == 0 {
            (start(None), start(Some(&library)))
        } else {
            let with = start(Some(&library));
            (start(None), with)
        };
        with.saturating_sub(bare)
    });
    let more = more.collect();
    Row::new(
        "a start without CUDA, later than bare",
        Duration::from_micros(500),
        more,
    )
    .of_the_median()
}

/// Hooks are put into the driver, as the log says.
fn hooks(rounds: usize) -> Row {
    let lab = Lab::new();
    let ways = compile(&lab, "interposer/ways.c", "ways", &[]);
    let driver = parcagpu_tests::artefacts::sim().join("libcuda.so.1");
    let words = format!("open {}", driver.display());
    let times = (0..rounds).map(|_| {
        let case = Case::new(&lab, &ways, &words).with("PARCAGPU_DEBUG", "1");
        let ended = case.build(Mode::Preload).run(LIMIT).ok();
        let line = ended
            .stderr
            .lines()
            .find(|l| l.contains("hooked by engine"));
        let time = line.and_then(|l| l.rsplit(' ').next()).and_then(parse);
        time.unwrap_or_else(|| panic!("no word of hooks: {}", ended.stderr))
    });
    let promised = match engine().as_str() {
        "gum" => Duration::from_millis(1),
        _ => Duration::from_millis(25),
    };
    Row::new("hooks are put in", promised, times.collect()).of_the_median()
}

/// `Duration` as its `Debug` prints it.
fn parse(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = text[..unit].parse().ok()?;
    let seconds = match &text[unit..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    Some(Duration::from_secs_f64(number * seconds))
}

fn main() -> ExitCode {
    let (mut rounds, mut check) = (20, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--check" => check = true,
            "--rounds" => match arguments.next().and_then(|n| n.parse().ok()) {
                Some(n) if n > 0 => rounds = n,
                _ => return wrong_use("a number is missing after --rounds"),
            },
            other => return wrong_use(&format!("no such option: {other}")),
        }
    }
    if !need::bpf("latency") {
        return ExitCode::from(2);
    }
    println!("simulated driver, {rounds} rounds, ms\n");
    println!("| | median | 90 % | all | promised |\n|---|---|---|---|---|");
    let [served, off] = attach_and_leave(rounds);
    let rows = [
        served,
        off,
        record(rounds),
        exit(rounds),
        without_cuda(rounds),
        hooks(rounds),
    ];
    rows.iter().for_each(Row::print);
    match check && !rows.iter().all(Row::is_kept) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn wrong_use(why: &str) -> ExitCode {
    eprintln!("latency: {why}");
    ExitCode::from(2)
}
