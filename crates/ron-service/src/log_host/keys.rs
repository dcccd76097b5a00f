//! The keys of a log as its readers are shown them: the chain of cross-signed rotations, swapped when there is a new one.

use std::sync::Arc;

use ron_kernel::Snapshot;
use ron_tlog::note::VerifierKey;
use ron_tlog::rotation::KeyChain;

/// What is shown of a log's keys; clones share it.
#[derive(Clone, Debug)]
pub struct KeyView(Arc<Snapshot<KeyChain>>);

impl KeyView {
    /// Shows `chain`.
    pub fn new(chain: KeyChain) -> Self {
        Self(Arc::new(Snapshot::new(chain)))
    }

    /// The only key of a log.
    pub fn of(key: VerifierKey) -> Self {
        Self::new(KeyChain::new(key))
    }

    /// Shows a longer chain.
    pub fn show(&self, chain: KeyChain) {
        self.0.store(chain);
    }

    /// All keys.
    pub fn chain(&self) -> Arc<KeyChain> {
        self.0.load()
    }

    /// The verifier key line of the key that signs now.
    pub fn vkey(&self) -> String {
        self.0.with(|chain| chain.newest().to_string())
    }
}
