//! Prints what the watch and the hooks cost.
fn main() {}
