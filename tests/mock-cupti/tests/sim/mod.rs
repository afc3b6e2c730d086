//! Running C clients through `scripts/sim`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository is there")
}

/// Compiles a C file of this folder; `flags` decide what comes out.
pub fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Tests run side by side: each writes its own file and puts it in place.
    let new = out.with_extension(format!("{:?}", std::thread::current().id()));
    let status = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-o"])
        .arg(&new)
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests")
                .join(source),
        )
        .args(flags)
        .args(["-ldl", "-lpthread"])
        .status()
        .expect("gcc is needed");
    assert!(status.success(), "{source} does not compile");
    std::fs::rename(&new, &out).unwrap();
    out
}

/// Runs `scripts/sim`.
pub fn sim(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new("timeout")
        .arg("120")
        .arg(root().join("scripts/sim"))
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .expect("scripts/sim runs")
}

/// Output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
