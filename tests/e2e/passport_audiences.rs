//! Services outside of the installation: the signed policy names them with their scopes, a client of
//! theirs gets tokens for them and for nothing else, and they verify with ordinary libraries.

use std::process::Command;

use ron_http::Reply;
use ron_tests::issuer::{Rig, claims, text, version_in_force};
use ron_tests::tools::fed;
use ron_tests::{Fleet, json, ok, python, ron_binary, until, workspace};
use serde_json::{Value, json};

const ORDERS: &str = "https://orders.example.org/api";

/// The first policy of the rig with two services of others; robot gets `orders:read` at one of them.
fn with_orders(first: &Value, version: u64) -> Value {
    let mut policy = first.clone();
    policy["version"] = version.into();
    policy["audiences"] = json!([
        {"audience": ORDERS, "scopes": ["orders:read", "orders:write"], "max_ttl_s": 120, "caveats": ["region=eu"]},
        {"audience": "reports", "scopes": ["read"]}]);
    policy["clients"][1]["audiences"] = json!([
        {"audience": "svc-wallet", "scopes": ["wallet:read"]},
        {"audience": ORDERS, "scopes": ["orders:read"]}]);
    let operator = policy["clients"][0]["audiences"].as_array_mut().unwrap();
    operator.push(json!({"audience": ORDERS, "scopes": ["orders:read", "orders:write"]}));
    operator.push(json!({"audience": "reports", "scopes": ["read"]}));
    policy
}

/// A token request of robot.
fn robot(rig: &Rig, more: &[(&str, &str)]) -> Reply {
    let fields = [&[("grant_type", "client_credentials")], more].concat();
    rig.robot_with(&rig.assertion(|_| {}), &fields)
}

fn operator(rig: &Rig, more: &[(&str, &str)]) -> Reply {
    let fields = [&[("grant_type", "client_credentials")], more].concat();
    rig.operator("/oauth2/token", &fields)
}

/// The statuses of both services of others, one per token; they must agree.
fn foreign(fleet: &Fleet, audience: &str, scope: &str, tokens: &[&str]) -> Vec<u16> {
    let asked = json!({"base": fleet.api("svc-passport"), "audience": audience, "scope": scope, "tokens": tokens});
    let interop = workspace().join("tests/interop");
    assert!(
        interop.join("node_modules").exists(),
        "run scripts/setup.sh"
    );
    let answers = |program: &str, script: &str| -> Vec<u16> {
        let mut command = Command::new(program);
        let said = ok(&fed(command.arg(interop.join(script)), asked.to_string()));
        said.lines().map(|line| line.parse().unwrap()).collect()
    };
    let python = answers(python().to_str().unwrap(), "foreign.py");
    assert_eq!(answers("node", "foreign.mjs"), python);
    python
}

#[test]
fn services_of_others_verify_tokens_for_the_audiences_and_scopes_of_the_policy() {
    let rig = Rig::start();
    let first = rig.policy();
    let refused = |reply: Reply, error: &str| assert_eq!(json(&reply, 400)["error"], error);
    // Before the policy names it, nobody gets a token for it.
    let orders = ("audience", ORDERS);
    refused(robot(&rig, &[orders]), "invalid_target");
    rig.put_in_force(&with_orders(&first, 3));

    let read = text(&robot(&rig, &[orders]), "access_token");
    let said = claims(&read);
    assert_eq!(
        (&said["aud"], &said["scope"]),
        (&json!(ORDERS), &json!("orders:read"))
    );
    let (iat, exp) = (said["iat"].as_u64().unwrap(), said["exp"].as_u64().unwrap());
    assert_eq!(exp - iat, 120, "the audience's maximum");
    assert_eq!(
        said["authorization_details"],
        json!([{"type": "ron", "region": "eu"}])
    );
    let asked = [
        ("resource", ORDERS),
        ("scope", "orders:write"),
        ("ttl_s", "60"),
    ];
    let write = text(&operator(&rig, &asked), "access_token");
    let reports = text(&operator(&rig, &[("audience", "reports")]), "access_token");
    let wallet = text(&rig.robot_token(), "access_token");

    refused(
        robot(&rig, &[orders, ("scope", "orders:write")]),
        "invalid_scope",
    );
    refused(
        robot(&rig, &[orders, ("scope", "orders:drop")]),
        "invalid_scope",
    );
    refused(
        robot(&rig, &[orders, ("scope", "wallet:read")]),
        "invalid_scope",
    );
    refused(robot(&rig, &[orders, ("ttl_s", "121")]), "invalid_request");
    refused(robot(&rig, &[("audience", "reports")]), "invalid_target");
    refused(robot(&rig, &[("audience", "nobody")]), "invalid_target");

    let forged = rig.ask_to_sign("at+jwt", |said| said["aud"] = ORDERS.into());
    assert_eq!(json(&forged.1, 403)["code"], "payload_refused");
    let (input, _) = read.rsplit_once('.').unwrap();
    let (_, signature) = write.rsplit_once('.').unwrap();
    let mixed = format!("{input}.{signature}");
    let tokens = [&*read, &write, &reports, &wallet, &mixed];
    assert_eq!(
        foreign(&rig.fleet, ORDERS, "orders:read", &tokens),
        [200, 403, 401, 401, 401]
    );
    assert_eq!(
        foreign(&rig.fleet, ORDERS, "orders:write", &tokens),
        [403, 200, 401, 401, 401]
    );
    assert_eq!(
        foreign(&rig.fleet, "reports", "read", &tokens),
        [401, 401, 200, 401, 401]
    );
    // Ours do not take tokens for others, and the issuer tells others what it knows of theirs.
    assert_eq!(rig.balance(&read).status, 401);
    assert_ne!(rig.balance(&wallet).status, 401);
    let seen = json(
        &rig.operator("/oauth2/introspect", &[("token", &read)]),
        200,
    );
    assert_eq!(
        (&seen["active"], &seen["scope"]),
        (&json!(true), &json!("orders:read"))
    );

    // The exchange keeps to the audience's terms too.
    let exchange = [
        ("grant_type", ron_tests::issuer::EXCHANGE),
        ("subject_token", &*read),
        ("subject_token_type", ron_tests::issuer::ACCESS),
    ];
    let narrower = rig.robot_with(&rig.assertion(|_| {}), &exchange);
    let narrower = text(&narrower, "access_token");
    assert_eq!(claims(&narrower)["aud"], ORDERS);
    assert_eq!(
        foreign(&rig.fleet, ORDERS, "orders:read", &[&narrower]),
        [200]
    );

    // Without its entry the rule of the client is a fault, which is neither signed nor adopted.
    let mut faulty = with_orders(&first, 4);
    faulty["audiences"].as_array_mut().unwrap().remove(0);
    let draft = rig.fleet.dir().join("draft.json");
    std::fs::write(&draft, faulty.to_string()).unwrap();
    let out = rig.fleet.ron(&[
        "policy",
        "sign",
        "--kind",
        "issuer",
        draft.to_str().unwrap(),
    ]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    for client in ["operator", "robot"] {
        let fault = format!("client {client}, audience {ORDERS}: the policy has no such audience");
        assert!(said.contains(&fault), "{said}");
    }
    assert_eq!(
        robot(&rig, &[orders]).status,
        200,
        "the last good policy stays"
    );

    // Once the policy no longer names it, no token for it is issued or signed.
    let mut without = with_orders(&first, 5);
    without["audiences"] = json!([]);
    for rule in without["clients"].as_array_mut().unwrap() {
        let ours = |one: &Value| one["audience"] != ORDERS && one["audience"] != "reports";
        rule["audiences"].as_array_mut().unwrap().retain(ours);
    }
    rig.put_in_force(&without);
    refused(robot(&rig, &[orders]), "invalid_target");
    let metadata = rig.url("/.well-known/oauth-authorization-server");
    let scopes = json(&rig.fleet.get(&metadata, None), 200)["scopes_supported"].clone();
    let scopes = scopes.as_array().unwrap();
    assert!(scopes.contains(&json!("wallet:read")) && !scopes.contains(&json!("orders:read")));
}

/// `ron` with these words, separated by single spaces; the place of the audience is marked by `@`.
fn ron(fleet: &Fleet, line: &str) -> (Option<i32>, String) {
    let words: Vec<String> = line
        .split(' ')
        .map(|word| word.replace('@', ORDERS))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // A check needs no data directory.
    let out = match words[..2] {
        ["policy", "check"] => Command::new(ron_binary()).args(&words).output().unwrap(),
        _ => fleet.ron(&words),
    };
    let [said, why] = [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap());
    (out.status.code(), said + &why)
}

#[test]
fn a_service_of_others_and_its_client_are_one_command_each() {
    let fleet = Fleet::start();
    let does = |line: &str, word: &str| {
        let (code, said) = ron(&fleet, line);
        assert!(
            code == Some(0) && said.contains(word),
            "ron {line}: {code:?} {said}"
        );
        said
    };
    let refuses = |line: &str, word: &str| {
        let (code, said) = ron(&fleet, line);
        assert!(
            code == Some(1) && said.contains(word),
            "ron {line}: {code:?} {said}"
        );
    };
    refuses(
        "client add shop --audience @ --scope orders:read --secret",
        "no such audience",
    );
    assert!(
        !fleet.dir().join("clients/shop.json").exists(),
        "nothing is left behind"
    );
    does(
        "audience add @ --scope orders:read --scope orders:write --max-ttl 10m",
        "version 2 is in force",
    );
    does(
        "client add shop --audience @ --scope orders:read --secret",
        "version 3 is in force",
    );
    let token = does("token --client shop --audience @", ".");
    assert_eq!(
        foreign(&fleet, ORDERS, "orders:read", &[token.trim()]),
        [200]
    );
    assert_eq!(
        foreign(&fleet, ORDERS, "orders:write", &[token.trim()]),
        [403]
    );
    does("client list", &format!("shop  by 1 secret  {ORDERS}"));
    does("client show shop", "\"orders:read\"");
    does(
        "audience list",
        &format!("{ORDERS}  clients: 1  orders:read orders:write"),
    );
    does("audience show @", "client shop: orders:read");
    does("policy show", "\"version\": 3");

    // A key instead of a secret, and a second audience.
    let key = fleet.dir().join("robot.jwk.json");
    let x = ron_proto::b64::url(&ron_tests::issuer::robot().public());
    std::fs::write(
        &key,
        json!({"kty": "OKP", "crv": "Ed25519", "x": x}).to_string(),
    )
    .unwrap();
    let key = key.display();
    does(
        &format!("client add robot --audience svc-wallet --scope wallet:read --key {key}"),
        "in force",
    );
    does(
        "client add robot --audience @ --scope orders:write",
        "another audience",
    );
    let rig = Rig { fleet };
    assert_eq!(rig.robot_token().status, 200);
    let orders = robot(&rig, &[("audience", ORDERS)]);
    assert_eq!(text(&orders, "scope"), "orders:write");
    let fleet = rig.fleet;
    let does = |line: &str, word: &str| {
        let (code, said) = ron(&fleet, line);
        assert!(
            code == Some(0) && said.contains(word),
            "ron {line}: {code:?} {said}"
        );
    };
    let refuses = |line: &str, word: &str| {
        let (code, said) = ron(&fleet, line);
        assert!(
            code == Some(1) && said.contains(word),
            "ron {line}: {code:?} {said}"
        );
    };

    // What would be refused is refused here, with the reason of the service.
    does(
        "policy explain --client shop --audience @",
        "yes: the token would be issued",
    );
    does(
        "policy explain --client shop --audience @",
        "clients[1].audiences[0] of version 5",
    );
    does(
        "policy explain --client robot --audience @ --ttl 5m --caveat region=eu",
        "caveat     region=eu",
    );
    refuses(
        "policy explain --client shop --audience @ --scope orders:write",
        "no token: invalid_scope",
    );
    refuses(
        "policy explain --client shop --audience svc-wallet",
        "no token: invalid_target",
    );
    refuses(
        "policy explain --client shop --audience @ --ttl 11m",
        "ttl_s may be at most 600",
    );
    refuses(
        "policy explain --client shop --audience @ --subject user:1",
        "name that subject",
    );
    refuses(
        "policy explain --client nobody --audience @",
        "no token: unauthorized_client",
    );
    refuses("audience add @ --scope x", "already");
    refuses("audience add svc-wallet --scope x", "of this installation");
    refuses("audience add reports --scope a,b", "is no scope");
    refuses("audience add reports --scope a --max-ttl 2h", "max_ttl_s");
    refuses(
        "client add shop --audience @ --scope orders:read --secret",
        "already",
    );
    refuses(
        "client add shop --audience @ --scope orders:read",
        "two rules for audience",
    );
    refuses(
        "client add new --audience @ --scope orders:read",
        "--secret, --key FILE or --cert FILE",
    );
    refuses(
        "client add new --audience @ --scope orders:drop --secret",
        "it has no scope orders:drop",
    );
    refuses(
        "client add new --audience @ --secret",
        "orders:read orders:write",
    );
    refuses("audience remove @", "clients have rules");
    refuses("client remove nobody", "no client nobody");
    let draft = fleet.dir().join("draft.json");
    std::fs::write(&draft, r#"{"version":9,"clients":[],"colour":"red"}"#).unwrap();
    let draft = draft.display();
    refuses(
        &format!("policy check --kind issuer {draft}"),
        "unknown field",
    );
    let sound = fleet.dir().join("policy/issuer.json");
    does(
        &format!("policy check --kind issuer {}", sound.display()),
        "a sound issuer policy",
    );
    assert_eq!(
        version_in_force(&fleet),
        5.0,
        "no refused command has changed anything"
    );

    does(
        "client remove robot --audience svc-wallet",
        "no more tokens for svc-wallet",
    );
    does("client remove robot", "is removed");
    does("client remove shop", "version 8 is in force");
    assert!(!fleet.dir().join("clients/shop.json").exists());
    does("audience remove @", "version 9 is in force");
    let config = std::fs::read_to_string(fleet.dir().join("svc-passport/config.toml")).unwrap();
    assert!(
        !config.contains("shop") && config.contains("id = \"operator\""),
        "{config}"
    );
    does("token --audience svc-wallet", ".");
    let rig = Rig { fleet };
    assert_eq!(robot(&rig, &[("audience", ORDERS)]).status, 401);
}

#[test]
fn a_rotated_secret_works_and_the_old_one_ends_with_its_overlap() {
    let rig = Rig {
        fleet: Fleet::start(),
    };
    let fleet = &rig.fleet;
    let run = |line: &str, code: i32, word: &str| {
        let (got, said) = ron(fleet, line);
        assert!(
            got == Some(code) && said.contains(word),
            "ron {line}: {got:?} {said}"
        );
    };
    let secret = || {
        let file = ron_tests::read_json(&fleet.dir().join("clients/operator.json"));
        file["client_secret"].as_str().unwrap().to_owned()
    };
    let status = |secret: &str| {
        let fields = [
            ("grant_type", "client_credentials"),
            ("client_id", "operator"),
            ("client_secret", secret),
            ("audience", "svc-wallet"),
        ];
        rig.form("/oauth2/token", &fields, &[]).status
    };
    let first = secret();
    run(
        "client rotate-secret operator",
        0,
        "in force; the old secret ends at",
    );
    let second = secret();
    assert_eq!([status(&first), status(&second)], [200, 200]);
    // Of the two before it the older one ends.
    run("client rotate-secret operator --overlap 2s", 0, "in force");
    let third = secret();
    assert_eq!([status(&first), status(&third)], [401, 200]);
    until("the overlap ends", || status(&second) == 401);
    run("client rotate-secret operator --overlap 0s", 0, "has ended");
    let last = secret();
    assert_eq!([status(&third), status(&last)], [401, 200]);
    run("client rotate-secret nobody", 1, "no client nobody");
    run(
        "client rotate-secret operator --overlap soon",
        1,
        "--overlap",
    );
    let jwk = fleet.dir().join("robot.jwk.json");
    let x = ron_proto::b64::url(&ron_tests::issuer::robot().public());
    std::fs::write(
        &jwk,
        json!({"kty": "OKP", "crv": "Ed25519", "x": x}).to_string(),
    )
    .unwrap();
    let add = "client add robot --audience svc-wallet --scope wallet:read --key";
    run(&format!("{add} {}", jwk.display()), 0, "in force");
    run(
        "client rotate-secret robot",
        1,
        "robot proves itself by 1 key",
    );
    assert_eq!(status(&last), 200);
}
