//! Tokens. Text that the issuer has not signed is never accepted. Claims that it has signed, however
//! odd, are accepted only within the limits that services rely on.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ron_auth::{Expect, JwksSnapshot, verify_jwt};
use ron_crypto::jwk::thumbprint_okp;
use ron_crypto::sign::Ed25519Key;
use ron_proto::b64;
use ron_proto::caveat::MAX_CAVEATS;
use ron_proto::passport::{ANCESTORS_MAX, TTL_S_MAX};

const NOW: u64 = 1_800_000_000;
const EXPECT: Expect<'static> = Expect {
    issuer: "http://issuer",
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

fuzz_target!(|data: &[u8]| {
    let (key, keys, kid) = &*ISSUER;
    if let Ok(text) = std::str::from_utf8(data) {
        assert!(
            verify_jwt(text, keys, &EXPECT).is_err(),
            "not signed: {text}"
        );
    }
    let header = format!(r#"{{"alg":"EdDSA","kid":"{kid}","typ":"at+jwt"}}"#);
    let input = format!("{}.{}", b64::url(header.as_bytes()), b64::url(data));
    let signature = key.sign(input.as_bytes());
    let signed = format!("{input}.{}", b64::url(&signature));
    let Ok(claims) = verify_jwt(&signed, keys, &EXPECT) else {
        return;
    };
    assert_eq!(claims.iss, EXPECT.issuer);
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
});
