//! Recordings made by hand: a training run of any size, and one whose every name and number is hostile.
#![allow(dead_code, unused_imports, reason = "each user takes a part")]

mod hostile;
mod launches;
mod maker;
mod training;

pub use hostile::hostile;
pub use training::training;
