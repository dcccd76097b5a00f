//! The ledger as a pure state machine: entries in, verdicts and state out.
//!
//! **Invariant:** nothing here reads a clock, a file, a socket, a thread or a random number, and no
//! hash order reaches an output. The same leaves give the same state in any store on any machine;
//! recovery, the offline check and a second store rely on that.
//!
//! [`Step`] decides entries against a [`State`] that it does not change and collects the
//! differences in a [`Delta`]. The caller makes the leaves durable and only then applies the delta,
//! so a batch that could not be made durable has no effect.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done(Option<Effect>),
    /// Nothing changed; `expected` is the next nonce or index, for the codes that carry one.
    Refused {
        code: RefusalCode,
        expected: Option<u64>,
    },
    /// Nothing changed: a limit of the operator refused the entry.
    Limited(Limit),
    /// Nothing changed: this epoch already paid for the usage.
    Paid(EpochId),
}

impl Verdict {
    const fn refused(code: RefusalCode) -> Self {
        Self::Refused {
            code,
            expected: None,
        }
    }

    /// The refusal code and its expected number, if any.
    pub const fn refusal(&self) -> Option<(RefusalCode, Option<u64>)> {
        match self {
            Self::Done(_) => None,
            Self::Refused { code, expected } => Some((*code, *expected)),
            Self::Limited(_) => Some((RefusalCode::LimitsExceeded, None)),
            Self::Paid(_) => Some((RefusalCode::UsagePaid, None)),
        }
    }

    /// The epoch that already paid for the usage, when the entry was refused for that reason.
    pub const fn paid_by(&self) -> Option<&EpochId> {
        match self {
            Self::Paid(epoch) => Some(epoch),
            _ => None,
        }
    }

    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// What a capture, release or expiry moved. It is known only when decided, so the leaf records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The account that the hold is on.
    pub from: Account,
    pub asset: Asset,
    /// Captured, or made available again.
    pub amount: Amount,
}

#[cfg(test)]
mod tests;
