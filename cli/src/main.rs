//! The `parcagpu` command.

use std::process::ExitCode;

use clap::Parser;

use parcagpu_cli::options::{Cli, Command};
use parcagpu_cli::refusal;
use parcagpu_cli::{doctor, manual, record, report, run, status, top, watch};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Trace(options) => watch::trace(&options),
        Command::Top(options) => top::top(&options),
        Command::Run(options) => run::run(&options),
        Command::Record(options) => record::record(options),
        Command::Report(options) => report::report(&options),
        Command::Status(options) => status::status(&options),
        Command::Doctor(options) => doctor::doctor(&options),
        Command::Completions(options) => manual::completions(&options),
        Command::Man(options) => manual::man(&options),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("parcagpu: {error:#}");
            ExitCode::from(refusal::status(&error))
        }
    }
}
