//! The revocation feed opens the leaves of the public log, so it is shown to listed services and to passports with
//! `passport:introspect` only. A service whose credential is refused goes on as with a cut feed, and says what to change.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ron_auth::service_token;
use ron_tests::consumers::{CONSUMERS, Source, passports_degraded};
use ron_tests::issuer::claims;
use ron_tests::tools::{Process, service, wait_listening};
use ron_tests::{Fleet, OwnPlace, SERVICES, json, ok, own_place, ron_on, until};
use serde_json::{Value, json};

use crate::passport_clients::reconfigure;

const FEED: &str = "/v1/passport/events";

/// Revokes by the id of a token, or by a name that no token has.
fn revoke(fleet: &Fleet, admin: &str, jti: &Value) {
    let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
    let body = json!({"jti": jti, "reason": "test"}).to_string();
    json(&fleet.post(&url, Some(admin), &body, &[]), 200);
}

#[test]
fn the_feed_is_shown_to_listed_services_and_introspecting_passports_alone() {
    let fleet = Fleet::start();
    let admin = fleet.token("svc-passport", Some("passport:admin"));
    revoke(&fleet, &admin, &json!("zqholder"));
    let (tcp, socket) = (fleet.api("svc-passport"), fleet.api_socket("svc-passport"));
    let status = |base: &str, token: Option<&str>| {
        let reply = fleet.get(&format!("{base}{FEED}"), token);
        let shown = String::from_utf8_lossy(&reply.body).contains("zqholder");
        assert_eq!(shown, reply.status == 200, "{}", reply.status);
        reply.status
    };
    for base in [&tcp, &socket] {
        assert_eq!(status(base, None), 401);
        assert_eq!(status(base, Some(&admin)), 403, "another scope");
        let issues = fleet.token("svc-passport", Some("passport:issue"));
        assert_eq!(status(base, Some(&issues)), 403);
        let elsewhere = fleet.token("svc-wallet", None);
        assert_eq!(status(base, Some(&elsewhere)), 401, "another audience");
        let introspects = fleet.token("svc-passport", Some("passport:introspect"));
        assert_eq!(status(base, Some(&introspects)), 200);
    }
    for name in SERVICES {
        let token = fleet.service_token(name, "svc-passport");
        assert_eq!(status(&socket, Some(&token)), 200, "{name}");
    }
    // A service that is listed without the scope, and one that is not listed.
    let [listed, unknown] =
        ["gateway", "nobody"].map(|name| service_token::generate(name, &[7; 32]));
    let hash = service_token::hash(&listed);
    let block =
        format!("[[auth.principals]]\nname = \"gateway\"\ntenant = \"ron\"\nsha256 = \"{hash}\"\n");
    reconfigure(&fleet, "svc-passport", |text| {
        text + &block + "scopes = [\"passport:issue\"]\n"
    });
    assert_eq!(status(&socket, Some(&listed)), 403);
    assert_eq!(status(&socket, Some(&unknown)), 401);
    reconfigure(&fleet, "svc-passport", |text| {
        text.replace("[\"passport:issue\"]\n", "[\"passport:introspect\"]\n")
    });
    assert_eq!(status(&socket, Some(&listed)), 200);
    // The log itself is public, and names nobody.
    for path in [
        "/revocations/v1/checkpoint",
        "/v1/passport/policy",
        "/.well-known/jwks.json",
    ] {
        let reply = fleet.get(&format!("{tcp}{path}"), None);
        assert_eq!(reply.status, 200, "{path}");
        assert!(!String::from_utf8_lossy(&reply.body).contains("zqholder"));
    }
}

/// A second instance of a service that has a token file of its own.
struct Follower {
    read: String,
    health: String,
    token_file: PathBuf,
    log: PathBuf,
    _process: Process,
    _data: tempfile::TempDir,
}

impl Follower {
    fn start(fleet: &Fleet, name: &str, token: &str, more: &[String]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let OwnPlace {
            api,
            health,
            mut sets,
        } = own_place(data.path(), name);
        let (token_file, log) = (data.path().join("issuer.token"), data.path().join("log"));
        write_token(&token_file, token);
        sets.push(format!("auth.token_file={}", token_file.display()));
        sets.extend_from_slice(more);
        if name == "svc-wallet" {
            sets.push(format!("ledger.url={}", fleet.api_socket("ron-ledger")));
        }
        let config = fleet.dir().join(name).join("config.toml");
        let mut command = service(name, &config, &sets);
        command.stderr(File::create(&log).unwrap());
        let process = Process::start(&mut command);
        wait_listening(("127.0.0.1", api));
        let (_, path) = CONSUMERS.iter().find(|(of, _)| *of == name).unwrap();
        Self {
            read: format!("http://127.0.0.1:{api}{path}"),
            health: format!("http://127.0.0.1:{health}"),
            token_file,
            log,
            _process: process,
            _data: data,
        }
    }

    fn status(&self, fleet: &Fleet, token: &str) -> u16 {
        fleet.get(&self.read, Some(token)).status
    }

    /// Why it is degraded by the cause `passports`; empty when it is not.
    fn degraded(&self, fleet: &Fleet) -> String {
        passports_degraded(fleet, &self.health)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

fn write_token(path: &Path, token: &str) {
    fs::write(path, format!("{token}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_follower_that_is_refused_keeps_its_revocations_and_says_what_to_do() {
    let fleet = Fleet::start();
    let admin = fleet.token("svc-passport", Some("passport:admin"));
    let source = Source::of(&fleet);
    for name in ["svc-wallet", "ron-kms"] {
        let good = fleet.service_token(name, "svc-passport");
        let wrong = service_token::generate(name, &[7; 32]);
        let [kept, first, second] = [(); 3].map(|()| source.token(&fleet, name, &[]));
        let jti = |token: &str| claims(token)["jti"].clone();

        // From its start: no revocations, so no passports, and everything else.
        let follower = Follower::start(&fleet, name, &wrong, &[]);
        let says = |what: &str| {
            until(&format!("{name} says {what}"), || {
                follower.degraded(&fleet).contains(what)
            });
        };
        says("does not accept the token of auth.token_file");
        assert_eq!(follower.status(&fleet, &kept), 503);
        assert!(
            follower.log().contains("auth_feed_denied"),
            "{}",
            follower.log()
        );
        write_token(&follower.token_file, &good);
        until("it takes passports without a restart", || {
            follower.status(&fleet, &kept) == 200
        });
        until("it is sound", || follower.degraded(&fleet).is_empty());
        revoke(&fleet, &admin, &jti(&first));
        until("it acts on it", || follower.status(&fleet, &first) == 401);

        // While it runs. The event ends the poll that began with the good token.
        write_token(&follower.token_file, &wrong);
        revoke(&fleet, &admin, &json!(format!("wakes-{name}")));
        says("status 401: the issuer does not accept the token of auth.token_file");
        revoke(&fleet, &admin, &jti(&second));
        assert_eq!(
            follower.status(&fleet, &first),
            401,
            "known revocations stay"
        );
        assert_eq!(follower.status(&fleet, &second), 200, "it cannot know");
        assert_eq!(follower.status(&fleet, &kept), 200);
        let ready = fleet.get(&format!("{}/readyz", follower.health), None);
        assert!(
            json(&ready, 200)["degraded"]
                .as_array()
                .unwrap()
                .contains(&json!("passports"))
        );
        fs::remove_file(&follower.token_file).unwrap();
        says("auth.token_file: token file");

        write_token(&follower.token_file, &good);
        until("it catches up", || follower.status(&fleet, &second) == 401);
        until("it is sound again", || follower.degraded(&fleet).is_empty());
        assert_eq!(follower.status(&fleet, &kept), 200);
    }
}

#[test]
fn the_token_is_not_sent_to_whatever_holds_the_issuers_port() {
    let fleet = Fleet::start();
    let good = fleet.service_token("ron-kms", "svc-passport");
    let keys = format!("{}/.well-known/jwks.json", fleet.api("svc-passport"));
    let plain = [format!("auth.jwks_url={keys}")];
    let follower = Follower::start(&fleet, "ron-kms", &good, &plain);
    until("it says which setting to change", || {
        let why = follower.degraded(&fleet);
        why.contains("auth.jwks_url: a service token is not sent over plain TCP")
    });
}

#[test]
fn a_data_directory_without_the_tokens_is_refused_with_what_to_add() {
    let dir = tempfile::tempdir().unwrap();
    ok(&ron_on(dir.path(), &["init"]));
    let token = dir.path().join("ron-ledger/svc-passport.token");
    let text = fs::read(&token).unwrap();
    fs::remove_file(&token).unwrap();
    for command in ["init", "up"] {
        let out = ron_on(dir.path(), &[command]);
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success(), "{said}");
        for what in [
            "ron-ledger/svc-passport.token is missing",
            "svc-passport/config.toml with the scopes passport:introspect",
        ] {
            assert!(said.contains(what), "{said}");
        }
    }
    fs::write(&token, text).unwrap();
    ok(&ron_on(dir.path(), &["init"]));
}

#[test]
fn an_issuer_that_does_not_list_the_scope_is_named_by_its_follower() {
    let fleet = Fleet::start();
    let admin = fleet.token("svc-passport", Some("passport:admin"));
    let health = fleet.health("svc-rewarder");
    assert_eq!(passports_degraded(&fleet, &health), "");
    let hash = service_token::hash(&fleet.service_token("svc-rewarder", "svc-passport"));
    let (with, without) = (
        format!("scopes = [\"passport:introspect\"]\nsha256 = \"{hash}\""),
        format!("scopes = [\"passport:issue\"]\nsha256 = \"{hash}\""),
    );
    reconfigure(&fleet, "svc-passport", |text| text.replace(&with, &without));
    revoke(&fleet, &admin, &json!("wakes"));
    until("it says which scope", || {
        let why = passports_degraded(&fleet, &health);
        why.contains("status 403") && why.contains("scope passport:introspect")
    });
    reconfigure(&fleet, "svc-passport", |text| text.replace(&without, &with));
    until("it is sound again", || {
        passports_degraded(&fleet, &health).is_empty()
    });
}
