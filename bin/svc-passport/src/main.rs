//! The svc-passport binary.
fn main() {}
