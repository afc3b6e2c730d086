//! `parcagpu report`

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::otlp::{self, Endpoint};
use super::{Format, write, write_to};
use crate::code::CodeOptions;
use crate::demangle::clean;
use crate::options::ReportOptions;
use crate::recording::format::MAGIC;
use crate::recording::model::Recording;
use crate::recording::reader;
use crate::recording::resolve::resolve;
use crate::refusal::refuse;

/// OTLP profiles say of PC samples what this does.
const AS_SENT: Format = Format::Pprof;

/// Makes an output of a recording, or sends it.
pub fn report(options: &ReportOptions) -> Result<ExitCode> {
    let format = match options.format {
        Some(format) => format,
        None => by_name(options.output.as_deref())?,
    };
    if let Some(endpoint) = &options.otlp {
        let recording = read(&options.file, &options.code.options(), &[AS_SENT])?;
        otlp::send(&recording, endpoint)?;
        return Ok(ExitCode::SUCCESS);
    }
    let recording = read(&options.file, &options.code.options(), &[format])?;
    let (path, chosen) = match &options.output {
        Some(path) => (path.clone(), true),
        None if format.is_lines() || !std::io::stdout().is_terminal() => (PathBuf::from("-"), true),
        None => (beside(&options.file, format), false),
    };
    if is_recording(&path) {
        return Err(refuse(format!(
            "{} is a recording; a report does not replace it, -o names another file",
            path.display()
        )));
    }
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

fn is_recording(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    // What is no file may wait for a writer for ever.
    let is_file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    let file = is_file.then(|| File::open(path).ok()).flatten();
    file.is_some_and(|mut file| file.read_exact(&mut head).is_ok() && head == MAGIC)
}

/// The format that the name of an output asks for; text for a name without an ending.
fn by_name(output: Option<&Path>) -> Result<Format> {
    let Some(path) = output else {
        return Ok(Format::Text);
    };
    match (Format::of(path), path.extension()) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(Format::Text),
        (None, Some(_)) => Err(refuse(format!(
            "no format has the ending of {}; these have one: {}; or --format names it",
            path.display(),
            Format::endings()
        ))),
    }
}

/// Reads a recording and finds the places of its PC samples, where one of the formats shows them.
fn read(file: &Path, code: &CodeOptions, formats: &[Format]) -> Result<Recording> {
    let mut recording = reader::read(file)?;
    if !formats.iter().any(|format| format.shows_pc_samples()) {
        return Ok(recording);
    }
    let naming = formats.iter().map(|format| format.naming()).max();
    let resolved = resolve(&mut recording, code, naming.unwrap_or_default())?;
    // The others say so themselves.
    if resolved.no_code
        && formats
            .iter()
            .any(|f| matches!(f, Format::Pprof | Format::Jsonl))
    {
        eprintln!(
            "note: PC samples without lines: no machine code is in the recording (record --cubins)"
        );
    }
    for note in resolved.notes {
        eprintln!("note: {}", clean(&note));
    }
    Ok(recording)
}

/// Refuses a name for a recording that is one for what is made of it, and what [`make_beside`] would replace unasked,
/// before anything is recorded.
pub fn check_beside(file: &Path, formats: &[Format], force: bool) -> Result<()> {
    if let Some(format) = Format::of(file) {
        let name = format.to_possible_value().map(|v| v.get_name().to_owned());
        return Err(refuse(format!(
            "{} has the ending of a report; --format {} makes one of the recording, whose name ends otherwise (.pgpu)",
            file.display(),
            name.unwrap_or_default()
        )));
    }
    for format in formats {
        let path = file.with_extension(format.ending());
        if !force && path.symlink_metadata().is_ok() {
            let shown = path.display();
            return Err(refuse(format!(
                "{shown} is there already; --force replaces it, -o names another file"
            )));
        }
    }
    Ok(())
}

/// Makes outputs of a recording that was just finished, in its folder and named after it, and sends it.
pub fn make_beside(file: &Path, formats: &[Format], endpoint: Option<&Endpoint>) -> Result<()> {
    if formats.is_empty() && endpoint.is_none() {
        return Ok(());
    }
    let sent = endpoint.map(|_| AS_SENT);
    let shown: Vec<Format> = formats.iter().copied().chain(sent).collect();
    let recording = read(file, &CodeOptions::default(), &shown)?;
    for format in formats {
        let path = file.with_extension(format.ending());
        write_to(&path, |out| write(&recording, *format, 0, out))
            .with_context(|| format!("{} is there, but not all made of it", file.display()))?;
        eprintln!("wrote {}", path.display());
    }
    if let Some(endpoint) = endpoint {
        otlp::send(&recording, endpoint)
            .with_context(|| format!("{} is there, but was not sent", file.display()))?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_told_from_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        assert!(is_recording(&file("a", b"PARCAREC and more")));
        assert!(!is_recording(&file("b", b"PARCARE")) && !is_recording(&file("c", b"other text")));
        assert!(!is_recording(dir.path()) && !is_recording(Path::new("/dev/null")));
        assert!(!is_recording(&dir.path().join("absent")));
    }

    #[test]
    fn nothing_is_replaced_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.pgpu");
        let formats = [Format::Html, Format::Pprof];
        check_beside(&file, &formats, false).unwrap();
        std::fs::write(dir.path().join("a.pb.gz"), "mine").unwrap();
        assert!(check_beside(&file, &formats, false).is_err());
        check_beside(&file, &formats, true).unwrap();
        assert!(check_beside(&dir.path().join("a.html"), &formats, true).is_err());
    }

    #[test]
    fn an_ending_that_nothing_has_is_refused() {
        let of = |name: &str| by_name(Some(Path::new(name)));
        assert_eq!(of("a.svg").unwrap(), Format::Flamegraph);
        assert_eq!(of("-").unwrap(), Format::Text);
        assert_eq!(by_name(None).unwrap(), Format::Text);
        let error = of("a.json").unwrap_err().to_string();
        assert!(error.contains("a.json"), "{error}");
        for format in Format::ALL {
            assert!(error.contains(&format!(".{}", format.ending())), "{error}");
        }
    }

    #[test]
    fn files_are_named_after_the_recording() {
        let named = beside(Path::new("/x/run.pgpu"), Format::Perfetto);
        assert_eq!(named, Path::new("run.pftrace"));
        assert_eq!(Format::of(&named), Some(Format::Perfetto));
        assert_eq!(Format::of(Path::new("a/b.pb.gz")), Some(Format::Pprof));
        assert_eq!(Format::of(Path::new("html")), None);
    }
}
