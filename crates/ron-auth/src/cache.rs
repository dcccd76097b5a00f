//! Verified tokens by the hash of their text, so that a signature check is paid once per token.
//! Bounded: two generations; the older is dropped when the younger is full.
//!
//! The cache holds only what cannot change: that a token's signatures were valid, and under which
//! keys. On every hit the caller still checks whether those keys are the issuer's, and whether the
//! token has expired or was revoked.

use std::collections::HashMap;
use std::sync::Arc;

use ron_kernel::{LockSpec, RankedMutex};

use crate::jwks::{JwksSnapshot, PqRule, VerifyKey};
use crate::jwt::Claims;

/// The cache's lock; every service lists it in its topology.
pub const CACHE_LOCK: LockSpec = LockSpec {
    name: "auth.cache",
    rank: 902,
    guards: "verified tokens by hash, 8 shards",
};
static CACHE_LOCK_SPEC: LockSpec = CACHE_LOCK;

const SHARDS: usize = 8;

/// The keys under which a token's signatures were valid.
#[derive(Debug)]
pub struct SignedBy {
    /// The keys that the token names: one, or two for a hybrid.
    keys: Vec<(String, VerifyKey)>,
    /// The rule under which they were sufficient.
    rule: PqRule,
}

impl SignedBy {
    /// The keys of a token that was just verified with `keys`.
    pub fn of(claims: &Claims, keys: &JwksSnapshot) -> Self {
        let named = [Some(&claims.kid), claims.pq_kid.as_ref()];
        let known = |kid: &String| Some((kid.clone(), keys.find(kid)?.clone()));
        Self {
            keys: named.into_iter().flatten().filter_map(known).collect(),
            rule: keys.rule(),
        }
    }

    /// Whether exactly the same keys would be sufficient now.
    pub fn still(&self, keys: &JwksSnapshot) -> bool {
        let same = |(kid, key): &(String, _)| keys.still_holds(kid, key);
        keys.rule() == self.rule && self.keys.iter().all(same)
    }
}

/// A token whose signatures are valid.
#[derive(Debug)]
pub(crate) struct Verified {
    pub claims: Claims,
    pub by: SignedBy,
    pub scopes: Arc<[String]>,
    pub caveats: Arc<[ron_proto::Caveat]>,
    pub budgets: Arc<[ron_proto::ledger::TokenBudget]>,
}

#[derive(Debug)]
struct Generations<V> {
    young: HashMap<[u8; 32], Arc<V>>,
    old: HashMap<[u8; 32], Arc<V>>,
    /// Maximum entries of each generation.
    most: usize,
}

/// The cache; shared by the request threads.
#[derive(Debug)]
pub struct TokenCache<V> {
    shards: Vec<RankedMutex<Generations<V>>>,
}

impl<V> TokenCache<V> {
    /// A cache of about `tokens` entries; recently used tokens stay.
    pub fn new(tokens: usize) -> Self {
        let shard = |_| {
            let empty = Generations {
                young: HashMap::new(),
                old: HashMap::new(),
                most: (tokens / SHARDS / 2).max(1),
            };
            RankedMutex::new(&CACHE_LOCK_SPEC, empty)
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
        }
    }

    fn shard(&self, hash: &[u8; 32]) -> &RankedMutex<Generations<V>> {
        &self.shards[usize::from(hash[0]) % SHARDS]
    }

    /// A hit in the older generation moves to the younger one.
    fn find(&self, hash: &[u8; 32]) -> Option<Arc<V>> {
        let mut shard = self.shard(hash).lock();
        if let Some(found) = shard.young.get(hash) {
            return Some(found.clone());
        }
        let found = shard.old.remove(hash)?;
        shard.insert(*hash, found.clone());
        Some(found)
    }

    /// An entry for which `holds` is true; an entry for which it is false is removed.
    pub fn find_if(&self, hash: &[u8; 32], holds: impl FnOnce(&V) -> bool) -> Option<Arc<V>> {
        let found = self.find(hash)?;
        if holds(&found) {
            return Some(found);
        }
        self.remove(hash);
        None
    }

    pub fn insert(&self, hash: [u8; 32], verified: Arc<V>) {
        self.shard(&hash).lock().insert(hash, verified);
    }

    pub fn remove(&self, hash: &[u8; 32]) {
        let mut shard = self.shard(hash).lock();
        shard.young.remove(hash);
        shard.old.remove(hash);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards
            .iter()
            .map(ron_kernel::RankedMutex::lock)
            .map(|shard| shard.young.len() + shard.old.len())
            .sum()
    }
}

impl<V> Generations<V> {
    fn insert(&mut self, hash: [u8; 32], verified: Arc<V>) {
        if self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, verified);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signed with the key `kid`, and with `pq_kid` if given.
    fn claims(kid: &str, pq_kid: Option<&str>) -> Claims {
        Claims {
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
            kid: kid.into(),
            jkt: None,
            pq_kid: pq_kid.map(Into::into),
            x5t: None,
            ancestors: Vec::new(),
            budgets: Vec::new(),
        }
    }

    #[test]
    fn a_check_counts_while_the_very_same_keys_would_be_enough() {
        let set = |keys: &[(&str, u8)]| {
            let jwk = |(kid, byte): &(&str, u8)| {
                let x = ron_proto::b64::url(&[*byte; 32]);
                serde_json::json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x})
            };
            let doc = serde_json::json!({"keys": keys.iter().map(jwk).collect::<Vec<_>>()});
            JwksSnapshot::parse(doc.to_string().as_bytes()).unwrap()
        };
        let keys = set(&[("a", 1), ("b", 2)]);
        let by = SignedBy::of(&claims("a", None), &keys);
        assert!(by.still(&keys));
        assert!(by.still(&set(&[("a", 1), ("c", 3)])), "another one left");
        assert!(!by.still(&set(&[("b", 2)])), "its key left");
        assert!(
            !by.still(&set(&[("a", 9), ("b", 2)])),
            "another key, same name"
        );
        let both = SignedBy::of(&claims("a", Some("b")), &keys);
        assert!(both.still(&keys));
        assert!(!both.still(&set(&[("a", 1)])), "one of two left");
        let none = serde_json::json!({"keys": []}).to_string();
        let ruled = set(&[("a", 1)]).with_pq(none.as_bytes(), PqRule::Require);
        assert!(!by.still(&ruled.unwrap()), "another rule");
    }

    #[test]
    fn it_stays_bounded_and_keeps_what_is_used() {
        let cache = TokenCache::new(1600);
        let entry = Arc::new(());
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
        assert!(cache.len() <= 1600 / SHARDS, "{}", cache.len());
        assert!(cache.find(&hash(0)).is_none(), "the coldest entry is gone");
        assert!(cache.find_if(&hot, |()| true).is_some());
        assert!(cache.find_if(&hot, |()| false).is_none());
        assert!(
            cache.find(&hot).is_none(),
            "what does not hold is forgotten"
        );
        cache.insert(hot, entry);
        cache.remove(&hot);
        assert!(cache.find(&hot).is_none());
    }
}
