//! Vault's paths over HTTP: older versions, keys that are made by their first use, deletion, backups.

use std::collections::BTreeSet;
use std::time::Duration;

use ron_http::{Call, Method};
use ron_kernel::Deadline;
use serde_json::{Value, json};

use super::api::{Served, principal, token};
use crate::vault_mount::RESERVED;

/// A caller with all rights over keys, and one that may make none.
pub(super) fn principals() -> String {
    let all = [
        "admin", "create", "read", "rotate", "sign", "unwrap", "verify", "wrap",
    ];
    let all = all.map(|name| format!("\"kms:{name}\""));
    let some = "\"kms:wrap\", \"kms:unwrap\"";
    principal("keeper", "ron", &all.join(", "), "") + &principal("wrapper", "ron", some, "")
}

impl Served {
    /// Status and body of a request under Vault's paths.
    pub(super) fn vault_as(
        &self,
        name: &str,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (u16, Value) {
        let url = format!("{}/v1/transit/{path}", self.running.api_url());
        let deadline = Deadline::within(Duration::from_secs(10));
        let call = match method {
            Method::GET | Method::DELETE => Call::get(&url, deadline),
            _ => Call::post_json(&url, serde_json::to_vec(body).expect("json"), deadline),
        };
        let reply = self.call(Call { method, ..call }, &token(name));
        let body = serde_json::from_slice(&reply.body).unwrap_or_default();
        (reply.status, body)
    }

    pub(super) fn vault(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        self.vault_as("keeper", method, path, &body)
    }

    /// The data of a successful request.
    pub(super) fn done(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.vault(Method::PUT, path, body);
        assert_eq!(status, 200, "{path}: {answer}");
        answer["data"].clone()
    }

    /// Why a request is refused with 400.
    pub(super) fn refused(&self, path: &str, body: Value) -> String {
        let (status, answer) = self.vault(Method::POST, path, body);
        assert_eq!(status, 400, "{path}: {answer}");
        answer["errors"][0]
            .as_str()
            .expect("Vault's form")
            .to_owned()
    }

    pub(super) fn seal(&self, name: &str, body: Value) -> String {
        let made = self.done(&format!("encrypt/{name}"), body);
        made["ciphertext"].as_str().expect("a text").to_owned()
    }

    pub(super) fn opens(&self, name: &str, text: &str) {
        let opened = self.done(&format!("decrypt/{name}"), json!({ "ciphertext": text }));
        assert_eq!(opened["plaintext"], "eA==");
    }
}

/// The paths of the document that is served.
fn paths(served: &Served) -> Vec<String> {
    let reply = served.get_as("", "/openapi.json");
    let document: Value = serde_json::from_slice(&reply.body).expect("json");
    let paths = document["paths"].as_object().expect("an object");
    paths.keys().cloned().collect()
}

#[test]
fn a_mount_takes_no_path_of_another_route() {
    let below = |path: &String| Some(path.strip_prefix("/v1/")?.split('/').next()?.to_owned());
    let served = Served::start();
    let firsts: BTreeSet<String> = paths(&served).iter().filter_map(below).collect();
    let is_free = |first: &&String| !RESERVED.contains(&first.as_str());
    let free: Vec<&String> = firsts.iter().filter(is_free).collect();
    assert_eq!(free, ["transit"], "add the others to RESERVED");
}

#[test]
fn another_mount_serves_the_same_routes_alone() {
    let served = Served::start_with("[vault]\nmount = \"transit/x\"\n");
    let (there, here) = (paths(&Served::start()), paths(&served));
    let moved: BTreeSet<String> = there
        .iter()
        .map(|path| path.replace("/v1/transit/", "/v1/transit/x/"))
        .collect();
    assert_eq!(here.into_iter().collect::<BTreeSet<_>>(), moved);
    let (status, answer) = served.vault(Method::PUT, "x/keys/k", json!({}));
    assert_eq!(
        (status, &answer["data"]["latest_version"]),
        (200, &json!(1))
    );
    served.done("x/encrypt/k", json!({ "plaintext": "eA==" }));
    for path in ["keys/k", "keys", "encrypt/k"] {
        let (status, _) = served.vault(Method::GET, path, json!({}));
        assert_eq!(status, 404, "{path}");
    }
}

#[test]
fn older_versions_encrypt_from_min_encryption_version_on() {
    let served = Served::start();
    for name in ["box", "mac"] {
        let kind = if name == "mac" {
            "hmac"
        } else {
            "aes256-gcm96"
        };
        served.done(&format!("keys/{name}"), json!({ "type": kind }));
        for _ in 0..2 {
            served.done(&format!("keys/{name}/rotate"), json!({}));
        }
    }
    let at = |version: u32| json!({ "plaintext": "eA==", "key_version": version });
    let why = served.refused("encrypt/box", at(1));
    assert!(why.contains("min_encryption_version"), "{why}");
    let set = |key: &str, to: u32| {
        let body = json!({ key: to });
        served.vault(Method::POST, "keys/box/config", body).0
    };
    assert_eq!(set("min_encryption_version", 4), 400, "above the newest");
    assert_eq!(set("min_encryption_version", 2), 200);
    let shown = served.vault(Method::GET, "keys/box", json!({})).1;
    assert_eq!(shown["data"]["min_encryption_version"], 2);
    served.refused("encrypt/box", at(1));
    served.refused("encrypt/box", at(4));
    for version in [2, 3] {
        let text = served.seal("box", at(version));
        assert!(text.starts_with(&format!("vault:v{version}:")), "{text}");
        served.opens("box", &text);
        let moved = json!({ "ciphertext": text, "key_version": 2 });
        let moved = served.done("rewrap/box", moved);
        let moved = moved["ciphertext"].as_str().expect("a text");
        assert!(moved.starts_with("vault:v2:"), "{moved}");
        served.opens("box", moved);
    }
    let head = served.seal("box", at(0));
    assert!(head.starts_with("vault:v3:"), "{head}");
    assert_eq!(
        set("min_decryption_version", 3),
        400,
        "above min_encryption_version"
    );
    assert_eq!(set("min_encryption_version", 0), 200);
    served.refused("encrypt/box", at(2));
    served.done("keys/mac/config", json!({ "min_encryption_version": 1 }));
    let made = json!({ "input": "eA==", "key_version": 1 });
    let made = served.done("hmac/mac", made);
    assert!(
        made["hmac"]
            .as_str()
            .expect("a MAC")
            .starts_with("vault:v1:")
    );
    let check = json!({ "input": "eA==", "hmac": made["hmac"] });
    assert_eq!(served.done("verify/mac", check)["valid"], true);
    served.drain();
}

#[test]
fn encrypting_makes_a_key_for_callers_who_may_make_keys() {
    let served = Served::start();
    let body = || json!({ "plaintext": "eA==" });
    let text = served.seal("fresh", body());
    served.opens("fresh", &text);
    let again = served.seal("fresh", body());
    assert!(again.starts_with("vault:v1:"), "the same key: {again}");
    let batch = json!({ "type": "chacha20-poly1305", "batch_input": [body(), body()] });
    let made = served.done("encrypt/many", batch);
    assert_eq!(made["batch_results"].as_array().expect("two").len(), 2);
    let shown = served.vault(Method::GET, "keys/many", json!({})).1;
    assert_eq!(shown["data"]["type"], "chacha20-poly1305");
    let why = served.refused(
        "encrypt/odd",
        json!({ "plaintext": "eA==", "type": "ed25519" }),
    );
    assert!(why.contains("do not encrypt"), "{why}");
    served.refused("encrypt/odd", json!({ "plaintext": "eA==", "type": "des" }));
    // Many callers at once make one key.
    let texts: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| served.seal("race", body())))
            .collect();
        all.into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    });
    for text in &texts {
        served.opens("race", text);
    }
    // Without the right to make keys it is Vault's refusal for a name without a key, and no key is made.
    let (status, answer) = served.vault_as("wrapper", Method::POST, "encrypt/none", &body());
    assert_eq!(status, 400, "{answer}");
    let (status, _) = served.vault_as("wrapper", Method::POST, "encrypt/fresh", &body());
    assert_eq!(status, 200);
    let listed = served.vault(Method::GET, "keys?list=true", json!({})).1;
    assert_eq!(listed["data"]["keys"], json!(["fresh", "many", "race"]));
    served.drain();
}

#[test]
fn a_deleted_key_is_gone_for_clients_and_comes_back_by_the_native_api() {
    let served = Served::start();
    let text = served.seal("box", json!({ "plaintext": "eA==" }));
    let (status, answer) = served.vault(Method::DELETE, "keys/box", json!({}));
    assert_eq!(status, 400, "{answer}");
    served.done("keys/box/config", json!({ "deletion_allowed": true }));
    let shown = served.vault(Method::GET, "keys/box", json!({})).1["data"].clone();
    assert_eq!(shown["deletion_allowed"], true);
    for _ in 0..2 {
        assert_eq!(served.vault(Method::DELETE, "keys/box", json!({})).0, 204);
        assert_eq!(served.vault(Method::GET, "keys/box", json!({})).0, 404);
    }
    assert_eq!(
        served.vault(Method::GET, "keys?list=true", json!({})).0,
        404
    );
    let opened = json!({ "ciphertext": text });
    served.refused("decrypt/box", opened);
    for path in ["keys/box", "encrypt/box"] {
        let why = served.refused(path, json!({ "plaintext": "eA==" }));
        assert!(why.contains("ron kms cancel ron/transit.box/"), "{why}");
    }
    let native = shown["ron_key"].as_str().expect("a name");
    let path = format!("/v1/kms/keys/{native}/destroy/cancel");
    let cancelled = served.post_as(&token("keeper"), &path, b"{}");
    assert_eq!(cancelled.status, 200);
    served.opens("box", &text);
    served.drain();
}

#[test]
fn old_versions_are_trimmed_after_the_delay_of_the_native_api() {
    let served = Served::start();
    let first = served.seal("box", json!({ "plaintext": "eA==" }));
    served.done("keys/box/rotate", json!({}));
    let trim = |to: u32| json!({ "min_available_version": to });
    let why = served.refused("keys/box/trim", trim(2));
    assert!(why.contains("min_encryption_version"), "{why}");
    served.done("keys/box/config", json!({ "min_encryption_version": 2 }));
    served.refused("keys/box/trim", trim(2));
    served.opens("box", &first);
    served.done("keys/box/config", json!({ "min_decryption_version": 2 }));
    served.refused("keys/box/trim", trim(1));
    served.refused("keys/box/trim", trim(3));
    served.refused("keys/box/trim", json!({}));
    let shown = served.done("keys/box/trim", trim(2));
    let native = shown["ron_key"].as_str().expect("a name");
    let path = format!("/v1/kms/keys/{native}");
    let doc: Value = served
        .get_as(&token("keeper"), &path)
        .json()
        .expect("a document");
    assert_eq!(doc["trim"]["below_version"], 2, "{doc}");
    served.refused("keys/box/config", json!({ "min_decryption_version": 1 }));
    served.drain();
}

#[test]
fn a_backup_is_opaque_and_restores_the_key_under_a_free_name() {
    let served = Served::start();
    let first = served.seal("box", json!({ "plaintext": "eA==" }));
    served.done("keys/box/rotate", json!({}));
    let (status, answer) = served.vault(Method::GET, "backup/box", json!({}));
    assert_eq!(status, 200, "{answer}");
    let text = answer["data"]["backup"].as_str().expect("a text");
    let body = json!({ "backup": text, "force": true });
    for path in ["restore/box", "restore"] {
        let why = served.refused(path, body.clone());
        assert!(why.contains("not overwritten"), "{path}: {why}");
    }
    assert_eq!(
        served.vault(Method::POST, "restore/copy", body.clone()).0,
        204
    );
    served.opens("copy", &first);
    let head = served.seal("copy", json!({ "plaintext": "eA==" }));
    assert!(head.starts_with("vault:v2:"), "{head}");
    served.opens("box", &head);
    served.refused("restore/other", json!({ "backup": "bm8=" }));
    served.refused("restore/other", json!({}));
    assert_eq!(served.vault(Method::GET, "backup/none", json!({})).0, 404);
    let (status, _) = served.vault_as("wrapper", Method::GET, "backup/box", &json!({}));
    assert_eq!(status, 403);
    served.drain();
}

#[test]
fn a_derived_key_has_a_key_for_each_context() {
    let served = Served::start();
    let kinds = ["aes256-gcm96", "aes128-gcm96", "chacha20-poly1305"];
    for kind in kinds {
        let shown = served.done(
            &format!("keys/{kind}"),
            json!({ "type": kind, "derived": true }),
        );
        assert_eq!(
            [&shown["derived"], &shown["kdf"]],
            [&json!(true), &json!("hkdf_sha256")]
        );
        let (one, two) = ("Y29udGV4dA==", "b3RoZXI=");
        let text = served.seal(kind, json!({ "plaintext": "eA==", "context": one }));
        let ask = |context: &str| json!({ "ciphertext": text, "context": context });
        let decrypt = format!("decrypt/{kind}");
        assert_eq!(served.done(&decrypt, ask(one))["plaintext"], "eA==");
        served.refused(&decrypt, ask(two));
        let why = served.refused(&decrypt, json!({ "ciphertext": text }));
        assert!(why.contains("missing 'context'"), "{why}");
        let why = served.refused(&format!("encrypt/{kind}"), json!({ "plaintext": "eA==" }));
        assert!(why.contains("missing 'context'"), "{why}");
        served.refused(&decrypt, ask("no base64!"));

        served.done(&format!("keys/{kind}/rotate"), json!({}));
        let moved = served.done(&format!("rewrap/{kind}"), ask(one));
        let moved = moved["ciphertext"].as_str().expect("a text");
        assert!(moved.starts_with("vault:v2:"), "{moved}");
        let opened = served.done(&decrypt, json!({ "ciphertext": moved, "context": one }));
        assert_eq!(opened["plaintext"], "eA==");

        // Each item of a batch has its own context.
        let items = json!([
            { "plaintext": "eA==", "context": one },
            { "plaintext": "eA==", "context": two },
        ]);
        let made = served.done(&format!("encrypt/{kind}"), json!({ "batch_input": items }));
        let texts = made["batch_results"].as_array().expect("results");
        let of = |n: usize, context: &str| json!({ "ciphertext": texts[n]["ciphertext"], "context": context });
        assert_eq!(served.done(&decrypt, of(1, two))["plaintext"], "eA==");
        served.refused(&decrypt, of(1, one));

        let fresh = served.done(
            &format!("datakey/plaintext/{kind}"),
            json!({ "context": two }),
        );
        let ask = json!({ "ciphertext": fresh["ciphertext"], "context": two });
        assert_eq!(served.done(&decrypt, ask)["plaintext"], fresh["plaintext"]);
        served.refused(&format!("datakey/wrapped/{kind}"), json!({}));
    }
}

#[test]
fn derivation_is_offered_where_it_is_safe() {
    let served = Served::start();
    for kind in ["ed25519", "rsa-2048", "hmac", "rsa-oaep-2048"] {
        let why = served.refused("keys/no", json!({ "type": kind, "derived": true }));
        assert!(why.contains("key derivation"), "{why}");
    }
    for ask in [
        json!({ "derived": true, "convergent_encryption": true }),
        json!({ "convergent_encryption": true }),
    ] {
        let why = served.refused("keys/no", ask);
        assert!(why.contains("convergent_encryption"), "{why}");
    }
    assert_eq!(served.vault(Method::GET, "keys/no", json!({})).0, 404);
    served.done("keys/box", json!({}));
    let of = |more: Value| {
        let mut ask = json!({ "plaintext": "eA==" });
        let more = more.as_object().expect("an object").clone();
        ask.as_object_mut().expect("an object").extend(more);
        ask
    };
    for (more, want) in [
        (json!({ "context": "eA==" }), "not derived"),
        (json!({ "nonce": "eA==" }), "convergent_encryption"),
        (
            json!({ "convergent_encryption": true }),
            "convergent_encryption",
        ),
    ] {
        let why = served.refused("encrypt/box", of(more.clone()));
        assert!(why.contains(want), "{why}");
        if more.get("context").is_none() {
            let why = served.refused("encrypt/new", of(more));
            assert!(why.contains(want), "{why}");
        }
    }
    // A context of the first use makes a derived key, as in Vault.
    served.seal("mine", of(json!({ "context": "eA==" })));
    let shown = served.vault(Method::GET, "keys/mine", json!({})).1;
    assert_eq!(shown["data"]["derived"], true);
    assert_eq!(shown["data"]["convergent_encryption"], false);
    // The native API has no context to name, and cannot use such a key by mistake.
    let key = shown["data"]["ron_key"].clone();
    let url = format!("{}/v1/kms/wrap", served.running.api_url());
    let body = json!({ "key": key, "plaintext": "eA" });
    let deadline = Deadline::within(Duration::from_secs(10));
    let call = Call::post_json(&url, serde_json::to_vec(&body).expect("json"), deadline);
    let reply = served.call(call, &token("keeper"));
    let body: Value = serde_json::from_slice(&reply.body).expect("json");
    assert_eq!((reply.status, &body["code"]), (400, &json!("unsupported")));
}

#[test]
fn a_backup_of_a_derived_key_is_one_of_a_derived_key() {
    let served = Served::start();
    served.done("keys/box", json!({ "derived": true }));
    let sealed = json!({ "plaintext": "eA==", "context": "eA==" });
    let text = served.seal("box", sealed);
    let backup = served.vault(Method::GET, "backup/box", json!({})).1;
    let restore = json!({ "backup": backup["data"]["backup"] });
    let (status, answer) = served.vault(Method::POST, "restore/copy", restore);
    assert!(status < 300, "{answer}");
    let ask = json!({ "ciphertext": text, "context": "eA==" });
    assert_eq!(served.done("decrypt/copy", ask)["plaintext"], "eA==");
    let shown = served.vault(Method::GET, "keys/copy", json!({})).1;
    assert_eq!(shown["data"]["derived"], true);
}
