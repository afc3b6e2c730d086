//! Reads a recording back. The file may be cut anywhere, damaged, or made to do harm.
//!
//! Whatever it is: no panic, and no more memory than [`Limits`] allow. What stands before the first damage is
//! given back.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};

use super::block::{Blocks, Next, fill};
use super::columns::{Cursor, Malformed};
use super::format::{Kind, MAGIC, NAME_MAX, VERSION};
use super::model::Recording;
use super::tables::Tables;
use crate::refusal::{about_path, refuse};

/// What reading may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory of the result, about, in bytes.
    pub memory: u64,
}

impl Default for Limits {
    /// Half of the machine's memory.
    fn default() -> Self {
        // SAFETY: sysconf has no preconditions.
        let (pages, size) = unsafe {
            (
                libc::sysconf(libc::_SC_PHYS_PAGES),
                libc::sysconf(libc::_SC_PAGESIZE),
            )
        };
        let known = u64::try_from(pages).ok().zip(u64::try_from(size).ok());
        let memory = known.map_or(1 << 32, |(pages, size)| pages.saturating_mul(size) / 2);
        Self { memory }
    }
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Recording> {
    let shown = path.display();
    let file = File::open(path).map_err(|e| about_path(format!("cannot open {shown}"), e))?;
    if file.metadata().is_ok_and(|meta| meta.is_dir()) {
        return Err(refuse(format!("{shown} is a folder, not a recording")));
    }
    read_from(BufReader::new(file), Limits::default())
        .with_context(|| format!("cannot read {shown}"))
}

/// Reads from anywhere. The error is for what is no recording at all, or cannot be read; what is damaged
/// further on gives [`Recording::damage`].
pub fn read_from(mut from: impl Read, limits: Limits) -> Result<Recording> {
    let mut head = [0; 16];
    let n = fill(&mut from, &mut head)?;
    let is_ours = head.starts_with(&MAGIC) && head[12..] == [0; 4];
    if n < head.len() && (MAGIC.starts_with(&head[..n]) || head.starts_with(&MAGIC)) {
        return Err(refuse(format!(
            "it ends after {n} bytes: the recorder ended before it had written anything"
        )));
    }
    if n < head.len() || !is_ours {
        return Err(refuse(
            "this is no recording of parcagpu; parcagpu record makes them",
        ));
    }
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if version != VERSION {
        return Err(refuse(format!(
            "its format is version {version}; this program reads version {VERSION}"
        )));
    }
    let mut blocks = Blocks::new(from, head.len() as u64);
    let mut tables = Tables::new(limits.memory);
    let mut first = true;
    let (truncated, damage) = loop {
        let taken = match blocks.read_next()? {
            Next::End | Next::Cut if first => {
                return Err(refuse(
                    "it ends in its beginning: the recorder ended before it had written what it records",
                ));
            }
            Next::End | Next::Cut => break (true, None),
            Next::Damaged(why) => Err(why),
            Next::Block(kind) => take(&mut tables, Kind::from_u8(kind), blocks.payload(), first),
        };
        match taken {
            Ok(Taken::Go) => first = false,
            Ok(Taken::Last) => break (false, None),
            Err(why) if first => {
                return Err(refuse(format!("its first block is damaged: {why}")));
            }
            Err(why) => break (true, Some(format!("at byte {}: {why}", blocks.at()))),
        }
    };
    let mut recording = tables.finish();
    recording.truncated = truncated;
    recording.damage = damage;
    Ok(recording)
}

enum Taken {
    Go,
    Last,
}

fn take(
    tables: &mut Tables,
    kind: Option<Kind>,
    payload: &[u8],
    first: bool,
) -> Result<Taken, Malformed> {
    let mut cursor = Cursor::new(payload);
    if first != (kind == Some(Kind::About)) {
        return Err(Malformed("blocks out of order"));
    }
    let cursor = &mut cursor;
    match kind {
        // Of a later minor version.
        None => return Ok(Taken::Go),
        Some(Kind::About) => about(tables, cursor)?,
        Some(Kind::Names) => names(tables, cursor)?,
        Some(Kind::Frames) => tables.frames(&cursor.table()?)?,
        Some(Kind::Stacks) => tables.stacks(&cursor.table()?, &cursor.table()?)?,
        Some(Kind::Processes) => tables.processes(&cursor.table()?)?,
        Some(Kind::Notes) => tables.notes(&cursor.table()?)?,
        Some(Kind::Clocks) => tables.clocks(&cursor.table()?)?,
        Some(Kind::Launches) => tables.launches(&cursor.table()?)?,
        Some(Kind::Kernels) => tables.kernels(&cursor.table()?)?,
        Some(Kind::PcSamples) => tables.pc_samples(&cursor.table()?, &cursor.table()?)?,
        Some(Kind::Nvtx) => tables.nvtx(&cursor.table()?)?,
        Some(Kind::Errors) => tables.errors(&cursor.table()?)?,
        Some(Kind::Cubin) => {
            let [crc, offset, size] = [(); 3].map(|()| cursor.number());
            return tables
                .cubin(crc?, offset?, size?, cursor.rest())
                .map(|()| Taken::Go);
        }
        Some(Kind::End) => {
            tables.end(cursor.number()?);
            return Ok(Taken::Last);
        }
    }
    if cursor.rest().is_empty() {
        Ok(Taken::Go)
    } else {
        Err(Malformed("a block has too many bytes"))
    }
}

fn about(tables: &mut Tables, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
    let [version, command, kernel_release] = [(); 3].map(|()| cursor.text());
    tables.about(version?, command?, kernel_release?, cursor.number()?);
    Ok(())
}

fn names(tables: &mut Tables, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
    for _ in 0..cursor.number()? {
        let name = cursor.text()?;
        if name.len() > NAME_MAX {
            return Err(Malformed("a name is too long"));
        }
        tables.name(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
