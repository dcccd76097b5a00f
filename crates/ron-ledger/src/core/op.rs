//! One checked entry with its private record: the input of the state machine.

use std::borrow::Cow;
use std::sync::Arc;

use ron_proto::Account;
use ron_proto::ledger::{RequestKey, TxId};

use super::checks::BadEntry;
use super::codec::DecodeError;
use super::entry::{Body, Entry, Erased, Header, KeyHash, Kind};
use super::private::{Layout, Salts, seal};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    entry: Entry,
    private: Arc<[u8]>,
    private_hash: [u8; 32],
    erased: Erased,
    key: Option<KeyHash>,
}

impl Op {
    /// Checks what can be checked without state and makes the private record. `salts` are random
    /// and used for this entry alone.
    pub fn new(entry: impl Into<Entry>, salts: &Salts) -> Result<Self, BadEntry> {
        let entry = entry.into();
        entry.check()?;
        let sealed = seal(&entry, salts);
        let key = entry.header.key_hash();
        Ok(Self {
            entry,
            private: sealed.bytes,
            private_hash: sealed.hash,
            erased: Erased::default(),
            key,
        })
    }

    /// The entry with which `resolve` abandons a key.
    pub fn abandon(owned: RequestKey, salts: &Salts) -> Self {
        Self::new(Entry::new(Header::keyed(owned), Body::Abandon), salts)
            .expect("an abandon entry has a key and nothing else to check")
    }

    /// An entry as it was read from the log.
    pub(super) fn read(
        entry: Entry,
        private: &[u8],
        private_hash: [u8; 32],
        erased: Erased,
    ) -> Result<Self, BadEntry> {
        entry.check()?;
        let key = entry.header.key_hash();
        Ok(Self {
            entry,
            private: private.into(),
            private_hash,
            erased,
            key,
        })
    }

    pub const fn entry(&self) -> &Entry {
        &self.entry
    }

    pub const fn kind(&self) -> Kind {
        self.entry.body.kind()
    }

    /// The payer and the payee that the entry names.
    pub(super) const fn accounts(&self) -> [Option<&Account>; 2] {
        match &self.entry.body {
            Body::Transfer { debit, to } => [Some(&debit.from), Some(to)],
            Body::Burn { debit } | Body::Hold { debit, .. } => [Some(&debit.from), None],
            Body::Issue { to, .. } | Body::Capture { to, .. } => [None, Some(to)],
            Body::Payout(payout) => [None, Some(&payout.to)],
            _ => [None, None],
        }
    }

    /// The hold that another entry of its linked commit makes; that entry's place in the commit.
    pub fn hold_item(&self) -> Option<usize> {
        let item = self.entry.body.hold()?.item()?;
        usize::try_from(item).ok()
    }

    /// The same entry with the id of the hold that it names. Neither the private record nor the transaction id depends
    /// on it.
    #[must_use]
    pub fn with_hold(&self, id: TxId) -> Self {
        let mut op = self.clone();
        if let Body::Capture { hold, .. } | Body::Release { hold } = &mut op.entry.body {
            *hold = id.into();
        }
        op
    }

    /// The private record, as the log stores it.
    pub const fn private(&self) -> &Arc<[u8]> {
        &self.private
    }

    /// The hash of the private record, as the leaf holds it.
    pub const fn private_hash(&self) -> &[u8; 32] {
        &self.private_hash
    }

    /// The texts that were erased since the entry was written.
    pub const fn erased(&self) -> Erased {
        self.erased
    }

    /// Checks that the private record is the one that the leaf was made with.
    pub fn check_private(&self) -> Result<(), DecodeError> {
        match Layout::of(&self.private)?.hash(&self.private) {
            Some(hash) if hash == self.private_hash => Ok(()),
            _ => Err(DecodeError {
                at: 0,
                why: "the private record is not the one that its leaf was written with".to_owned(),
            }),
        }
    }

    /// The hash of the key with its owner; `None` for settlement entries and expiries.
    pub const fn key(&self) -> Option<KeyHash> {
        self.key
    }

    /// The transaction id it has as the entry at `seq`.
    pub fn txid(&self, seq: u64) -> TxId {
        TxId::new(seq, &self.private_hash)
    }

    /// True when `self`, sent again, asks for the same as `first`, which was found under the same
    /// key, epoch or index. Texts of `first` that were erased are not compared.
    pub fn repeats(&self, first: &Self) -> bool {
        self.entry.repeats(&first.entry, first.erased)
    }
}

/// The entries of a linked commit, whose first one has the sequence `first`, with the ids of the holds that they make
/// for each other. A capture or release can name only the hold of an earlier entry.
pub fn with_holds(ops: &[Op], first: u64) -> Cow<'_, [Op]> {
    if ops.iter().all(|op| op.hold_item().is_none()) {
        return Cow::Borrowed(ops);
    }
    let one = |(i, op): (usize, &Op)| match op.hold_item() {
        Some(at) if at < i && ops[at].kind() == Kind::Hold => {
            op.with_hold(ops[at].txid(first + at as u64))
        }
        _ => op.clone(),
    };
    Cow::Owned(ops.iter().enumerate().map(one).collect())
}

/// The hash by which the key is found.
pub fn key_hash(owned: RequestKey) -> KeyHash {
    Header::keyed(owned)
        .key_hash()
        .expect("the header has a key")
}
