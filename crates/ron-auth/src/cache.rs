//! Verified tokens by the hash of their text, so that an Ed25519 check is paid once per token. Bounded: two
//! generations, the older is dropped when the younger is full.

use crate::jwks::{PqRule, VerifyKey};
use crate::jwt::Claims;
use ron_kernel::{LockSpec, RankedMutex};
use std::collections::HashMap;
use std::sync::Arc;

/// The cache's lock; every service lists it in its topology.
pub const CACHE_LOCK: LockSpec = LockSpec {
    name: "auth.cache",
    rank: 902,
    guards: "verified tokens by hash, 8 shards",
};
static CACHE_LOCK_SPEC: LockSpec = CACHE_LOCK;

const SHARDS: usize = 8;
/// Per shard and generation: at most 2 x 8 x 1024 tokens are remembered.
const GENERATION_MAX: usize = 1024;

/// A token whose signature was good under these keys.
#[derive(Debug)]
pub(crate) struct Verified {
    pub claims: Claims,
    /// The keys it names that were known: one, or two of a hybrid.
    pub keys: Vec<(String, VerifyKey)>,
    /// The rule under which it was.
    pub rule: PqRule,
    pub scopes: Arc<[String]>,
    pub caveats: Arc<[ron_proto::Caveat]>,
}

type Entries = HashMap<[u8; 32], Arc<Verified>>;

#[derive(Debug, Default)]
struct Generations {
    young: Entries,
    old: Entries,
}

#[derive(Debug)]
pub(crate) struct TokenCache {
    shards: Vec<RankedMutex<Generations>>,
}

impl TokenCache {
    pub fn new() -> Self {
        let shard = |_| RankedMutex::new(&CACHE_LOCK_SPEC, Generations::default());
        Self {
            shards: (0..SHARDS).map(shard).collect(),
        }
    }

    fn shard(&self, hash: &[u8; 32]) -> &RankedMutex<Generations> {
        &self.shards[usize::from(hash[0]) % SHARDS]
    }

    pub fn find(&self, hash: &[u8; 32]) -> Option<Arc<Verified>> {
        let mut shard = self.shard(hash).lock();
        if let Some(found) = shard.young.get(hash) {
            return Some(found.clone());
        }
        let found = shard.old.remove(hash)?;
        shard.insert(*hash, found.clone());
        Some(found)
    }

    pub fn insert(&self, hash: [u8; 32], verified: Arc<Verified>) {
        self.shard(&hash).lock().insert(hash, verified);
    }

    pub fn remove(&self, hash: &[u8; 32]) {
        let mut shard = self.shard(hash).lock();
        shard.young.remove(hash);
        shard.old.remove(hash);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards
            .iter()
            .map(ron_kernel::RankedMutex::lock)
            .map(|shard| shard.young.len() + shard.old.len())
            .sum()
    }
}

impl Generations {
    fn insert(&mut self, hash: [u8; 32], verified: Arc<Verified>) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, verified);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified() -> Arc<Verified> {
        let claims = Claims {
            iss: "i".into(),
            sub: "s".into(),
            iat: 0,
            nbf: 0,
            exp: 1,
            jti: "j".into(),
            client_id: None,
            tenant: "default".parse().unwrap(),
            scopes: Vec::new(),
            epoch: 0,
            caveats: Vec::new(),
            kid: "k".into(),
            jkt: None,
            pq_kid: None,
            x5t: None,
        };
        Arc::new(Verified {
            claims,
            keys: vec![("k".into(), VerifyKey::Ed25519([0; 32]))],
            rule: PqRule::Off,
            scopes: Arc::from([]),
            caveats: Arc::from([]),
        })
    }

    #[test]
    fn it_stays_bounded_and_keeps_what_is_used() {
        let cache = TokenCache::new();
        let entry = verified();
        let hash = |n: u32| {
            let mut hash = [0; 32];
            hash[1..5].copy_from_slice(&n.to_le_bytes()); // all in shard 0
            hash
        };
        let hot = hash(u32::MAX);
        cache.insert(hot, entry.clone());
        for n in 0..10_000 {
            cache.insert(hash(n), entry.clone());
            assert!(
                cache.find(&hot).is_some(),
                "the hot entry was dropped after {n}"
            );
        }
        assert!(cache.len() <= 2 * GENERATION_MAX, "{}", cache.len());
        assert!(cache.find(&hash(0)).is_none(), "the coldest entry is gone");
        cache.remove(&hot);
        assert!(cache.find(&hot).is_none());
    }
}
