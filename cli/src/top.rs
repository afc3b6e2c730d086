//! `parcagpu top`: which kernels take the time, live.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parcagpu_abi::probe;

use crate::accounts::Accounts;
use crate::code::Code;
use crate::events::Event;
use crate::ledger::Ledger;
use crate::nvtx::Ranges;
use crate::nvtx_table;
use crate::options::TopOptions;
use crate::pc::rows::Rows;
use crate::pc::samples::Samples;
use crate::pc_table;
use crate::session::{Session, Sink};
use crate::table::{self, Layout};
use crate::watch;
use crate::{signals, text};

/// What the table needs; other probes stay quiet in the watched processes.
pub fn probes() -> Vec<&'static str> {
    [
        probe::CUDA_CORRELATION,
        probe::ACTIVITY_BATCH,
        probe::KERNEL_EXECUTED,
        probe::ERROR,
    ]
    .iter()
    .map(|p| p.name)
    .collect()
}

/// How long the last table waits for code that is still being looked at.
const CODE_PATIENCE: Duration = Duration::from_secs(20);
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What was added up.
#[derive(Default)]
struct Sums {
    accounts: Accounts,
    /// With `--nvtx`.
    ranges: Option<Ranges>,
    /// With `--pc`.
    pc: Option<Pc>,
}

/// PC samples and the code that they lie in.
struct Pc {
    samples: Samples,
    code: Code,
}

impl Sink for Sums {
    fn event(&mut self, event: &Event<'_>) {
        self.accounts.event(event);
        if let Some(ranges) = &mut self.ranges {
            ranges.event(event);
        }
        if let Some(pc) = &mut self.pc {
            pc.samples.event(event);
            pc.code.event(event);
        }
    }
}

impl Sums {
    fn text(&mut self, ledger: &Ledger, session: &Session, layout: Layout) -> String {
        let accounts = &self.accounts;
        if let Some(ranges) = &self.ranges {
            nvtx_table::text(ranges, accounts, ledger, session, layout)
        } else if let Some(Pc { samples, code }) = &mut self.pc {
            pc_table::text(samples, code, accounts, ledger, session, layout)
        } else {
            table::text(accounts, ledger, session, layout)
        }
    }

    /// Asks for what the code has to say about the samples so far, so that the table need not wait for it.
    fn prepare(&mut self) {
        if let Some(pc) = &mut self.pc {
            for process in pc.samples.processes.values() {
                Rows::new(process, &mut pc.code, true);
            }
        }
    }

    /// The end: no more events come.
    fn finish(&mut self) {
        if let Some(ranges) = &mut self.ranges {
            ranges.finish();
        }
        self.prepare();
        if let Some(pc) = &mut self.pc {
            // Another Ctrl-C ends the waiting.
            let (began, signals) = (Instant::now(), signals::count());
            while !pc.code.settle(watch::POLL)
                && began.elapsed() < CODE_PATIENCE
                && signals::count() == signals
            {}
        }
    }

    fn json(&mut self, ledger: &Ledger, session: &Session, raw_names: bool) -> String {
        let mut json = table::json(&self.accounts, ledger, session, raw_names);
        if let Some(ranges) = &self.ranges {
            json["nvtx"] = nvtx_table::json(ranges);
        }
        if let Some(Pc { samples, code }) = &mut self.pc {
            json["pc"] = pc_table::json(samples, code, raw_names);
            json["code_troubles"] = code.troubles().into();
            json["why_no_mnemonics"] = code.why_no_mnemonics().into();
        }
        json.to_string() + "\n"
    }
}

/// `parcagpu top`
pub fn top(options: &TopOptions) -> Result<ExitCode> {
    signals::install();
    let pc = || -> Result<Pc> {
        Ok(Pc {
            samples: Samples::default(),
            code: options.code.start()?,
        })
    };
    let sums = Rc::new(RefCell::new(Sums {
        ranges: options.nvtx.then(Ranges::default),
        pc: options.pc.then(pc).transpose()?,
        ..Sums::default()
    }));
    let sink: Rc<RefCell<dyn Sink>> = Rc::<RefCell<Sums>>::clone(&sums);
    let mut wanted = probes();
    if options.nvtx {
        wanted.extend([probe::NVTX_EVENT_BATCH.name, probe::NVTX_RESOURCE_NAME.name]);
    }
    if options.pc {
        wanted.push(probe::PC_SAMPLE_BATCH.name);
        wanted.extend(watch::CODE_PROBES.iter().map(|p| p.name));
    }
    let (mut session, mut ledger) = watch::start(&options.scope, wanted, false, sink)?;

    let live = std::io::stdout().is_terminal() && !options.json && !options.once;
    let seconds = match (options.scope.seconds, options.once) {
        (None, true) => Some(1.0),
        (seconds, _) => seconds,
    };
    let mut next = Instant::now() + watch::REFRESH;
    watch::pump(&mut session, seconds, |session| {
        if Instant::now() < next {
            return true;
        }
        next = Instant::now() + watch::REFRESH;
        ledger.refresh(session);
        let mut sums = sums.borrow_mut();
        if !live {
            sums.prepare();
            return true;
        }
        show_live(&mut sums, &ledger, session, options.raw_names)
    })?;
    ledger.refresh(&session);
    watch::finish(&mut session)?;
    ledger.refresh(&session);
    let mut sums = sums.borrow_mut();
    sums.finish();
    let all = Layout {
        rows: usize::MAX,
        width: 0,
        raw_names: options.raw_names,
    };
    let result = if options.json {
        sums.json(&ledger, &session, options.raw_names)
    } else {
        sums.text(&ledger, &session, all)
    };
    // Nobody reading any more is no failure.
    let _ = std::io::stdout().write_all(result.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn show_live(sums: &mut Sums, ledger: &Ledger, session: &Session, raw_names: bool) -> bool {
    let (rows, width) = terminal_size();
    let layout = Layout {
        rows: rows.saturating_sub(6).max(5),
        width,
        raw_names,
    };
    let body = sums.text(ledger, session, layout);
    let time = text::time_of_day(text::clock_ns(libc::CLOCK_REALTIME));
    let shown: Vec<&str> = body.lines().take(rows.saturating_sub(2)).collect();
    let screen = format!(
        "{CLEAR}parcagpu top {} UTC   Ctrl-C ends\n{}\n",
        &time[..8],
        shown.join("\n")
    );
    let mut out = std::io::stdout();
    out.write_all(screen.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

fn terminal_size() -> (usize, usize) {
    // SAFETY: winsize is plain data, valid as zeros.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ fills the winsize given, which lives through the call.
    let rc = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if rc == 0 && size.ws_row > 0 {
        (size.ws_row.into(), size.ws_col.into())
    } else {
        (24, 80)
    }
}
