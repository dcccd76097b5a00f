//! The keys of a log as published to its readers: the chain of cross-signed rotations, replaced
//! after each rotation.

use std::sync::Arc;

use ron_kernel::Snapshot;
use ron_tlog::note::VerifierKey;
use ron_tlog::rotation::KeyChain;

/// The published keys; clones share them.
#[derive(Clone, Debug)]
pub struct KeyView(Arc<Snapshot<KeyChain>>);

impl KeyView {
    pub fn new(chain: KeyChain) -> Self {
        Self(Arc::new(Snapshot::new(chain)))
    }

    /// A log with only one key.
    pub fn of(key: VerifierKey) -> Self {
        Self::new(KeyChain::new(key))
    }

    /// Publishes a longer chain.
    pub fn show(&self, chain: KeyChain) {
        self.0.store(chain);
    }

    pub fn chain(&self) -> Arc<KeyChain> {
        self.0.load()
    }

    /// The verifier key line of the current signing key.
    pub fn vkey(&self) -> String {
        self.0.with(|chain| chain.newest().to_string())
    }
}
