//! Access decisions: which principal of which tenant may do what with which account. Pure; the signed wallet policy
//! is the only input.

use ron_proto::wallet::{WalletAction, WalletPolicy, WalletRule};
use ron_proto::{Account, Amount, Asset, Problem, Tenant};

/// The caller of an operation, as rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    pub tenant: &'a Tenant,
    pub principal: &'a str,
    /// The client of the caller's passport.
    pub client: Option<&'a str>,
}

/// The operation to decide on.
#[derive(Debug, Clone, Copy)]
pub struct PolicyRequest<'a> {
    pub caller: Caller<'a>,
    pub action: WalletAction,
    /// The debited account; credited for an issue, read for a read; `None` for an operation on all
    /// accounts.
    pub account: Option<&'a Account>,
    /// The credited account of a transfer or capture; `None` for other operations.
    pub payee: Option<&'a Account>,
    /// The asset; `None` for an operation on all assets.
    pub asset: Option<&'a Asset>,
    /// Minor units; `None` for reads, and for an amount that only the ledger knows.
    pub amount: Option<Amount>,
}

impl<'a> PolicyRequest<'a> {
    /// An action on all accounts and assets.
    pub const fn to(caller: Caller<'a>, action: WalletAction) -> Self {
        Self {
            caller,
            action,
            account: None,
            payee: None,
            asset: None,
            amount: None,
        }
    }
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
    let names = |patterns: &[String], account: Option<&Account>| {
        let matches = |pattern: &str, name: &str| ask.caller.matches(pattern, name);
        covers(patterns, account.map(Account::as_str), matches)
    };
    let payees = rule.payees.as_deref();
    ask.caller.is_of(rule)
        && rule.actions.contains(&ask.action)
        && names(&rule.accounts, ask.account)
        && covers(&rule.assets, ask.asset.map(Asset::as_str), matches)
        && (ask.payee.is_none() || payees.is_none_or(|payees| names(payees, ask.payee)))
}

const SUBJECT: &str = "{subject}";
const CLIENT: &str = "{client}";

impl Caller<'_> {
    /// Whether the rule is for this caller.
    fn is_of(&self, rule: &WalletRule) -> bool {
        let named = |clients: &Vec<String>| {
            let client = self.client;
            client.is_some_and(|client| clients.iter().any(|named| named == client))
        };
        rule.tenant == *self.tenant
            && matches(&rule.principal, self.principal)
            && rule.clients.as_ref().is_none_or(named)
    }

    /// Whether a pattern of accounts, filled for this caller, matches the name.
    fn matches(&self, pattern: &str, name: &str) -> bool {
        let mut filled = pattern.to_owned();
        for (template, value) in [(SUBJECT, Some(self.principal)), (CLIENT, self.client)] {
            if !pattern.contains(template) {
                continue;
            }
            // Another value could name more than one account, or the account of another caller.
            let Some(value) = value.filter(|value| fills(value)) else {
                return false;
            };
            filled = filled.replace(template, value);
        }
        matches(&filled, name)
    }

    /// Whether the caller administers all accounts of these patterns in all assets.
    pub fn administers(&self, policy: &WalletPolicy, accounts: &[String]) -> bool {
        let one = |account: &String| {
            policy.rules.iter().any(|rule| {
                // No exact name has a `*`, so a rule that matches the text of a pattern matches all its accounts.
                let names = |pattern: &str, account: &str| self.matches(pattern, account);
                self.is_of(rule)
                    && rule.actions.contains(&WalletAction::Admin)
                    && covers(&rule.accounts, Some(account), names)
                    && covers(&rule.assets, None, matches)
            })
        };
        accounts.iter().all(one)
    }

    /// Whether the caller may read something in this asset.
    pub fn reads_asset(&self, policy: &WalletPolicy, asset: &Asset) -> bool {
        policy.rules.iter().any(|rule| {
            self.is_of(rule)
                && rule.actions.contains(&WalletAction::Read)
                && covers(&rule.assets, Some(asset.as_str()), matches)
        })
    }
}

/// Whether a subject or client can stand in the name of an account.
fn fills(value: &str) -> bool {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&value.len()) && value.bytes().all(usual)
}

/// Whether one of the patterns matches the name; without a name, whether they match all names.
fn covers(patterns: &[String], name: Option<&str>, matches: impl Fn(&str, &str) -> bool) -> bool {
    patterns.iter().any(|pattern| match name {
        Some(name) => matches(pattern, name),
        None => pattern == "*",
    })
}

/// Exact match, or prefix match when the pattern ends in `*`.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => pattern == text,
    }
}

/// Checks what the form of a policy does not show.
///
/// # Errors
/// The rule that cannot work as it was meant, and why.
pub fn check(policy: &WalletPolicy) -> Result<(), String> {
    for (at, rule) in policy.rules.iter().enumerate() {
        let refuse = |why: String| Err(format!("rule {}: {why}", at + 1));
        let patterns = rule.accounts.iter().chain(rule.payees.iter().flatten());
        for pattern in patterns {
            let rest = pattern.replace(SUBJECT, "").replace(CLIENT, "");
            if rest.contains(['{', '}']) {
                return refuse(format!(
                    "{pattern} has a template that is neither {SUBJECT} nor {CLIENT}"
                ));
            }
            if pattern.contains(SUBJECT) && rule.clients.is_none() {
                return refuse(format!(
                    "{pattern} needs `clients`: any client could choose a subject, so name those whose subjects you trust"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> WalletPolicy {
        let rule =
            |principal: &str, actions: &[WalletAction], accounts: &[&str], per_op| WalletRule {
                tenant: Tenant::default(),
                principal: principal.to_owned(),
                clients: None,
                actions: actions.to_vec(),
                accounts: accounts.iter().map(|s| (*s).to_owned()).collect(),
                payees: None,
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
            let caller = Caller {
                tenant: &here,
                principal,
                client: None,
            };
            let ask = PolicyRequest {
                caller,
                action,
                account: Some(&account),
                payee: None,
                asset: Some(&asset),
                amount: Some(Amount(amount)),
            };
            let got = decide(&policy(), &ask, Amount(1_000))
                .map(|_| ())
                .map_err(|p| p.code);
            assert_eq!(got, want, "{ask:?}");
            let namesake = PolicyRequest {
                caller: Caller {
                    tenant: &elsewhere,
                    ..caller
                },
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
        let alice = Caller {
            tenant: &tenant,
            principal: "alice",
            client: None,
        };
        let ask = PolicyRequest {
            account: Some(&account),
            asset: Some(&asset),
            ..PolicyRequest::to(alice, WalletAction::Transfer)
        };
        for (configured, most) in [(1_000, 100), (50, 50)] {
            let allowed = decide(&policy(), &ask, Amount(configured)).unwrap();
            assert_eq!(allowed.per_op, Amount(most));
        }
    }

    /// Whether `subject` of `client` may pay from `account` to `payee`.
    fn pays(
        rule: &WalletRule,
        (client, subject): (Option<&str>, &str),
        account: &str,
        payee: &str,
    ) -> bool {
        let policy = WalletPolicy {
            version: 1,
            rules: vec![rule.clone()],
        };
        let (account, payee) = (account.parse().unwrap(), payee.parse().unwrap());
        let (tenant, asset) = (Tenant::default(), "rpl".parse().unwrap());
        let caller = Caller {
            tenant: &tenant,
            principal: subject,
            client,
        };
        let ask = PolicyRequest {
            account: Some(&account),
            payee: Some(&payee),
            asset: Some(&asset),
            amount: Some(Amount(1)),
            ..PolicyRequest::to(caller, WalletAction::Transfer)
        };
        decide(&policy, &ask, Amount(10)).is_ok()
    }

    fn template(accounts: &str, payees: Option<&str>) -> WalletRule {
        WalletRule {
            principal: "*".to_owned(),
            clients: Some(vec!["shop".to_owned()]),
            accounts: vec![accounts.to_owned()],
            payees: payees.map(|pattern| vec![pattern.to_owned()]),
            ..policy().rules[0].clone()
        }
    }

    #[test]
    fn a_template_gives_each_subject_its_own_account_and_no_other() {
        let rule = template("user:{subject}", None);
        let shop = |subject: &'static str| (Some("shop"), subject);
        assert!(pays(&rule, shop("alice"), "user:alice", "x"));
        assert!(!pays(&rule, shop("alice"), "user:bob", "x"));
        assert!(!pays(&rule, shop("alice"), "user:alice2", "x"));
        // Subjects of others, and none at all.
        assert!(!pays(&rule, (Some("other"), "alice"), "user:alice", "x"));
        assert!(!pays(&rule, (None, "alice"), "user:alice", "x"));
        let long = "a".repeat(65);
        for hostile in [
            "",
            "*",
            "a*",
            "a:b",
            "a/b",
            "{client}",
            "{subject}",
            "alice ",
            &long,
        ] {
            assert!(
                !pays(&rule, (Some("shop"), hostile), "user:alice", "x"),
                "{hostile}"
            );
            assert!(
                !pays(&rule, (Some("shop"), hostile), "user:a", "x"),
                "{hostile}"
            );
        }
        let named: String = format!("user:{}", "a".repeat(64));
        assert!(pays(&rule, (Some("shop"), &"a".repeat(64)), &named, "x"));
        // Several accounts of a subject, below a separator.
        let several = template("{client}:{subject}:*", None);
        assert!(pays(&several, shop("alice"), "shop:alice:savings", "x"));
        assert!(!pays(&several, shop("alice"), "shop:alice2:savings", "x"));
        // A subject that is named like a template is not filled in again.
        let mut both = template("{subject}-{client}", None);
        both.clients = Some(vec!["{subject}".to_owned()]);
        assert!(!pays(&both, (Some("{subject}"), "a"), "a-a", "x"));
    }

    #[test]
    fn a_pattern_is_administered_by_a_rule_for_all_its_accounts() {
        let rule = WalletRule {
            actions: vec![WalletAction::Admin],
            accounts: vec!["shop:*".to_owned(), "till".to_owned()],
            assets: vec!["*".to_owned()],
            ..policy().rules[0].clone()
        };
        let (here, elsewhere) = (Tenant::default(), "elsewhere".parse().unwrap());
        let administers = |rule: &WalletRule, tenant: &Tenant, accounts: &[&str]| {
            let caller = Caller {
                tenant,
                principal: "alice",
                client: None,
            };
            let rules = vec![rule.clone()];
            let accounts: Vec<String> = accounts.iter().map(|a| (*a).to_owned()).collect();
            caller.administers(&WalletPolicy { version: 1, rules }, &accounts)
        };
        for accounts in [&["shop:*"][..], &["shop:a*"], &["shop:a", "till"]] {
            assert!(administers(&rule, &here, accounts), "{accounts:?}");
            assert!(!administers(&rule, &elsewhere, accounts), "{accounts:?}");
            let reader = WalletRule {
                actions: vec![WalletAction::Read],
                ..rule.clone()
            };
            assert!(!administers(&reader, &here, accounts), "{accounts:?}");
            let of_one_asset = WalletRule {
                assets: vec!["eur".to_owned()],
                ..rule.clone()
            };
            assert!(!administers(&of_one_asset, &here, accounts), "{accounts:?}");
        }
        for accounts in [
            &["*"][..],
            &["sho*"],
            &["shop*"],
            &["till*"],
            &["till", "other"],
        ] {
            assert!(!administers(&rule, &here, accounts), "{accounts:?}");
        }
    }

    #[test]
    fn a_rule_with_payees_lets_money_go_to_them_alone() {
        let rule = template("user:{subject}", Some("shop:*"));
        let alice = (Some("shop"), "alice");
        assert!(pays(&rule, alice, "user:alice", "shop:till"));
        assert!(!pays(&rule, alice, "user:alice", "user:bob"));
        let own = template("user:{subject}", Some("saved:{subject}"));
        assert!(pays(&own, alice, "user:alice", "saved:alice"));
        assert!(!pays(&own, alice, "user:alice", "saved:bob"));
    }

    #[test]
    fn a_policy_with_a_template_that_cannot_work_is_refused() {
        let fault = |rule: WalletRule| {
            let rules = vec![template("user:{subject}", None), rule];
            check(&WalletPolicy { version: 1, rules })
        };
        assert_eq!(fault(template("a:{client}", Some("{subject}"))), Ok(()));
        let mut anyone = template("user:{subject}", None);
        anyone.clients = None;
        assert!(
            fault(anyone)
                .unwrap_err()
                .starts_with("rule 2: user:{subject} needs")
        );
        for bad in ["{sub}", "{subject", "a}", "{client}{Subject}"] {
            assert!(
                fault(template(bad, None)).unwrap_err().contains("neither"),
                "{bad}"
            );
            assert!(fault(template("a", Some(bad))).is_err(), "{bad}");
        }
    }
}
