//! The ron-ledger binary.
fn main() {}
