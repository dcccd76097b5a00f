//! Access decisions: which principal of which tenant may do what with which account. Pure; the signed wallet policy
//! is the only input.

use ron_proto::wallet::{WalletAction, WalletPolicy, WalletRule};
use ron_proto::{Account, Amount, Asset, Problem, Tenant};

/// The operation to decide on.
#[derive(Debug, Clone, Copy)]
pub struct PolicyRequest<'a> {
    pub tenant: &'a Tenant,
    pub principal: &'a str,
    pub action: WalletAction,
    /// The debited account; credited for an issue, read for a read; `None` for an operation on all
    /// accounts.
    pub account: Option<&'a Account>,
    /// The asset; `None` for an operation on all assets.
    pub asset: Option<&'a Asset>,
    /// Minor units; `None` for reads, and for an amount that only the ledger knows.
    pub amount: Option<Amount>,
}

/// The limits of the rule that matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// Maximum minor units per account and UTC day.
    pub daily: Option<Amount>,
    /// Maximum minor units of this operation.
    pub per_op: Amount,
}

/// Decides by the first matching rule; without a matching rule access is denied.
pub fn decide(
    policy: &WalletPolicy,
    ask: &PolicyRequest<'_>,
    per_op_max: Amount,
) -> Result<Allowed, Problem> {
    let rule = policy
        .rules
        .iter()
        .find(|rule| applies(rule, ask))
        .ok_or_else(|| Problem::forbidden("the wallet policy has no rule that allows this"))?;
    let most = rule.per_op.map_or(per_op_max, |p| p.min(per_op_max));
    if ask.amount.is_some_and(|amount| amount > most) {
        return Err(limits_exceeded(format!(
            "one operation may move at most {most} minor units"
        )));
    }
    Ok(Allowed {
        daily: rule.daily,
        per_op: most,
    })
}

pub fn limits_exceeded(detail: impl Into<String>) -> Problem {
    Problem::new(403, "limits_exceeded", "Limit exceeded", detail)
}

fn applies(rule: &WalletRule, ask: &PolicyRequest<'_>) -> bool {
    rule.tenant == *ask.tenant
        && matches(&rule.principal, ask.principal)
        && rule.actions.contains(&ask.action)
        && covers(&rule.accounts, ask.account.map(Account::as_str))
        && covers(&rule.assets, ask.asset.map(Asset::as_str))
}

/// Whether one of the patterns matches the name; without a name, whether they match all names.
fn covers(patterns: &[String], name: Option<&str>) -> bool {
    patterns.iter().any(|pattern| match name {
        Some(name) => matches(pattern, name),
        None => pattern == "*",
    })
}

/// Whether the caller may read something in this asset.
pub fn reads_asset(policy: &WalletPolicy, tenant: &Tenant, principal: &str, asset: &Asset) -> bool {
    policy.rules.iter().any(|rule| {
        rule.tenant == *tenant
            && matches(&rule.principal, principal)
            && rule.actions.contains(&WalletAction::Read)
            && covers(&rule.assets, Some(asset.as_str()))
    })
}

/// Exact match, or prefix match when the pattern ends in `*`.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => pattern == text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> WalletPolicy {
        let rule =
            |principal: &str, actions: &[WalletAction], accounts: &[&str], per_op| WalletRule {
                tenant: Tenant::default(),
                principal: principal.to_owned(),
                actions: actions.to_vec(),
                accounts: accounts.iter().map(|s| (*s).to_owned()).collect(),
                assets: vec!["rpl".to_owned()],
                per_op,
                daily: Some(Amount(500)),
            };
        WalletPolicy {
            version: 1,
            rules: vec![
                rule(
                    "alice",
                    &[WalletAction::Transfer],
                    &["acct:alice"],
                    Some(Amount(100)),
                ),
                rule(
                    "ops:*",
                    &[WalletAction::Issue, WalletAction::Read],
                    &["pool:*"],
                    None,
                ),
            ],
        }
    }

    #[test]
    fn first_match_decides_and_no_match_denies() {
        let check = |principal,
                     action,
                     account: &str,
                     asset: &str,
                     amount: u128,
                     want: Result<(), &str>| {
            let (account, asset) = (account.parse().unwrap(), asset.parse().unwrap());
            let (here, elsewhere) = (Tenant::default(), "elsewhere".parse().unwrap());
            let ask = PolicyRequest {
                tenant: &here,
                principal,
                action,
                account: Some(&account),
                asset: Some(&asset),
                amount: Some(Amount(amount)),
            };
            let got = decide(&policy(), &ask, Amount(1_000))
                .map(|_| ())
                .map_err(|p| p.code);
            assert_eq!(got, want, "{ask:?}");
            let namesake = PolicyRequest {
                tenant: &elsewhere,
                ..ask
            };
            let got = decide(&policy(), &namesake, Amount(1_000)).map_err(|p| p.code);
            assert_eq!(
                got,
                Err("forbidden"),
                "a rule is for its tenant alone: {ask:?}"
            );
        };
        check(
            "alice",
            WalletAction::Transfer,
            "acct:alice",
            "rpl",
            100,
            Ok(()),
        );
        check(
            "alice",
            WalletAction::Transfer,
            "acct:alice",
            "rpl",
            101,
            Err("limits_exceeded"),
        );
        check(
            "alice",
            WalletAction::Transfer,
            "acct:bob",
            "rpl",
            1,
            Err("forbidden"),
        );
        check(
            "alice",
            WalletAction::Issue,
            "acct:alice",
            "rpl",
            1,
            Err("forbidden"),
        );
        check(
            "alice",
            WalletAction::Transfer,
            "acct:alice",
            "eth",
            1,
            Err("forbidden"),
        );
        check(
            "alice2",
            WalletAction::Transfer,
            "acct:alice",
            "rpl",
            1,
            Err("forbidden"),
        );
        check("ops:1", WalletAction::Issue, "pool:a", "rpl", 1_000, Ok(()));
        check(
            "ops:1",
            WalletAction::Issue,
            "pool:a",
            "rpl",
            1_001,
            Err("limits_exceeded"),
        );
        check(
            "ops:1",
            WalletAction::Issue,
            "pools",
            "rpl",
            1,
            Err("forbidden"),
        );
    }

    #[test]
    fn an_amount_that_is_not_known_yet_gets_the_lower_maximum() {
        let (account, asset) = ("acct:alice".parse().unwrap(), "rpl".parse().unwrap());
        let tenant = Tenant::default();
        let ask = PolicyRequest {
            tenant: &tenant,
            principal: "alice",
            action: WalletAction::Transfer,
            account: Some(&account),
            asset: Some(&asset),
            amount: None,
        };
        for (configured, most) in [(1_000, 100), (50, 50)] {
            let allowed = decide(&policy(), &ask, Amount(configured)).unwrap();
            assert_eq!(allowed.per_op, Amount(most));
        }
    }
}
