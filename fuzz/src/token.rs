//! Tokens, statements that narrow them, and proofs of possession. Text that the issuer has not signed is never accepted.
//! Claims that it has signed, however odd, are accepted only within the limits that services rely on. The same holds
//! for what a holder signs: a statement only takes rights away, and a proof counts for its key, request and time alone.

use std::sync::LazyLock;

use ron_auth::dpop::{PROOF_AGE_S, PROOF_AHEAD_S, ProofAsk, token_hash, verify_proof};
use ron_auth::narrow::{self, STATEMENT_TYP};
use ron_auth::{Claims, Expect, Holder, JwksSnapshot, hybrid, verify_jwt};
use ron_crypto::jwk::thumbprint_okp;
use ron_crypto::sign::Ed25519Key;
use ron_proto::b64;
use ron_proto::caveat::MAX_CAVEATS;
use ron_proto::passport::{ANCESTORS_MAX, TTL_S_MAX};

const NAME: &str = "http://issuer";
const NOW: u64 = 1_800_000_000;
const EXPECT: Expect<'static> = Expect {
    issuers: &[NAME],
    audience: "svc-wallet",
    now_s: NOW,
};

static ISSUER: LazyLock<(Ed25519Key, JwksSnapshot, String)> = LazyLock::new(|| {
    let key = Ed25519Key::from_seed(&[3; 32]);
    let public = key.public();
    let kid = thumbprint_okp(&public);
    let jwks = serde_json::json!({"keys": [{
        "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": b64::url(&public),
    }]});
    let keys = JwksSnapshot::parse(jwks.to_string().as_bytes()).expect("a key set");
    (key, keys, kid)
});

/// The holder of a bound token, the token, and its claims.
static HOLDER: LazyLock<(Ed25519Key, String, Claims)> = LazyLock::new(|| {
    let (issuer, keys, kid) = &*ISSUER;
    let jkt = Holder::new(Ed25519Key::from_seed(&[4; 32])).thumbprint();
    let claims = serde_json::json!({
        "iss": NAME, "sub": "user:1", "aud": EXPECT.audience, "iat": NOW, "nbf": NOW, "exp": NOW + 600,
        "jti": "j1", "client_id": "op", "tenant": "default", "scope": "wallet:read wallet:transfer", "ron_epoch": 3,
        "authorization_details": [{"type": "ron", "account": "a"}], "cnf": {"jkt": jkt},
    });
    let header = serde_json::json!({"alg": "EdDSA", "kid": kid, "typ": "at+jwt"});
    let token = signed(issuer, &header.to_string(), claims.to_string().as_bytes());
    let claims = verify_jwt(&token, keys, &EXPECT).expect("a good token");
    (Ed25519Key::from_seed(&[4; 32]), token, claims)
});

fn signed(key: &Ed25519Key, header: &str, payload: &[u8]) -> String {
    let input = format!("{}.{}", b64::url(header.as_bytes()), b64::url(payload));
    format!("{input}.{}", b64::url(&key.sign(input.as_bytes())))
}

/// What the holder signs, with the header of its own key. Where `data` begins as an object, it gets `members` first, which
/// no fuzzer would find: hashes. Other `data` is signed as it is.
fn by_holder(typ: &str, members: &str, data: &[u8]) -> String {
    let key = &HOLDER.0;
    let x = b64::url(&key.public());
    let header = format!(
        r#"{{"alg":"EdDSA","typ":"{typ}","jwk":{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}}}"#
    );
    let payload = match data {
        [b'{', rest @ ..] => [b"{", members.as_bytes(), rest].concat(),
        other => other.to_vec(),
    };
    signed(key, &header, &payload)
}

/// A statement only takes away.
fn narrows(data: &[u8]) {
    let (_, token, held) = &*HOLDER;
    let members = format!(r#""parent":"{}","iat":{NOW},"#, token_hash(token));
    let statement = by_holder(STATEMENT_TYP, &members, data);
    let presented = format!("{token}{}{statement}", narrow::SEPARATOR);
    if let Ok(got) = narrow::apply(&presented, held.clone(), NOW) {
        assert!(got.exp <= held.exp);
        assert!(got.scopes.iter().all(|scope| held.scopes.contains(scope)));
        assert!(
            held.caveats
                .iter()
                .all(|caveat| got.caveats.contains(caveat))
        );
        assert!(got.caveats.len() <= MAX_CAVEATS && got.jkt.is_some());
        assert_eq!(
            (&got.sub, &got.tenant, &got.jti),
            (&held.sub, &held.tenant, &held.jti)
        );
    }
}

/// A proof is one of the holder's key, for this request and time.
fn proves(data: &[u8]) {
    let (_, token, held) = &*HOLDER;
    let ask = ProofAsk {
        method: "GET",
        bases: &["http://wallet".to_owned()],
        path: "/v1/balance",
        token: Some(token),
        now_s: NOW,
    };
    let members = format!(
        r#""htm":"GET","htu":"http://wallet/v1/balance","ath":"{}","#,
        token_hash(token)
    );
    if let Ok(proof) = verify_proof(&by_holder("dpop+jwt", &members, data), &ask) {
        assert_eq!(Some(&proof.jkt), held.jkt.as_ref());
        assert!(!proof.jti.is_empty() && proof.jti.len() <= 256);
        assert!(proof.iat + PROOF_AGE_S >= NOW && proof.iat <= NOW + PROOF_AHEAD_S);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let forged = verify_proof(text, &ask);
        assert!(forged.is_err(), "not signed: {text}");
    }
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let (key, keys, kid) = &*ISSUER;
    narrows(data);
    proves(data);
    if let Ok(text) = std::str::from_utf8(data) {
        assert!(
            verify_jwt(text, keys, &EXPECT).is_err(),
            "not signed: {text}"
        );
        let _ = (hybrid::payload(text), hybrid::headers(text));
    }
    let header = format!(r#"{{"alg":"EdDSA","kid":"{kid}","typ":"at+jwt"}}"#);
    let input = format!("{}.{}", b64::url(header.as_bytes()), b64::url(data));
    let signature = key.sign(input.as_bytes());
    let signed = format!("{input}.{}", b64::url(&signature));
    let Ok(claims) = verify_jwt(&signed, keys, &EXPECT) else {
        return;
    };
    assert_eq!(claims.iss, NAME);
    assert!(claims.exp > claims.iat && claims.exp - claims.iat <= TTL_S_MAX);
    assert!(claims.check_time(NOW).is_ok());
    assert!(claims.caveats.len() <= MAX_CAVEATS && claims.ancestors.len() <= ANCESTORS_MAX);
    assert!(!claims.jti.is_empty() && !claims.sub.is_empty());
    let mut other = signature;
    other[usize::from(data[0]) % 64] ^= 1;
    let forged = format!("{input}.{}", b64::url(&other));
    assert!(
        verify_jwt(&forged, keys, &EXPECT).is_err(),
        "another signature"
    );
}
