//! The issuer gets another name: tokens with the former one are good until they expire, new ones have the new one, what was
//! revoked stays revoked, and no service needs another configuration.

use std::fs;
use std::sync::Arc;

use ron_tests::issuer::{Rig, claims, text};
use ron_tests::{Fleet, json, ok, ron_on};
use serde_json::{Value, json};

const NEW: &str = "https://id.example.org";

#[test]
fn a_moved_issuer_is_trusted_and_its_earlier_tokens_end_by_themselves() {
    let rig = Rig::start();
    let old_base = rig.fleet.api("svc-passport");
    let before = rig.fleet.token("svc-wallet", None);
    let revoked = text(&rig.robot_token(), "access_token");
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--token", &revoked, "--reason", "test"]));
    let former = claims(&before)["iss"].as_str().unwrap().to_owned();
    let log = |fleet: &Fleet| {
        let url = format!("{}/v1/passport/policy", fleet.api("svc-passport"));
        let note = String::from_utf8(fleet.get(&url, None).body).unwrap();
        let word = |word: &str| {
            let mut lines = note.lines();
            let found = lines.find_map(|line| line.strip_prefix(word));
            found.map(str::to_owned)
        };
        (
            note.lines().next().unwrap().to_owned(),
            word("revocations "),
            word("issuer "),
            word("was "),
        )
    };
    let first = log(&rig.fleet);
    assert_eq!(first.2.as_deref(), Some(&*former));

    let moving = ["issuer", "move", NEW];
    let out = rig.fleet.ron(&moving);
    let why = String::from_utf8(out.stderr).unwrap();
    assert!(why.contains("svc-passport is running"), "{why}");
    let dir = rig.fleet.keep_dir();
    let mut fleet = rig.fleet;
    fleet.stop();
    let config = dir.path().join("svc-passport/config.toml");
    let untouched = fs::read(&config).unwrap();
    let out = ron_on(dir.path(), &["issuer", "move", "http://id.example.org"]);
    let why = String::from_utf8(out.stderr).unwrap();
    assert!(why.contains("over plain http"), "{why}");
    let out = ron_on(dir.path(), &["issuer", "move", &former]);
    let why = String::from_utf8(out.stderr).unwrap();
    assert!(why.contains("take another name"), "{why}");
    assert_eq!(fs::read(&config).unwrap(), untouched);
    let said = ok(&ron_on(dir.path(), &moving));
    assert!(
        said.contains(&format!("name is {NEW}, and was {former}")),
        "{said}"
    );
    // Another node of the same issuer, and a command that was interrupted, find the keys that were made.
    fs::write(&config, &untouched).unwrap();
    let again = ok(&ron_on(dir.path(), &moving));
    let keys = |said: &str| -> Vec<String> {
        let lines = said
            .lines()
            .filter(|line| line.contains(" signs, in place of "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!((keys(&again), keys(&said).len()), (keys(&said), 1));
    drop(fleet);
    // The fleet of the test had another port than its configuration says.
    let moved = fs::read_to_string(&config).unwrap();
    let block = format!("[[former]]\npublic_url = \"{old_base}\"");
    fs::write(&config, moved.replace("[[former]]", &block)).unwrap();

    let rig = Rig {
        fleet: Fleet::start_in(Arc::clone(&dir)),
    };
    let after = rig.fleet.token("svc-wallet", None);
    assert_eq!(claims(&after)["iss"], NEW);
    for token in [&before, &after] {
        assert_eq!(rig.balance(token).status, 200);
        assert_eq!(rig.verdict(token)["ok"], true);
        let seen = rig.operator("/oauth2/introspect", &[("token", token)]);
        assert_eq!(json(&seen, 200)["iss"], claims(token)["iss"]);
    }
    assert_eq!(rig.balance(&revoked).status, 401);
    assert_eq!(rig.verdict(&revoked)["reason"], "revoked");
    let metadata = rig.url("/.well-known/oauth-authorization-server");
    let metadata = json(&rig.fleet.get(&metadata, None), 200);
    assert_eq!(
        (&metadata["issuer"], &metadata["token_endpoint"]),
        (&json!(NEW), &json!(format!("{NEW}/oauth2/token")))
    );
    // A client that names the former issuer in its assertion, and one that names the new one.
    for issuer in [&*former, NEW] {
        let assertion = rig.assertion(|said| said["aud"] = issuer.into());
        let ask = [
            ("grant_type", "client_credentials"),
            ("audience", "svc-wallet"),
        ];
        assert_eq!(rig.robot_with(&assertion, &ask).status, 200, "{issuer}");
    }
    // An earlier token finds its status list under the URL that it names.
    let list = |token: &str| -> (Value, Value) {
        let uri = claims(token)["status"]["status_list"]["uri"].clone();
        let path = uri
            .as_str()
            .unwrap()
            .split_once("/v1/")
            .unwrap()
            .1
            .to_owned();
        let list = rig.fleet.get(&rig.url(&format!("/v1/{path}")), None);
        let sub = claims(std::str::from_utf8(&list.body).unwrap())["sub"].clone();
        (uri, sub)
    };
    let (uri, sub) = list(&before);
    assert!(
        uri.as_str().unwrap().starts_with(&old_base) && uri == sub,
        "{uri} {sub}"
    );
    let (uri, sub) = list(&after);
    assert!(
        uri.as_str().unwrap().starts_with(NEW) && uri == sub,
        "{uri} {sub}"
    );
    // The same note key and log go on under the first name.
    let second = log(&rig.fleet);
    assert_eq!((&second.0, &second.1), (&first.0, &first.1));
    assert_eq!(second.2.as_deref(), Some(NEW));
    assert!(second.3.unwrap().starts_with(&format!("{former} ")));
    ok(&rig.fleet.ron(&["issuer", "trust"]));
    // The key of the former name signs nothing that counts, also for a thief of the issuer's credential: the KMS has it for that name.
    let key = rig.fleet.bootstrap()["issuer_key"].clone();
    let text = fs::read_to_string(&config).unwrap();
    let kept = text.split("[[former]]").nth(1).unwrap();
    assert!(kept.contains(key.as_str().unwrap()), "{text}");

    // Once the last token with the former name has expired, neither the name nor its keys count.
    let long_ago = text
        .lines()
        .map(|line| match line.strip_prefix("moved = ") {
            Some(_) => "moved = \"2026-01-01T00:00:00.000Z\"",
            None => line,
        });
    let long_ago = long_ago.collect::<Vec<_>>().join("\n");
    let mut fleet = rig.fleet;
    fleet.stop();
    fs::write(&config, long_ago).unwrap();
    drop(fleet);
    let rig = Rig {
        fleet: Fleet::start_in(dir),
    };
    assert_eq!(log(&rig.fleet).3, None);
    assert_eq!(rig.balance(&before).status, 401);
    assert_eq!(rig.balance(&after).status, 200);
    let keys = json(
        &rig.fleet.get(&rig.url("/.well-known/jwks.json"), None),
        200,
    );
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1);
}
