//! Client assertions. Text that the client has not signed never authenticates it. What it has signed, however odd, does so
//! only for this issuer and time, and once.

use std::sync::{Arc, LazyLock};

use ron_auth::{ProofCache, VerifyKey};
use ron_crypto::sign::Ed25519Key;
use ron_kernel::LockSpec;
use ron_proto::b64;

#[allow(dead_code)] // what the issuer alone uses
#[path = "../../crates/svc-passport/src/clients.rs"]
mod clients;

use clients::{Client, Clients};

const NOW: u64 = 1_800_000_000;
/// What the endpoint allows at most between now and the end of an assertion, in seconds.
const AHEAD_S: u64 = 600;

static USED: LockSpec = LockSpec {
    name: "used",
    rank: 1,
    guards: "ids of assertions",
};

static ROBOT: LazyLock<Ed25519Key> = LazyLock::new(|| Ed25519Key::from_seed(&[5; 32]));

fn clients() -> Clients {
    let key = VerifyKey::Ed25519(ROBOT.public());
    let robot = Client {
        id: "robot".to_owned(),
        secrets: Vec::new(),
        keys: vec![(Some("r1".to_owned()), key)],
        certs: Vec::new(),
        dns_names: Vec::new(),
    };
    Clients::new(vec![robot], Arc::new(ProofCache::new(&USED)))
}

/// Presents `data` as a whole assertion, and as the claims of one that the client signs. Where they begin as an object, they get
/// members first without which none is accepted.
pub fn run(data: &[u8]) {
    let clients = clients();
    let here = ["http://issuer/oauth2/token".to_owned()];
    if let Ok(text) = std::str::from_utf8(data) {
        let forged = clients.check_assertion(text, None, &here, NOW);
        assert!(forged.is_err(), "not signed: {text}");
    }
    let claims = match data {
        [b'{', rest @ ..] => [br#"{"iss":"robot","sub":"robot","#, rest].concat(),
        other => other.to_vec(),
    };
    let header = r#"{"alg":"EdDSA","kid":"r1","typ":"client-authentication+jwt"}"#;
    let input = format!("{}.{}", b64::url(header.as_bytes()), b64::url(&claims));
    let signature = ROBOT.sign(input.as_bytes());
    let with = |signature: &[u8; 64]| format!("{input}.{}", b64::url(signature));
    let mut other = signature;
    other[data.len() % 64] ^= 1;
    let forged = clients.check_assertion(&with(&other), None, &here, NOW);
    assert!(forged.is_err(), "another signature");
    let elsewhere = ["http://elsewhere/oauth2/token".to_owned()];
    let signed = with(&signature);
    let Ok(used) = clients.check_assertion(&signed, None, &here, NOW) else {
        return;
    };
    assert_eq!(used.client, "robot");
    assert!(!used.jti.is_empty() && used.jti.len() <= 256);
    assert!(used.until_s > NOW && used.until_s <= NOW + AHEAD_S);
    for (again, at) in [(&here, NOW), (&here, NOW + AHEAD_S), (&elsewhere, NOW)] {
        let again = clients.check_assertion(&signed, None, again, at);
        // An assertion may name both addresses.
        assert!(again.is_err(), "a second time");
    }
}
