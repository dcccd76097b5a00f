//! The ids of used proofs and client assertions, kept until they are too old to be used again.
//!
//! A full table refuses new ids and never drops live ones, or a proof could be used twice. The
//! space is shared out: a holder (a client) is refused as soon as it has as many ids here as there
//! are places free. A holder that fills its share therefore locks out only itself: N holders that
//! take all they can leave one part in N + 1 free, and a holder with no ids here is always
//! accepted.
//!
//! Every call does a bounded amount of work under the lock: it drops at most [`FORGET_MAX`] expired
//! ids and adds one, so the table empties faster than it fills and no call pays for the ids of
//! others.

use std::collections::{BTreeMap, HashMap};

use ron_kernel::{LockSpec, RankedMutex};

use crate::reject::AuthReject;

/// Maximum ids at one time; about 10 MB.
const PLACES: usize = 131_072;
/// Maximum expired ids that one call drops.
const FORGET_MAX: usize = 64;

/// 128 bits of a SHA-256 over a holder's name, or over key and id.
type ShortHash = [u8; 16];

#[derive(Debug)]
pub struct ProofCache {
    places: usize,
    memory: RankedMutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Id -> Unix second until which it counts as used.
    seen: HashMap<ShortHash, u64>,
    /// The same ids by that second, each with the holder that pays for it.
    by_end: BTreeMap<u64, Vec<(ShortHash, ShortHash)>>,
    shares: HashMap<ShortHash, usize>,
}

impl ProofCache {
    pub fn new(lock: &'static LockSpec) -> Self {
        Self::with_places(lock, PLACES)
    }

    fn with_places(lock: &'static LockSpec, places: usize) -> Self {
        Self {
            places,
            memory: RankedMutex::new(lock, Memory::default()),
        }
    }

    /// Records an id that was used before a restart: it stays used, whatever the share of its holder.
    pub fn restore(&self, holder: &str, used: (&str, &str), until_s: u64, now_s: u64) {
        if until_s < now_s {
            return;
        }
        let (holder, id) = (short(holder.as_bytes()), id_of(used));
        let mut memory = self.memory.lock();
        if !memory.seen.contains_key(&id) {
            memory.add(holder, id, until_s);
        }
    }

    /// Records the id of a key until `until_s`; check and insertion are one step under the lock.
    /// Refuses an id that is present (`ProofReplay`), and a new one of a holder whose share is full
    /// (`ProofsFull`).
    pub fn take(
        &self,
        holder: &str,
        (key, id): (&str, &str),
        until_s: u64,
        now_s: u64,
    ) -> Result<(), AuthReject> {
        let (holder, id) = (short(holder.as_bytes()), id_of((key, id)));
        let mut memory = self.memory.lock();
        memory.forget(now_s);
        let seen = memory.seen.get(&id).is_some_and(|until| *until >= now_s);
        #[cfg(mutant = "reused")] // a proof counts as often as it comes
        let seen = seen && !ron_kernel::mutant("reused");
        if seen {
            return Err(AuthReject::ProofReplay);
        }
        let share = memory.shares.get(&holder).copied().unwrap_or_default();
        if share >= self.places.saturating_sub(memory.taken()) {
            return Err(AuthReject::ProofsFull);
        }
        memory.add(holder, id, until_s);
        Ok(())
    }
}

fn id_of((key, id): (&str, &str)) -> ShortHash {
    let mut bytes = Vec::with_capacity(key.len() + id.len() + 1);
    bytes.extend_from_slice(key.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(id.as_bytes());
    short(&bytes)
}

impl Memory {
    /// Occupied places, including expired ids that are not dropped yet.
    fn taken(&self) -> usize {
        self.seen.len()
    }

    fn add(&mut self, holder: ShortHash, id: ShortHash, until_s: u64) {
        self.seen.insert(id, until_s);
        self.by_end.entry(until_s).or_default().push((id, holder));
        *self.shares.entry(holder).or_default() += 1;
    }

    fn forget(&mut self, now_s: u64) {
        for _ in 0..FORGET_MAX {
            let Some(mut first) = self.by_end.first_entry() else {
                return;
            };
            let until_s = *first.key();
            if until_s >= now_s {
                return;
            }
            let Some((id, holder)) = first.get_mut().pop() else {
                first.remove();
                continue;
            };
            // An expired id may have been used again in the meantime; then its later entry counts.
            if self.seen.get(&id) == Some(&until_s) {
                self.seen.remove(&id);
            }
            if let Some(share) = self.shares.get_mut(&holder) {
                *share -= 1;
                if *share == 0 {
                    self.shares.remove(&holder);
                }
            }
        }
    }
}

fn short(bytes: &[u8]) -> ShortHash {
    let hash = ron_crypto::hash::sha256(bytes);
    let mut short = ShortHash::default();
    short.copy_from_slice(&hash[..16]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    static LOCK: LockSpec = LockSpec {
        name: "test",
        rank: 1,
        guards: "used ids",
    };

    /// Takes ids beginning with `prefix` until the holder's share is full.
    fn fill(cache: &ProofCache, holder: &str, prefix: &str, (until_s, now_s): (u64, u64)) -> usize {
        let taken = (0..10_000).take_while(|n| {
            let id = format!("{prefix}{n}");
            match cache.take(holder, (holder, &id), until_s, now_s) {
                Ok(()) => true,
                Err(AuthReject::ProofsFull) => false,
                Err(other) => panic!("{other:?}"),
            }
        });
        taken.count()
    }

    #[test]
    fn an_id_counts_once_until_it_is_too_old() {
        let cache = ProofCache::new(&LOCK);
        let take = |key: &str, until_s, now_s| cache.take("h", (key, "1"), until_s, now_s);
        assert_eq!(take("k", 160, 100), Ok(()));
        assert_eq!(take("k", 160, 150), Err(AuthReject::ProofReplay));
        assert_eq!(take("k", 160, 160), Err(AuthReject::ProofReplay));
        let other = cache.take("other holder", ("k", "1"), 160, 150);
        assert_eq!(other, Err(AuthReject::ProofReplay), "whoever shows it");
        assert_eq!(take("l", 160, 150), Ok(()), "another key");
        assert_eq!(take("k", 260, 200), Ok(()), "too old to be used anyway");
        assert_eq!(take("k", 260, 250), Err(AuthReject::ProofReplay));
    }

    #[test]
    fn a_holder_that_fills_its_share_is_refused_alone() {
        let cache = ProofCache::with_places(&LOCK, 1_000);
        assert_eq!(fill(&cache, "greedy", "a", (160, 100)), 500);
        assert_eq!(fill(&cache, "greedy too", "a", (160, 100)), 250);
        let used = cache.take("greedy", ("greedy", "a0"), 160, 100);
        assert_eq!(used, Err(AuthReject::ProofReplay), "a used one stays used");
        for holder in 0..100 {
            let holder = holder.to_string();
            let one = cache.take(&holder, (&holder, "1"), 160, 100);
            assert_eq!(one, Ok(()), "{holder}");
        }
        assert_eq!(fill(&cache, "greedy", "b", (160, 100)), 0);
    }

    #[test]
    fn what_expired_makes_room_by_and_by() {
        let cache = ProofCache::with_places(&LOCK, 1_000);
        let first = fill(&cache, "greedy", "a", (160, 100));
        assert_eq!(cache.take("other", ("o", "1"), 261, 161), Ok(()));
        let left = cache.memory.lock().seen.len();
        assert_eq!(left, first + 1 - FORGET_MAX, "a bounded piece in one call");
        for n in 0..first {
            let _ = cache.take("other", ("o", &format!("n{n}")), 262, 162);
        }
        let memory = cache.memory.lock();
        assert!(memory.by_end.keys().all(|until| *until >= 162));
        assert_eq!(memory.shares.len(), 1, "nothing is left of the first");
        assert_eq!(memory.shares.values().sum::<usize>(), memory.seen.len());
    }
}
