//! Worker threads of a running service are killed under load: they are back at once, the service stays ready, every request
//! is answered and does what it says, and no thread, key or queue place is left over.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_client::{Credential, KmsClient};
use ron_http::{Call, HttpClient, Reply};
use ron_kernel::{Deadline, PlaneState};
use ron_proto::kms::{CreateKey, PayloadPolicy, SignAnswer};
use ron_proto::status::Readiness;
use ron_proto::values::{Alg, Kid, OpId};
use ron_service::Running;
use ron_tests::in_process::{self, FailingClock};
use ron_tests::issuer::claims;
use ron_tests::processes::{Rig, code};
use ron_tests::{base_port, http_client, json, ok, read_json, ron_on, socket_of, until};
use serde_json::json;

/// Kills below the budget of ten restarts a minute.
const KILLS: u32 = 8;

fn plane(running: &Running, name: &str) -> PlaneState {
    let planes = running.supervisor().planes();
    let found = planes.into_iter().find(|plane| plane.name == name);
    found.expect("a row with threads")
}

/// Sets the flag however the scope is left, so that the threads in it end.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Causes of a ledger that answers late, which a busy machine or disk brings about as well.
const LATE_LEDGER: [&str; 2] = ["ledger", "ledger_writes"];

/// Asks `/readyz` until told to stop; returns the causes that were reported as degraded. Fails at the
/// first cause that stops the service, but for a late ledger.
fn stays_ready(http: &HttpClient, health: &str, stop: &AtomicBool) -> BTreeSet<String> {
    let mut degraded = BTreeSet::new();
    while !stop.load(Ordering::SeqCst) {
        let url = format!("{health}/readyz");
        let reply = http.call(Call::get(&url, Deadline::within(Duration::from_secs(10))));
        let reply = reply.expect("the health port answers");
        let board: Readiness = reply.json().expect("a board");
        let late = |cause: &String| LATE_LEDGER.contains(&cause.as_str());
        assert!(board.missing.iter().all(late), "{board:?}");
        degraded.extend(board.degraded);
        std::thread::sleep(Duration::from_millis(5));
    }
    degraded
}

/// Kills the threads of a pool one after the other, each after it has read the clock a few times more.
fn kill_in_turn(running: &Running, clock: &FailingClock, row: &str, threads: u32) {
    for n in 0..KILLS {
        let before = plane(running, row).restarts;
        clock.kill(&format!("{row}-{}", n % threads), n);
        until("the thread dies and is started again", || {
            clock.all_killed() && plane(running, row).restarts > before
        });
        until("the pool is whole", || {
            let plane = plane(running, row);
            plane.live == plane.total
        });
    }
}

/// Ends the service; nothing of it may be left.
fn ends_clean(mut running: Running) {
    let report = running.drain(Duration::from_secs(20));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert_eq!(running.exit_code(&report), 0);
}

/// What signing clients saw.
#[derive(Default)]
struct Signed {
    answers: Mutex<Vec<(OpId, SignAnswer)>>,
    times: Mutex<Vec<Duration>>,
    /// Requests whose signer was killed.
    lost: AtomicU64,
}

impl Signed {
    /// Signs with new operation ids until told to stop. A request that met a fault is sent again.
    fn run(&self, http: &HttpClient, kms: &Signing, client: u64, stop: &AtomicBool) {
        for n in 0_u64.. {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            let op_id = OpId(uuid::Uuid::from_u64_pair(client + 1, n));
            let began = Instant::now();
            let mut reply = kms.sign(http, op_id);
            for _ in 0..KILLS {
                if reply.status == 500 {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                    reply = kms.sign(http, op_id);
                }
            }
            self.times.lock().unwrap().push(began.elapsed());
            let answer = serde_json::from_value(json(&reply, 200)).unwrap();
            self.answers.lock().unwrap().push((op_id, answer));
        }
    }

    fn p95(&self) -> Duration {
        let mut times = std::mem::take(&mut *self.times.lock().unwrap());
        times.sort();
        times[times.len() * 95 / 100]
    }
}

/// A key of a KMS, and the operator's token.
struct Signing {
    url: String,
    bearer: String,
    key: Kid,
}

impl Signing {
    fn on(dir: &Path) -> Self {
        let base = socket_of(dir, "ron-kms", "api");
        let token = std::fs::read_to_string(dir.join("clients/operator.kms.token")).unwrap();
        let token = token.trim();
        let client = KmsClient::new(&base, Credential::bearer(token), http_client().into());
        let request = CreateKey {
            tenant: "ron".parse().unwrap(),
            purpose: "killed".parse().unwrap(),
            alg: Alg::Ed25519,
            payload: PayloadPolicy::Any,
            exportable: false,
            derived: false,
            rotate_every: None,
            backend: None,
            op_id: OpId(uuid::Uuid::from_u64_pair(0, 1)),
            token: None,
        };
        let made = client.create_key(&request, Deadline::within(Duration::from_secs(10)));
        Self {
            url: format!("{base}/v1/kms/sign"),
            bearer: format!("Bearer {token}"),
            key: made.unwrap().key,
        }
    }

    fn sign(&self, http: &HttpClient, op_id: OpId) -> Reply {
        let body = json!({"key": self.key, "op_id": op_id, "message": "aGVsbG8"});
        let by = Deadline::within(Duration::from_secs(20));
        let headers = [("Authorization", self.bearer.as_str())];
        let call = Call::post_json(&self.url, body.to_string().into_bytes(), by);
        http.call(call.headers(&headers)).expect("an answer")
    }
}

#[test]
fn killed_signers_are_back_at_once_and_no_signature_is_lost_or_made_twice() {
    const SIGNERS: u32 = 4;
    let dir = tempfile::tempdir().unwrap();
    let base = base_port();
    let init = ["init", "--base-port", &base.to_string()];
    ok(&ron_on(dir.path(), &init));
    let clock = FailingClock::new();
    let sets = [("signers", "4"), ("limits.auth_failures_per_second", "0")];
    let running = in_process::start(dir.path(), "ron-kms", clock.clone(), &sets);
    let kms = Signing::on(dir.path());
    let (http, signed, stop) = (http_client(), Signed::default(), AtomicBool::new(false));
    let (quiet, killing, degraded) = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for client in 0..8 {
            let (http, signed, kms, stop) = (&http, &signed, &kms, &stop);
            scope.spawn(move || signed.run(http, kms, client, stop));
        }
        let watch = scope.spawn(|| stays_ready(&http, &running.health_url(), &stop));
        let many = |n| until("signatures", || signed.times.lock().unwrap().len() > n);
        many(1_000);
        let quiet = signed.p95();
        kill_in_turn(&running, &clock, "kms-signer", SIGNERS);
        many(1_000);
        let killing = signed.p95();
        stop.store(true, Ordering::SeqCst);
        (quiet, killing, watch.join().unwrap())
    });
    let lost = signed.lost.load(Ordering::SeqCst);
    println!(
        "p95 {quiet:?}, with killed signers {killing:?}; {lost} requests met one; degraded: {degraded:?}"
    );
    // A killed signer held one request, which was answered 500 at once and done when it was sent again.
    assert_eq!(lost, u64::from(KILLS));
    assert_eq!(plane(&running, "kms-signer").restarts, KILLS);
    assert!(killing < quiet * 10 + Duration::from_millis(100));
    let answers = signed.answers.into_inner().unwrap();
    let leaves: BTreeSet<u64> = answers.iter().map(|(_, a)| a.receipt.index).collect();
    assert_eq!(leaves.len(), answers.len(), "each has a leaf of its own");
    for (op_id, answer) in answers.iter().rev().step_by(50) {
        let again = json(&kms.sign(&http, *op_id), 200);
        assert_eq!(
            serde_json::from_value::<SignAnswer>(again).unwrap(),
            *answer
        );
    }
    // No issuer runs here.
    assert_eq!(running.ready().degraded, ["passports"]);
    ends_clean(running);
}

/// A client of the issuer.
struct Asking {
    url: String,
    form: String,
}

impl Asking {
    fn of(rig: &Rig) -> Self {
        let client = read_json(&rig.dir.path().join("clients/operator.json"));
        let secret = client["client_secret"].as_str().unwrap();
        Self {
            url: format!("http://127.0.0.1:{}", rig.port("svc-passport")),
            form: format!(
                "grant_type=client_credentials&audience=svc-wallet&client_id=operator&client_secret={secret}"
            ),
        }
    }

    /// Asks for tokens until told to stop. A request that met a killed worker is sent again.
    fn run(
        &self,
        http: &HttpClient,
        stop: &AtomicBool,
        lost: &AtomicU64,
        got: &Mutex<Vec<String>>,
    ) {
        let url = format!("{}/oauth2/token", self.url);
        while !stop.load(Ordering::SeqCst) {
            let call = Call {
                content_type: Some("application/x-www-form-urlencoded"),
                ..Call::post_json(
                    &url,
                    self.form.clone().into_bytes(),
                    Deadline::within(Duration::from_secs(20)),
                )
            };
            let reply = match http.call(call) {
                Ok(reply) if reply.status != 500 => reply,
                // Without an answer: the worker died while it sent it.
                Ok(_) | Err(_) => {
                    lost.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
            };
            let token = json(&reply, 200)["access_token"].clone();
            got.lock().unwrap().push(token.as_str().unwrap().to_owned());
        }
    }
}

#[test]
fn killed_issue_workers_leave_no_request_without_an_answer_and_no_place_to_two_tokens() {
    const WORKERS: u32 = 2;
    let mut rig = Rig::start();
    rig.kill("svc-passport");
    let clock = FailingClock::new();
    let sets = [("issue.workers", "2"), ("kms.timeout", "4s")];
    let running = in_process::start(rig.dir.path(), "svc-passport", clock.clone(), &sets);
    rig.wait_ready("svc-passport");
    let asking = Asking::of(&rig);
    let (stop, lost, got) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
    let degraded = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for _ in 0..8 {
            scope.spawn(|| asking.run(&rig.http, &stop, &lost, &got));
        }
        let watch = scope.spawn(|| stays_ready(&rig.http, &running.health_url(), &stop));
        let more = |n: usize| {
            let before = got.lock().unwrap().len();
            until("tokens", || got.lock().unwrap().len() > before + n);
        };
        more(100);
        kill_in_turn(&running, &clock, "pass-issue", WORKERS);
        more(100);
        stop.store(true, Ordering::SeqCst);
        watch.join().unwrap()
    });
    let (tokens, lost) = (got.into_inner().unwrap(), lost.into_inner());
    println!(
        "{} tokens, {lost} requests met a killed worker; degraded: {degraded:?}",
        tokens.len()
    );
    assert_eq!(plane(&running, "pass-issue").restarts, KILLS);
    let (kills, clients) = (u64::from(KILLS), 8);
    assert!(
        (kills..=kills * clients).contains(&lost),
        "each held a request: {lost}"
    );
    let said: Vec<serde_json::Value> = tokens.iter().map(|token| claims(token)).collect();
    for member in ["jti", "status"] {
        let each: BTreeSet<String> = said.iter().map(|said| said[member].to_string()).collect();
        assert_eq!(each.len(), said.len(), "{member}");
    }
    for token in tokens.iter().rev().step_by(20) {
        let body = json!({"token": token}).to_string().into_bytes();
        let url = format!("{}/v1/passport/verify", asking.url);
        let by = Deadline::within(Duration::from_secs(20));
        let reply = rig.http.call(Call::post_json(&url, body, by)).unwrap();
        assert_eq!(json(&reply, 200)["ok"], true);
    }
    ends_clean(running);
}

/// One account's issues, each sent until its outcome is known. The sum of what was promised.
fn issues(rig: &Rig, account: &str, stop: &AtomicBool, lost: &AtomicU64) -> u64 {
    let mut promised = 0;
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            return promised;
        }
        let key = format!("{account}-{n}");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let reply = rig.issue(&key, account, 1);
            // Without an answer: the committer died while it sent it.
            let (status, code) = reply
                .as_ref()
                .map_or((0, String::new()), |reply| (reply.status, code(reply)));
            match (status, code.as_str()) {
                (200, _) => {
                    promised += 1;
                    break;
                }
                // The unknown outcome was settled as: not done, and never will be.
                (409, "abandoned") => break,
                (0 | 429 | 500 | 504, _) | (503, "retry_later") | (409, "in_flight") => {}
                (status, code) => panic!("{key}: {status} {code}"),
            }
            lost.fetch_add(1, Ordering::SeqCst);
            assert!(Instant::now() < until, "{key} has no outcome: {reply:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    promised
}

#[test]
fn killed_committers_leave_no_key_without_an_outcome_and_pay_nothing_twice() {
    const COMMITTERS: u32 = 2;
    let mut rig = Rig::start();
    rig.kill("svc-wallet");
    let clock = FailingClock::new();
    let sets = [
        ("wallet.committers", "2"),
        ("limits.rate_per_second", "0"),
        ("ledger.silent_after", "2s"),
        ("ledger.hangs_after", "5s"),
    ];
    let running = in_process::start(rig.dir.path(), "svc-wallet", clock.clone(), &sets);
    rig.wait_ready("svc-wallet");
    let (stop, lost) = (AtomicBool::new(false), AtomicU64::new(0));
    let accounts: Vec<String> = (0..16).map(|n| format!("killed-{n}")).collect();
    let (promised, degraded) = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let clients: Vec<_> = accounts
            .iter()
            .map(|account| scope.spawn(|| issues(&rig, account, &stop, &lost)))
            .collect();
        let watch = scope.spawn(|| stays_ready(&rig.http, &running.health_url(), &stop));
        kill_in_turn(&running, &clock, "wal-commit", COMMITTERS);
        stop.store(true, Ordering::SeqCst);
        let promised: Vec<u64> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        (promised, watch.join().unwrap())
    });
    let (sum, lost) = (promised.iter().sum::<u64>(), lost.into_inner());
    println!("{sum} issues, {lost} answers sent again; degraded: {degraded:?}");
    assert_eq!(plane(&running, "wal-commit").restarts, KILLS);
    assert!(lost > 0, "the kills met writes");
    for (account, promised) in accounts.iter().zip(promised) {
        let balance = rig.balance(account);
        assert_eq!(balance["amount_minor"], promised.to_string(), "{account}");
    }
    until("no outcome is left open", || {
        rig.wallet_metric("svc_wallet_unresolved_keys ") == 0
    });
    // No slot of a killed committer counts as a call that hangs.
    until("the ledger is in time again", || running.ready().ready);
    ends_clean(running);
}
