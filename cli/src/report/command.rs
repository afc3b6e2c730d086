//! `parcagpu report`

use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use super::{Format, write, write_to};
use crate::options::ReportOptions;
use crate::recording::reader;

/// Makes an output of a recording.
pub fn report(options: &ReportOptions) -> Result<ExitCode> {
    let named = options.output.as_deref().and_then(Format::of);
    let format = options.format.or(named).unwrap_or(Format::Text);
    let recording = reader::read(&options.file)?;
    let (path, chosen) = match &options.output {
        Some(path) => (path.clone(), true),
        None if format.is_lines() || !std::io::stdout().is_terminal() => (PathBuf::from("-"), true),
        None => (beside(&options.file, format), false),
    };
    let to_terminal = path.as_os_str() == "-" && std::io::stdout().is_terminal();
    let width = match terminal_size::terminal_size() {
        Some((width, _)) if to_terminal => width.0.into(),
        _ => 0,
    };
    let result = write_to(&path, |out| write(&recording, format, width, out));
    match result {
        // Who reads from us had enough.
        Err(e) if is_broken_pipe(&e) => {}
        result => result?,
    }
    if !chosen {
        eprintln!("wrote {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// In the folder we are in, by the recording's name.
fn beside(file: &Path, format: Format) -> PathBuf {
    let stem = file.file_stem().unwrap_or("report".as_ref());
    let mut name = stem.to_owned();
    name.push(".");
    name.push(format.ending());
    PathBuf::from(name)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == ErrorKind::BrokenPipe)
}
