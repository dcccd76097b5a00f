//! The public documents: key set (RFC 7517) and issuer metadata (RFC 8414).

use std::sync::Arc;

use ron_auth::PROOF_ALGS;
use ron_http::{Body, Need, Response, Route};
use ron_proto::passport::{JWT_BEARER_GRANT, MtlsEndpoints, ServerMetadata, TOKEN_EXCHANGE};
use ron_proto::{ContentId, Problem, scope};

use super::Api;

/// Media type of a JWK set (RFC 7517 section 8.5).
const JWK_SET: &str = "application/jwk-set+json";

pub fn routes(api: &Arc<Api>) -> [Route; 4] {
    let keys = api.clone();
    let pq = api.clone();
    [
        Route::get("/.well-known/jwks.json", Need::Public, move |_| {
            let published = keys.keys.published();
            if published.jwks_json.is_empty() {
                return Err(Problem::unavailable(
                    "the signing keys were not read from the KMS yet",
                    1,
                ));
            }
            let tag = ContentId::of(&published.jwks_json).to_string();
            let body = Body::from(published.jwks_json.clone());
            Ok(Response::bytes(200, JWK_SET, body)
                .etag(&tag)
                .header("cache-control", keys.cached.clone()))
        })
        .summary("The public keys that tokens may be signed with.")
        .returns_bytes(200, JWK_SET)
        .errors(&[503])
        .while_draining(),
        Route::get("/.well-known/jwks-pq.json", Need::Public, move |_| {
            // Keys of kty AKP are only in this set: several clients refuse a whole set because of one such key.
            let published = pq.keys.published();
            if published.pq_json.is_empty() {
                return Err(Problem::unavailable(
                    "the signing keys were not read from the KMS yet",
                    1,
                ));
            }
            let tag = ContentId::of(&published.pq_json).to_string();
            let body = Body::from(published.pq_json.clone());
            Ok(Response::bytes(200, JWK_SET, body)
                .etag(&tag)
                .header("cache-control", pq.cached.clone()))
        })
        .summary("The ML-DSA public keys (kty AKP, RFC 9964); empty unless one is configured.")
        .returns_bytes(200, JWK_SET)
        .errors(&[503])
        .while_draining(),
        discovery(api, "/.well-known/oauth-authorization-server")
            .summary("Metadata of the issuer (RFC 8414): endpoints, grant types, scopes."),
        // Many clients look here unless they are told otherwise.
        discovery(api, "/.well-known/openid-configuration")
            .summary("The same metadata, where clients of OpenID Connect look for them."),
    ]
}

fn discovery(api: &Arc<Api>, path: &'static str) -> Route {
    let api = api.clone();
    Route::get(path, Need::Public, move |_| {
        let said = metadata(&api);
        let tag = serde_json::to_vec(&said).map(|json| ContentId::of(&json).to_string());
        let answer = Response::json(200, &said).header("cache-control", api.cached.clone());
        Ok(match tag {
            Ok(tag) => answer.etag(&tag),
            Err(_) => answer,
        })
    })
    .returns::<ServerMetadata>(200)
    .while_draining()
}

/// The scopes of this installation's services, then those of the others that the policy in force names.
fn scopes(api: &Api) -> Vec<String> {
    let mut all: Vec<String> = scope::ALL.iter().map(|s| (*s).to_owned()).collect();
    api.policy.with(|in_force| {
        let audiences = in_force.iter().flat_map(|one| &one.policy.audiences);
        let mut named: Vec<&String> = audiences.flat_map(|one| &one.scopes).collect();
        named.sort_unstable();
        named.dedup();
        named.retain(|scope| !all.contains(scope));
        all.extend(named.into_iter().cloned());
    });
    all
}

/// The endpoints for clients with certificates, where they are not those for all.
fn aliases(api: &Api) -> Option<MtlsEndpoints> {
    let base = api
        .certs_at
        .as_ref()
        .filter(|base| **base != api.public_url)?;
    Some(MtlsEndpoints {
        token_endpoint: format!("{base}/oauth2/token"),
        introspection_endpoint: format!("{base}/oauth2/introspect"),
        revocation_endpoint: format!("{base}/oauth2/revoke"),
    })
}

fn metadata(api: &Api) -> ServerMetadata {
    let (issuer, base) = (&*api.names.now, &*api.public_url);
    let texts = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let mut clients = texts(&[
        "client_secret_basic",
        "client_secret_post",
        "private_key_jwt",
    ]);
    // Only what works here: without TLS, or without an authority for them, no certificate is asked for.
    if api.certs_at.is_some() {
        clients.extend(texts(&["tls_client_auth", "self_signed_tls_client_auth"]));
    }
    let algs = texts(&PROOF_ALGS);
    ServerMetadata {
        issuer: issuer.to_owned(),
        token_endpoint: format!("{base}/oauth2/token"),
        jwks_uri: format!("{base}/.well-known/jwks.json"),
        pq_jwks_uri: format!("{base}/.well-known/jwks-pq.json"),
        introspection_endpoint: format!("{base}/oauth2/introspect"),
        revocation_endpoint: format!("{base}/oauth2/revoke"),
        grant_types_supported: texts(&["client_credentials", JWT_BEARER_GRANT, TOKEN_EXCHANGE]),
        token_endpoint_auth_methods_supported: clients.clone(),
        token_endpoint_auth_signing_alg_values_supported: algs.clone(),
        introspection_endpoint_auth_methods_supported: clients.clone(),
        revocation_endpoint_auth_methods_supported: clients,
        dpop_signing_alg_values_supported: algs,
        tls_client_certificate_bound_access_tokens: api.certs_at.is_some(),
        mtls_endpoint_aliases: aliases(api),
        authorization_details_types_supported: texts(&["ron"]),
        response_types_supported: Vec::new(),
        scopes_supported: scopes(api),
    }
}
