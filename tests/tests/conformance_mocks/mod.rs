//! The simulated libraries, built if they are not fresh.

use crate::conformance_common::{root, target};
use std::path::PathBuf;
use std::process::Command;

/// The library of `package`, in the profile of this test.
pub fn mock(package: &str) -> PathBuf {
    let release = !cfg!(debug_assertions);
    let mut build = Command::new(env!("CARGO"));
    build
        .current_dir(root())
        .args(["build", "-q", "-p", package]);
    if release {
        build.arg("--release");
    }
    assert!(
        build.status().expect("cargo runs").success(),
        "{package} does not build"
    );
    let file = format!("lib{}.so", package.replace('-', "_"));
    target()
        .join(if release { "release" } else { "debug" })
        .join(file)
}
