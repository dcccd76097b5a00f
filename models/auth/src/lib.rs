//! Key refresh and verification under a model checker: the same source file as in ron-auth,
//! compiled against a kernel that uses the checker's snapshots and queues.
#![cfg(any(loom, shuttle))]
#![allow(dead_code, missing_docs, clippy::pedantic)]

#[path = "../../../crates/ron-auth/src/trust.rs"]
pub mod trust;
