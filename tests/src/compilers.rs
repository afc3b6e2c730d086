//! NVIDIA's own compilers, from PyPI: what they make is what programs load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::artefacts;
use crate::need;

/// Paths of the tools; see `scripts/fetch-cuda-compilers`.
#[derive(Clone, Debug)]
pub struct Compilers {
    /// CUDA 13.
    pub nvcc: PathBuf,
    /// CUDA 12.
    pub ptxas: PathBuf,
    /// Reads the machine code of both.
    pub nvdisasm: PathBuf,
    /// Takes fat binaries apart.
    pub cuobjdump: PathBuf,
}

/// The tools, fetched once; otherwise the test is skipped.
pub fn get(test: &str) -> Option<&'static Compilers> {
    static FETCHED: OnceLock<Result<Compilers, String>> = OnceLock::new();
    if !need::program(test, "g++") {
        return None;
    }
    match FETCHED.get_or_init(fetch) {
        Ok(compilers) => Some(compilers),
        Err(reason) => {
            need::skip(test, "compilers", reason);
            None
        }
    }
}

fn fetch() -> Result<Compilers, String> {
    let script = artefacts::root().join("scripts/fetch-cuda-compilers");
    let output = Command::new(&script)
        .args(["nvcc", "ptxas", "nvdisasm", "cuobjdump"])
        .output()
        .map_err(|e| format!("{}: {e}", script.display()))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        // The lines below it are pip's.
        let first = errors.lines().next().unwrap_or("no compilers");
        return Err(first.trim_end_matches(':').to_owned());
    }
    let text = String::from_utf8(output.stdout).expect("paths of ours");
    let mut paths = text.lines().map(PathBuf::from);
    let mut next = || paths.next().expect("a line for each tool");
    Ok(Compilers {
        nvcc: next(),
        ptxas: next(),
        nvdisasm: next(),
        cuobjdump: next(),
    })
}

impl Compilers {
    /// Runs nvcc in a folder.
    #[track_caller]
    pub fn nvcc(&self, folder: &Path, arguments: &[&str]) {
        let headers = self.nvcc.ancestors().nth(2).expect("bin/nvcc of a toolkit");
        let mut command = Command::new(&self.nvcc);
        command.arg("-I").arg(headers.join("include"));
        run(command.args(arguments), folder);
    }

    /// Runs CUDA 12's ptxas in a folder.
    #[track_caller]
    pub fn ptxas(&self, folder: &Path, arguments: &[&str]) {
        run(Command::new(&self.ptxas).args(arguments), folder);
    }

    /// What cuobjdump prints, run in a folder.
    #[track_caller]
    pub fn cuobjdump(&self, folder: &Path, arguments: &[&str]) -> String {
        run(Command::new(&self.cuobjdump).args(arguments), folder)
    }
}

#[track_caller]
fn run(command: &mut Command, folder: &Path) -> String {
    let output = command
        .current_dir(folder)
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
