//! The issuer policy in the hands of its administrators: read, replaced by a newer signed one and questioned over HTTP by
//! `passport:admin` alone, and applied by one command for each kind of policy.

use std::sync::Arc;

use ron_http::{Method, Reply};
use ron_tests::issuer::{Rig, bare, claims};
use ron_tests::{Fleet, json, ok, read_json, ron_on};
use serde_json::{Value, json};

const CURRENT: &str = "/v1/passport/policy/current";

fn send(rig: &Rig, method: Method, path: &str, token: Option<&str>, body: Option<&Value>) -> Reply {
    let body = body.map(ToString::to_string);
    let headers = [("Content-Type", "application/json")];
    rig.fleet
        .send(method, &rig.url(path), token, body.as_deref(), &headers)
}

fn ron(rig: &Rig, line: &str, code: i32, word: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let out = rig.fleet.ron(&words);
    let said = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
    assert!(
        out.status.code() == Some(code) && said.contains(word),
        "ron {line}: {said}"
    );
    said
}

/// A policy and its signature by the installation's policy key.
fn signed(rig: &Rig, policy: &Value) -> Value {
    let draft = rig.fleet.dir().join("draft.json");
    std::fs::write(&draft, policy.to_string()).unwrap();
    let line = format!("policy sign --kind issuer {}", draft.display());
    ron(rig, &line, 0, "signed");
    json!({"policy": policy, "signature": read_json(&rig.fleet.dir().join("draft.json.sig"))})
}

fn in_kms(rig: &Rig) -> f64 {
    let line = "ron_kms_policy_version{kind=\"issuer\"} ";
    rig.fleet.metric("ron-kms", line)
}

#[test]
fn administrators_replace_the_policy_by_a_newer_signed_one_and_by_nothing_else() {
    let rig = Rig::start();
    let admin = rig.fleet.token("svc-passport", Some("passport:admin"));
    let other = rig.fleet.token("svc-passport", Some("passport:introspect"));
    let first = json(&send(&rig, Method::GET, CURRENT, Some(&admin), None), 200);
    assert_eq!(
        (&first["version"], &first["policy"]),
        (&json!(2), &rig.policy())
    );

    // Nobody else, and nothing that is not signed, sound and newer.
    let mut next = rig.policy();
    next["version"] = 3.into();
    next["clients"][1]["max_ttl_s"] = 120.into();
    let good = signed(&rig, &next);
    let explain = "/v1/passport/policy/explain";
    let question = json!({"client_id": "robot"});
    for (token, status) in [(None, 401), (Some(&*other), 403)] {
        let ask = |method: Method, path: &str, body| send(&rig, method, path, token, body).status;
        assert_eq!(ask(Method::GET, CURRENT, None), status);
        assert_eq!(ask(Method::PUT, CURRENT, Some(&good)), status);
        assert_eq!(ask(Method::POST, explain, Some(&question)), status);
    }
    let put = |body: &Value| send(&rig, Method::PUT, CURRENT, Some(&admin), Some(body));
    let mut changed = good.clone();
    changed["policy"]["clients"][1]["max_ttl_s"] = 600.into();
    assert_eq!(json(&put(&changed), 400)["code"], "bad_request");
    let mut unsigned = good.clone();
    unsigned["signature"]["value"] = "AA".into();
    assert_eq!(put(&unsigned).status, 400);
    let mut same = rig.policy();
    same["clients"][1]["max_ttl_s"] = 60.into();
    assert_eq!(
        json(&put(&signed(&rig, &same)), 409)["code"],
        "stale_policy"
    );
    same["version"] = 1.into();
    assert_eq!(
        json(&put(&signed(&rig, &same)), 409)["code"],
        "stale_policy"
    );
    assert_eq!(rig.policy()["version"], 2, "the file is as it was");
    assert_eq!(
        put(&first_body(&first)).status,
        200,
        "the same is no change"
    );

    // The new one is in force at once: here, in the KMS and where it is read from.
    let answer = json(&put(&good), 200);
    assert_eq!((&answer["version"], in_kms(&rig)), (&json!(3), 3.0));
    let now = json(&send(&rig, Method::GET, CURRENT, Some(&admin), None), 200);
    assert_eq!(now, answer);
    assert_eq!(rig.policy(), next);
    let asked = |question: Value| {
        let reply = send(&rig, Method::POST, explain, Some(&admin), Some(&question));
        json(&reply, 200)
    };
    let yes = asked(json!({"client_id": "robot", "scope": "wallet:read"}));
    assert_eq!(
        (&yes["issued"], &yes["rule"], &yes["token"]["ttl_s"]),
        (&json!(true), &json!("clients[1].audiences[0]"), &json!(120))
    );
    for (question, error) in [
        (json!({"client_id": "nobody"}), "unauthorized_client"),
        (
            json!({"client_id": "robot", "scope": "wallet:issue"}),
            "invalid_scope",
        ),
        (
            json!({"client_id": "robot", "audience": "ron-kms"}),
            "invalid_target",
        ),
        (json!({"client_id": "robot", "ttl_s": 121}), "ttl_too_long"),
    ] {
        let no = asked(question.clone());
        assert_eq!(
            (&no["issued"], &no["error"]),
            (&json!(false), &json!(error)),
            "{question}"
        );
    }
}

fn first_body(current: &Value) -> Value {
    json!({"policy": current["policy"], "signature": current["signature"]})
}

#[test]
fn a_changed_policy_of_each_kind_is_applied_by_one_command() {
    let rig = Rig::start();
    let dir = rig.fleet.dir().to_path_buf();
    let draft = dir.join("draft.json");
    let change = |kind: &str, change: &dyn Fn(&mut Value)| {
        let mut policy: Value = read_json(&dir.join(format!("policy/{kind}.json")));
        change(&mut policy);
        std::fs::write(&draft, policy.to_string()).unwrap();
        format!("policy apply --kind {kind} {}", draft.display())
    };
    let issuer = change("issuer", &|policy| {
        policy["clients"][1]["max_ttl_s"] = 120.into();
    });
    let told = "~ clients[robot].max_ttl_s: 3600 -> 120";
    let dry = ron(&rig, &format!("{issuer} --dry-run"), 0, told);
    assert!(!dry.contains("signed") && rig.policy()["version"] == 2);
    let said = ron(&rig, &issuer, 0, told);
    for service in ["ron-kms", "svc-passport"] {
        let line = format!("version 3 is in force in {service}");
        assert!(said.contains(&line), "{said}");
    }
    assert_eq!(in_kms(&rig), 3.0);
    ron(&rig, &issuer, 0, "nothing is changed");
    let faulty = change("issuer", &|policy| {
        policy["clients"][1]["max_ttl_s"] = 9_999.into();
    });
    ron(&rig, &faulty, 1, "max_ttl_s must be");
    assert_eq!(rig.policy()["version"], 3);

    let wallet = change("wallet", &|policy| {
        let rule = policy["rules"][0].clone();
        policy["rules"].as_array_mut().unwrap().push(rule);
        policy["rules"][1]["principal"] = "shop".into();
    });
    let said = ron(&rig, &wallet, 0, "is in force in svc-wallet");
    assert!(said.contains("+ rules[shop]"), "{said}");
    let reward = change("reward", &|policy| policy["version"] = 9.into());
    ron(&rig, &reward, 0, "nothing is changed");
    let reward = change("reward", &|policy| policy["min_payout_minor"] = "7".into());
    ron(&rig, &reward, 0, "version 2 is in force in svc-rewarder");
    let other = change("reward", &|policy| policy["id"] = "other".into());
    ron(&rig, &other, 1, "beside it");
}

#[test]
fn an_issuer_with_a_public_name_is_made_by_init_and_says_that_name_everywhere() {
    const NAME: &str = "https://id.example.org";
    let dir = Arc::new(tempfile::tempdir().unwrap());
    ok(&ron_on(dir.path(), &["init", "--issuer", NAME]));
    let again = ron_on(
        dir.path(),
        &["init", "--issuer", "https://other.example.org"],
    );
    assert_eq!(again.status.code(), Some(1));
    let fleet = Fleet::start_in(dir);
    let token = fleet.token("svc-wallet", None);
    assert_eq!(claims(&token)["iss"], NAME);
    let rig = Rig { fleet };
    assert_ne!(rig.balance(&token).status, 401, "the services accept it");
    let metadata = rig.url("/.well-known/oauth-authorization-server");
    let metadata = json(&rig.fleet.get(&metadata, None), 200);
    assert_eq!(metadata["issuer"], NAME);
    for (name, path) in [
        ("token_endpoint", "/oauth2/token"),
        ("jwks_uri", "/.well-known/jwks.json"),
        ("introspection_endpoint", "/oauth2/introspect"),
        ("revocation_endpoint", "/oauth2/revoke"),
    ] {
        assert_eq!(metadata[name], format!("{NAME}{path}"));
    }
    // Clients behind the proxy and commands on this host prove their keys by their own URL.
    let key = rig.fleet.dir().join("holder.key");
    let key = key.to_str().unwrap();
    bare(&["token", "key", key]);
    let bound = ok(&rig
        .fleet
        .ron(&["token", "--audience", "svc-wallet", "--key", key]));
    assert!(claims(bound.trim())["cnf"]["jkt"].is_string());
}
