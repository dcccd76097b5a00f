//! What the projection last read or wrote, so that it need not read it again.

use std::collections::BTreeMap;
use std::mem;

/// Values of a generation; few in tests, so that they are forgotten there.
const GENERATION: usize = if cfg!(test) { 2 } else { 32_768 };

/// A bounded memory of two generations: when the younger is full, the older is forgotten.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    young: BTreeMap<K, V>,
    old: BTreeMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            young: BTreeMap::new(),
            old: BTreeMap::new(),
        }
    }
}

impl<K: Ord, V: Clone> Recent<K, V> {
    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.put(key, value.clone());
        Some(value)
    }

    pub fn put(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION && !self.young.contains_key(&key) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_the_last_value_or_none_and_does_not_grow() {
        let mut recent = Recent::default();
        for round in 0..3_u64 {
            for key in 0..9_u64 {
                recent.put(key, (key, round));
                assert_eq!(recent.get(&key), Some((key, round)));
                assert!(recent.get(&0).is_none_or(|found| found == (0, round)));
            }
        }
        assert!(recent.young.len() + recent.old.len() <= 2 * GENERATION);
        assert_eq!(recent.get(&3), None, "it was forgotten");
    }
}
