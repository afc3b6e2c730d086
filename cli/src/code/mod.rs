//! Machine code of the GPU: from a PC sample to its source line and instruction.
//!
//! * [`store`]: [`Code`], which is told of cubins and asked about samples, and answers with a [`place`]; the only
//!   part with threads
//! * [`cubin`]: one cubin, pure; [`image`] reads its ELF file and [`lines`] its line table
//! * [`announced`]: the bytes of an announced cubin, from its process
//! * [`cache`]: cubins on disk
//! * [`sass`]: mnemonics, by `nvdisasm`

pub mod announced;
pub mod cache;
pub mod cubin;
pub mod image;
mod jobs;
pub mod lines;
pub mod place;
pub mod sass;
pub mod store;
mod worker;

pub use announced::Announced;
pub use cubin::{Cubin, FunctionName, NoLine, SourceLine};
pub use place::{Knowledge, Place};
pub use store::{Code, CodeOptions};
