//! Vault's own Python client, unmodified, against the running service: it makes, rotates, signs,
//! verifies, encrypts and decrypts in batch, and everything it did is in the audit log.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_kms::{Leaf, OK};
use ron_tests::tools::fed;
use ron_tests::{Fleet, json, ok, python, workspace};
use serde_json::json;

#[test]
fn hvac_works_without_change() {
    let fleet = Fleet::start();
    // Vault's client does not support Unix sockets, and the TCP port accepts only passports.
    let token = fleet.token("ron-kms", None);
    let mut check = Command::new(python());
    check
        .arg(workspace().join("tests/interop/hvac_check.py"))
        .arg(fleet.api("ron-kms"));
    let text = ok(&fed(&mut check, token));
    assert!(text.ends_with("done\n"), "{text}");
    // The last leaves wait for a checkpoint, at most a second.
    let is = |l: &&Leaf, op: &str, result: &str| {
        l.op.as_str() == op && l.result == result && is_transit(l)
    };
    let end = Instant::now() + Duration::from_secs(20);
    let leaves = loop {
        let leaves = leaves(&fleet, &fleet.operator_token());
        let created = leaves.iter().filter(|l| is(l, "create", OK)).count();
        let verified = leaves.iter().any(|l| is(&l, "hmac_verify", "no_match"));
        if (verified && created >= 10) || Instant::now() > end {
            break leaves;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let count = |op: &str, result: &str| leaves.iter().filter(|l| is(l, op, result)).count();
    assert_eq!(count("create", OK), 10);
    assert_eq!(count("rotate", OK), 10);
    assert_eq!(count("wrap", OK), 1 + 50 + 1 + 2 + 3);
    assert_eq!(count("unwrap", OK), 50 + 2 + 2 + 1 + 4);
    assert_eq!(count("unwrap", "ciphertext_refused"), 3);
    assert_eq!(count("unwrap", "bad_request"), 1);
    assert_eq!(count("update", OK), 3);
    assert_eq!(count("destroy", OK), 2);
    assert_eq!([count("backup", OK), count("restore", OK)], [1, 1]);
    assert_eq!(count("rewrap", OK), 2);
    assert_eq!(count("datakey", OK), 3);
    assert_eq!(count("sign", OK), 5 * 22 + 1 + 3 + 1);
    assert_eq!(count("hmac", OK), 1);
    assert_eq!(count("hmac_verify", OK), 2);
    assert_eq!(count("hmac_verify", "no_match"), 1);
}

/// At another mount: the paths move, the names of routes do not, and so neither metrics nor the rights of limited tokens.
#[test]
fn hvac_works_at_another_mount() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mount = "secrets/transit";
    let fleet = Fleet::start_with(dir, &[("RON_KMS_VAULT_MOUNT", mount.into())]);
    let token = fleet.token("ron-kms", None);
    let mut check = Command::new(python());
    check
        .arg(workspace().join("tests/interop/hvac_mount.py"))
        .args([&fleet.api("ron-kms"), mount]);
    let text = ok(&fed(&mut check, token));
    assert!(text.ends_with("done\n"), "{text}");
    let limited = fleet.ron(&["token", "--audience", "ron-kms", "--caveat", "op=sign"]);
    let limited = ok(&limited);
    let url = format!("{}/v1/{mount}/encrypt/mail", fleet.api("ron-kms"));
    let reply = fleet.post(&url, Some(limited.trim()), r#"{"plaintext":"eA=="}"#, &[]);
    assert_eq!(reply.status, 403);
    let shown = fleet.get(&format!("{}/metrics", fleet.health("ron-kms")), None);
    let metrics = String::from_utf8(shown.body).unwrap();
    let route = "route=\"/v1/transit/encrypt/{name}\"";
    assert!(metrics.contains(route) && !metrics.contains(mount));
}

fn is_transit(leaf: &Leaf) -> bool {
    let purpose = leaf.purpose.as_deref();
    leaf.tenant == "default" && purpose.is_some_and(|purpose| purpose.starts_with("transit"))
}

/// All leaves of the KMS's audit log, as its entry bundles serve them.
pub fn leaves(fleet: &Fleet, token: &str) -> Vec<Leaf> {
    let url = format!("{}/audit/v1/checkpoint", fleet.api_socket("ron-kms"));
    let note = String::from_utf8(fleet.get(&url, None).body).unwrap();
    let size: u64 = note.lines().nth(1).unwrap().parse().unwrap();
    let mut leaves = Vec::new();
    for tile in 0..size.div_ceil(256) {
        let width = (size - tile * 256).min(256);
        let part = if width < 256 {
            format!(".p/{width}")
        } else {
            String::new()
        };
        let url = format!(
            "{}/audit/v1/tile/entries/{tile:03}{part}",
            fleet.api_socket("ron-kms")
        );
        let reply = fleet.get(&url, Some(token));
        assert_eq!(reply.status, 200, "{url}");
        let mut rest = reply.body.as_slice();
        while let [high, low, tail @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            leaves.push(Leaf::parse(&tail[..length]).unwrap());
            rest = &tail[length..];
        }
    }
    assert_eq!(leaves.len() as u64, size);
    leaves
}

#[test]
fn node_vault_works_without_change() {
    let fleet = Fleet::start();
    let token = fleet.token("ron-kms", None);
    let interop = workspace().join("tests/interop");
    let mut check = Command::new("node");
    check
        .current_dir(&interop)
        .arg("node_vault.mjs")
        .arg(fleet.api("ron-kms"));
    let text = ok(&fed(&mut check, token));
    assert!(text.ends_with("done\n"), "{text}");
}

/// The requests of Vault's own client and documentation, as they are on the wire: PUT, a body without a JSON content type or no body,
/// members and headers that this service does not know.
#[test]
fn requests_of_vaults_programs_are_taken_as_they_are() {
    let fleet = Fleet::start();
    let token = fleet.token("ron-kms", None);
    let base = format!("{}/v1", fleet.api("ron-kms"));
    let ask = |method: &str, path: &str, body: Option<&str>, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "20", "-w", "\n%{http_code}", "-X", method]);
        let known = [
            format!("X-Vault-Token: {token}"),
            "X-Vault-Request: true".to_owned(),
        ];
        for header in known.iter().map(String::as_str).chain(more.iter().copied()) {
            curl.args(["-H", header]);
        }
        if let Some(body) = body {
            curl.args(["-d", body]); // as a form, as curl does unless it is told otherwise
        }
        let text = ok(&curl.arg(format!("{base}/{path}")).output().unwrap());
        let (body, status) = text.rsplit_once('\n').unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        (status.parse::<u16>().unwrap(), body)
    };
    let done = |method: &str, path: &str, body: Option<&str>, more: &[&str]| {
        let (status, body) = ask(method, path, body, more);
        assert_eq!(status, 200, "{method} {path}: {body}");
        body
    };
    let refused = |method: &str, path: &str, body: Option<&str>, more: &[&str], with: u16| {
        let (status, body) = ask(method, path, body, more);
        assert_eq!(status, with, "{method} {path}: {body}");
        body["errors"][0].as_str().expect("Vault's form").to_owned()
    };
    for method in ["PUT", "POST"] {
        let name = format!("Key_{method}");
        let key = format!("transit/keys/{name}");
        done(method, &key, None, &["Content-Type:"]);
        done(method, &key, Some(r#"{"type":"aes256-gcm96"}"#), &[]);
        done(method, &format!("{key}/rotate"), None, &[]);
        let period = r#"{"auto_rotate_period":"24h0m0s"}"#;
        done(
            method,
            &format!("{key}/config"),
            Some(period),
            &["Content-Type: text/plain"],
        );
        let body = r#"{"plaintext":"eA==","surprise":[1],"nonce":""}"#;
        let made = done(method, &format!("transit/encrypt/{name}"), Some(body), &[]);
        let text = made["data"]["ciphertext"].as_str().unwrap();
        assert!(text.starts_with("vault:v2:"), "{made}");
        let body = format!("{{\"ciphertext\":\"{text}\"}}");
        let opened = done(
            method,
            &format!("transit/decrypt/{name}"),
            Some(&body),
            &["X-Vault-Namespace: default/"],
        );
        assert_eq!(opened["data"]["plaintext"], "eA==");
        let sum = done(
            method,
            "transit/hash/sha2-512",
            Some(r#"{"input":"YWJj"}"#),
            &[],
        );
        let sum = sum["data"]["sum"].as_str().unwrap();
        assert!(
            sum.starts_with("ddaf35a193617aba") && sum.len() == 128,
            "{sum}"
        );
        refused(
            method,
            "transit/hash/md5",
            Some(r#"{"input":""}"#),
            &[],
            400,
        );
        let renewed = refused(method, "auth/token/renew-self", None, &[], 400);
        assert!(renewed.contains("not renewable"), "{renewed}");
    }
    let listed = done("LIST", "transit/keys", None, &[]);
    assert_eq!(listed["data"]["keys"], json!(["Key_POST", "Key_PUT"]));
    done(
        "PUT",
        "transit/keys/signer",
        Some(r#"{"type":"ecdsa-p256"}"#),
        &[],
    );
    done("PUT", "transit/keys/signer/rotate", None, &[]);
    let exported = done("GET", "transit/export/public-key/signer/latest", None, &[]);
    let pem = exported["data"]["keys"]["2"].as_str().unwrap();
    assert!(pem.starts_with("-----BEGIN PUBLIC KEY-----"), "{exported}");
    let all = done("GET", "transit/export/public-key/signer", None, &[]);
    assert_eq!(all["data"]["keys"].as_object().unwrap().len(), 2);
    let private = refused(
        "GET",
        "transit/export/encryption-key/Key_PUT",
        None,
        &[],
        403,
    );
    assert!(private.contains("not exportable"), "{private}");
    refused("GET", "transit/export/public-key/signer/3", None, &[], 400);
    let other = refused(
        "LIST",
        "transit/keys",
        None,
        &["X-Vault-Namespace: another"],
        403,
    );
    assert!(other.contains("namespace"), "{other}");
    let body = Some(r#"{"plaintext":"eA=="}"#);
    refused(
        "PUT",
        "transit/encrypt/Key_PUT",
        body,
        &["X-Vault-Wrap-TTL: 60"],
        400,
    );
    // What the front refuses before a handler runs.
    refused(
        "PUT",
        "transit/encrypt/Key_PUT",
        body,
        &["Content-Encoding: br"],
        415,
    );
    let health = done("GET", "sys/health", None, &[]);
    assert_eq!(
        [&health["initialized"], &health["sealed"]],
        [&json!(true), &json!(false)]
    );
}

/// The protocol for clients other than hvac: the header, the form of errors, the separation of
/// tenants.
#[test]
fn errors_have_vaults_form_and_rights_hold() {
    let fleet = Fleet::start();
    let token = fleet.operator_token();
    let base = format!("{}/v1/transit", fleet.api_socket("ron-kms"));
    let post = |path: &str, body: &str, headers: &[(&str, &str)]| {
        fleet.post(&format!("{base}/{path}"), None, body, headers)
    };
    let with = [("X-Vault-Token", token.as_str())];
    json(&post("keys/box", "{}", &with), 200);
    let made = json(&post("encrypt/box", r#"{"plaintext":"eA=="}"#, &with), 200);
    let text = made["data"]["ciphertext"].as_str().unwrap();
    assert!(text.starts_with("vault:v1:"), "{made}");
    let check = |path: &str, body: &str, status: u16| {
        let error = json(&post(path, body, &with), status);
        assert!(error["errors"][0].is_string(), "{path}: {error}");
    };
    check(
        "encrypt/box",
        r#"{"plaintext":"eA==","context":"eA=="}"#,
        400,
    );
    check("encrypt/box", "{", 400);
    check("decrypt/none", r#"{"ciphertext":"vault:v1:eA=="}"#, 400);
    check("datakey/both/box", "{}", 400);
    check("hmac/box", r#"{"input":"eA=="}"#, 400);
    check("encrypt/box", r#"{"batch_input":[]}"#, 400);
    // No token, a wrong one, two of them, one on a route of the native API.
    for headers in [&[][..], &[("X-Vault-Token", "no")], &[with[0], with[0]]] {
        let reply = post("encrypt/box", r#"{"plaintext":"eA=="}"#, headers);
        let error = json(&reply, 403);
        assert!(error["errors"][0].is_string(), "as in Vault: {error}");
    }
    let native = format!("{}/v1/kms/keys", fleet.api_socket("ron-kms"));
    let reply = fleet.post(&native, None, "{}", &with);
    assert_eq!(
        reply.status, 401,
        "the header is Vault's, on Vault's routes"
    );
    // The native API sees the same key and decrypts the same bytes.
    let listed = json(&fleet.get(&native, Some(&token)), 200);
    let key = listed["keys"].as_array().unwrap().iter();
    let key = key
        .map(|k| k["key"].as_str().unwrap())
        .find(|k| k.contains("transit.box"));
    let raw = ron_proto::b64::from_std(text.strip_prefix("vault:v1:").unwrap()).unwrap();
    let whole = [&[1, 1, 0, 0, 0, 1][..], &raw].concat();
    let body = json!({"key": key.unwrap(), "ciphertext": ron_proto::b64::url(&whole)});
    let url = format!("{}/v1/kms/unwrap", fleet.api_socket("ron-kms"));
    let opened = json(&fleet.post(&url, Some(&token), &body.to_string(), &[]), 200);
    assert_eq!(opened["plaintext"], "eA");
}

/// A passport that names a key uses that key and no other, on both APIs, and is refused by services without keys.
#[test]
fn a_passport_for_one_key_uses_no_other() {
    let fleet = Fleet::start();
    let base = fleet.api_socket("ron-kms");
    let token = |caveats: &[&str]| {
        let named = caveats.iter().flat_map(|caveat| ["--caveat", caveat]);
        let args: Vec<&str> = ["token", "--audience", "ron-kms"]
            .into_iter()
            .chain(named)
            .collect();
        ok(&fleet.ron(&args)).trim().to_owned()
    };
    let post = |token: &str, path: &str, body: &str| {
        fleet.post(&format!("{base}/v1/{path}"), Some(token), body, &[])
    };
    let all = token(&[]);
    for name in ["one", "two"] {
        let kind = r#"{"type":"ed25519"}"#;
        json(&post(&all, &format!("transit/keys/{name}"), kind), 200);
    }
    let native = |name: &str| {
        let shown = fleet.get(&format!("{base}/v1/transit/keys/{name}"), Some(&all));
        json(&shown, 200)["data"]["ron_key"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let [one, two] = ["one", "two"].map(native);
    let limits = [
        vec!["key=default/transit.one".to_owned()],
        vec![format!("key={one}")],
        vec!["key=default/transit.one".to_owned(), format!("key={one}")],
    ];
    for limit in limits {
        let limit: Vec<&str> = limit.iter().map(String::as_str).collect();
        let limited = token(&limit);
        let sign = |key: &str| {
            let body = json!({"key": key, "message": "aGk"}).to_string();
            post(&limited, "kms/sign", &body).status
        };
        assert_eq!([sign(&one), sign(&two)], [200, 403], "{limit:?}");
        let input = r#"{"input":"aGk="}"#;
        let sign = |name: &str| post(&limited, &format!("transit/sign/{name}"), input).status;
        // The answer of a name without a key, which the other one is to this token.
        assert_eq!([sign("one"), sign("two")], [200, 400], "{limit:?}");
        let url = format!("{base}/v1/transit/keys?list=true");
        let listed = json(&fleet.get(&url, Some(&limited)), 200);
        assert_eq!(listed["data"]["keys"], json!(["one"]), "{limit:?}");
        let made = post(&limited, "transit/keys/three", "{}").status;
        assert_eq!(made, 403, "{limit:?}");
    }
    let none = token(&[&format!("key={one}"), &format!("key={two}")]);
    let body = json!({"key": one, "message": "aGk"}).to_string();
    assert_eq!(post(&none, "kms/sign", &body).status, 403);
    let args = [
        "token",
        "--audience",
        "svc-wallet",
        "--caveat",
        "key=default/app",
    ];
    let of_wallet = ok(&fleet.ron(&args)).trim().to_owned();
    let url = format!("{}/v1/balance", fleet.api("svc-wallet"));
    assert_eq!(fleet.get(&url, Some(&of_wallet)).status, 403);
}
