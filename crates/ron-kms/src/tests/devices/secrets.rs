//! AES-GCM and HMAC keys inside a token.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use ron_custody::Cause;
use ron_proto::kms::{Bytes, KeyBackend, KeyDoc, PrivateBytes, TokenObject};
use ron_proto::values::{Alg, Kid};

use super::super::envelope::{one, task, unwrap, why, wrap};
use super::super::{Rig, settings};
use super::adopt::{adopted, request};
use super::in_child;
use super::softhsm::{MODULE, PIN, flags, home, say, shimmed, token, tool};
use crate::work::envelope::{EnvelopeOp, EnvelopeTask};

const MACS: [Alg; 3] = [Alg::HmacSha256, Alg::HmacSha384, Alg::HmacSha512];

fn rig(dir: &std::path::Path, module: &str, more: &[(&str, &str)]) -> Rig {
    let own = flags(dir, module);
    let own = own.iter().map(|(k, v)| (k.as_str(), v.as_str()));
    let own = own.filter(|(key, _)| more.iter().all(|(other, _)| key != other));
    let all: Vec<_> = own.chain(more.iter().copied()).collect();
    Rig::start(settings(&all), None).expect("starts")
}

fn mac_of(key: &Kid, text: &[u8]) -> EnvelopeTask {
    task(key, None, EnvelopeOp::Hmac(Bytes::from(text)))
}

/// The MAC that the key makes, and the version that made it.
fn mac(rig: &Rig, key: &Kid, text: &[u8]) -> (Bytes, u32) {
    let made = one(rig, mac_of(key, text)).expect("makes a MAC");
    (made.mac.expect("a MAC"), made.version.expect("a version"))
}

/// The version whose MAC this is.
fn checked(rig: &Rig, key: &Kid, text: &[u8], mac: &Bytes) -> Option<u32> {
    let check = EnvelopeOp::HmacVerify(Bytes::from(text), mac.clone());
    let done = one(rig, task(key, None, check)).expect("answers");
    assert_eq!(done.ok, Some(done.version.is_some()));
    done.version
}

/// The nonce of an AES-GCM ciphertext, behind the header of 6 bytes.
fn nonce_of(text: &Bytes) -> Vec<u8> {
    text.0[6..18].to_vec()
}

#[test]
fn a_token_encrypts_with_nonces_that_are_never_used_twice() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::secrets::a_token_encrypts_with_nonces_that_are_never_used_twice";
    if !in_child(name, || token(dir.path())) {
        return;
    }
    let dir = home();
    let blocks = [("nonces.block", "4"), ("nonces.cap", "20")];
    let service = rig(&dir, MODULE, &blocks);
    let mut nonces = BTreeSet::new();
    let mut kept = Vec::new();
    for (op, alg) in [(1, Alg::Aes128Gcm), (2, Alg::Aes256Gcm)] {
        let doc: KeyDoc = service.create_in(KeyBackend::Pkcs11, alg, op);
        let other = service.create_in(KeyBackend::Pkcs11, alg, op + 10);
        for length in [0_usize, 1, 16, 4096, 65_536] {
            let text = vec![0x5a; length];
            let made = one(&service, wrap(&doc.key, Some(b"row 7"), &text)).expect("encrypts");
            let sealed = made.ciphertext.expect("a ciphertext");
            assert_eq!(sealed.0.len(), 6 + 12 + length + 16, "{alg}");
            assert!(nonces.insert((alg, nonce_of(&sealed))), "{alg}");
            let open = |key: &Kid, aad: &[u8], sealed: &Bytes| {
                one(&service, unwrap(key, Some(aad), sealed)).map(|done| done.plaintext)
            };
            let back = open(&doc.key, b"row 7", &sealed).expect("opens");
            assert_eq!(back, Some(PrivateBytes::from(text.as_slice())));
            let refused = Some(Cause::CiphertextRefused);
            assert_eq!(why(open(&doc.key, b"row 8", &sealed)), refused);
            assert_eq!(why(open(&other.key, b"row 7", &sealed)), refused);
            for at in [6, 18, sealed.0.len() - 1] {
                let mut bad = sealed.clone();
                bad.0[at] ^= 1;
                assert_eq!(why(open(&doc.key, b"row 7", &bad)), refused, "byte {at}");
                bad.0.truncate(at);
                assert_eq!(why(open(&doc.key, b"row 7", &bad)), refused, "{at} bytes");
            }
        }
        kept.push((alg, doc));
    }
    let shown = tool(&dir, &["--login", "--pin", PIN, "--list-objects"]);
    assert!(!shown.contains("never extractable: no"), "{shown}");
    service.stop();

    // Another process begins behind the last block, and the cap holds over both.
    let service = rig(&dir, MODULE, &blocks);
    for (alg, doc) in &kept {
        let mut uses = 0;
        let last = loop {
            match one(&service, wrap(&doc.key, None, b"more")) {
                Ok(made) => {
                    uses += 1;
                    let sealed = made.ciphertext.expect("a ciphertext");
                    assert!(nonces.insert((*alg, nonce_of(&sealed))), "{alg}");
                }
                refused => break why(refused),
            }
            assert!(uses <= 20);
        };
        assert_eq!(last, Some(Cause::UsesExhausted));
        assert!((10..=15).contains(&uses), "5 of 20 are used: {uses}");
        // The next version counts for itself.
        service.rotated(&doc.key);
        one(&service, wrap(&doc.key, None, b"more")).expect("encrypts");
    }
    service.stop();
}

#[test]
fn a_token_makes_the_macs_that_openssl_makes() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::secrets::a_token_makes_the_macs_that_openssl_makes";
    if !in_child(name, || shimmed(dir.path())) {
        return;
    }
    let dir = home();
    let shim = dir.join("shim.so");
    // Calls fail here and never hang, so that nothing depends on how fast the disk is.
    let patient = [("sign_deadline", "10s")];
    let service = rig(&dir, shim.to_str().expect("utf-8"), &patient);
    for (at, alg) in (0..).zip(MACS) {
        let doc: KeyDoc = service.create_in(KeyBackend::Pkcs11, alg, 100 + at);
        let (first, version) = mac(&service, &doc.key, b"a message");
        assert_eq!((first.0.len(), version), (32 + 16 * at as usize, 1));
        assert_eq!(mac(&service, &doc.key, b"a message"), (first.clone(), 1));
        service.rotated(&doc.key);
        let (second, version) = mac(&service, &doc.key, b"a message");
        assert_eq!(version, 2);
        assert_ne!(first, second);
        for (made, version) in [(&first, Some(1)), (&second, Some(2))] {
            assert_eq!(checked(&service, &doc.key, b"a message", made), version);
            assert_eq!(checked(&service, &doc.key, b"another", made), None);
        }
        say("fail");
        let refused = one(&service, mac_of(&doc.key, b"x"));
        assert_eq!(why(refused), Some(Cause::StoreUnavailable));
        say("ok");
        super::until("the token is back", || {
            one(&service, mac_of(&doc.key, b"x")).is_ok()
        });
    }
    // A key that somebody else has made there, and whose value is known.
    let login = ["--login", "--pin", PIN];
    let named = ["--label", "known", "--id", "0b01"];
    let make = [
        "--keygen",
        "--key-type",
        "GENERIC:32",
        "--extractable",
        "--usage-sign",
    ];
    tool(&dir, &[&login[..], &named, &make].concat());
    let read = [
        "--read-object",
        "--type",
        "secrkey",
        "--output-file",
        "known",
    ];
    tool(&dir, &[&login[..], &named, &read].concat());
    let known = std::fs::read(dir.join("known")).expect("the value");
    let object = TokenObject::Label("known".into());
    let doc: KeyDoc = adopted(&service, request(Alg::HmacSha256, object.clone(), 1)).json();
    let (made, _) = mac(&service, &doc.key, b"a message");
    assert_eq!(hex::encode(&made.0), openssl_mac(&known, b"a message"));
    let gcm = adopted(&service, request(Alg::Aes256Gcm, object, 2));
    assert_eq!(gcm.code(), "unsupported", "its nonces are not known");
    service.stop();
}

/// HMAC-SHA256 by OpenSSL, in hex.
fn openssl_mac(key: &[u8], text: &[u8]) -> String {
    let mut openssl = Command::new("openssl")
        .args(["dgst", "-sha256", "-mac", "HMAC", "-macopt"])
        .arg(format!("hexkey:{}", hex::encode(key)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl");
    let mut stdin = openssl.stdin.take().expect("piped");
    stdin.write_all(text).expect("writes");
    drop(stdin);
    let out = openssl.wait_with_output().expect("ends").stdout;
    let said = String::from_utf8(out).expect("text");
    let hex = said.trim().rsplit(' ').next().expect("a word");
    hex.to_owned()
}
