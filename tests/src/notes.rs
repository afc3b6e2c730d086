//! USDT notes of an ELF file, read with goblin.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use goblin::elf::Elf;

/// One note: one site of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Address of the nop.
    pub site: u64,
    /// Address of `.stapsdt.base` as the note says.
    pub base: u64,
    /// Address of the semaphore, 0: none.
    pub semaphore: u64,
    /// Provider.
    pub provider: String,
    /// Probe.
    pub name: String,
    /// Argument string.
    pub arguments: String,
}

/// All notes of a file.
pub fn read(path: &Path) -> Result<Vec<Note>> {
    let bytes =
        std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    of(&Elf::parse(&bytes)?, &bytes)
}

/// All notes of a parsed file.
pub fn of(elf: &Elf<'_>, bytes: &[u8]) -> Result<Vec<Note>> {
    let iterator = elf
        .iter_note_sections(bytes, Some(".note.stapsdt"))
        .context("no section .note.stapsdt")?;
    iterator.map(|note| parse(note?.desc)).collect()
}

fn parse(descriptor: &[u8]) -> Result<Note> {
    ensure!(descriptor.len() > 24, "a note is cut short");
    let word = |at: usize| u64::from_le_bytes(descriptor[at..at + 8].try_into().expect("8 bytes"));
    let mut texts = descriptor[24..].split(|b| *b == 0);
    let mut text = || -> Result<String> {
        let text = texts.next().context("a text of a note is missing")?;
        Ok(std::str::from_utf8(text)?.to_owned())
    };
    Ok(Note {
        site: word(0),
        base: word(8),
        semaphore: word(16),
        provider: text()?,
        name: text()?,
        arguments: text()?,
    })
}
