//! The conformance program prints the same on the simulated driver as it did on a real GPU.

mod conformance_common;
mod conformance_mocks;

use conformance_common::{root, target};
use conformance_mocks::mock;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A transcript by section; lines about the machine are left out.
fn sections(text: &str) -> Vec<(String, Vec<String>)> {
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("== ") {
            Some(name) => out.push((name.to_owned(), Vec::new())),
            None => out
                .last_mut()
                .expect("a transcript begins with a section")
                .1
                .push(line.to_owned()),
        }
    }
    out
}

/// The simulated libraries under their real names, in a folder of their own.
fn simulated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (package, real) in [
        ("mock-cuda", "libcuda.so.1"),
        ("mock-cupti", "libcupti.so.13"),
    ] {
        let built = mock(package);
        fs::copy(&built, folder.path().join(real))
            .unwrap_or_else(|e| panic!("{}: {e}", built.display()));
    }
    let runtime = Command::new("gcc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-o"])
        .arg(folder.path().join("libcudart.so.13"))
        .args(["cudart.c", "cudart_nvcc.c"].map(|file| root().join("tests/mock-cuda").join(file)))
        .arg("-ldl")
        .status()
        .expect("gcc runs");
    assert!(runtime.success(), "the simulated runtime does not build");
    folder
}

fn build_program() -> PathBuf {
    let status = Command::new(root().join("tests/conformance/build.sh"))
        .status()
        .expect("build.sh runs");
    assert!(status.success(), "build.sh failed");
    target().join("conformance/conformance")
}

/// Runs the program on the simulated libraries in `folder`, within two minutes.
fn transcript(program: &Path, folder: &Path) -> String {
    let output = folder.join("transcript");
    let errors = folder.join("errors");
    let mut child = Command::new(program)
        // Time for what is done beside the busy kernel.
        .args(["--long-ms", "2000", "--libcudart", "libcudart.so.13"])
        .env_remove("LD_PRELOAD")
        .env_remove("CUDA_INJECTION64_PATH")
        .env("LD_LIBRARY_PATH", folder)
        // The simulated driver cannot run PTX: it is told how long the busy kernel takes.
        .env("MOCK_CUDA_KERNEL_NS", "conf_spin=2000000000")
        .stdin(Stdio::null())
        .stdout(fs::File::create(&output).expect("the folder takes a file"))
        .stderr(fs::File::create(&errors).expect("the folder takes a file"))
        .process_group(0)
        .spawn()
        .expect("the program starts");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(120) {
            // SAFETY: the group is the child's own, made above, and it was not waited for yet.
            unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
            panic!(
                "no end: {}",
                fs::read_to_string(&output).unwrap_or_default()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text =
        String::from_utf8_lossy(&fs::read(&output).expect("the transcript is there")).into_owned();
    assert!(
        status.success(),
        "{status}: {}\n{text}",
        fs::read_to_string(&errors).unwrap_or_default()
    );
    text
}

/// What differs, as a unified diff would show it, without common lines.
fn difference(real: &[String], ours: &[String]) -> Vec<String> {
    let mut left: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for i in (0..real.len()).rev() {
        for j in (0..ours.len()).rev() {
            let length = if real[i] == ours[j] {
                1 + left.get(&(i + 1, j + 1)).copied().unwrap_or(0)
            } else {
                left.get(&(i + 1, j))
                    .copied()
                    .unwrap_or(0)
                    .max(left.get(&(i, j + 1)).copied().unwrap_or(0))
            };
            left.insert((i, j), length);
        }
    }
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while i < real.len() || j < ours.len() {
        let skip_real = left.get(&(i + 1, j)).copied().unwrap_or(0);
        let skip_ours = left.get(&(i, j + 1)).copied().unwrap_or(0);
        if i < real.len() && j < ours.len() && real[i] == ours[j] {
            i += 1;
            j += 1;
        } else if j == ours.len() || (i < real.len() && skip_real >= skip_ours) {
            out.push(format!("-gpu       {}", real[i]));
            i += 1;
        } else {
            out.push(format!("+simulated {}", ours[j]));
            j += 1;
        }
    }
    out
}

#[test]
fn the_simulated_driver_gives_the_transcript_of_a_gpu() {
    let recorded = fs::read_to_string(root().join("tests/conformance/h200.txt"))
        .expect("the recorded transcript is there");
    assert!(
        recorded.lines().any(|line| line.starts_with("# gpu ")),
        "the recorded transcript names its GPU"
    );
    let folder = simulated();
    let produced = transcript(&build_program(), folder.path());
    let (real, ours) = (sections(&recorded), sections(&produced));
    let names = |all: &[(String, Vec<String>)]| {
        all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&real),
        names(&ours),
        "record the transcript again: the program has other sections"
    );
    let mut wrong = Vec::new();
    for ((name, real), (_, ours)) in real.iter().zip(&ours) {
        let lines = difference(real, ours);
        if !lines.is_empty() {
            wrong.push(format!("== {name}\n{}", lines.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn differences_are_found() {
    let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert!(difference(&lines("a b c"), &lines("a b c")).is_empty());
    assert_eq!(
        difference(&lines("a b c"), &lines("a x c d")),
        ["-gpu       b", "+simulated x", "+simulated d"]
    );
}
