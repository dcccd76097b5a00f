//! Clients at the issuer when they are wrong, many, or unsure: secrets and their rotation, floods
//! of wrong ones, proofs made for another place, the log lines of refusals, and readiness while the
//! KMS signs nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ron_auth::{client_secret, service_token};
use ron_crypto::sign::Ed25519Key;
use ron_http::Method;
use ron_proto::b64;
use ron_tests::issuer::{Rig, bare, claims, now_s, text};
use ron_tests::tools::{Process, service, signal, wait_listening};
use ron_tests::{Fleet, OwnPlace, json, ok, own_place, read_json, ron_binary, until};
use serde_json::{Value, json};

const ASK: [(&str, &str); 2] = [
    ("grant_type", "client_credentials"),
    ("audience", "svc-wallet"),
];

fn basic(id: &str, secret: &str) -> String {
    format!("Basic {}", b64::std(format!("{id}:{secret}").as_bytes()))
}

/// The status of a request written by hand, in a form that no client library sends.
fn raw(url: &str, method: &str, headers: &[(&str, &str)], body: &str) -> u16 {
    let (host, path) = url
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let headers: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let headers = headers.concat();
    let length = body.len();
    let request = format!(
        "{method} /{path} HTTP/1.1\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(host).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Changes a service's configuration; returns when the service has it in force.
pub fn reconfigure(fleet: &Fleet, service: &str, change: impl FnOnce(String) -> String) {
    let path = fleet.dir().join(service).join("config.toml");
    let before = std::fs::read_to_string(&path).unwrap();
    let after = change(before.clone());
    assert_ne!(before, after);
    std::fs::write(&path, after).unwrap();
    let prefix = service.replace('-', "_");
    let line = format!("{prefix}_config_reloads_total{{result=\"ok\"}} ");
    let reloads = || fleet.metric(service, &line);
    let before = reloads();
    signal(fleet.pid(), "-HUP");
    until("the configuration is read again", || reloads() > before);
}

#[test]
fn a_secret_is_generated_kept_as_a_hash_and_rotated_without_a_gap() {
    let rig = Rig::start();
    let dir = rig.fleet.dir();
    let config = dir.join("svc-passport/config.toml");
    let kept = std::fs::read_to_string(&config).unwrap();
    let operator = read_json(&dir.join("clients/operator.json"));
    let secret = operator["client_secret"].as_str().unwrap();
    assert_eq!(client_secret::parse(secret), Some("operator"));
    assert!(kept.contains(&service_token::hash(secret)) && !kept.contains(secret));

    let made = |name: &str, more: &[&str]| -> (PathBuf, String, String) {
        let out = dir.join(format!("{name}.json"));
        let args = [
            "client",
            "secret",
            "operator",
            "--out",
            out.to_str().unwrap(),
        ];
        let line = bare(&[&args[..], more].concat());
        let hash = line.split('"').nth(1).unwrap().to_owned();
        let file = read_json(&out);
        let secret = file["client_secret"].as_str().unwrap().to_owned();
        assert_eq!(file["client_id"], "operator");
        (out, hash, secret)
    };
    let (file, second_hash, second) = made("second", &[]);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let again = Command::new(ron_binary())
        .args(["client", "secret", "operator", "--out"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(!again.status.success(), "a secret is not written over");
    let (_, ended_hash, ended) = made("ended", &["--expires", "2026-01-01T00:00:00Z"]);
    assert!(
        ended_hash.ends_with("@2026-01-01T00:00:00.000Z"),
        "{ended_hash}"
    );

    let status = |secret: &str| {
        let header = basic("operator", secret);
        let reply = rig.form("/oauth2/token", &ASK, &[("Authorization", &header)]);
        let said: Value = serde_json::from_slice(&reply.body).unwrap();
        let why = said["error_description"].as_str().unwrap_or_default();
        (reply.status, why.to_owned())
    };
    assert_eq!((status(secret).0, status(&second).0), (200, 401));
    let first_hash = service_token::hash(secret);
    let list = |hashes: &[&str]| format!("secret_sha256 = {}", json!(hashes));
    let change = |from: &[&str], into: &[&str]| {
        let (from, into) = (list(from), list(into));
        reconfigure(&rig.fleet, "svc-passport", |text| {
            assert!(text.contains(&from), "{text}");
            text.replace(&from, &into)
        });
    };
    let both = [first_hash.as_str(), &second_hash];
    change(&[&first_hash], &both);
    assert_eq!((status(secret).0, status(&second).0), (200, 200));
    change(&both, &[&second_hash, &ended_hash]);
    assert_eq!((status(secret).0, status(&second).0), (401, 200));
    let (code, why) = status(&ended);
    assert!(code == 401 && why.contains("expired"), "{code} {why}");
    // A secret chosen by a person is never accepted, even with its hash in the configuration.
    let chosen = service_token::hash("correct horse battery staple");
    change(&[&second_hash, &ended_hash], &[&second_hash, &chosen]);
    let (code, why) = status("correct horse battery staple");
    assert!(code == 401 && why.contains("ron_cs_"), "{code} {why}");
}

#[test]
fn a_used_assertion_stays_used_over_a_reload_and_after_the_issuer_was_killed() {
    let mut rig = Rig::start();
    // Valid long enough for a restart on a busy machine, and for the issuer at whatever port.
    let issuer = rig.fleet.bootstrap()["issuer"].clone();
    let made = |rig: &Rig| {
        rig.assertion(|said| {
            said["aud"] = issuer.clone();
            said["exp"] = (now_s() + 590).into();
        })
    };
    let (used, before_the_kill, unused) = (made(&rig), made(&rig), made(&rig));
    let refused = |rig: &Rig, assertion: &str, when: &str| {
        let said = json(&rig.robot_with(assertion, &ASK), 401);
        let why = said["error_description"].as_str().unwrap_or_default();
        assert!(why.contains("used"), "{when}: {said}");
    };
    assert_eq!(rig.robot_with(&used, &ASK).status, 200);
    refused(&rig, &used, "at once");
    let other = b64::url(&Ed25519Key::from_seed(&[43; 32]).public());
    let other = format!(
        "\n[[clients]]\nid = \"other\"\njwks = '{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{other}\"}}'\n"
    );
    reconfigure(&rig.fleet, "svc-passport", |text| text + &other);
    refused(&rig, &used, "after a reload");
    assert_eq!(rig.robot_token().status, 200);
    // Killed as soon as the answer is there: the use is durable before it is answered.
    assert_eq!(rig.robot_with(&before_the_kill, &ASK).status, 200);
    rig.fleet.kill();
    let dir = rig.fleet.keep_dir();
    rig.fleet = Fleet::start_in(dir);
    refused(&rig, &used, "after a restart");
    refused(&rig, &before_the_kill, "used just before the end");
    assert_eq!(rig.robot_with(&unused, &ASK).status, 200, "only uses count");
    refused(&rig, &unused, "after its use");
}

#[test]
fn wrong_secrets_lock_no_client_out() {
    let rig = Rig::start();
    let enough = AtomicBool::new(false);
    let statuses = std::thread::scope(|scope| {
        for n in 0..4u8 {
            let (rig, enough) = (&rig, &enough);
            scope.spawn(move || {
                let wrong = client_secret::generate("operator", &[n; 32]);
                let header = basic("operator", &wrong);
                while !enough.load(Ordering::Relaxed) {
                    let reply = rig.form("/oauth2/token", &ASK, &[("Authorization", &header)]);
                    assert_eq!(json(&reply, 401)["error"], "invalid_client");
                }
            });
        }
        let right = rig.basic();
        let ask = |_| {
            rig.form("/oauth2/token", &ASK, &[("Authorization", &right)])
                .status
        };
        let statuses: Vec<u16> = (0..40).map(ask).collect();
        enough.store(true, Ordering::Relaxed);
        statuses
    });
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[test]
fn a_proof_for_another_url_is_refused() {
    let rig = Rig::start();
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("key").display().to_string();
    bare(&["token", "key", &key]);
    let bound = ["token", "--audience", "svc-wallet", "--key", &key];
    let bound = ok(&rig.fleet.ron(&bound));
    let bound = bound.trim();
    let proof = |url: &str, method: &str, token: &str| {
        let args = ["--key", &key, "--method", method, "--url", url];
        let proof = bare(&[&["token", "proof", token], &args[..]].concat());
        proof.trim().to_owned()
    };
    let url = rig.balance_url();
    let path = url.splitn(4, '/').nth(3).unwrap();
    let own = url
        .strip_prefix("http://")
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    let port = own.rsplit(':').next().unwrap();
    let asked = |made_for: &str, host: &str| {
        let proof = proof(&format!("{made_for}/{path}"), "GET", bound);
        let credential = format!("DPoP {bound}");
        let headers = [
            ("Host", host),
            ("Authorization", &credential),
            ("DPoP", &proof),
        ];
        raw(&url, "GET", &headers, "")
    };
    assert_eq!(asked("https://staging.example", "staging.example"), 401);
    assert_eq!(asked("http://staging.example", "staging.example"), 401);
    assert_eq!(asked(&format!("http://{own}"), own), 200);
    let by_name = format!("localhost:{port}");
    assert_eq!(asked(&format!("http://{by_name}"), &by_name), 200);
    assert_eq!(asked(&format!("http://{own}"), "whatever.example"), 200);

    // At the issuer a proof carries no hash of a token; it is refused all the same.
    let issuer = rig.url("/oauth2/token");
    let own = issuer
        .strip_prefix("http://")
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    let asked = |made_for: &str, host: &str| {
        let proof = proof(&format!("{made_for}/oauth2/token"), "POST", "any");
        let basic = rig.basic();
        let headers = [
            ("Host", host),
            ("Authorization", &*basic),
            ("DPoP", &proof),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ];
        let form = "grant_type=client_credentials&audience=svc-wallet";
        raw(&issuer, "POST", &headers, form)
    };
    assert_eq!(asked("https://staging.example", "staging.example"), 400);
    assert_eq!(asked(&format!("http://{own}"), own), 200);
}

#[test]
fn proofs_count_at_every_service_and_at_its_health_port() {
    let mut fleet = Fleet::start();
    let config = fleet.dir().join("svc-admin/config.toml");
    let console = std::fs::read_to_string(&config).unwrap();
    let console = console.replacen("[auth]\n", "[auth]\nmode = \"passport\"\n", 1);
    std::fs::write(&config, console).unwrap();
    assert_eq!(fleet.stop(), Some(0));
    let fleet = Fleet::start_in(fleet.keep_dir());
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("key").display().to_string();
    bare(&["token", "key", &key]);
    for (service, method, path) in [
        ("ron-kms", Method::GET, "/v1/kms/keys"),
        ("svc-passport", Method::POST, "/v1/passport/issue"),
        ("ron-ledger", Method::GET, "/v1/ledger/events?after=0"),
        ("svc-wallet", Method::GET, "/v1/balance?account=a&asset=ron"),
        ("svc-rewarder", Method::GET, "/rewarder/epochs"),
        ("svc-admin", Method::GET, "/api/nodes"),
        ("svc-admin", Method::POST, "/api/v1/reload"),
    ] {
        let health = path.starts_with("/api/v1/");
        // Actions are accepted at the health port's socket; a proof names the port all the same.
        let (base, asked) = if health {
            (fleet.health(service), fleet.health_socket(service))
        } else {
            (fleet.api(service), fleet.api(service))
        };
        let (made_for, url) = (format!("{base}{path}"), format!("{asked}{path}"));
        let bound = ok(&fleet.ron(&["token", "--audience", service, "--key", &key]));
        let word = method.as_str();
        let sent = |url: &str, made_for: &str| {
            let args = ["--key", &key, "--method", word, "--url", made_for];
            let proof = bare(&[&["token", "proof", bound.trim()], &args[..]].concat());
            let credential = format!("DPoP {}", bound.trim());
            let headers = [("Authorization", &*credential), ("DPoP", proof.trim())];
            let body = (method == Method::POST).then_some("{}");
            let reply = fleet.send(method, url, None, body, &headers);
            (
                reply.status,
                String::from_utf8_lossy(&reply.body).into_owned(),
            )
        };
        let (status, said) = sent(&url, &made_for);
        assert_ne!(status, 401, "{url}: {said}");
        let elsewhere = made_for.replacen(&base, "http://elsewhere.example", 1);
        let (status, said) = sent(&url, &elsewhere);
        assert!(
            status == 401 && said.contains("proof_place"),
            "{url}: {said}"
        );
    }
}

/// svc-passport alone, with its log in a file and without the services it does not need.
struct Alone {
    _process: Process,
    api: String,
    health: String,
    log: PathBuf,
}

impl Alone {
    fn beside(fleet: &Fleet, dir: &Path) -> Self {
        let OwnPlace {
            api,
            health,
            mut sets,
        } = own_place(dir, "svc-passport");
        // However fast the machine refuses.
        sets.push("limits.auth_failures_per_second=0".to_owned());
        let [api, health] = [api, health].map(|port| format!("127.0.0.1:{port}"));
        let log = dir.join("log");
        let config = fleet.dir().join("svc-passport/config.toml");
        let file = std::fs::File::create(&log).unwrap();
        let mut command = service("svc-passport", &config, &sets);
        let alone = Self {
            _process: Process::start(command.stderr(file)),
            api: format!("http://{api}"),
            health: format!("http://{health}"),
            log,
        };
        wait_listening(&api);
        until("svc-passport is ready", || {
            fleet.get(&format!("{}/readyz", alone.health), None).status == 200
        });
        alone
    }

    fn token(&self, fleet: &Fleet, header: &str) -> u16 {
        let url = format!("{}/oauth2/token", self.api);
        let headers = [
            ("Authorization", header),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ];
        let form = "grant_type=client_credentials&audience=svc-wallet";
        let reply = fleet.send(Method::POST, &url, None, Some(form), &headers);
        reply.status
    }

    fn lines(&self, event: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines
            .filter(|line: &Value| line["event"] == event)
            .collect()
    }

    fn metric(&self, fleet: &Fleet, line: &str) -> Option<String> {
        ron_tests::metric(&fleet.http, &self.health, line)
    }
}

#[test]
fn a_refusal_leaves_a_trace_and_a_flood_of_them_no_flood_of_lines() {
    const WRONG: u64 = 300;
    let fleet = Fleet::start();
    let dir = tempfile::tempdir().unwrap();
    let alone = Alone::beside(&fleet, dir.path());
    let wrong = client_secret::generate("operator", &[7; 32]);
    let unlisted = client_secret::generate("mallory-was-here", &[7; 32]);
    for _ in 0..WRONG {
        assert_eq!(alone.token(&fleet, &basic("operator", &wrong)), 401);
        assert_eq!(
            alone.token(&fleet, &basic("mallory-was-here", &unlisted)),
            401
        );
    }
    let forged = service_token::generate("svc-wallet", &[7; 32]);
    let socket = dir.path().join("sockets/svc-passport-api.sock");
    let issue = format!("unix:{}:/v1/passport/issue", socket.display());
    assert_eq!(fleet.post(&issue, Some(&forged), "{}", &[]).status, 401);
    let told = |reason: &str| -> u64 {
        let lines = alone.lines("auth_refused").into_iter();
        let of = lines.filter(|line| line["reason"] == reason);
        of.map(|line| line["count"].as_u64().unwrap()).sum()
    };
    // The next refusal flushes the refusals counted so far.
    until("all refusals are in the log", || {
        assert_eq!(alone.token(&fleet, "Basic ?"), 401);
        told("client_secret") == WRONG && told("client_unknown") == WRONG
    });
    assert_eq!(told("service_token"), 1);
    let lines = alone.lines("auth_refused");
    let of = |reason: &str| {
        lines
            .iter()
            .filter(|l| l["reason"] == reason)
            .collect::<Vec<_>>()
    };
    assert!(of("client_secret").len() as u64 * 2 < WRONG, "{lines:?}");
    for line in of("client_secret") {
        assert_eq!(
            (&line["client"], &line["peer"]),
            (&json!("operator"), &json!("127.0.0.1"))
        );
        assert!(
            line["request_id"].is_string() && line["level"] == "info",
            "{line}"
        );
    }
    assert!(
        of("client_unknown")
            .iter()
            .all(|line| line["client"].is_null())
    );
    let all = std::fs::read_to_string(&alone.log).unwrap();
    for secret in ["mallory", "ron_cs_", &forged] {
        assert!(!all.contains(secret), "{secret} is in the log");
    }
    assert_eq!(
        alone.lines("auth_refusals_flood").len(),
        1,
        "one warning a minute"
    );
    let count = |line: &str| -> u64 {
        let value = alone.metric(&fleet, &format!("svc_passport_{line}"));
        value.map_or(0, |value| value.parse().unwrap())
    };
    assert_eq!(
        count("auth_failures_total{reason=\"client_secret\"}"),
        WRONG
    );
    assert!(count("rejects_total{reason=\"unauthorized\"}") >= 2 * WRONG);

    // Issued tokens are recorded too.
    let file = read_json(&fleet.dir().join("clients/operator.json"));
    let good = basic("operator", file["client_secret"].as_str().unwrap());
    assert_eq!(alone.token(&fleet, &good), 200);
    until("the issue is in the log", || {
        alone.lines("token_issued").len() == 1
    });
    let line = alone.lines("token_issued").remove(0);
    assert_eq!(
        (&line["client"], &line["audience"]),
        (&json!("operator"), &json!("svc-wallet"))
    );
    assert!(line["jti"].as_str().unwrap().contains('.'), "{line}");
    let all = std::fs::read_to_string(&alone.log).unwrap();
    assert!(!all.contains("eyJ"), "a token is in the log");
}

#[test]
fn a_denied_transfer_is_counted_by_its_reason() {
    let fleet = Fleet::start();
    let mine = [
        "token",
        "--audience",
        "svc-wallet",
        "--caveat",
        "account=acct:mine",
    ];
    let narrow = ok(&fleet.ron(&mine));
    let wide = fleet.token("svc-wallet", None);
    let url = format!("{}/v1/transfer", fleet.api("svc-wallet"));
    let transfer = |token: &str, amount: &str, key: &str| {
        let body = json!({"from": "acct:bob", "to": "acct:mallory", "asset": "ron", "amount_minor": amount, "nonce": 1});
        let reply = fleet.post(
            &url,
            Some(token),
            &body.to_string(),
            &[("Idempotency-Key", key)],
        );
        assert_eq!(
            reply.status,
            403,
            "{}",
            String::from_utf8_lossy(&reply.body)
        );
    };
    let counted = |reason: &str| {
        let line = format!("svc_wallet_auth_failures_total{{reason=\"{reason}\"}}");
        fleet.metric("svc-wallet", &line)
    };
    assert_eq!((counted("caveat"), counted("wallet_limits")), (0.0, 0.0));
    transfer(narrow.trim(), "1", "denied-1");
    transfer(&wide, &u128::MAX.to_string(), "denied-2");
    assert_eq!((counted("caveat"), counted("wallet_limits")), (1.0, 1.0));
}

#[test]
fn an_issuer_that_gets_no_signature_is_not_ready_until_it_gets_one() {
    let rig = Rig::start();
    let readyz = || {
        let url = format!("{}/readyz", rig.fleet.health("svc-passport"));
        let reply = rig.fleet.get(&url, None);
        (
            reply.status,
            serde_json::from_slice::<Value>(&reply.body).unwrap(),
        )
    };
    assert_eq!(readyz().0, 200);
    // The KMS still shows its keys, and signs nothing for this caller.
    let (may, may_not) = (
        "scopes = [\"kms:sign\", \"kms:read\"]",
        "scopes = [\"kms:read\"]",
    );
    reconfigure(&rig.fleet, "ron-kms", |text| text.replacen(may, may_not, 1));
    let refused = json(&rig.operator("/oauth2/token", &ASK), 500);
    assert_eq!(refused["error"], "server_error");
    let said = refused["error_description"].as_str().unwrap();
    assert!(said.contains("ron kms show"), "{said}");
    let (status, body) = readyz();
    assert_eq!(
        (status, &body["missing"]),
        (503, &json!(["issue"])),
        "{body}"
    );
    let url = format!("{}/api/v1/status", rig.fleet.health("svc-passport"));
    let why = json(&rig.fleet.get(&url, None), 200).to_string();
    assert!(why.contains("the KMS does not sign"), "{why}");
    // No client requests a token meanwhile: the issuer finds out by itself that it can sign again.
    reconfigure(&rig.fleet, "ron-kms", |text| text.replacen(may_not, may, 1));
    until("it is ready again", || readyz().0 == 200);
    text(&rig.operator("/oauth2/token", &ASK), "access_token");
}

#[test]
fn an_audience_that_the_policy_names_gets_tokens_at_once() {
    let rig = Rig::start();
    let mut policy = rig.policy();
    policy["version"] = 3.into();
    let audience = json!({"audience": "my-api", "scopes": ["wallet:read"]});
    policy["audiences"] = json!([audience]);
    let rules = policy["clients"][0]["audiences"].as_array_mut().unwrap();
    rules.push(audience);
    rig.publish(&policy, true);
    let ask = [ASK[0], ("audience", "my-api")];
    let mut reply = rig.operator("/oauth2/token", &ask);
    until("the policy is in force", || {
        reply = rig.operator("/oauth2/token", &ask);
        reply.status != 400
    });
    assert_eq!(claims(&text(&reply, "access_token"))["aud"], "my-api");
    let url = format!("{}/readyz", rig.fleet.health("svc-passport"));
    assert_eq!(rig.fleet.get(&url, None).status, 200);
}
