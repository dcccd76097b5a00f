//! The svc-admin binary.
fn main() {}
