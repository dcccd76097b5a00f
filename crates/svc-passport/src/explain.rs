//! The decisions of the token endpoint, for tools that read the policy and the configuration from files.

use ron_proto::passport::IssuerPolicy;
use ron_service::{Config, ConfigProblem, ServiceSettings as _};

use crate::policy::{PqMode, TokenRequest, decide};
use crate::settings::Settings;

/// A token that a client would ask for.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub client_id: &'a str,
    /// The client itself when absent.
    pub subject: Option<&'a str>,
    pub audience: Option<&'a str>,
    /// Scopes separated by spaces; all allowed scopes when absent.
    pub scope: Option<&'a str>,
    pub ttl_s: Option<u64>,
    pub caveats: &'a [String],
}

/// The token that the client would get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub subject: String,
    pub tenant: String,
    pub audience: String,
    pub scope: String,
    pub ttl_s: u64,
    /// Its caveats, each as `key=value`.
    pub caveats: Vec<String>,
    pub alg: &'static str,
}

/// A client of the configuration, without its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredClient {
    pub id: String,
    /// How it proves itself, as in `1 secret`.
    pub proofs: Vec<String>,
}

/// The issuer's configuration, as far as it decides about tokens.
#[derive(Debug)]
pub struct Decider(Settings);

impl Decider {
    /// # Errors
    /// The problems for which the service would not start.
    pub fn new(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        Settings::from_config(config).map(Self)
    }

    /// The service's answer under this policy, if its signing keys are there; the error is the answer's reason.
    pub fn decide(&self, policy: &IssuerPolicy, ask: Question<'_>) -> Result<Verdict, String> {
        let limits = &self.0.limits;
        let request = TokenRequest {
            client_id: ask.client_id,
            subject: ask.subject,
            audience: ask.audience,
            scope: ask.scope,
            ttl_s: ask.ttl_s,
            caveats: ask.caveats,
            accept_algs: &[],
            jkt: None,
            x5t: None,
            pq_ready: limits.pq != PqMode::Off,
        };
        let grant = decide(policy, &request, limits).map_err(|problem| {
            let code = problem.oauth.unwrap_or(problem.code);
            format!("{code}: {}", problem.detail)
        })?;
        Ok(Verdict {
            subject: grant.subject,
            tenant: grant.tenant.to_string(),
            audience: grant.audience,
            scope: grant.scope,
            ttl_s: grant.ttl_s,
            caveats: grant.caveats.iter().map(ToString::to_string).collect(),
            alg: grant.alg,
        })
    }

    pub fn clients(&self) -> Vec<ConfiguredClient> {
        let shown = |client: &crate::clients::Client| {
            let counted = [
                (client.secrets.len(), "secret"),
                (client.keys.len(), "key"),
                (client.certs.len(), "certificate"),
                (client.dns_names.len(), "DNS name"),
            ];
            let some = counted.into_iter().filter(|(number, _)| *number > 0);
            let proofs = some.map(|(number, what)| match number {
                1 => format!("1 {what}"),
                _ => format!("{number} {what}s"),
            });
            ConfiguredClient {
                id: client.id.clone(),
                proofs: proofs.collect(),
            }
        };
        self.0.clients.iter().map(shown).collect()
    }
}
