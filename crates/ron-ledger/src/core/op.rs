//! One checked entry with its canonical request bytes: the input of the state machine.

use ron_proto::Amount;
use ron_proto::ledger::{
    Entry, EntryKey, EntryKind, MAX_WIRE_INTEGER, PrincipalName, TxId, is_pool_of,
};

use super::codec::{DecodeError, In, Out};
use super::op_codec::{decode, encode};

/// 128 bits of a BLAKE3 hash over (principal, key).
pub type KeyHash = [u8; 16];

/// Why an entry is malformed. This is not a refusal: it is answered at once and leaves no leaf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct BadEntry {
    pub field: &'static str,
    pub why: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    entry: Entry,
    request: Box<[u8]>,
    key: Option<KeyHash>,
}

impl Op {
    /// Checks what can be checked without state and makes the canonical bytes.
    pub fn new(entry: Entry) -> Result<Self, BadEntry> {
        check(&entry)?;
        let mut out = Out(Vec::with_capacity(192));
        encode(&entry, &mut out);
        let key = entry.principal_key().map(|(p, k)| key_hash(p, k));
        Ok(Self {
            entry,
            request: out.0.into_boxed_slice(),
            key,
        })
    }

    /// The entry with which `resolve` abandons a key.
    pub fn abandon(principal: PrincipalName, key: EntryKey) -> Self {
        Self::new(Entry::Abandon { principal, key })
            .expect("two checked names make an abandon entry")
    }

    pub const fn entry(&self) -> &Entry {
        &self.entry
    }

    pub const fn kind(&self) -> EntryKind {
        self.entry.kind()
    }

    /// The canonical bytes: equal exactly when two requests are the same request.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The hash of (principal, key); `None` for settlement entries and expiries.
    pub const fn key(&self) -> Option<KeyHash> {
        self.key
    }

    /// The transaction id it has as the entry at `seq`.
    pub fn txid(&self, seq: u64) -> TxId {
        TxId::derive(seq, &self.request)
    }

    /// True when `self`, sent again, asks for the same as `first`, which was found under the same
    /// key, epoch or index.
    pub fn repeats(&self, first: &Self) -> bool {
        match (&self.entry, &first.entry) {
            (_, Entry::Abandon { .. }) => true,
            (
                Entry::Payout {
                    index,
                    to,
                    asset,
                    amount_minor,
                    ..
                },
                Entry::Payout {
                    index: i,
                    to: t,
                    asset: s,
                    amount_minor: a,
                    ..
                },
            ) => (index, to, asset, amount_minor) == (i, t, s, a),
            // The state compared every field that an epoch is bound to.
            (Entry::EpochOpen { .. }, Entry::EpochOpen { .. })
            | (Entry::EpochClose { .. }, Entry::EpochClose { .. }) => true,
            _ => self.request == first.request || same_but_ceiling(&self.entry, &first.entry),
        }
    }

    /// Decodes canonical request bytes up to the end of `input`.
    pub(crate) fn decode(input: &mut In<'_>) -> Result<Self, DecodeError> {
        let at = input.at();
        let bytes = input.rest();
        let entry = decode(input)?;
        input.end()?;
        let op = Self::new(entry).map_err(|e| DecodeError {
            at,
            why: e.to_string(),
        })?;
        if *op.request != *bytes {
            return Err(DecodeError {
                at,
                why: "the request is not in canonical form".to_owned(),
            });
        }
        Ok(op)
    }
}

/// A daily ceiling comes from the policy at the time of the request and is not part of the request
/// itself: after a policy change, a repeated request is still the same request.
fn same_but_ceiling(a: &Entry, b: &Entry) -> bool {
    a.kind() == b.kind() && a.clone().without_ceiling() == b.clone().without_ceiling()
}

/// The hash of (principal, key); the principal is length-prefixed, so that no two pairs collide.
pub(crate) fn key_hash(principal: &PrincipalName, key: &EntryKey) -> KeyHash {
    let (p, k) = (principal.as_str().as_bytes(), key.as_str().as_bytes());
    let mut buf = [0u8; 24 + 2 + 160 + 128];
    let mut n = 0;
    for part in [b"ron-ledger/v1/key\0".as_slice(), &[p.len() as u8], p, k] {
        buf[n..n + part.len()].copy_from_slice(part);
        n += part.len();
    }
    let hash = ron_crypto::hash::blake3(&buf[..n]);
    let mut out = [0; 16];
    out.copy_from_slice(&hash[..16]);
    out
}

fn check(entry: &Entry) -> Result<(), BadEntry> {
    let bad = |field, why| Err(BadEntry { field, why });
    match entry {
        Entry::Issue { amount_minor, .. } | Entry::Capture { amount_minor, .. } => {
            positive(*amount_minor)
        }
        Entry::Transfer {
            from,
            to,
            amount_minor,
            nonce,
            ..
        } => {
            if from == to {
                return bad("to", "must differ from `from`");
            }
            positive(*amount_minor)?;
            count("nonce", *nonce, 1)
        }
        Entry::Burn {
            amount_minor,
            nonce,
            ..
        }
        | Entry::Hold {
            amount_minor,
            nonce,
            ..
        } => {
            positive(*amount_minor)?;
            count("nonce", *nonce, 1)
        }
        Entry::EpochOpen { .. } => check_epoch_open(entry),
        Entry::Payout {
            amount_minor,
            index,
            ..
        } => {
            positive(*amount_minor)?;
            count("index", *index, 0)
        }
        Entry::Release { .. }
        | Entry::Expire { .. }
        | Entry::Freeze { .. }
        | Entry::Unfreeze { .. }
        | Entry::EpochClose { .. }
        | Entry::Abandon { .. } => Ok(()),
    }
}

fn check_epoch_open(entry: &Entry) -> Result<(), BadEntry> {
    let bad = |field, why| Err(BadEntry { field, why });
    let Entry::EpochOpen {
        tenant,
        epoch,
        from,
        amount_minor,
        recipients,
        adjusts,
        ..
    } = entry
    else {
        unreachable!("called for epoch_open only");
    };
    // A rule of the core, so that no caller that settles for several tenants pays one tenant's
    // epoch from another's pool.
    if !is_pool_of(tenant, from) {
        return bad("from", "must be a pool of the tenant: pool:<tenant>/<name>");
    }
    if adjusts.as_ref() == Some(epoch) {
        return bad("adjusts", "must name another epoch");
    }
    count("recipients", *recipients, 0)?;
    if (*recipients == 0) != (amount_minor.0 == 0) || amount_minor.0 < u128::from(*recipients) {
        return bad(
            "amount_minor",
            "must be at least one minor unit per recipient, and 0 without recipients",
        );
    }
    Ok(())
}

fn positive(amount: Amount) -> Result<(), BadEntry> {
    if amount.0 == 0 {
        Err(BadEntry {
            field: "amount_minor",
            why: "must be above zero",
        })
    } else {
        Ok(())
    }
}

fn count(field: &'static str, n: u64, min: u64) -> Result<(), BadEntry> {
    match n {
        n if n < min => Err(BadEntry {
            field,
            why: "counts from 1",
        }),
        n if n > MAX_WIRE_INTEGER => Err(BadEntry {
            field,
            why: "must be below 2^53",
        }),
        _ => Ok(()),
    }
}
