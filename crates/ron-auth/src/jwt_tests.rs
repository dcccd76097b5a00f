//! Attacks on passports, each refused with its own reason, and properties of the verifier.

use proptest::prelude::*;
use ron_crypto::{Curve, EcKey, Ed25519Key, Signer as _};
use ron_kernel::SeededRandom;
use ron_proto::ledger::BudgetId;
use serde_json::json;

use super::*;
use crate::reject::AuthReject as R;

const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "http://127.0.0.1:7450";

struct Issuer {
    ed: Ed25519Key,
    p256: EcKey,
    keys: JwksSnapshot,
}

fn issuer() -> Issuer {
    let ed = Ed25519Key::from_seed(&[7; 32]);
    let (p256, _) = EcKey::generate(Curve::P256);
    let point = p256.public().to_vec();
    let set = json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "ed", "x": b64::url(&ed.public())},
        {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "ec", "x": b64::url(&point[1..33]), "y": b64::url(&point[33..])},
    ]});
    let keys = JwksSnapshot::parse(set.to_string().as_bytes()).expect("two good keys");
    Issuer { ed, p256, keys }
}

fn header() -> Value {
    json!({"alg": "EdDSA", "kid": "ed", "typ": "at+jwt"})
}

fn payload() -> Value {
    json!({"iss": ISSUER, "sub": "alice", "aud": "svc-wallet", "iat": NOW, "nbf": NOW, "exp": NOW + 900, "jti": "j-1",
        "client_id": "cli", "tenant": "t1", "scope": "wallet:read wallet:transfer", "ron_epoch": 2,
        "authorization_details": [{"type": "ron", "caveats": ["asset=ron"]}]})
}

impl Issuer {
    fn sign_text(&self, header: &str, payload: &str) -> String {
        let signed = format!(
            "{}.{}",
            b64::url(header.as_bytes()),
            b64::url(payload.as_bytes())
        );
        let signature = self.ed.sign(signed.as_bytes());
        format!("{signed}.{}", b64::url(&signature))
    }
    fn sign(&self, header: &Value, payload: &Value) -> String {
        self.sign_text(&header.to_string(), &payload.to_string())
    }
    fn verify(&self, token: &str) -> Result<Claims, R> {
        verify_jwt(
            token,
            &self.keys,
            &Expect {
                issuers: &[ISSUER],
                audience: "svc-wallet",
                now_s: NOW + 10,
            },
        )
    }
}

fn with(base: Value, name: &str, value: Value) -> Value {
    let mut changed = base;
    changed[name] = value;
    changed
}

fn without(base: Value, name: &str) -> Value {
    let mut changed = base;
    changed.as_object_mut().expect("an object").remove(name);
    changed
}

#[test]
fn a_good_token_is_read_whole() {
    let issuer = issuer();
    let claims = issuer
        .verify(&issuer.sign(&header(), &payload()))
        .expect("a good token");
    assert_eq!(
        (claims.sub.as_str(), claims.jti.as_str(), claims.epoch),
        ("alice", "j-1", 2)
    );
    assert_eq!(claims.scopes, ["wallet:read", "wallet:transfer"]);
    assert_eq!(claims.tenant.to_string(), "t1");
    assert_eq!(claims.caveats.len(), 1);
    assert_eq!(claims.kid, "ed");
    // The other form of caveats, a list of audiences, unknown claims, the long typ.
    let typed = with(
        payload(),
        "authorization_details",
        json!([{"type": "ron", "asset": "ron", "method": ["GET", "GET"]}]),
    );
    assert_eq!(
        issuer
            .verify(&issuer.sign(&header(), &typed))
            .expect("typed caveats")
            .caveats
            .len(),
        3
    );
    let many = with(payload(), "aud", json!(["x", "svc-wallet"]));
    assert!(issuer.verify(&issuer.sign(&header(), &many)).is_ok());
    let extra = with(payload(), "something", json!({"new": [1, 2]}));
    assert!(issuer.verify(&issuer.sign(&header(), &extra)).is_ok());
    let long = with(header(), "typ", json!("application/at+JWT"));
    assert!(issuer.verify(&issuer.sign(&long, &payload())).is_ok());
    let plain = without(without(payload(), "tenant"), "authorization_details");
    assert_eq!(
        issuer
            .verify(&issuer.sign(&header(), &plain))
            .expect("no tenant")
            .tenant
            .to_string(),
        "default"
    );
}

#[test]
fn es256_verifies_and_its_signature_has_one_length() {
    let issuer = issuer();
    let header = json!({"alg": "ES256", "kid": "ec", "typ": "at+jwt"});
    let signed = format!(
        "{}.{}",
        b64::url(header.to_string().as_bytes()),
        b64::url(payload().to_string().as_bytes())
    );
    let signature = issuer.p256.sign(signed.as_bytes());
    assert!(
        issuer
            .verify(&format!("{signed}.{}", b64::url(&signature)))
            .is_ok()
    );
    let mut changed = signature.clone();
    changed[3] ^= 1;
    assert_eq!(
        issuer.verify(&format!("{signed}.{}", b64::url(&changed))),
        Err(R::Signature)
    );
    assert_eq!(
        issuer.verify(&format!("{signed}.{}", b64::url(&signature[..63]))),
        Err(R::Signature)
    );
    assert_eq!(
        issuer.verify(&format!("{signed}.{}", b64::url(&[0; 64]))),
        Err(R::Signature)
    );
}

#[test]
fn attacks_on_the_header() {
    let issuer = issuer();
    let check = |header: Value, wanted: R| {
        assert_eq!(
            issuer.verify(&issuer.sign(&header, &payload())),
            Err(wanted),
            "{header}"
        );
    };
    for alg in [
        "none", "None", "NONE", "nOnE", "HS256", "HS512", "RS256", "PS256", "ES384", "Ed25519",
        "eddsa", "",
    ] {
        check(with(header(), "alg", json!(alg)), R::Alg);
    }
    check(with(header(), "alg", json!(null)), R::Alg);
    check(with(header(), "alg", json!(["EdDSA"])), R::Alg);
    check(without(header(), "alg"), R::Alg);
    // The algorithm of the header is not the key's.
    check(with(header(), "alg", json!("ES256")), R::Alg);
    check(with(header(), "kid", json!("ec")), R::Alg);
    for kid in [
        json!("unknown"),
        json!(""),
        json!(null),
        json!(7),
        json!("../../etc/passwd"),
        json!("ed "),
    ] {
        check(with(header(), "kid", kid), R::UnknownKid);
    }
    check(without(header(), "kid"), R::UnknownKid);
    for typ in [
        json!("JWT"),
        json!("at+jwt2"),
        json!(""),
        json!(null),
        json!("dpop+jwt"),
        json!("statuslist+jwt"),
    ] {
        check(with(header(), "typ", typ), R::Typ);
    }
    check(without(header(), "typ"), R::Typ);
    let own_key = json!({"kty": "OKP", "crv": "Ed25519", "x": b64::url(&[9; 32])});
    for (name, value) in [
        ("crit", json!(["exp"])),
        ("crit", json!([])),
        ("b64", json!(false)),
        ("jwk", own_key),
        ("jku", json!("http://evil/keys")),
        ("x5u", json!("http://evil/cert")),
        ("x5c", json!(["AA"])),
        ("zip", json!("DEF")),
        ("cty", json!("JWT")),
        ("enc", json!("A256GCM")),
        ("ALG", json!("EdDSA")),
    ] {
        check(with(header(), name, value), R::HeaderMember);
    }
}

#[test]
fn attacks_on_the_shape() {
    let issuer = issuer();
    let good = issuer.sign(&header(), &payload());
    let parts: Vec<&str> = good.split('.').collect();
    let check =
        |token: String, wanted: R| assert_eq!(issuer.verify(&token), Err(wanted), "{token}");
    check(String::new(), R::Malformed);
    check("..".into(), R::Malformed);
    check("a".repeat(4097), R::Oversize);
    check(
        format!("{good}{}", "A".repeat(4097 - good.len())),
        R::Oversize,
    );
    check(format!("{}.{}", parts[0], parts[1]), R::Malformed);
    check(format!("{good}.{}", parts[2]), R::Malformed);
    check(format!("{good}="), R::Malformed);
    check(format!("{good}\n"), R::Malformed);
    check(format!(" {good}"), R::Malformed);
    check(good.replace('.', ".."), R::Malformed);
    check(format!("{}.{}.", parts[0], parts[1]), R::Signature);
    check(
        format!("{}.{}.{}", parts[0], parts[1], "A".repeat(86)),
        R::Signature,
    );
    check(
        format!(
            "{}.{}.{}",
            parts[0],
            b64::url(payload().to_string().replace("alice", "admin").as_bytes()),
            parts[2]
        ),
        R::Signature,
    );
    // A JWS in JSON serialization is a different format.
    check(
        json!({"payload": parts[1], "protected": parts[0], "signature": parts[2]}).to_string(),
        R::Malformed,
    );
    // Signed, but not strict JSON.
    let text = payload().to_string();
    let twice = text.replacen('{', r#"{"sub":"admin","#, 1);
    check(
        issuer.sign_text(&header().to_string(), &twice),
        R::NotStrict,
    );
    let twice_inside = text.replace(r#""type":"ron""#, r#""type":"x","type":"ron""#);
    assert_ne!(twice_inside, text);
    check(
        issuer.sign_text(&header().to_string(), &twice_inside),
        R::NotStrict,
    );
    let head = header().to_string().replacen('{', r#"{"alg":"none","#, 1);
    check(issuer.sign_text(&head, &text), R::NotStrict);
    let escaped = text.replacen('{', r#"{"s\u0075b":"admin","#, 1);
    check(
        issuer.sign_text(&header().to_string(), &escaped),
        R::NotStrict,
    );
    check(
        issuer.sign_text(&header().to_string(), &format!("{text}{text}")),
        R::Malformed,
    );
    check(issuer.sign_text(&header().to_string(), "[]"), R::Malformed);
    check(issuer.sign_text("\"EdDSA\"", &text), R::Malformed);
    let deep = with(
        payload(),
        "deep",
        serde_json::from_str(&format!("{}{}", "[".repeat(40), "]".repeat(40))).expect("nested"),
    );
    check(issuer.sign(&header(), &deep), R::NotStrict);
}

#[test]
fn a_foreign_key_cannot_sign() {
    let issuer = issuer();
    let other_key = Ed25519Key::generate(&SeededRandom::new(1));
    let signed = format!(
        "{}.{}",
        b64::url(header().to_string().as_bytes()),
        b64::url(payload().to_string().as_bytes())
    );
    let token = format!("{signed}.{}", b64::url(&other_key.sign(signed.as_bytes())));
    assert_eq!(issuer.verify(&token), Err(R::Signature));
    // HMAC with the public key as secret, under each way to request it.
    let mac = ron_crypto::hash::hmac_sha256(&issuer.ed.public(), signed.as_bytes());
    assert_eq!(
        issuer.verify(&format!("{signed}.{}", b64::url(&mac))),
        Err(R::Signature)
    );
}

#[test]
fn attacks_on_the_claims() {
    let issuer = issuer();
    let check = |payload: Value, wanted: R| {
        assert_eq!(
            issuer.verify(&issuer.sign(&header(), &payload)),
            Err(wanted),
            "{payload}"
        );
    };
    for iss in [
        "http://127.0.0.1:7450/",
        "http://127.0.0.1:7451",
        "HTTP://127.0.0.1:7450",
        "",
    ] {
        check(with(payload(), "iss", json!(iss)), R::Issuer);
    }
    for aud in [
        json!("svc-rewarder"),
        json!("svc-wallet "),
        json!(""),
        json!([]),
        json!(["svc-rewarder"]),
        json!(vec!["svc-wallet"; 9]),
    ] {
        check(with(payload(), "aud", aud), R::Audience);
    }
    for name in ["iss", "sub", "aud", "iat", "exp", "jti", "ron_epoch"] {
        check(without(payload(), name), R::Claims);
        check(with(payload(), name, json!({"a": 1})), R::Claims);
    }
    for exp in [
        json!("2030-01-01"),
        json!(-1),
        json!(1.5),
        json!("1800000900"),
        json!(null),
    ] {
        check(with(payload(), "exp", exp), R::Claims);
    }
    check(with(payload(), "exp", json!(NOW)), R::Claims);
    check(with(payload(), "exp", json!(NOW + 3601)), R::Claims);
    check(with(payload(), "sub", json!("")), R::Claims);
    check(with(payload(), "sub", json!("a".repeat(257))), R::Claims);
    check(with(payload(), "tenant", json!("T 1")), R::Claims);
    check(with(payload(), "cnf", json!({"jkt": "AAAA"})), R::Binding);
    check(with(payload(), "cnf", json!({})), R::Binding);
    check(with(payload(), "cnf", json!("jkt")), R::Binding);
    check(
        with(payload(), "cnf", json!({"x5t#S256": "AAAA"})),
        R::Binding,
    );
    let more = json!({"jkt": "A".repeat(43), "jwk": {}});
    check(with(payload(), "cnf", more), R::Binding);
    for details in [
        json!([{"type": "ron", "caveats": ["unknown=1"]}]),
        json!([{"type": "ron", "caveats": ["asset"]}]),
        json!([{"type": "ron", "caveats": ["asset=ron"], "more": "x"}]),
        json!([{"type": "other", "caveats": ["asset=ron"]}]),
        json!([{"type": "ron", "unknown": "1"}]),
        json!([{"type": "payment", "amount": "1"}]),
        json!([{"type": "ron", "caveats": vec!["method=GET"; 33]}]),
        json!(["asset=ron"]),
    ] {
        check(
            with(payload(), "authorization_details", details),
            R::CaveatUnsupported,
        );
    }
    check(
        with(payload(), "authorization_details", json!({"type": "ron"})),
        R::Claims,
    );
    check(
        with(
            payload(),
            "authorization_details",
            json!([{"type": "ron", "caveats": "asset=ron"}]),
        ),
        R::Claims,
    );
}

#[test]
fn time_is_checked_with_a_minute_of_grace() {
    let issuer = issuer();
    let token = issuer.sign(&header(), &with(payload(), "nbf", json!(NOW + 100)));
    let check = |now_s: u64, wanted: Result<(), R>| {
        let expect = Expect {
            issuers: &[ISSUER],
            audience: "svc-wallet",
            now_s,
        };
        assert_eq!(
            verify_jwt(&token, &issuer.keys, &expect).map(|_| ()),
            wanted,
            "at {now_s}"
        );
    };
    check(0, Err(R::NotYet));
    check(NOW + 39, Err(R::NotYet));
    check(NOW + 40, Ok(()));
    check(NOW + 959, Ok(()));
    check(NOW + 960, Err(R::Expired));
    check(u64::MAX, Err(R::Expired));
    // Issued in the future, with nbf left out.
    let early = issuer.sign(
        &header(),
        &without(
            with(
                with(payload(), "iat", json!(NOW + 500)),
                "exp",
                json!(NOW + 900),
            ),
            "nbf",
        ),
    );
    assert_eq!(issuer.verify(&early), Err(R::NotYet));
}

#[test]
fn the_unverified_kid_is_read_from_whole_tokens_only() {
    let issuer = issuer();
    let token = issuer.sign(&with(header(), "kid", json!("next")), &payload());
    assert_eq!(unverified_kid(&token).as_deref(), Some("next"));
    assert_eq!(unverified_kid("x.y.z"), None);
    assert_eq!(
        unverified_kid(&issuer.sign(&with(header(), "crit", json!([])), &payload())),
        None
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Changing any byte of a good token makes it invalid.
    #[test]
    fn one_changed_byte_is_always_refused(at in any::<prop::sample::Index>(), byte in 0u8..128) {
        let issuer = issuer();
        let good = issuer.sign(&header(), &payload());
        let mut bytes = good.clone().into_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        let changed = String::from_utf8(bytes).expect("ASCII");
        prop_assert!(issuer.verify(&changed).is_err(), "{changed}");
    }

    /// Every proper prefix and every extension of a good token is refused.
    #[test]
    fn cut_and_extended_tokens_are_refused(cut in any::<prop::sample::Index>(), tail in "[A-Za-z0-9._-]{1,40}") {
        let issuer = issuer();
        let good = issuer.sign(&header(), &payload());
        prop_assert!(issuer.verify(&good[..cut.index(good.len())]).is_err());
        let extended = format!("{good}{tail}");
        prop_assert!(issuer.verify(&extended).is_err());
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}", header in "\\PC{0,60}", payload in "\\PC{0,60}") {
        let issuer = issuer();
        prop_assert!(issuer.verify(&text).is_err());
        prop_assert!(issuer.verify(&issuer.sign_text(&header, &payload)).is_err());
    }
}

#[test]
fn a_token_spends_from_the_budgets_of_those_before_it() {
    let caveats = |text: &str| vec![text.parse().unwrap()];
    let ancestor = Ancestor {
        jti: "jti-0".to_owned(),
        exp: 90,
        kids: Vec::new(),
        counted: caveats("ceiling.total=40"),
    };
    let all = budgets("jti-1", &caveats("ceiling.total=20"), 100, &[ancestor]);
    let ids: Vec<BudgetId> = all.iter().map(|one| one.id).collect();
    assert_eq!(ids, ["jti-0", "jti-1"].map(BudgetId::derive));
}
