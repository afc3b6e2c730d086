//! Where an instruction lies, and how well that is known.

use std::sync::Arc;

use super::cubin::{NoLine, SourceLine};

/// How well a place is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Knowledge {
    /// File and line are there.
    Line,
    /// The code is there, but it tells no line.
    No(NoLine),
    /// The code is being read.
    Pending,
    /// The code was announced and could not be read; [`Code::troubles`] says why.
    Unread,
    /// No code with that checksum was announced.
    #[default]
    NotAnnounced,
}

impl Knowledge {
    /// Name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::No(NoLine::NoLineInfo) => "no_line_info",
            Self::No(NoLine::NoFunction) => "no_function",
            Self::No(NoLine::Outside) => "outside",
            Self::No(NoLine::NoRow) => "no_row",
            Self::Pending => "pending",
            Self::Unread => "unread",
            Self::NotAnnounced => "not_announced",
        }
    }

    /// For people: why there is no line, and what helps.
    pub fn words(self) -> &'static str {
        match self {
            Self::Line => "",
            Self::No(NoLine::NoLineInfo) => "no line information: compile with -lineinfo",
            Self::No(NoLine::NoFunction) => "the code has no function of that name",
            Self::No(NoLine::Outside) => "beyond the end of the function",
            Self::No(NoLine::NoRow) => "belongs to no line",
            Self::Pending => "the code is still being read",
            Self::Unread => "the code could not be read",
            Self::NotAnnounced => "the code was not announced",
        }
    }
}

/// Where an instruction lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// How well it is known.
    pub knowledge: Knowledge,
    /// File and line, with [`Knowledge::Line`].
    pub line: Option<SourceLine>,
    /// SASS mnemonic; `None`: not known, or not yet.
    pub mnemonic: Option<Arc<str>>,
    /// Whole mangled name of the function, where the code has it.
    pub function: Option<Arc<[u8]>>,
}
