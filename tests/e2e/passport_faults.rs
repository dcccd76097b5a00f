//! The issuer during failures: its KMS stalls or becomes unavailable under load, and the issuer is
//! killed while it revokes.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_http::Reply;
use ron_proto::b64;
use ron_tests::issuer::Rig;
use ron_tests::line::{Line, Way};
use ron_tests::tools::{Process, service, signal, wait_listening};
use ron_tests::{Fleet, free_port, json, ok, own_sockets, until};
use serde_json::{Value, json};

/// Deadline of a request plus the delay of a busy machine; less than the timeout of the call
/// itself.
const ANSWERED: Duration = Duration::from_secs(15);

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A second issuer beside the fleet's, which reaches the KMS only through a line.
struct Issuer {
    api: String,
    health: String,
    form: String,
    line: Line,
    process: Process,
    data: tempfile::TempDir,
    _places: tempfile::TempDir,
}

impl Issuer {
    fn beside(fleet: &Fleet) -> Self {
        Self::with(fleet, &[])
    }

    fn with(fleet: &Fleet, more: &[String]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let own = [format!("data_dir={}", data.path().display())];
        let config = fleet.dir().join("svc-passport/config.toml");
        Self::start(fleet, &config, data, &[&own, more].concat())
    }

    /// An issuer in amnesia mode; its working directory is the data directory that it does not
    /// have.
    fn in_amnesia(fleet: &Fleet) -> Self {
        let own = fleet.dir().join("svc-passport/config.toml");
        let text = std::fs::read_to_string(own).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("data_dir"));
        let text = lines.collect::<Vec<_>>().join("\n");
        let config = fleet.dir().join("forgetful.toml");
        std::fs::write(&config, format!("amnesia = true\n{text}\n")).unwrap();
        Self::start(fleet, &config, tempfile::tempdir().unwrap(), &[])
    }

    fn start(fleet: &Fleet, config: &Path, data: tempfile::TempDir, more: &[String]) -> Self {
        let line = Line::to(&fleet.api_socket("ron-kms"));
        let places = tempfile::tempdir().unwrap();
        let addrs = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let sets = [
            "log.level=error".to_owned(),
            format!("bind_addr={}", addrs[0]),
            format!("health_addr={}", addrs[1]),
            format!("kms.url={}", line.url),
        ];
        let sockets = own_sockets(places.path(), "svc-passport");
        let sets = sets.iter().chain(&sockets).chain(more);
        let mut command = service("svc-passport", config, sets);
        let process = Process::start(command.current_dir(data.path()));
        let client = read(&fleet.dir().join("clients/operator.json"));
        let form = format!(
            "grant_type=client_credentials&audience=svc-wallet&client_id=operator&client_secret={}",
            client["client_secret"].as_str().unwrap()
        );
        wait_listening(&addrs[0]);
        Self {
            api: format!("http://{}", addrs[0]),
            health: format!("http://{}", addrs[1]),
            form,
            line,
            process,
            data,
            _places: places,
        }
    }

    fn token(&self, fleet: &Fleet) -> Reply {
        let kind = [("Content-Type", "application/x-www-form-urlencoded")];
        fleet.post(
            &format!("{}/oauth2/token", self.api),
            None,
            &self.form,
            &kind,
        )
    }

    /// A token, within a time.
    fn works_within(&self, fleet: &Fleet, time: Duration) -> String {
        let since = Instant::now();
        loop {
            let reply = self.token(fleet);
            if reply.status == 200 {
                return json(&reply, 200)["access_token"]
                    .as_str()
                    .unwrap()
                    .to_owned();
            }
            assert!(
                since.elapsed() < time,
                "{}",
                String::from_utf8_lossy(&reply.body)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Verifies a token with a published key.
    fn check(&self, fleet: &Fleet, token: &str) {
        let header = b64::from_url(token.split('.').next().unwrap()).unwrap();
        let header: Value = serde_json::from_slice(&header).unwrap();
        let jwks = fleet.get(&format!("{}/.well-known/jwks.json", self.api), None);
        assert!(
            json(&jwks, 200)
                .to_string()
                .contains(header["kid"].as_str().unwrap())
        );
        let body = json!({"token": token}).to_string();
        let verdict = fleet.post(
            &format!("{}/v1/passport/verify", self.api),
            None,
            &body,
            &[],
        );
        assert_eq!(json(&verdict, 200)["ok"], true);
    }
}

#[test]
fn a_kms_that_stalls_or_goes_away_costs_no_deadline_and_no_bad_token() {
    let fleet = Fleet::start();
    let issuer = Issuer::beside(&fleet);
    let first = issuer.works_within(&fleet, Duration::from_secs(30));
    issuer.check(&fleet, &first);
    for way in [Way::Stalled, Way::Cut] {
        issuer.line.set(way);
        let answers: Vec<(u16, Duration)> = std::thread::scope(|scope| {
            #[expect(clippy::needless_collect, reason = "all ask before one is waited for")]
            let asks: Vec<_> = (0..24)
                .map(|_| {
                    scope.spawn(|| {
                        let began = Instant::now();
                        (issuer.token(&fleet).status, began.elapsed())
                    })
                })
                .collect();
            asks.into_iter().map(|ask| ask.join().unwrap()).collect()
        });
        for (status, took) in &answers {
            assert!([429, 503, 504].contains(status), "{answers:?}");
            assert!(*took < ANSWERED, "{answers:?}");
        }
        // Requests that need no signature still work.
        issuer.check(&fleet, &first);
        issuer.line.set(Way::Open);
        let token = issuer.works_within(&fleet, Duration::from_secs(30));
        issuer.check(&fleet, &token);
    }
}

#[test]
fn in_amnesia_everything_works_and_nothing_is_written() {
    let fleet = Fleet::start();
    let issuer = Issuer::in_amnesia(&fleet);
    let token = issuer.works_within(&fleet, Duration::from_secs(30));
    issuer.check(&fleet, &token);
    let claims = b64::from_url(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let status = claims["status"]["status_list"]["uri"].as_str().unwrap();
    assert_eq!(fleet.get(status, None).status, 200, "a signed status list");
    let client = read(&fleet.dir().join("clients/operator.json"));
    let pair = format!("operator:{}", client["client_secret"].as_str().unwrap());
    let basic = format!("Basic {}", b64::std(pair.as_bytes()));
    let headers = [
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Authorization", basic.as_str()),
    ];
    let form = format!("token={token}");
    let given_back = fleet.post(
        &format!("{}/oauth2/revoke", issuer.api),
        None,
        &form,
        &headers,
    );
    assert_eq!(given_back.status, 200);
    let body = json!({"token": token}).to_string();
    let verdict = fleet.post(
        &format!("{}/v1/passport/verify", issuer.api),
        None,
        &body,
        &[],
    );
    assert_eq!(json(&verdict, 200)["reason"], "revoked");
    let left: Vec<_> = std::fs::read_dir(issuer.data.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // Nor has it a file open, except for those it was started with.
    let open = std::fs::read_dir(format!("/proc/{}/fd", issuer.process.0.id())).unwrap();
    let own = open
        .flatten()
        .filter(|fd| !["0", "1", "2"].contains(&fd.file_name().to_str().unwrap()));
    let links = own.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let files: Vec<_> = links.filter(|path| path.is_file()).collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn acknowledged_revocations_survive_a_loop_of_kills() {
    let mut fleet = Fleet::start();
    let mut acknowledged = BTreeSet::new();
    let mut epoch = 1;
    for round in 0..4 {
        let revoker = fleet.token("svc-passport", Some("passport:admin"));
        let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
        let pid = fleet.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150 + 70 * round));
            signal(pid, "-KILL");
        });
        let bearer = format!("Bearer {revoker}");
        for n in 0.. {
            let id = format!("r{round}-{n}");
            let body = match n {
                5 => json!({"epoch": epoch + 1, "reason": "test"}),
                _ => json!({"jti": id, "reason": "test"}),
            };
            let call = ron_http::Call::post_json(
                &url,
                body.to_string().into_bytes(),
                ron_kernel::Deadline::within(ron_tests::CALL),
            );
            let headers = [("Authorization", bearer.as_str())];
            match fleet.http.call(call.headers(&headers)) {
                // The epoch voids the revoker's own token, but its service learns that a moment
                // later.
                Ok(reply) if reply.status == 200 && n == 5 => epoch += 1,
                Ok(reply) if reply.status == 200 => {
                    acknowledged.insert(id);
                }
                Ok(reply) if reply.status == 401 => break,
                _ => break,
            }
        }
        killer.join().unwrap();
        fleet.kill();
        fleet = Fleet::start_in(fleet.keep_dir());
        let (known, now) = feed(&fleet);
        assert!(
            acknowledged.is_subset(&known),
            "lost: {:?}",
            acknowledged.difference(&known)
        );
        assert!(now >= epoch, "the epoch went back to {now} from {epoch}");
        epoch = now;
    }
    assert!(acknowledged.len() > 8, "{}", acknowledged.len());
}

/// Revoked ids in the feed, whose numbers have no gap, and the epoch.
fn feed(fleet: &Fleet) -> (BTreeSet<String>, u64) {
    let mut known = BTreeSet::new();
    let mut after = 0;
    loop {
        let page = json(&fleet.revocations(&format!("?after={after}")), 200);
        let events = page["events"].as_array().unwrap();
        for event in events {
            after += 1;
            assert_eq!(event["seq"], after);
            known.extend(event["revoked"]["jti"].as_str().map(str::to_owned));
        }
        if events.len() < 1000 {
            return (known, page["current_epoch"].as_u64().unwrap());
        }
    }
}

/// Serves the files of a directory over HTTP, while `up` is true.
fn serve(dir: std::path::PathBuf, up: Arc<AtomicBool>) -> u16 {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if !up.load(Ordering::SeqCst) {
                continue;
            }
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = head.next().and_then(Result::ok).unwrap_or_default();
            while head
                .next()
                .and_then(Result::ok)
                .is_some_and(|line| !line.is_empty())
            {}
            let name = first
                .split(' ')
                .nth(1)
                .unwrap_or_default()
                .trim_start_matches('/')
                .to_owned();
            let answer = std::fs::read(dir.join(name)).map_or_else(
                |_| {
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                        .to_vec()
                },
                |body| {
                    let length = body.len();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                    );
                    [head.into_bytes(), body].concat()
                },
            );
            let _ = stream.write_all(&answer);
        }
    });
    port
}

#[test]
fn a_policy_from_a_url_is_followed_and_the_last_good_one_kept() {
    let fleet = Fleet::start();
    let served = tempfile::tempdir().unwrap();
    let (json_at, sig_at) = (
        served.path().join("issuer.json"),
        served.path().join("issuer.json.sig"),
    );
    let own = fleet.dir().join("policy");
    let first = [
        std::fs::read(own.join("issuer.json")).unwrap(),
        std::fs::read(own.join("issuer.json.sig")).unwrap(),
    ];
    let publish = |policy: &[Vec<u8>; 2]| {
        std::fs::write(&json_at, &policy[0]).unwrap();
        std::fs::write(&sig_at, &policy[1]).unwrap();
    };
    publish(&first);
    let up = Arc::new(AtomicBool::new(false));
    let port = serve(served.path().to_owned(), up.clone());
    let issuer = Issuer::with(
        &fleet,
        &[
            format!("policy.url=http://127.0.0.1:{port}"),
            "policy.poll_interval=200ms".to_owned(),
        ],
    );
    assert_eq!(
        issuer.token(&fleet).status,
        503,
        "nothing is issued without a policy"
    );
    up.store(true, Ordering::SeqCst);
    issuer.works_within(&fleet, Duration::from_secs(30));

    // A newer policy that removes the wallet from the operator's audiences.
    let mut policy: Value = serde_json::from_slice(&first[0]).unwrap();
    policy["version"] = 2.into();
    let audiences = policy["clients"][0]["audiences"].as_array_mut().unwrap();
    audiences.retain(|a| a["audience"] != "svc-wallet");
    let draft = fleet.dir().join("draft.json");
    std::fs::write(&draft, policy.to_string()).unwrap();
    ron_tests::ok(&fleet.ron(&[
        "policy",
        "sign",
        "--kind",
        "issuer",
        draft.to_str().unwrap(),
    ]));
    let second = [
        std::fs::read(&draft).unwrap(),
        std::fs::read(fleet.dir().join("draft.json.sig")).unwrap(),
    ];
    publish(&second);
    let since = Instant::now();
    while issuer.token(&fleet).status == 200 {
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "the newer policy is not in force"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let degraded = || {
        let ready = fleet.get(&format!("{}/readyz", issuer.health), None);
        json(&ready, 200)["degraded"].to_string().contains("policy")
    };
    for (older, reachable) in [(false, false), (true, true)] {
        up.store(reachable, Ordering::SeqCst);
        if older {
            publish(&first);
        }
        let since = Instant::now();
        while !degraded() {
            assert!(
                since.elapsed() < Duration::from_secs(30),
                "the trouble does not show"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(
            issuer.token(&fleet).status,
            400,
            "the last good policy stays in force"
        );
    }
}

#[test]
fn keys_that_are_out_of_use_are_named_until_they_are_in_use_again() {
    let rig = Rig::start();
    let fleet = &rig.fleet;
    let made = fleet.bootstrap();
    let change = |which: &str, how: &str, body: Value| {
        let key = made[which].as_str().unwrap();
        fleet.kms(&format!("keys/{key}/{how}"), &body, 200);
    };
    let why = |cause: &str| {
        let status = format!("{}/api/v1/status", fleet.health("svc-passport"));
        let status = json(&fleet.get(&status, None), 200);
        let planes = status["planes"].as_array().unwrap();
        let plane = planes.iter().find(|plane| plane["name"] == cause);
        let why = plane.and_then(|plane| plane["reason"].as_str());
        why.unwrap_or_default().to_owned()
    };
    let served = || {
        let reply = fleet.get(&rig.url("/v1/passport/policy"), None);
        String::from_utf8(reply.body).unwrap()
    };
    until("a note is signed", || served().contains("\nepoch 1\n"));

    change("note_key", "destroy", json!({"delay": "7d"}));
    ok(&fleet.ron(&["token", "revoke", "--epoch", "2", "--reason", "a test"]));
    until("the cause shows", || {
        assert!(served().contains("\nepoch 1\n"), "the last one is served");
        why("note").contains("policy note")
    });
    let counted = "svc_passport_sign_failures_total{reason=\"key_not_active\"} ";
    assert!(fleet.metric("svc-passport", counted) >= 1.0);
    change("note_key", "destroy/cancel", json!({}));
    until("the next one is served", || {
        served().contains("\nepoch 2\n") && why("note").is_empty()
    });

    assert_eq!(rig.robot_token().status, 200);
    change("issuer_key", "destroy", json!({"delay": "7d"}));
    let refused = json(&rig.robot_token(), 503);
    assert_eq!(refused["error"], "temporarily_unavailable", "{refused}");
    assert!(refused.to_string().contains("ron kms show"), "{refused}");
    change("issuer_key", "destroy/cancel", json!({}));
    until("tokens are issued again", || {
        rig.robot_token().status == 200
    });
}
