//! The svc-wallet binary.
fn main() {}
