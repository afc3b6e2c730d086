//! The `parcagpu` command.
fn main() {}
