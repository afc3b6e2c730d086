//! Says where the Gum devkit is. That the engine is left out without one is told by `scripts/build` and, of a program
//! that runs, by `parcagpu status`: a cargo warning would come back with every command of cargo.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FRIDA_GUM_DEVKIT");
    let devkit = env::var("FRIDA_GUM_DEVKIT").ok().filter(|d| !d.is_empty());
    let gum = env::var_os("CARGO_FEATURE_GUM").is_some();
    // The archive is found through us; the header is not: frida-gum-sys runs bindgen in a build script of its own,
    // which only the environment of cargo reaches (C_INCLUDE_PATH).
    if let Some(dir) = devkit.filter(|_| gum) {
        println!("cargo:rustc-link-search=native={dir}");
    }
}
