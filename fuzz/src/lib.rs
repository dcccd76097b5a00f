//! Shared by the fuzz targets: references that read requests, chunked bodies, paths, JSON and
//! metrics in the plainest way, from the whole input at once, sharing no code with what they check;
//! the ledger's reference model, run beside its core; and the targets that an ordinary test calls as well.

pub mod assertion;
pub mod form;
pub mod host;
pub mod http;
pub mod json;
pub mod kms;
pub mod ledger;
pub mod metrics;
pub mod paths;
pub mod pieces;
pub mod token;
