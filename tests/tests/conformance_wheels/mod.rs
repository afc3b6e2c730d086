//! NVIDIA's headers and libraries from PyPI, and skipping aloud without them.

use crate::conformance_common::{root, target};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// CUDA version and its unpacked wheels (`include/`, `lib/`), oldest first; `None` when they cannot
/// be had, which is then said aloud.
pub fn wheels(test: &str) -> Option<Vec<(String, PathBuf)>> {
    static FETCHED: OnceLock<Result<Vec<(String, PathBuf)>, String>> = OnceLock::new();
    match FETCHED.get_or_init(fetch) {
        Ok(wheels) => Some(wheels.clone()),
        Err(reason) => {
            skip(test, "wheels", reason);
            None
        }
    }
}

fn fetch() -> Result<Vec<(String, PathBuf)>, String> {
    let script = root().join("scripts/fetch-cuda-headers");
    let listed = Command::new(&script)
        .arg("--list")
        .output()
        .map_err(|e| format!("{}: {e}", script.display()))?;
    let fetched = Command::new(&script)
        .output()
        .map_err(|e| format!("{}: {e}", script.display()))?;
    if !fetched.status.success() {
        let errors = String::from_utf8_lossy(&fetched.stderr);
        // The lines below it are pip's.
        let first = errors.lines().next().unwrap_or("fetch-cuda-headers failed");
        return Err(first.trim_end_matches(':').to_owned());
    }
    let wheels: Vec<_> = String::from_utf8_lossy(&listed.stdout)
        .split_whitespace()
        .map(|version| {
            (
                version.to_owned(),
                target().join("cuda-wheels").join(version),
            )
        })
        .collect();
    assert!(!wheels.is_empty(), "{} lists no version", script.display());
    Ok(wheels)
}

/// Reports `test` as skipped: on stderr and in the file `PARCAGPU_SKIP_LOG`. A panic when
/// `PARCAGPU_REQUIRE` names `need`.
pub fn skip(test: &str, need: &str, reason: &str) {
    let required = std::env::var("PARCAGPU_REQUIRE").unwrap_or_default();
    assert!(
        !required.split([',', ' ']).any(|name| name == need),
        "{test} needs {need}: {reason}"
    );
    eprintln!("SKIPPED {test}: {reason}");
    if let Some(log) = std::env::var_os("PARCAGPU_SKIP_LOG") {
        use std::io::Write;
        let mut log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .expect("PARCAGPU_SKIP_LOG can be written");
        // One write: tests run side by side.
        log.write_all(format!("{test}: {reason}\n").as_bytes())
            .expect("PARCAGPU_SKIP_LOG can be written");
    }
}
