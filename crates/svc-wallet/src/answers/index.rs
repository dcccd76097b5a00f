//! Index from the hash of an idempotency key to ledger sequences: sorted runs of (hash, sequence),
//! merged as they grow like the levels of an LSM tree. A page of events is cheap to add and a
//! lookup searches O(log n) runs.

use std::sync::Arc;

/// One indexed entry: 32 bits of the hash of its key, and the low 32 bits of its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub hash: u32,
    pub seq: u32,
}

/// Sorted runs, each at least twice as long as the next.
#[derive(Debug, Clone, Default)]
pub struct Index(Vec<Arc<[Row]>>);

impl Index {
    /// Adds rows as a new run. Rows that `live` rejects are dropped when their run is merged.
    pub fn add(&mut self, mut rows: Vec<Row>, live: impl Fn(Row) -> bool) {
        if rows.is_empty() {
            return;
        }
        rows.sort_unstable();
        while let Some(last) = self.0.pop_if(|last| last.len() < 2 * rows.len()) {
            rows = merge(&last, &rows, &live);
        }
        self.0.push(rows.into());
    }

    /// Sequences (low 32 bits) under `hash`, in no particular order.
    pub fn find(&self, hash: u32) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(move |run| {
            let from = run.partition_point(|row| row.hash < hash);
            run[from..]
                .iter()
                .take_while(move |row| row.hash == hash)
                .map(|row| row.seq)
        })
    }
}

fn merge(a: &[Row], b: &[Row], live: impl Fn(Row) -> bool) -> Vec<Row> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x <= y => a.next(),
            (_, Some(_)) => b.next(),
            _ => a.next(),
        };
        match next {
            Some(row) if live(row) => out.push(row),
            Some(_) => {}
            None => return out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_in_few_runs_until_it_is_not_live() {
        let mut index = Index::default();
        let hash = |seq: u32| seq.wrapping_mul(0x9E37_79B1) >> 20;
        for page in 0..300u32 {
            let rows = (0..page % 7).map(|n| page * 7 + n);
            let rows = rows
                .map(|seq| Row {
                    hash: hash(seq),
                    seq,
                })
                .collect();
            index.add(rows, |_| true);
            let long = index.0.windows(2).all(|w| w[0].len() >= 2 * w[1].len());
            assert!(long && index.0.len() <= 11);
        }
        for page in 0..300u32 {
            for n in 0..7 {
                let seq = page * 7 + n;
                let found = index.find(hash(seq)).any(|s| s == seq);
                assert_eq!(found, n < page % 7, "{seq}");
            }
        }
        let many = (3_000..9_000).map(|seq| Row { hash: 1, seq }).collect();
        index.add(many, |row| row.seq >= 3_000);
        assert_eq!(index.find(hash(50)).find(|s| *s == 50), None);
        assert_eq!(index.find(1).count(), 6_000);
    }
}
