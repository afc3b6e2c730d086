//! What the addresses of a CPU stack are called.
//!
//! Everything here reads what the watched process decides: its mappings, the files it maps, the map of its
//! JIT. So all of it is bounded, and a file that makes the symbolizer fail, or gets shorter under it, is left alone from
//! then on.

pub mod files;
pub mod jit;
pub mod process;
pub mod shrunk;
pub mod thread;
pub mod unwind;

use std::sync::Arc;

/// A frame, in words; what is not known is empty or 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameText {
    /// Function, or `[file+0xoffset]`.
    pub function: String,
    /// Object file.
    pub module: String,
    /// Source file.
    pub file: String,
    /// Line in it.
    pub line: u32,
}

/// The frames of one address: with inlined functions there are several, innermost first.
pub type Frames = Arc<[FrameText]>;

/// A frame of which only a name is known.
pub fn just(function: impl Into<String>) -> Frames {
    Arc::new([FrameText {
        function: function.into(),
        ..FrameText::default()
    }])
}
