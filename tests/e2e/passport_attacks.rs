//! The attack table (RFC 8725 and other attacks that have broken JWT verifiers) at the issuer and
//! at the wallet of a real fleet.

use ron_crypto::hash::hmac_sha256;
use ron_crypto::sign::Ed25519Key;
use ron_proto::b64;
use ron_tests::issuer::*;
use ron_tests::{json, until};
use serde_json::{Value, json};

/// The same signature with the order of the group added to its second half.
fn malleable(signature: &str) -> String {
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut bytes = b64::from_url(signature).unwrap();
    let mut carry = 0;
    for (byte, more) in bytes[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(more) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
    }
    assert_eq!(carry, 0, "it still fits");
    b64::url(&bytes)
}

/// The same signature with a bit set that its last character does not need.
fn trailing_bits(signature: &str) -> String {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (front, last) = signature.split_at(signature.len() - 1);
    let at = ALPHABET.find(last).unwrap();
    format!("{front}{}", &ALPHABET[at + 1..at + 2])
}

#[test]
fn the_attack_table_is_refused_by_issuer_and_wallet() {
    let rig = Rig::start();
    let good = rig.fleet.token("svc-wallet", None);
    let other = rig.fleet.token("svc-wallet", Some("wallet:read"));
    let (header, rest) = good.split_once('.').unwrap();
    let payload = rest.split('.').next().unwrap();
    let said: Value = serde_json::from_slice(&b64::from_url(header).unwrap()).unwrap();
    let jwks = json(
        &rig.fleet.get(&rig.url("/.well-known/jwks.json"), None),
        200,
    );
    let jwk = jwks["keys"][0].clone();
    let public = b64::from_url(jwk["x"].as_str().unwrap()).unwrap();
    let mine = Ed25519Key::from_seed(&[66; 32]);
    let my_jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": b64::url(&mine.public())});
    let head = |more: &[(&str, Value)]| {
        let mut header = said.clone();
        for (name, value) in more {
            header[*name] = value.clone();
        }
        part(&header)
    };
    let forged = |header: &str, payload: &str| {
        let signed = format!("{header}.{payload}");
        format!("{signed}.{}", b64::url(&mine.sign(signed.as_bytes())))
    };
    let hmac = |key: &[u8]| {
        let signed = format!("{}.{payload}", head(&[("alg", json!("HS256"))]));
        format!(
            "{signed}.{}",
            b64::url(&hmac_sha256(key, signed.as_bytes()))
        )
    };
    let doubled = b64::url(
        &[
            &b64::from_url(payload).unwrap()[..b64::from_url(payload).unwrap().len() - 1],
            br#","aud":"svc-wallet"}"#,
        ]
        .concat(),
    );
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let without = |name: &str| {
        let mut header = said.clone();
        header.as_object_mut().unwrap().remove(name);
        part(&header)
    };
    let table: Vec<(&str, String)> = vec![
        (
            "alg none",
            format!("{}.{payload}.", head(&[("alg", json!("none"))])),
        ),
        (
            "alg none with the old signature",
            format!("{}.{rest}", head(&[("alg", json!("nOnE"))])),
        ),
        ("HS256 with the raw public key", hmac(&public)),
        (
            "HS256 with the public key as JWK",
            hmac(jwk.to_string().as_bytes()),
        ),
        (
            "HS256 with the public key in base64url",
            hmac(jwk["x"].as_str().unwrap().as_bytes()),
        ),
        (
            "kid that walks the file system",
            forged(&head(&[("kid", json!("../../../../dev/null"))]), payload),
        ),
        (
            "kid that talks SQL",
            forged(&head(&[("kid", json!("' UNION SELECT 'x' --"))]), payload),
        ),
        ("kid of another key", forged(header, payload)),
        (
            "crit",
            format!(
                "{}.{rest}",
                head(&[("crit", json!(["exp"])), ("exp", json!(1))])
            ),
        ),
        (
            "b64 false",
            format!(
                "{}.{rest}",
                head(&[("b64", json!(false)), ("crit", json!(["b64"]))])
            ),
        ),
        (
            "JWK in the header",
            forged(&head(&[("jwk", my_jwk.clone())]), payload),
        ),
        (
            "jku",
            forged(
                &head(&[("jku", json!("http://127.0.0.1:1/jwks.json"))]),
                payload,
            ),
        ),
        (
            "x5u",
            forged(
                &head(&[("x5u", json!("http://127.0.0.1:1/cert.pem"))]),
                payload,
            ),
        ),
        ("x5c", forged(&head(&[("x5c", json!(["MIIB"]))]), payload)),
        ("no alg", format!("{}.{rest}", without("alg"))),
        (
            "alg in lower case",
            format!("{}.{rest}", head(&[("alg", json!("eddsa"))])),
        ),
        (
            "another alg",
            format!("{}.{rest}", head(&[("alg", json!("ES256"))])),
        ),
        ("no kid", forged(&without("kid"), payload)),
        (
            "a list of kids",
            forged(&head(&[("kid", json!([said["kid"]]))]), payload),
        ),
        ("no typ", format!("{}.{rest}", without("typ"))),
        (
            "the order of the curve added to the signature",
            format!("{signed}.{}", malleable(signature)),
        ),
        (
            "unused bits set in the signature",
            format!("{signed}.{}", trailing_bits(signature)),
        ),
        ("padding", format!("{good}==")),
        ("a fourth part", format!("{good}.AAAA")),
        ("no signature", format!("{signed}.")),
        ("two parts", signed.to_owned()),
        ("a space inside", format!("{header} .{rest}")),
        ("an empty narrowing statement", format!("{good}~")),
        (
            "the signature of another token",
            format!("{header}.{}.{signature}", other.split('.').nth(1).unwrap()),
        ),
        (
            "duplicated claims",
            format!("{header}.{doubled}.{}", good.rsplit('.').next().unwrap()),
        ),
        ("oversized", forged(header, &"A".repeat(9_000))),
        (
            "another audience",
            rig.stolen("at+jwt", |c| {
                c["aud"] = "ron-kms".into();
                c["scope"] = "kms:read".into();
            }),
        ),
        (
            "nbf in the future",
            rig.stolen("at+jwt", |c| c["nbf"] = (now_s() + 600).into()),
        ),
        (
            "an older epoch",
            rig.stolen("at+jwt", |c| c["ron_epoch"] = 0.into()),
        ),
        (
            "a stray narrowing statement",
            format!("{good}~{}", forged(header, payload)),
        ),
    ];
    assert!(table.len() + 4 >= 28, "{}", table.len());
    // What the issuer would never sign, the KMS does not sign either.
    let refused = |typ: &str, change: &dyn Fn(&mut Value)| {
        let (_, answer) = rig.ask_to_sign(typ, change);
        assert_eq!(json(&answer, 403)["code"], "payload_refused", "{typ}");
    };
    refused("statuslist+jwt", &|_| {});
    refused("at+jwt", &|c| {
        c["authorization_details"] = json!([{"type": "ron", "colour": "red"}]);
    });
    refused("at+jwt", &|c| c["cnf"] = json!({"kid": "x"}));
    refused("at+jwt", &|c| {
        c.as_object_mut().unwrap().remove("jti");
    });
    assert_eq!(rig.balance(&good).status, 200);
    assert_eq!(
        rig.balance(&rig.stolen("at+jwt", |_| {})).status,
        200,
        "the way of forging works"
    );
    for (attack, token) in &table {
        let verdict = rig.verdict(token);
        // The issuer verifies for the audience that a token names.
        if *attack != "another audience" {
            assert_eq!(verdict["ok"], false, "{attack}: {verdict}");
            let seen = json(
                &rig.operator("/oauth2/introspect", &[("token", token)]),
                200,
            );
            assert_eq!(seen, json!({"active": false}), "{attack}");
        }
        let status = rig.balance(token).status;
        assert!(
            [401, 403].contains(&status),
            "{attack}: {status} at the wallet"
        );
    }
    let batch = json!({"tokens": table.iter().map(|(_, t)| t.clone()).chain([good.clone()]).collect::<Vec<_>>()});
    let answer = json(
        &rig.fleet.post(
            &rig.url("/v1/passport/verify_batch"),
            None,
            &batch.to_string(),
            &[],
        ),
        200,
    );
    assert_eq!(
        answer["results"][table.len()]["ok"],
        true,
        "each item is judged on its own"
    );
}

/// Checks of signatures cost the issuer more than sending them costs an unauthenticated client.
#[test]
fn a_peer_that_floods_the_public_verification_uses_up_its_own_share() {
    let rig = Rig::start_with(|dir| {
        let path = dir.join("svc-passport/config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text + "\n[verify]\nchecks_per_second = 20\n").unwrap();
    });
    let good = rig.fleet.token("svc-wallet", None);
    let (front, _) = good.rsplit_once('.').unwrap();
    let forged = (0..48_u8).map(|n| format!("{front}.{}", b64::url(&[n; 64])));
    let forged: Vec<String> = forged.collect();
    let verify = |base: &str, tokens: &[String]| {
        let url = format!("{base}/v1/passport/verify_batch");
        let body = json!({"tokens": tokens}).to_string();
        rig.fleet.post(&url, None, &body, &[])
    };
    // The same program, as two peers: an address, and a user of this host.
    let [flooding, other] = [
        rig.fleet.api("svc-passport"),
        rig.fleet.api_socket("svc-passport"),
    ];
    json(&verify(&flooding, std::slice::from_ref(&good)), 200);
    let mut answers = (0..100).map(|_| verify(&flooding, &forged));
    let limited = answers.find(|reply| reply.status != 200);
    let limited = limited.expect("its share is used up");
    assert!(limited.header("retry-after").is_some());
    assert_eq!(json(&limited, 429)["code"], "rate_limited");
    let answer = json(&verify(&other, &forged), 200);
    let verdicts = answer["results"].as_array().unwrap();
    assert_eq!(verdicts.len(), forged.len());
    assert!(verdicts.iter().all(|verdict| verdict["ok"] == false));
    let answer = json(&verify(&flooding, &[good]), 200);
    assert_eq!(answer["results"][0]["ok"], true, "found valid before");
    until("its share comes back", || {
        verify(&flooding, &forged[..1]).status == 200
    });
}
