//! Largest remainder with an upper bound per account.
//!
//! Hamilton's method: everyone gets the floor of the exact share, and the units left over go one
//! each to the largest remainders. It keeps quota (nobody is off by one unit or more) and a
//! larger weight never earns less. The remainders are compared exactly, and ties go to the lower
//! row, that is to the lower account bytes.

use rayon::prelude::*;
use ruint::Uint;

use super::{CHUNK, Stop, Watch, narrow};

/// True if every product of a weight below `total` and an amount below `pool` fits the width.
pub(super) fn fits<const B: usize, const L: usize>(total: &Uint<B, L>, pool: u128) -> bool {
    total.bit_len() + bits(pool) <= B
}

fn bits(value: u128) -> usize {
    (u128::BITS - value.leading_zeros()) as usize
}

/// Splits `pool` in proportion to `weights`, whose sum is `total`, at most `cap` each. Amounts by
/// row; what no row may take is in none of them.
pub(super) fn apportion<const B: usize, const L: usize>(
    mut weights: Vec<Uint<B, L>>,
    total: Uint<B, L>,
    pool: u128,
    cap: Option<u128>,
    watch: &impl Watch,
) -> Result<Vec<u128>, Stop> {
    let mut amounts = vec![0_u128; weights.len()];
    if total.is_zero() || pool == 0 {
        watch.shared(weights.len() as u64);
        return Ok(amounts);
    }
    if !fits(&total, pool) {
        return Err(Stop::Overflow("the product of a weight and the pool"));
    }
    let (mut rest, mut left) = (total, pool);
    if let Some(cap) = cap.filter(|cap| *cap < pool) {
        for row in over_cap(&weights, &mut rest, &mut left, cap) {
            amounts[row as usize] = cap;
            weights[row as usize] = Uint::ZERO;
        }
    }
    if rest.is_zero() {
        watch.shared(weights.len() as u64);
        return Ok(amounts);
    }
    let spent = floors(&mut weights, &mut amounts, &rest, left, watch)?;
    let units = left
        .checked_sub(spent)
        .ok_or(Stop::Broken("the floors pass the pool"))?;
    hand_out(&weights, &mut amounts, units)?;
    Ok(amounts)
}

/// The rows that the cap binds, by water-filling: while the heaviest row left would get more than
/// the cap from what is left, it gets the cap, and both pool and weight shrink. `rest` and `left`
/// come out as the weight and the pool of the others.
fn over_cap<const B: usize, const L: usize>(
    weights: &[Uint<B, L>],
    rest: &mut Uint<B, L>,
    left: &mut u128,
    cap: u128,
) -> Vec<u32> {
    let mut order: Vec<u32> = (0..weights.len())
        .filter(|row| !weights[*row].is_zero())
        .map(|row| row as u32)
        .collect();
    let heavier_first = |a: &u32, b: &u32| {
        weights[*b as usize]
            .cmp(&weights[*a as usize])
            .then(a.cmp(b))
    };
    // A capped row takes a whole cap, so no more rows than pool / cap can be bound.
    if let Some(most) = left
        .checked_div(cap)
        .and_then(|most| usize::try_from(most).ok())
        && most < order.len()
    {
        order.select_nth_unstable_by(most, heavier_first);
        order.truncate(most + 1);
    }
    order.par_sort_unstable_by(heavier_first);
    let cap_wide = Uint::<B, L>::from(cap);
    let mut bound = 0;
    for row in &order {
        let weight = weights[*row as usize];
        if weight.wrapping_mul(Uint::from(*left)) <= cap_wide.wrapping_mul(*rest) {
            break;
        }
        *rest -= weight;
        *left -= cap;
        bound += 1;
    }
    order.truncate(bound);
    order
}

/// Writes the floor of each exact share into `amounts` (where there is weight) and leaves the
/// remainder in place of the weight. Returns the sum of the floors.
fn floors<const B: usize, const L: usize>(
    weights: &mut [Uint<B, L>],
    amounts: &mut [u128],
    rest: &Uint<B, L>,
    left: u128,
    watch: &impl Watch,
) -> Result<u128, Stop> {
    let pool = Uint::<B, L>::from(left);
    weights
        .par_chunks_mut(CHUNK)
        .zip(amounts.par_chunks_mut(CHUNK))
        .map(|(weights, amounts)| {
            if watch.cancelled() {
                return Err(Stop::Cancelled);
            }
            let mut spent = 0_u128;
            for (weight, amount) in weights.iter_mut().zip(amounts.iter_mut()) {
                if weight.is_zero() {
                    continue;
                }
                let (floor, remainder) = weight.wrapping_mul(pool).div_rem(*rest);
                *amount = narrow(&floor)?;
                *weight = remainder;
                spent = spent
                    .checked_add(*amount)
                    .ok_or(Stop::Broken("the floors of one chunk pass 2^128"))?;
            }
            watch.shared(weights.len() as u64);
            Ok(spent)
        })
        .try_reduce(
            || 0,
            |a, b| {
                a.checked_add(b)
                    .ok_or(Stop::Broken("the floors pass 2^128"))
            },
        )
}

/// One unit each to the `units` largest remainders.
fn hand_out<const B: usize, const L: usize>(
    remainders: &[Uint<B, L>],
    amounts: &mut [u128],
    units: u128,
) -> Result<(), Stop> {
    if units == 0 {
        return Ok(());
    }
    let mut order: Vec<u32> = (0..remainders.len())
        .filter(|row| !remainders[*row].is_zero())
        .map(|row| row as u32)
        .collect();
    // The remainders add up to `units` whole shares and each is less than one.
    let units = usize::try_from(units)
        .ok()
        .filter(|units| *units < order.len())
        .ok_or(Stop::Broken("more units left over than remainders"))?;
    order.select_nth_unstable_by(units, |a, b| {
        remainders[*b as usize]
            .cmp(&remainders[*a as usize])
            .then(a.cmp(b))
    });
    for row in &order[..units] {
        amounts[*row as usize] += 1;
    }
    Ok(())
}
