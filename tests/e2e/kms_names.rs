//! Aliases and tags: from the command line, and in caveats on both APIs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use ron_http::Method;
use ron_tests::{Fleet, json, ok};
use serde_json::{Value, json};

/// The test of a token: what it may sign, on both APIs.
#[test]
fn a_passport_for_an_alias_signs_with_its_key_and_nothing_else() {
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
    let call = |method: Method, token: &str, path: &str, body: &Value| {
        let (url, body) = (format!("{base}/v1/{path}"), body.to_string());
        fleet.send(method, &url, Some(token), Some(&body), &[])
    };
    let post = |token: &str, path: &str, body: &Value| call(Method::POST, token, path, body);
    let all = fleet.token(
        "ron-kms",
        Some("kms:admin kms:create kms:sign kms:verify kms:wrap kms:read"),
    );
    let [one, two] = ["one", "two"].map(|name| {
        let made = post(
            &all,
            &format!("transit/keys/{name}"),
            &json!({"type": "ed25519"}),
        );
        let shown = json(&made, 200);
        shown["data"]["ron_key"]
            .as_str()
            .expect("a name")
            .to_owned()
    });
    let set = json!({"key": one});
    json(&call(Method::PUT, &all, "kms/aliases/app", &set), 200);

    let limited = token(&["key=alias/app", "op=sign"]);
    let native = |key: &str| {
        let reply = post(&limited, "kms/sign", &json!({"key": key, "message": "aGk"}));
        let key = (reply.status == 200).then(|| json(&reply, 200)["key"].clone());
        (
            reply.status,
            key.and_then(|key| Some(key.as_str()?.to_owned())),
        )
    };
    let vault = |name: &str| {
        let path = format!("transit/sign/{name}");
        post(&limited, &path, &json!({"input": "aGk="})).status
    };
    let signs = |key: &String| (200, Some(key.clone()));
    assert_eq!(native("alias/app"), signs(&one));
    assert_eq!(native(&one), signs(&one));
    assert_eq!(native(&two), (403, None));
    assert_eq!([vault("app"), vault("one"), vault("two")], [200, 200, 400]);
    // So does the command line, which cannot look the alias up with this token.
    let file = fleet.dir().join("limited.token");
    std::fs::write(&file, &limited).expect("writes");
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("a mode");
    let file = file.to_str().expect("UTF-8");
    let sign = |key: &str| {
        let sign = ["kms", "sign", key, "--message", "hi", "--token-file", file];
        fleet.ron(&sign).status.success()
    };
    assert_eq!([sign("alias/app"), sign(&two)], [true, false]);
    // Other operations are refused, also those that change no key.
    let body = json!({"key": "alias/app", "message": "aGk", "signatures": []});
    assert_eq!(post(&limited, "kms/verify", &body).status, 403);
    assert_eq!(
        post(&limited, "kms/keys/alias/app/rotate", &json!({})).status,
        403
    );
    let listed = fleet.get(&format!("{base}/v1/kms/keys"), Some(&limited));
    assert_eq!(listed.status, 403);
    // Vault has one route for signatures and MACs, which are two operations.
    json(
        &post(&all, "transit/keys/mac", &json!({"type": "hmac"})),
        200,
    );
    let made = json(
        &post(&all, "transit/hmac/mac", &json!({"input": "aGk="})),
        200,
    );
    let mac = json!({"input": "aGk=", "hmac": made["data"]["hmac"]});
    let verified = |op: &str| post(&token(&[op]), "transit/verify/mac", &mac).status;
    assert_eq!(["op=verify", "op=hmac_verify"].map(verified), [403, 200]);

    // The alias is moved: the same token signs with the other key, and no longer with the first.
    let moved = json!({"key": two, "from": one});
    json(&call(Method::PUT, &all, "kms/aliases/app", &moved), 200);
    assert_eq!(native("alias/app"), signs(&two));
    assert_eq!(native(&one), (403, None));
    assert_eq!([vault("app"), vault("one"), vault("two")], [200, 400, 200]);
    // Other services cannot judge it.
    let of_wallet = ok(&fleet.ron(&["token", "--audience", "svc-wallet", "--caveat", "op=sign"]));
    let url = format!("{}/v1/balance", fleet.api("svc-wallet"));
    assert_eq!(fleet.get(&url, Some(of_wallet.trim())).status, 403);
}

#[test]
fn keys_are_named_tagged_and_found_from_the_command_line() {
    let fleet = Fleet::start();
    let kms = |args: &[&str]| ok(&fleet.ron(&[&["kms"], args].concat())).trim().to_owned();
    let [one, two] = [(); 2].map(|()| kms(&["create", "--purpose", "app", "--alg", "ed25519"]));
    kms(&["alias", "set", "app", &one]);
    let signature = kms(&["sign", "alias/app", "--message", "invoice"]);
    kms(&[
        "verify",
        &one,
        "--message",
        "invoice",
        "--signature",
        &signature,
    ]);
    kms(&["alias", "move", "app", &two]);
    assert_eq!(kms(&["alias", "list"]), format!("app  {two}"));
    kms(&["rotate", "alias/app"]);
    let update = [
        "update",
        "alias/app",
        "--tag",
        "team=web",
        "--description",
        "invoices",
    ];
    kms(&update);
    let shown: Value = serde_json::from_str(&kms(&["get", "alias/app", "--json"])).expect("json");
    assert_eq!(shown["key"], two.as_str());
    assert_eq!(shown["head"], 2.0);
    assert_eq!(shown["tags"], json!({"team": "web"}));
    assert_eq!(shown["description"], "invoices");
    let tagged = kms(&["list", "--tag", "team=web"]);
    assert!(
        tagged.starts_with(&two) && tagged.lines().count() == 1,
        "{tagged}"
    );
    assert_eq!(kms(&["list", "--tag", "team=ops"]), "");
    assert!(kms(&["list", "--alias", "app"]).starts_with(&two));
    kms(&["update", &two, "--untag", "team"]);
    assert_eq!(kms(&["list", "--tag", "team"]), "");
    kms(&["alias", "delete", "app"]);
    assert_eq!(kms(&["alias", "list"]), "");
}

#[test]
fn policies_grants_and_approvals_from_the_command_line() {
    let fleet = Fleet::start();
    let kms = |args: &[&str]| fleet.ron(&[&["kms"], args].concat());
    let done = |args: &[&str]| ok(&kms(args)).trim().to_owned();
    let refused = |args: &[&str], code: &str| {
        let output = kms(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(code),
            "{args:?}: {text}"
        );
    };
    let file = |name: &str| {
        let path = fleet.dir().join(name);
        path.to_str().expect("a path").to_owned()
    };
    let key = done(&["create", "--purpose", "app", "--alg", "ed25519"]);
    done(&["alias", "set", "app", &key]);
    let enrolled: Vec<Value> = [
        ("alice", "ED25519", None),
        ("bob", "EC", Some("ec_paramgen_curve:P-256")),
    ]
    .into_iter()
    .map(|(name, algorithm, option)| {
        let path = file(&format!("{name}.pem"));
        let mut openssl = std::process::Command::new("openssl");
        openssl.args(["genpkey", "-algorithm", algorithm, "-out", &path]);
        openssl.args(option.into_iter().flat_map(|option| ["-pkeyopt", option]));
        ok(&openssl.output().expect("openssl runs"));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("a mode");
        let entry = done(&["approvals", "enroll", "--name", name, "--key-file", &path]);
        serde_json::from_str(&entry).expect("an entry")
    })
    .collect();
    // A copy under another purpose, which signs what the key signs.
    let backup = file("key.backup");
    done(&["backup", "alias/app", "--out", &backup]);
    let copy = done(&["restore", &backup, "--purpose", "copy"]);
    assert!(copy.contains("/copy/ed25519/"), "{copy}");
    let pem = |key: &str| done(&["get", key, "--public", "pem"]);
    assert_eq!(pem(&copy), pem(&key));
    // Without a token of PKCS#11 there is nothing to adopt.
    let adopt = [
        "adopt",
        "--purpose",
        "app",
        "--alg",
        "ed25519",
        "--label",
        "x",
    ];
    refused(&adopt, "unsupported");
    let policy = json!({
        "allow": [{"ops": ["sign", "policy", "grant", "destroy", "export"]}],
        "deny": [{"ops": ["sign"], "when": {"context": ["forbidden"]}}],
        "approvals": {"needed": 2, "ops": ["destroy", "export"], "within": "1h", "approvers": enrolled}
    });
    let path = file("policy.json");
    std::fs::write(&path, policy.to_string()).expect("written");
    done(&["policy", "check", &path]);
    done(&["policy", "set", "alias/app", &path]);
    let stored: Value = serde_json::from_str(&done(&["policy", "get", "alias/app"])).expect("json");
    assert_eq!(
        stored["approvals"]["approvers"],
        policy["approvals"]["approvers"]
    );
    let explain = [
        "policy",
        "explain",
        "alias/app",
        "--principal",
        "web",
        "--op",
        "sign",
    ];
    assert!(done(&explain).starts_with("allow[0]"));
    refused(
        &[&explain[..], &["--context", "forbidden"]].concat(),
        "not allowed",
    );
    done(&["sign", "alias/app", "--message", "m"]);
    refused(
        &[
            "sign",
            "alias/app",
            "--message",
            "m",
            "--context",
            "forbidden",
        ],
        "key_policy_denied",
    );
    refused(&["rotate", "alias/app"], "key_policy_denied");

    let grant = done(&[
        "grant",
        "make",
        "alias/app",
        "--to",
        "job",
        "--op",
        "sign",
        "--lifetime",
        "8h",
    ]);
    assert!(done(&["grant", "list", "alias/app"]).starts_with(&grant));
    done(&["grant", "retire", "alias/app", &grant]);
    assert_eq!(done(&["grant", "list", "alias/app"]), "");

    refused(&["destroy", "alias/app"], "approval_missing");
    let backup = ["backup", "alias/app", "--out", &backup];
    refused(&backup, "approval_missing");
    let asked = done(&[&backup[..], &["--ask-approval"]].concat());
    assert!(done(&["approvals", "list", "alias/app"]).contains(&asked));
    let approve = |id: &str, name: &str| {
        let pem = file(&format!("{name}.pem"));
        done(&[
            "approve",
            "alias/app",
            id,
            "--approver",
            name,
            "--key-file",
            &pem,
        ]);
    };
    approve(&asked, "alice");
    let approved = [&backup[..], &["--op-id", &asked]].concat();
    refused(&approved, "approval_missing");
    approve(&asked, "bob");
    done(&approved);
    refused(
        &["policy", "set", "alias/app", "--none"],
        "approval_missing",
    );
    let id = done(&["destroy", "alias/app", "--ask-approval"]);
    approve(&id, "alice");
    refused(
        &["destroy", "alias/app", "--op-id", &id],
        "approval_missing",
    );
    let waits = done(&["approvals", "list", "alias/app"]);
    assert!(
        waits.contains(&id) && waits.contains("1 of 2 approvals: alice"),
        "{waits}"
    );
    approve(&id, "bob");
    let destroyed = done(&["destroy", "alias/app", "--op-id", &id]);
    assert!(destroyed.contains("pending_destruction"), "{destroyed}");
}
