//! DPoP proofs (RFC 9449): the holder of a key shows it with every request. Verification is pure; the ids of proofs
//! that were seen live in a bounded cache.

use crate::jws::{Holder, self_signed};
use crate::reject::AuthReject;
use ron_kernel::{LockSpec, RankedMutex};
use ron_proto::b64;
use serde_json::{Value, json};
use std::collections::HashMap;

/// How old a proof may be, and how far ahead its clock, in seconds.
pub const PROOF_AGE_S: u64 = 60;
/// Longest proof, in bytes.
const PROOF_BYTES_MAX: usize = 4096;
/// Longest `jti`, in bytes.
const JTI_BYTES_MAX: usize = 256;
/// Most proofs remembered; beyond it new ones are refused, never let through unchecked.
const SEEN_MAX: usize = 65_536;

/// The request a proof is for.
#[derive(Clone, Copy, Debug)]
pub struct ProofAsk<'a> {
    pub method: &'a str,
    /// The `Host` header.
    pub host: &'a str,
    /// The path as sent, without the query.
    pub path: &'a str,
    /// The connection is TLS: only `https` URLs fit. Without it `https` fits as well, because a proxy may end TLS.
    pub tls: bool,
    /// The token as presented; `None` where none is (at the token endpoint).
    pub token: Option<&'a str>,
    /// Unix seconds.
    pub now_s: u64,
}

/// A proof that fits its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Thumbprint of the key that made it.
    pub jkt: String,
    pub jti: String,
    /// Unix seconds.
    pub iat: u64,
    /// What the server gave, as the proof repeats it.
    pub nonce: Option<String>,
}

/// Checks form, signature, `htm`, `htu`, `iat` and `ath` (RFC 9449 section 4.3). The caller compares `jkt`, checks
/// the nonce where it gave one, and takes the id with [`ProofCache::take`].
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
    let fresh = iat.saturating_add(PROOF_AGE_S) >= ask.now_s
        && iat <= ask.now_s.saturating_add(PROOF_AGE_S);
    let here =
        text("htm") == Some(ask.method) && text("htu").is_some_and(|url| same_place(url, ask));
    let wanted = ask.token.map(token_hash);
    if !fresh || !here || (wanted.is_some() && text("ath") != wanted.as_deref()) {
        return Err(AuthReject::Proof);
    }
    Ok(Proof {
        jkt,
        jti: jti.to_owned(),
        iat,
        nonce: text("nonce").map(str::to_owned),
    })
}

/// Makes a proof for `method url` (query and fragment are left out), with `token` when one is presented.
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

/// Scheme and host in any case, default ports left out, query and fragment ignored.
fn same_place(url: &str, ask: &ProofAsk<'_>) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    let default_port = match scheme.to_ascii_lowercase().as_str() {
        "https" => ":443",
        "http" if !ask.tls => ":80",
        _ => return false,
    };
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (host, path) = match rest[..end].find('/') {
        Some(slash) => rest[..end].split_at(slash),
        None => (&rest[..end], "/"),
    };
    let plain = |host: &str| {
        let host = host.to_ascii_lowercase();
        host.strip_suffix(default_port)
            .map_or(host.clone(), str::to_owned)
    };
    !host.is_empty() && plain(host) == plain(ask.host) && path == ask.path
}

/// The ids of proofs (and of client assertions) that were seen, until they are too old to be used again.
#[derive(Debug)]
pub struct ProofCache {
    seen: RankedMutex<HashMap<[u8; 32], u64>>,
}

impl ProofCache {
    /// Behind a lock with this rank.
    pub fn new(lock: &'static LockSpec) -> Self {
        Self {
            seen: RankedMutex::new(lock, HashMap::new()),
        }
    }

    /// Remembers an id of a key until `until_s`; refuses one that is remembered, and all while the cache is full.
    pub fn take(&self, key: &str, id: &str, until_s: u64, now_s: u64) -> Result<(), AuthReject> {
        let mut bytes = Vec::with_capacity(key.len() + id.len() + 1);
        bytes.extend_from_slice(key.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(id.as_bytes());
        let hash = ron_crypto::hash::sha256(&bytes);
        let mut seen = self.seen.lock();
        if seen.len() >= SEEN_MAX {
            seen.retain(|_, until| *until >= now_s);
        }
        if seen.get(&hash).is_some_and(|until| *until >= now_s) || seen.len() >= SEEN_MAX {
            return Err(AuthReject::ProofReplay);
        }
        seen.insert(hash, until_s);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_crypto::sign::Ed25519Key;

    static LOCK: LockSpec = LockSpec {
        name: "test",
        rank: 1,
        guards: "seen",
    };
    const NOW: u64 = 1_800_000_000;

    fn ask() -> ProofAsk<'static> {
        ProofAsk {
            method: "POST",
            host: "wallet.example:7470",
            path: "/v1/transfer",
            tls: false,
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
        check(
            &proof(
                "HTTPS://Wallet.Example:7470/v1/transfer",
                "the.token.text",
                NOW,
            ),
            &ask(),
            true,
        );
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
                host: "other.example:7470",
                ..ask()
            },
            false,
        );
        check(&fine, &ProofAsk { tls: true, ..ask() }, false);
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
                now_s: NOW - 61,
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

    #[test]
    fn a_proof_counts_once_and_the_cache_is_bounded() {
        let cache = ProofCache::new(&LOCK);
        assert_eq!(cache.take("k", "1", 160, 100), Ok(()));
        assert_eq!(cache.take("k", "1", 160, 150), Err(AuthReject::ProofReplay));
        assert_eq!(cache.take("other", "1", 160, 150), Ok(()));
        assert_eq!(
            cache.take("k", "1", 260, 200),
            Ok(()),
            "too old to be used anyway"
        );
        for n in 0..SEEN_MAX {
            let _ = cache.take("k", &format!("n{n}"), 300, 250);
        }
        assert_eq!(
            cache.take("k", "more", 300, 250),
            Err(AuthReject::ProofReplay)
        );
        assert_eq!(
            cache.take("k", "more", 400, 350),
            Ok(()),
            "old ids make room"
        );
    }
}
