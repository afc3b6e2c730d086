//! Recordings: what `record` keeps and `report` draws.

pub mod block;
pub mod columns;
pub mod format;
pub mod interner;
pub mod join;
pub mod model;
pub mod reader;
pub mod resolve;
pub mod tables;
pub mod writer;
