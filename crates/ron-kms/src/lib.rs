//! ron-kms
pub mod api;
pub mod audit;
pub mod config;
pub mod error;
pub mod keys;
pub mod metrics;
pub mod replay;
pub mod store;
pub mod topology;
pub mod work;
