//! The trail of issued tokens: administrators see what each client got, never a token, also after the issuer was killed.

use ron_tests::issuer::{Rig, claims, text};
use ron_tests::{Fleet, json, ok, until};
use serde_json::{Value, json};

fn list(fleet: &Fleet, query: &str) -> Vec<Value> {
    let admin = fleet.token("svc-passport", Some("passport:admin"));
    let url = format!("{}/v1/passport/issued{query}", fleet.api("svc-passport"));
    let page = json(&fleet.get(&url, Some(&admin)), 200);
    page["tokens"].as_array().unwrap().clone()
}

fn seconds(at: &Value) -> u64 {
    let at: ron_proto::Timestamp = at.as_str().unwrap().parse().unwrap();
    at.0 / 1000
}

/// A token of the operator for another holder, and one that is refused.
fn for_another_holder(rig: &Rig) -> String {
    rig.fleet.change_issuer_policy(|policy| {
        policy["clients"][0]["subjects"] = json!(["user:*"]);
    });
    let issuer = rig.fleet.token("svc-passport", Some("passport:issue"));
    let url = rig.url("/v1/passport/issue");
    let ask = |scope: &str| {
        let body =
            json!({"subject_ref": "user:7", "audience": "svc-wallet", "scope": scope, "ttl_s": 60});
        rig.fleet.post(&url, Some(&issuer), &body.to_string(), &[])
    };
    let mut given = ask("wallet:read");
    until("the policy allows the holder", || {
        if given.status != 200 {
            given = ask("wallet:read");
        }
        given.status == 200
    });
    assert_ne!(ask("wallet:fly").status, 200);
    text(&given, "token")
}

#[test]
fn administrators_see_which_tokens_were_issued_and_for_what() {
    let rig = Rig::start();
    let before = list(&rig.fleet, "?client=robot").len();
    let token = text(&rig.robot_token(), "access_token");
    let given = for_another_holder(&rig);

    let of_robot = list(&rig.fleet, "?client=robot");
    assert_eq!(of_robot.len(), before + 1);
    let (one, said) = (&of_robot[0], claims(&token));
    let want = json!({"jti": said["jti"], "client_id": "robot", "subject": "robot", "tenant": "default",
        "audience": "svc-wallet", "scope": "wallet:read", "issued": one["issued"], "expires": one["expires"]});
    assert_eq!(one, &want);
    assert_eq!(Some(seconds(&one["issued"])), said["iat"].as_u64());
    assert_eq!(Some(seconds(&one["expires"])), said["exp"].as_u64());

    let of_user = list(&rig.fleet, "?subject=user:7");
    assert_eq!(of_user.len(), 1);
    assert_eq!(of_user[0]["jti"], claims(&given)["jti"]);
    let all = list(&rig.fleet, "?limit=1000&audience=svc-wallet");
    let unnamed = all.iter().find(|one| one["jti"] == of_user[0]["jti"]);
    assert_eq!(unnamed.expect("it is listed")["subject"], Value::Null);
    assert_eq!(list(&rig.fleet, "?client=nobody"), [] as [Value; 0]);

    // By the command, and the id revokes the token.
    let ron = |args: &[&str]| ok(&rig.fleet.ron(&[&["token"], args].concat()));
    let said = ron(&["issued", "--client", "robot", "--limit", "1"]);
    let jti = of_robot[0]["jti"].as_str().unwrap();
    assert!(said.lines().count() == 2 && said.contains(jti), "{said}");
    let everything = ron(&["issued", "--json", "--limit", "5000"]);
    let signature = token.rsplit('.').next().unwrap();
    assert!(!everything.contains(signature), "{everything}");
    ron(&["revoke", "--jti", jti, "--reason", "test"]);
    assert_eq!(rig.verdict(&token)["reason"], "revoked");

    // Killed, not stopped.
    let dir = rig.fleet.keep_dir();
    drop(rig);
    let again = Fleet::start_in(dir);
    assert_eq!(list(&again, "?client=robot"), of_robot);
}

#[test]
fn the_trail_is_for_administrators() {
    let rig = Rig::start();
    let url = rig.url("/v1/passport/issued");
    let other = rig.fleet.token("svc-passport", Some("passport:introspect"));
    assert_eq!(rig.fleet.get(&url, Some(&other)).status, 403);
    assert_eq!(rig.fleet.get(&url, None).status, 401);
    let admin = rig.fleet.token("svc-passport", Some("passport:admin"));
    for bad in [
        "?limit=0",
        "?limit=1001",
        "?before=7",
        "?since=soon",
        "?x=1",
    ] {
        let reply = rig.fleet.get(&format!("{url}{bad}"), Some(&admin));
        assert_eq!(reply.status, 400, "{bad}");
    }
}
