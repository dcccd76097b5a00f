//! Enforces caveats. Every caveat must hold; a caveat whose facts are unknown refuses.

use std::net::IpAddr;

use ron_proto::caveat::KeyOrLabel;
use ron_proto::{Account, Amount, Asset, Caveat, Tenant};

use crate::reject::AuthReject;

/// The facts of a request. `None` makes every caveat about that fact refuse.
#[derive(Clone, Copy, Debug)]
pub struct CaveatCtx<'a> {
    /// This service's name, for example `svc-wallet`.
    pub service: &'a str,
    pub method: &'a str,
    /// The path as sent, without the query.
    pub path: &'a str,
    pub peer_ip: IpAddr,
    pub region: Option<&'a str>,
    /// The account that is debited or read.
    pub account: Option<&'a Account>,
    pub asset: Option<&'a Asset>,
    /// Minor units of this operation.
    pub amount: Option<Amount>,
    pub tenant: Option<&'a Tenant>,
    /// Thumbprint of the key that the caller has proved possession of.
    pub proof: Option<&'a str>,
}

/// Caveats that only the service can check, because their facts are in the body or in its own
/// records.
pub const BODY_KEYS: [&str; 7] = [
    "account",
    "asset",
    "ceiling.per_op",
    "ceiling.daily",
    "ceiling.total",
    "key",
    "op",
];
/// Those of [`BODY_KEYS`] that are about money.
pub const MONEY_KEYS: [&str; 5] = [
    "account",
    "asset",
    "ceiling.per_op",
    "ceiling.daily",
    "ceiling.total",
];

/// The keys of a key service that a token with these caveats may use: those below one of the prefixes, in whole segments. `None`
/// without such a caveat, and no prefix when two of them exclude each other. Aliases and tags are judged by the key service.
pub fn key_prefixes(caveats: &[Caveat]) -> Option<Vec<String>> {
    let named = || {
        caveats.iter().filter_map(|caveat| match caveat {
            Caveat::Key(KeyOrLabel::Name(prefix)) => Some(prefix),
            _ => None,
        })
    };
    let narrowest = named().max_by_key(|prefix| prefix.len())?;
    let holds = named().all(|prefix| under(prefix, narrowest));
    Some(holds.then(|| narrowest.clone()).into_iter().collect())
}

/// Checks all caveats except those counted over time: `rate.rps` and `budget.*` (the authorizer),
/// `ceiling.daily` and `ceiling.total` (the ledger, see [`crate::spending`]).
pub fn check(caveats: &[Caveat], ctx: &CaveatCtx<'_>) -> Result<(), AuthReject> {
    caveats.iter().try_for_each(|caveat| {
        if holds(caveat, ctx)? {
            Ok(())
        } else {
            Err(AuthReject::Caveat)
        }
    })
}

/// The check of a service once it knows the operation: `account`, `asset` and `ceiling.per_op`. The
/// authorizer has already checked the other caveats on the request head.
pub fn check_operation(
    caveats: &[Caveat],
    account: Option<&Account>,
    asset: Option<&Asset>,
    amount: Option<Amount>,
) -> Result<(), AuthReject> {
    let held = |caveat: &Caveat| match caveat {
        Caveat::Account(only) => account == Some(only),
        Caveat::Asset(only) => asset == Some(only),
        Caveat::CeilingPerOp(most) => amount.is_none_or(|amount| amount <= *most),
        _ => true,
    };
    if caveats.iter().all(held) {
        Ok(())
    } else {
        Err(AuthReject::Caveat)
    }
}

/// The smallest maximum of one operation, for an amount that the service does not know itself.
pub fn per_op(caveats: &[Caveat]) -> Option<Amount> {
    let most = |caveat: &Caveat| match caveat {
        Caveat::CeilingPerOp(most) => Some(*most),
        _ => None,
    };
    caveats.iter().filter_map(most).min()
}

/// The check on the request head. `enforced` names the [`BODY_KEYS`] that the service checks
/// itself; a token that carries another of them is refused here, so that no caveat is ever ignored
/// silently.
pub(crate) fn check_head(
    caveats: &[Caveat],
    ctx: &CaveatCtx<'_>,
    enforced: &[&str],
) -> Result<(), AuthReject> {
    for caveat in caveats {
        let key = caveat.key();
        if BODY_KEYS.contains(&key) {
            if !enforced.contains(&key) {
                return Err(AuthReject::CaveatUnsupported);
            }
            continue;
        }
        if !holds(caveat, ctx)? {
            return Err(AuthReject::Caveat);
        }
    }
    Ok(())
}

fn holds(caveat: &Caveat, ctx: &CaveatCtx<'_>) -> Result<bool, AuthReject> {
    Ok(match caveat {
        Caveat::Svc(only) => only == ctx.service,
        Caveat::Route(prefix) => under(prefix, ctx.path),
        Caveat::Method(only) => only == ctx.method,
        Caveat::Region(only) => ctx.region == Some(only),
        Caveat::Account(only) => ctx.account == Some(only),
        Caveat::Asset(only) => ctx.asset == Some(only),
        Caveat::CeilingPerOp(most) => ctx.amount.is_some_and(|amount| amount <= *most),
        // Facts that only a key service has.
        Caveat::Key(_) | Caveat::Op(_) => false,
        Caveat::IpCidr(block) => block.contains(ctx.peer_ip),
        Caveat::Tenant(only) => ctx.tenant == Some(only),
        Caveat::ProofBind(_) if ctx.proof.is_none() => return Err(AuthReject::Binding),
        Caveat::ProofBind(only) => ctx.proof == Some(only),
        // Counted over time elsewhere, or a marker without a limit.
        Caveat::CeilingDaily(_)
        | Caveat::CeilingTotal(_)
        | Caveat::BudgetBytes(_)
        | Caveat::BudgetReqs(_)
        | Caveat::RateRps(_)
        | Caveat::PqFallback(_) => true,
    })
}

/// Prefix match on whole segments: `/v1/a` matches `/v1/a` and `/v1/a/b`, not `/v1/ab`.
pub fn under(prefix: &str, path: &str) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(texts: &[&str]) -> Vec<Caveat> {
        texts
            .iter()
            .map(|text| text.parse().unwrap_or_else(|e| panic!("{text}: {e}")))
            .collect()
    }

    #[test]
    fn caveats_about_keys_narrow_each_other() {
        let check = |texts: &[&str], want: Option<&[&str]>| {
            let want = want.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            assert_eq!(key_prefixes(&parse(texts)), want, "{texts:?}");
        };
        check(&[], None);
        check(&["asset=ron"], None);
        check(&["key=t/app"], Some(&["t/app"]));
        check(
            &["key=t/app/ed25519", "key=t/app"],
            Some(&["t/app/ed25519"]),
        );
        check(&["key=t/app", "key=t/apps"], Some(&[]));
        check(&["key=alias/app", "key=tag/team"], None);
        check(&["key=alias/app", "key=t/app"], Some(&["t/app"]));
        check(&["key=t/app/ed25519", "key=t/app/rsa-2048"], Some(&[]));
    }

    #[test]
    fn each_caveat_holds_and_refuses() {
        let account: Account = "acct:alice".parse().unwrap();
        let asset: Asset = "ron".parse().unwrap();
        let tenant: Tenant = "t1".parse().unwrap();
        let ctx = CaveatCtx {
            service: "svc-wallet",
            method: "POST",
            path: "/v1/wallet/transfer",
            peer_ip: "10.1.2.3".parse().unwrap(),
            region: None,
            account: Some(&account),
            asset: Some(&asset),
            amount: Some(Amount(100)),
            tenant: Some(&tenant),
            proof: None,
        };
        let bare = CaveatCtx {
            account: None,
            asset: None,
            amount: None,
            tenant: None,
            ..ctx
        };
        let check_one = |text: &str, wanted: Result<(), AuthReject>| {
            assert_eq!(check(&parse(&[text]), &ctx), wanted, "{text}");
            let needs_fact = ["account", "asset", "ceiling.per_op", "tenant"]
                .iter()
                .any(|key| text.starts_with(key));
            if needs_fact {
                assert_eq!(
                    check(&parse(&[text]), &bare),
                    Err(AuthReject::Caveat),
                    "{text} without the fact"
                );
            }
        };
        let no = Err(AuthReject::Caveat);
        check_one("svc=svc-wallet", Ok(()));
        check_one("svc=ron-kms", no);
        check_one("route=/v1/wallet", Ok(()));
        check_one("route=/v1/wallet/", Ok(()));
        check_one("route=/v1/wallet/transfer", Ok(()));
        check_one("route=/v1/wallet/trans", no);
        check_one("route=/v1/wallet/transfer/", no);
        check_one("route=/v1/kms", no);
        check_one("method=POST", Ok(()));
        check_one("method=GET", no);
        check_one("region=eu", no);
        check_one("account=acct:alice", Ok(()));
        check_one("account=acct:alice2", no);
        check_one("asset=ron", Ok(()));
        check_one("asset=rox", no);
        check_one("ceiling.per_op=100", Ok(()));
        check_one("ceiling.per_op=99", no);
        check_one("ip_cidr=10.0.0.0/8", Ok(()));
        check_one("ip_cidr=127.0.0.0/8", no);
        check_one("tenant=t1", Ok(()));
        check_one("tenant=t2", no);
        check_one(
            &format!("proof.bind={}", "A".repeat(43)),
            Err(AuthReject::Binding),
        );
        let key = "A".repeat(43);
        let proved = CaveatCtx {
            proof: Some(&key),
            ..ctx
        };
        let bound = parse(&[&format!("proof.bind={key}")]);
        assert_eq!(check(&bound, &proved), Ok(()));
        let other = parse(&[&format!("proof.bind=E{}", "A".repeat(42))]);
        assert_eq!(check(&other, &proved), no);
    }

    #[test]
    fn all_caveats_are_anded() {
        let both = parse(&[
            "ceiling.per_op=100",
            "ceiling.per_op=5",
            "ceiling.daily=7",
            "ceiling.daily=3",
        ]);
        assert_eq!(
            check_operation(&both, None, None, Some(Amount(6))),
            Err(AuthReject::Caveat)
        );
        assert_eq!(check_operation(&both, None, None, Some(Amount(5))), Ok(()));
    }

    #[test]
    fn a_body_caveat_nobody_enforces_is_refused_on_the_head() {
        let ctx = CaveatCtx {
            service: "ron-kms",
            method: "GET",
            path: "/",
            peer_ip: "127.0.0.1".parse().unwrap(),
            region: None,
            account: None,
            asset: None,
            amount: None,
            tenant: None,
            proof: None,
        };
        for text in [
            "account=a",
            "asset=ron",
            "ceiling.per_op=1",
            "ceiling.daily=1",
            "ceiling.total=1",
        ] {
            let caveats = parse(&[text]);
            assert_eq!(
                check_head(&caveats, &ctx, &[]),
                Err(AuthReject::CaveatUnsupported),
                "{text}"
            );
            assert_eq!(check_head(&caveats, &ctx, &BODY_KEYS), Ok(()), "{text}");
        }
    }

    proptest! {
        /// Adding caveats never allows more.
        #[test]
        fn adding_a_caveat_only_narrows(amount in 0u128..20, first in 0u128..20, second in 0u128..20) {
            let one = vec![Caveat::CeilingPerOp(Amount(first))];
            let two = vec![Caveat::CeilingPerOp(Amount(first)), Caveat::CeilingPerOp(Amount(second))];
            let allowed = |caveats: &[Caveat]| check_operation(caveats, None, None, Some(Amount(amount))).is_ok();
            prop_assert!(!allowed(&two) || allowed(&one));
            prop_assert_eq!(allowed(&two), amount <= first.min(second));
        }
    }
}
