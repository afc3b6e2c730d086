//! What the two threads behind [`super::store`] do: reading cubins, and disassembling them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::CodeOptions;
use super::announced::{self, Announced};
use super::cache::Cache;
use super::cubin::Cubin;
use super::sass::{self, Sass};
use super::worker::Worker;

/// Time for one run of `nvdisasm`.
const NVDISASM_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Read {
    pub announced: Announced,
    pub result: Result<(Arc<[u8]>, Arc<Cubin>), String>,
    pub trouble: Option<String>,
}

#[derive(Debug)]
pub struct Disassembly {
    pub crc: u64,
    pub bytes: Arc<[u8]>,
    /// None: all.
    pub symbols: Vec<u32>,
}

pub type Disassembler = Worker<Disassembly, (u64, Result<Sass, String>)>;

pub fn disassembler(options: &CodeOptions) -> Result<Option<Disassembler>> {
    if options.no_mnemonics {
        return Ok(None);
    }
    let program = sass::find(options.nvdisasm.as_deref().map(Path::new))?;
    Worker::start("parcagpu-sass", move |job: Disassembly| {
        let sass = sass::disassemble(&program, &job.bytes, &job.symbols, NVDISASM_LIMIT);
        (job.crc, sass.map_err(|e| format!("{e:#}")))
    })
    .map(Some)
}

/// On the reading thread.
pub fn read(announced: Announced, cache: Option<&Cache>) -> Read {
    let crc = announced.crc;
    let mut trouble = None;
    let cached = cache.and_then(|c| c.get(crc));
    let bytes = match cached {
        Some(bytes) => Ok(bytes),
        None => announced::read(&announced).inspect(|bytes| {
            if let Some(Err(e)) = cache.map(|c| c.put(crc, bytes)) {
                trouble = Some(format!("the cubin cache cannot be written: {e:#}"));
            }
        }),
    };
    let result = bytes.map_err(|e| e.to_string()).and_then(|bytes| {
        let bytes: Arc<[u8]> = bytes.into();
        let cubin = Cubin::parse(&bytes).map_err(|e| e.to_string())?;
        Ok((bytes, Arc::new(cubin)))
    });
    Read {
        announced,
        result,
        trouble,
    }
}
