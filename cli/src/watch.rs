//! The loop of the views: attach, take events, look for new processes every second, end in order.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parcagpu_abi::probe::{self, Probe};

use crate::accounts::Accounts;
use crate::choice::{self, Choice};
use crate::demangle::clean;
use crate::discover::Scanner;
use crate::ledger::{DOCTOR, Entry, Ledger, coverage};
use crate::library;
use crate::options::{Scope, TraceOptions};
use crate::preflight::{self, Capability};
use crate::refusal::refuse;
use crate::session::{Session, Sink, Wanted};
use crate::signals;
use crate::text::plural;
use crate::trace::{Both, Style, Tracer};

/// Processes without events that are named at the end.
const SILENT_SHOWN: usize = 5;
/// Status blocks are read this often.
pub const REFRESH: Duration = Duration::from_secs(1);
/// Size of the ring buffer unless told otherwise, MiB.
const RING_MIB: u32 = 8;
/// The library tells of a kernel within a second of its end.
const RECORDS_COME_WITHIN: Duration = Duration::from_millis(1500);
const A_MOMENT: Duration = Duration::from_millis(20);
/// Longest wait for events: how late a signal or the end of a command is noticed.
pub const POLL: Duration = Duration::from_millis(100);

/// What a view takes from the processes.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    /// Probes, by name.
    pub probes: Vec<&'static str>,
    /// Also where it says the same as another.
    pub kernel_executed_too: bool,
    /// CPU stacks of launches.
    pub stacks: bool,
    /// Size of the ring buffer where the options name none; 0: [`RING_MIB`].
    pub ring_mib: u32,
}

/// What says more about PC samples.
pub const CODE_PROBES: [Probe; 4] = [
    probe::STALL_REASON_MAP,
    probe::GPU_CONFIG,
    probe::CUBIN_LOADED,
    probe::CUBIN_UNLOADED,
];

/// Loads and attaches as the options say, and tells so on stderr.
pub fn start(
    scope: &Scope,
    probes: Vec<&'static str>,
    kernel_executed_too: bool,
    sink: Rc<RefCell<dyn Sink>>,
) -> Result<(Session, Ledger)> {
    let extent = Extent {
        probes,
        kernel_executed_too,
        ..Extent::default()
    };
    start_with(scope, extent, sink)
}

/// [`start`] for views that need more than probes.
pub fn start_with(
    scope: &Scope,
    extent: Extent,
    sink: Rc<RefCell<dyn Sink>>,
) -> Result<(Session, Ledger)> {
    preflight::check()?;
    let choice = Choice::of(&scope.chosen)?;
    let named = scope.lib.as_deref().map(library::open).transpose()?;
    let default_ring = match extent.ring_mib {
        0 => RING_MIB,
        n => n,
    };
    let mut session = Session::load(
        Wanted {
            probes: extent.probes,
            kernel_executed_too: extent.kernel_executed_too,
            choice: choice.clone(),
            discover: true,
            only: named.as_ref().map(|library| {
                let path = std::path::PathBuf::from(&library.path);
                (library.id, path.canonicalize().unwrap_or(path))
            }),
            ring_bytes: scope.ring_mib.unwrap_or(default_ring) << 20,
            stacks: extent.stacks,
        },
        sink,
    )?;
    // Counts are taken before we attach: what is launched in between is then missing from what we
    // were told, and a sample is not called a total.
    let mut ledger = Ledger::default();
    session.look_around();
    ledger.begin(&session);
    session.were_sampled(ledger.sampled_before());
    session.rescan()?;
    if choice.is_all() {
        attach_ahead(&mut session, named)?;
    } else {
        let named = named.as_ref().map(|library| library.path.as_str());
        check_pids(choice.given(), named, &session)?;
        if choice.present().is_empty() {
            eprintln!("note: no such process runs now; those that come are followed");
        }
    }
    tell_refused(session.refused());
    let processes = session.found().len() as u64;
    eprintln!(
        "attached to {} ({})",
        plural(
            session.attachments() as u64,
            if choice.is_all() {
                "library file"
            } else {
                "process library"
            }
        ),
        if processes == 1 {
            "1 process has it now".to_owned()
        } else {
            format!("{processes} processes have it now")
        }
    );
    Ok((session, ledger))
}

/// Says on stderr that processes could not be looked into for want of a right.
pub fn tell_refused(refused: usize) {
    if refused > 0 && !Capability::SysPtrace.is_in(preflight::held()) {
        eprintln!(
            "note: {} of other users could not be looked into (CAP_SYS_PTRACE is needed)",
            plural(refused as u64, "process")
        );
    }
}

/// Attaches to the named or default file, so that programs started later lose nothing.
fn attach_ahead(session: &mut Session, named: Option<crate::discover::Library>) -> Result<()> {
    let library = match named {
        Some(library) => Some(library),
        None => library::default()?,
    };
    match library {
        Some(library) => session.attach_library(&library),
        None if session.attachments() == 0 => library::required(None)
            .map(|_| ())
            .map_err(|e| refuse(format!("no process has a library with our probes, and {e}"))),
        None => Ok(()),
    }
}

fn check_pids(pids: &[u32], named: Option<&str>, session: &Session) -> Result<()> {
    for pid in pids {
        let libraries = choice::libraries_of(&mut Scanner::default(), *pid)?;
        // One that came since the last look is found by the next.
        if let (Some(named), false) = (named, session.found().iter().any(|f| f.pid == *pid)) {
            let has: Vec<&str> = libraries.iter().map(|f| f.library.path.as_str()).collect();
            return Err(refuse(format!(
                "process {pid} does not map {named}; it has {}",
                has.join(", ")
            )));
        }
    }
    Ok(())
}

/// Brings the counts of a view that goes on up to date. Launches that were counted have been told since, mostly: they
/// are taken, or what was seen whole would look like a sample until the next look.
pub fn refresh(session: &Session, ledger: &mut Ledger) {
    ledger.glance(session);
    // What goes wrong here goes wrong with the next poll too, which tells.
    let _ = session.poll(Duration::ZERO);
}

/// Runs until a signal, the deadline, the end of the chosen processes, or `tick` says false; `tick` is called after each poll.
pub fn pump(
    session: &mut Session,
    seconds: Option<f64>,
    mut tick: impl FnMut(&mut Session) -> bool,
) -> Result<()> {
    let began = Instant::now();
    let deadline = seconds.map(|s| began + Duration::from_secs_f64(s));
    loop {
        let now = Instant::now();
        let left = deadline.map_or(POLL, |d| d.saturating_duration_since(now).min(POLL));
        session.poll(left)?;
        let go_on = tick(session);
        let now = Instant::now();
        if !go_on || signals::count() > 0 || deadline.is_some_and(|d| now >= d) {
            return Ok(());
        }
        if session.chosen_are_gone() {
            return Ok(());
        }
        session.rescan_aside()?;
    }
}

/// Waits for the kernels of the launches so far, leaves the processes, and takes what is still in the ring buffer.
/// Ctrl-C ends the waiting.
pub fn finish(session: &mut Session) -> Result<()> {
    session.last_call();
    let (deadline, signals) = (Instant::now() + RECORDS_COME_WITHIN, signals::count());
    // Not drained before we leave: where events come faster than they are taken, that has no end.
    let mut wait = Duration::ZERO;
    while Instant::now() < deadline && signals::count() == signals {
        session.poll(wait)?;
        if !session.is_behind() && !session.waits_for_records() {
            break;
        }
        wait = A_MOMENT;
    }
    session.detach();
    session.drain()
}

/// `parcagpu trace`
pub fn trace(options: &TraceOptions) -> Result<ExitCode> {
    let mut probes = selected(&options.probe)?;
    signals::install();
    let tracer = Tracer::new(
        Box::new(std::io::stdout()),
        Style {
            json: options.json,
            raw_names: options.raw_names,
            repeats: options.repeats,
        },
    );
    if probes.contains(&probe::PC_SAMPLE_BATCH.name) {
        let mut unprinted = CODE_PROBES.to_vec();
        unprinted.retain(|p| !probes.contains(&p.name));
        probes.extend(unprinted.iter().map(|p| p.name));
        let code = options.code.start()?;
        tracer.borrow_mut().resolve_with(code, unprinted);
    }
    let accounts = Rc::new(RefCell::new(Accounts::default()));
    let sink: Rc<RefCell<dyn Sink>> =
        Rc::new(RefCell::new(Both(Rc::clone(&tracer), Rc::clone(&accounts))));
    let kernel_executed_too = options.kernel_executed
        || options
            .probe
            .iter()
            .any(|p| p == probe::KERNEL_EXECUTED.name);
    let (mut session, mut ledger) = start(&options.scope, probes, kernel_executed_too, sink)?;
    let mut next = Instant::now() + REFRESH;
    pump(&mut session, options.scope.seconds, |session| {
        if Instant::now() >= next {
            next = Instant::now() + REFRESH;
            ledger.glance(session);
        }
        tracer.borrow_mut().flush()
    })?;
    ledger.refresh(&session);
    finish(&mut session)?;
    ledger.refresh(&session);
    ledger.settle(&accounts.borrow(), &session);
    tracer.borrow_mut().flush();
    eprintln!("{}", tracer.borrow().summary(&session));
    for line in coverage_lines(&accounts.borrow(), &ledger) {
        eprintln!("{line}");
    }
    tracer.borrow_mut().error()?;
    Ok(ExitCode::SUCCESS)
}

/// One line per process: how much of the truth was seen, or why nothing was.
pub fn coverage_lines(accounts: &Accounts, ledger: &Ledger) -> Vec<String> {
    let head = |pid: u32| {
        let comm = ledger.entry(pid).map_or("?", |e| e.comm.as_str());
        format!("PID {pid} ({})", clean(comm))
    };
    let told = accounts.processes.iter().map(|(id, account)| {
        let entry = ledger.entry(id.pid);
        let seen = entry.and_then(|e| e.launches_seen());
        let losses = entry.map(|e| e.library_losses()).filter(|l| !l.is_empty());
        let losses = losses.map_or_else(String::new, |l| format!("; lost in the library: {l}"));
        format!(
            "{}: {}{losses}",
            head(id.pid),
            coverage(account.launches, seen)
        )
    });
    let silent = ledger
        .entries()
        .filter(|(pid, _)| !accounts.processes.keys().any(|id| id.pid == *pid))
        .map(|(pid, entry)| format!("{}: no kernels seen: {}", head(pid), entry.why_nothing()));
    let silent: Vec<String> = silent.collect();
    let told_nothing = |(pid, entry): (u32, &Entry)| {
        entry.is_odd() && !accounts.processes.keys().any(|id| id.pid == pid)
    };
    let odd = ledger.entries().any(told_nothing);
    let more = silent.len().saturating_sub(SILENT_SHOWN);
    let mut lines: Vec<String> = told.chain(silent.into_iter().take(SILENT_SHOWN)).collect();
    if more > 0 {
        lines.push(format!(
            "... and {more} more that have the library; no kernels seen"
        ));
    }
    if odd {
        lines.push(DOCTOR.to_owned());
    }
    lines
}

fn selected(names: &[String]) -> Result<Vec<&'static str>> {
    let all: Vec<&'static str> = probe::ALL.iter().map(|p| p.name).collect();
    if names.is_empty() {
        return Ok(all);
    }
    names
        .iter()
        .map(|name| {
            all.iter().copied().find(|p| p == name).ok_or_else(|| {
                refuse(format!(
                    "there is no probe '{name}'; the probes are: {}",
                    all.join(", ")
                ))
            })
        })
        .collect()
}
