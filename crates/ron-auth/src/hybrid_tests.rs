//! Post-quantum and hybrid tokens under each rule, and attacks on them.

use ron_crypto::jwk::thumbprint_okp;
use ron_crypto::mldsa::{MlDsaKey, MlDsaSet};
use ron_crypto::sign::Ed25519Key;
use ron_kernel::SeededRandom;
use serde_json::{Value, json};

use super::*;
use crate::jwks::{JwksSnapshot, PqRule};
use crate::jwt::{Claims, Expect, verify_jwt};

const NOW: u64 = 1_800_000_000;

struct Rig {
    classical: Ed25519Key,
    pq: MlDsaKey,
}

fn rig() -> Rig {
    Rig {
        classical: Ed25519Key::from_seed(&[3; 32]),
        pq: MlDsaKey::generate(MlDsaSet::L65, &SeededRandom::new(5)),
    }
}

fn part(value: &Value) -> String {
    b64::url(value.to_string().as_bytes())
}

fn claims() -> Value {
    json!({"iss": "i", "sub": "alice", "aud": "svc-wallet", "iat": NOW, "exp": NOW + 60, "jti": "j", "ron_epoch": 1})
}

impl Rig {
    fn kids(&self) -> [String; 2] {
        let akp = ron_crypto::jwk::thumbprint_akp("ML-DSA-65", &self.pq.public());
        [thumbprint_okp(&self.classical.public()), akp]
    }

    fn keys(&self, rule: PqRule) -> JwksSnapshot {
        let [kid, akp] = self.kids();
        let x = b64::url(&self.classical.public());
        let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x}]});
        let keys = JwksSnapshot::parse(set.to_string().as_bytes()).unwrap();
        if rule == PqRule::Off {
            return keys;
        }
        let public = b64::url(&self.pq.public());
        let set = json!({"keys": [{"kty": "AKP", "alg": "ML-DSA-65", "kid": akp, "pub": public}]});
        keys.with_pq(set.to_string().as_bytes(), rule).unwrap()
    }

    /// `(protected, signature)` by the classical or the ML-DSA key.
    fn signed(&self, pq: bool, payload: &str) -> (String, String) {
        let [kid, akp] = self.kids();
        let (alg, kid) = if pq {
            ("ML-DSA-65", akp)
        } else {
            ("EdDSA", kid)
        };
        let protected = part(&json!({"alg": alg, "kid": kid, "typ": "at+jwt"}));
        let input = format!("{protected}.{payload}");
        let signature = if pq {
            self.pq.sign(input.as_bytes())
        } else {
            self.classical.sign(input.as_bytes()).to_vec()
        };
        (protected, b64::url(&signature))
    }

    fn compact(&self, pq: bool, claims: &Value) -> String {
        let payload = part(claims);
        let (protected, signature) = self.signed(pq, &payload);
        format!("{protected}.{payload}.{signature}")
    }

    /// Both signatures, of which some are invalid.
    fn hybrid(&self, classical_good: bool, pq_good: bool) -> String {
        let payload = part(&claims());
        let made = [(false, classical_good), (true, pq_good)].map(|(pq, good)| {
            let other = part(&json!({"sub": "mallory"}));
            let (protected, signature) = self.signed(pq, if good { &payload } else { &other });
            (protected, signature)
        });
        join(&payload, made)
    }

    fn judge(&self, rule: PqRule, token: &str) -> Result<Claims, AuthReject> {
        let expect = Expect {
            issuers: &["i"],
            audience: "svc-wallet",
            now_s: NOW,
        };
        verify_jwt(token, &self.keys(rule), &expect)
    }
}

const RULES: [PqRule; 5] = [
    PqRule::Off,
    PqRule::Or,
    PqRule::And,
    PqRule::Require,
    PqRule::PqOnly,
];

#[test]
fn each_rule_takes_what_it_says() {
    let rig = rig();
    let fallback = {
        let mut claims = claims();
        claims["authorization_details"] = json!([{"type": "ron", "caveats": ["pq.fallback=true"]}]);
        rig.compact(false, &claims)
    };
    // The presented token, and which of the rules (in the order of RULES) accept it.
    let table = [
        ("classical", rig.compact(false, &claims()), [1, 1, 1, 0, 0]),
        ("marked as fallback", fallback, [1, 1, 1, 1, 0]),
        ("ML-DSA", rig.compact(true, &claims()), [0, 1, 1, 1, 1]),
        ("hybrid", rig.hybrid(true, true), [0, 1, 1, 1, 1]),
        (
            "hybrid, ML-DSA bad",
            rig.hybrid(true, false),
            [0, 1, 0, 0, 0],
        ),
        (
            "hybrid, classical bad",
            rig.hybrid(false, true),
            [0, 1, 0, 0, 1],
        ),
        ("hybrid, both bad", rig.hybrid(false, false), [0; 5]),
    ];
    for (name, token, wanted) in table {
        for (rule, wanted) in RULES.into_iter().zip(wanted) {
            let got = rig.judge(rule, &token);
            assert_eq!(got.is_ok(), wanted == 1, "{name} under {rule:?}: {got:?}");
        }
    }
}

#[test]
fn a_hybrid_is_one_token_in_two_spellings() {
    let rig = rig();
    let token = rig.hybrid(true, true);
    let json = String::from_utf8(b64::from_url(&token).unwrap()).unwrap();
    let one = rig.judge(PqRule::And, &token).unwrap();
    assert_eq!(one, rig.judge(PqRule::And, &json).unwrap());
    assert_eq!([one.kid, one.pq_kid.unwrap()], rig.kids());
    assert_eq!(payload(&token).unwrap(), claims().to_string().into_bytes());
    assert_eq!(payload(&rig.compact(false, &claims())), payload(&json));
}

#[test]
fn what_an_attacker_makes_of_a_hybrid_is_refused() {
    let rig = rig();
    let payload = part(&claims());
    let (classical, pq) = (rig.signed(false, &payload), rig.signed(true, &payload));
    let check = |name: &str, token: &str| {
        for rule in RULES {
            let got = rig.judge(rule, token);
            assert!(got.is_err(), "{name} under {rule:?}");
        }
    };
    check(
        "two classical signatures",
        &join(&payload, [classical.clone(), classical.clone()]),
    );
    check(
        "two of the other",
        &join(&payload, [pq.clone(), pq.clone()]),
    );
    check("one signature", &join(&payload, [classical.clone()]));
    check(
        "three",
        &join(&payload, [classical.clone(), pq.clone(), pq.clone()]),
    );
    check(
        "swapped",
        &join(
            &payload,
            [
                (classical.0.clone(), pq.1.clone()),
                (pq.0.clone(), classical.1.clone()),
            ],
        ),
    );
    let other = part(&json!({"sub": "mallory"}));
    check(
        "another payload",
        &join(&other, [classical.clone(), pq.clone()]),
    );
    let general = json!({"payload": payload, "signatures": [
        {"protected": classical.0, "signature": classical.1},
        {"protected": pq.0, "signature": pq.1, "header": {"kid": "x"}}]});
    check("an unprotected header", &general.to_string());
    let twice = rig.hybrid(true, true);
    let twice = String::from_utf8(b64::from_url(&twice).unwrap()).unwrap();
    check(
        "a repeated member",
        &twice.replacen('{', &format!("{{\"payload\":\"{other}\","), 1),
    );
    let mut long = claims();
    long["x"] = "x".repeat(ron_proto::passport::TOKEN_BYTES_MAX).into();
    check(
        "a classical token as long as one of the others",
        &rig.compact(false, &long),
    );
    let none = part(&json!({"alg": "none", "kid": rig.kids()[1], "typ": "at+jwt"}));
    check(
        "a half without a signature",
        &join(&payload, [classical, (none, String::new())]),
    );
}
