//! The disk under all services hangs for a while, under load: readiness goes off within a second,
//! requests end at their own deadlines, and when the disk answers again everything continues by
//! itself with nothing lost.
//!
//! Once with a preloaded library that holds the writes and flushes of the process (`disk_fault.c`),
//! and where this process may mount, with the data on a loop device that is frozen.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_tests::line::{Line, Way};
use ron_tests::tools::{Process, service, wait_listening};
use ron_tests::{Fleet, OwnPlace, http_client, json, metric, ok, own_place, until};
use serde_json::{Value, json};

use crate::disk_faults::library;
use crate::disk_full::{dry_run, upload};

/// How long the disk hangs; longer with `RON_HANG_S`.
const HANG_S: u64 = 8;
/// What a busy machine may add to the documented times; that readiness looks early enough is tested in
/// `crates/ron-kernel/src/disk_watch.rs`.
const BUSY: Duration = Duration::from_secs(3);
/// Readiness is off within a second.
const NOTICED: Duration = Duration::from_secs(1).saturating_add(BUSY);

fn hang() -> Duration {
    let asked = std::env::var("RON_HANG_S").ok();
    Duration::from_secs(asked.map_or(HANG_S, |s| s.parse().expect("seconds")))
}

fn run(program: &str, args: &[&str]) {
    ok(&Command::new(program).args(args).output().expect(program));
}

/// A file system of its own on a loop device.
struct LoopDisk {
    place: PathBuf,
}

impl LoopDisk {
    /// `None` where this process may not mount, also some with root (containers).
    fn mount(under: &Path) -> Option<Self> {
        let (image, place) = (under.join("image"), under.join("disk"));
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(512 << 20).unwrap();
        std::fs::create_dir(&place).unwrap();
        let [image, at] = [&image, &place].map(|path| path.to_str().unwrap());
        run("/usr/sbin/mkfs.ext4", &["-q", "-F", image]);
        let mounted = Command::new("mount")
            .args(["-o", "loop", image, at])
            .output();
        let mounted = mounted.expect("mount").status.success();
        mounted.then_some(Self { place })
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.place).status();
    }
}

/// How the disk is stopped.
enum Switch<'a> {
    Freeze(&'a Path),
    Control(&'a Path),
}

/// Hangs until it is dropped.
struct Hanging<'a>(&'a Switch<'a>);

impl<'a> Hanging<'a> {
    fn begin(switch: &'a Switch<'a>) -> Self {
        match switch {
            Switch::Freeze(place) => run("fsfreeze", &["-f", place.to_str().unwrap()]),
            Switch::Control(file) => std::fs::write(file, "h").unwrap(),
        }
        Self(switch)
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        match self.0 {
            Switch::Freeze(place) => {
                let _ = Command::new("fsfreeze").arg("-u").arg(place).status();
            }
            Switch::Control(file) => {
                let _ = std::fs::write(file, "-");
            }
        }
    }
}

/// Sends requests until told to stop, and remembers the answers.
pub struct Load<'a> {
    pub http: &'a HttpClient,
    pub url: &'a str,
    pub token: &'a str,
    pub stop: &'a AtomicBool,
    pub answers: Mutex<Vec<(String, u16, Value)>>,
}

impl Load<'_> {
    pub fn send(&self, key: &str, body: &Value) -> (u16, Value) {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", key)];
        let call = Call {
            headers: &headers,
            ..Call::post_json(
                self.url,
                body.to_string().into_bytes(),
                Deadline::within(Duration::from_secs(20)),
            )
        };
        match self.http.call(call) {
            Ok(reply) => (
                reply.status,
                serde_json::from_slice(&reply.body).unwrap_or_default(),
            ),
            Err(_) => (0, Value::Null),
        }
    }

    /// The thread's body; `first` of every `threads` keys are its own.
    pub fn run(&self, (first, threads): (usize, usize), body: &dyn Fn(&str) -> Value) {
        for n in (first..).step_by(threads) {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let key = format!("load-{n}");
            let (status, answer) = self.send(&key, &body(&key));
            self.answers.lock().unwrap().push((key, status, answer));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The keys and answers of the requests that were done.
    pub fn done(&self) -> Vec<(String, Value)> {
        let answers = self.answers.lock().unwrap();
        let done = answers.iter().filter(|(_, status, _)| *status == 200);
        done.map(|(key, _, answer)| (key.clone(), answer.clone()))
            .collect()
    }
}

/// Sets the flag however the scope is left, so that the threads in it end.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub fn op_id(key: &str) -> String {
    let number: u64 = key.trim_start_matches("load-").parse().unwrap();
    format!("018f3c4e-0000-7000-9000-{number:012}")
}

fn says(fleet: &Fleet, service: &str) -> (u16, Vec<Value>) {
    let reply = fleet.get(&format!("{}/readyz", fleet.health(service)), None);
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    (reply.status, body["missing"].as_array().unwrap().clone())
}

/// Waits until the service reports the disk, and says how long after `since` that is.
fn noticed(fleet: &Fleet, service: &str, since: Instant) {
    while says(fleet, service) != (503, vec![json!("disk")]) {
        assert!(
            since.elapsed() < NOTICED,
            "{service}: {:?}",
            says(fleet, service)
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{service}: not ready after {:?}", since.elapsed());
}

/// What clients see while the disk hangs.
fn while_it_hangs(fleet: &Fleet, signs: &Load<'_>, sign: &dyn Fn(&str) -> Value) {
    let deadline = Duration::from_secs(2); // `sign_deadline`
    let since = Instant::now();
    let (status, answer) = signs.send("load-999999", &sign("load-999999"));
    let took = since.elapsed();
    assert_eq!(
        (status, &answer["code"]),
        (504, &json!("deadline_exceeded"))
    );
    // Below `request_deadline`, 5 s: an end at that deadline must not pass, however busy the machine is.
    assert!(took < deadline + Duration::from_secs(2), "{took:?}");
    assert!(took + Duration::from_millis(100) > deadline, "{took:?}");
    for counted in [
        ("ron-kms", "ron_kms_io_timeouts_total{op=\"audit\"}"),
        ("ron-ledger", "ron_ledger_io_timeouts_total{op=\"commit\"}"),
    ] {
        assert!(fleet.metric(counted.0, counted.1) >= 1.0, "{counted:?}");
    }
    let token = fleet.operator_token();
    let read = format!("{}/v1/kms/keys", fleet.api_socket("ron-kms"));
    assert_eq!(fleet.get(&read, Some(&token)).status, 200, "reads go on");
}

/// More uploads and runs wait for the rewarder's disk than it has HTTP workers, and it serves other requests.
fn the_rewarder_serves<'s>(
    fleet: &Fleet,
    scope: &'s std::thread::Scope<'s, '_>,
    computes: &'s Load<'_>,
    run: &'s Value,
) {
    let uploads = format!("{}/rewarder/snapshots", fleet.api("svc-rewarder"));
    let since = Instant::now();
    for n in 0..8 {
        let (url, bearer) = (uploads.clone(), format!("Bearer {}", computes.token));
        scope.spawn(move || {
            let usage = format!("account,metric,amount\nacct:{n},smoothing_pool,3\n");
            let deadline = Deadline::within(hang() + Duration::from_secs(20));
            let call = Call {
                headers: &[("Authorization", bearer.as_str())],
                content_type: Some("text/csv"),
                ..Call::post_json(&url, usage.into_bytes(), deadline)
            };
            // Refused, or done once the disk answers again.
            computes.http.call(call).map(|reply| reply.status)
        });
        // Before a run begins, its policy is stored and its snapshot marked as used.
        scope.spawn(move || computes.send("load-0", run));
    }
    noticed(fleet, "svc-rewarder", since);
    let counted = "svc_rewarder_io_timeouts_total{op=\"library\"} ";
    assert!(fleet.metric("svc-rewarder", counted) >= 1.0);
    let runs = format!("{}/rewarder/epochs", fleet.api("svc-rewarder"));
    let reply = fleet.get(&runs, Some(computes.token));
    assert_eq!(reply.status, 200, "a worker is left");
}

fn story(fleet: &Fleet, switch: &Switch<'_>) {
    let key = json!({"tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any", "op_id": op_id("load-0")});
    let key = fleet.kms("keys", &key, 201)["key"].clone();
    let (http, stop) = (http_client(), AtomicBool::new(false));
    let (kms, wallet) = (fleet.operator_token(), fleet.token("svc-wallet", None));
    let passport = fleet.token("svc-passport", None);
    let rewarder = fleet.token("svc-rewarder", None);
    let run = dry_run(fleet, &upload(fleet, &rewarder));
    let load = |url, token| Load {
        http: &http,
        url,
        token,
        stop: &stop,
        answers: Mutex::default(),
    };
    let sign_url = format!("{}/v1/kms/sign", fleet.api_socket("ron-kms"));
    let issue_url = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let revoke_url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
    let base = fleet.api("svc-rewarder");
    let compute_url = format!("{base}/rewarder/epochs/hung/compute");
    let computes = load(&compute_url, &rewarder);
    let (signs, issues) = (load(&sign_url, &kms), load(&issue_url, &wallet));
    let revokes = load(&revoke_url, &passport);
    let token_url = format!("{}/v1/passport/issue", fleet.api("svc-passport"));
    let tokens = load(&token_url, &passport);
    let token = json!({"subject_ref": "operator", "audience": "svc-wallet"});
    assert_eq!(tokens.send("load-0", &token).0, 200);
    let sign = |id: &str| json!({"key": key, "message": "eA", "op_id": op_id(id)});
    let issue = |_: &str| json!({"to": "a", "asset": "ron", "amount_minor": "1"});
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&stop);
        scope.spawn(|| signs.run((0, 1), &sign));
        scope.spawn(|| issues.run((0, 1), &issue));
        until("the load runs", || {
            signs.done().len() > 20 && issues.done().len() > 20
        });
        let since = Instant::now();
        let hanging = Hanging::begin(switch);
        let hung = Instant::now();
        let late = scope.spawn(|| {
            let since = Instant::now();
            (tokens.send("load-0", &token), since.elapsed())
        });
        // All from the same moment. The holder of a token is written before it is signed.
        for service in ["ron-kms", "ron-ledger", "svc-passport"] {
            noticed(fleet, service, hung);
        }
        let counted = "svc_passport_io_timeouts_total{op=\"files\"} ";
        assert!(fleet.metric("svc-passport", counted) >= 1.0);
        the_rewarder_serves(fleet, scope, &computes, &run);
        while_it_hangs(fleet, &signs, &sign);
        // A revocation is the passport service's write.
        let gone = json!({"jti": "j", "reason": "drill"});
        assert_ne!(revokes.send("load-0", &gone).0, 200);
        let ((status, answer), took) = late.join().unwrap();
        assert_eq!(
            (status, &answer["code"]),
            (504, &json!("deadline_exceeded"))
        );
        // `request_deadline`
        assert!(took < Duration::from_secs(5) + BUSY, "{took:?}");
        assert_eq!(says(fleet, "svc-wallet").0, 503, "its ledger hangs");
        std::thread::sleep(hang().saturating_sub(since.elapsed()));
        drop(hanging);
        for service in ron_tests::SERVICES {
            until("it is ready by itself", || says(fleet, service).0 == 200);
        }
        let (signed, issued) = (signs.done().len(), issues.done().len());
        until("the load goes on", || {
            signs.done().len() > signed + 20 && issues.done().len() > issued + 20
        });
        until("the run is computed", || {
            let (status, answer) = computes.send("load-0", &run);
            status == 200 && answer["state"] == "sealed"
        });
        drop(stop);
    });
    nothing_is_lost(fleet, &signs, &sign, &issues, &issue);
}

/// Every acknowledged request is still done, with the same answer, and every other one has one
/// outcome.
pub fn nothing_is_lost(
    fleet: &Fleet,
    signs: &Load<'_>,
    sign: &dyn Fn(&str) -> Value,
    issues: &Load<'_>,
    issue: &dyn Fn(&str) -> Value,
) {
    for (key, answer) in signs.done() {
        let again = signs.send(&key, &sign(&key));
        assert_eq!(again, (200, answer), "{key}");
    }
    for (key, answer) in issues.done() {
        let again = issues.send(&key, &issue(&key));
        assert_eq!(again, (200, answer), "{key}");
    }
    let answers = issues.answers.lock().unwrap();
    let keys: Vec<String> = answers.iter().map(|(key, ..)| key.clone()).collect();
    drop(answers);
    let sent = keys.len();
    for key in keys {
        until("it is done", || issues.send(&key, &issue(&key)).0 == 200);
    }
    let balance = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    let balance = json(&fleet.get(&balance, Some(issues.token)), 200);
    assert_eq!(balance["amount_minor"], sent.to_string());
    let text = ok(&fleet.ron(&["audit", "verify"]));
    assert!(text.contains("verified"), "{text}");
    println!("{} signatures, {sent} issues", signs.done().len());
}

#[test]
fn a_process_whose_writes_hang_reports_it_and_loses_nothing() {
    let (tools, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (control, env) = preloaded(tools.path(), dir.path());
    let fleet = Fleet::start_with(Arc::new(dir), &env);
    story(&fleet, &Switch::Control(&control));
}

/// The file by which a disk below `hangs` is held, and the environment of a process in which it is.
fn preloaded(tools: &Path, hangs: &Path) -> (PathBuf, [(&'static str, PathBuf); 3]) {
    let control = tools.join("control");
    std::fs::write(&control, "-").unwrap();
    let env = [
        ("LD_PRELOAD", library(tools)),
        ("DISK_FAULT_FILE", control.clone()),
        ("DISK_FAULT_DIR", hangs.to_owned()),
    ];
    (control, env)
}

#[test]
fn a_frozen_file_system_is_reported_and_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::mount(place.path()) else {
        println!("not run: this process may not mount a loop device");
        return;
    };
    let dir = Arc::new(tempfile::tempdir_in(&disk.place).unwrap());
    let fleet = Fleet::start_in(dir);
    story(&fleet, &Switch::Freeze(&disk.place));
}

/// A fleet in which the disk hangs for one file or directory of a service only: what writes there is
/// named, and everything else goes on.
fn one_file_hangs(below: &str, (service, op): (&str, &str), provoke: impl Fn(&Fleet)) {
    let (tools, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (control, env) = preloaded(tools.path(), &dir.path().join(service).join(below));
    let often = ("RON_LEDGER_LEDGER_SNAPSHOT_EVERY", "1000".into());
    let env: Vec<_> = env.into_iter().chain([often]).collect();
    let fleet = Fleet::start_with(Arc::new(dir), &env);
    let counted = format!(
        "{}_io_timeouts_total{{op=\"{op}\"}} ",
        service.replace('-', "_")
    );
    assert!(fleet.metric(service, &counted) < 1.0);
    let switch = Switch::Control(&control);
    let hanging = Hanging::begin(&switch);
    provoke(&fleet);
    noticed(&fleet, service, Instant::now());
    assert!(fleet.metric(service, &counted) >= 1.0, "{counted}");
    drop(hanging);
    until("it is ready by itself", || says(&fleet, service).0 == 200);
}

#[test]
fn a_snapshot_of_the_ledger_that_hangs_is_reported_and_stops_no_entry() {
    let issue = |fleet: &Fleet, key: &str, count: usize| {
        let item = json!({"op": "issue", "to": "a", "asset": "ron", "amount_minor": "1"});
        let body = json!({"items": vec![item; count]}).to_string();
        let url = format!("{}/v1/batch", fleet.api("svc-wallet"));
        let token = fleet.token("svc-wallet", None);
        let reply = fleet.post(&url, Some(&token), &body, &[("Idempotency-Key", key)]);
        json(&reply, 200);
    };
    let data = "data/derived";
    one_file_hangs(data, ("ron-ledger", "snapshot"), |fleet| {
        issue(fleet, "many", 1000);
        issue(fleet, "meanwhile", 1);
    });
}

#[test]
fn counters_of_the_kms_that_hang_are_reported() {
    let data = "data/audit/counters.json";
    one_file_hangs(data, ("ron-kms", "audit"), |fleet| {
        let new = json!({"tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any", "op_id": op_id("load-0")});
        let key = fleet.kms("keys", &new, 201)["key"].clone();
        let batch = json!({"key": key, "items": vec![json!({"message": "eA"}); 1000]});
        // As many leaves as the counters are written after; the last batches wait for them.
        let url = format!("{}/v1/kms/sign_batch", fleet.api_socket("ron-kms"));
        let (token, batch) = (fleet.operator_token(), batch.to_string());
        for _ in 0..10 {
            let status = fleet.post(&url, Some(&token), &batch, &[]).status;
            assert!([200, 504].contains(&status), "{status}");
        }
    });
}

/// A second wallet, which reaches the ledger over a line, on a disk of its own.
struct Wallet {
    api: String,
    health: String,
    token: String,
    _process: Process,
}

impl Wallet {
    fn start(fleet: &Fleet, ledger: &Line, place: &Path, control: &Path) -> Self {
        let OwnPlace {
            api,
            health,
            mut sets,
        } = own_place(place, "svc-wallet");
        sets.push(format!("ledger.url={}", ledger.url));
        // One attempt, so that its outcome is unknown within a second. The ledger's silence is borne for longer than by
        // default, so that a busy machine is not taken for a ledger that hangs.
        let patience = ["tries=1", "silent_after=2s", "hangs_after=5s"];
        sets.extend(patience.map(|set| format!("ledger.{set}")));
        let config = fleet.dir().join("svc-wallet/config.toml");
        let mut command = service("svc-wallet", &config, &sets);
        command
            .env("LD_PRELOAD", library(place))
            .env("DISK_FAULT_FILE", control)
            .env("DISK_FAULT_DIR", place.join("svc-wallet-data"));
        let process = Process::start(&mut command);
        wait_listening(("127.0.0.1", api));
        Self {
            api: format!("http://127.0.0.1:{api}"),
            health: format!("http://127.0.0.1:{health}"),
            token: fleet.token("svc-wallet", None),
            _process: process,
        }
    }

    fn issue(&self, fleet: &Fleet, key: &str) -> u16 {
        let body = json!({"to": "a", "asset": "ron", "amount_minor": "1"}).to_string();
        let headers = [("Idempotency-Key", key)];
        let url = format!("{}/v1/issue", self.api);
        let reply = fleet.post(&url, Some(&self.token), &body, &headers);
        reply.status
    }

    /// Waits until it reports its disk, for a call of `op`.
    fn notices(&self, fleet: &Fleet, op: &str, since: Instant, bound: Duration) {
        let counted = format!("svc_wallet_io_timeouts_total{{op=\"{op}\"}} ");
        let none = || metric(&fleet.http, &self.health, &counted).unwrap() == "0";
        while none() || !self.missing(fleet).contains(&json!("disk")) {
            assert!(since.elapsed() < bound, "{:?}", self.missing(fleet));
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("svc-wallet: not ready after {:?}", since.elapsed());
    }

    /// The causes for which it is not ready.
    fn missing(&self, fleet: &Fleet) -> Vec<Value> {
        let reply = fleet.get(&format!("{}/readyz", self.health), None);
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        body["missing"].as_array().unwrap().clone()
    }
}

#[test]
fn a_wallet_whose_own_disk_hangs_reports_it_and_forgets_no_unknown_outcome() {
    let (fleet, place) = (Fleet::start(), tempfile::tempdir().unwrap());
    let line = Line::to(&fleet.api_socket("ron-ledger"));
    let control = place.path().join("control");
    std::fs::write(&control, "-").unwrap();
    let wallet = Wallet::start(&fleet, &line, place.path(), &control);
    until("it writes", || wallet.issue(&fleet, "before") == 200);
    let switch = Switch::Control(&control);
    std::thread::scope(|scope| {
        let hanging = Hanging::begin(&switch);
        line.set(Way::Stalled);
        let since = Instant::now();
        let open = scope.spawn(|| wallet.issue(&fleet, "open"));
        // The attempt takes a second; then the unknown outcome is written.
        let bound = Duration::from_secs(1) + NOTICED;
        wallet.notices(&fleet, "unresolved", since, bound);
        let counted = "svc_wallet_io_timeouts_total{op=\"unresolved\"} ";
        let counted = metric(&fleet.http, &wallet.health, counted).unwrap();
        assert_eq!(counted, "1");
        line.set(Way::Open);
        until("the ledger answers again", || {
            wallet.missing(&fleet) == [json!("disk")]
        });
        assert_eq!(open.join().unwrap(), 504, "its outcome is unknown");
        assert_eq!(wallet.missing(&fleet), [json!("disk")]);
        drop(hanging);
        until("it is ready by itself", || {
            wallet.missing(&fleet).is_empty()
        });
    });
    until("the outcome is found", || {
        wallet.issue(&fleet, "open") == 200
    });
    assert_eq!(wallet.issue(&fleet, "after"), 200);
    let url = format!("{}/v1/balance?account=a&asset=ron", wallet.api);
    let balance = json(&fleet.get(&url, Some(&wallet.token)), 200);
    assert_eq!(balance["amount_minor"], "3", "each once");
}

#[test]
fn a_wallet_whose_copy_of_answers_hangs_reports_it_and_takes_writes() {
    let (fleet, place) = (Fleet::start(), tempfile::tempdir().unwrap());
    let line = Line::to(&fleet.api_socket("ron-ledger"));
    let control = place.path().join("control");
    std::fs::write(&control, "-").unwrap();
    let wallet = Wallet::start(&fleet, &line, place.path(), &control);
    until("it writes", || wallet.issue(&fleet, "before") == 200);
    let switch = Switch::Control(&control);
    let hanging = Hanging::begin(&switch);
    let since = Instant::now();
    // Its entry comes back with the events of the ledger, and is copied.
    assert_eq!(wallet.issue(&fleet, "during"), 200);
    wallet.notices(&fleet, "files", since, BUSY + NOTICED);
    assert_eq!(wallet.issue(&fleet, "meanwhile"), 200);
    drop(hanging);
    until("it is ready by itself", || {
        wallet.missing(&fleet).is_empty()
    });
    assert_eq!(wallet.issue(&fleet, "during"), 200, "replayed");
}
