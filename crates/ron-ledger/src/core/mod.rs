//! The ledger as a pure state machine: entries in, verdicts and state out.
//!
//! **Invariant:** nothing here reads a clock, a file, a socket, a thread or a random number, and no hash
//! order reaches an output. The same leaves give the same state in any store on any machine; that is what
//! recovery, the offline check and a second store rest on.
//!
//! [`Step`] decides entries against a [`State`] it does not change and collects the differences in a
//! [`Delta`]; the caller makes the leaves durable and only then applies the delta. A batch that could not be
//! made durable therefore never happened.

mod codec;
mod decide;
mod delta;
mod image;
mod leaf;
mod limits;
mod op;
mod op_codec;
mod rules;
mod state;

pub use codec::DecodeError;
pub use decide::{Batch, Broken, Outcome, Step};
pub use delta::Delta;
pub use image::ImageError;
pub use leaf::{Body, Leaf, Link};
pub use limits::{ACCOUNTS_MAX, Limit, Limits};
pub use op::{BadEntry, KeyHash, Op};
pub use state::{AccountRow, AssetRow, Balance, EpochKey, EpochRow, Frozen, HoldRow, State};

use ron_proto::ledger::RefusalCode;
use ron_proto::{Account, Amount, Asset, EpochId};

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The entry took effect.
    Done(Option<Effect>),
    /// Nothing changed; `expected` is the next nonce or index where the code speaks of one.
    Refused {
        code: RefusalCode,
        expected: Option<u64>,
    },
    /// Nothing changed, because of a limit that the operator set.
    Limited(Limit),
    /// Nothing changed: this epoch paid the usage.
    Paid(EpochId),
}

impl Verdict {
    const fn refused(code: RefusalCode) -> Self {
        Self::Refused {
            code,
            expected: None,
        }
    }

    /// The code of a refusal and the expected number that goes with it.
    pub const fn refusal(&self) -> Option<(RefusalCode, Option<u64>)> {
        match self {
            Self::Done(_) => None,
            Self::Refused { code, expected } => Some((*code, *expected)),
            Self::Limited(_) => Some((RefusalCode::LimitsExceeded, None)),
            Self::Paid(_) => Some((RefusalCode::UsagePaid, None)),
        }
    }

    /// The epoch that paid the usage, where that is why the entry was refused.
    pub const fn paid_by(&self) -> Option<&EpochId> {
        match self {
            Self::Paid(epoch) => Some(epoch),
            _ => None,
        }
    }

    /// True when the entry took effect.
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// What a capture, release or expiry moved: known only when decided, so kept in the leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The account the hold was on.
    pub from: Account,
    pub asset: Asset,
    /// Captured, or made available again.
    pub amount: Amount,
}

#[cfg(test)]
mod tests;
