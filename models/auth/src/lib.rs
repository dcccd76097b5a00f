//! Key refresh and verification over a model checker: the same source file as in ron-auth, compiled against a kernel
//! whose snapshots and queues are the checker's.
#![cfg(any(loom, shuttle))]
#![allow(dead_code, missing_docs, clippy::pedantic)]

#[path = "../../../crates/ron-auth/src/trust.rs"]
pub mod trust;
