//! ron-kms as real processes: keys held by another key service, responses remembered across `kill
//! -9`, birth certificates and batches.

mod batches;
mod births;
mod remembered;
mod remote;
pub mod service;
