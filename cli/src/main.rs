//! The `parcagpu` command.

mod demangle;
mod discover;
mod elf;
mod events;
mod library;
mod options;
mod preflight;
mod refusal;
mod session;
mod signals;
mod text;
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
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("parcagpu: {error:#}");
            ExitCode::from(if error.is::<Refusal>() { 2 } else { 1 })
        }
    }
}
