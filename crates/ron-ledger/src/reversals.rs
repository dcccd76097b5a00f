//! Compares reversals with what they reverse, for the offline check. A leaf states what its reversal
//! found under the reversed id; the state machine believes it, because it does not read the log. That
//! reversals of an entry do not exceed what they state of it is a rule of the state machine.

use std::path::Path;

use ron_proto::ledger::TxId;

use crate::core::{Body, DecodeError, Leaf, Original, State};
use crate::fault::Fault;
use crate::originals::original;

/// The reversals of a log, done and refused ones.
#[derive(Debug, Default)]
pub(crate) struct Reversals(Vec<Reversal>);

/// What the leaf of a reversal states.
#[derive(Debug)]
struct Reversal {
    seq: u64,
    tx: TxId,
    original: Option<Original>,
}

impl Reversals {
    /// Remembers the leaf if it is that of a reversal.
    pub fn note(&mut self, leaf: &Leaf) {
        if let Body::Reverse { tx, original, .. } = &leaf.op.entry().body {
            self.0.push(Reversal {
                seq: leaf.seq,
                tx: *tx,
                original: original.clone(),
            });
        }
    }

    /// Compares each with the entry that it names; `state` is the one after the last entry. The fault
    /// is that of the first reversal that is wrong.
    pub fn check(mut self, log: &Path, state: &State) -> Result<(), Fault> {
        let mut wrong: Option<(u64, String)> = None;
        let mut blame = |seq: u64, why: String| {
            if wrong.as_ref().is_none_or(|(first, _)| seq < *first) {
                wrong = Some((seq, why));
            }
        };
        self.0.retain(|reversal| {
            let named = reversal.tx.seq();
            let earlier = (1..reversal.seq).contains(&named);
            if !earlier && reversal.original.is_some() {
                let why = format!("it reverses entry {named}, which is not before it");
                blame(reversal.seq, why);
            }
            earlier
        });
        self.0.sort_unstable_by_key(|r| (r.tx.seq(), r.seq));
        let mut wanted: Vec<u64> = self.0.iter().map(|r| r.tx.seq()).collect();
        wanted.dedup();
        let mut groups = self.0.chunk_by(|a, b| a.tx.seq() == b.tx.seq());
        let read = ron_tlog::append::pick(log, &wanted, &mut |_, bytes, private| {
            let named = Named::read(bytes, private, state).map_err(|e| e.to_string())?;
            for reversal in groups.next().unwrap_or_default() {
                if let Err(why) = named.check(reversal) {
                    blame(reversal.seq, why);
                }
            }
            Ok(())
        });
        if let Some((seq, why)) = wrong {
            return Err(Fault::Entry { seq, why });
        }
        read.map_err(|e| Fault::Whole(e.to_string()))
    }
}

/// An entry that a reversal names.
struct Named {
    seq: u64,
    txid: TxId,
    /// What a reversal of it moves, or why it cannot be reversed.
    original: Result<Original, String>,
}

impl Named {
    fn read(bytes: &[u8], private: &[u8], state: &State) -> Result<Self, DecodeError> {
        let leaf = Leaf::decode(bytes, private)?;
        Ok(Self {
            seq: leaf.seq,
            txid: leaf.txid(),
            original: original(&leaf, state),
        })
    }

    fn check(&self, reversal: &Reversal) -> Result<(), String> {
        let n = self.seq;
        let found = match &self.original {
            _ if reversal.tx != self.txid => Err("has another id".to_owned()),
            Ok(original) => Ok(original),
            Err(why) => Err(why.clone()),
        };
        let (stated, found) = match (&reversal.original, found) {
            (None, Err(_)) => return Ok(()),
            (None, Ok(_)) => {
                return Err(format!(
                    "it was refused because entry {n} cannot be reversed, but it can"
                ));
            }
            (Some(_), Err(why)) => return Err(format!("it reverses entry {n}, which {why}")),
            (Some(stated), Ok(found)) => (stated, found),
        };
        let differs = |what: &str, stated: &str, found: &str| {
            if stated == found {
                return Ok(());
            }
            Err(format!(
                "it states that entry {n} {what} {stated}, but that is {found}"
            ))
        };
        differs("credited", stated.from.as_str(), found.from.as_str())?;
        differs("was paid by", stated.to.as_str(), found.to.as_str())?;
        differs("moved", stated.asset.as_str(), found.asset.as_str())?;
        let minor = |original: &Original| format!("{} minor units", original.amount.0);
        differs("moved", &minor(stated), &minor(found))
    }
}
