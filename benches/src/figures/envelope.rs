//! Envelope operations of the KMS under load.

use serde_json::{Value, json};

use super::{Bench, ask, bearer, same};
use crate::client::request;

/// A text of 64 bytes, base64url.
const TEXT: &str =
    "c2l4dHkgZm91ciBieXRlcyBvZiB0ZXh0IHRoYXQgYXJlIG5laXRoZXIgc2hvcnQgbm9yIGxvbmcgcmVhbGx5IQ";

impl Bench {
    /// Wrap and unwrap with each algorithm, a MAC, a strict verification.
    pub(super) fn envelope(&self) -> Result<(), String> {
        let host = self.fleet.host("ron-kms")?;
        let bearer = bearer(&self.fleet.token("ron-kms")?);
        let auth = [("Authorization", bearer.as_str())];
        let post = |path: &str, body: &Value| {
            request(
                "POST",
                &host,
                &format!("/v1/kms/{path}"),
                &auth,
                &body.to_string(),
            )
        };
        let make = |alg: &str, n: u32| {
            let op_id = format!("01890a5d-ac96-774b-bcce-b30209{n:06}");
            let body = json!({"tenant": "default", "purpose": "bench", "alg": alg, "op_id": op_id});
            Ok::<_, String>(ask(&host, &post("keys", &body))?["key"].clone())
        };
        let algs = [
            "aes256-gcm",
            "aes256-kwp",
            "x25519-hkdf-aes256-gcm",
            "x25519+ml-kem-768",
        ];
        for (n, alg) in (1..).zip(algs) {
            let key = make(alg, n)?;
            let wrap = post("wrap", &json!({"key": key, "plaintext": TEXT}));
            let made = ask(&host, &wrap)?["ciphertext"].clone();
            let unwrap = post("unwrap", &json!({"key": key, "ciphertext": made}));
            self.print(&format!("wrap {alg}"), 1, &host, 64, |_| same(wrap.clone()))?;
            self.print(&format!("unwrap {alg}"), 1, &host, 64, |_| {
                same(unwrap.clone())
            })?;
        }
        let key = make("hmac-sha256", 9)?;
        let mac = post("hmac", &json!({"key": key, "message": TEXT}));
        self.print("hmac", 1, &host, 64, |_| same(mac.clone()))?;
        let key = make("ed25519", 10)?;
        let signed = ask(&host, &post("sign", &json!({"key": key, "message": TEXT})))?;
        let verify = json!({"key": key, "message": TEXT, "signatures": signed["signatures"]});
        let verify = post("verify", &verify);
        self.print("verify ed25519", 1, &host, 64, |_| same(verify.clone()))
    }
}
