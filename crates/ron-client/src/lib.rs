//! Typed clients of the ron services, over ron-http: for the services themselves and as the SDK.
//!
//! ```no_run
//! # use std::{sync::Arc, time::Duration};
//! use ron_client::{Credential, KmsClient};
//! use ron_http::{ClientConfig, HttpClient};
//! use ron_kernel::Deadline;
//!
//! let http = Arc::new(HttpClient::new(ClientConfig::default()));
//! let kms = KmsClient::new("unix:/run/ron/ron-kms/api.sock", Credential::none(), http);
//! let key = "default/app/ed25519/018f8e9e-0000-7000-8000-000000000001".parse().unwrap();
//! let doc = kms.key(&key, Deadline::within(Duration::from_secs(1)));
//! ```
//!
//! **Invariant**: every method reports whether the request was carried out: `Ok` (carried out),
//! `Refused` or `NotSent` (nothing changed), or `Unknown`. The retries of reads and the breaker are
//! in ron-http's client; a call is retried only when carrying it out twice is the same as once.

mod call;
mod health;
mod kms;
mod ledger;
mod passport;
pub mod ranged;
mod rewarder;
mod wallet;

pub use call::{Caller, ClientError, Outgoing, encode};
pub use health::HealthClient;
pub use kms::KmsClient;
pub use ledger::{ActiveHead, LedgerClient};
pub use passport::{ClientProof, Form, PassportClient, TokenAsk, basic};
pub use rewarder::{RewarderClient, RunRef};
pub use ron_http::Credential;
pub use wallet::WalletClient;
