//! The `driftless` program.
fn main() {}
