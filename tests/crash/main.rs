//! Processes killed at any moment, and started again on what they left.

// A test may panic and wait.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod init;
mod kill;
mod nonces;
mod orders;
mod stages;
