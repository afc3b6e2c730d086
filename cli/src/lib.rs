//! What the `parcagpu` command is made of.
//!
//! A library only so that fuzz targets and benchmarks reach the readers of foreign bytes; nothing else is
//! meant to depend on it.

pub mod accounts;
pub mod block;
pub mod brief;
pub mod choice;
pub mod code;
pub mod colour;
pub mod consumers;
pub mod decode;
pub mod demangle;
pub mod discover;
pub mod doctor;
pub mod elf;
pub mod events;
pub mod family;
pub mod json;
pub mod ledger;
pub mod library;
pub mod manual;
pub mod memory;
pub mod nvtx;
pub mod nvtx_table;
pub mod options;
pub mod pc;
pub mod pc_table;
pub mod preflight;
pub mod preload;
pub mod private_copy;
pub mod record;
pub mod recorder;
pub mod recording;
pub mod refusal;
pub mod report;
pub mod run;
pub mod scan_thread;
pub mod session;
pub mod signals;
pub mod status;
pub mod stdout;
pub mod symbols;
pub mod table;
pub mod text;
pub mod top;
pub mod trace;
pub mod watch;
