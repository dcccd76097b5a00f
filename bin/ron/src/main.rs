//! The ron command line.
fn main() {}
