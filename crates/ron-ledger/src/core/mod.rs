//! The ledger as a pure state machine: entries in, verdicts and state out.
//!
//! **Invariant:** nothing here reads a clock, a file, a socket, a thread or a random number, and no
//! hash order reaches an output. The same leaves give the same state in any store on any machine;
//! recovery, the offline check and a second store rely on that.
//!
//! [`Step`] decides entries against a [`State`] that it does not change and collects the
//! differences in a [`Delta`]. The caller makes the leaves durable and only then applies the delta,
//! so a batch that could not be made durable has no effect.

mod checks;
mod codec;
mod decide;
mod delta;
mod entry;
mod entry_codec;
mod epoch;
mod epoch_row;
mod image;
mod kind;
mod leaf;
mod limits;
mod op;
mod overlay;
mod private;
mod rules;
mod settlement;
mod state;
mod terms;
mod terms_codec;
mod verdict;

pub use checks::BadEntry;
pub use codec::DecodeError;
pub use decide::{Batch, Broken, Outcome, Record, Step};
pub use delta::Delta;
pub use entry::{Body, Budget, Debit, Entry, Erased, Header, KeyHash, Kind, Original, ReversedTo};
pub use entry_codec::Facts;
pub use epoch::{EpochClose, EpochOpen, Payout};
pub use image::ImageError;
pub use leaf::{Leaf, Link, Place, PublicLeaf, genesis, read_genesis};
pub use limits::{ACCOUNTS_MAX, Limit, Limits, REFUSALS_MAX};
pub use op::{Op, key_hash, with_holds};
pub use private::{Layout, Opening, Part, Private, Salts};
pub(crate) use private::{SALT, Table, read_caller, read_metadata, read_text};
pub use state::{
    AccountRow, AssetRow, Balance, BalanceLimits, BudgetRow, EpochAsset, EpochKey, EpochRow,
    Frozen, HoldRow, RowTerms, State,
};
pub use verdict::{Effect, Refusal, Verdict};

#[cfg(test)]
mod tests;
