//! `ron console`: a browser is signed in by a code, and its session ends when it should.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_http::{Method, Reply};
use ron_tests::issuer::claims;
use ron_tests::tools::{Desktop, Process};
use ron_tests::{Fleet, json, ok, ron_binary, until, workspace};
use serde_json::{Value, json};

const OWN: (&str, &str) = ("X-Ron-Console", "1");

/// A fleet whose console is for holders of passports, with these settings.
fn start(settings: &[(&str, &str)]) -> Fleet {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mode = [("AUTH_MODE", "passport"), ("READ_ONLY", "false")];
    let all = mode.iter().chain(settings);
    let env: Vec<(String, PathBuf)> = all
        .map(|(key, value)| (format!("SVC_ADMIN_{key}"), value.into()))
        .collect();
    let env: Vec<(&str, PathBuf)> = env.iter().map(|(k, v)| (&**k, v.clone())).collect();
    Fleet::start_with(dir, &env)
}

/// The address that the command prints.
fn address(fleet: &Fleet) -> String {
    let said = ok(&fleet.ron(&["console", "--no-browser"]));
    said.trim().to_owned()
}

#[test]
fn the_code_of_a_session_is_in_no_argument_of_the_browser() {
    let fleet = start(&[]);
    let desktop = Desktop::new();
    let mut command = Command::new(ron_binary());
    command.args(["console", "--data-dir"]).arg(fleet.dir());
    let address = ok(&desktop.on(&mut command).output().unwrap());
    let (_, code) = address.trim().split_once("#code=").expect("a code");
    let (arguments, page) = desktop.opened();
    assert!(!arguments.contains(code), "{arguments}");
    assert!(page.contains(code), "{page}");
}

#[test]
fn the_scope_of_a_session_is_that_of_the_login() {
    let fleet = start(&[]);
    let token = fleet.token("svc-admin", Some("admin:view"));
    let issuer = claims(&token)["iss"].as_str().unwrap().to_owned();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("ron-login");
    std::fs::create_dir(&dir).unwrap();
    let login = dir.join(format!("{}@svc-admin.token", ron_client::encode(&issuer)));
    std::fs::write(&login, token).unwrap();
    std::fs::set_permissions(&login, std::fs::Permissions::from_mode(0o600)).unwrap();
    let console = |more: &[&str]| {
        let mut command = Command::new(ron_binary());
        command.args(["console", "--no-browser", "--data-dir"]);
        command.arg(fleet.dir()).args(more);
        let out = command.env("XDG_STATE_HOME", home.path()).output();
        out.unwrap()
    };
    ok(&console(&["--scope", "admin:view"]));
    let all = ["--scope", "admin:view admin:operate"];
    let refused = console(&all);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{why}");
    assert!(
        why.contains("ron login --audience svc-admin --scope \"admin:view admin:operate\""),
        "{why}"
    );
    ok(&console(&[&all[..], &["--client", "operator"]].concat()));
}

struct Browser<'a> {
    fleet: &'a Fleet,
    cookie: String,
}

impl<'a> Browser<'a> {
    /// Opens a session as the page does; with its whole cookie.
    fn open(fleet: &'a Fleet, body: &Value, more: &[(&str, &str)]) -> (Self, String) {
        let headers = [&[OWN], more].concat();
        let reply = Self::send(
            fleet,
            Method::POST,
            "/api/session",
            &body.to_string(),
            &headers,
        );
        assert_eq!(reply.status, 200, "{}", code(&reply));
        let set = reply.header("set-cookie").unwrap().to_owned();
        let cookie = set.split(';').next().unwrap().to_owned();
        (Self { fleet, cookie }, set)
    }

    fn by_code(fleet: &'a Fleet) -> Self {
        let address = address(fleet);
        let (_, code) = address.split_once("/#code=").unwrap();
        Self::open(fleet, &json!({"code": code}), &[]).0
    }

    fn send(
        fleet: &Fleet,
        method: Method,
        path: &str,
        body: &str,
        headers: &[(&str, &str)],
    ) -> Reply {
        let url = format!("{}{path}", fleet.api("svc-admin"));
        let body = Some(body).filter(|body| !body.is_empty());
        fleet.send(method, &url, None, body, headers)
    }

    fn get(&self, path: &str, more: &[(&str, &str)]) -> Reply {
        let headers = [&[("Cookie", &*self.cookie)], more].concat();
        Self::send(self.fleet, Method::GET, path, "", &headers)
    }

    fn post(&self, path: &str, body: &str, more: &[(&str, &str)]) -> Reply {
        let headers = [&[("Cookie", &*self.cookie)], more].concat();
        Self::send(self.fleet, Method::POST, path, body, &headers)
    }
}

fn code(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
    format!("{} {}", reply.status, body["code"].as_str().unwrap_or("-"))
}

#[test]
fn ron_console_signs_one_browser_in_until_the_passport_is_revoked() {
    let fleet = start(&[]);
    let address = address(&fleet);
    assert!(address.starts_with(&fleet.api("svc-admin")), "{address}");
    let mut command = Command::new("node");
    command.arg(workspace().join("tests/browser/signin.mjs"));
    let browser = command.arg(address).stdout(Stdio::piped()).spawn();
    let mut browser = Process(browser.expect("installed by scripts/setup.sh"));
    let mut lines = BufReader::new(browser.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "signed in");
    let revoke = ["token", "revoke", "--subject", "operator"];
    ok(&fleet.ron(&[&revoke[..], &["--reason", "test"]].concat()));
    assert_eq!(lines.next().unwrap().unwrap(), "ended");
    assert!(browser.wait().unwrap().success());
}

#[test]
fn a_session_is_a_random_id_that_other_sites_cannot_use() {
    let fleet = start(&[]);
    let token = fleet.token("svc-admin", None);
    let (plain, set) = Browser::open(&fleet, &json!({"token": token}), &[]);
    assert!(
        set.starts_with("ron_admin=") && set.contains("; HttpOnly; SameSite=Strict; Max-Age=43200"),
        "{set}"
    );
    assert!(
        !set.contains(&token[..20]) && !set.contains("Secure"),
        "{set}"
    );
    let over_tls = [("Origin", "https://localhost")];
    let (secure, set) = Browser::open(&fleet, &json!({"token": token}), &over_tls);
    assert!(
        set.starts_with("__Host-ron_admin=")
            && set.contains("; Path=/; HttpOnly; Secure; SameSite=Strict"),
        "{set}"
    );
    assert_ne!(
        plain.cookie.split('=').nth(1),
        secure.cookie.split('=').nth(1)
    );
    for browser in [&plain, &secure] {
        assert_eq!(
            json(&browser.get("/api/me", &[]), 200)["subject"],
            "operator"
        );
    }
    // What changes something needs the page's own header and origin beside the cookie.
    let refresh = |more: &[(&str, &str)]| code(&plain.post("/api/nodes/ron-kms/refresh", "", more));
    assert_eq!(refresh(&[OWN]), "202 -");
    assert_eq!(refresh(&[]), "403 cross_site");
    assert_eq!(
        refresh(&[OWN, ("Sec-Fetch-Site", "cross-site")]),
        "403 cross_site"
    );
    assert_eq!(
        refresh(&[OWN, ("Origin", "https://evil.example")]),
        "403 cross_site"
    );
    // A session makes no codes, and a code is none of another's.
    assert_eq!(
        code(&plain.post("/api/session/code", "", &[OWN])),
        "401 unauthorized"
    );
    let guess = json!({"code": "A".repeat(43)}).to_string();
    for body in [
        &*guess,
        "{}",
        &json!({"code": "x", "token": token}).to_string(),
    ] {
        let reply = plain.post("/api/session", body, &[OWN]);
        assert!(
            [400, 401].contains(&reply.status),
            "{body}: {}",
            code(&reply)
        );
    }
    let counted = r#"svc_admin_auth_failures_total{reason="code"}"#;
    assert_eq!(fleet.metric("svc-admin", counted), 1.0);
    // The end of one session is not that of another.
    let headers = [OWN, ("Cookie", &plain.cookie)];
    let gone = Browser::send(&fleet, Method::DELETE, "/api/session", "", &headers);
    assert_eq!(gone.status, 204);
    assert!(gone.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(plain.get("/api/me", &[]).status, 401);
    assert_eq!(secure.get("/api/me", &[]).status, 200);
    // A browser has one session: a new one takes the place of that in its cookie.
    let (again, _) = Browser::open(
        &fleet,
        &json!({"token": token}),
        &[("Cookie", &secure.cookie)],
    );
    assert_eq!(secure.get("/api/me", &[]).status, 401);
    assert_eq!(again.get("/api/me", &[]).status, 200);
    let key = fleet.dir().join("holder.key").display().to_string();
    ron_tests::issuer::bare(&["token", "key", &key]);
    let bound = fleet.ron(&["token", "--audience", "svc-admin", "--key", &key]);
    let body = json!({"token": ok(&bound).trim()}).to_string();
    assert_eq!(
        plain.post("/api/session", &body, &[OWN]).status,
        401,
        "bound"
    );
}

#[test]
fn a_session_that_nobody_uses_ends_and_one_in_use_ends_too() {
    let fleet = start(&[("SESSION_IDLE", "6s"), ("SESSION_LONGEST", "16s")]);
    // Before the sessions are opened: none may end earlier than its limit says, and opening takes a while.
    let since = Instant::now();
    let (left, used) = (Browser::by_code(&fleet), Browser::by_code(&fleet));
    // The page goes on polling, and says that nobody is there.
    until("the unused session ends", || {
        assert!(
            since.elapsed() > Duration::from_secs(16) || used.get("/api/me", &[]).status == 200
        );
        left.get("/api/me", &[("X-Ron-Idle", "1")]).status == 401
    });
    assert!(since.elapsed() >= Duration::from_millis(5500));
    until("every session ends", || {
        used.get("/api/me", &[]).status == 401
    });
    assert!(since.elapsed() >= Duration::from_millis(15_500));
}

#[test]
fn an_action_needs_a_passport_that_was_issued_just_now() {
    let fleet = start(&[
        ("ACTIONS_ENABLE_RELOAD", "true"),
        ("SESSION_ACTION_AGE", "10s"),
    ]);
    let act = |token: &str| {
        let (browser, _) = Browser::open(&fleet, &json!({"token": token}), &[]);
        let body = json!({"confirm": "ron-kms"}).to_string();
        let by_cookie = browser.post("/api/nodes/ron-kms/reload", &body, &[OWN]);
        let bearer = format!("Bearer {token}");
        let headers = [OWN, ("Authorization", &*bearer)];
        let path = "/api/nodes/ron-kms/reload";
        let by_token = Browser::send(&fleet, Method::POST, path, &body, &headers);
        (code(&by_cookie), code(&by_token))
    };
    let old = fleet.token("svc-admin", None);
    std::thread::sleep(Duration::from_secs(12));
    let refused = "403 sign_in_again".to_owned();
    assert_eq!(act(&old), (refused.clone(), refused.clone()));
    let (by_cookie, by_token) = act(&fleet.token("svc-admin", None));
    assert!(
        by_cookie != refused && by_token != refused,
        "{by_cookie} {by_token}"
    );
}
