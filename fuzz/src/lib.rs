//! Shared by the fuzz targets: references that read requests, chunked bodies, paths, JSON and
//! metrics in the plainest way, from the whole input at once, sharing no code with what they check;
//! and the ledger's reference model, run beside its core.

pub mod host;
pub mod http;
pub mod json;
pub mod ledger;
pub mod metrics;
pub mod paths;
pub mod pieces;
