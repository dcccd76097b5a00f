//! The machine's date jumps while all services run, or is wrong when they start: no entry is stamped
//! with it, no key is destroyed, no token outlives its time. libfaketime sets the date.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_tests::tools::Process;
use ron_tests::{
    Fleet, http_client, json, ok, read_json, ron_binary, ron_on, socket_of, unhurried, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::disk_hangs::{Load, StopOnDrop, nothing_is_lost, op_id};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A file with the difference between the services' date and the right one.
struct Date(PathBuf);

impl Date {
    fn new(dir: &Path, difference: &str) -> Self {
        let date = Self(dir.join("date"));
        date.set(difference);
        date
    }

    fn set(&self, difference: &str) {
        // Replaced whole: the library must not read half of it.
        let next = self.0.with_extension("next");
        std::fs::write(&next, format!("{difference}\n")).unwrap();
        std::fs::rename(&next, &self.0).unwrap();
    }

    fn env(&self) -> Vec<(&'static str, PathBuf)> {
        assert!(Path::new(LIBRARY).exists(), "run scripts/setup.sh");
        vec![
            ("LD_PRELOAD", LIBRARY.into()),
            ("FAKETIME_TIMESTAMP_FILE", self.0.clone()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ]
    }
}

fn new_key(fleet: &Fleet, purpose: &str, op: u8) -> Value {
    let op_id = format!("018f3c4e-0000-7000-8000-{op:012}");
    let made = json!({"tenant": "ron", "purpose": purpose, "alg": "ed25519", "payload": "any", "op_id": op_id});
    fleet.kms("keys", &made, 201)["key"].clone()
}

fn sign(fleet: &Fleet, key: &Value) {
    fleet.kms("sign", &json!({"key": key, "message": "eA"}), 200);
}

fn causes(fleet: &Fleet, service: &str, list: &str) -> Vec<Value> {
    let reply = fleet.get(&format!("{}/readyz", fleet.health(service)), None);
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    body[list].as_array().unwrap().clone()
}

/// No leaf of the audit log, and no entry of the ledger, is stamped after the right date.
fn nothing_is_stamped_in_the_future(dir: &Path, fleet: &Fleet) {
    let latest = (now_s() + 3) * 1_000;
    let tail = ok(&ron_on(dir, &["audit", "tail", "-n", "10000"]));
    let leaves: Vec<Value> = tail
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(leaves.len() > 10, "{}", leaves.len());
    for leaf in leaves {
        let ts = leaf["ts"].as_u64().unwrap_or_else(|| panic!("{leaf}"));
        assert!(ts <= latest, "{leaf}");
    }
    let token = fleet.token("ron-ledger", Some("ledger:read"));
    let head = format!("{}/v1/ledger/head", fleet.api("ron-ledger"));
    let head = json(&fleet.get(&head, Some(&token)), 200);
    let ts = head["ts"].as_str().unwrap();
    let right = ron_proto::Timestamp(latest).to_string();
    assert!(ts <= right.as_str(), "{ts} is after {right}");
    let token = fleet.token("svc-passport", None);
    let feed = format!("{}/v1/passport/events?after=0", fleet.api("svc-passport"));
    let feed = json(&fleet.get(&feed, Some(&token)), 200);
    for event in feed["events"].as_array().unwrap() {
        assert!(
            event["ts"].as_u64().is_none_or(|ts| ts <= latest),
            "{event}"
        );
    }
}

/// What `svc-passport` answers to a form of the operator's client, with its secret.
fn asks_issuer(dir: &Path, http: &HttpClient, path: &str, form: &str) -> (u16, Value) {
    let client = read_json(&dir.join("clients/operator.json"));
    let secret = client["client_secret"].as_str().unwrap();
    let form = format!("{form}&client_id=operator&client_secret={secret}");
    let url = format!("{}/oauth2/{path}", socket_of(dir, "svc-passport", "api"));
    let call = Call {
        content_type: Some("application/x-www-form-urlencoded"),
        ..Call::post_json(
            &url,
            form.into_bytes(),
            Deadline::within(Duration::from_secs(20)),
        )
    };
    let reply = http.call(call).unwrap();
    (
        reply.status,
        serde_json::from_slice(&reply.body).unwrap_or_default(),
    )
}

/// Neither a client nor a token counts while the date is not known, and a token is not said to be revoked.
fn the_issuer_believes_nothing(dir: &Path, token: &str) {
    let http = http_client();
    for (path, form) in [
        (
            "token",
            "grant_type=client_credentials&audience=svc-wallet".to_owned(),
        ),
        ("revoke", format!("token={token}")),
        ("introspect", format!("token={token}")),
    ] {
        let (status, body) = asks_issuer(dir, &http, path, &form);
        assert_eq!(
            (status, &body["error"]),
            (503, &json!("temporarily_unavailable")),
            "{path}: {body}"
        );
    }
    let url = format!(
        "{}/v1/passport/verify",
        socket_of(dir, "svc-passport", "api")
    );
    let body = json!({"token": token}).to_string().into_bytes();
    let call = Call::post_json(&url, body, Deadline::within(Duration::from_secs(20)));
    let reply = http.call(call).unwrap();
    let said: Value = serde_json::from_slice(&reply.body).unwrap();
    assert!(
        said["ok"] != true && said.to_string().contains("no_date"),
        "{said}"
    );
}

/// Holds of 1 from account `a`, which end by the right date alone.
struct Holds<'a> {
    fleet: &'a Fleet,
    token: String,
}

impl Holds<'_> {
    /// Makes one that ends after `seconds`; its transaction.
    fn make(&self, nonce: u64, seconds: u64) -> String {
        let url = format!("{}/v1/hold", self.fleet.api("svc-wallet"));
        let until = ron_proto::Timestamp((now_s() + seconds) * 1_000).to_string();
        let hold = json!({"from": "a", "asset": "ron", "amount_minor": "1", "nonce": nonce, "expires_at": until});
        let key = format!("hold-{nonce}");
        let headers = [("Idempotency-Key", key.as_str())];
        let reply = self
            .fleet
            .post(&url, Some(&self.token), &hold.to_string(), &headers);
        let txid = json(&reply, 200)["receipt"]["txid"].clone();
        txid.as_str().unwrap().to_owned()
    }

    fn state(&self, txid: &str) -> Value {
        let url = format!("{}/v1/hold/{txid}", self.fleet.api("svc-wallet"));
        json(&self.fleet.get(&url, Some(&self.token)), 200)["state"].clone()
    }
}

const LATE: [&str; 2] = ["ron-kms", "ron-ledger"];

/// Checkpoints of both logs that were late.
fn late(fleet: &Fleet) -> f64 {
    let of = |service: &str| {
        let line = format!("{}_checkpoint_late_total ", service.replace('-', "_"));
        fleet.metric(service, &line)
    };
    LATE.map(of).iter().sum()
}

#[test]
fn a_jump_of_the_date_changes_no_stamp_and_no_schedule() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let place = tempfile::tempdir().unwrap();
    let date = Date::new(place.path(), "+0");
    let fleet = Fleet::start_with(dir.clone(), &date.env());
    let (signs, doomed) = (new_key(&fleet, "app", 1), new_key(&fleet, "doomed", 2));
    let doomed = doomed.as_str().unwrap();
    fleet.kms(
        &format!("keys/{doomed}/destroy"),
        &json!({"delay": "7d"}),
        200,
    );
    let wallet = fleet.token("svc-wallet", None);
    let issue = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let body = json!({"to": "a", "asset": "ron", "amount_minor": "1"}).to_string();
    let funds = json!({"to": "a", "asset": "ron", "amount_minor": "100"}).to_string();
    let funded = fleet.post(
        &issue,
        Some(&wallet),
        &funds,
        &[("Idempotency-Key", "funds")],
    );
    json(&funded, 200);
    let holds = Holds {
        fleet: &fleet,
        token: wallet.clone(),
    };
    let long = holds.make(1, 3_600);
    let late_before = late(&fleet);
    let mut not_ready = Vec::new();
    for (jump, number) in [("+8d", 1), ("+3650d", 2), ("-1h", 3)] {
        let short = holds.make(number + 1, 4);
        date.set(jump);
        for service in ["ron-kms", "ron-ledger", "svc-passport", "svc-wallet"] {
            until("the jump is noticed", || {
                causes(&fleet, service, "degraded").contains(&json!("clock"))
            });
        }
        for again in 0..20 {
            sign(&fleet, &signs);
            let key = format!("{number}-{again}");
            let headers = [("Idempotency-Key", key.as_str())];
            json(&fleet.post(&issue, Some(&wallet), &body, &headers), 200);
            for service in ron_tests::SERVICES {
                let missing = causes(&fleet, service, "missing");
                not_ready.extend((!missing.is_empty()).then_some((jump, service, missing)));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let token = fleet.token("svc-wallet", None);
        let claims = claims(&token);
        let (iat, exp) = (&claims["iat"], &claims["exp"]);
        assert!(
            iat.as_u64().unwrap().abs_diff(now_s()) <= 3,
            "{jump}: {iat}"
        );
        assert!(exp.as_u64().unwrap() <= now_s() + 3_600, "{jump}: {exp}");
        assert_eq!(holds.state(&long), "open", "{jump}");
        until("a hold ends at its time", || holds.state(&short) == "ended");
        date.set("+0");
        until("the right date is believed again", || {
            !causes(&fleet, "ron-kms", "degraded").contains(&json!("clock"))
        });
        sign(&fleet, &signs);
    }
    // A wrong age would show in each jump and on each way back. A busy machine may make one or the other late.
    assert!(not_ready.len() < 3, "{not_ready:?}");
    let late = late(&fleet) - late_before;
    assert!(late < 3.0, "{late} late checkpoints");
    let url = format!("{}/v1/hold/{long}/capture", fleet.api("svc-wallet"));
    let all = json!({"to": "b", "amount_minor": "1"}).to_string();
    let captured = fleet.post(&url, Some(&wallet), &all, &[("Idempotency-Key", "capture")]);
    json(&captured, 200);
    nothing_is_stamped_in_the_future(dir.path(), &fleet);
    fleet.kms(&format!("keys/{doomed}/destroy/cancel"), &json!({}), 200);
    let text = ok(&fleet.ron(&["audit", "verify"]));
    assert!(text.contains("verified"), "{text}");
}

/// Threads of each kind of request.
const THREADS: usize = 2;

/// Has tokens issued until told to stop: none is made for another time than the present. Returns their number.
fn issue_tokens(load: &Load<'_>) -> usize {
    let body = json!({"subject_ref": "operator", "audience": "svc-wallet", "ttl_s": 60});
    let mut issued = 0;
    while !load.stop.load(Ordering::SeqCst) {
        let before = now_s();
        let (status, answer) = load.send("token", &body);
        if status == 200 {
            let claims = claims(answer["token"].as_str().unwrap());
            let [iat, exp] = ["iat", "exp"].map(|name| claims[name].as_u64().unwrap());
            let around = before - 3..=now_s() + 3;
            assert!(around.contains(&iat), "{iat} is not in {around:?}");
            assert_eq!(exp, iat + 60);
            issued += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    issued
}

#[test]
fn jumps_of_the_date_under_load_change_no_stamp_and_lose_nothing() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let place = tempfile::tempdir().unwrap();
    let date = Date::new(place.path(), "+0");
    let fleet = Fleet::start_with(dir.clone(), &date.env());
    let (key, doomed) = (new_key(&fleet, "app", 1), new_key(&fleet, "doomed", 2));
    let doomed = doomed.as_str().unwrap();
    let soon = json!({"delay": "7d"});
    fleet.kms(&format!("keys/{doomed}/destroy"), &soon, 200);
    let (http, stop) = (ron_tests::http_client(), AtomicBool::new(false));
    let urls = [
        format!("{}/v1/kms/sign", fleet.api_socket("ron-kms")),
        format!("{}/v1/issue", fleet.api("svc-wallet")),
        format!("{}/v1/passport/issue", fleet.api("svc-passport")),
    ];
    let bearers = [
        fleet.operator_token(),
        fleet.token("svc-wallet", None),
        fleet.token("svc-passport", None),
    ];
    let load = |which: usize| Load {
        http: &http,
        url: &urls[which],
        token: &bearers[which],
        stop: &stop,
        answers: Mutex::default(),
    };
    let (signs, pays, tokens) = (load(0), load(1), load(2));
    let sign = |id: &str| json!({"key": key, "message": "eA", "op_id": op_id(id)});
    let pay = |_: &str| json!({"to": "a", "asset": "ron", "amount_minor": "1"});
    let clock_is_in_doubt =
        |service: &str| causes(&fleet, service, "degraded").contains(&json!("clock"));
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&stop);
        for thread in 0..THREADS {
            let (signs, pays, sign, pay) = (&signs, &pays, &sign, &pay);
            scope.spawn(move || signs.run((thread, THREADS), sign));
            scope.spawn(move || pays.run((thread, THREADS), pay));
        }
        let issuing = scope.spawn(|| issue_tokens(&tokens));
        let done = || (signs.done().len(), pays.done().len());
        for jump in ["+8d", "+3650d", "-1h"] {
            let before = done();
            date.set(jump);
            let since = Instant::now();
            for service in ["ron-kms", "ron-ledger", "svc-passport", "svc-wallet"] {
                until("the jump is noticed", || clock_is_in_doubt(service));
            }
            until("two seconds pass, with requests done", || {
                let (signed, paid) = done();
                let two = since.elapsed() > Duration::from_secs(2);
                two && signed > before.0 + 20 && paid > before.1 + 20
            });
            date.set("+0");
            until("the right date is believed again", || {
                !clock_is_in_doubt("ron-kms")
            });
        }
        drop(stop);
        assert!(issuing.join().unwrap() > 3);
    });
    nothing_is_lost(&fleet, &signs, &sign, &pays, &pay);
    nothing_is_stamped_in_the_future(dir.path(), &fleet);
    fleet.kms(&format!("keys/{doomed}/destroy/cancel"), &json!({}), 200);
}

/// The claims of a token, unverified.
fn claims(token: &str) -> Value {
    use base64::Engine as _;
    let part = token.split('.').nth(1).unwrap();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(part)
        .unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// A `ron up` that does not become ready, and its last line.
fn up(dir: &TempDir, date: &Date) -> (Process, String) {
    let mut command = Command::new(ron_binary());
    unhurried(&mut command)
        .args(["up", "--base-port", "0", "--data-dir"])
        .arg(dir.path())
        .envs(date.env())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let last = lines
        .map_while(Result::ok)
        .find(|line| line.contains("ready"));
    (Process(child), last.expect("a last line"))
}

#[test]
fn a_wrong_date_at_the_start_waits_for_an_operator() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let place = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start_in(dir.clone());
    let key = new_key(&fleet, "app", 1);
    sign(&fleet, &key);
    let doomed = new_key(&fleet, "doomed", 2);
    let doomed = doomed.as_str().unwrap();
    fleet.kms(
        &format!("keys/{doomed}/destroy"),
        &json!({"delay": "1d"}),
        200,
    );
    let token = fleet.token("svc-wallet", None);
    assert_eq!(fleet.stop(), Some(0));
    drop(fleet);
    for wrong in ["+3650d", "-2d"] {
        let date = Date::new(place.path(), wrong);
        let (process, last) = up(&dir, &date);
        assert!(last.contains("ron clock accept"), "{last}");
        let shown = ok(&ron_on(dir.path(), &["clock", "show"]));
        for service in ron_tests::SERVICES {
            let own = shown.lines().find(|line| line.starts_with(service));
            assert!(own.unwrap().contains("nothing is written"), "{shown}");
        }
        let refused = ron_on(
            dir.path(),
            &["kms", "sign", key.as_str().unwrap(), "--message", "x"],
        );
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && why.contains("ron clock accept"),
            "{why}"
        );
        the_issuer_believes_nothing(dir.path(), &token);
        // Public keys are still served.
        ok(&ron_on(dir.path(), &["kms", "get", key.as_str().unwrap()]));
        drop(process);
    }
    // The newest entry is still one of the right date, and a start at the right date writes.
    let fleet = Fleet::start_in(dir.clone());
    sign(&fleet, &key);
    assert_eq!(
        new_key(&fleet, "app", 1),
        key,
        "it is not made a second time"
    );
    fleet.kms(&format!("keys/{doomed}/destroy/cancel"), &json!({}), 200);
    nothing_is_stamped_in_the_future(dir.path(), &fleet);
    drop(fleet);
    // A long pause is not distinguishable from a wrong date: the operator decides.
    let date = Date::new(place.path(), "+40d");
    let (_process, last) = up(&dir, &date);
    assert!(last.contains("not ready"), "{last}");
    let said = ok(&ron_on(dir.path(), &["clock", "accept"]));
    assert!(said.contains("ron-kms: accepted"), "{said}");
    ok(&ron_on(
        dir.path(),
        &["kms", "sign", key.as_str().unwrap(), "--message", "x"],
    ));
    let tail = ok(&ron_on(dir.path(), &["audit", "tail", "-n", "100"]));
    let mut leaves = tail
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let accepted = leaves.find(|leaf| leaf["op"] == "accept_date");
    let accepted = accepted.expect("a leaf about the date");
    assert_eq!(accepted["actor"], "svc-admin");
    // 40 days in milliseconds, without what the test took.
    let context = accepted["context"].as_str().unwrap();
    assert!(context.contains(" is 345"), "{context}");
}
