//! One checked entry with its canonical request bytes: the input of the state machine.

use ron_proto::ledger::{RequestKey, TxId};

use super::codec::{DecodeError, In, Out};
use super::entry::{BadEntry, Body, Entry, Header, KeyHash, Kind};
use super::entry_codec::{decode, encode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    entry: Entry,
    request: Box<[u8]>,
    key: Option<KeyHash>,
}

impl Op {
    /// Checks what can be checked without state and makes the canonical bytes.
    pub fn new(entry: impl Into<Entry>) -> Result<Self, BadEntry> {
        let entry = entry.into();
        entry.check()?;
        let mut out = Out(Vec::with_capacity(192));
        encode(&entry, &mut out);
        let key = entry.header.key_hash();
        Ok(Self {
            entry,
            request: out.0.into_boxed_slice(),
            key,
        })
    }

    /// The entry with which `resolve` abandons a key.
    pub fn abandon(owned: RequestKey) -> Self {
        Self::new(Entry::new(Header::keyed(owned), Body::Abandon))
            .expect("an abandon entry has a key and nothing else to check")
    }

    pub const fn entry(&self) -> &Entry {
        &self.entry
    }

    pub const fn kind(&self) -> Kind {
        self.entry.body.kind()
    }

    /// The canonical bytes: equal exactly when two entries are equal.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The hash of the key with its owner; `None` for settlement entries and expiries.
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
        self.entry.repeats(&first.entry)
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
