//! What every store of logs and of records must do, and stores to try it on: in memory with each kind of failure,
//! with a defect each (which the contract must find), and PostgreSQL with a synchronous standby.

#![allow(clippy::unwrap_used, clippy::disallowed_types)] // a test may panic, and has no topology

#[cfg(feature = "postgres")]
pub mod apart;
#[cfg(feature = "postgres")]
pub mod cluster;
pub mod contract;
#[cfg(all(test, feature = "postgres"))]
mod hosts;
#[cfg(all(test, feature = "postgres"))]
mod issuers;
#[cfg(all(test, feature = "postgres"))]
mod keys;
#[cfg(all(test, feature = "postgres"))]
mod kms_moves;
pub mod ledger;
#[cfg(all(test, feature = "postgres"))]
mod ledgers;
pub mod log;
pub mod memory;
pub mod migrate;
#[cfg(all(test, feature = "postgres"))]
mod moves;
pub mod once;
#[cfg(feature = "postgres")]
pub mod patroni;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "postgres")]
pub mod processes;
#[cfg(test)]
mod protocol;
pub mod records;
#[cfg(feature = "postgres")]
pub mod services;
pub mod shared_log;
#[cfg(all(test, feature = "postgres"))]
mod wallets;
#[cfg(all(test, feature = "postgres"))]
mod witnessed;
