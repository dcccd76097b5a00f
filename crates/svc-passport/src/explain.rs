//! The decisions of the token endpoint, for tools that read the policy and the configuration from files.

use ron_proto::Problem;
use ron_proto::passport::{IssuerPolicy, PolicyQuestion, PolicyToken};
use ron_service::{Config, ConfigProblem, ServiceSettings as _};

use crate::policy::{Limits, PqMode, TokenRequest, decide};
use crate::settings::Settings;

/// The service's answer to a client that asks for a token without a proof of possession and without a certificate.
pub(crate) fn answer(
    policy: &IssuerPolicy,
    ask: &PolicyQuestion,
    limits: &Limits,
    pq_ready: bool,
) -> Result<PolicyToken, Problem> {
    let request = TokenRequest {
        client_id: &ask.client_id,
        subject: ask.subject.as_deref(),
        audience: ask.audience.as_deref(),
        scope: ask.scope.as_deref(),
        ttl_s: ask.ttl_s,
        caveats: &ask.caveats,
        accept_algs: &[],
        jkt: None,
        x5t: None,
        pq_ready,
    };
    let grant = decide(policy, &request, limits)?;
    Ok(PolicyToken {
        subject: grant.subject,
        tenant: grant.tenant.to_string(),
        audience: grant.audience,
        scope: grant.scope,
        ttl_s: grant.ttl_s,
        caveats: grant.caveats.iter().map(ToString::to_string).collect(),
        alg: grant.alg.to_owned(),
    })
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
    pub fn decide(
        &self,
        policy: &IssuerPolicy,
        ask: &PolicyQuestion,
    ) -> Result<PolicyToken, String> {
        let limits = &self.0.limits;
        answer(policy, ask, limits, limits.pq != PqMode::Off).map_err(|problem| {
            let code = problem.oauth.unwrap_or(problem.code);
            format!("{code}: {}", problem.detail)
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
