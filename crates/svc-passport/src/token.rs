//! Tokens: RFC 9068 claims from a grant, the JWS signing inputs (two for a hybrid), the signed token.

use ron_auth::{Claims, hybrid};
use ron_proto::kms::{Jwk, KeyVersionDoc, Scheme};
use ron_proto::passport::{
    Confirmation, IssuerPolicy, StatusRef, TOKEN_BYTES_MAX, TokenAncestor, TokenClaims, TokenStatus,
};
use ron_proto::{Caveat, Problem, b64, caveat};
use serde::Serialize;

use crate::policy::Grant;

/// The JWS algorithm of RSA keys.
const RS256: &str = "RS256";

/// The keys, epoch and time that a batch of tokens is signed with.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The key, or both keys of a hybrid, the classical one first.
    pub keys: &'a [SigningKey],
    /// `iss`.
    pub issuer: &'a str,
    /// The policy in force, which may be newer than the one that granted.
    pub policy: &'a IssuerPolicy,
    pub epoch: u64,
    /// Unix seconds.
    pub iat: u64,
}

/// Id and status bit of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    pub jti: String,
    /// Position of its status bit; `None` only for probe tokens.
    pub status: Option<StatusRef>,
}

/// The head version of a signing key.
#[derive(Debug, Clone, PartialEq)]
pub struct SigningKey {
    pub key: ron_proto::Kid,
    /// The version that the KMS must sign with.
    pub version: u32,
    /// Its public key; `jwk.kid` goes into the token's header.
    pub jwk: Jwk,
}

impl SigningKey {
    /// How the KMS must sign for the `alg` of the key's JWK; `None` for the usual way.
    pub fn scheme(&self) -> Option<Scheme> {
        let is_rsa = self.key.alg.is_rsa();
        is_rsa.then_some(Scheme::RsaPkcs1Sha256)
    }
}

/// The public key of a version as its tokens name it. An RSA key signs in several ways, and tokens in one.
pub fn token_jwk(version: &KeyVersionDoc) -> Option<Jwk> {
    let jwk = version.jwk.clone()?;
    if jwk.kty != "RSA" {
        return Some(jwk);
    }
    Some(Jwk {
        alg: RS256.to_owned(),
        ..jwk
    })
}

/// A token without its signatures.
#[derive(Debug, Clone, PartialEq)]
pub struct Unsigned {
    /// One header per key, in base64url.
    protected: Vec<String>,
    /// The claims, in base64url.
    payload: String,
    pub jti: String,
    /// When it expires (unix seconds).
    pub exp: u64,
}

impl Unsigned {
    /// `header.payload` for each key: the bytes that the KMS signs.
    pub fn signing_inputs(&self) -> impl Iterator<Item = String> {
        let input = |protected: &String| format!("{protected}.{}", self.payload);
        self.protected.iter().map(input)
    }
}

#[derive(Serialize)]
struct Header<'a> {
    alg: &'a str,
    kid: &'a str,
    typ: &'static str,
}

/// Builds the claims and headers of a token that the policy in force allows. `exp` is exactly `iat + ttl`.
pub fn unsigned(grant: &Grant, at: &Moment<'_>, id: Identity) -> Result<Unsigned, Problem> {
    let iat = at.iat;
    let exp = iat + grant.ttl_s;
    let claims = TokenClaims {
        iss: at.issuer.to_owned(),
        sub: grant.subject.clone(),
        aud: grant.audience.clone(),
        iat,
        nbf: iat,
        exp,
        jti: id.jti.clone(),
        client_id: grant.client_id.clone(),
        tenant: grant.tenant.clone(),
        scope: grant.scope.clone(),
        ron_epoch: at.epoch,
        authorization_details: if grant.caveats.is_empty() {
            Vec::new()
        } else {
            vec![caveat::to_detail(&grant.caveats)]
        },
        cnf: Confirmation::of(grant.jkt.clone(), grant.x5t.clone()),
        act: grant.act.clone(),
        ron_from: grant.origin.as_deref().map_or_else(Vec::new, line_of),
        status: id.status.map(|status_list| TokenStatus { status_list }),
    };
    // Decided as the KMS does, which refuses any other token.
    at.policy.permits(&claims).map_err(|why| {
        Problem::forbidden(format!(
            "the issuer policy in force does not allow this token: {why}"
        ))
        .with_oauth("unauthorized_client")
    })?;
    let part = |json: serde_json::Result<Vec<u8>>| {
        json.map(|bytes| b64::url(&bytes)).map_err(|_| {
            Problem::internal("the token could not be written").with_oauth("server_error")
        })
    };
    let header = |key: &SigningKey| {
        part(serde_json::to_vec(&Header {
            alg: &key.jwk.alg,
            kid: &key.jwk.kid,
            typ: "at+jwt",
        }))
    };
    let protected: Vec<String> = at.keys.iter().map(header).collect::<Result<_, _>>()?;
    let payload = part(serde_json::to_vec(&claims))?;
    let longest = protected.iter().map(String::len).max().unwrap_or_default();
    if longest + payload.len() + 2 + SIGNATURE_CHARS > TOKEN_BYTES_MAX {
        return Err(Problem::bad_request(
            "the token would be larger than 4 KiB: ask for fewer caveats or scopes",
        )
        .with_oauth("invalid_request"));
    }
    Ok(Unsigned {
        protected,
        payload,
        jti: id.jti,
        exp,
    })
}

/// A token and those that it was exchanged from, the first one first.
fn line_of(token: &Claims) -> Vec<TokenAncestor> {
    let texts = |caveats: &[Caveat]| {
        ron_auth::counted(caveats)
            .map(ToString::to_string)
            .collect()
    };
    let before = token.ancestors.iter().map(|one| TokenAncestor {
        jti: one.jti.clone(),
        exp: one.exp,
        kids: one.kids.clone(),
        counted: texts(&one.counted),
    });
    let itself = TokenAncestor {
        jti: token.jti.clone(),
        exp: token.exp,
        kids: std::iter::once(token.kid.clone())
            .chain(token.pq_kid.clone())
            .collect(),
        counted: texts(&token.caveats),
    };
    before.chain(std::iter::once(itself)).collect()
}

/// Characters of a classical signature of 64 bytes in base64url. The claims get the same room under every algorithm: an
/// ML-DSA signature alone is longer than a classical token may be.
const SIGNATURE_CHARS: usize = 86;

/// The compact serialisation, or that of a hybrid; one signature per signing input.
pub fn finish(unsigned: &Unsigned, signatures: &[&[u8]]) -> String {
    match (unsigned.protected.as_slice(), signatures) {
        ([protected], [signature]) => {
            format!("{protected}.{}.{}", unsigned.payload, b64::url(signature))
        }
        (all, signatures) => {
            let pair = |(protected, signature): (&String, &&[u8])| {
                (protected.clone(), b64::url(signature))
            };
            hybrid::join(&unsigned.payload, all.iter().zip(signatures).map(pair))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use ron_auth::{Expect, JwksSnapshot, verify_jwt};
    use ron_crypto::jwk::thumbprint_okp;
    use ron_crypto::sign::Ed25519Key;
    use ron_proto::passport::PolicyPlaces;
    use ron_proto::passport::{ClientRule, Jwks};

    use super::*;
    use crate::samples::{audience, client};

    fn key() -> (Ed25519Key, SigningKey) {
        let secret = Ed25519Key::from_seed(&[3; 32]);
        let public = secret.public();
        let jwk = Jwk {
            kty: "OKP".to_owned(),
            crv: "Ed25519".to_owned(),
            x: b64::url(&public),
            y: None,
            n: None,
            e: None,
            public: None,
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
            x5t: None,
            act: None,
            origin: None,
        }
    }

    /// Allows the tokens of [`grant`].
    static POLICY: LazyLock<IssuerPolicy> = LazyLock::new(|| IssuerPolicy {
        places: PolicyPlaces::default(),
        version: 1,
        audiences: Vec::new(),
        issuers: Vec::new(),
        clients: vec![ClientRule {
            subjects: vec!["user:*".to_owned()],
            ..client("operator", vec![audience("svc-wallet", &["wallet:read"])])
        }],
    });

    fn moment(key: &SigningKey, epoch: u64, iat: u64) -> Moment<'_> {
        Moment {
            keys: std::slice::from_ref(key),
            issuer: "http://issuer",
            policy: &POLICY,
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
            let input = token.signing_inputs().next().unwrap();
            let compact = finish(&token, &[&secret.sign(input.as_bytes())]);
            let expect = Expect { issuers: &["http://issuer"], audience: "svc-wallet", now_s: iat };
            let claims = verify_jwt(&compact, &keys, &expect).unwrap();
            prop_assert_eq!((claims.exp - claims.iat, claims.epoch), (ttl, 3));
            prop_assert_eq!(claims.caveats, vec!["asset=rpl".parse().unwrap()]);
        }
    }

    #[test]
    fn a_grant_of_an_earlier_policy_gets_no_token() {
        let (_, key) = key();
        let mut policy = POLICY.clone();
        policy.clients[0].audiences[0].scopes.clear();
        let newer = Moment {
            policy: &policy,
            ..moment(&key, 1, 1)
        };
        let got = unsigned(&grant(60), &newer, id()).unwrap_err();
        assert_eq!((got.status, got.oauth), (403, Some("unauthorized_client")));
        let without = Grant {
            scope: String::new(),
            ..grant(60)
        };
        assert!(unsigned(&without, &newer, id()).is_ok());
    }

    #[test]
    fn an_oversized_token_is_refused_before_it_is_signed() {
        let (_, key) = key();
        let mut big = grant(60);
        big.caveats = (0..32)
            .map(|i| format!("route=/{}{i}", "x".repeat(200)).parse().unwrap())
            .collect();
        let got = unsigned(&big, &moment(&key, 1, 1), id()).unwrap_err();
        assert_eq!((got.status, got.oauth), (400, Some("invalid_request")));
    }
}
