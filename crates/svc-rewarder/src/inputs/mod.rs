//! What a run is computed from: sealed usage snapshots, importers that make them, and signed
//! policies. Everything here is content-addressed and checked before it is believed.

pub mod import;
pub mod policy;
pub mod snapshot;
pub mod source;
