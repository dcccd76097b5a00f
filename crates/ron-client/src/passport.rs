//! svc-passport.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Method};
use ron_kernel::Deadline;
use ron_proto::b64;
use ron_proto::passport::{
    IssueAnswer, IssueRequest, Jwks, RevocationPage, RevokeAnswer, RevokeRequest, ServerMetadata,
    TokenAnswer, VerifyBatchAnswer, VerifyToken, VerifyTokenBatch, VerifyVerdict,
};

use crate::call::{Caller, ClientError, Outgoing, encode, read};
use crate::credential::Credential;

/// A client of svc-passport.
#[derive(Debug, Clone)]
pub struct PassportClient(Caller);

/// What a client asks the token endpoint for.
#[derive(Debug, Clone, Default)]
pub struct TokenAsk<'a> {
    /// Service the token is for.
    pub audience: &'a str,
    /// Scopes separated by spaces; absent asks for all that are allowed.
    pub scope: Option<&'a str>,
    /// Lifetime in seconds.
    pub ttl_s: Option<u64>,
    /// Caveats as `key=value`.
    pub caveats: &'a [String],
}

impl PassportClient {
    /// A client of the issuer at `base`.
    pub fn new(base: &str, credential: Credential, http: Arc<HttpClient>) -> Self {
        Self(Caller::new(base, credential, http))
    }

    /// Issues a token to the caller's own rule; not retried.
    pub fn issue(
        &self,
        request: &IssueRequest,
        deadline: Deadline,
    ) -> Result<IssueAnswer, ClientError> {
        self.0.post("/v1/passport/issue", request, false, deadline)
    }

    /// Gets a token as an OAuth client with a secret (client_credentials); safe to repeat, each
    /// time gives another token.
    pub fn token(
        &self,
        client_id: &str,
        secret: &str,
        ask: &TokenAsk<'_>,
        deadline: Deadline,
    ) -> Result<TokenAnswer, ClientError> {
        let mut form = format!(
            "grant_type=client_credentials&audience={}",
            encode(ask.audience)
        );
        let mut add = |name: &str, value: &str| {
            form.push('&');
            form.push_str(name);
            form.push('=');
            form.push_str(&encode(value));
        };
        if let Some(scope) = ask.scope {
            add("scope", scope);
        }
        if let Some(ttl_s) = ask.ttl_s {
            add("ttl_s", &ttl_s.to_string());
        }
        for caveat in ask.caveats {
            add("caveat", caveat);
        }
        let pair = format!("{}:{}", encode(client_id), encode(secret));
        let basic = format!("Basic {}", b64::std(pair.as_bytes()));
        let reply = self.0.send(&Outgoing {
            method: Method::POST,
            body: Some((form.into_bytes(), "application/x-www-form-urlencoded")),
            headers: &[("Authorization", &basic)],
            ..Outgoing::get("/oauth2/token", deadline)
        })?;
        read(&reply)
    }

    /// What a token is worth now.
    pub fn verify(&self, token: &str, deadline: Deadline) -> Result<VerifyVerdict, ClientError> {
        let body = VerifyToken {
            token: token.to_owned(),
        };
        self.0.post("/v1/passport/verify", &body, true, deadline)
    }

    /// What many tokens are worth now; `results[n]` belongs to `tokens[n]`, at most 512.
    pub fn verify_batch(
        &self,
        request: &VerifyTokenBatch,
        deadline: Deadline,
    ) -> Result<VerifyBatchAnswer, ClientError> {
        self.0
            .post("/v1/passport/verify_batch", request, true, deadline)
    }

    /// Revokes; not retried, because an epoch may only grow.
    pub fn revoke(
        &self,
        request: &RevokeRequest,
        deadline: Deadline,
    ) -> Result<RevokeAnswer, ClientError> {
        self.0.post("/v1/passport/revoke", request, false, deadline)
    }

    /// Revocations after a number, waiting up to `wait` for the next; the deadline must be later.
    pub fn events(
        &self,
        after: u64,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<RevocationPage, ClientError> {
        let path = format!("/v1/passport/events?after={after}&wait={}", wait.as_secs());
        self.0.get(&path, deadline)
    }

    /// Where the issuer's endpoints are (RFC 8414).
    pub fn metadata(&self, deadline: Deadline) -> Result<ServerMetadata, ClientError> {
        self.0
            .get("/.well-known/oauth-authorization-server", deadline)
    }

    /// The key set.
    pub fn jwks(&self, deadline: Deadline) -> Result<Jwks, ClientError> {
        self.0.get("/.well-known/jwks.json", deadline)
    }
}
