//! Spend limits of a token: the caveats `ceiling.daily` and `ceiling.total`. Pure.
//!
//! The ledger counts money under the token that carries such a caveat, and under each token and
//! narrowing statement before it that does. A token that was exchanged or narrowed from another
//! therefore spends from the budget of its giver too, and a holder can give away a part of it.

use ron_proto::ledger::{BudgetId, TokenBudget};
use ron_proto::passport::SKEW_S;
use ron_proto::{Amount, Caveat, Timestamp};

/// The budget that `caveats` set for what is called `name` until `exp_s` (Unix seconds); `None`
/// without a spend limit. The lowest of several limits counts.
pub(crate) fn budget(name: &str, caveats: &[Caveat], exp_s: u64) -> Option<TokenBudget> {
    let lowest = |limit: fn(&Caveat) -> Option<Amount>| caveats.iter().filter_map(limit).min();
    let total = lowest(|caveat| match caveat {
        Caveat::CeilingTotal(most) => Some(*most),
        _ => None,
    });
    let daily = lowest(|caveat| match caveat {
        Caveat::CeilingDaily(most) => Some(*most),
        _ => None,
    });
    let ends_ms = exp_s.saturating_add(SKEW_S).saturating_mul(1_000);
    (total.is_some() || daily.is_some()).then(|| TokenBudget {
        id: BudgetId::derive(name),
        total,
        daily,
        until: Timestamp(ends_ms).min(Timestamp::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_counts_and_a_token_without_one_has_no_budget() {
        let caveats = |texts: &[&str]| -> Vec<Caveat> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let given = caveats(&["ceiling.total=20", "asset=ron", "ceiling.total=30"]);
        let own = budget("jti-1", &given, 100).unwrap();
        assert_eq!((own.total, own.daily), (Some(Amount(20)), None));
        assert_eq!(own.until, Timestamp((100 + SKEW_S) * 1_000));
        assert_eq!(own.id, BudgetId::derive("jti-1"));
        assert_ne!(own.id, BudgetId::derive("jti-2"));
        assert_eq!(budget("jti-1", &caveats(&["ceiling.per_op=5"]), 100), None);
        let far = budget("jti-1", &caveats(&["ceiling.daily=5"]), u64::MAX).unwrap();
        assert_eq!((far.daily, far.until), (Some(Amount(5)), Timestamp::MAX));
    }
}
