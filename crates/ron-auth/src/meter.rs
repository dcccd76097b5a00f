//! Use of a token's own rate and budgets, counted per service instance and in memory for the
//! token's life.

use std::collections::HashMap;

use ron_kernel::{LockSpec, RankedMutex};
use ron_proto::Caveat;
use ron_proto::passport::SKEW_S;

use crate::reject::AuthReject;

/// The meter's lock; every service lists it in its topology.
pub const METER_LOCK: LockSpec = LockSpec {
    name: "auth.meter",
    rank: 903,
    guards: "use of rate and budget caveats by token id; used proofs; refusals to be logged",
};
pub(crate) static METER_LOCK_SPEC: LockSpec = METER_LOCK;

/// Maximum tokens with counted caveats at one time; beyond it such tokens are refused, never
/// accepted uncounted.
const TOKENS_MAX: usize = 65_536;

#[derive(Debug, Default)]
struct TokenUse {
    /// Unix seconds after which the token is void.
    until_s: u64,
    requests: u64,
    bytes: u64,
    /// The second in which the rate window began, and the requests in it.
    second: u64,
    in_second: u64,
}

#[derive(Debug)]
pub(crate) struct Meter {
    tokens: RankedMutex<HashMap<String, TokenUse>>,
}

/// A token that a request counts against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metered<'a> {
    pub jti: &'a str,
    /// Unix seconds.
    pub exp_s: u64,
    pub caveats: &'a [Caveat],
}

/// The caveats that count: uses here, money in the ledger.
pub fn counted(caveats: &[Caveat]) -> impl Iterator<Item = &Caveat> {
    let of_money = |c: &Caveat| matches!(c, Caveat::CeilingDaily(_) | Caveat::CeilingTotal(_));
    caveats
        .iter()
        .filter(move |c| of_money(c) || Limits::of(std::slice::from_ref(c)) != Limits::default())
}

/// The lowest value of each counted caveat.
#[derive(Debug, Default, PartialEq)]
struct Limits {
    requests: Option<u64>,
    bytes: Option<u64>,
    per_second: Option<u64>,
}

impl Limits {
    fn of(caveats: &[Caveat]) -> Self {
        let tighten = |limit: &mut Option<u64>, value: u64| {
            *limit = Some(limit.map_or(value, |old| old.min(value)));
        };
        let mut limits = Self::default();
        for caveat in caveats {
            match caveat {
                Caveat::BudgetReqs(most) => tighten(&mut limits.requests, *most),
                Caveat::BudgetBytes(most) => tighten(&mut limits.bytes, *most),
                Caveat::RateRps(most) => tighten(&mut limits.per_second, *most),
                _ => {}
            }
        }
        limits
    }
}

impl Meter {
    pub fn new() -> Self {
        Self {
            tokens: RankedMutex::new(&METER_LOCK_SPEC, HashMap::new()),
        }
    }

    /// Counts one request of `body_bytes` (`None` when the length is not announced) against each of the
    /// tokens, or refuses it and counts nothing. Tokens without counted caveats cost nothing.
    pub fn take(
        &self,
        tokens: &[Metered<'_>],
        body_bytes: Option<u64>,
        now_s: u64,
    ) -> Result<(), AuthReject> {
        let limited: Vec<(&Metered<'_>, Limits)> = tokens
            .iter()
            .map(|token| (token, Limits::of(token.caveats)))
            .filter(|(_, limits)| *limits != Limits::default())
            .collect();
        if limited.is_empty() {
            return Ok(());
        }
        let mut uses = self.tokens.lock();
        let new = limited
            .iter()
            .filter(|(token, _)| !uses.contains_key(token.jti));
        if uses.len() + new.count() > TOKENS_MAX {
            uses.retain(|_, used| used.until_s > now_s);
            if uses.len() + limited.len() > TOKENS_MAX {
                return Err(AuthReject::Rate);
            }
        }
        // All are checked before any is counted: a refused request costs nothing.
        for (token, limits) in &limited {
            let used = uses.entry(token.jti.to_owned()).or_default();
            used.until_s = token.exp_s.saturating_add(SKEW_S);
            used.check(limits, body_bytes, now_s)?;
        }
        for (token, _) in &limited {
            let used = uses.entry(token.jti.to_owned()).or_default();
            used.requests += 1;
            used.in_second += 1;
            used.bytes = used.bytes.saturating_add(body_bytes.unwrap_or_default());
        }
        Ok(())
    }
}

impl TokenUse {
    /// Refuses one more request that a limit does not allow.
    fn check(
        &mut self,
        limits: &Limits,
        body_bytes: Option<u64>,
        now_s: u64,
    ) -> Result<(), AuthReject> {
        if self.second != now_s {
            self.second = now_s;
            self.in_second = 0;
        }
        let bytes = match (limits.bytes, body_bytes) {
            (None, _) => 0,
            (Some(_), None) => return Err(AuthReject::Budget),
            (Some(_), Some(bytes)) => bytes,
        };
        let spent = |limit: Option<u64>, after: u64| limit.is_some_and(|limit| after > limit);
        if spent(limits.requests, self.requests + 1)
            || spent(limits.bytes, self.bytes.saturating_add(bytes))
        {
            return Err(AuthReject::Budget);
        }
        if spent(limits.per_second, self.in_second + 1) {
            return Err(AuthReject::Rate);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request with a token that was not exchanged.
    fn one(
        meter: &Meter,
        jti: &str,
        exp_s: u64,
        caveats: &[Caveat],
        body_bytes: Option<u64>,
        now_s: u64,
    ) -> Result<(), AuthReject> {
        meter.take(
            &[Metered {
                jti,
                exp_s,
                caveats,
            }],
            body_bytes,
            now_s,
        )
    }

    fn parse(texts: &[&str]) -> Vec<Caveat> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn budgets_are_for_life_and_the_tightest_counts() {
        let meter = Meter::new();
        let caveats = parse(&["budget.reqs=3", "budget.reqs=2"]);
        assert_eq!(one(&meter, "a", 100, &caveats, Some(0), 1), Ok(()));
        assert_eq!(one(&meter, "a", 100, &caveats, Some(0), 50), Ok(()));
        assert_eq!(
            one(&meter, "a", 100, &caveats, Some(0), 99),
            Err(AuthReject::Budget)
        );
        assert_eq!(
            one(&meter, "b", 100, &caveats, Some(0), 99),
            Ok(()),
            "another token has its own"
        );
    }

    #[test]
    fn an_exchanged_token_uses_up_the_budget_of_the_first() {
        let meter = Meter::new();
        let first = parse(&["budget.reqs=3"]);
        let second = parse(&["budget.reqs=3", "budget.reqs=2"]);
        let token = |jti, caveats| Metered {
            jti,
            exp_s: 100,
            caveats,
        };
        let with = |tokens: &[Metered<'_>]| meter.take(tokens, Some(0), 1);
        let (parent, child) = (token("a", &first), token("b", &second));
        assert_eq!(with(&[parent]), Ok(()));
        assert_eq!(with(&[child, parent]), Ok(()));
        assert_eq!(with(&[child, parent]), Ok(()), "its own two");
        assert_eq!(with(&[child, parent]), Err(AuthReject::Budget));
        let sibling = token("c", &first);
        assert_eq!(
            with(&[sibling, parent]),
            Err(AuthReject::Budget),
            "a further exchange revives nothing"
        );
        assert_eq!(with(&[sibling]), Ok(()), "and the refusal cost nothing");
    }

    #[test]
    fn bytes_need_an_announced_length() {
        let meter = Meter::new();
        let caveats = parse(&["budget.bytes=10"]);
        assert_eq!(
            one(&meter, "a", 100, &caveats, None, 1),
            Err(AuthReject::Budget)
        );
        assert_eq!(one(&meter, "a", 100, &caveats, Some(6), 1), Ok(()));
        assert_eq!(
            one(&meter, "a", 100, &caveats, Some(5), 1),
            Err(AuthReject::Budget)
        );
        assert_eq!(
            one(&meter, "a", 100, &caveats, Some(4), 1),
            Ok(()),
            "a refused request costs nothing"
        );
    }

    #[test]
    fn the_rate_window_opens_again() {
        let meter = Meter::new();
        let caveats = parse(&["rate.rps=2"]);
        for now in [1, 2, 3] {
            assert_eq!(one(&meter, "a", 100, &caveats, None, now), Ok(()));
            assert_eq!(one(&meter, "a", 100, &caveats, None, now), Ok(()));
            assert_eq!(
                one(&meter, "a", 100, &caveats, None, now),
                Err(AuthReject::Rate)
            );
        }
    }

    #[test]
    fn the_table_is_bounded_and_forgets_void_tokens() {
        let meter = Meter::new();
        let caveats = parse(&["rate.rps=2"]);
        for n in 0..TOKENS_MAX {
            assert_eq!(one(&meter, &n.to_string(), 100, &caveats, None, 1), Ok(()));
        }
        assert_eq!(
            one(&meter, "one more", 100, &caveats, None, 1),
            Err(AuthReject::Rate)
        );
        assert_eq!(one(&meter, "one more", 400, &caveats, None, 300), Ok(()));
    }
}
