//! `parcagpu top`: which kernels take the time, live.
//!
//! One thread: it polls the ring buffer, adds up, draws once a second and after each key. With `--listen` there is
//! one more, which answers scrapes.

mod busy;
mod draw;
mod lines;
mod live;
pub mod metrics;
mod rows;
mod scale;
mod screen;
mod sums;
pub mod terminal;
mod ui;
mod view;

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::Result;
use parcagpu_abi::probe::{self, Probe};

use crate::nvtx::Ranges;
use crate::options::TopOptions;
use crate::pc::samples::Samples;
use crate::session::{Session, Sink};
use crate::table::Layout;
use crate::{ledger::Ledger, signals, stdout, watch};
use lines::Lines;
use live::Live;
use metrics::Exporter;
use sums::{Pc, Sums};
use ui::Ui;

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

/// What NVTX ranges need besides.
const NVTX_PROBES: [Probe; 2] = [probe::NVTX_EVENT_BATCH, probe::NVTX_RESOURCE_NAME];

/// `parcagpu top`
pub fn top(options: &TopOptions) -> Result<ExitCode> {
    signals::install();
    let live = terminal::is_there() && !options.json && !options.once;
    let result = match (options.nvtx, options.pc) {
        (true, _) => sums::Result::Ranges,
        (_, true) => sums::Result::Samples,
        _ => sums::Result::Kernels,
    };
    let mut exporter = Exporter::bind(options)?;
    let sums = Rc::new(RefCell::new(Sums {
        ranges: options.nvtx.then(Ranges::default),
        pc: options.pc.then(|| start_pc(options)).transpose()?,
        live: live.then(Live::default),
        result,
        ..Sums::default()
    }));
    let sink: Rc<RefCell<dyn Sink>> = Rc::<RefCell<Sums>>::clone(&sums);
    let mut wanted = probes();
    if options.nvtx {
        wanted.extend(NVTX_PROBES.iter().map(|p| p.name));
    }
    if options.pc {
        wanted.extend(pc_probes().iter().map(|p| p.name));
    }
    let (mut session, mut ledger) = watch::start(&options.scope, wanted, false, sink)?;
    let seconds = match (options.scope.seconds, options.once) {
        (None, true) => Some(1.0),
        (seconds, _) => seconds,
    };
    let mut failed = Ok(());
    let mut export = |session: &Session, ledger: &Ledger| {
        if let Some(exporter) = &mut exporter {
            failed = exporter.tick(session, &sums.borrow(), ledger);
        }
        failed.is_ok()
    };
    // Before anything is drawn, as it says where it listens.
    export(&session, &ledger);
    if live {
        session.hold_warnings();
        let mut ui = Ui::take(options)?;
        watch::pump(&mut session, seconds, |session| {
            ui.tick(session, &sums, &mut ledger) && export(session, &ledger)
        })?;
        drop(ui);
        session.release_warnings();
    } else {
        let mut lines = Lines::new(!options.json && !options.once);
        let mut next = Instant::now() + watch::REFRESH;
        watch::pump(&mut session, seconds, |session| {
            let mut read = true;
            if Instant::now() >= next {
                next = Instant::now() + watch::REFRESH;
                watch::refresh(session, &mut ledger);
                sums.borrow_mut().prepare();
                read = lines.print(&sums.borrow().accounts, &ledger);
            }
            // Somebody who scrapes is reader enough.
            export(session, &ledger) && (read || options.listen.is_some())
        })?;
    }
    failed?;
    // The server ends before the waiting for what is under way.
    drop(exporter);
    finish(options, &mut session, &sums, &mut ledger)
}

fn start_pc(options: &TopOptions) -> Result<Pc> {
    Ok(Pc {
        samples: Samples::default(),
        code: options.code.start()?,
    })
}

/// What PC samples need besides.
fn pc_probes() -> Vec<Probe> {
    [&[probe::PC_SAMPLE_BATCH], &watch::CODE_PROBES[..]].concat()
}

/// Waits for what is under way, then prints the result.
fn finish(
    options: &TopOptions,
    session: &mut Session,
    sums: &Rc<RefCell<Sums>>,
    ledger: &mut Ledger,
) -> Result<ExitCode> {
    ledger.refresh(session);
    watch::finish(session)?;
    ledger.refresh(session);
    let mut sums = sums.borrow_mut();
    ledger.settle(&sums.accounts, session);
    sums.finish();
    let all = Layout {
        rows: usize::MAX,
        width: 0,
        raw_names: options.raw_names,
    };
    stdout::print(&if options.json {
        sums.json(ledger, session, options.raw_names)
    } else {
        sums.text(ledger, session, all)
    })?;
    Ok(ExitCode::SUCCESS)
}
