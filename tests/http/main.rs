//! The HTTP front against hostile, slow and numerous clients, and other clients beside them.

// A test may panic, wait, and share state by a plain mutex.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

mod abuse;
mod attackers;
mod bystanders;
mod cases;
mod flood;
mod hostile;
mod proxies;
mod sound;
mod wire;
