//! What crosses a border: value types, canonical JSON, problems, scopes, caveats, and the
//! request and answer types of every API.
//!
//! **Invariant:** this crate is pure. It reads no clock, no file, no socket and no environment,
//! and nothing in it depends on the iteration order of a hash map.

pub mod admin;
pub mod kms;
pub mod ledger;
pub mod passport;
pub mod rewarder;
pub mod wallet;
