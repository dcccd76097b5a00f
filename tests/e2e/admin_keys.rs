//! The keys of the fleet on the console, as far as its token for the key service goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_proto::admin::{KeyOverview, KeySource};
use ron_tests::{Fleet, json, ok};
use serde_json::{Value, json};

fn keys(fleet: &Fleet) -> KeyOverview {
    let url = format!("{}/api/keys", fleet.api("svc-admin"));
    serde_json::from_value(json(&fleet.get(&url, None), 200)).unwrap()
}

/// What the console has read of every node with keys. A node that was too slow to answer is read again half a minute later.
fn read(fleet: &Fleet) -> KeyOverview {
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        let all = keys(fleet);
        let answered = |source: &KeySource| {
            let problem = source.problem.as_deref();
            problem.is_none_or(|why| why.starts_with("answered "))
        };
        if all.sources.len() == 2 && all.sources.iter().all(answered) {
            return all;
        }
        assert!(Instant::now() < end, "not read: {:?}", all.sources);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn problem<'k>(keys: &'k KeyOverview, node: &str) -> Option<&'k str> {
    let source = keys.sources.iter().find(|source| source.node == node);
    source.unwrap().problem.as_deref()
}

/// A key of the installation whose destruction waits for an approver.
fn waiting_key(fleet: &Fleet) -> String {
    let done = |args: &[&str]| ok(&fleet.ron(&[&["kms"], args].concat())).trim().to_owned();
    let file = |name: &str| fleet.dir().join(name).to_str().unwrap().to_owned();
    let key = done(&[
        "create",
        "--purpose",
        "app",
        "--alg",
        "ed25519",
        "--rotate-every",
        "30d",
    ]);
    let pem = file("ann.pem");
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["genpkey", "-algorithm", "ED25519", "-out", &pem]);
    ok(&openssl.output().unwrap());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&pem, mode).unwrap();
    let entry = done(&["approvals", "enroll", "--name", "ann", "--key-file", &pem]);
    let approver: Value = serde_json::from_str(&entry).unwrap();
    let policy = json!({
        "allow": [{"ops": ["sign", "policy", "destroy"]}],
        "approvals": {"needed": 1, "ops": ["destroy"], "within": "1h", "approvers": [approver]}
    });
    std::fs::write(file("policy.json"), policy.to_string()).unwrap();
    done(&["policy", "set", &key, &file("policy.json")]);
    done(&["destroy", &key, "--ask-approval"]);
    key
}

#[test]
fn the_console_shows_keys_with_what_is_due_and_only_with_the_right_to_read_them() {
    let mut fleet = Fleet::start();
    let key = waiting_key(&fleet);
    let dir = fleet.keep_dir();
    fleet.stop();
    let mut fleet = Fleet::start_in(dir.clone());
    let all = read(&fleet);
    assert_eq!(problem(&all, "ron-kms"), None);
    let ours = all.keys.iter().find(|one| one.key == key).unwrap();
    assert_eq!((ours.state.as_str(), ours.version), ("active", Some(1)));
    assert!(ours.next_rotation.is_some(), "{ours:?}");
    for purpose in ["ron/issuer/", "ron/note/", "ron/manifest/"] {
        let mut keys = all.keys.iter();
        assert!(keys.any(|one| one.key.starts_with(purpose)), "{purpose}");
    }
    let [approval] = &all.approvals[..] else {
        panic!("{:?}", all.approvals);
    };
    assert_eq!(
        (&approval.key, approval.op.as_str(), approval.needed),
        (&key, "destroy", 1)
    );
    let [issuer] = &all.issuers[..] else {
        panic!("{:?}", all.issuers);
    };
    let set = format!("{}/.well-known/jwks.json", fleet.api("svc-passport"));
    let set = json(&fleet.get(&set, None), 200);
    let kid = set["keys"][0]["kid"].as_str().unwrap();
    assert!(issuer.keys.iter().any(|key| key.kid == kid), "{issuer:?}");
    fleet.stop();
    drop(fleet);

    let config = dir.path().join("ron-kms/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let scopes = r#"scopes = ["kms:read", "admin:operate"]"#;
    assert_eq!(text.matches(scopes).count(), 1, "the console's alone");
    let less = text.replace(scopes, r#"scopes = ["admin:operate"]"#);
    std::fs::write(&config, less).unwrap();
    let fleet = Fleet::start_in(Arc::clone(&dir));
    let all = read(&fleet);
    let why = problem(&all, "ron-kms").unwrap();
    assert!(why.contains("403") && why.contains("kms:read"), "{why}");
    assert!(all.keys.is_empty() && all.approvals.is_empty(), "{all:?}");
    assert_eq!(
        problem(&all, "svc-passport"),
        None,
        "the issuer's are public"
    );
}
