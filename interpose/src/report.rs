//! What is told of every library that was found.

use std::fmt;
use std::time::Duration;

use crate::code::Refusal;
use crate::engine::EngineKind;
use crate::hooks::COPIES;

/// What came of a library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The functions in [`Report::hooked`] are replaced.
    Hooked,
    /// The library was there before us, so threads may be running in it: left
    /// alone for ever.
    LateLoad,
    /// This process may not make code writable; why.
    NotPermitted(String),
    /// No engine is chosen or built in; [`Report::reason`] says which.
    NoEngine,
    /// More than [`COPIES`] copies are mapped; how many were left alone so far.
    TooManyCopies(usize),
    /// The library's memory makes no sense to us; why.
    Unreadable(String),
    /// Every function was refused or is missing.
    NothingToHook,
    /// The engine failed half-way; everything is as it was. Its words.
    RolledBack(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Hooked => f.write_str("hooked"),
            Outcome::LateLoad => f.write_str("not hooked: it was loaded before us"),
            Outcome::NotPermitted(why) => write!(f, "not hooked: {why}"),
            Outcome::NoEngine => f.write_str("not hooked: no engine"),
            Outcome::TooManyCopies(n) => write!(f, "not hooked: {n} more than {COPIES} copies"),
            Outcome::Unreadable(why) => write!(f, "not hooked: {why}"),
            Outcome::NothingToHook => f.write_str("not hooked: no function that can be"),
            Outcome::RolledBack(why) => write!(f, "not hooked: {why}"),
        }
    }
}

/// Told once for every mapped copy of a watched library.
#[derive(Clone, Debug)]
pub struct Report {
    /// The library as the loader names it.
    pub library: String,
    /// Its base address.
    pub base: usize,
    /// What came of it.
    pub outcome: Outcome,
    /// Which entry functions serve it, if hooked.
    pub copy: Option<usize>,
    /// The engine that changed it.
    pub engine: EngineKind,
    /// Why not another engine; empty if none was looked for.
    pub reason: &'static str,
    /// Names of the replaced functions.
    pub hooked: Vec<&'static str>,
    /// Functions left alone, and why.
    pub refused: Vec<(&'static str, Refusal)>,
    /// How long it took.
    pub took: Duration,
}
