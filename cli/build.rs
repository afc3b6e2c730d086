//! Compiles the BPF program and writes its skeleton into `OUT_DIR`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/parcagpu.bpf.c";
const HEADERS: &str = "../ebpf";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let mut args: Vec<OsString> = vec![
        "-I".into(),
        HEADERS.into(),
        "-Wall".into(),
        "-Werror".into(),
    ];
    // Debian and Ubuntu keep <asm/types.h> in a folder per architecture, which clang does not look
    // into when it compiles for BPF.
    let multiarch = Path::new("/usr/include").join(format!("{arch}-linux-gnu"));
    if multiarch.is_dir() {
        args.push("-I".into());
        args.push(multiarch.into());
    }
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang_args(args)
        .build_and_generate(out.join("parcagpu.skel.rs"))
        .expect("failed to compile the BPF program (clang and linux-libc-dev are needed)");
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed={HEADERS}/parcagpu.h");
}
