//! Weights: what each row's usage counts for, and how category caps shape it.

use rayon::prelude::*;
use ruint::Uint;
use ruint::aliases::{U256, U512};

use super::{CHUNK, Rules, Stop, Usage, Watch, Wide};

/// Factors per metric after category caps, and the part of the pool they may spend.
pub(super) struct Shaped {
    /// In the order of the rules' metrics.
    pub factors: Vec<Wide>,
    /// The whole pool, or less when every category with activity is capped.
    pub pool: u128,
}

/// The weight of every row: the sum over metrics of amount times factor.
pub(super) fn weigh<U: Usage, const B: usize, const L: usize>(
    usage: &U,
    rules: &Rules,
    factors: &[Uint<B, L>],
    watch: &impl Watch,
) -> Result<Vec<Uint<B, L>>, Stop> {
    let widest = factors.iter().map(Uint::bit_len).max().unwrap_or(0);
    // 128 bits of amount and up to 2^7 metrics: below this line no sum of products wraps.
    if widest + 128 + 7 > B {
        return Err(Stop::Overflow("a weight"));
    }
    let paid: Vec<(usize, Uint<B, L>)> = factors
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, factor)| !factor.is_zero())
        .collect();
    let mut weights = vec![Uint::<B, L>::ZERO; usage.accounts()];
    weights
        .par_chunks_mut(CHUNK)
        .enumerate()
        .try_for_each(|(chunk, weights)| {
            if watch.cancelled() {
                return Err(Stop::Cancelled);
            }
            for (at, weight) in weights.iter_mut().enumerate() {
                let row = chunk * CHUNK + at;
                if !rules.eligible(usage, row) {
                    continue;
                }
                for (metric, factor) in &paid {
                    let amount = usage.amount(row, *metric);
                    if amount != 0 {
                        *weight =
                            weight.wrapping_add(factor.wrapping_mul(Uint::<B, L>::from(amount)));
                    }
                }
            }
            watch.weighed(weights.len() as u64);
            Ok(())
        })?;
    Ok(weights)
}

/// The exact sum.
pub(super) fn sum<const B: usize, const L: usize>(
    weights: &[Uint<B, L>],
) -> Result<Uint<B, L>, Stop> {
    let add = |a: Uint<B, L>, b: Uint<B, L>| {
        a.checked_add(b)
            .ok_or(Stop::Overflow("the sum of the weights"))
    };
    weights
        .par_chunks(CHUNK)
        .map(|chunk| chunk.iter().copied().try_fold(Uint::ZERO, add))
        .try_reduce(|| Uint::ZERO, add)
}

/// The factors under category caps, or `None` when no cap binds.
///
/// The pool flows to the categories in proportion to their weights; a category above its cap is
/// set to the cap and the rest flows to the others again, until none is above. With `A_c` the
/// money and `W_c` the weight of category `c`, a unit of weight in it earns `A_c / W_c`. Over the
/// common denominator of all these, the factors become integers again.
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

/// Eligible weight by category; index 0 is the metrics without a capped category.
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
    (0..usage.accounts().div_ceil(CHUNK))
        .into_par_iter()
        .map(|chunk| {
            let mut sums = zero();
            for row in chunk * CHUNK..usage.accounts().min((chunk + 1) * CHUNK) {
                if !rules.eligible(usage, row) {
                    continue;
                }
                for (metric, category, factor) in &factors {
                    // 64 bits of factor, 128 of amount, 13 of rows and 6 of metrics.
                    let part = factor.wrapping_mul(U256::from(usage.amount(row, *metric)));
                    sums[*category] = sums[*category].wrapping_add(part);
                }
            }
            sums
        })
        .map(Ok)
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
    Ok(Shaped { factors, pool })
}
