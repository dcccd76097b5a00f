//! The svc-rewarder binary.
fn main() {}
