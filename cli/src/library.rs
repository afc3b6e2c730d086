//! Which library file is meant when none is mapped yet.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use parcagpu_abi::probe::PROVIDER;

use crate::discover::{self, Library};
use crate::refusal::{about_path, refuse};

const FILE_NAME: &str = "libparcagpu.so";

/// Where the library is looked for when `--lib` does not name it.
pub fn candidates() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(path) = env::var_os("PARCAGPU_LIB").filter(|p| !p.is_empty()) {
        places.push(PathBuf::from(path));
    }
    if let Ok(executable) = env::current_exe()
        && let Some(dir) = executable.parent()
    {
        places.push(dir.join(FILE_NAME));
        places.push(dir.join("../lib").join(FILE_NAME));
    }
    places.push(Path::new("target/release").join(FILE_NAME));
    places
}

/// Opens a named library.
pub fn open(path: &Path) -> Result<Library> {
    let shown = path.display();
    let file =
        File::open(path).map_err(|e| about_path(format!("cannot open library {shown}"), e))?;
    discover::open_library(file, &shown.to_string()).ok_or_else(|| {
        refuse(format!(
            "{shown} has no probes of provider {PROVIDER} (no 64-bit ELF file with such notes)"
        ))
    })
}

/// The default library, or `None` if there is none. A name in `PARCAGPU_LIB` that is wrong is an error, not passed
/// over.
pub fn default() -> Result<Option<Library>> {
    if let Some(path) = env::var_os("PARCAGPU_LIB").filter(|p| !p.is_empty()) {
        return open(Path::new(&path)).map(Some);
    }
    match candidates().iter().find(|p| p.is_file()) {
        Some(path) => open(path).map(Some),
        None => Ok(None),
    }
}

/// The named or else the default library; an error that says where it was looked for.
pub fn required(named: Option<&Path>) -> Result<Library> {
    if let Some(path) = named {
        return open(path);
    }
    default()?.ok_or_else(|| {
        let looked: Vec<String> = candidates()
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        refuse(format!(
            "no {FILE_NAME} found (looked at {}); name it with --lib FILE",
            looked.join(", ")
        ))
    })
}
