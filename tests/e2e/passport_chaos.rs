//! Many tokens while the KMS is stopped, killed and rotated: every issued token verifies under a
//! key that was published before, responses keep their deadline, the issuer's queues keep their
//! bounds.
//!
//! `RON_ISSUES=10000` is the long run; the default is short. `RON_QUIET=1` limits responses to 50
//! ms after their deadline.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Call, Reply};
use ron_kernel::Deadline;
use ron_proto::b64;
use ron_tests::processes::Rig;
use ron_tests::socket_of;
use serde_json::{Value, json};

/// Rounds of stops and rotations; between two of them the KMS is killed.
const ROUNDS: usize = 2;
/// Clients that send requests at the same time.
const CLIENTS: usize = 8;
/// The deadline of each request.
const DEADLINE_MS: u64 = 1_500;
/// Tolerated delay after the deadline: on a quiet machine (`RON_QUIET=1`), and on any machine,
/// where the test looks for hanging requests.
const LATE_QUIET: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(10);

/// What the clients have observed.
#[derive(Default)]
struct Observations {
    tokens: Mutex<Vec<String>>,
    published: Mutex<BTreeSet<String>>,
    refused: AtomicUsize,
    /// The longest response time, in microseconds.
    longest_us: AtomicUsize,
}

struct Issuer<'a> {
    rig: &'a Rig,
    form: String,
}

impl Issuer<'_> {
    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.rig.port("svc-passport"))
    }

    fn call(&self, call: Call<'_>) -> Option<Reply> {
        self.rig.http.call(call).ok()
    }

    fn ask(&self) -> Option<Reply> {
        let deadline = DEADLINE_MS.to_string();
        let headers = [("X-Request-Deadline-Ms", deadline.as_str())];
        self.call(Call {
            method: ron_http::Method::POST,
            url: &self.url("/oauth2/token"),
            headers: &headers,
            body: Some(self.form.clone().into_bytes()),
            content_type: Some("application/x-www-form-urlencoded"),
            deadline: Deadline::within(Duration::from_secs(20)),
            idempotent: false,
        })
    }

    fn published(&self) -> BTreeSet<String> {
        let url = self.url("/.well-known/jwks.json");
        let reply = self.call(Call::get(&url, Deadline::within(Duration::from_secs(20))));
        let jwks: Value = serde_json::from_slice(&reply.unwrap().body).unwrap();
        let keys = jwks["keys"].as_array().unwrap();
        keys.iter()
            .map(|k| k["kid"].as_str().unwrap().to_owned())
            .collect()
    }

    fn verified(&self, tokens: &[String]) -> Vec<bool> {
        let body = json!({"tokens": tokens}).to_string().into_bytes();
        let url = self.url("/v1/passport/verify_batch");
        let reply = self.call(Call::post_json(
            &url,
            body,
            Deadline::within(Duration::from_secs(20)),
        ));
        let answer: Value = serde_json::from_slice(&reply.unwrap().body).unwrap();
        let results = answer["results"].as_array().unwrap();
        results.iter().map(|r| r["ok"] == true).collect()
    }

    fn depth(&self) -> f64 {
        let url = format!(
            "http://127.0.0.1:{}/metrics",
            self.rig.port("svc-passport") + 5
        );
        let reply = self
            .call(Call::get(&url, Deadline::within(Duration::from_secs(20))))
            .unwrap();
        let text = String::from_utf8(reply.body).unwrap();
        let line = text
            .lines()
            .find(|l| l.starts_with("svc_passport_queue_depth{queue=\"issue\"}"));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// One client: requests tokens until there are enough.
    fn client(&self, seen: &Observations, wanted: usize) {
        while seen.tokens.lock().unwrap().len() < wanted {
            let began = Instant::now();
            let reply = self.ask().expect("the issuer itself stays up and answers");
            let took = usize::try_from(began.elapsed().as_micros()).unwrap();
            seen.longest_us.fetch_max(took, Ordering::Relaxed);
            if reply.status != 200 {
                assert!(
                    [429, 502, 503, 504].contains(&reply.status),
                    "{}",
                    reply.status
                );
                seen.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            let made: Value = serde_json::from_slice(&reply.body).unwrap();
            let token = made["access_token"].as_str().unwrap().to_owned();
            let header = b64::from_url(token.split('.').next().unwrap()).unwrap();
            let header: Value = serde_json::from_slice(&header).unwrap();
            let kid = header["kid"].as_str().unwrap();
            let known = seen.published.lock().unwrap().contains(kid);
            if !known {
                let now = self.published();
                assert!(now.contains(kid), "signed by {kid}, which is not published");
                seen.published.lock().unwrap().extend(now);
            }
            assert_eq!(self.verified(std::slice::from_ref(&token)), [true]);
            seen.tokens.lock().unwrap().push(token);
        }
    }
}

fn form(rig: &Rig) -> String {
    let client = std::fs::read(rig.dir.path().join("clients/operator.json")).unwrap();
    let client: Value = serde_json::from_slice(&client).unwrap();
    let secret = client["client_secret"].as_str().unwrap();
    format!(
        "grant_type=client_credentials&audience=svc-wallet&client_id=operator&client_secret={secret}"
    )
}

/// Makes a new version of the issuer's key, if the KMS responds.
fn rotate(rig: &Rig) -> bool {
    let read = |name: &str| std::fs::read_to_string(rig.dir.path().join(name)).unwrap();
    let bootstrap: Value = serde_json::from_str(&read("bootstrap.json")).unwrap();
    let key = bootstrap["issuer_key"].as_str().unwrap().to_owned();
    let bearer = format!("Bearer {}", read("clients/operator.kms.token").trim());
    let kms = socket_of(rig.dir.path(), "ron-kms", "api");
    let url = format!("{kms}/v1/kms/keys/{key}/rotate");
    let headers = [("Authorization", bearer.as_str())];
    let call = Call::post_json(
        &url,
        b"{}".to_vec(),
        Deadline::within(Duration::from_secs(5)),
    );
    rig.http
        .call(call.headers(&headers))
        .is_ok_and(|reply| reply.is_success())
}

/// What one round observed of the KMS's key and of the issuer's queue.
#[derive(Default)]
struct Round {
    rotations: usize,
    deepest: f64,
}

/// Clients request tokens until there are `wanted`, while the key is rotated and the KMS stopped
/// and continued.
fn stopped_and_rotated(
    rig: &Rig,
    issuer: &Issuer<'_>,
    seen: &Observations,
    wanted: usize,
) -> Round {
    let mut round = Round::default();
    let pause = |ms: u64| std::thread::sleep(Duration::from_millis(ms));
    std::thread::scope(|scope| {
        let ask = || scope.spawn(|| issuer.client(seen, wanted));
        let clients: Vec<_> = (0..CLIENTS).map(|_| ask()).collect();
        loop {
            pause(150);
            round.rotations += usize::from(rotate(rig));
            pause(150);
            rig.signal("ron-kms", "-STOP");
            pause(DEADLINE_MS + 200);
            round.deepest = round.deepest.max(issuer.depth());
            rig.signal("ron-kms", "-CONT");
            if clients
                .iter()
                .all(std::thread::ScopedJoinHandle::is_finished)
            {
                break;
            }
            pause(600);
        }
        for client in clients {
            client.join().unwrap();
        }
    });
    round
}

/// The KMS is killed while clients request tokens: they are refused in time, and served again after
/// its restart.
fn killed(rig: &mut Rig, form: &str, seen: &Observations) {
    let (port, stop) = (rig.port("svc-passport"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| hammer(port, form, seen, &stop));
        }
        rig.kill("ron-kms");
        std::thread::sleep(Duration::from_millis(300));
        rig.run("ron-kms");
        rig.wait_ready("ron-kms");
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn whatever_happens_to_the_kms_no_bad_token_leaves_and_no_answer_is_late() {
    let wanted = std::env::var("RON_ISSUES").map_or(200, |n| n.parse().unwrap());
    let mut rig = Rig::start();
    let seen = Observations::default();
    let (mut rotations, mut deepest) = (0, 0.0_f64);
    let form = form(&rig);
    for round in 1..=ROUNDS {
        let issuer = Issuer {
            rig: &rig,
            form: form.clone(),
        };
        let part = stopped_and_rotated(&rig, &issuer, &seen, wanted * round / ROUNDS);
        rotations += part.rotations;
        deepest = deepest.max(part.deepest);
        if round < ROUNDS {
            killed(&mut rig, &form, &seen);
        }
    }
    let tokens = seen.tokens.into_inner().unwrap();
    let issuer = Issuer { rig: &rig, form };
    // As many as fit into a body without authentication.
    for some in tokens.chunks(50) {
        let good = issuer.verified(some).iter().all(|ok| *ok);
        assert!(good, "a token of before a rotation no longer verifies");
    }
    let longest = Duration::from_micros(seen.longest_us.into_inner() as u64);
    println!(
        "{} tokens, {} refusals, {rotations} rotations, longest answer {longest:?}, deepest queue {deepest}",
        tokens.len(),
        seen.refused.into_inner()
    );
    assert!(
        tokens.len() >= wanted && rotations >= ROUNDS,
        "{rotations} rotations"
    );
    assert!(deepest <= 512.0, "{deepest}");
    let quiet = std::env::var("RON_QUIET").is_ok();
    let late = if quiet { LATE_QUIET } else { LATE };
    assert!(
        longest < Duration::from_millis(DEADLINE_MS) + late,
        "{longest:?}"
    );
}

/// Sends requests with a client of its own until stopped, because the rig is busy with its
/// processes. Issued tokens are kept to be verified with the others.
fn hammer(port: u16, form: &str, seen: &Observations, stop: &AtomicBool) {
    let http = ron_tests::http_client();
    let url = format!("http://127.0.0.1:{port}/oauth2/token");
    let deadline = DEADLINE_MS.to_string();
    let headers = [("X-Request-Deadline-Ms", deadline.as_str())];
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let reply = http.call(Call {
            method: ron_http::Method::POST,
            url: &url,
            headers: &headers,
            body: Some(form.as_bytes().to_vec()),
            content_type: Some("application/x-www-form-urlencoded"),
            deadline: Deadline::within(Duration::from_secs(20)),
            idempotent: false,
        });
        let took = usize::try_from(began.elapsed().as_micros()).unwrap();
        seen.longest_us.fetch_max(took, Ordering::Relaxed);
        let reply = reply.expect("the issuer itself stays up and answers");
        if reply.status == 200 {
            let made: Value = serde_json::from_slice(&reply.body).unwrap();
            let token = made["access_token"].as_str().unwrap().to_owned();
            seen.tokens.lock().unwrap().push(token);
        } else {
            assert!(
                [429, 502, 503, 504].contains(&reply.status),
                "{}",
                reply.status
            );
            seen.refused.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
