//! Accounts in memory with their amounts: found by hash while rows are added up, and passed on in byte order.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;
use rayon::prelude::*;

/// Memory of an account beside its name, its slots and the index, in bytes: hash, end of the name, and its place in the order.
const ACCOUNT_COST: usize = 8 + 8 + 16;

/// Names that are compared with the first by one thread at a time.
const NAMES: usize = 4_096;

/// The amount of an account in one metric. Packed, because a table has millions.
#[derive(Clone, Copy, Default)]
#[repr(Rust, packed(8))]
pub(super) struct Slot {
    /// Where the amount was first given; zero: nowhere. It tells a given zero from no amount.
    pub place: u64,
    pub amount: u128,
}

/// One amount of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub metric: u8,
    /// Where the amount was first given; never zero.
    pub place: u64,
    pub amount: u128,
}

/// The table. Accounts come from outside, so the keys of their hashes are random; the index is used for lookups only and never
/// iterated, so its order does not affect the result.
#[derive(Default)]
pub(super) struct Table {
    keys: RandomState,
    /// Rows by the hash of their account.
    index: HashTable<u32>,
    hashes: Vec<u64>,
    /// Where the name of each account ends in `names`.
    ends: Vec<usize>,
    names: Vec<u8>,
    /// Slots of an account: one per metric.
    metrics: usize,
    slots: Vec<Slot>,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Approximate memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.len() * ACCOUNT_COST
            + self.names.len()
            + self.slots.len() * size_of::<Slot>()
            + self.index.allocation_size()
    }

    pub(super) fn hash(&self, account: &[u8]) -> u64 {
        self.keys.hash_one(account)
    }

    pub(super) fn find(&self, hash: u64, account: &[u8]) -> Option<u32> {
        let row = self.index.find(hash, |row| self.name(*row) == account);
        row.copied()
    }

    /// Adds an account that is not there yet.
    pub(super) fn insert(&mut self, hash: u64, account: &[u8]) -> u32 {
        let row = u32::try_from(self.len()).expect("fewer accounts than 2^32 fit into memory");
        self.names.extend_from_slice(account);
        self.ends.push(self.names.len());
        self.hashes.push(hash);
        self.slots
            .resize(self.slots.len() + self.metrics, Slot::default());
        let hashes = &self.hashes;
        self.index
            .insert_unique(hash, row, |row| hashes[*row as usize]);
        row
    }

    pub(super) fn name(&self, row: u32) -> &[u8] {
        let at = row as usize;
        let from = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[from..self.ends[at]]
    }

    /// Gives every account one more slot.
    pub(super) fn add_metric(&mut self) {
        let (old, new) = (self.metrics, self.metrics + 1);
        self.metrics = new;
        self.slots.resize(self.len() * new, Slot::default());
        // From the last account to the first, so that nothing is overwritten before it is moved.
        for row in (0..self.len()).rev() {
            self.slots
                .copy_within(row * old..(row + 1) * old, row * new);
            self.slots[row * new + old] = Slot::default();
        }
    }

    pub(super) fn slot(&mut self, row: u32, metric: usize) -> &mut Slot {
        &mut self.slots[row as usize * self.metrics + metric]
    }

    /// Amount of an account in a metric; zero if none was given.
    pub(super) fn amount(&self, row: u32, metric: usize) -> u128 {
        self.slots[row as usize * self.metrics + metric].amount
    }

    /// The given amounts of an account.
    pub(super) fn cells(&self, row: u32) -> impl Iterator<Item = Cell> + '_ {
        let from = row as usize * self.metrics;
        let slots = self.slots[from..from + self.metrics].iter().enumerate();
        slots
            .filter(|(_, slot)| slot.place != 0)
            .map(|(metric, slot)| Cell {
                metric: metric as u8, // below METRICS_MAX
                place: slot.place,
                amount: slot.amount,
            })
    }

    /// All rows, in the byte order of their accounts.
    pub(super) fn order(&self) -> Vec<u32> {
        let rows = 0..self.len() as u32;
        let common = self.common_prefix();
        // Most names differ in the first bytes that not all of them share. These bytes beside the number spare the sort
        // nearly all reads of names, which are all over the memory. No name contains the zero that fills short ones up.
        let key = |row| {
            let rest = &self.name(row)[common..];
            let mut bytes = [0; 8];
            let count = rest.len().min(8);
            bytes[..count].copy_from_slice(&rest[..count]);
            (u64::from_be_bytes(bytes), row)
        };
        let mut order: Vec<(u64, u32)> = rows.into_par_iter().map(key).collect();
        order.par_sort_unstable_by(|a, b| {
            let by_name = || self.name(a.1).cmp(self.name(b.1));
            a.0.cmp(&b.0).then_with(by_name)
        });
        order.into_par_iter().map(|(_, row)| row).collect()
    }

    /// Bytes with which every name begins.
    fn common_prefix(&self) -> usize {
        if self.len() == 0 {
            return 0;
        }
        let first = self.name(0);
        let rows = (0..self.len() as u32).into_par_iter();
        let common = rows.with_min_len(NAMES).map(|row| {
            let pairs = first.iter().zip(self.name(row));
            pairs.take_while(|(a, b)| a == b).count()
        });
        common.min().unwrap_or(0)
    }

    /// Forgets the accounts, and keeps the metrics and the memory.
    pub(super) fn clear(&mut self) {
        self.index.clear();
        self.hashes.clear();
        self.ends.clear();
        self.names.clear();
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the names and whenever metrics are added: what was put in comes out, in byte order.
        #[test]
        fn a_table_is_a_sorted_map(
            names in prop::collection::btree_set("(eth:0x)?[a-c]{1,12}", 1..60),
            seed in any::<prop::sample::Index>(),
            more in 1..4_usize,
        ) {
            let mut names: Vec<String> = names.into_iter().collect();
            let first = seed.index(names.len());
            names.rotate_left(first);
            let mut table = Table::default();
            for (at, name) in names.iter().enumerate() {
                if at.is_multiple_of(more) && table.metrics < 5 {
                    table.add_metric();
                }
                let hash = table.hash(name.as_bytes());
                prop_assert_eq!(table.find(hash, name.as_bytes()), None);
                let row = table.insert(hash, name.as_bytes());
                let last = table.metrics - 1;
                *table.slot(row, last) = Slot { place: at as u64 + 1, amount: last as u128 };
            }
            let order = table.order();
            let read: Vec<&[u8]> = order.iter().map(|row| table.name(*row)).collect();
            let mut sorted: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
            sorted.sort_unstable();
            prop_assert_eq!(read, sorted);
            for (at, name) in names.iter().enumerate() {
                let row = table.find(table.hash(name.as_bytes()), name.as_bytes()).expect("it is there");
                let cells: Vec<Cell> = table.cells(row).collect();
                prop_assert_eq!(cells.len(), 1);
                prop_assert_eq!(cells[0].place, at as u64 + 1);
                prop_assert_eq!(table.amount(row, usize::from(cells[0].metric)), cells[0].amount);
                prop_assert_eq!(u128::from(cells[0].metric), cells[0].amount);
            }
            table.clear();
            prop_assert!(table.len() == 0 && table.order().is_empty());
        }
    }
}
