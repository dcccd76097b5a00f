//! DPoP proofs (RFC 9449): the holder of a key proves possession with every request. Verification
//! is pure; the ids of used proofs are kept in a bounded table, [`ProofCache`].

use ron_proto::b64;
use serde_json::{Value, json};

use crate::jws::{Holder, self_signed};
use crate::proofs::ProofCache;
use crate::reject::AuthReject;

pub use crate::reject::PROOF_ALGS;

/// Maximum age of a proof, in seconds.
pub const PROOF_AGE_S: u64 = 60;
/// How far the clock of the proof's maker may be ahead of ours, in seconds. Small, because an id is
/// kept for `PROOF_AGE_S` after `iat`.
pub const PROOF_AHEAD_S: u64 = 10;
/// Maximum length of a proof, in bytes.
const PROOF_BYTES_MAX: usize = 4096;
/// Maximum length of a `jti`, in bytes.
const JTI_BYTES_MAX: usize = 256;

/// The request that a proof must match.
#[derive(Clone, Copy, Debug)]
pub struct ProofAsk<'a> {
    pub method: &'a str,
    /// Base URLs under which clients reach this service, from its configuration: scheme, host, port
    /// and an optional path prefix. Never the `Host` header, because an attacker who replays a
    /// proof chooses it.
    pub bases: &'a [String],
    /// The path as sent, without the query.
    pub path: &'a str,
    /// The token as presented; `None` when there is none (at the token endpoint).
    pub token: Option<&'a str>,
    /// Unix seconds.
    pub now_s: u64,
}

/// A proof that matches its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Thumbprint of the key that signed it.
    pub jkt: String,
    pub jti: String,
    /// Unix seconds.
    pub iat: u64,
    /// The server's nonce, as repeated in the proof.
    pub nonce: Option<String>,
}

/// Checks form, signature, `htm`, `htu`, `iat` and `ath` (RFC 9449 section 4.3). The caller
/// compares `jkt`, checks the nonce if it issued one, and records the id with [`ProofCache::take`].
pub fn verify_proof(proof: &str, ask: &ProofAsk<'_>) -> Result<Proof, AuthReject> {
    let (jkt, claims) =
        self_signed(proof, "dpop+jwt", PROOF_BYTES_MAX).map_err(|_| AuthReject::Proof)?;
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let jti = text("jti")
        .filter(|jti| !jti.is_empty() && jti.len() <= JTI_BYTES_MAX)
        .ok_or(AuthReject::Proof)?;
    let iat = claims
        .get("iat")
        .and_then(Value::as_u64)
        .ok_or(AuthReject::Proof)?;
    let place = text("htu").ok_or(AuthReject::Proof)?;
    if !ask
        .bases
        .iter()
        .any(|base| same_place(place, base, ask.path))
    {
        return Err(AuthReject::ProofPlace);
    }
    let wanted = ask.token.map(token_hash);
    if text("htm") != Some(ask.method) || (wanted.is_some() && text("ath") != wanted.as_deref()) {
        return Err(AuthReject::Proof);
    }
    if iat.saturating_add(PROOF_AGE_S) < ask.now_s || iat > ask.now_s.saturating_add(PROOF_AHEAD_S)
    {
        return Err(AuthReject::ProofTime);
    }
    Ok(Proof {
        jkt,
        jti: jti.to_owned(),
        iat,
        nonce: text("nonce").map(str::to_owned),
    })
}

/// Makes a proof for `method url` (query and fragment are left out), and for `token` if one is
/// presented.
pub fn make_proof(
    holder: &Holder,
    method: &str,
    url: &str,
    token: Option<&str>,
    nonce: Option<&str>,
    iat: u64,
    jti: &str,
) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let mut claims = json!({ "jti": jti, "htm": method, "htu": &url[..end], "iat": iat });
    if let Some(token) = token {
        claims["ath"] = token_hash(token).into();
    }
    if let Some(nonce) = nonce {
        claims["nonce"] = nonce.into();
    }
    holder.sign("dpop+jwt", &claims)
}

/// `ath`: base64url of the SHA-256 of the token as presented.
pub fn token_hash(token: &str) -> String {
    b64::url(&ron_crypto::hash::sha256(token.as_bytes()))
}

impl Proof {
    /// Records the id in `memory` on account of `holder`; refuses a proof that was used before.
    pub fn take(&self, memory: &ProofCache, holder: &str, now_s: u64) -> Result<(), AuthReject> {
        let until_s = self.iat.saturating_add(PROOF_AGE_S);
        memory.take(holder, (&self.jkt, &self.jti), until_s, now_s)
    }
}

/// Whether `url` is `base` followed by `path`. Scheme and host are case-insensitive, default ports
/// are left out, query and fragment ignored.
fn same_place(url: &str, base: &str, path: &str) -> bool {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (Some((scheme, host, rest)), Some((own_scheme, own_host, prefix))) =
        (split(&url[..end]), split(base))
    else {
        return false;
    };
    let prefix = prefix.trim_end_matches('/');
    let rest = if rest.is_empty() { "/" } else { rest };
    scheme == own_scheme && host == own_host && rest.strip_prefix(prefix) == Some(path)
}

/// Scheme, host with port, and path (possibly empty) of a URL.
fn split(url: &str) -> Option<(String, String, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "https" => ":443",
        "http" => ":80",
        _ => return None,
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix(default_port).unwrap_or(&host).to_owned();
    (!host.is_empty()).then_some((scheme, host, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_crypto::sign::Ed25519Key;

    const NOW: u64 = 1_800_000_000;

    fn ask() -> ProofAsk<'static> {
        static BASES: std::sync::LazyLock<[String; 2]> = std::sync::LazyLock::new(|| {
            ["http://wallet.example:7470", "https://wallet.example/api/"].map(str::to_owned)
        });
        ProofAsk {
            method: "POST",
            bases: &*BASES,
            path: "/v1/transfer",
            token: Some("the.token.text"),
            now_s: NOW,
        }
    }

    fn holder() -> Holder {
        Holder::new(Ed25519Key::from_seed(&[9; 32]))
    }

    fn proof(url: &str, token: &str, iat: u64) -> String {
        make_proof(&holder(), "POST", url, Some(token), None, iat, "p-1")
    }

    const URL: &str = "http://wallet.example:7470/v1/transfer";

    #[test]
    fn a_proof_fits_one_method_place_token_and_minute() {
        let good = verify_proof(&proof(URL, "the.token.text", NOW), &ask()).unwrap();
        assert_eq!(good.jkt, holder().thumbprint());
        let check = |proof: &str, ask: &ProofAsk<'_>, ok: bool| {
            assert_eq!(verify_proof(proof, ask).is_ok(), ok, "{ask:?}");
        };
        let fine = proof(URL, "the.token.text", NOW);
        check(&fine, &ask(), true);
        check(
            &proof(&format!("{URL}?a=b#c"), "the.token.text", NOW),
            &ask(),
            true,
        );
        for (place, ok) in [
            ("HTTP://Wallet.Example:7470/v1/transfer", true),
            ("https://wallet.example/api/v1/transfer", true),
            ("https://WALLET.example:443/api/v1/transfer", true),
            ("https://wallet.example/v1/transfer", false),
            ("https://wallet.example:7470/v1/transfer", false),
            ("http://staging.example:7470/v1/transfer", false),
            ("http://wallet.example/v1/transfer", false),
            ("http://x@wallet.example:7470/v1/transfer", false),
            ("http://wallet.example:7470/v1/transfer/", false),
            ("//wallet.example:7470/v1/transfer", false),
        ] {
            let refused = verify_proof(&proof(place, "the.token.text", NOW), &ask()).err();
            let wanted = (!ok).then_some(AuthReject::ProofPlace);
            assert_eq!(refused, wanted, "{place}");
        }
        check(
            &fine,
            &ProofAsk {
                method: "GET",
                ..ask()
            },
            false,
        );
        check(
            &fine,
            &ProofAsk {
                path: "/v1/issue",
                ..ask()
            },
            false,
        );
        check(
            &fine,
            &ProofAsk {
                bases: &[],
                ..ask()
            },
            false,
        );
        check(
            &fine,
            &ProofAsk {
                token: Some("another"),
                ..ask()
            },
            false,
        );
        check(
            &fine,
            &ProofAsk {
                now_s: NOW + 61,
                ..ask()
            },
            false,
        );
        check(
            &fine,
            &ProofAsk {
                now_s: NOW + 60,
                ..ask()
            },
            true,
        );
        check(
            &fine,
            &ProofAsk {
                now_s: NOW - 10,
                ..ask()
            },
            true,
        );
        check(
            &fine,
            &ProofAsk {
                now_s: NOW - 11,
                ..ask()
            },
            false,
        );
        let no_ath = make_proof(&holder(), "POST", URL, None, None, NOW, "p");
        check(&no_ath, &ask(), false);
        check(
            &no_ath,
            &ProofAsk {
                token: None,
                ..ask()
            },
            true,
        );
        check("", &ask(), false);
    }

    #[test]
    fn forged_headers_are_refused() {
        let good = proof(URL, "the.token.text", NOW);
        let (_, rest) = good.split_once('.').unwrap();
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": b64::url(&Ed25519Key::from_seed(&[9; 32]).public())});
        let other = json!({"kty": "OKP", "crv": "Ed25519", "x": b64::url(&Ed25519Key::from_seed(&[8; 32]).public())});
        let mut private = jwk.clone();
        private["d"] = "AAAA".into();
        for header in [
            json!({"alg": "none", "typ": "dpop+jwt", "jwk": jwk}),
            json!({"alg": "HS256", "typ": "dpop+jwt", "jwk": jwk}),
            json!({"alg": "EdDSA", "typ": "JWT", "jwk": jwk}),
            json!({"alg": "EdDSA", "typ": "dpop+jwt"}),
            json!({"alg": "EdDSA", "typ": "dpop+jwt", "jwk": other}),
            json!({"alg": "EdDSA", "typ": "dpop+jwt", "jwk": private}),
            json!({"alg": "EdDSA", "typ": "dpop+jwt", "jwk": jwk, "crit": ["x"]}),
        ] {
            let forged = format!("{}.{rest}", b64::url(header.to_string().as_bytes()));
            assert_eq!(
                verify_proof(&forged, &ask()),
                Err(AuthReject::Proof),
                "{header}"
            );
        }
    }
}
