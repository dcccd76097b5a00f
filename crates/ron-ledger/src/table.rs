//! Hash tables without iteration, so that no hash order can reach an output.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use hashbrown::HashTable;

/// A map for lookups only. `S` hashes the keys; names from outside keep the randomly seeded
/// default.
#[derive(Debug, Clone)]
pub struct Table<K, V, S = RandomState> {
    map: HashMap<K, V, S>,
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> Default for Table<K, V, S> {
    fn default() -> Self {
        Self {
            map: HashMap::default(),
        }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> Table<K, V, S> {
    pub fn with_capacity(n: usize) -> Self {
        Self {
            map: HashMap::with_capacity_and_hasher(n, S::default()),
        }
    }

    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        if self.map.is_empty() {
            None
        } else {
            self.map.get(key)
        }
    }

    /// Sets `key`; returns its previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.map.insert(key, value)
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Reserves space for `n` more.
    pub fn reserve(&mut self, n: usize) {
        self.map.reserve(n);
    }
}

impl<K: Ord + Eq + Hash + Copy, V: Copy, S: BuildHasher + Default> Table<K, V, S> {
    /// All pairs in ascending key order.
    pub fn sorted(&self) -> Vec<(K, V)> {
        let mut all: Vec<(K, V)> = self.map.iter().map(|(k, v)| (*k, *v)).collect();
        all.sort_unstable_by_key(|(k, _)| *k);
        all
    }
}

/// Finds the number of a row by a key that the row itself holds: 8 bytes for each, without a second copy
/// of the key.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    hasher: RandomState,
    found: HashTable<Number>,
}

#[derive(Debug, Clone, Copy)]
struct Number {
    /// Half of the key's hash, so that the table grows without a look at the rows.
    hash: u32,
    row: u32,
}

impl Number {
    /// The table takes its places from the low bits and its tags from the high ones.
    const fn spread(self) -> u64 {
        (self.hash as u64) << 32 | self.hash as u64
    }
}

impl Numbers {
    pub fn with_capacity(n: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            found: HashTable::with_capacity(n),
        }
    }

    /// The row of this key; `is_at` compares the key with that of a row.
    pub fn get<K: Hash + ?Sized>(&self, key: &K, is_at: impl Fn(u32) -> bool) -> Option<u32> {
        let wanted = self.number(key, 0);
        let eq = |n: &Number| n.hash == wanted.hash && is_at(n.row);
        self.found.find(wanted.spread(), eq).map(|n| n.row)
    }

    /// Adds a row, whose key no other row has.
    pub fn add<K: Hash + ?Sized>(&mut self, key: &K, row: u32) {
        let number = self.number(key, row);
        let again = |n: &Number| n.spread();
        self.found.insert_unique(number.spread(), number, again);
    }

    fn number<K: Hash + ?Sized>(&self, key: &K, row: u32) -> Number {
        let hash = self.hasher.hash_one(key) as u32;
        Number { hash, row }
    }
}

/// Spreads small dense numbers (Fibonacci hashing).
#[derive(Debug, Default, Clone)]
pub struct DenseHasher(u64);

impl Hasher for DenseHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0.rotate_left(8) ^ u64::from(*b)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Uses the first eight bytes of a key that is already a hash.
#[derive(Debug, Default, Clone)]
pub struct HashedHasher(u64);

impl Hasher for HashedHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        let mut word = [0; 8];
        let n = bytes.len().min(8);
        word[..n].copy_from_slice(&bytes[..n]);
        self.0 ^= u64::from_le_bytes(word);
    }
    fn write_usize(&mut self, _len: usize) {}
}

/// Keyed by dense row number.
pub type ByRow<V> = Table<u32, V, BuildHasherDefault<DenseHasher>>;
/// Keyed by a hash.
pub type ByHash<K, V> = Table<K, V, BuildHasherDefault<HashedHasher>>;

/// Rows by number in shared chunks: a frozen copy costs one reference per chunk, and a write while
/// a copy is alive clones the chunk first.
#[derive(Debug, Clone)]
pub struct Rows<T> {
    chunks: Vec<std::sync::Arc<Vec<T>>>,
    len: usize,
}

/// Rows in one chunk: small, because a write after a freeze copies one chunk.
const CHUNK: usize = 32;

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<T: Clone> Rows<T> {
    pub const fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, i: usize) -> Option<&T> {
        self.chunks.get(i / CHUNK).and_then(|c| c.get(i % CHUNK))
    }

    /// Replaces row `i`, which must exist.
    pub fn set(&mut self, i: usize, row: T) {
        let chunk = self
            .chunks
            .get_mut(i / CHUNK)
            .expect("the row was made by push");
        std::sync::Arc::make_mut(chunk)[i % CHUNK] = row;
    }

    /// Appends a row; returns its number.
    pub fn push(&mut self, row: T) -> usize {
        if self.len.is_multiple_of(CHUNK) {
            self.chunks
                .push(std::sync::Arc::new(Vec::with_capacity(CHUNK)));
        }
        let last = self.chunks.last_mut().expect("pushed above when full");
        std::sync::Arc::make_mut(last).push(row);
        self.len += 1;
        self.len - 1
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|c| c.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_the_key_of_their_row_and_by_no_other() {
        let rows: Vec<String> = (0..10_000).map(|n| format!("acct:{n}")).collect();
        let mut numbers = Numbers::with_capacity(3);
        let at = |numbers: &Numbers, key: &str| numbers.get(key, |row| rows[row as usize] == key);
        for (row, key) in rows.iter().enumerate() {
            assert_eq!(at(&numbers, key), None);
            numbers.add(key.as_str(), row as u32);
        }
        for (row, key) in rows.iter().enumerate() {
            assert_eq!(at(&numbers, key), Some(row as u32));
        }
        assert_eq!(at(&numbers, "acct:10000"), None);
    }

    #[test]
    fn a_frozen_copy_does_not_see_later_writes() {
        let mut rows = Rows::default();
        for i in 0..100u64 {
            assert_eq!(rows.push(i) as u64, i);
        }
        let frozen = rows.clone();
        for i in 0..100 {
            rows.set(i, 1_000);
        }
        rows.push(7);
        assert_eq!(
            frozen.iter().copied().collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
        assert_eq!(
            (rows.len(), frozen.len(), rows.get(99), rows.get(101)),
            (101, 100, Some(&1_000), None)
        );
    }

    #[test]
    fn sorted_is_sorted_whatever_the_hash() {
        let mut t: ByHash<[u8; 16], u64> = Table::default();
        for i in (0..50u8).rev() {
            t.insert([i; 16], u64::from(i));
        }
        assert!(t.sorted().windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!(t.get(&[3; 16]), Some(&3));
    }
}
