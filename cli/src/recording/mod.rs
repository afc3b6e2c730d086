//! Recordings: what `record` keeps and `report` draws.

pub mod model;
