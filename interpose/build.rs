//! Says where the Gum devkit is, and how to get Gum when it is left out.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FRIDA_GUM_DEVKIT");
    let devkit = env::var("FRIDA_GUM_DEVKIT").ok().filter(|d| !d.is_empty());
    let gum = env::var_os("CARGO_FEATURE_GUM").is_some();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    match devkit {
        // The archive is found through us; the header is not: frida-gum-sys
        // runs bindgen in a build script of its own, which only the
        // environment of cargo reaches.
        Some(dir) if gum => println!("cargo:rustc-link-search=native={dir}"),
        Some(dir) => println!(
            "cargo:warning=built without hook engine Gum; to have it: C_INCLUDE_PATH={dir} FRIDA_GUM_DEVKIT={dir} cargo build --release --features gum"
        ),
        None if !gum && matches!(arch.as_str(), "x86_64" | "aarch64") => println!(
            "cargo:warning=built without hook engine Gum; to have it: cargo build --release --features gum-download (or, with a devkit in DIR: C_INCLUDE_PATH=DIR FRIDA_GUM_DEVKIT=DIR cargo build --release --features gum)"
        ),
        None => {}
    }
}
