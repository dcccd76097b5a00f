//! Process exit codes, one meaning each.

/// Clean end: everything drained.
pub const OK: u8 = 0;
/// A critical thread used up its restarts, or start-up failed after the configuration was accepted.
pub const FATAL: u8 = 1;
/// The configuration, the data directory or a listener was refused before anything started.
pub const CONFIG: u8 = 2;
/// Threads were still running when the drain deadline passed.
pub const STRAGGLERS: u8 = 3;
