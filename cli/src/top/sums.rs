//! What `top` adds up, and the result as text and as JSON.

use std::time::{Duration, Instant};

use super::live::Live;
use crate::accounts::Accounts;
use crate::code::Code;
use crate::events::{Body, Event};
use crate::ledger::Ledger;
use crate::nvtx::Ranges;
use crate::pc::rows::Rows;
use crate::pc::samples::Samples;
use crate::session::{Session, Sink};
use crate::table::{self, Layout};
use crate::{nvtx_table, pc_table, signals, watch};

/// How long the last table waits for code that is still being looked at.
const CODE_PATIENCE: Duration = Duration::from_secs(20);

/// What the result is a table of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Result {
    /// Kernels.
    #[default]
    Kernels,
    /// `--nvtx`: ranges.
    Ranges,
    /// `--pc`: PC samples.
    Samples,
}

/// What was added up.
#[derive(Default)]
pub struct Sums {
    /// Launches and kernels.
    pub accounts: Accounts,
    /// With `--nvtx`, or once the live view has shown them.
    pub ranges: Option<Ranges>,
    /// With `--pc`, or once the live view has shown them.
    pub pc: Option<Pc>,
    /// On a terminal.
    pub live: Option<Live>,
    /// What was asked for; the live view may have shown more.
    pub result: Result,
}

/// PC samples and the code that they lie in.
pub struct Pc {
    /// By process.
    pub samples: Samples,
    /// What is known of it.
    pub code: Code,
}

impl Sink for Sums {
    fn event(&mut self, event: &Event<'_>) {
        self.accounts.event(event);
        if let (Some(live), Body::Kernel(kernel)) = (&mut self.live, &event.body) {
            live.kernel(event.header.process(), kernel);
        }
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
    /// The table for people; ends with a newline.
    pub fn text(&mut self, ledger: &Ledger, session: &Session, layout: Layout) -> String {
        let accounts = &self.accounts;
        match (self.result, &self.ranges, &mut self.pc) {
            (Result::Ranges, Some(ranges), _) => {
                nvtx_table::text(ranges, accounts, ledger, session, layout)
            }
            (Result::Samples, _, Some(Pc { samples, code })) => {
                pc_table::text(samples, code, accounts, ledger, session, layout)
            }
            _ => table::text(accounts, ledger, session, layout),
        }
    }

    /// The same for programs.
    pub fn json(&mut self, ledger: &Ledger, session: &Session, raw_names: bool) -> String {
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

    /// Asks for what the code has to say about the samples so far, so that the table need not wait for it.
    pub fn prepare(&mut self) {
        if let Some(pc) = &mut self.pc {
            for process in pc.samples.processes.values() {
                Rows::new(process, &mut pc.code, true);
            }
        }
    }

    /// The end: no more events come.
    pub fn finish(&mut self) {
        if let Some(ranges) = &mut self.ranges {
            ranges.finish();
        }
        if self.result != Result::Samples {
            return;
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
}
