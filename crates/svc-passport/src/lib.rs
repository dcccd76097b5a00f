//! svc-passport: issues short-lived capability tokens that the KMS signs.
//!
//! ```text
//!  /issue, /oauth2/token ── policy ──> issue queue ──> pass-issue-* ── one sign_batch ──> ron-kms
//!        │                                                  └── token ──> answer
//!  /revoke, /events ──> revoke queue ──> pass-revoker ── SQLite, log, then view ──> answer, feed readers
//!  /status, /policy ──> publish queue ──> pass-publish ── signs what has changed ──> ron-kms
//!  pass-keys ── reads the keys every few seconds ──> snapshot: heads, JWKS
//!  pass-issuers ── reads the keys of other issuers from their URLs ──> snapshot
//!  pass-policy ── reads the signed policy from files or URL ──> snapshot
//! ```
//!
//! **Invariants**: this service holds no private key; `exp` is exactly `iat + ttl`; a token's `kid`
//! is always the key that signed it (the KMS call pins the version), and was published before; a
//! revocation is durable, and covered by a checkpoint of the revocation log, before it is answered; epochs and policy versions only grow, also across a
//! restart; without the KMS issuing stops, while verification and revocation go on.

mod api;
mod boot;
mod clients;
mod dpop;
mod exchange;
pub mod explain;
mod external;
mod issue;
mod keys;
mod lists;
mod metrics;
mod migrate;
mod names;
mod node;
mod once;
mod open;
mod policy;
mod publish;
pub mod recover;
mod refused;
mod revoke;
#[cfg(test)]
mod samples;
mod settings;
mod sync;
mod token;
mod topology;
mod trail;
mod witness;

pub use boot::SvcPassport;
pub use migrate::{IssuerMove, IssuerService};
pub use once::MIGRATIONS as USED_IDS;
pub use revoke::LOG_DIR;
pub use revoke::verify::{Verified, verify};
