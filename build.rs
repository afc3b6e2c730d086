//! Linker arguments of the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The kernel installs a uprobe in every mapping of the site's file page. With the linker's
    // default layout that page is mapped twice, and semaphores are counted twice.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,separate-code");
    // Once a thread or a callback of ours exists, unmapping the library would crash the program.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libparcagpu.so");
    // Our references to exported names mean our own, also where another copy comes first.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
