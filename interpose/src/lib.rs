//! Notice a library as it is loaded, and replace functions in it.
//!
//! A library that is preloaded into other people's programs declares with
//! [`hooks!`] which functions of which type it replaces, and with [`watch!`] in
//! which libraries. From then on every copy of such a library that the program
//! maps, however it does so, is changed before anybody runs in it. A program
//! that never maps one sees a look at the loader's list, and nothing else: no
//! thread, no changed environment, no started engine.
//!
//! # Engines
//!
//! Code is changed by one of two engines: `gum` (Frida's Gum, feature `gum`) or
//! `detour` (the crate of that name, on x86-64, always built in there). Gum
//! comes as a devkit, a folder with `frida-gum.h` and `libfrida-gum.a` of
//! version 17.9.5, which no registry has:
//!
//! * with the devkit in DIR (absolute; bindgen needs libclang):
//!   `C_INCLUDE_PATH=DIR FRIDA_GUM_DEVKIT=DIR cargo build --release --features gum`
//! * fetched from Frida's releases: `cargo build --release --features gum-download`
//! * to check and lint without any: `DOCS_RS=1 cargo clippy --features gum`
//!   (it cannot be linked)
//!
//! # Limits
//!
//! * Up to [`COPIES`] copies of a library are hooked at a time.
//! * Libraries in other namespaces (`dlmopen`) are seen on x86-64 with glibc
//!   2.35 or newer.
//! * A library without start-up code of its own (linked with `-nostartfiles`)
//!   is seen only at program start and where the rendezvous is watched.
//!
//! Nothing is ever taken out again: that cannot be done under running threads.
//! [`HookSet::want`] makes the replacements idle instead.

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("this crate is about the dynamic loader of glibc on 64-bit Linux");

mod code;
mod engine;
mod entry;
#[doc(hidden)]
pub mod foreign;
mod hooks;
mod image;
mod maps;
mod permit;
mod report;
mod symbols;
mod transaction;
mod watch;

pub use code::Refusal;
pub use engine::{Choice, EngineKind};
#[doc(hidden)]
pub use entry::handle;
pub use entry::{Handler, Next, Uncancelled, handler_panics};
pub use hooks::{COPIES, Hook, HookSet, Originals};
pub use report::{Outcome, Report};
pub use watch::{Rule, Watch};
