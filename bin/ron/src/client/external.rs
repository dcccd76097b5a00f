//! Clients that prove themselves with tokens of another issuer: the policy trusts the issuer and maps its tokens to them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use ron_proto::passport::{ClientRule, ExternalIssuer, ExternalSubject, IssuerPolicy};
use ron_proto::strict;

#[derive(Args)]
pub struct ExternalArgs {
    /// Pattern of `sub` of these tokens; * stands for characters other than / and :.
    #[arg(long, requires = "issuer")]
    subject: Option<String>,
    /// Pattern of another claim of these tokens, NAME=PATTERN, where NAME may be a JSON pointer; may be repeated. Of a
    /// list, one element must fit, as a group.
    #[arg(long = "claim", requires = "issuer")]
    claims: Vec<String>,
    /// File with the issuer's keys, a JWK set. This or --jwks-url for an issuer that the policy does not have yet.
    #[arg(long, requires = "issuer", conflicts_with = "jwks_url")]
    jwks: Option<PathBuf>,
    /// URL of the issuer's keys.
    #[arg(long, requires = "issuer")]
    jwks_url: Option<String>,
    /// The `aud` of the issuer's tokens for this issuer; this issuer's own URL when absent.
    #[arg(long, requires = "issuer")]
    issuer_audience: Option<String>,
    /// Let each token of the issuer be presented more than once, although it has an id; for platforms that give a
    /// workload a file with a token, as Kubernetes does.
    #[arg(long, requires = "issuer")]
    reusable: bool,
}

impl ExternalArgs {
    /// Trusts the issuer, unless the policy does so already, and maps its tokens to the client.
    pub fn map(&self, policy: &mut IssuerPolicy, client: &str, issuer: &str) -> Result<(), String> {
        let described = self.jwks.is_some()
            || self.jwks_url.is_some()
            || self.issuer_audience.is_some()
            || self.reusable;
        let known = policy.issuers.iter().any(|one| one.issuer == issuer);
        if known && described {
            return Err(format!(
                "the policy has the issuer {issuer} already; leave out its keys and --issuer-audience, or change them in \
                 the file and sign it with `ron policy sign`"
            ));
        }
        if !known {
            policy.issuers.push(ExternalIssuer {
                issuer: issuer.to_owned(),
                jwks: self.jwks.as_ref().map(read_keys).transpose()?,
                jwks_url: self.jwks_url.clone(),
                audience: self.issuer_audience.clone(),
                reusable: self.reusable,
            });
        }
        let pair = |text: &String| {
            let pair = text.split_once('=');
            let (name, pattern) =
                pair.ok_or_else(|| format!("--claim {text}: write NAME=PATTERN"))?;
            Ok::<_, String>((name.to_owned(), pattern.to_owned()))
        };
        let mut claims = BTreeMap::new();
        for text in &self.claims {
            let (name, pattern) = pair(text)?;
            if claims.insert(name, pattern).is_some() {
                return Err(format!(
                    "--claim {text}: the claim is named twice, and all patterns must fit; write one pattern"
                ));
            }
        }
        let mapping = ExternalSubject {
            issuer: issuer.to_owned(),
            subject: self.subject.clone(),
            claims,
        };
        let mut rules = policy.clients.iter_mut();
        let rule = rules.find(|rule| rule.client_id == client);
        rule.ok_or("the client has no rule")?.external.push(mapping);
        Ok(())
    }
}

fn read_keys(path: &PathBuf) -> Result<serde_json::Value, String> {
    let text = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    strict::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// How a client proves itself, for a list.
pub fn proofs(rule: &ClientRule) -> String {
    let names: Vec<&str> = rule
        .external
        .iter()
        .map(|one| one.issuer.as_str())
        .collect();
    format!("tokens of {}", names.join(", "))
}

/// Removes the issuers that no client has tokens of any more.
pub fn drop_unused(policy: &mut IssuerPolicy) {
    let used: Vec<String> = policy
        .clients
        .iter()
        .flat_map(|rule| &rule.external)
        .map(|one| one.issuer.clone())
        .collect();
    policy.issuers.retain(|one| used.contains(&one.issuer));
}
