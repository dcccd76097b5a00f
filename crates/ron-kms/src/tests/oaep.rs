//! Encryption to RSA keys, against OpenSSL in both directions; and imports that are wrapped as Vault and AWS have it, made with
//! OpenSSL as their manuals say.

#![allow(clippy::disallowed_methods)] // tests start programs and wait for them

use std::path::Path;
use std::process::Command;

use ron_custody::Cause;
use ron_custody::keys::envelope::{HEADER_LEN, header};
use ron_http::Method;
use ron_kernel::Random as _;
use ron_kernel::SeededRandom;
use ron_proto::kms::{Bytes, ImportKey, KeyDoc, PayloadPolicy, PutKeyPolicy, SignRequest};
use ron_proto::values::Alg;
use serde_json::{Value, json};

use super::api::{Served, token};
use super::envelope::{one, unwrap, why, wrap};
use super::transfer::import;
use super::{Rig, op_id, signed};
use crate::work::key_request::KeyRequest;

const OAEP: [&str; 6] = [
    "-pkeyopt",
    "rsa_padding_mode:oaep",
    "-pkeyopt",
    "rsa_oaep_md:sha256",
    "-pkeyopt",
    "rsa_mgf1_md:sha256",
];

fn openssl(dir: &Path, args: &[&str]) {
    let out = Command::new("openssl")
        .args(args)
        .current_dir(dir)
        .output()
        .expect("openssl runs");
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "openssl {args:?}: {why}");
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), bytes).expect("writes");
}

fn read(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).expect("reads")
}

/// An RSA-OAEP + AES-KWP blob of `key.der` to `wrapping.pem`, with the commands of the manuals.
fn wrapped(dir: &Path, random: &SeededRandom) -> Vec<u8> {
    let mut aes = [0; 32];
    random.fill(&mut aes);
    write(dir, "aes.key", aes);
    let to = ["pkeyutl", "-encrypt", "-pubin", "-inkey", "wrapping.pem"];
    let files = ["-in", "aes.key", "-out", "aes.wrapped"];
    openssl(dir, &[&to[..], &files, &OAEP].concat());
    let aes = hex::encode(aes);
    let by = ["enc", "-id-aes256-wrap-pad", "-iv", "A65959A6", "-K", &aes];
    let files = ["-in", "key.der", "-out", "key.wrapped"];
    openssl(dir, &[&by[..], &files].concat());
    [read(dir, "aes.wrapped"), read(dir, "key.wrapped")].concat()
}

#[test]
fn openssl_encrypts_to_the_key_and_opens_what_it_encrypts() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let rig = Rig::memory();
    let random = SeededRandom::new(21);
    let wrapping = rig.create("wrapping", Alg::RsaOaep2048, PayloadPolicy::Any, 1);
    let pem = &wrapping.versions[0].public_key_pem;
    write(dir, "wrapping.pem", pem);
    for (op, alg) in (10..).zip([Alg::RsaOaep2048, Alg::RsaOaep3072, Alg::RsaOaep4096]) {
        let bits = alg.as_str().strip_prefix("rsa-oaep-").expect("bits");
        let bits = format!("rsa_keygen_bits:{bits}");
        openssl(
            dir,
            &[
                "genpkey",
                "-algorithm",
                "RSA",
                "-pkeyopt",
                &bits,
                "-out",
                "own.pem",
            ],
        );
        let form = ["-topk8", "-nocrypt", "-outform", "DER", "-out", "key.der"];
        openssl(dir, &[&["pkcs8", "-in", "own.pem"][..], &form].concat());
        openssl(
            dir,
            &["pkey", "-in", "own.pem", "-pubout", "-out", "pub.pem"],
        );
        let ask = ImportKey {
            tenant: "ron".parse().expect("a tenant"),
            purpose: "oaep".parse().expect("a purpose"),
            alg,
            payload: PayloadPolicy::Any,
            exportable: false,
            rotate_every: None,
            into: None,
            wrapping_key: wrapping.key.to_string(),
            wrapped: Bytes(wrapped(dir, &random)),
            op_id: op_id(op),
        };
        let got = import(&rig, ask);
        assert_eq!(got.status, 201, "{alg}: {}", got.code());
        let doc: KeyDoc = got.json();
        write(dir, "plain", b"to the key");
        let to = ["pkeyutl", "-encrypt", "-pubin", "-inkey", "pub.pem"];
        let files = ["-in", "plain", "-out", "sealed"];
        openssl(dir, &[&to[..], &files, &OAEP].concat());
        let text = Bytes([&header(alg, 1)[..], &read(dir, "sealed")].concat());
        let opened = one(&rig, unwrap(&doc.key, None, &text)).expect("opens");
        assert_eq!(opened.plaintext.expect("a text").expose(), b"to the key");
        let made = one(&rig, wrap(&doc.key, None, b"from the key")).expect("wraps");
        let made = made.ciphertext.expect("a ciphertext");
        write(dir, "sealed", &made.0[HEADER_LEN..]);
        let by = ["pkeyutl", "-decrypt", "-inkey", "own.pem"];
        let files = ["-in", "sealed", "-out", "opened"];
        openssl(dir, &[&by[..], &files, &OAEP].concat());
        assert_eq!(read(dir, "opened"), b"from the key");
        // PKCS#1 v1.5, and OAEP with another hash, never decrypt.
        for padding in [
            &["-pkeyopt", "rsa_padding_mode:pkcs1"][..],
            &[
                "-pkeyopt",
                "rsa_padding_mode:oaep",
                "-pkeyopt",
                "rsa_oaep_md:sha1",
            ],
        ] {
            let files = ["-in", "plain", "-out", "sealed"];
            openssl(dir, &[&to[..], &files, padding].concat());
            let text = Bytes([&header(alg, 1)[..], &read(dir, "sealed")].concat());
            let refused = why(one(&rig, unwrap(&doc.key, None, &text)));
            assert_eq!(refused, Some(Cause::CiphertextRefused), "{alg} {padding:?}");
        }
        let long = vec![0; read(dir, "sealed").len() - 65];
        let refused = why(one(&rig, wrap(&doc.key, None, &long)));
        assert_eq!(refused, Some(Cause::TooLarge), "{alg}");
    }
    rig.stop();
}

#[test]
fn keys_are_imported_as_vault_and_aws_have_it_and_get_versions() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let served = Served::start();
    let random = SeededRandom::new(22);
    let read_key = || {
        let (status, body) = served.vault(Method::GET, "wrapping_key", json!({}));
        assert_eq!(status, 200, "{body}");
        body["data"]["public_key"].as_str().expect("PEM").to_owned()
    };
    let none = json!({ "type": "aes256-gcm96", "ciphertext": "AAAA" });
    let why = served.refused("keys/early/import", none);
    assert!(why.contains("read wrapping_key first"), "{why}");
    // Primes take long by bad luck, and a request has a deadline.
    let made = || served.vault(Method::GET, "wrapping_key", json!({})).0 == 200;
    assert!((0..20).any(|_| made()), "no key in 20 requests");
    let pem = read_key();
    assert_eq!(pem, read_key(), "it stays");
    write(dir, "wrapping.pem", &pem);
    let blob = || ron_proto::b64::std(&wrapped(dir, &random));
    // A symmetric key as it is: what it encrypted elsewhere opens.
    write(dir, "key.der", [7; 32]);
    let body = json!({ "type": "aes256-gcm96", "ciphertext": blob(), "hash_function": "SHA256" });
    let shown = served.done("keys/box/import", body.clone());
    assert_eq!(
        (&shown["imported_key"], &shown["latest_version"]),
        (&json!(true), &json!(1))
    );
    served.refused("keys/box/import", body.clone());
    // A name is of one key, also when several imports of it arrive at once.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let import = || {
            served
                .vault(Method::POST, "keys/twin/import", body.clone())
                .0
        };
        let all = [(); 4].map(|()| scope.spawn(import));
        all.map(|one| one.join().expect("no panic")).to_vec()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1);
    assert_eq!(statuses.iter().filter(|status| **status == 400).count(), 3);
    let outside = ron_crypto::aead::Aead::Aes256Gcm.seal(&[7; 32], &[1; 12], b"", b"x");
    let text = [&[1; 12][..], &outside].concat();
    let text = format!("vault:v1:{}", ron_proto::b64::std(&text));
    served.opens("box", &text);
    write(dir, "key.der", [8; 32]);
    let next = json!({ "ciphertext": blob() });
    assert_eq!(
        served.done("keys/box/import_version", next)["latest_version"],
        2
    );
    served.opens("box", &text);
    let head = served.seal("box", json!({ "plaintext": "eA==" }));
    assert!(head.starts_with("vault:v2:"), "{head}");
    // Asymmetric keys as PKCS#8: OpenSSL verifies with its own half.
    for (name, kind, args) in [
        ("ed", "ed25519", &["ED25519"][..]),
        (
            "ec",
            "ecdsa-p256",
            &["EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        ),
        (
            "rsa",
            "rsa-2048",
            &["RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        ),
    ] {
        openssl(
            dir,
            &[&["genpkey", "-out", "own.pem", "-algorithm"][..], args].concat(),
        );
        let form = ["-topk8", "-nocrypt", "-outform", "DER", "-out", "key.der"];
        openssl(dir, &[&["pkcs8", "-in", "own.pem"][..], &form].concat());
        openssl(
            dir,
            &["pkey", "-in", "own.pem", "-pubout", "-out", "pub.pem"],
        );
        let body = json!({ "type": kind, "ciphertext": blob() });
        served.done(&format!("keys/{name}/import"), body);
        let path = format!("export/public-key/{name}");
        let (_, shown) = served.vault(Method::GET, &path, json!({}));
        let public = shown["data"]["keys"]["1"].as_str().expect("a key");
        let pem = String::from_utf8(read(dir, "pub.pem")).expect("text");
        if kind == "ed25519" {
            let raw = ron_proto::b64::from_std(public).expect("base64");
            let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
            let spki = ron_proto::b64::from_std(&body).expect("base64");
            assert!(spki.ends_with(&raw), "{name}");
        } else {
            assert_eq!(public.trim(), pem.trim(), "{name}");
        }
        let signed = served.done(&format!("sign/{name}"), json!({ "input": "eA==" }));
        let check = json!({ "input": "eA==", "signature": signed["signature"] });
        assert_eq!(served.done(&format!("verify/{name}"), check)["valid"], true);
    }
    // A key that was made here gets no versions from elsewhere; nor does another type, hash or text come in.
    served.done("keys/own", json!({}));
    write(dir, "key.der", [9; 32]);
    let why = served.refused("keys/own/import_version", json!({ "ciphertext": blob() }));
    assert!(why.contains("only an imported key"), "{why}");
    served.refused(
        "keys/new/import",
        json!({ "type": "ed25519", "ciphertext": "AAAA" }),
    );
    served.refused(
        "keys/new/import",
        json!({ "type": "rsa-2048", "ciphertext": blob() }),
    );
    let sha1 = json!({ "type": "aes256-gcm96", "ciphertext": blob(), "hash_function": "SHA1" });
    served.refused("keys/new/import", sha1);
    let (status, _) = served.vault_as("wrapper", Method::GET, "wrapping_key", &json!({}));
    assert_eq!(status, 403);
    // A wrapping key that is retired is followed by another.
    let path = "/v1/kms/keys?purpose=transit-wrapping";
    let listed: Value = served
        .get_as(&token("keeper"), path)
        .json()
        .expect("a list");
    let key = listed["keys"][0]["key"].as_str().expect("a name");
    let path = format!("/v1/kms/keys/{key}/retire");
    assert_eq!(served.post_as(&token("keeper"), &path, b"{}").status, 200);
    assert!((0..20).any(|_| made()), "no key in 20 requests");
    assert_ne!(pem, read_key());
    served.drain();
}

/// A key that was wrapped to one that signs, or to one of somebody else, stays out.
#[test]
fn only_a_wrapping_key_of_the_caller_unwraps_imports() {
    let rig = Rig::memory();
    let signer = rig.create("p", Alg::Rsa2048, PayloadPolicy::Any, 1);
    signed(&rig.sign(SignRequest::message(signer.key.clone(), *b"m")));
    let ask = |by: &str| ImportKey {
        tenant: "ron".parse().expect("a tenant"),
        purpose: "p".parse().expect("a purpose"),
        alg: Alg::Aes256Gcm,
        payload: PayloadPolicy::Any,
        exportable: false,
        rotate_every: None,
        into: None,
        wrapping_key: by.to_owned(),
        wrapped: Bytes(vec![0; 300]),
        op_id: op_id(2),
    };
    let by_signer = import(&rig, ask(&signer.key.to_string()));
    assert_eq!(by_signer.code(), "wrapped_key_refused");
    let foreign = signer.key.to_string().replace("ron/", "default/");
    assert_eq!(import(&rig, ask(&foreign)).code(), "forbidden");
    let missing = "ron/p/rsa-oaep-2048/0190f0a0-0000-7000-8000-000000000000";
    assert_eq!(import(&rig, ask(missing)).code(), "not_found");
    // A policy that does not allow `import` covers the wrapping key, and the key that would get a version.
    let policy = serde_json::from_str(r#"{"allow": [{"ops": ["sign", "policy"]}]}"#);
    let put = PutKeyPolicy {
        policy: Some(policy.expect("a policy")),
        op_id: Some(op_id(3)),
    };
    let put = KeyRequest::PutPolicy(Box::new(put));
    assert_eq!(rig.change_as(&rig.caller, &signer.key, put).status, 200);
    let by_governed = import(&rig, ask(&signer.key.to_string()));
    assert_eq!(by_governed.code(), "key_policy_denied");
    let next = ImportKey {
        alg: Alg::Rsa2048,
        into: Some(signer.key.clone()),
        op_id: op_id(4),
        ..ask("none")
    };
    assert_eq!(import(&rig, next).code(), "key_policy_denied");
    rig.stop();
}
