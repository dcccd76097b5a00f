//! Largest remainder with an upper bound per account, in passes over the usage.
//!
//! Hamilton's method: every account gets the floor of its exact share, and the units left over go
//! one each to the largest remainders. The method keeps quota (no account is off by one unit or
//! more), and a larger weight never earns less. Remainders are compared exactly; ties go to the
//! lower row, that is to the lower account bytes.
//!
//! No pass keeps anything per row. The account cap binds exactly the rows above a threshold weight,
//! and an extra unit goes exactly to the remainders above a threshold remainder, which is found by
//! counting (a radix selection). Memory therefore does not grow with the number of accounts.

use rayon::prelude::*;
use ruint::Uint;

use super::usage::{Block, chunk, chunks};
use super::weights::Weigher;
use super::{Stop, Usage, Watch, narrow};

/// Each pass counts remainders in 2^BUCKET_BITS buckets. Unit tests use few buckets, to force many
/// passes.
const BUCKET_BITS: usize = if cfg!(test) { 3 } else { 12 };
/// Up to this many candidates are collected and sorted instead of being counted again.
const COLLECT_MAX: u64 = if cfg!(test) { 4 } else { 1 << 18 };

/// True if every product of a weight below `total` and an amount below `pool` fits the width.
pub(super) fn fits<const B: usize, const L: usize>(total: &Uint<B, L>, pool: u128) -> bool {
    total.bit_len() + bits(pool) <= B
}

fn bits(value: u128) -> usize {
    (u128::BITS - value.leading_zeros()) as usize
}

/// The rows that the account cap binds: those with `weight x left > limit`.
#[derive(Clone, Debug)]
struct Bound<const B: usize, const L: usize> {
    cap: u128,
    left: Uint<B, L>,
    limit: Uint<B, L>,
}

/// The remainders that earn one more unit.
#[derive(Clone, Debug)]
struct Cut<const B: usize, const L: usize> {
    above: Uint<B, L>,
    /// Among the remainders equal to `above`, the first `ties` in row order earn a unit as well.
    ties: u64,
}

/// The share of one row before ties are resolved, with what it is computed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whole numbers in decimal, over one denominator.
    pub weight: String,
    /// The weight of the rows that no cap binds.
    pub split_weight: String,
    /// What these rows split, in minor units.
    pub split: u128,
    /// The account cap binds the row.
    pub capped: bool,
    /// The exact share rounded down, or the cap.
    pub floor: u128,
    /// Greater: it gets a unit more. Equal: its remainder ties, and the row order decides.
    pub unit: std::cmp::Ordering,
}

/// The plan of a split: enough to compute any row's share from the row alone, except for ties.
#[derive(Clone, Debug)]
pub(super) struct Split<const B: usize, const L: usize> {
    weigher: Weigher<B, L>,
    bound: Option<Bound<B, L>>,
    /// Weight and money of the rows that no cap binds.
    rest: Uint<B, L>,
    left: u128,
    cut: Option<Cut<B, L>>,
}

/// A row's share before ties are resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    /// Position of the row in its block.
    pub at: u32,
    /// Minor units.
    pub amount: u128,
    /// True if the row earns one more unit, provided it is among the first ties.
    pub tie: bool,
}

impl<const B: usize, const L: usize> Split<B, L> {
    /// Plans the split of `pool` in proportion to the weights, whose sum is `total`, with at most
    /// `cap` for each account. With `remainders`, the units left over are distributed; without it,
    /// they stay in the residual.
    pub(super) fn plan<U: Usage>(
        usage: &U,
        weigher: Weigher<B, L>,
        total: Uint<B, L>,
        pool: u128,
        cap: Option<u128>,
        remainders: bool,
        watch: &impl Watch,
    ) -> Result<Self, Stop> {
        let mut split = Self {
            weigher,
            bound: None,
            rest: total,
            left: pool,
            cut: None,
        };
        if total.is_zero() || pool == 0 {
            split.rest = Uint::ZERO;
            return Ok(split);
        }
        if !fits(&total, pool) {
            return Err(Stop::Overflow("the product of a weight and the pool"));
        }
        if let Some(cap) = cap.filter(|cap| *cap < pool) {
            split.fill(usage, total, pool, cap, watch)?;
        }
        if remainders && !split.rest.is_zero() {
            split.select(usage, watch)?;
        }
        Ok(split)
    }

    /// Water-filling: an account whose share exceeds the cap gets the cap, and the excess flows to
    /// the other accounts, until no share is above the cap. Every round lowers the threshold
    /// weight, so the rows of one round are among those of the next.
    fn fill<U: Usage>(
        &mut self,
        usage: &U,
        total: Uint<B, L>,
        pool: u128,
        cap: u128,
        watch: &impl Watch,
    ) -> Result<(), Stop> {
        // Ends after at most one round per distinct weight: every round but the last caps at least
        // one more row.
        let mut known = 0;
        loop {
            let bound = Bound {
                cap,
                left: Uint::from(self.left),
                limit: Uint::<B, L>::from(cap).wrapping_mul(self.rest),
            };
            let (count, weight) = self.over(usage, &bound, watch)?;
            // Rounds only add rows, so an unchanged count means the same rows: the fill is stable.
            if count == known {
                return Ok(());
            }
            let taken = cap
                .checked_mul(u128::from(count))
                .and_then(|taken| pool.checked_sub(taken));
            self.left = taken.ok_or(Stop::Broken("account caps pass the pool"))?;
            self.rest = total
                .checked_sub(weight)
                .ok_or(Stop::Broken("capped rows weigh more than all rows"))?;
            self.bound = Some(bound);
            known = count;
        }
    }

    /// Number of rows that a bound catches, and their total weight.
    fn over<U: Usage>(
        &self,
        usage: &U,
        bound: &Bound<B, L>,
        watch: &impl Watch,
    ) -> Result<(u64, Uint<B, L>), Stop> {
        let count = |block: &Block<'_>| {
            let mut caught = (0_u64, Uint::<B, L>::ZERO);
            for at in 0..block.rows() {
                let weight = self.weigher.weight(block, at);
                if weight.wrapping_mul(bound.left) > bound.limit {
                    caught.0 += 1;
                    caught.1 = caught.1.wrapping_add(weight);
                }
            }
            caught
        };
        (0..chunks(usage))
            .into_par_iter()
            .map(|at| {
                check_cancelled(watch)?;
                Ok(count(&chunk(usage, at)?))
            })
            .try_reduce(
                || (0, Uint::ZERO),
                |a, b| Ok((a.0 + b.0, a.1.wrapping_add(b.1))),
            )
    }

    /// Floor and remainder of a row's exact share, or its cap.
    fn exact(&self, weight: Uint<B, L>) -> Result<(u128, Uint<B, L>), Stop> {
        if let Some(bound) = &self.bound
            && weight.wrapping_mul(bound.left) > bound.limit
        {
            return Ok((bound.cap, Uint::ZERO));
        }
        let product = weight.wrapping_mul(Uint::from(self.left));
        let (floor, remainder) = product.div_rem(self.rest);
        Ok((narrow(&floor)?, remainder))
    }

    /// The shares of a block; zero shares are omitted.
    pub(super) fn shares(&self, block: &Block<'_>) -> Result<Vec<Raw>, Stop> {
        let mut shares = Vec::with_capacity(block.rows());
        if self.rest.is_zero() && self.bound.is_none() {
            return Ok(shares);
        }
        for at in 0..block.rows() {
            let weight = self.weigher.weight(block, at);
            if weight.is_zero() {
                continue;
            }
            let (mut amount, remainder) = self.exact(weight)?;
            let order = match &self.cut {
                Some(cut) if !remainder.is_zero() => remainder.cmp(&cut.above),
                _ => std::cmp::Ordering::Less,
            };
            // A remainder above zero means that the floor is below the pool, which is at most
            // 2^128-1, so the addition cannot overflow.
            amount += u128::from(order.is_gt());
            let tie = order.is_eq();
            if amount > 0 || tie {
                let at = at as u32; // a block has at most CHUNK rows
                shares.push(Raw { at, amount, tie });
            }
        }
        Ok(shares)
    }

    /// The share of one row, with what it is computed from.
    pub(super) fn part(&self, block: &Block<'_>, at: usize) -> Result<Part, Stop> {
        let weight = self.weigher.weight(block, at);
        let capped = self
            .bound
            .as_ref()
            .is_some_and(|bound| weight.wrapping_mul(bound.left) > bound.limit);
        let (floor, remainder) = if weight.is_zero() || (self.rest.is_zero() && !capped) {
            (0, Uint::ZERO)
        } else {
            self.exact(weight)?
        };
        let unit = match &self.cut {
            Some(cut) if !remainder.is_zero() => remainder.cmp(&cut.above),
            _ => std::cmp::Ordering::Less,
        };
        Ok(Part {
            weight: weight.to_string(),
            split_weight: self.rest.to_string(),
            split: self.left,
            capped,
            floor,
            unit,
        })
    }

    /// Number of ties that earn a unit.
    pub(super) fn ties(&self) -> u64 {
        self.cut.as_ref().map_or(0, |cut| cut.ties)
    }

    /// Finds the threshold remainder, one pass over the usage per refinement.
    fn select<U: Usage>(&mut self, usage: &U, watch: &impl Watch) -> Result<(), Stop> {
        let mut range = Range {
            low: Uint::ZERO,
            bits: self.rest.bit_len(),
        };
        let mut tally = self.tally(usage, &range, watch)?;
        let units = self
            .left
            .checked_sub(tally.spent)
            .ok_or(Stop::Broken("the floors pass the pool"))?;
        if units == 0 {
            return Ok(());
        }
        // The remainders add up to `units` whole shares and each is less than one, so there are
        // more remainders than units.
        let mut want = u64::try_from(units)
            .ok()
            .filter(|units| *units < tally.found)
            .ok_or(Stop::Broken("more units left over than remainders"))?;
        loop {
            // All remainders of the range are equal, so they are ties and the row order decides.
            if tally.least == tally.most {
                self.cut = Some(Cut {
                    above: tally.least,
                    ties: want,
                });
                return Ok(());
            }
            // Few enough to collect and sort in memory, in one more pass.
            if tally.found <= COLLECT_MAX {
                self.cut = Some(self.cut_among(usage, &range, want, watch)?);
                return Ok(());
            }
            want = range.narrow(&tally.buckets, want)?;
            tally = self.tally(usage, &range, watch)?;
        }
    }

    /// Counts the remainders of a range, one count per bucket.
    fn tally<U: Usage>(
        &self,
        usage: &U,
        range: &Range<B, L>,
        watch: &impl Watch,
    ) -> Result<Tally<B, L>, Stop> {
        (0..chunks(usage))
            .into_par_iter()
            .try_fold(Tally::default, |mut tally, at| {
                check_cancelled(watch)?;
                self.each_remainder(&chunk(usage, at)?, |floor, remainder| {
                    tally.spend(floor)?;
                    if let Some(bucket) = range.bucket(&remainder) {
                        tally.count(bucket, remainder);
                    }
                    Ok(())
                })?;
                Ok(tally)
            })
            .try_reduce(Tally::default, Tally::join)
    }

    fn each_remainder(
        &self,
        block: &Block<'_>,
        mut see: impl FnMut(u128, Uint<B, L>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        for at in 0..block.rows() {
            let weight = self.weigher.weight(block, at);
            if weight.is_zero() {
                continue;
            }
            match &self.bound {
                Some(bound) if weight.wrapping_mul(bound.left) > bound.limit => {}
                _ => {
                    let (floor, remainder) = self.exact(weight)?;
                    see(floor, remainder)?;
                }
            }
        }
        Ok(())
    }

    /// Collects the few remainders of a range and finds the threshold among them.
    fn cut_among<U: Usage>(
        &self,
        usage: &U,
        range: &Range<B, L>,
        want: u64,
        watch: &impl Watch,
    ) -> Result<Cut<B, L>, Stop> {
        let collect = |at: usize| {
            check_cancelled(watch)?;
            let mut found = Vec::new();
            self.each_remainder(&chunk(usage, at)?, |_, remainder| {
                if range.bucket(&remainder).is_some() {
                    found.push(remainder);
                }
                Ok(())
            })?;
            Ok(found)
        };
        let join = |mut a: Vec<_>, mut b: Vec<_>| {
            a.append(&mut b);
            Ok(a)
        };
        let mut found = (0..chunks(usage))
            .into_par_iter()
            .map(collect)
            .try_reduce(Vec::new, join)?;
        // Equal remainders are interchangeable here, so an unstable sort gives the same threshold.
        found.par_sort_unstable_by(|a, b| b.cmp(a));
        let broken = Stop::Broken("remainders were lost between two passes");
        let last = usize::try_from(want).ok().and_then(|n| n.checked_sub(1));
        let above = *last.and_then(|last| found.get(last)).ok_or(broken)?;
        let higher = found.partition_point(|remainder| *remainder > above) as u64;
        Ok(Cut {
            above,
            ties: want - higher,
        })
    }
}

fn check_cancelled(watch: &impl Watch) -> Result<(), Stop> {
    if watch.cancelled() {
        Err(Stop::Cancelled)
    } else {
        Ok(())
    }
}

/// Remainders from `low` up to, not including, `low + 2^bits`. Zero remainders are never counted.
struct Range<const B: usize, const L: usize> {
    low: Uint<B, L>,
    bits: usize,
}

impl<const B: usize, const L: usize> Range<B, L> {
    const fn shift(&self) -> usize {
        self.bits.saturating_sub(BUCKET_BITS)
    }

    fn bucket(&self, remainder: &Uint<B, L>) -> Option<usize> {
        if remainder.is_zero() || *remainder < self.low {
            return None;
        }
        let above = *remainder - self.low;
        if above.bit_len() > self.bits {
            return None;
        }
        // At most BUCKET_BITS bits are left after the shift.
        usize::try_from(above >> self.shift()).ok()
    }

    /// Narrows the range to the bucket that holds the `want`-th largest remainder; returns its rank
    /// within that bucket.
    fn narrow(&mut self, buckets: &[u64], mut want: u64) -> Result<u64, Stop> {
        for (at, count) in buckets.iter().enumerate().rev() {
            if want <= *count {
                self.low += Uint::<B, L>::from(at) << self.shift();
                self.bits = self.shift();
                return Ok(want);
            }
            want -= count;
        }
        Err(Stop::Broken("more units left over than remainders"))
    }
}

/// What one pass over the remainders of a range found.
struct Tally<const B: usize, const L: usize> {
    /// Sum of all floors, whether their remainder is in the range or not.
    spent: u128,
    found: u64,
    least: Uint<B, L>,
    most: Uint<B, L>,
    buckets: Vec<u64>,
}

impl<const B: usize, const L: usize> Default for Tally<B, L> {
    fn default() -> Self {
        Self {
            spent: 0,
            found: 0,
            least: Uint::MAX,
            most: Uint::ZERO,
            buckets: Vec::new(),
        }
    }
}

impl<const B: usize, const L: usize> Tally<B, L> {
    fn spend(&mut self, floor: u128) -> Result<(), Stop> {
        let spent = self.spent.checked_add(floor);
        self.spent = spent.ok_or(Stop::Broken("the floors pass 2^128"))?;
        Ok(())
    }

    fn count(&mut self, bucket: usize, remainder: Uint<B, L>) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; 1 << BUCKET_BITS];
        }
        self.buckets[bucket] += 1;
        self.found += 1;
        self.least = self.least.min(remainder);
        self.most = self.most.max(remainder);
    }

    fn join(mut self, other: Self) -> Result<Self, Stop> {
        self.spend(other.spent)?;
        self.found += other.found;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
        if self.buckets.is_empty() {
            self.buckets = other.buckets;
        } else {
            for (mine, more) in self.buckets.iter_mut().zip(&other.buckets) {
                *mine += more;
            }
        }
        Ok(self)
    }
}
