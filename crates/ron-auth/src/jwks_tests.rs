//! Key sets: what is read, refused and left out.

use super::*;

const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

fn parse(text: &str) -> Result<JwksSnapshot, JwksError> {
    JwksSnapshot::parse(text.as_bytes())
}

#[test]
fn keys_of_other_kinds_are_passed_over() {
    let set = parse(&format!(
        r#"{{"keys":[{{"kty":"AKP","alg":"ML-DSA-65","kid":"pq","pub":"AA"}},{{"kty":"RSA","kid":"r","n":"AA","e":"AQAB"}},
           {{"kty":"OKP","crv":"X25519","kid":"x","x":"{X}"}},{{"kty":"OKP","crv":"Ed25519","use":"enc","kid":"e","x":"{X}"}},
           {{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"a","x":"{X}"}},
           {{"kty":"EC","crv":"P-256","kid":"b","x":"{X}","y":"{X}"}}]}}"#
    ))
    .expect("two of our kinds");
    assert_eq!(set.len(), 2);
    assert!(set.find("a").unwrap().takes(JwsAlg::EdDsa));
    assert!(set.find("b").unwrap().takes(JwsAlg::Es256));
}

#[test]
fn the_post_quantum_set_is_read_beside_and_only_for_its_kind() {
    let classical = || {
        parse(&format!(
            r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"a","x":"{X}"}}]}}"#
        ))
        .unwrap()
    };
    let public = b64::url(&[7; 1312]);
    let akp = |kid: &str, alg: &str, more: &str| {
        format!(
            r#"{{"keys":[{{"kty":"AKP","kid":"{kid}","alg":"{alg}","pub":"{public}"{more}}}]}}"#
        )
    };
    let with = |text: &str| classical().with_pq(text.as_bytes(), PqRule::And);
    let both = with(&akp("q", "ML-DSA-44", "")).unwrap();
    assert_eq!((both.len(), both.rule()), (2, PqRule::And));
    assert!(both.find("q").unwrap().takes(JwsAlg::MlDsa(MlDsaSet::L44)));
    assert_eq!(with(r#"{"keys":[]}"#).unwrap().len(), 1);
    assert_eq!(with(&akp("q", "SLH-DSA-SHA2-128s", "")).unwrap().len(), 1);
    assert_eq!(
        with(&akp("a", "ML-DSA-44", "")),
        Err(JwksError::DuplicateKid)
    );
    assert_eq!(
        with(&akp("q", "ML-DSA-44", r#","priv":"AA""#)),
        Err(JwksError::Private)
    );
    assert!(matches!(
        with(&akp("q", "ML-DSA-65", "")),
        Err(JwksError::Key(_))
    ));
    let jwk: serde_json::Value = serde_json::from_str(&akp("q", "ML-DSA-44", "")).unwrap();
    assert!(
        VerifyKey::from_jwk(&jwk["keys"][0]).is_err(),
        "proofs and assertions stay classical"
    );
}

#[test]
fn bad_sets_are_refused_whole() {
    let good = format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"a","x":"{X}"}}"#);
    let check = |keys: &str, wanted: fn(&JwksError) -> bool| {
        let error = parse(&format!(r#"{{"keys":[{keys}]}}"#)).expect_err(keys);
        assert!(wanted(&error), "{keys}: {error}");
    };
    check(&format!("{good},{good}"), |e| *e == JwksError::DuplicateKid);
    check(
        &format!(r#"{good},{{"kty":"oct","kid":"h","k":"AAAA"}}"#),
        |e| *e == JwksError::Private,
    );
    check(
        &format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"a","x":"{X}","d":"{X}"}}"#),
        |e| *e == JwksError::Private,
    );
    check(
        r#"{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AAAA"}"#,
        |e| matches!(e, JwksError::Key(_)),
    );
    check(r#"{"kty":"OKP","crv":"Ed25519","kid":"a"}"#, |e| {
        matches!(e, JwksError::Key(_))
    });
    check(
        &format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}"}}"#),
        |e| *e == JwksError::Empty,
    );
    check(r#"{"kty":"OKP","kty":"EC"}"#, |e| {
        matches!(e, JwksError::Json(_))
    });
    check("", |e| *e == JwksError::Empty);
    let many = vec![r#"{"kty":"RSA"}"#; KEYS_MAX + 1].join(",");
    check(&many, |e| {
        *e == JwksError::TooMany {
            keys: KEYS_MAX + 1,
            max: KEYS_MAX,
        }
    });
    assert!(matches!(parse("<html>"), Err(JwksError::Json(_))));
}
