//! Client of svc-passport.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::passport::{
    ACCESS_TOKEN_TYPE, ID_TOKEN_TYPE, IntrospectAnswer, IssueAnswer, IssueRequest, IssuedTokens,
    JWT_BEARER, Jwks, RecordedRevocations, RefusedClients, RevocationPage, RevokeAnswer,
    RevokeRequest, ServerMetadata, TOKEN_EXCHANGE, TokenAnswer, VerifyBatchAnswer, VerifyToken,
    VerifyTokenBatch, VerifyVerdict,
};
use ron_proto::{Timestamp, b64};

use crate::call::{Caller, ClientError, Outgoing, encode, read};
use ron_http::Credential;

#[derive(Debug, Clone)]
pub struct PassportClient(Caller);

/// Name and secret of a client as the value of `Authorization` (RFC 6749 section 2.3.1).
pub fn basic(client_id: &str, secret: &str) -> String {
    let pair = format!("{}:{}", encode(client_id), encode(secret));
    format!("Basic {}", b64::std(pair.as_bytes()))
}

/// How a client authenticates.
#[derive(Clone, Copy)]
pub enum ClientProof<'a> {
    /// With its secret, as HTTP Basic.
    Secret(&'a str),
    /// With a fresh assertion signed by its key (RFC 7523).
    Assertion(&'a str),
}

impl std::fmt::Debug for ClientProof<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "ClientProof(secret)",
            Self::Assertion(_) => "ClientProof(assertion)",
        })
    }
}

/// The parameters of a token request.
#[derive(Debug, Clone, Default)]
pub struct TokenAsk<'a> {
    /// Service that the token is for; empty leaves the choice to the issuer.
    pub audience: &'a str,
    /// Scopes separated by spaces; `None` requests all that are allowed.
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

    /// Issues a token under the caller's own rule; not retried.
    pub fn issue(
        &self,
        request: &IssueRequest,
        deadline: Deadline,
    ) -> Result<IssueAnswer, ClientError> {
        self.0.post("/v1/passport/issue", request, false, deadline)
    }

    /// Gets a token as an OAuth client with a secret (client_credentials); safe to repeat, each
    /// call returns another token.
    pub fn token(
        &self,
        client_id: &str,
        secret: &str,
        ask: &TokenAsk<'_>,
        deadline: Deadline,
    ) -> Result<TokenAnswer, ClientError> {
        let proof = ClientProof::Secret(secret);
        self.token_with(client_id, proof, ask, None, deadline)
    }

    /// Like [`Self::token`], with any authentication of the client, and with a DPoP proof for `POST
    /// /oauth2/token` when the token is to be bound to a key.
    pub fn token_with(
        &self,
        client_id: &str,
        proof: ClientProof<'_>,
        ask: &TokenAsk<'_>,
        dpop: Option<&str>,
        deadline: Deadline,
    ) -> Result<TokenAnswer, ClientError> {
        let mut form = Form::default();
        form.add("grant_type", "client_credentials");
        form.ask(ask);
        self.form("/oauth2/token", form, (client_id, proof), dpop, deadline)
            .and_then(|reply| read(&reply))
    }

    /// Exchanges a token for a narrower one (RFC 8693). A bound token requires a DPoP proof by its
    /// key.
    pub fn exchange(
        &self,
        client_id: &str,
        proof: ClientProof<'_>,
        subject_token: &str,
        ask: &TokenAsk<'_>,
        dpop: Option<&str>,
        deadline: Deadline,
    ) -> Result<TokenAnswer, ClientError> {
        let mut form = Form::default();
        form.add("grant_type", TOKEN_EXCHANGE);
        form.add("subject_token", subject_token);
        form.add("subject_token_type", ACCESS_TOKEN_TYPE);
        form.ask(ask);
        self.form("/oauth2/token", form, (client_id, proof), dpop, deadline)
            .and_then(|reply| read(&reply))
    }

    /// Exchanges a person's ID token of another issuer for a token of the client that the policy maps it to, or of
    /// `client_id` if the ID token fits several.
    pub fn for_id_token(
        &self,
        id_token: &str,
        client_id: Option<&str>,
        ask: &TokenAsk<'_>,
        deadline: Deadline,
    ) -> Result<TokenAnswer, ClientError> {
        let mut form = Form::default();
        form.add("grant_type", TOKEN_EXCHANGE);
        form.add("subject_token", id_token);
        form.add("subject_token_type", ID_TOKEN_TYPE);
        if let Some(client_id) = client_id {
            form.add("client_id", client_id);
        }
        form.ask(ask);
        self.send_form("/oauth2/token", form, &[], deadline)
            .and_then(|reply| read(&reply))
    }

    /// Current validity of a token, for a client that may introspect (RFC 7662).
    pub fn introspect(
        &self,
        client_id: &str,
        proof: ClientProof<'_>,
        token: &str,
        deadline: Deadline,
    ) -> Result<IntrospectAnswer, ClientError> {
        let mut form = Form::default();
        form.add("token", token);
        let client = (client_id, proof);
        self.form("/oauth2/introspect", form, client, None, deadline)
            .and_then(|reply| read(&reply))
    }

    /// Revokes a token as the client that it was issued to (RFC 7009).
    pub fn give_back(
        &self,
        client_id: &str,
        proof: ClientProof<'_>,
        token: &str,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let mut form = Form::default();
        form.add("token", token);
        self.form("/oauth2/revoke", form, (client_id, proof), None, deadline)
            .map(|_| ())
    }

    fn form(
        &self,
        path: &str,
        mut form: Form,
        (client_id, proof): (&str, ClientProof<'_>),
        dpop: Option<&str>,
        deadline: Deadline,
    ) -> Result<Reply, ClientError> {
        let basic = match proof {
            ClientProof::Secret(secret) => Some(basic(client_id, secret)),
            ClientProof::Assertion(assertion) => {
                form.add("client_assertion_type", JWT_BEARER);
                form.add("client_assertion", assertion);
                None
            }
        };
        let mut headers: Vec<(&str, &str)> = Vec::new();
        headers.extend(
            basic
                .as_ref()
                .map(|basic| ("Authorization", basic.as_str())),
        );
        headers.extend(dpop.map(|proof| ("DPoP", proof)));
        self.send_form(path, form, &headers, deadline)
    }

    fn send_form(
        &self,
        path: &str,
        form: Form,
        headers: &[(&str, &str)],
        deadline: Deadline,
    ) -> Result<Reply, ClientError> {
        self.0.send(&Outgoing {
            method: Method::POST,
            body: Some((
                form.into_text().into_bytes(),
                "application/x-www-form-urlencoded",
            )),
            headers,
            ..Outgoing::get(path, deadline)
        })
    }

    /// Current validity of a token.
    pub fn verify(&self, token: &str, deadline: Deadline) -> Result<VerifyVerdict, ClientError> {
        let body = VerifyToken {
            token: token.to_owned(),
        };
        self.0.post("/v1/passport/verify", &body, true, deadline)
    }

    /// Current validity of many tokens, at most 512; `results[n]` belongs to `tokens[n]`.
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

    /// Revocations after a number, waiting up to `wait` for the next one; the deadline must be
    /// later. Needs `passport:introspect`.
    pub fn events(
        &self,
        after: u64,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<RevocationPage, ClientError> {
        let path = format!("/v1/passport/events?after={after}&wait={}", wait.as_secs());
        self.0.get(&path, deadline)
    }

    /// A page of issued tokens, newest first. `query` has names and values of the filters.
    pub fn issued(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<IssuedTokens, ClientError> {
        let pairs = query.iter().map(|(n, v)| format!("{n}={}", encode(v)));
        let pairs: Vec<String> = pairs.collect();
        let path = format!("/v1/passport/issued?{}", pairs.join("&"));
        self.0.get(&path, deadline)
    }

    /// Refused authentications by client and reason.
    pub fn refused_clients(&self, deadline: Deadline) -> Result<RefusedClients, ClientError> {
        self.0.get("/v1/passport/clients/refused", deadline)
    }

    /// A page of recorded revocations, newest first, before the number `before`.
    pub fn revocations(
        &self,
        before: Option<u64>,
        (since, in_force, limit): (Option<Timestamp>, bool, usize),
        deadline: Deadline,
    ) -> Result<RecordedRevocations, ClientError> {
        let before = before.map_or_else(String::new, |before| format!("&before={before}"));
        let since = since.map_or_else(String::new, |since| {
            format!("&since={}", encode(&since.to_string()))
        });
        let path =
            format!("/v1/passport/revocations?in_force={in_force}&limit={limit}{before}{since}");
        self.0.get(&path, deadline)
    }

    /// A status list token by the number in its URL.
    pub fn status_list(&self, list: u64, deadline: Deadline) -> Result<String, ClientError> {
        self.0
            .get_text(&format!("/v1/passport/status/{list}"), deadline)
    }

    pub fn policy_note(&self, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text("/v1/passport/policy", deadline)
    }

    /// The issuer's endpoints (RFC 8414).
    pub fn metadata(&self, deadline: Deadline) -> Result<ServerMetadata, ClientError> {
        self.0
            .get("/.well-known/oauth-authorization-server", deadline)
    }

    pub fn jwks(&self, deadline: Deadline) -> Result<Jwks, ClientError> {
        self.0.get("/.well-known/jwks.json", deadline)
    }
}

/// An `application/x-www-form-urlencoded` body, or a query.
#[derive(Default)]
pub struct Form(String);

impl Form {
    /// Adds a field; name and value may be any text.
    pub fn add(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&encode(value));
    }

    pub fn into_text(self) -> String {
        self.0
    }

    fn ask(&mut self, ask: &TokenAsk<'_>) {
        if !ask.audience.is_empty() {
            self.add("audience", ask.audience);
        }
        if let Some(scope) = ask.scope {
            self.add("scope", scope);
        }
        if let Some(ttl_s) = ask.ttl_s {
            self.add("ttl_s", &ttl_s.to_string());
        }
        for caveat in ask.caveats {
            self.add("caveat", caveat);
        }
    }
}
