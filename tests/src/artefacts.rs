//! The built files that tests run. `scripts/test` builds all of them first.

use std::path::{Path, PathBuf};

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in the repository")
        .to_owned()
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn there(path: PathBuf) -> PathBuf {
    assert!(
        path.is_file(),
        "{} is missing: run scripts/test, which builds everything first",
        path.display()
    );
    path
}

/// `libparcagpu.so`.
pub fn library() -> PathBuf {
    there(target().join("release/libparcagpu.so"))
}

/// The command `parcagpu`.
pub fn command() -> PathBuf {
    there(target().join("release/parcagpu"))
}

/// The folder with the simulated `libcuda.so.1` and `libcupti.so.13`.
pub fn sim() -> PathBuf {
    let folder = target().join("sim");
    there(folder.join("libcuda.so.1"));
    there(folder.join("libcupti.so.13"));
    folder
}

/// The demo program.
pub fn demo() -> PathBuf {
    there(sim().join("demo"))
}

/// The tests' program that does what its arguments say, see `hosts/host.c`.
pub fn host() -> PathBuf {
    PathBuf::from(concat!(env!("OUT_DIR"), "/host"))
}
