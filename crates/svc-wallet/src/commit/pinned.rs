//! Keys whose outcome is unknown: asked about, they are resolved with the ledger; never guessed.

use std::collections::BTreeSet;

use ron_kernel::RankedMutex;
use ron_proto::ledger::{EntryKey, PrincipalName};

use crate::topology::PINNED;

/// Keys remembered at once. Beyond that a key is not pinned: its caller is told to send again,
/// which is always safe.
const PINNED_MAX: usize = 65_536;

/// The set.
#[derive(Debug)]
pub struct Pinned(RankedMutex<BTreeSet<(String, String)>>);

impl Default for Pinned {
    fn default() -> Self {
        Self(RankedMutex::new(&PINNED, BTreeSet::new()))
    }
}

impl Pinned {
    /// Pins a key.
    pub fn pin(&self, principal: &PrincipalName, key: &EntryKey) {
        let mut all = self.0.lock();
        if all.len() < PINNED_MAX {
            all.insert((principal.as_str().to_owned(), key.as_str().to_owned()));
        }
    }

    /// Its outcome is known now.
    pub fn release(&self, principal: &PrincipalName, key: &EntryKey) {
        let mut all = self.0.lock();
        if !all.is_empty() {
            all.remove(&(principal.as_str().to_owned(), key.as_str().to_owned()));
        }
    }

    /// Is its outcome open?
    pub fn holds(&self, principal: &PrincipalName, key: &EntryKey) -> bool {
        let all = self.0.lock();
        !all.is_empty() && all.contains(&(principal.as_str().to_owned(), key.as_str().to_owned()))
    }
}
