//! Tokens: RFC 9068 claims from a grant, the JWS signing input, the finished compact form.

use ron_proto::kms::Jwk;
use ron_proto::passport::{Confirmation, StatusRef, TOKEN_BYTES_MAX, TokenClaims, TokenStatus};
use ron_proto::{Problem, b64, caveat};
use serde::Serialize;

use crate::policy::Grant;

/// What one snapshot says of the moment in which tokens are signed.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The key.
    pub key: &'a SigningKey,
    /// `iss`.
    pub issuer: &'a str,
    /// The epoch.
    pub epoch: u64,
    /// Unix seconds.
    pub iat: u64,
}

/// Id and status bit of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// `jti`.
    pub jti: String,
    /// Where its status bit is, once lists are published.
    pub status: Option<StatusRef>,
}

/// The head version of a signing key, as one snapshot gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct SigningKey {
    /// The KMS key.
    pub key: ron_proto::Kid,
    /// The version that must sign.
    pub version: u32,
    /// Its public key; `jwk.kid` goes into the token's header.
    pub jwk: Jwk,
}

/// A token that lacks only its signature.
#[derive(Debug, Clone, PartialEq)]
pub struct Unsigned {
    /// `header.payload`, what the KMS signs.
    pub signing_input: String,
    /// When it expires (unix seconds).
    pub exp: u64,
}

#[derive(Serialize)]
struct Header<'a> {
    alg: &'a str,
    kid: &'a str,
    typ: &'static str,
}

/// Writes the claims. `exp` is exactly `iat + ttl`.
pub fn unsigned(grant: &Grant, at: &Moment<'_>, id: Identity) -> Result<Unsigned, Problem> {
    let (key, iat) = (at.key, at.iat);
    let exp = iat + grant.ttl_s;
    let claims = TokenClaims {
        iss: at.issuer.to_owned(),
        sub: grant.subject.clone(),
        aud: grant.audience.clone(),
        iat,
        nbf: iat,
        exp,
        jti: id.jti,
        client_id: grant.client_id.clone(),
        tenant: grant.tenant.clone(),
        scope: grant.scope.clone(),
        ron_epoch: at.epoch,
        authorization_details: if grant.caveats.is_empty() {
            Vec::new()
        } else {
            vec![caveat::to_detail(&grant.caveats)]
        },
        cnf: grant.jkt.clone().map(|jkt| Confirmation { jkt }),
        act: grant.act.clone(),
        status: id.status.map(|status_list| TokenStatus { status_list }),
    };
    let header = Header {
        alg: &key.jwk.alg,
        kid: &key.jwk.kid,
        typ: "at+jwt",
    };
    let part = |json: serde_json::Result<Vec<u8>>| {
        json.map(|bytes| b64::url(&bytes))
            .map_err(|_| Problem::internal("the token could not be written"))
    };
    let signing_input = format!(
        "{}.{}",
        part(serde_json::to_vec(&header))?,
        part(serde_json::to_vec(&claims))?
    );
    if signing_input.len() + 1 + SIGNATURE_CHARS > TOKEN_BYTES_MAX {
        return Err(Problem::bad_request(
            "the token would be larger than 4 KiB: ask for fewer caveats or scopes",
        ));
    }
    Ok(Unsigned { signing_input, exp })
}

/// Both algorithms have 64-byte signatures.
const SIGNATURE_CHARS: usize = 86;

/// The compact form.
pub fn finish(unsigned: &Unsigned, signature: &[u8]) -> String {
    format!("{}.{}", unsigned.signing_input, b64::url(signature))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ron_auth::jwks::JwksSnapshot;
    use ron_auth::jwt::{Expect, verify_jwt};
    use ron_crypto::jwk::thumbprint_okp;
    use ron_crypto::sign::Ed25519Key;
    use ron_proto::passport::Jwks;

    use super::*;

    fn key() -> (Ed25519Key, SigningKey) {
        let secret = Ed25519Key::from_seed(&[3; 32]);
        let public = secret.public();
        let jwk = Jwk {
            kty: "OKP".to_owned(),
            crv: "Ed25519".to_owned(),
            x: b64::url(&public),
            y: None,
            kid: thumbprint_okp(&public),
            alg: "EdDSA".to_owned(),
            usage: "sig".to_owned(),
        };
        let key = "ron/issuer/ed25519/018f8e9e-0000-7000-8000-000000000001"
            .parse()
            .unwrap();
        (
            secret,
            SigningKey {
                key,
                version: 1,
                jwk,
            },
        )
    }

    fn grant(ttl_s: u64) -> Grant {
        Grant {
            subject: "user:1".to_owned(),
            client_id: "operator".to_owned(),
            tenant: "default".parse().unwrap(),
            audience: "svc-wallet".to_owned(),
            scope: "wallet:read".to_owned(),
            ttl_s,
            caveats: vec!["asset=rpl".parse().unwrap()],
            alg: "EdDSA",
            jkt: None,
            act: None,
            origin: None,
        }
    }

    fn moment(key: &SigningKey, epoch: u64, iat: u64) -> Moment<'_> {
        Moment {
            key,
            issuer: "http://issuer",
            epoch,
            iat,
        }
    }

    fn id() -> Identity {
        Identity {
            jti: "j-1".to_owned(),
            status: None,
        }
    }

    proptest! {
        #[test]
        fn what_is_issued_verifies_and_lives_exactly_its_ttl(ttl in 1_u64..=3600, iat in 1_000_000_u64..4_000_000_000) {
            let (secret, key) = key();
            let token = unsigned(&grant(ttl), &moment(&key, 3, iat), id()).unwrap();
            prop_assert_eq!(token.exp, iat + ttl);
            let jwks = serde_json::to_vec(&Jwks { keys: vec![key.jwk.clone()] }).unwrap();
            let keys = JwksSnapshot::parse(&jwks).unwrap();
            let compact = finish(&token, &secret.sign(token.signing_input.as_bytes()));
            let expect = Expect { issuer: "http://issuer", audience: "svc-wallet", now_s: iat };
            let claims = verify_jwt(&compact, &keys, &expect).unwrap();
            prop_assert_eq!((claims.exp - claims.iat, claims.epoch), (ttl, 3));
            prop_assert_eq!(claims.caveats, vec!["asset=rpl".parse().unwrap()]);
        }
    }

    #[test]
    fn an_oversized_token_is_refused_before_it_is_signed() {
        let (_, key) = key();
        let mut big = grant(60);
        big.caveats = (0..32)
            .map(|i| format!("route=/{}{i}", "x".repeat(200)).parse().unwrap())
            .collect();
        let got = unsigned(&big, &moment(&key, 1, 1), id()).unwrap_err();
        assert_eq!(got.status, 400);
    }
}
