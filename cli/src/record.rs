//! `parcagpu record`: keeps what the probes say in a file.

use std::cell::RefCell;
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parcagpu_abi::probe;

use crate::accounts::Accounts;
use crate::events::Event;
use crate::ledger::Ledger;
use crate::options::{Chosen, KeepOptions, RecordOptions, RunOptions};
use crate::recorder::{Counts, Keep, NO_STACK, Recorder, no_stack, output};
use crate::refusal::refuse;
use crate::report::Format;
use crate::report::otlp::Endpoint;
use crate::session::{Session, Sink};
use crate::text::{count, plural};
use crate::watch::{self, Extent};
use crate::{report, run, signals};

/// Size of the ring buffer unless told otherwise, MiB: launches with stacks are large.
const RING_MIB: u32 = 32;
/// What processes say about themselves is noted this often.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How long the end waits for stacks to be resolved and cubins to be read.
const PATIENCE: Duration = Duration::from_secs(30);
/// From then on it says why it waits.
const SILENCE: Duration = Duration::from_secs(1);

/// Several that take the same events.
pub struct Fan(pub Vec<Rc<RefCell<dyn Sink>>>);

impl Sink for Fan {
    fn event(&mut self, event: &Event<'_>) {
        for sink in &self.0 {
            sink.borrow_mut().event(event);
        }
    }
}

/// A recorder that can be taken out of where events come from.
struct Reel(Option<Recorder<File>>);

impl Sink for Reel {
    fn event(&mut self, event: &Event<'_>) {
        if let Some(recorder) = &mut self.0 {
            recorder.event(event);
        }
    }
}

/// A recording in the making.
pub struct Tape {
    path: PathBuf,
    reel: Rc<RefCell<Reel>>,
    next_notes: Instant,
    formats: Vec<Format>,
    endpoint: Option<Endpoint>,
}

impl Tape {
    /// Creates the file and begins.
    pub fn create(path: &Path, options: &KeepOptions, command: String) -> Result<Self> {
        report::check_beside(path, &options.format, options.force)?;
        let file = output::create(path, options.force)?;
        let keep = Keep {
            stacks: !options.no_stacks,
            cubins: options.cubins,
        };
        let recorder = Recorder::new(file, command, keep)
            .with_context(|| format!("failed to write {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            reel: Rc::new(RefCell::new(Reel(Some(recorder)))),
            next_notes: Instant::now() + NOTE_EVERY,
            formats: options.format.clone(),
            endpoint: options.otlp.clone(),
        })
    }

    /// Where events go.
    pub fn sink(&self) -> Rc<RefCell<dyn Sink>> {
        Rc::<RefCell<Reel>>::clone(&self.reel)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Recorder<File>) -> T) -> T {
        let mut reel = self.reel.borrow_mut();
        act(reel.0.as_mut().expect("only the end takes it out"))
    }

    /// Between events; `ledger` is up to date.
    pub fn tick(&mut self, session: &Session, ledger: &Ledger) -> Result<()> {
        let notes_due = Instant::now() >= self.next_notes;
        if notes_due {
            self.next_notes = Instant::now() + NOTE_EVERY;
        }
        let written = self.with(|recorder| {
            if notes_due {
                recorder.say_notes(session, ledger);
            }
            recorder.tick()
        });
        written.with_context(|| format!("failed to write {}", self.path.display()))
    }

    /// One line for people.
    fn progress(&self) -> String {
        self.with(|r| {
            let counts = r.counts();
            format!(
                "{}, {}, {}, {}",
                plural(counts.launches, "launch"),
                plural(counts.kernels, "kernel"),
                plural(r.processes() as u64, "process"),
                size(r.bytes())
            )
        })
    }

    /// Closes the file and says what is in it. All events were taken.
    pub fn end(self, session: &Session, ledger: &Ledger) -> Result<()> {
        self.wait()?;
        self.with(|recorder| {
            recorder.give_up_stacks();
            recorder.say_notes(session, ledger);
        });
        let summary = self.progress();
        let counts = self.with(|recorder| recorder.counts());
        let gaps = self.with(|recorder| recorder.gaps());
        let recorder = self.reel.borrow_mut().0.take();
        let shown = self.path.display();
        let recorder = recorder.expect("taken out here only");
        let file = recorder
            .finish()
            .with_context(|| format!("failed to write {shown}"))?;
        let length = file.metadata().map_or(0, |m| m.len());
        eprintln!(
            "recorded {} ({}, {}, {}) in {shown}, {}",
            summary.rsplit_once(", ").map_or("", |(head, _)| head),
            plural(counts.pc_samples, "PC sample"),
            plural(counts.nvtx, "NVTX event"),
            plural(counts.errors, "error"),
            size(length),
        );
        for line in gap_lines(&gaps, counts.launches) {
            eprintln!("{line}");
        }
        let lost = crate::trace::loss_line(session);
        if !lost.is_empty() {
            eprintln!("{lost}");
        }
        report::make_beside(&self.path, &self.formats, self.endpoint.as_ref())
    }

    /// Waits for stacks and cubins that are worked on, within bounds; Ctrl-C ends the waiting.
    fn wait(&self) -> Result<()> {
        let (began, signals) = (Instant::now(), signals::count());
        let mut told = false;
        loop {
            let (waiting, written) = self.with(|r| (r.waiting(), r.tick()));
            written.with_context(|| format!("failed to write {}", self.path.display()))?;
            if waiting == 0 {
                return Ok(());
            }
            if began.elapsed() > PATIENCE || signals::count() > signals {
                eprintln!(
                    "parcagpu: not resolved in time: {}",
                    plural(waiting as u64, "stack or cubin")
                );
                return Ok(());
            }
            if began.elapsed() > SILENCE && !told {
                told = true;
                eprintln!(
                    "resolving {}; Ctrl-C leaves them out",
                    plural(waiting as u64, "stack")
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Tape {
    /// Without an end there was an error; where nothing was recorded, no file is better than an empty one.
    fn drop(&mut self) {
        let reel = self.reel.borrow();
        if reel
            .0
            .as_ref()
            .is_some_and(|r| r.counts() == Counts::default())
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What is less than it could be, as the report says it; `of` launches were sampled.
fn gap_lines(gaps: &[(String, u64)], of: u64) -> Vec<String> {
    let (stackless, others): (Vec<_>, Vec<_>) = gaps
        .iter()
        .filter(|(_, n)| *n > 0)
        .partition(|(what, _)| what.starts_with(NO_STACK));
    let others = others
        .iter()
        .map(|(what, n)| format!("{} {what}", count(*n)));
    let others: Vec<String> = others.collect();
    let mut lines = Vec::new();
    if !others.is_empty() {
        lines.push(others.join(", "));
    }
    let launches = stackless.iter().map(|(_, n)| *n).sum();
    if launches > 0 {
        lines.push(no_stack(launches, of, gaps));
    }
    lines
}

/// A size for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{} bytes", count(bytes)),
        10_000..10_000_000 => format!("{} kB", count(bytes / 1000)),
        _ => format!("{} MB", count(bytes / 1_000_000)),
    }
}

/// `parcagpu record`
pub fn record(options: RecordOptions) -> Result<ExitCode> {
    if !options.command.is_empty() {
        return record_command(options);
    }
    signals::install();
    let mut tape = Tape::create(
        &options.output,
        &options.keep,
        chosen(&options.scope.chosen),
    )?;
    let (session, ledger, accounts) = record_processes(&mut tape, &options)?;
    tape.end(&session, &ledger)?;
    for line in watch::coverage_lines(&accounts.borrow(), &ledger) {
        eprintln!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

type Recorded = (Session, Ledger, Rc<RefCell<Accounts>>);

fn record_processes(tape: &mut Tape, options: &RecordOptions) -> Result<Recorded> {
    let accounts = Rc::new(RefCell::new(Accounts::that_count()));
    let counted: Rc<RefCell<dyn Sink>> = Rc::<RefCell<Accounts>>::clone(&accounts);
    let sink = Rc::new(RefCell::new(Fan(vec![tape.sink(), counted])));
    let extent = Extent {
        probes: probe::ALL.iter().map(|p| p.name).collect(),
        kernel_executed_too: false,
        stacks: !options.keep.no_stacks,
        ring_mib: RING_MIB,
    };
    let (mut session, mut ledger) = watch::start_with(&options.scope, extent, sink)?;
    let live = std::io::stderr().is_terminal();
    let mut next = Instant::now() + watch::REFRESH;
    let mut failed = Ok(());
    watch::pump(&mut session, options.scope.seconds, |session| {
        let due = Instant::now() >= next;
        if due {
            next = Instant::now() + watch::REFRESH;
            ledger.glance(session);
        }
        failed = tape.tick(session, &ledger);
        if due && live {
            eprint!("\r\x1b[K{}   Ctrl-C ends", tape.progress());
        }
        failed.is_ok()
    })?;
    if live {
        eprint!("\r\x1b[K");
    }
    failed?;
    ledger.refresh(&session);
    watch::finish(&mut session)?;
    ledger.refresh(&session);
    ledger.settle(&accounts.borrow(), &session);
    Ok((session, ledger, accounts))
}

/// What the file says about whom it is.
fn chosen(chosen: &Chosen) -> String {
    let pids = chosen.pid.iter().map(|pid| format!("--pid {pid}"));
    let words = [
        ("--comm", &chosen.comm),
        ("--cgroup", &chosen.cgroup),
        ("--container", &chosen.container),
    ];
    let words = words
        .into_iter()
        .flat_map(|(option, values)| values.iter().map(move |value| format!("{option} {value}")));
    let all: Vec<String> = pids.chain(words).collect();
    if all.is_empty() {
        return "all processes".to_owned();
    }
    all.join(" ")
}

fn record_command(options: RecordOptions) -> Result<ExitCode> {
    let scope = options.scope;
    if chosen(&scope.chosen) != "all processes" || scope.seconds.is_some() {
        return Err(refuse(
            "a command was given: it chooses the processes, and they are recorded until it ends",
        ));
    }
    let options = RunOptions {
        rate: options.rate,
        graph_rate: options.graph_rate,
        pc: options.pc,
        trace: false,
        top: false,
        every: None,
        lib: scope.lib,
        json: false,
        raw_names: false,
        output: None,
        record: Some(options.output),
        keep: options.keep,
        ring_mib: scope.ring_mib.unwrap_or(RING_MIB),
        command: options.command,
    };
    run::run_showing(&options, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_recording_is_of() {
        assert_eq!(chosen(&Chosen::default()), "all processes");
        let some = Chosen {
            pid: vec![3, 4],
            comm: vec!["python".to_owned()],
            ..Chosen::default()
        };
        assert_eq!(chosen(&some), "--pid 3 --pid 4 --comm python");
    }

    #[test]
    fn sizes() {
        assert_eq!(size(9_999), "9,999 bytes");
        assert_eq!(size(12_345), "12 kB");
        assert_eq!(size(1_234_567_890), "1,234 MB");
    }
}
