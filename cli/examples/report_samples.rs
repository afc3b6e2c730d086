//! Writes every output of a recording made by hand into a folder: `report_samples DIR [KERNELS | hostile]`.
//! For looking at them, and for `scripts/test-report`.

#[path = "../tests/common/model/mod.rs"]
mod model;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use parcagpu_cli::report::{Format, write, write_to};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().context("which folder?")?);
    let recording = match args.next().as_deref() {
        Some("hostile") => model::hostile(),
        Some(kernels) => model::training(kernels.parse()?),
        None => model::training(100_000),
    };
    std::fs::create_dir_all(&dir)?;
    for format in Format::ALL {
        let begun = Instant::now();
        let path = dir.join("report").with_extension(format.ending());
        write_to(&path, |out| write(&recording, format, 0, out))?;
        let size = std::fs::metadata(&path)?.len();
        eprintln!("{format:?}: {size} bytes in {:?}", begun.elapsed());
    }
    Ok(())
}
