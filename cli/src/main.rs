//! The `parcagpu` command.

mod accounts;
mod block;
mod decode;
mod demangle;
mod discover;
mod elf;
mod events;
mod json;
mod ledger;
mod library;
mod nvtx;
mod nvtx_table;
mod options;
mod preflight;
mod private_copy;
mod refusal;
mod run;
mod scan_thread;
mod session;
mod signals;
mod status;
mod table;
mod text;
mod top;
mod trace;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use options::{Cli, Command};
use refusal::Refusal;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Trace(options) => watch::trace(&options),
        Command::Top(options) => top::top(&options),
        Command::Run(options) => run::run(&options),
        Command::Status(options) => status::status(&options),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("parcagpu: {error:#}");
            ExitCode::from(if error.is::<Refusal>() { 2 } else { 1 })
        }
    }
}
