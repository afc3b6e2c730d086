//! Shared machinery of the black-box tests.
//!
//! A test makes a [`lab::Lab`]: a folder with its own copy of the library (its own inode, so that
//! consumers of other tests neither see nor activate its programs), runs programs on the simulated
//! driver in it, and looks at what comes out:
//!
//! * [`artefacts`]: where the built files are
//! * [`lab`], [`program`]: programs under the library, with a watchdog
//! * [`compare`], [`mock_log`]: what a program did, and whether it did the same without the library
//! * [`drivers`]: the simulated driver with functions missing or changed
//! * [`hosts`]: programs that a suite compiles for itself
//! * [`cut_short`]: ends of programs that did not wait for everything
//! * [`compilers`]: NVIDIA's compilers, for real machine code
//! * [`full`]: shortened or long
//! * [`together`]: variants that wait, at once
//! * [`trace`]: events as `parcagpu trace --json` prints them
//! * [`agent`]: events as Parca's agent would read them, by a BPF program of ours
//! * [`block`]: status block, semaphores and mappings of a process
//! * [`notes`]: the USDT notes of an ELF file
//! * [`need`]: what a machine may lack, and skipping aloud

pub mod agent;
pub mod agent_code;
pub mod artefacts;
pub mod block;
pub mod compare;
pub mod compilers;
pub mod cut_short;
pub mod drivers;
pub mod full;
pub mod hosts;
pub mod lab;
pub mod mock_log;
pub mod need;
pub mod notes;
pub mod program;
pub mod together;
pub mod trace;
