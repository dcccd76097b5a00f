//! Key policies: who may do what with a key, and under which conditions.

use std::{fmt, net::IpAddr, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApprovalRule;
use crate::caveat::IpBlock;
use crate::values::{KeyOp, Kid, OpId, Timestamp, ValueError, string_value};

/// Maximum rules of a policy.
pub const POLICY_RULES_MAX: usize = 64;
/// Maximum entries of a list in a policy.
pub const RULE_LIST_MAX: usize = 32;
/// Maximum bytes of a text in a policy.
pub const RULE_TEXT_MAX: usize = 256;

/// The policy of a key. What no rule of `allow` matches is refused, and what a rule of `deny` matches is refused whatever else
/// allows it. Reading the key's document, verifying signatures and making keys are not governed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyPolicy {
    /// What is allowed.
    pub allow: Vec<PolicyRule>,
    /// What is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<PolicyRule>,
    /// Which operations need the approvals of others, beside being allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalRule>,
}

/// Matches a request whose caller, operation and circumstances all match.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// Which callers; every caller when absent.
    #[serde(default, skip_serializing_if = "Callers::is_anyone")]
    pub who: Callers,
    /// Which operations.
    pub ops: Vec<KeyOp>,
    /// Under which conditions; always when absent.
    #[serde(default, skip_serializing_if = "When::is_always")]
    pub when: When,
}

/// Callers. All lists that are not empty must match.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Callers {
    /// One of these names: of a service or client, or the subject of a passport; exact, or a prefix that ends in `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub principals: Vec<String>,
    /// A passport that was issued to one of these clients; exact, or a prefix that ends in `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<String>,
    /// All of these scopes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

impl Callers {
    fn is_anyone(&self) -> bool {
        *self == Self::default()
    }
}

/// Conditions. All that are given must hold; one about a fact that is not known does not.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The request's `context` is one of these texts; exact, or a prefix that ends in `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<String>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// Between two times of each day, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<Daily>,
    /// The address of the peer is in one of these blocks; callers over a Unix socket have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<IpBlock>,
    /// The attestation class of the key is one of these: `none`, `statement`, `tpm2-certify`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attestation: Vec<String>,
}

impl When {
    pub fn is_always(&self) -> bool {
        *self == Self::default()
    }
}

/// A part of each day in UTC. `until` before `from` goes over midnight.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Daily {
    pub from: TimeOfDay,
    /// Excluded.
    pub until: TimeOfDay,
}

/// A time of the day to the minute, `08:30`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    /// Minutes since midnight.
    pub const fn minutes(self) -> u16 {
        self.0
    }
}

impl FromStr for TimeOfDay {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let part = |text: &str, below: u16| {
            let digits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|n: &u16| digits && *n < below)
        };
        let parsed = text.split_once(':').and_then(|(hours, minutes)| {
            let (hours, minutes) = (part(hours, 24)?, part(minutes, 60)?);
            Some(Self(hours * 60 + minutes))
        });
        parsed.ok_or_else(|| ValueError::new("time of day", "write it as 08:30, in UTC"))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl fmt::Debug for TimeOfDay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

string_value!(TimeOfDay, "time of day", {
    "type": "string",
    "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"
});

impl KeyPolicy {
    /// What is wrong with the policy by itself; empty when it may be used.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.allow.len() + self.deny.len() > POLICY_RULES_MAX {
            faults.push(format!("a policy has at most {POLICY_RULES_MAX} rules"));
        }
        for (list, rules) in [("allow", &self.allow), ("deny", &self.deny)] {
            for (at, rule) in rules.iter().enumerate() {
                let of_rule = rule.faults();
                faults.extend(
                    of_rule
                        .into_iter()
                        .map(|why| format!("{list}[{at}]: {why}")),
                );
            }
        }
        faults.extend(self.approvals.iter().flat_map(ApprovalRule::faults));
        faults
    }
}

impl PolicyRule {
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.ops.is_empty() {
            faults.push("`ops` is empty; name the operations".to_owned());
        }
        if let Some(op) = self.ops.iter().find(|op| !op.is_governed()) {
            faults.push(format!(
                "`{op}` is not governed by key policies: scopes and caveats decide about it"
            ));
        }
        let lists = [
            ("who.principals", &self.who.principals),
            ("who.clients", &self.who.clients),
            ("who.scopes", &self.who.scopes),
        ];
        faults.extend(
            lists
                .iter()
                .filter_map(|(name, list)| text_fault(name, list)),
        );
        faults.extend(self.when.faults());
        faults
    }
}

impl When {
    /// What is wrong with the conditions.
    pub fn faults(&self) -> Vec<String> {
        let lists = [
            ("when.context", &self.context),
            ("when.attestation", &self.attestation),
        ];
        let faults = lists
            .iter()
            .filter_map(|(name, list)| text_fault(name, list));
        let mut faults: Vec<String> = faults.collect();
        if self.peers.len() > RULE_LIST_MAX {
            faults.push(format!(
                "`when.peers` has more than {RULE_LIST_MAX} entries"
            ));
        }
        if let (Some(from), Some(until)) = (self.not_before, self.not_after)
            && until <= from
        {
            faults.push("`when.not_after` is not after `when.not_before`".to_owned());
        }
        faults
    }
}

fn text_fault(name: &str, list: &[String]) -> Option<String> {
    let fits = |text: &String| {
        (1..=RULE_TEXT_MAX).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
    };
    if list.len() > RULE_LIST_MAX {
        return Some(format!("`{name}` has more than {RULE_LIST_MAX} entries"));
    }
    (!list.iter().all(fits)).then(|| {
        format!("`{name}` holds a text that is not 1 to {RULE_TEXT_MAX} of printable ASCII")
    })
}

/// `PUT /keys/{t}/{p}/{alg}/{id}/policy`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutKeyPolicy {
    /// The policy in place of the present one; null removes that.
    pub policy: Option<KeyPolicy>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// Response of `GET /keys/{t}/{p}/{alg}/{id}/policy`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyPolicyDoc {
    /// The key.
    pub key: Kid,
    /// Its policy; null when scopes and caveats alone decide.
    pub policy: Option<KeyPolicy>,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/policy/explain`: what would be decided about a caller.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainKeyPolicy {
    /// Name of the caller.
    pub principal: String,
    /// The client of its passport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Its scopes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The operation.
    pub op: KeyOp,
    /// The request's `context`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The address of the peer; absent for a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// The time of the request; now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// Response of `POST /keys/{t}/{p}/{alg}/{id}/policy/explain`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyPolicyExplained {
    /// Whether policy and grants allow it; scope and caveats are decided before.
    pub allowed: bool,
    /// What decided: `no_policy`, `allow[n]`, `deny[n]`, `grant:<id>`, or `nothing`.
    pub by: String,
    /// The same in a sentence.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_their_rule() {
        let check = |json: &str, faults: usize| {
            let policy: KeyPolicy = serde_json::from_str(json).expect(json);
            let found = policy.faults();
            assert_eq!(found.len(), faults, "{json}: {found:?}");
        };
        check(r#"{"allow": []}"#, 0);
        check(r#"{"allow": [{"ops": ["sign"]}]}"#, 0);
        check(r#"{"allow": [{"ops": []}]}"#, 1);
        check(
            r#"{"allow": [{"ops": ["verify"]}], "deny": [{"ops": ["read"]}]}"#,
            2,
        );
        check(
            r#"{"allow": [{"who": {"principals": [""]}, "ops": ["sign"]}]}"#,
            1,
        );
        check(
            r#"{"allow": [{"ops": ["sign"], "when": {"not_before": "2026-01-02T00:00:00Z", "not_after": "2026-01-01T00:00:00Z"}}]}"#,
            1,
        );
        let many = vec![r#"{"ops": ["sign"]}"#; POLICY_RULES_MAX + 1].join(",");
        check(&format!(r#"{{"allow": [{many}]}}"#), 1);
        for bad in [
            "{}",
            r#"{"allow": [{"ops": ["fly"]}]}"#,
            r#"{"allow": [{"ops": ["sign"], "when": {"daily": {"from": "8:00", "until": "18:00"}}}]}"#,
            r#"{"allow": [{"ops": ["sign"], "when": {"peers": ["10.0.0.1/8"]}}]}"#,
            r#"{"allow": [], "alow": []}"#,
        ] {
            assert!(serde_json::from_str::<KeyPolicy>(bad).is_err(), "{bad}");
        }
    }
}
