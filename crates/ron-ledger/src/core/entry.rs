//! The entry, which is what the ledger decides: a header that all kinds share, and a body of one
//! kind.
//!
//! A change of an API does not touch these types: `wire.rs` converts them.

use ron_proto::ledger::{
    AccountTerms, AssetTerms, BatchTag, BudgetId, EntryKey, HoldRef, LEDGER_PRINCIPAL, MAX_BUDGETS,
    MAX_SCALE, Memo, Metadata, PrincipalName, Reference, RequestKey, Sides, TxId,
};
use ron_proto::{Account, Amount, Asset, ContentId, EpochId, Tenant, Timestamp};

use super::checks::{BadEntry, bad, count, positive};
use super::epoch::{EpochClose, EpochOpen, Payout};
pub use super::kind::Kind;

/// 128 bits of a BLAKE3 hash over a key with its owner (tenant and principal).
pub type KeyHash = [u8; 16];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub header: Header,
    pub body: Body,
}

/// What entries of all kinds have in common. All of it stands in the private record of the log,
/// whose encoding marks the optional fields that are present, so a new one leaves the bytes of other
/// entries as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tenant of the principal, and of the epoch that a settlement entry names.
    pub tenant: Tenant,
    /// The name that the entry is made for.
    pub principal: PrincipalName,
    /// Never used twice by its principal; absent in settlement entries and expiries.
    pub key: Option<EntryKey>,
    pub memo: Option<Memo>,
    pub metadata: Option<Metadata>,
    /// The caller's own reference.
    pub reference: Option<Reference>,
    /// Whether the payee's copy of the receipt shows the reference.
    pub share_reference: bool,
    /// For statements; no rule reads it.
    pub effective_at: Option<Timestamp>,
    /// The request that the entry is an item of.
    pub batch: Option<BatchTag>,
    /// Maximum minor units that entries with a ceiling may take from the account on one UTC day.
    pub daily_ceiling: Option<Amount>,
    /// The budgets of the token that asked for the entry, and of those that it was made from.
    pub budgets: Vec<Budget>,
}

/// What a token, and all that was made from it, may spend. Money of every asset counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub id: BudgetId,
    /// Maximum minor units in all.
    pub total: Option<Amount>,
    /// Maximum minor units per UTC day.
    pub daily: Option<Amount>,
    /// When the token has ended; the state forgets the budget afterwards.
    pub until: Timestamp,
}

impl Header {
    /// A header without optional fields.
    pub const fn new(tenant: Tenant, principal: PrincipalName) -> Self {
        Self {
            tenant,
            principal,
            key: None,
            memo: None,
            metadata: None,
            reference: None,
            share_reference: true,
            effective_at: None,
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        }
    }

    /// A header with a key and no other optional field.
    pub fn keyed(owned: RequestKey) -> Self {
        Self {
            key: Some(owned.key),
            ..Self::new(owned.tenant, owned.principal)
        }
    }

    /// The header of an entry that the ledger makes itself and that no key identifies.
    pub fn own() -> Self {
        let principal = LEDGER_PRINCIPAL.parse().expect("a constant name");
        Self::new(Tenant::system(), principal)
    }

    /// The hash by which the key is found; `None` without a key. Tenant and principal are preceded
    /// by their lengths, so that no two keys with their owners have the same input.
    pub(super) fn key_hash(&self) -> Option<KeyHash> {
        let key = self.key.as_ref()?.as_str().as_bytes();
        let [tenant, principal] =
            [self.tenant.as_str(), self.principal.as_str()].map(str::as_bytes);
        // The maximum lengths of the parts, so that hashing takes no memory from the heap.
        let mut buf = [0u8; 18 + 1 + 64 + 1 + 160 + 128];
        let mut n = 0;
        for part in [
            b"ron-ledger/v1/key\0".as_slice(),
            &[tenant.len() as u8],
            tenant,
            &[principal.len() as u8],
            principal,
            key,
        ] {
            buf[n..n + part.len()].copy_from_slice(part);
            n += part.len();
        }
        let hash = ron_crypto::hash::blake3(&buf[..n]);
        let mut out = [0; 16];
        out.copy_from_slice(&hash[..16]);
        Some(out)
    }

    /// The key with its owner.
    pub fn request_key(&self) -> Option<RequestKey> {
        self.key.clone().map(|key| RequestKey {
            tenant: self.tenant.clone(),
            principal: self.principal.clone(),
            key,
        })
    }

    /// True when both ask for the same. The daily ceiling and the budgets are not part of a request:
    /// they come from the policy in force and from the token, so they may differ when a request is
    /// repeated. Texts of `first` that were erased cannot be compared.
    fn same_but_limits(&self, first: &Self, erased: Erased) -> bool {
        self.tenant == first.tenant
            && self.principal == first.principal
            && self.key == first.key
            && (erased.memo || self.memo == first.memo)
            && (erased.metadata || self.metadata == first.metadata)
            && (erased.reference || self.reference == first.reference)
            && self.share_reference == first.share_reference
            && self.effective_at == first.effective_at
            && self.batch == first.batch
    }

    /// True when the header has what only some kinds take: texts and other details.
    const fn has_details(&self) -> bool {
        self.memo.is_some()
            || self.metadata.is_some()
            || self.reference.is_some()
            || !self.share_reference
            || self.effective_at.is_some()
            || self.batch.is_some()
    }
}

/// Which texts of an entry were erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erased {
    pub memo: bool,
    pub metadata: bool,
    pub reference: bool,
}

impl Erased {
    pub const fn any(self) -> bool {
        self.memo || self.metadata || self.reference
    }
}

/// A debit by the account's owner: the common part of transfer, burn and hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debit {
    pub from: Account,
    pub asset: Asset,
    /// With `up_to` zero until the entry is decided, then what it moves.
    pub amount: Amount,
    /// Moves all that is available of the account, which may not be more than this.
    pub up_to: Option<Amount>,
    /// Must be the account's last nonce plus one; without one the key alone makes the debit happen
    /// once.
    pub nonce: Option<u64>,
}

/// What an entry does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Issue {
        to: Account,
        asset: Asset,
        amount: Amount,
    },
    Transfer {
        debit: Debit,
        to: Account,
    },
    Burn {
        debit: Debit,
    },
    Hold {
        debit: Debit,
        expires_at: Timestamp,
    },
    Capture {
        /// Replaced by the id before the entry is decided, when an entry of the same commit makes the hold.
        hold: HoldRef,
        to: Account,
        /// All that is left of the hold when absent.
        amount: Option<Amount>,
        /// Releases what the capture leaves.
        ends_hold: bool,
    },
    Release {
        hold: HoldRef,
    },
    /// Written by the ledger alone, when a hold is due.
    Expire {
        hold: TxId,
    },
    Freeze {
        account: Account,
        sides: Sides,
    },
    Unfreeze {
        account: Account,
        sides: Sides,
    },
    Account {
        account: Account,
        terms: AccountTerms,
    },
    Asset {
        asset: Asset,
        terms: AssetTerms,
    },
    EpochOpen(EpochOpen),
    Payout(Payout),
    EpochClose(EpochClose),
    EpochVoid {
        epoch: EpochId,
        commitment: ContentId,
    },
    /// Written by the ledger alone, for a key that has no entry.
    Abandon,
    Reverse {
        tx: TxId,
        /// All that is left of the entry when absent.
        amount: Option<Amount>,
        /// Found in the log before the entry is decided; `None` when there is nothing to reverse.
        original: Option<Original>,
    },
}

/// The account that gets back what a reversed entry moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReversedTo<'b> {
    /// The account that the entry debited.
    Payer,
    /// The pool that funded this payout's epoch.
    PoolOf(&'b Payout),
}

/// What a reversed entry moved, seen from the reversal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    /// The account that the entry credited, which the reversal debits.
    pub from: Account,
    /// The account that the entry debited; the pool for a payout.
    pub to: Account,
    pub asset: Asset,
    pub amount: Amount,
}

impl Body {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Issue { .. } => Kind::Issue,
            Self::Transfer { .. } => Kind::Transfer,
            Self::Burn { .. } => Kind::Burn,
            Self::Hold { .. } => Kind::Hold,
            Self::Capture { .. } => Kind::Capture,
            Self::Release { .. } => Kind::Release,
            Self::Expire { .. } => Kind::Expire,
            Self::Freeze { .. } => Kind::Freeze,
            Self::Unfreeze { .. } => Kind::Unfreeze,
            Self::Account { .. } => Kind::Account,
            Self::Asset { .. } => Kind::Asset,
            Self::EpochOpen(_) => Kind::EpochOpen,
            Self::Payout(_) => Kind::Payout,
            Self::EpochClose(_) => Kind::EpochClose,
            Self::EpochVoid { .. } => Kind::EpochVoid,
            Self::Abandon => Kind::Abandon,
            Self::Reverse { .. } => Kind::Reverse,
        }
    }
}

impl Body {
    /// The debit of the kinds that have one.
    pub const fn debit(&self) -> Option<&Debit> {
        match self {
            Self::Transfer { debit, .. } | Self::Burn { debit } | Self::Hold { debit, .. } => {
                Some(debit)
            }
            _ => None,
        }
    }

    /// Where the money goes when a done entry is reversed; `None` for kinds that cannot be reversed.
    pub const fn reversed_to(&self) -> Option<ReversedTo<'_>> {
        match self {
            Self::Transfer { .. } | Self::Capture { .. } => Some(ReversedTo::Payer),
            // The escrow of the epoch is spent; the money came from its pool.
            Self::Payout(payout) => Some(ReversedTo::PoolOf(payout)),
            Self::Issue { .. }
            | Self::Burn { .. }
            | Self::Hold { .. }
            | Self::Release { .. }
            | Self::Expire { .. }
            | Self::Freeze { .. }
            | Self::Unfreeze { .. }
            | Self::Account { .. }
            | Self::Asset { .. }
            | Self::EpochOpen(_)
            | Self::EpochClose(_)
            | Self::EpochVoid { .. }
            | Self::Abandon
            | Self::Reverse { .. } => None,
        }
    }

    /// The hold that a capture or release names.
    pub const fn hold(&self) -> Option<HoldRef> {
        match self {
            Self::Capture { hold, .. } | Self::Release { hold } => Some(*hold),
            _ => None,
        }
    }

    /// The nonce, for debits by the account's owner.
    pub const fn nonce(&self) -> Option<u64> {
        match self.debit() {
            Some(debit) => debit.nonce,
            None => None,
        }
    }

    /// What is set for an account.
    pub(super) const fn account_terms(&self) -> Option<&AccountTerms> {
        match self {
            Self::Account { terms, .. } => Some(terms),
            _ => None,
        }
    }

    /// The maximum of a debit of all that is available.
    pub const fn up_to(&self) -> Option<Amount> {
        match self.debit() {
            Some(debit) => debit.up_to,
            None => None,
        }
    }

    /// True when both ask for the same. The nonce is not compared: a debit that met a nonce conflict
    /// is sent again under its key with the next nonce, and either attempt may arrive first.
    fn asks_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Transfer { debit: a, to: x }, Self::Transfer { debit: b, to: y }) => {
                a.moves_the_same(b) && x == y
            }
            (Self::Burn { debit: a }, Self::Burn { debit: b }) => a.moves_the_same(b),
            (
                Self::Hold {
                    debit: a,
                    expires_at: x,
                },
                Self::Hold {
                    debit: b,
                    expires_at: y,
                },
            ) => a.moves_the_same(b) && x == y,
            // What the ledger finds under `tx` is no part of the request.
            (
                Self::Reverse {
                    tx: a, amount: x, ..
                },
                Self::Reverse {
                    tx: b, amount: y, ..
                },
            ) => a == b && x == y,
            (a, b) => a == b,
        }
    }
}

impl Entry {
    pub const fn new(header: Header, body: Body) -> Self {
        Self { header, body }
    }

    /// True when `self` asks for the same as `first`, which was found under the same key, epoch or
    /// index. A settlement entry is the same also in another principal's name.
    pub(super) fn repeats(&self, first: &Self, erased: Erased) -> bool {
        match first.body.kind() {
            // The key was given up, so every request under it has this answer.
            Kind::Abandon => true,
            Kind::EpochOpen | Kind::Payout | Kind::EpochClose | Kind::EpochVoid => {
                self.body == first.body
            }
            Kind::Issue
            | Kind::Transfer
            | Kind::Burn
            | Kind::Hold
            | Kind::Capture
            | Kind::Release
            | Kind::Expire
            | Kind::Freeze
            | Kind::Unfreeze
            | Kind::Account
            | Kind::Asset
            | Kind::Reverse => {
                self.body.asks_the_same(&first.body)
                    && self.header.same_but_limits(&first.header, erased)
            }
        }
    }

    /// Checks what can be checked without state.
    pub(super) fn check(&self) -> Result<(), BadEntry> {
        let (keyed, details, budgets, ceiling) = match &self.body {
            Body::Issue { amount, .. } => {
                positive(*amount)?;
                (true, true, true, false)
            }
            Body::Capture { amount, .. } => {
                amount.map_or(Ok(()), positive)?;
                (true, true, true, false)
            }
            Body::Reverse { amount, .. } => {
                amount.map_or(Ok(()), positive)?;
                (true, true, true, true)
            }
            Body::Transfer { debit, to } => {
                if debit.from == *to {
                    return bad("to", "must differ from `from`");
                }
                debit.check()?;
                (true, true, true, true)
            }
            Body::Burn { debit } | Body::Hold { debit, .. } => {
                debit.check()?;
                (true, true, true, true)
            }
            Body::Release { .. } => (true, true, false, false),
            Body::Freeze { sides, .. } | Body::Unfreeze { sides, .. } => {
                if sides.is_none() {
                    return bad("sides", "are debits, credits or both");
                }
                (true, true, false, false)
            }
            Body::Account { terms, .. } => {
                if *terms == AccountTerms::default() {
                    return bad("terms", "set nothing");
                }
                (true, true, false, false)
            }
            Body::Asset { terms, .. } => {
                if terms.scale > MAX_SCALE {
                    return bad("scale", "is at most 38");
                }
                (true, true, false, false)
            }
            Body::Abandon => (true, false, false, false),
            Body::EpochOpen(open) => {
                open.check(&self.header.tenant)?;
                (false, false, false, false)
            }
            Body::Payout(payout) => {
                positive(payout.amount)?;
                count("index", payout.index, 0)?;
                (false, false, false, false)
            }
            Body::Expire { .. } | Body::EpochClose(_) | Body::EpochVoid { .. } => {
                (false, false, false, false)
            }
        };
        let h = &self.header;
        if h.key.is_some() != keyed {
            return bad("key", "stands in keyed kinds, and in all of these");
        }
        if h.has_details() && !details {
            return bad(
                "memo",
                "texts, times and batches do not belong to this kind",
            );
        }
        if h.daily_ceiling.is_some() && !ceiling {
            return bad("daily_ceiling", "does not belong to this kind");
        }
        if !h.budgets.is_empty() && !budgets {
            return bad("budgets", "do not belong to this kind");
        }
        check_budgets(&h.budgets)
    }
}

fn check_budgets(budgets: &[Budget]) -> Result<(), BadEntry> {
    if budgets.len() > MAX_BUDGETS {
        return bad("budgets", "are more than 17");
    }
    let twice = |(i, b): (usize, &Budget)| budgets[..i].iter().any(|other| other.id == b.id);
    if budgets.iter().enumerate().any(twice) {
        return bad("budgets", "name one id twice");
    }
    if budgets
        .iter()
        .any(|b| b.total.is_none() && b.daily.is_none())
    {
        return bad("budgets", "have a total, a daily maximum, or both");
    }
    Ok(())
}

impl Debit {
    fn check(&self) -> Result<(), BadEntry> {
        positive(self.up_to.unwrap_or(self.amount))?;
        self.nonce.map_or(Ok(()), |nonce| count("nonce", nonce, 1))
    }

    /// All that is available is the same however much it was; the maximum comes from the policy in force.
    fn moves_the_same(&self, other: &Self) -> bool {
        let all = |d: &Self| d.up_to.is_some();
        let amounts = all(self) || self.amount == other.amount;
        self.from == other.from && self.asset == other.asset && all(self) == all(other) && amounts
    }
}
