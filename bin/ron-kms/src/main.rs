//! The ron-kms binary.
fn main() {}
