//! Weights: how much each row's usage counts, and how category caps shape it.

use std::sync::Arc;

use rayon::prelude::*;
use ruint::Uint;
use ruint::aliases::{U256, U512};

use super::usage::{Block, chunk, chunks};
use super::{Rules, Stop, Usage, Watch, Wide};

/// Factors per metric after category caps, and the part of the pool they may spend.
pub(super) struct Shaped {
    /// In the order of the rules' metrics.
    pub factors: Vec<Wide>,
    /// The whole pool, or less when every category with activity is capped.
    pub pool: u128,
    /// Which categories are capped; index 0 is that of the metrics without one.
    pub capped: Vec<bool>,
}

/// Weighs rows: the sum over metrics of amount times factor, and zero for an account that is not
/// eligible.
#[derive(Clone, Debug)]
pub(super) struct Weigher<const B: usize, const L: usize> {
    rules: Arc<Rules>,
    /// Metrics with a factor above zero, and those factors.
    paid: Vec<(usize, Uint<B, L>)>,
}

impl<const B: usize, const L: usize> Weigher<B, L> {
    /// `factors` holds one factor per metric of the rules.
    pub(super) fn new(rules: &Arc<Rules>, factors: &[Uint<B, L>]) -> Result<Self, Stop> {
        let widest = factors.iter().map(Uint::bit_len).max().unwrap_or(0);
        // 128 bits of amount and up to 2^7 metrics: within this bound no weight can wrap.
        if widest + 128 + 7 > B {
            return Err(Stop::Overflow("a weight"));
        }
        let paid = factors.iter().copied().enumerate();
        Ok(Self {
            rules: Arc::clone(rules),
            paid: paid.filter(|(_, factor)| !factor.is_zero()).collect(),
        })
    }

    /// The same weights in wider integers.
    pub(super) fn widen<const C: usize, const M: usize>(&self) -> Weigher<C, M> {
        let wide = |(metric, factor): &(usize, Uint<B, L>)| (*metric, Uint::<C, M>::from(*factor));
        Weigher {
            rules: Arc::clone(&self.rules),
            paid: self.paid.iter().map(wide).collect(),
        }
    }

    /// The weight of row `at` of a block.
    pub(super) fn weight(&self, block: &Block<'_>, at: usize) -> Uint<B, L> {
        let mut weight = Uint::ZERO;
        if !self.rules.eligible(block, at) {
            return weight;
        }
        for (metric, factor) in &self.paid {
            let amount = block.amount(at, *metric);
            if amount != 0 {
                weight = weight.wrapping_add(factor.wrapping_mul(Uint::<B, L>::from(amount)));
            }
        }
        weight
    }

    /// The exact sum over all rows.
    pub(super) fn total<U: Usage>(
        &self,
        usage: &U,
        watch: &impl Watch,
    ) -> Result<Uint<B, L>, Stop> {
        let add = |a: Uint<B, L>, b: Uint<B, L>| {
            a.checked_add(b)
                .ok_or(Stop::Overflow("the sum of the weights"))
        };
        let part = |at: usize| {
            if watch.cancelled() {
                return Err(Stop::Cancelled);
            }
            let block = chunk(usage, at)?;
            let mut rows = 0..block.rows();
            let sum = rows.try_fold(Uint::ZERO, |sum, at| add(sum, self.weight(&block, at)))?;
            watch.weighed(block.rows() as u64);
            Ok(sum)
        };
        (0..chunks(usage))
            .into_par_iter()
            .map(part)
            .try_reduce(|| Uint::ZERO, add)
    }
}

/// The factors under category caps, or `None` when no cap binds.
///
/// The pool flows to the categories in proportion to their weights. A category above its cap is set
/// to the cap and the excess flows to the others, until no category is above. With `A_c` the money
/// and `W_c` the weight of category `c`, a unit of weight in it earns `A_c / W_c`. Over the common
/// denominator of all these, the factors become integers again.
pub(super) fn categories<U: Usage>(usage: &U, rules: &Rules) -> Result<Option<Shaped>, Stop> {
    if rules.category_caps.is_empty() {
        return Ok(None);
    }
    let sums = category_sums(usage, rules)?;
    let mut capped = vec![false; sums.len()];
    let (mut left, mut rest) = (rules.pool, U256::ZERO);
    for weight in &sums {
        rest = rest
            .checked_add(*weight)
            .ok_or(Stop::Overflow("the sum of the weights"))?;
    }
    loop {
        let over: Vec<usize> = (1..sums.len())
            .filter(|category| !capped[*category] && !sums[*category].is_zero())
            .filter(|category| {
                let cap = rules.category_caps[*category - 1];
                times(sums[*category], left) > times(rest, cap)
            })
            .collect();
        if over.is_empty() {
            break;
        }
        for category in over {
            capped[category] = true;
            rest -= sums[category];
            left = left
                .checked_sub(rules.category_caps[category - 1])
                .ok_or(Stop::Broken("category caps pass the pool"))?;
        }
    }
    if capped.contains(&true) {
        shape(rules, &sums, &capped, rest, left).map(Some)
    } else {
        Ok(None)
    }
}

/// 256 bits of weight times 128 bits of money, exactly.
fn times(weight: U256, money: u128) -> U512 {
    U512::from(weight).wrapping_mul(U512::from(money))
}

/// Eligible weight by category; index 0 collects the metrics without a capped category.
fn category_sums<U: Usage>(usage: &U, rules: &Rules) -> Result<Vec<U256>, Stop> {
    let count = rules.category_caps.len() + 1;
    let zero = || vec![U256::ZERO; count];
    let add = |mut a: Vec<U256>, b: Vec<U256>| {
        for (a, b) in a.iter_mut().zip(b) {
            *a = a
                .checked_add(b)
                .ok_or(Stop::Overflow("the weight of a category"))?;
        }
        Ok(a)
    };
    let factors: Vec<(usize, usize, U256)> = rules
        .metrics
        .iter()
        .enumerate()
        .map(|(metric, rule)| (metric, rule.category, U256::from(rule.factor)))
        .collect();
    (0..chunks(usage))
        .into_par_iter()
        .map(|at| {
            let block = chunk(usage, at)?;
            let mut sums = zero();
            for at in 0..block.rows() {
                if !rules.eligible(&block, at) {
                    continue;
                }
                for (metric, category, factor) in &factors {
                    // Cannot wrap 256 bits: 64 bits of factor, 128 of amount, 13 of rows and 6 of
                    // metrics.
                    let part = factor.wrapping_mul(U256::from(block.amount(at, *metric)));
                    sums[*category] = sums[*category].wrapping_add(part);
                }
            }
            Ok(sums)
        })
        .try_reduce(zero, add)
}

/// Brings `A_c / W_c` of all categories over one denominator.
fn shape(
    rules: &Rules,
    sums: &[U256],
    capped: &[bool],
    rest: U256,
    left: u128,
) -> Result<Shaped, Stop> {
    let too_wide = || Stop::Overflow("the common denominator of the category caps");
    let below: Vec<Wide> = (0..sums.len())
        .filter(|category| capped[*category])
        .map(|category| Wide::from(sums[category]))
        .chain((!rest.is_zero()).then(|| Wide::from(rest)))
        .collect();
    let mut denominator = Wide::ONE;
    for part in &below {
        denominator = denominator.checked_mul(*part).ok_or_else(too_wide)?;
    }
    let factor_of = |money: u128, weight: U256| {
        (denominator / Wide::from(weight))
            .checked_mul(Wide::from(money))
            .ok_or_else(too_wide)
    };
    let mut factors = Vec::with_capacity(rules.metrics.len());
    for rule in &rules.metrics {
        let unit = match rule.category {
            category if capped[category] => {
                factor_of(rules.category_caps[category - 1], sums[category])?
            }
            _ if rest.is_zero() => Wide::ZERO,
            _ => factor_of(left, rest)?,
        };
        factors.push(
            unit.checked_mul(Wide::from(rule.factor))
                .ok_or_else(too_wide)?,
        );
    }
    let pool = if rest.is_zero() {
        rules
            .pool
            .checked_sub(left)
            .ok_or(Stop::Broken("category caps pass the pool"))?
    } else {
        rules.pool
    };
    Ok(Shaped {
        factors,
        pool,
        capped: capped.to_vec(),
    })
}
