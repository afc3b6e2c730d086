//! Compiles the tests' BPF program (clang) and host programs (gcc) into `OUT_DIR`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bpf(&out);
    compile(
        &[
            "-O1",
            "hosts/host.c",
            "hosts/process.c",
            "-ldl",
            "-lpthread",
        ],
        &out.join("host"),
    );
    println!("cargo:rerun-if-changed=hosts");
    println!("cargo:rerun-if-changed=bpf");
}

fn bpf(out: &Path) {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let mut args: Vec<OsString> = vec!["-Wall".into(), "-Werror".into()];
    // Debian and Ubuntu keep <asm/types.h> in a folder per architecture.
    let multiarch = Path::new("/usr/include").join(format!("{arch}-linux-gnu"));
    if multiarch.is_dir() {
        args.push("-I".into());
        args.push(multiarch.into());
    }
    SkeletonBuilder::new()
        .source("bpf/parca_agent.bpf.c")
        .obj(out.join("parca_agent.bpf.o"))
        .clang_args(args)
        .build()
        .expect("failed to compile the BPF program (clang and linux-libc-dev are needed)");
}

fn compile(arguments: &[&str], result: &Path) {
    let compiler = env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let status = Command::new(&compiler)
        .args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(result)
        .args(arguments)
        .status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "failed to compile {arguments:?} with {}: {status:?}",
        compiler.display()
    );
}
