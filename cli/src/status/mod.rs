//! `parcagpu status`: what every process with the library says about itself.

mod facts;
mod json;
mod text;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use parcagpu_abi::status::Status;
use serde_json::Value;

use crate::block;
use crate::choice::{self, Choice};
use crate::colour;
use crate::consumers::{Consumer, Consumers};
use crate::discover::{self, Found, Scanner};
use crate::options::{Chosen, StatusOptions};
use crate::stdout;
use crate::watch;
pub use facts::uuid;
pub use json::block_json;
use text::Style;
pub use text::block_text;

/// One process, read.
struct Reading {
    found: Found,
    comm: String,
    /// The block, or why there is none.
    status: Result<Box<Status>, String>,
    /// Probes somebody listens to.
    listening: Result<Vec<(&'static str, u16)>, String>,
    /// Who, as far as that can be seen.
    consumers: Vec<Consumer>,
    /// The watched process that this one was forked from: nobody listens to this one.
    inherited_from: Option<u32>,
    /// Why the others cannot be seen.
    why_unknown: String,
}

impl Reading {
    /// Attachments beside those of [`Self::consumers`].
    fn others(&self) -> Option<u64> {
        let listening = self.listening.as_ref().ok()?;
        let all: u64 = listening.iter().map(|(_, n)| u64::from(*n)).sum();
        let known: u64 = self.consumers.iter().map(|c| c.attachments).sum();
        Some(all.saturating_sub(known))
    }

    /// Attachments whose owner is not known; `None`: not even their number.
    fn unknown(&self) -> Option<u64> {
        let others = self.others()?;
        Some(if self.inherited_from.is_some() {
            0
        } else {
            others
        })
    }
}

/// A consumer that comes or goes has raised semaphores without holding a descriptor for so long at most.
const COMING_AND_GOING: Duration = Duration::from_millis(100);

/// `parcagpu status`
pub fn status(options: &StatusOptions) -> Result<ExitCode> {
    let readings = collect(&options.chosen)?;
    if options.json {
        let list: Vec<Value> = readings.iter().map(json::to_json).collect();
        stdout::print(&format!("{}\n", Value::Array(list)))?;
    } else if readings.is_empty() {
        let chosen = !Choice::of(&options.chosen)?.is_all();
        let which = if chosen { " chosen" } else { "" };
        stdout::print(&format!(
            "no{which} process has a library with probes of provider parcagpu\n"
        ))?;
    } else {
        let style = Style {
            verbose: options.verbose,
            colours: colour::on_stdout(),
        };
        let texts: Vec<String> = readings.iter().map(|r| text::to_text(r, style)).collect();
        stdout::print(&texts.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(chosen: &Chosen) -> Result<Vec<Reading>> {
    let choice = Choice::of(chosen)?;
    let mut scanner = Scanner::default();
    for pid in choice.given() {
        choice::libraries_of(&mut scanner, *pid)?;
    }
    let found = scanner.scan(&choice);
    watch::tell_refused(scanner.refused());
    let read_all = |found: &[Found]| -> Vec<Reading> {
        let consumers = Consumers::look();
        let readings = found.iter().map(|f| read(f.clone(), &consumers));
        readings.collect()
    };
    let mut readings = read_all(&found);
    if readings.iter().any(|r| r.unknown().is_some_and(|n| n > 0)) {
        std::thread::sleep(COMING_AND_GOING);
        readings = read_all(&found);
    }
    Ok(readings)
}

fn read(found: Found, consumers: &Consumers) -> Reading {
    let status = match block::read(&found) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err("the library has no status block".to_owned()),
        Err(e) => Err(format!("{e:#}")),
    };
    Reading {
        comm: discover::comm(found.pid),
        status,
        consumers: consumers.of(&found),
        inherited_from: consumers.inherited_from(&found),
        why_unknown: consumers.why_unknown(),
        listening: block::semaphores(&found).map_err(|e| format!("{e:#}")),
        found,
    }
}
