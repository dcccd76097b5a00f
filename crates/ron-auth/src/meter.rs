//! Use of a token's own rate and budgets, counted per service instance and in memory for the
//! token's life.

use std::collections::HashMap;

use ron_kernel::{LockSpec, RankedMutex};
use ron_proto::Caveat;

use crate::jwt::SKEW_S;
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

    /// Counts one request of `body_bytes` (`None` when the length is not announced), or refuses it
    /// and counts nothing. Tokens without counted caveats cost nothing.
    pub fn take(
        &self,
        jti: &str,
        exp_s: u64,
        caveats: &[Caveat],
        body_bytes: Option<u64>,
        now_s: u64,
    ) -> Result<(), AuthReject> {
        let limits = Limits::of(caveats);
        if limits == Limits::default() {
            return Ok(());
        }
        let mut tokens = self.tokens.lock();
        if tokens.len() >= TOKENS_MAX && !tokens.contains_key(jti) {
            tokens.retain(|_, used| used.until_s > now_s);
            if tokens.len() >= TOKENS_MAX {
                return Err(AuthReject::Rate);
            }
        }
        let used = tokens.entry(jti.to_owned()).or_default();
        used.until_s = exp_s.saturating_add(SKEW_S);
        if used.second != now_s {
            used.second = now_s;
            used.in_second = 0;
        }
        let bytes = match (limits.bytes, body_bytes) {
            (None, _) => 0,
            (Some(_), None) => return Err(AuthReject::Budget),
            (Some(_), Some(bytes)) => bytes,
        };
        let spent = |limit: Option<u64>, after: u64| limit.is_some_and(|limit| after > limit);
        if spent(limits.requests, used.requests + 1)
            || spent(limits.bytes, used.bytes.saturating_add(bytes))
        {
            return Err(AuthReject::Budget);
        }
        if spent(limits.per_second, used.in_second + 1) {
            return Err(AuthReject::Rate);
        }
        used.requests += 1;
        used.in_second += 1;
        used.bytes = used.bytes.saturating_add(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Vec<Caveat> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn budgets_are_for_life_and_the_tightest_counts() {
        let meter = Meter::new();
        let caveats = parse(&["budget.reqs=3", "budget.reqs=2"]);
        assert_eq!(meter.take("a", 100, &caveats, Some(0), 1), Ok(()));
        assert_eq!(meter.take("a", 100, &caveats, Some(0), 50), Ok(()));
        assert_eq!(
            meter.take("a", 100, &caveats, Some(0), 99),
            Err(AuthReject::Budget)
        );
        assert_eq!(
            meter.take("b", 100, &caveats, Some(0), 99),
            Ok(()),
            "another token has its own"
        );
    }

    #[test]
    fn bytes_need_an_announced_length() {
        let meter = Meter::new();
        let caveats = parse(&["budget.bytes=10"]);
        assert_eq!(
            meter.take("a", 100, &caveats, None, 1),
            Err(AuthReject::Budget)
        );
        assert_eq!(meter.take("a", 100, &caveats, Some(6), 1), Ok(()));
        assert_eq!(
            meter.take("a", 100, &caveats, Some(5), 1),
            Err(AuthReject::Budget)
        );
        assert_eq!(
            meter.take("a", 100, &caveats, Some(4), 1),
            Ok(()),
            "a refused request costs nothing"
        );
    }

    #[test]
    fn the_rate_window_opens_again() {
        let meter = Meter::new();
        let caveats = parse(&["rate.rps=2"]);
        for now in [1, 2, 3] {
            assert_eq!(meter.take("a", 100, &caveats, None, now), Ok(()));
            assert_eq!(meter.take("a", 100, &caveats, None, now), Ok(()));
            assert_eq!(
                meter.take("a", 100, &caveats, None, now),
                Err(AuthReject::Rate)
            );
        }
    }

    #[test]
    fn the_table_is_bounded_and_forgets_void_tokens() {
        let meter = Meter::new();
        let caveats = parse(&["rate.rps=2"]);
        for n in 0..TOKENS_MAX {
            assert_eq!(meter.take(&n.to_string(), 100, &caveats, None, 1), Ok(()));
        }
        assert_eq!(
            meter.take("one more", 100, &caveats, None, 1),
            Err(AuthReject::Rate)
        );
        assert_eq!(meter.take("one more", 400, &caveats, None, 300), Ok(()));
    }
}
