//! Types shared across process boundaries: value types, canonical JSON, problems, scopes, caveats,
//! and the request and response types of every API.
//!
//! **Invariant:** this crate is pure. It accesses no clock, file, socket or environment variable,
//! and no output depends on the iteration order of a hash map.

pub mod admin;
pub mod b64;
pub mod caveat;
pub mod events;
pub mod jcs;
pub mod kms;
pub mod ledger;
pub mod passport;
pub mod policy;
pub mod problem;
pub mod receipt;
pub mod rewarder;
pub mod scope;
pub mod status;
pub mod strict;
mod tagged;
pub mod values;
pub mod wallet;

pub use caveat::{Caveat, CaveatError};
pub use problem::{Problem, ProblemBody};
pub use receipt::LogReceipt;
pub use values::{
    Account, Alg, Amount, Asset, ContentId, DebitAmount, EpochId, IdemKey, Kid, KidVersion, OpId,
    Purpose, RequestId, SignedAmount, Tenant, Timestamp, ValueError,
};
