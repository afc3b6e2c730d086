//! Readers of bytes that are not ours, for fuzz targets; no part of the interface.

use crate::image::{Image, Place};
use crate::maps;
use crate::symbols::Symbols;

/// Whether a line is one of a table of mappings.
pub fn is_mapping(line: &str) -> bool {
    maps::parse(line).is_some()
}

/// A library in memory, which has to stay mapped.
#[derive(Debug)]
pub struct Library(Image);

impl Library {
    /// By the address of its first byte and that of its dynamic section.
    pub fn open(base: usize, dynamic: usize) -> Result<Self, String> {
        Image::open(Place { base, dynamic }).map(Self)
    }

    /// Address of a function, if it has one of that name.
    pub fn function(&self, name: &str) -> Option<usize> {
        let found = Symbols::of(&self.0)?.function(name)?;
        Some(found.address)
    }

    /// Whether its `_init` calls `__gmon_start__`.
    pub fn calls_gmon_start(&self) -> bool {
        Symbols::of(&self.0).is_some_and(|symbols| symbols.calls_gmon_start())
    }
}
