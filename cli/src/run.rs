//! `parcagpu run`: starts a command with the library preloaded and shows what it did.
//!
//! The command's input, output and exit status stay its own; what we have to say goes to stderr or
//! to `--output`, at the end (the table) or as it comes (the trace).

mod view;

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::choice::Choice;
use crate::discover::{self, Found, Library};
use crate::family::Family;
use crate::library;
use crate::options::{KeepOptions, RunOptions};
use crate::preflight;
use crate::preload;
use crate::private_copy::PrivateCopy;
use crate::record::Tape;
use crate::refusal::{about_path, refuse};
use crate::session::{Session, Wanted};
use crate::signals;
use crate::watch;
use view::View;

const RATE_LIMIT: &str = "PARCAGPU_RATE_LIMIT";
const GRAPH_RATE_LIMIT: &str = "PARCAGPU_GRAPH_RATE_LIMIT";
const PC_SAMPLING_RATE: &str = "PARCAGPU_PC_SAMPLING_RATE";
const PC_HW_BUFFER_MB: &str = "PARCAGPU_PC_HW_BUFFER_MB";
/// More than any program launches.
const EVERY_LAUNCH: f64 = 1e9;
/// Of `--pc`: PC samples a second, and MiB of the program's memory; CUPTI's own choice takes 512 and begins late.
const PC_RATE: f64 = 1000.0;
const PC_BUFFER_MB: f64 = 32.0;
/// The command is looked at this often, so that its last words are known; at first more often: it may be short.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_AT_FIRST: Duration = Duration::from_millis(5);
const AT_FIRST: Duration = Duration::from_secs(1);

/// `parcagpu run`
pub fn run(options: &RunOptions) -> Result<ExitCode> {
    let keep = &options.keep;
    if options.record.is_none() && *keep != KeepOptions::default() {
        return Err(refuse(
            "--force, --no-stacks, --cubins and --format are about a recording: --record FILE is missing",
        ));
    }
    run_showing(options, true)
}

/// [`run`]; without `show` nothing is shown but what was recorded.
pub fn run_showing(options: &RunOptions, show: bool) -> Result<ExitCode> {
    if options.command.first().is_some_and(|word| word.is_empty()) {
        return Err(refuse("the command is an empty word"));
    }
    if let Some(word) = options.command.first()
        && word.to_string_lossy().starts_with('-')
    {
        return Err(refuse(format!(
            "{} is no option of run; the command goes behind --",
            word.display()
        )));
    }
    preflight::check()?;
    let original = library::required(options.lib.as_deref())?;
    let copy = PrivateCopy::of(original.path.as_ref())?;
    let library = library::open(copy.file())?;
    let out: Box<dyn Write> = match &options.output {
        Some(path) => Box::new(
            File::create(path)
                .map_err(|e| about_path(format!("cannot create {}", path.display()), e))?,
        ),
        None => Box::new(std::io::stderr()),
    };
    let tape = match &options.record {
        Some(path) => {
            let mut keep = options.keep.clone();
            keep.cubins |= options.pc;
            Some(Tape::create(path, &keep, words(&options.command))?)
        }
        None => None,
    };
    let family = Family::new(copy.file().display().to_string(), library.id);
    let mut view = View::new(options, out, show, tape, family)?;
    let mut session = Session::load(
        Wanted {
            probes: view.probes(),
            kernel_executed_too: false,
            choice: Choice::default(),
            discover: false,
            only: None,
            ring_bytes: options.ring_mib << 20,
            stacks: options.record.is_some() && !options.keep.no_stacks,
        },
        view.sink(),
    )?;
    session.attach_library(&library)?;
    signals::install();
    let mut child = match start(options, &copy) {
        Ok(child) => child,
        Err(e) => return Ok(not_started(options, &e)),
    };
    let status = wait(&mut child, &mut session, &mut view)?;
    // The last records may lie in the ring buffer while we detach.
    watch::finish(&mut session)?;
    view.end(&session);
    tidy(copy, &library, &mut session);
    Ok(match status {
        // A command that failed has the say.
        Some(status) => ExitCode::from(match code(status) {
            0 => view.lost.unwrap_or(0),
            code => code,
        }),
        None => {
            eprintln!(
                "parcagpu: interrupted twice: process {} is left running",
                child.id()
            );
            ExitCode::from(130)
        }
    })
}

/// The command, for people.
fn words(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|w| w.to_string_lossy()).collect();
    words.join(" ")
}

fn start(options: &RunOptions, copy: &PrivateCopy) -> std::io::Result<Child> {
    let mut preload = OsString::from(copy.file());
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|p| !p.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    // A tool that the user named keeps its place.
    let nvtx = std::env::var_os("NVTX_INJECTION64_PATH").unwrap_or_else(|| copy.file().into());
    Command::new(&options.command[0])
        .args(&options.command[1..])
        .env("LD_PRELOAD", preload)
        .env("NVTX_INJECTION64_PATH", nvtx)
        .envs(settings(options, |name| std::env::var_os(name)))
        .spawn()
}

/// Variables that the command gets beside its own: an option wins over what is set, what is set over our default.
fn settings(
    options: &RunOptions,
    set: impl Fn(&str) -> Option<OsString>,
) -> Vec<(&'static str, String)> {
    let rate = options.rate;
    let graph_rate = options.graph_rate.or(rate);
    let mut wanted = vec![
        (RATE_LIMIT, rate, EVERY_LAUNCH),
        (GRAPH_RATE_LIMIT, graph_rate, EVERY_LAUNCH),
    ];
    if options.pc {
        wanted.push((PC_SAMPLING_RATE, None, PC_RATE));
        wanted.push((PC_HW_BUFFER_MB, None, PC_BUFFER_MB));
    }
    let given = |name| set(name).is_some_and(|value| !value.is_empty());
    wanted
        .into_iter()
        .filter_map(|(name, option, default)| {
            let value = option.or((!given(name)).then_some(default))?;
            Some((name, value.to_string()))
        })
        .collect()
}

/// As shells and `env` do: 127 when the command is not there, 126 when it cannot be run.
fn not_started(options: &RunOptions, error: &std::io::Error) -> ExitCode {
    eprintln!(
        "parcagpu: failed to start {}: {error}",
        options.command[0].display()
    );
    ExitCode::from(if error.kind() == ErrorKind::NotFound {
        127
    } else {
        126
    })
}

fn code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    u8::try_from(code).unwrap_or(1)
}

/// Takes events until the command ends; `None` when the user does not want to wait for it.
fn wait(child: &mut Child, session: &mut Session, view: &mut View) -> Result<Option<ExitStatus>> {
    let mut forwarded = 0;
    let began = Instant::now();
    let mut next_look = began;
    let mut interrupts = 0;
    loop {
        let every = if began.elapsed() < AT_FIRST {
            LOOK_AT_FIRST
        } else {
            LOOK_EVERY
        };
        session.poll(every)?;
        // A flood of events must not make us look all the time.
        if Instant::now() >= next_look {
            next_look = Instant::now() + every;
            session.look_at(child.id());
            view.meet(child.id());
            view.tick(session);
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let now = signals::count();
        if now > forwarded {
            // On a busy machine there may be two between two looks.
            let new = now - std::mem::replace(&mut forwarded, now);
            match signals::last() {
                // The terminal sent it to the command too, which is in our process group.
                libc::SIGINT => interrupts += new,
                signal => {
                    // SAFETY: the child was not waited for, so the number is still its own.
                    unsafe { libc::kill(child.id().cast_signed(), signal) };
                }
            }
            if interrupts >= 2 {
                return Ok(None);
            }
        }
        session.rescan_aside()?;
    }
}

/// Removes the copy, unless a process of the tree lives on with it, be it one that is only being started.
fn tidy(copy: PrivateCopy, library: &Library, session: &mut Session) {
    if session.rescan().is_err() {
        return;
    }
    let mut users: Vec<u32> = session
        .found()
        .iter()
        .filter(|f: &&Found| f.library.id == library.id)
        .map(|f| f.pid)
        .collect();
    let file = copy.file().display().to_string();
    let pids = discover::pids().into_iter();
    users.extend(pids.filter(|pid| preload::is_to_come(*pid, &file)));
    users.sort_unstable();
    users.dedup();
    if !users.is_empty() {
        let file = copy.keep();
        eprintln!(
            "parcagpu: processes {users:?} still run with the library {}; it was left there",
            file.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_win_over_the_environment_and_that_over_defaults() {
        use clap::Parser;
        let of = |words: &[&str], set: &[(&str, &str)]| {
            let words = ["parcagpu", "run"]
                .iter()
                .chain(words)
                .chain(&["--", "app"]);
            let cli = crate::options::Cli::parse_from(words);
            let crate::options::Command::Run(options) = cli.command else {
                panic!("not run")
            };
            let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|s| s.1.into());
            settings(&options, value)
                .into_iter()
                .map(|(name, value)| format!("{name}={value}").replace("PARCAGPU_", ""))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let every = "RATE_LIMIT=1000000000 GRAPH_RATE_LIMIT=1000000000";
        assert_eq!(of(&[], &[]), every);
        assert_eq!(of(&[], &[(RATE_LIMIT, "")]), every);
        let mine = [(RATE_LIMIT, "100"), (GRAPH_RATE_LIMIT, "20")];
        assert_eq!(of(&[], &mine), "");
        assert_eq!(of(&[], &mine[..1]), "GRAPH_RATE_LIMIT=1000000000");
        assert_eq!(
            of(&["--rate", "5"], &mine),
            "RATE_LIMIT=5 GRAPH_RATE_LIMIT=5"
        );
        assert_eq!(of(&["--graph-rate", "5"], &mine), "GRAPH_RATE_LIMIT=5");
        let pc = "PC_SAMPLING_RATE=1000 PC_HW_BUFFER_MB=32";
        assert_eq!(of(&["--pc"], &mine), pc);
        let set = [mine[0], mine[1], (PC_SAMPLING_RATE, "7")];
        assert_eq!(of(&["--pc"], &set), "PC_HW_BUFFER_MB=32");
    }

    #[test]
    fn exit_status_as_shells_show_it() {
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(libc::SIGSEGV)), 139);
    }
}
