//! Keys of objects that were in the token before: made with `pkcs11-tool`, used by the service, deleted by somebody else.

use ron_proto::kms::{AdoptKey, DestroyKey, KeyDoc, PayloadPolicy, RotateRequest, TokenObject};
use ron_proto::values::Alg;

use super::super::envelope::{one, unwrap, wrap};
use super::super::{Rig, TestReply, op_id, signed};
use super::softhsm::{MODULE, PIN, home, rig, token, tool};
use super::{in_child, openssl_agrees};
use crate::attest::verify::{Expect, verify};
use crate::work::StoreJob;
use crate::work::key_request::KeyRequest;

pub(super) fn request(alg: Alg, object: TokenObject, op: u128) -> AdoptKey {
    AdoptKey {
        tenant: "ron".parse().expect("a tenant"),
        purpose: "old".parse().expect("a purpose"),
        alg,
        object,
        token: None,
        payload: PayloadPolicy::Any,
        op_id: op_id(op),
    }
}

fn adopt(rig: &Rig, alg: Alg, object: TokenObject, op: u128) -> TestReply {
    adopted(rig, request(alg, object, op))
}

pub(super) fn adopted(rig: &Rig, ask: AdoptKey) -> TestReply {
    let (call, waiter) = rig.call_context(&rig.caller);
    rig.engine
        .kms
        .submit_store(StoreJob::Adopt(call, Box::new(ask)));
    Rig::wait(waiter)
}

fn label(name: &str) -> TokenObject {
    TokenObject::Label(name.into())
}

#[test]
fn objects_of_others_become_keys_and_stay_theirs() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::adopt::objects_of_others_become_keys_and_stay_theirs";
    if !in_child(name, || token(dir.path())) {
        return;
    }
    let dir = home();
    let make = |args: &[&str]| tool(&dir, &[&["--login", "--pin", PIN][..], args].concat());
    let pair = |kind: &str, name: &str, id: &str| {
        make(&[
            "--keypairgen",
            "--key-type",
            kind,
            "--label",
            name,
            "--id",
            id,
        ])
    };
    pair("EC:prime256v1", "site", "0a01");
    pair("rsa:2048", "legacy", "0a02");
    pair("EC:secp384r1", "twin", "0a03");
    pair("EC:secp384r1", "twin", "0a04");
    make(&[
        "--keygen",
        "--key-type",
        "AES:32",
        "--label",
        "kek",
        "--id",
        "0a05",
        "--usage-wrap",
    ]);
    let objects = || make(&["--list-objects"]).matches("label:").count();
    let before = objects();
    let text = b"signed by an object that was there";
    let service = rig(&dir, MODULE);
    let site = adopt(&service, Alg::EcdsaP256, label("site"), 1);
    assert_eq!(site.status, 201, "{}", String::from_utf8_lossy(&site.body));
    let again = adopt(&service, Alg::EcdsaP256, label("site"), 1);
    assert_eq!((again.status, &again.body), (201, &site.body), "same op_id");
    let site: KeyDoc = site.json();
    let shown = (site.backend.as_str(), site.attestation.as_str());
    assert_eq!(shown, ("pkcs11", "adopted"));
    let legacy: KeyDoc = adopt(&service, Alg::Rsa2048, TokenObject::Id("0a02".into()), 2).json();
    let twin: KeyDoc = adopt(&service, Alg::EcdsaP384, TokenObject::Id("0a04".into()), 3).json();
    let kek: KeyDoc = adopt(&service, Alg::Aes256Kwp, label("kek"), 4).json();
    for doc in [&site, &legacy, &twin] {
        openssl_agrees(&dir, doc, text, &signed(&service.sign_text(doc, text)));
        let certificate = service.certificate(doc, b"n");
        verify(&certificate, &Expect::default()).expect("verifies");
        let mut other = certificate;
        other.evidence.class = "statement".into();
        assert!(verify(&other, &Expect::default()).is_err());
    }
    let wrapped = one(&service, wrap(&kek.key, None, b"a key")).expect("wraps");
    let wrapped = wrapped.ciphertext.expect("a ciphertext");
    // Refused without a change of the token: no object, several, another algorithm, no algorithm of tokens, no name.
    for (alg, object) in [
        (Alg::EcdsaP256, label("nothing")),
        (Alg::EcdsaP384, label("twin")),
        (Alg::Ed25519, label("site")),
        (Alg::MlDsa65, label("site")),
        (Alg::EcdsaP256, label("")),
        (Alg::EcdsaP256, TokenObject::Id("0a0".into())),
    ] {
        let got = adopt(&service, alg, object.clone(), 9);
        assert!(got.status >= 400, "{alg} {object}: {}", got.status);
        assert_ne!(got.status, 503, "{alg} {object}: the token is there");
    }
    assert_eq!(objects(), before);
    let destroy = KeyRequest::Destroy(DestroyKey::default());
    assert_eq!(service.change(&site.key, destroy).code(), "unsupported");
    service.stop();
    let service = rig(&dir, MODULE);
    openssl_agrees(&dir, &site, text, &signed(&service.sign_text(&site, text)));
    let opened = one(&service, unwrap(&kek.key, None, &wrapped)).expect("opens");
    assert_eq!(opened.plaintext.expect("a text").expose(), b"a key");
    // A rotation makes a key in the token, as of every key there.
    let rotated = service.rotate(&twin.key, RotateRequest::default());
    assert_eq!(rotated.status, 200);
    assert_eq!(objects(), before + 2);
    // Somebody deletes an object: that is its key's error and nobody else's.
    make(&["--delete-object", "--type", "privkey", "--id", "0a01"]);
    for _ in 0..3 {
        assert_eq!(service.sign_text(&site, text).code(), "key_missing");
        signed(&service.sign_text(&legacy, text));
    }
    service.stop();
}
