//! Fills in where the PC samples of a recording lie, from the cubins that are in it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::model::{NameId, Recording};
use crate::code::announced::verify;
use crate::code::cache::Cache;
use crate::code::{Code, CodeOptions, FunctionName, Place};

/// How long the disassembler may take, all in all.
const PATIENCE: Duration = Duration::from_secs(120);

/// An instruction: process, checksum, function and offset.
type Point = (u32, u64, NameId, u64);

/// Which instructions are to be named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Naming {
    /// None: nobody will see them.
    #[default]
    None,
    /// Those whose line is not known.
    WithoutLine,
    /// All.
    All,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// What could not be done, in words.
    pub notes: Vec<String>,
    /// There is no code at all.
    pub no_code: bool,
}

/// Gives PC samples their file, line, mnemonic and the whole name of their function, as far as they are known. That
/// instructions are not named is told only where one of `naming` is not.
pub fn resolve(
    recording: &mut Recording,
    options: &CodeOptions,
    naming: Naming,
) -> Result<Resolved> {
    let mut points: HashMap<Point, Place> = HashMap::new();
    for sample in &recording.pc_samples {
        let point = (
            sample.process,
            sample.crc,
            sample.function,
            sample.pc_offset,
        );
        points.insert(point, Place::default());
    }
    if points.is_empty() {
        return Ok(Resolved::default());
    }
    let options = &CodeOptions {
        no_mnemonics: options.no_mnemonics || naming == Naming::None,
        ..options.clone()
    };
    let mut code = Code::start(options)?;
    let mut notes = Vec::new();
    let mut add = |code: &mut Code, crc: u64, bytes: Arc<[u8]>| {
        let added = verify(crc, &bytes).map_err(Into::into);
        if let Err(e) = added.and_then(|()| code.add(crc, bytes)) {
            notes.push(format!("cubin {crc:#010x} of the recording: {e}"));
        }
    };
    for (crc, bytes) in recording.processes.iter().flat_map(|p| &p.cubins) {
        if !bytes.is_empty() && code.bytes(*crc).is_none() {
            add(&mut code, *crc, bytes.as_slice().into());
        }
    }
    let cache = options.cache.as_deref().map(Cache::open).transpose()?;
    let missing: BTreeSet<u64> = points.keys().map(|(_, crc, ..)| *crc).collect();
    for crc in missing {
        let cached = || cache.as_ref()?.get(crc);
        if code.bytes(crc).is_none()
            && let Some(bytes) = cached()
        {
            add(&mut code, crc, bytes.into());
        }
    }
    if code.checksums().next().is_none() {
        return Ok(Resolved {
            notes,
            no_code: true,
        });
    }
    // Asks for the instructions, and again once they are there.
    for settled in [false, true] {
        for (&(_, crc, function, offset), place) in &mut points {
            let name = recording.names.get(function as usize);
            let name = name.map_or(&b""[..], |n| n.as_bytes());
            // The recorder marks a name that was cut.
            let whole = name.strip_suffix("…".as_bytes());
            let function = FunctionName {
                name: whole.unwrap_or(name),
                cut: whole.is_some(),
                index: 0,
            };
            *place = code.resolve(crc, &function, offset);
        }
        if !settled && !code.settle(PATIENCE) {
            notes.push("not all instructions could be named in time".to_owned());
        }
    }
    fill(recording, &points);
    notes.extend(code.troubles().iter().cloned());
    let unnamed = points.values().any(|place| {
        let has_line = place.line.is_some();
        place.function.is_some() && place.mnemonic.is_none() && (naming == Naming::All || !has_line)
    });
    if let Some(why) = code.why_no_mnemonics().filter(|_| unnamed) {
        notes.push(format!("no instructions named: {why}"));
    }
    Ok(Resolved {
        notes,
        no_code: false,
    })
}

fn fill(recording: &mut Recording, points: &HashMap<Point, Place>) {
    let names = &mut recording.names;
    let mut known: HashMap<Arc<str>, NameId> = HashMap::new();
    let mut intern = |text: &Arc<str>| {
        *known.entry(Arc::clone(text)).or_insert_with(|| {
            names.push(text.to_string());
            (names.len() - 1) as NameId
        })
    };
    for sample in &mut recording.pc_samples {
        let point = (
            sample.process,
            sample.crc,
            sample.function,
            sample.pc_offset,
        );
        let place = &points[&point];
        if let Some(line) = &place.line {
            sample.file = intern(&line.file);
            sample.line = line.line;
        }
        if let Some(mnemonic) = &place.mnemonic {
            sample.mnemonic = intern(mnemonic);
        }
        if let Some(name) = &place.function {
            sample.function = intern(&String::from_utf8_lossy(name).into());
        }
    }
}
