//! A test's own folder, with its own copy of the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::artefacts;
use crate::program::Program;

/// How the library gets into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    Bare,
    /// `LD_PRELOAD`.
    Preload,
    /// `CUDA_INJECTION64_PATH`.
    Injection,
}

impl Mode {
    /// Both ways with the library.
    pub const WITH: [Self; 2] = [Self::Preload, Self::Injection];
}

/// See the module. Removed at the end.
pub struct Lab {
    dir: TempDir,
}

impl Lab {
    /// A fresh one.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("parcagpu-test-")
            .tempdir()
            .expect("a temporary folder");
        fs::copy(artefacts::library(), dir.path().join("libparcagpu.so")).expect("room for a copy");
        Self { dir }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// This lab's copy of the library.
    pub fn library(&self) -> PathBuf {
        self.file("libparcagpu.so")
    }

    /// A program on the simulated driver.
    pub fn program(&self, mode: Mode, path: impl AsRef<std::ffi::OsStr>) -> Program {
        let program = Program::new(path, self.path()).env("LD_LIBRARY_PATH", artefacts::sim());
        match mode {
            Mode::Bare => program,
            Mode::Preload => program.env("LD_PRELOAD", self.library()),
            Mode::Injection => program.env("CUDA_INJECTION64_PATH", self.library()),
        }
    }

    /// The tests' host program with words of `hosts/host.c`.
    pub fn host(&self, mode: Mode, words: &str) -> Program {
        self.program(mode, artefacts::host()).words(words)
    }

    /// The command `parcagpu`.
    pub fn parcagpu(&self, words: &str) -> Program {
        Program::new(artefacts::command(), self.path()).words(words)
    }

    /// A CUPTI whose `cuptiActivityFlushAll` takes `SLOW_FLUSH_MS` longer; for
    /// `PARCAGPU_CUPTI_PATH`.
    pub fn slow_cupti(&self) -> PathBuf {
        let library = self.file("slow_cupti.so");
        let source = artefacts::root().join("tests/hosts/slow_cupti.c");
        let status = Command::new("gcc")
            .args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall", "-Werror"])
            .arg("-Wl,--no-as-needed")
            .args([source, artefacts::sim().join("libcupti.so.13")])
            .args(["-ldl", "-o"])
            .arg(&library)
            .status();
        assert!(
            status.is_ok_and(|s| s.success()),
            "gcc links the slow CUPTI"
        );
        library
    }

    /// A folder with a simulated CUPTI in which every `name` in the file is replaced by `other`, of
    /// the same length; for `PARCAGPU_CUPTI_PATH`.
    pub fn patched_cupti(&self, name: &str, other: &str) -> PathBuf {
        assert_eq!(name.len(), other.len());
        let mut bytes = fs::read(artefacts::sim().join("libcupti.so.13")).expect("readable");
        let whole = format!("\0{name}\0").into_bytes();
        let places: Vec<usize> = bytes
            .windows(whole.len())
            .enumerate()
            .filter(|(_, w)| *w == whole)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "the simulated CUPTI names {name}");
        for at in places {
            bytes[at + 1..=at + name.len()].copy_from_slice(other.as_bytes());
        }
        let file = self.file("libcupti.so.13");
        fs::write(&file, bytes).expect("room for a copy");
        file
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}
