//! The inputs of a run: sealed usage snapshots, the importers that make them, and signed policies.
//! Everything here is content-addressed and checked before it is trusted.

pub mod import;
pub mod policy;
pub mod snapshot;
pub mod source;
