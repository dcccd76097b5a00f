//! ron-auth: authenticates callers and authorizes requests. The `Authorizer` of every service.
//!
//! ```text
//!  request head ──> bearer ──┬─ ron_<name>_... ──> service_token: SHA-256 against the configuration
//!                            └─ anything else ───> cache ─miss─> jwt: signature, header, claims (pure)
//!                                                    │           narrow: statements of holders (pure)
//!                                                    └──> revocation view, dpop, caveats, scope, meter ──> Principal
//!  refresh threads (never in the request path): keys <── jwks_url, limited to those listed by the signed note_url     revocations <── events_url (long poll)
//! ```
//!
//! **Invariants:** default deny: every path to a `Principal` passes an explicit check. No request
//! waits for the network. The last good keys stay in use. Until keys and revocations have been read
//! once, passports get 503 and service tokens work. No token, key or claim is ever logged or sent
//! back.

mod authorizer;
mod cache;
pub mod caveats;
pub mod client_secret;
pub mod dpop;
mod expiring;
mod feed;
mod foreign;
mod held;
pub mod hybrid;
mod jwks;
mod jws;
mod jwt;
mod keys;
mod meter;
mod names;
pub mod narrow;
pub mod policy_note;
mod proofs;
mod refresh;
mod refusals;
mod reject;
mod revocation;
pub mod revocation_log;
mod scheme;
mod seen;
pub mod service_token;
mod settings;
mod spending;
mod state;
mod trust;

pub use authorizer::{AuthThreads, RonAuthorizer, x5t_s256};
pub use cache::{CACHE_LOCK, SignedBy, TokenCache};
pub use caveats::CaveatCtx;
pub use foreign::{FOREIGN_KEYS_MAX, ForeignKeys};
pub use held::HeldPassport;
pub use jwks::{JwksError, JwksSnapshot, JwsAlg, KeyUse, PqRule, VerifyKey};
pub use jws::{Holder, Jws};
pub use jwt::{Ancestor, Claims, Expect, verify_jwt};
pub use meter::{METER_LOCK, counted};
pub use policy_note::{NoteRefused, PolicyNote};
pub use proofs::ProofCache;
pub use refresh::{Fetch, FetchError, REFRESH_QUEUE};
pub use reject::{AuthReject, PROOF_ALGS};
pub use revocation::{FeedGap, HistoryLost, RevocationView};
pub use scheme::{Scheme, authorization};
pub use seen::{AllSeen, IssuerRecord, NOTE_LOCK, SEEN_FILE, read_seen, write_seen};
pub use settings::{
    AuthConfig, AuthFault, AuthSettings, IssuerConfig, PrincipalSettings, ServicePrincipal,
};
pub use trust::Followed;
