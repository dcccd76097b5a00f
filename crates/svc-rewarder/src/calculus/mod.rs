//! The reward calculus: exact shares of a pool, as a pure function of usage and rules.
//!
//! ```text
//! usage x rules -> weights (rationals over one denominator)
//!               -> category caps shape the weights
//!               -> account caps, by water-filling
//!               -> largest remainder (Hamilton), ties by account bytes
//!               -> payouts below the minimum fall back into the residual
//! ```
//!
//! A [`Plan`] is made in passes over the usage and then yields each share; nothing is kept per row,
//! so memory does not grow with the epoch.
//!
//! **Invariants:** payouts and residual add up to the pool exactly. The result depends on the
//! sorted usage and the rules alone: not on the number of threads, which only split index
//! ranges and fill slots by index, and not on any clock, file or map order. Amounts are 128-bit
//! integers and every product is exact; a value that does not fit its width is a
//! [`Stop::Overflow`] and never wraps.

mod apportion;
mod rules;
mod usage;
mod weights;

use std::sync::Arc;

use rayon::prelude::*;
use ron_proto::rewarder::RuleSet;
use ruint::Uint;
use ruint::aliases::{U256, U512, U1024};

use apportion::Raw;
use weights::Weigher;

pub use apportion::Part;
pub use rules::{Barred, RuleError, Rules, check_policy};
pub(crate) use usage::trim;
pub use usage::{Block, Usage};

/// Rows of one rayon task, and the granularity of progress and cancellation. Odd and small in unit
/// tests, so that their few rows cross many chunk boundaries.
pub(crate) const CHUNK: usize = if cfg!(test) { 7 } else { 8_192 };

/// Progress and cancellation of a computation. The threads of the pool call it once per chunk.
pub trait Watch: Sync {
    /// Another `rows` rows have been weighed.
    fn weighed(&self, rows: u64);
    /// Another `rows` shares have been computed.
    fn shared(&self, rows: u64);
    /// True when the result is no longer wanted.
    fn cancelled(&self) -> bool;
}

/// No progress, never cancelled.
impl Watch for () {
    fn weighed(&self, _: u64) {}
    fn shared(&self, _: u64) {}
    fn cancelled(&self) -> bool {
        false
    }
}

/// Why a computation ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// An exact intermediate value needs more bits than the widest integer used here.
    #[error("overflow: {0} does not fit; lower the weights or split the epoch")]
    Overflow(&'static str),
    /// The result violates a rule of the calculus: a defect, never an input error.
    #[error("broken invariant: {0}")]
    Broken(&'static str),
    /// [`Watch::cancelled`] returned true.
    #[error("cancelled before the result was complete")]
    Cancelled,
    /// An account with a share cannot be paid as the policy says.
    #[error("{0}")]
    Payee(String),
    /// The usage could not be read, or the result could not be written.
    #[error("{0}")]
    Io(String),
}

impl Stop {
    /// The label of the `invariant_failures_total` metric.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Overflow(_) => "overflow",
            Self::Broken(_) => "conservation",
            Self::Cancelled => "cancelled",
            Self::Payee(_) => "payee",
            Self::Io(_) => "io",
        }
    }
}

/// The share of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of the row in the usage.
    pub row: u32,
    /// Minor units; never zero.
    pub amount: u128,
}

/// The sums of an epoch, in minor units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    pub pool: u128,
    pub payout: u128,
    pub residual: u128,
    /// Number of shares above zero that are paid.
    pub recipients: u64,
}

/// Everything that must be known of the whole epoch before the share of a single row can be
/// computed.
#[derive(Clone, Debug)]
pub struct Plan {
    split: Split,
    rules: Arc<Rules>,
    /// Which categories are capped, as in `Shaped`; empty if no category is.
    capped: Vec<bool>,
}

/// The narrowest integers in which every product of a weight and the pool is exact.
#[derive(Clone, Debug)]
enum Split {
    Narrow(Box<apportion::Split<256, 4>>),
    Middle(Box<apportion::Split<512, 8>>),
    Wide(Box<apportion::Split<1024, 16>>),
}

impl Split {
    fn shares(&self, block: &Block<'_>) -> Result<Vec<Raw>, Stop> {
        match self {
            Self::Narrow(split) => split.shares(block),
            Self::Middle(split) => split.shares(block),
            Self::Wide(split) => split.shares(block),
        }
    }

    fn part(&self, block: &Block<'_>, at: usize) -> Result<Part, Stop> {
        match self {
            Self::Narrow(split) => split.part(block, at),
            Self::Middle(split) => split.part(block, at),
            Self::Wide(split) => split.part(block, at),
        }
    }

    fn ties(&self) -> u64 {
        match self {
            Self::Narrow(split) => split.ties(),
            Self::Middle(split) => split.ties(),
            Self::Wide(split) => split.ties(),
        }
    }
}

/// Plans an epoch. Runs in the caller's rayon pool and reads the usage several times.
pub fn plan<U: Usage>(usage: &U, rules: &Rules, watch: &impl Watch) -> Result<Plan, Stop> {
    if u32::try_from(usage.accounts()).is_err() {
        return Err(Stop::Overflow("the number of accounts"));
    }
    let rules = Arc::new(rules.clone());
    let (pool, cap) = (rules.pool, rules.cap);
    let hand_out = match rules.rule_set {
        RuleSet::Hamilton1 => true,
        RuleSet::Floor1 => false,
    };
    let mut capped = Vec::new();
    let split = match weights::categories(usage, &rules)? {
        None => {
            let factors: Vec<U256> = rules.factors().map(U256::from).collect();
            let weigher = Weigher::new(&rules, &factors)?;
            let total = weigher.total(usage, watch)?;
            if apportion::fits(&total, pool) {
                let split =
                    apportion::Split::plan(usage, weigher, total, pool, cap, hand_out, watch)?;
                Split::Narrow(Box::new(split))
            } else {
                let (weigher, total) = (weigher.widen(), U512::from(total));
                let split =
                    apportion::Split::plan(usage, weigher, total, pool, cap, hand_out, watch)?;
                Split::Middle(Box::new(split))
            }
        }
        Some(shaped) => {
            let (weigher, pool) = (Weigher::new(&rules, &shaped.factors)?, shaped.pool);
            capped = shaped.capped;
            let total = weigher.total(usage, watch)?;
            let split = apportion::Split::plan(usage, weigher, total, pool, cap, hand_out, watch)?;
            Split::Wide(Box::new(split))
        }
    };
    Ok(Plan {
        split,
        rules,
        capped,
    })
}

/// Blocks computed side by side before their shares are handed over in order. Bounds memory.
const WINDOW: usize = 32;

/// A block of the usage with its shares. Shares of zero or below the minimum are omitted.
#[derive(Debug)]
pub struct ShareBlock<'a> {
    block: Block<'a>,
    shares: Vec<Raw>,
}

impl ShareBlock<'_> {
    pub const fn len(&self) -> usize {
        self.shares.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// The shares with their accounts, in row order.
    pub fn shares(&self) -> impl Iterator<Item = (Share, &[u8])> {
        self.shares.iter().map(|raw| {
            let at = raw.at as usize;
            // [`plan`] has checked that the number of accounts fits 32 bits.
            let row = (self.block.first() + at) as u32;
            let amount = raw.amount;
            (Share { row, amount }, self.block.account(at))
        })
    }
}

/// Running totals over the shares handed over so far.
struct Books<'a> {
    rules: &'a Rules,
    least: u128,
    ties: u64,
    payout: u128,
    recipients: u64,
}

impl Books<'_> {
    /// Resolves ties and drops shares below the minimum, block by block in row order.
    fn resolve_ties(&mut self, shares: &mut Vec<Raw>) -> Result<(), Stop> {
        let (least, cap, ties) = (self.least, self.rules.cap, &mut self.ties);
        let (mut sum, mut above_cap) = (Some(self.payout), false);
        shares.retain_mut(|raw| {
            if raw.tie && *ties > 0 {
                *ties -= 1;
                raw.amount += 1;
            }
            let kept = raw.amount >= least;
            if kept {
                above_cap |= cap.is_some_and(|cap| raw.amount > cap);
                sum = sum.and_then(|sum| sum.checked_add(raw.amount));
            }
            kept
        });
        if above_cap {
            return Err(Stop::Broken("a share is above the account cap"));
        }
        self.payout = sum.ok_or(Stop::Broken("the shares pass 2^128"))?;
        self.recipients += shares.len() as u64;
        Ok(())
    }

    fn close(self) -> Result<Sums, Stop> {
        if self.ties > 0 {
            return Err(Stop::Broken("units were left over after all ties"));
        }
        let residual = self.rules.pool.checked_sub(self.payout);
        Ok(Sums {
            pool: self.rules.pool,
            payout: self.payout,
            residual: residual.ok_or(Stop::Broken("the shares add up to more than the pool"))?,
            recipients: self.recipients,
        })
    }
}

impl Plan {
    /// Passes every share above zero to `visit`, in row order, some blocks at a time. Drops shares
    /// below the minimum and closes the books. While `visit` runs, the next blocks are computed.
    pub fn visit_shares<U: Usage>(
        &self,
        usage: &U,
        watch: &impl Watch,
        mut visit: impl FnMut(&[ShareBlock<'_>]) -> Result<(), Stop> + Send,
    ) -> Result<Sums, Stop> {
        let mut books = Books {
            rules: &self.rules,
            least: self.rules.min_payout.max(1),
            ties: self.split.ties(),
            payout: 0,
            recipients: 0,
        };
        let chunks = usage::chunks(usage);
        let mut ready: Vec<ShareBlock<'_>> = Vec::new();
        // Two windows are in memory: one that `visit` gets while the other is computed.
        for from in (0..chunks).step_by(WINDOW) {
            let window = from..chunks.min(from + WINDOW);
            let (visited, next) = rayon::join(
                || visit(&ready),
                || self.window(usage, watch, window.clone()),
            );
            visited?;
            ready = next?;
            // Ties are resolved in row order on this thread, so the result does not depend on the
            // number of threads.
            for block in &mut ready {
                books.resolve_ties(&mut block.shares)?;
            }
        }
        visit(&ready)?;
        books.close()
    }

    /// The share of row `at` of a block, with what it is computed from.
    pub fn part(&self, block: &Block<'_>, at: usize) -> Result<Part, Stop> {
        self.split.part(block, at)
    }

    /// Why the account of a row takes no part, if it takes none.
    pub fn barred(&self, block: &Block<'_>, at: usize) -> Option<Barred> {
        self.rules.barred(block, at)
    }

    /// Whether the cap of a metric's category bit; metrics are in the order of the usage.
    pub fn category_capped(&self, metric: usize) -> bool {
        let category = self
            .rules
            .metrics
            .get(metric)
            .map_or(0, |rule| rule.category);
        category > 0 && self.capped.get(category).copied().unwrap_or(false)
    }

    fn window<'a, U: Usage>(
        &self,
        usage: &'a U,
        watch: &impl Watch,
        chunks: std::ops::Range<usize>,
    ) -> Result<Vec<ShareBlock<'a>>, Stop> {
        let one = |at| {
            if watch.cancelled() {
                return Err(Stop::Cancelled);
            }
            let block = usage::chunk(usage, at)?;
            let shares = self.split.shares(&block)?;
            watch.shared(block.rows() as u64);
            Ok(ShareBlock { block, shares })
        };
        chunks.into_par_iter().map(one).collect()
    }
}

/// The 128-bit value of `value`, which the caller knows to be at most a 128-bit pool.
fn narrow<const B: usize, const L: usize>(value: &Uint<B, L>) -> Result<u128, Stop> {
    u128::try_from(value).map_err(|_| Stop::Broken("a share is larger than any pool"))
}

/// The widest integers in use: shaped weights times the pool.
pub(crate) type Wide = U1024;

#[cfg(test)]
mod tests;
