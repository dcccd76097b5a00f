//! The fuzz targets, each a function that tries one input, so that an ordinary test calls them as well
//! (`tests/fuzz`); and the references with which they compare: readers of requests, chunked bodies, paths, JSON and
//! metrics in the plainest way, from the whole input at once, sharing no code with what they check, and
//! the ledger's reference model, run beside its core.

pub mod assertion;
pub mod chunked;
pub mod columns;
pub mod form;
pub mod host;
pub mod http;
pub mod json;
pub mod kms;
pub mod ledger;
pub mod metrics;
pub mod paths;
pub mod pieces;
pub mod request;
pub mod routing;
pub mod token;
pub mod transit;
pub mod unpack;
pub mod usage;

#[allow(dead_code)] // the console uses the rest
#[path = "../../crates/svc-admin/src/promtext/mod.rs"]
mod promtext;
