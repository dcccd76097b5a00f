//! Durable counts of the uses of key versions: blocks of use numbers, reserved before the first number is
//! used and never returned. Each block is of one node.

use std::sync::Arc;

use ron_proto::values::Kid;

use super::write::TRIES;
use super::{KeyStore, StoreError};
use crate::backend::SecretHalf;
use crate::keys::aead_of;

impl KeyStore {
    /// The secret half of a version, if it is kept in memory.
    pub fn secret(&self, kid: &Kid, number: u32) -> Option<Arc<SecretHalf>> {
        self.records.get(kid)?.secrets.get(&number).cloned()
    }

    /// Number of reserved uses of the version.
    pub fn uses_reserved(&self, kid: &Kid, number: u32) -> u32 {
        let at = (number as usize).checked_sub(1);
        let uses = self.records.get(kid).map(|record| &record.meta.uses);
        uses.and_then(|uses| uses.get(at?).copied()).unwrap_or(0)
    }

    /// Reserves the next `block` uses of the version, fewer near `cap`: the numbers
    /// `from..to`, durable when this returns. `None` when the cap is reached.
    pub fn reserve_uses(
        &mut self,
        kid: &Kid,
        number: u32,
        block: u32,
        cap: u32,
    ) -> Result<Option<(u32, u32)>, StoreError> {
        for _ in 0..TRIES {
            match self.reserve(kid, number, block, cap) {
                // Another node has reserved a block, or changed a key: the next one begins behind it.
                Err(StoreError::Moved) => self.refresh()?,
                done => return done,
            };
        }
        Err(StoreError::Moved)
    }

    /// Takes the uses that are left of every version whose nonces are counted, and returns these keys: in a store that was
    /// restored from a backup it is not known which numbers were used since. Such a key wraps again when it is rotated.
    pub fn close_uses(&mut self) -> Result<Vec<Kid>, StoreError> {
        let counted = self
            .records
            .iter()
            .filter(|(kid, _)| aead_of(kid.alg).is_some());
        let mut changed = Vec::new();
        for (kid, record) in counted {
            let mut record = record.clone();
            record.meta.uses = vec![u32::MAX; record.versions.len()];
            changed.push((kid.clone(), record));
        }
        let kids: Vec<Kid> = changed.iter().map(|(kid, _)| kid.clone()).collect();
        if !kids.is_empty() {
            self.replace(changed, |_| Ok(()))?;
        }
        Ok(kids)
    }

    fn reserve(
        &mut self,
        kid: &Kid,
        number: u32,
        block: u32,
        cap: u32,
    ) -> Result<Option<(u32, u32)>, StoreError> {
        let from = self.uses_reserved(kid, number);
        let to = from.saturating_add(block).min(cap);
        if to <= from || number == 0 {
            return Ok(None);
        }
        let Some(record) = self.records.get(kid) else {
            return Err(StoreError::Db("there is no such key".into()));
        };
        let mut record = record.clone();
        let uses = &mut record.meta.uses;
        uses.resize(uses.len().max(number as usize), 0);
        uses[number as usize - 1] = to;
        self.replace(vec![(kid.clone(), record)], |_| Ok(()))?;
        Ok(Some((from, to)))
    }
}
