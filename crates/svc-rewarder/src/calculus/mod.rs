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
//! **Invariants:** payouts and residual add up to the pool exactly. The result depends on the
//! sorted usage and the rules alone: not on the number of threads, which only split index
//! ranges and fill slots by index, and not on any clock, file or map order. Amounts are 128-bit
//! integers and every product is exact; what would not fit its width is an [`Stop::Overflow`],
//! never a wrap.

mod apportion;
mod rules;
mod weights;

use ruint::Uint;
use ruint::aliases::{U256, U512, U1024};

pub use rules::{RuleError, Rules, check_policy};

/// Rows one rayon task takes at a time; also the grain of progress and cancellation.
pub(crate) const CHUNK: usize = 8_192;

/// Usage per account, sorted by account bytes without duplicates.
pub trait Usage: Sync {
    /// Number of accounts; below 2^32.
    fn accounts(&self) -> usize;
    /// The account of row `row`.
    fn account(&self, row: usize) -> &[u8];
    /// How much of metric `metric` (in the order the rules were made for) row `row` has.
    fn amount(&self, row: usize, metric: usize) -> u128;
}

/// Whoever started a computation, looking in from outside.
pub trait Watch: Sync {
    /// `rows` more rows are weighed.
    fn weighed(&self, rows: u64);
    /// `rows` more shares are computed.
    fn shared(&self, rows: u64);
    /// True when the result is no longer wanted.
    fn cancelled(&self) -> bool;
}

/// Nobody looks in.
impl Watch for () {
    fn weighed(&self, _: u64) {}
    fn shared(&self, _: u64) {}
    fn cancelled(&self) -> bool {
        false
    }
}

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// An exact intermediate value needs more bits than the widest integer used here.
    #[error("overflow: {0} does not fit; lower the weights or split the epoch")]
    Overflow(&'static str),
    /// A rule of the calculus does not hold for its own result; a defect, never an input error.
    #[error("broken invariant: {0}")]
    Broken(&'static str),
    /// [`Watch::cancelled`] said so.
    #[error("cancelled before the result was complete")]
    Cancelled,
}

impl Stop {
    /// The label of the `invariant_failures_total` metric.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Overflow(_) => "overflow",
            Self::Broken(_) => "conservation",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What one row gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The row in the usage.
    pub row: u32,
    /// Minor units; never zero.
    pub amount: u128,
}

/// The result of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The shares above zero, in row order.
    pub shares: Vec<Share>,
    /// What was to be split.
    pub pool: u128,
    /// Sum of the shares.
    pub payout: u128,
    /// `pool - payout`.
    pub residual: u128,
}

/// Splits the pool. Runs in the caller's rayon pool.
pub fn compute<U: Usage>(usage: &U, rules: &Rules, watch: &impl Watch) -> Result<Outcome, Stop> {
    if u32::try_from(usage.accounts()).is_err() {
        return Err(Stop::Overflow("the number of accounts"));
    }
    let amounts = match weights::categories(usage, rules)? {
        None => {
            let factors: Vec<U256> = rules.factors().map(U256::from).collect();
            let weights = weights::weigh(usage, rules, &factors, watch)?;
            split(weights, rules.pool, rules, watch)?
        }
        Some(shaped) => {
            let weights = weights::weigh::<_, 1024, 16>(usage, rules, &shaped.factors, watch)?;
            let total = weights::sum(&weights)?;
            apportion::apportion(weights, total, shaped.pool, rules.cap, watch)?
        }
    };
    settle(&amounts, rules)
}

/// Takes the narrowest integers in which every product of a weight and the pool is exact.
fn split(
    weights: Vec<U256>,
    pool: u128,
    rules: &Rules,
    watch: &impl Watch,
) -> Result<Vec<u128>, Stop> {
    let total = weights::sum(&weights)?;
    if apportion::fits(&total, pool) {
        return apportion::apportion(weights, total, pool, rules.cap, watch);
    }
    let wide: Vec<U512> = weights.iter().map(|weight| U512::from(*weight)).collect();
    apportion::apportion(wide, U512::from(total), pool, rules.cap, watch)
}

/// Drops what is below the minimum and closes the books.
fn settle(amounts: &[u128], rules: &Rules) -> Result<Outcome, Stop> {
    let least = rules.min_payout.max(1);
    let mut shares = Vec::new();
    let mut payout = 0_u128;
    for (row, &amount) in amounts.iter().enumerate() {
        if amount < least {
            continue;
        }
        if rules.cap.is_some_and(|cap| amount > cap) {
            return Err(Stop::Broken("a share is above the account cap"));
        }
        payout = payout
            .checked_add(amount)
            .ok_or(Stop::Broken("the shares pass 2^128"))?;
        let row = u32::try_from(row).map_err(|_| Stop::Overflow("the number of accounts"))?;
        shares.push(Share { row, amount });
    }
    let residual = rules
        .pool
        .checked_sub(payout)
        .ok_or(Stop::Broken("the shares add up to more than the pool"))?;
    Ok(Outcome {
        shares,
        pool: rules.pool,
        payout,
        residual,
    })
}

/// The 128-bit value of `value`, which the caller knows to be at most a 128-bit pool.
fn narrow<const B: usize, const L: usize>(value: &Uint<B, L>) -> Result<u128, Stop> {
    u128::try_from(value).map_err(|_| Stop::Broken("a share is larger than any pool"))
}

/// The widest integers in use: shaped weights times the pool.
pub(crate) type Wide = U1024;

#[cfg(test)]
mod tests;
