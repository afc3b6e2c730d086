//! Results for people and programs.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes to stdout; nobody reading any more is no failure.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    heard(written).context("failed to write to stdout")
}

/// The result of writing for somebody who may have had enough.
pub fn heard(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
