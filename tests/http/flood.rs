//! Cheap requests in large numbers, from one address, against a whole fleet: they exhaust that
//! address's share and nothing else, and memory is released.
//!
//! `RON_FLOOD_SECONDS=60` (`cargo xtask flood 60`) runs the mixed flood for that long and writes
//! the measurements to
//! `docs/bench/flood.md`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sound;
use crate::wire::{Wire, addr_of};
use ron_proto::b64;
use ron_tests::{Fleet, json, ok, ron_binary, until, workspace};

/// Address of the flood; ordinary clients use 127.0.0.1.
const SOURCE: [u8; 4] = [127, 0, 0, 2];
/// Maximum wait for a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum memory of `ron up` during a flood and after it, in KiB.
const PEAK_KIB: u64 = 256 << 10;
const AFTER_KIB: u64 = 100 << 10;
/// Requests and connections of the mixed flood in a second.
const PER_SECOND: u32 = 2000;

/// These tests load the machine fully, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

fn http(request: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{request} HTTP/1.1\r\nHost: t\r\n");
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
    text.into_bytes()
}

/// A request for a token, as the operator's client sends it with this secret.
fn token_request(secret: &str) -> Vec<u8> {
    let basic = format!(
        "Basic {}",
        b64::std(format!("operator:{secret}").as_bytes())
    );
    let headers = [
        ("Authorization", basic.as_str()),
        ("Content-Type", "application/x-www-form-urlencoded"),
    ];
    let body = "grant_type=client_credentials&audience=svc-wallet&scope=wallet:read";
    http("POST /oauth2/token", &headers, body)
}

/// The token request of a client that knows the secret.
fn good_token_request(fleet: &Fleet) -> Vec<u8> {
    let text = std::fs::read(fleet.dir().join("clients/operator.json")).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&text).unwrap();
    token_request(file["client_secret"].as_str().unwrap())
}

/// A long poll that no event ends early.
fn poll_request(fleet: &Fleet) -> Vec<u8> {
    let end = json(&fleet.revocations(""), 200)["next"].as_u64().unwrap();
    let token = fleet.token("svc-passport", Some("passport:introspect"));
    format!("GET /v1/passport/events?after={end}&wait=30 HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\n\r\n")
        .into_bytes()
}

fn connections(fleet: &Fleet) -> f64 {
    fleet.metric("svc-passport", "svc_passport_http_connections ")
}

#[test]
fn closed_long_polls_keep_nothing() {
    let _turn = alone();
    let fleet = Fleet::as_by_default();
    let passport = addr_of(&fleet.api("svc-passport"));
    let (poll, ask) = (poll_request(&fleet), good_token_request(&fleet));
    assert_eq!(status(&mut Wire::connect(passport), &ask), 200);
    for _ in 0..1010 {
        Wire::connect_from(SOURCE, passport).unwrap().send(&poll);
    }
    // Everything sent before has been processed by now.
    for _ in 0..20 {
        Wire::connect(passport)
            .send(&sound::get("after"))
            .answer(PATIENCE)
            .unwrap();
    }
    assert_eq!(status(&mut Wire::connect(passport), &ask), 200);
    let verify = status(&mut Wire::connect(passport), &sound::post());
    assert_eq!(verify, 200);
    // Connections that were accepted and closed leave nothing behind.
    until("their connections are closed", || {
        connections(&fleet) < 30.0
    });
    let mut again = Wire::connect_from(SOURCE, passport).unwrap();
    again.send(&poll);
    until("a new long poll waits", || {
        fleet.metric("svc-passport", "svc_passport_http_in_flight ") >= 1.0
    });
    // A position beyond the end does not wait: the reader is told to start over.
    let beyond = fleet.revocations("?after=99999999&wait=30");
    let end = fleet.revocations("?after=0");
    assert_eq!(json(&beyond, 200)["next"], json(&end, 200)["next"]);
    let token = fleet.token("svc-passport", None);
    let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
    let body = r#"{"jti":"flood-test","reason":"test"}"#;
    assert_eq!(fleet.post(&url, Some(&token), body, &[]).status, 200);
}

fn status(wire: &mut Wire, request: &[u8]) -> u16 {
    wire.send(request).answer(PATIENCE).unwrap().status
}

#[test]
fn large_bodies_of_unauthenticated_callers_take_little_memory() {
    let _turn = alone();
    let fleet = Fleet::as_by_default();
    let passport = addr_of(&fleet.api("svc-passport"));
    let idle = rss_kib(fleet.pid());
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n\r\n",
        sound::POST
    );
    let piece = vec![b' '; 64 << 10];
    let mut wires = Vec::new();
    let mut peak = 0;
    for _ in 0..900 {
        let mut wire = Wire::connect_from(SOURCE, passport).unwrap();
        wire.send(head.as_bytes());
        wire.stream.set_nonblocking(true).unwrap();
        wires.push((wire, 0));
    }
    // All but the last byte, as far as the server reads.
    for _ in 0..40 {
        for (wire, sent) in &mut wires {
            while *sent + piece.len() < 1 << 20 && wire.stream.write_all(&piece).is_ok() {
                *sent += piece.len();
            }
        }
        peak = peak.max(rss_kib(fleet.pid()));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(status(&mut Wire::connect(passport), &sound::post()), 200);
    println!("900 bodies of 1 MiB: {idle} KiB idle, {peak} KiB at most");
    assert!(peak < PEAK_KIB, "{peak} KiB");
    drop(wires);
    until("memory is given back", || rss_kib(fleet.pid()) < AFTER_KIB);
}

#[test]
fn idle_sockets_of_one_address_keep_nobody_out() {
    let _turn = alone();
    let fleet = Fleet::as_by_default();
    let passport = addr_of(&fleet.api("svc-passport"));
    let health = addr_of(&fleet.health("svc-passport"));
    let hoard = |addr, many: usize| -> Vec<Wire> {
        let connect = |_| Wire::connect_from(SOURCE, addr).ok();
        (0..many).filter_map(connect).collect()
    };
    let kept = (hoard(passport, 1060), hoard(health, 1000));
    assert!(kept.0.len() == 1060 && kept.1.len() == 1000);
    for turn in 0..20 {
        let get = sound::get(&format!("t{turn}"));
        assert_eq!(status(&mut Wire::connect(passport), &get), 200);
        let ready = b"GET /readyz HTTP/1.1\r\nHost: t\r\n\r\n";
        assert_eq!(status(&mut Wire::connect(health), ready), 200);
    }
    assert!(connections(&fleet) < 700.0);
}

/// What an ordinary client observed.
#[derive(Debug, Default)]
struct Observations {
    latencies: Vec<Duration>,
    failures: Vec<String>,
    /// Answers that the KMS was not in time for: compilers beside the test do that as well, so a few
    /// are no finding. A client sends the request again.
    late: usize,
}

impl Observations {
    fn p99_ms(&mut self) -> f64 {
        self.latencies.sort_unstable();
        let last = self.latencies.len() - 1;
        self.latencies[last * 99 / 100].as_secs_f64() * 1e3
    }
}

/// Requests tokens on one connection, about 200 a second, until stopped.
fn issue(addr: SocketAddr, ask: &[u8], stop: &AtomicBool) -> Observations {
    let mut seen = Observations::default();
    let mut wire = Wire::connect(addr);
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        match wire.send(ask).answer(PATIENCE) {
            Ok(answer) if answer.status == 200 => seen.latencies.push(sent.elapsed()),
            Ok(answer) if answer.text().contains("the KMS did not answer in time") => {
                seen.late += 1;
            }
            Ok(answer) => seen.failures.push(answer.text()),
            Err(end) => {
                seen.failures.push(format!("{end:?}"));
                wire = Wire::connect(addr);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    seen
}

/// Everything a flood sends, prepared before it begins.
struct Flood {
    passport: SocketAddr,
    wallet: SocketAddr,
    poll: Vec<u8>,
    body: Vec<u8>,
    wrong_secret: Vec<u8>,
    used_proof: Vec<u8>,
}

/// What one of its threads repeats.
type Act<'a> = Box<dyn FnMut() + Send + 'a>;

impl Flood {
    fn of(fleet: &Fleet) -> Self {
        let head = format!("POST {} HTTP/1.1\r\nHost: t", sound::POST);
        let head = format!("{head}\r\nContent-Type: application/json\r\nContent-Length");
        let mut body = format!("{head}: 1048576\r\n\r\n").into_bytes();
        body.resize(body.len() + (256 << 10), b' ');
        Self {
            passport: addr_of(&fleet.api("svc-passport")),
            wallet: addr_of(&fleet.api("svc-wallet")),
            poll: poll_request(fleet),
            body,
            wrong_secret: token_request("not-the-secret"),
            used_proof: used_proof(fleet),
        }
    }

    fn kinds(&self) -> [Act<'_>; 6] {
        let connect = |addr| Wire::connect_from(SOURCE, addr).ok();
        let keep = |kept: &mut VecDeque<Wire>, most, wire| {
            kept.extend(wire);
            while kept.len() > most {
                kept.pop_front();
            }
        };
        let (mut idle, mut large, mut small) = Default::default();
        let (mut proofs, mut secrets) = (None, None);
        // Unfinished, and below the bound for unauthenticated callers.
        let head = &self.body[..self.body.len() - (256 << 10)];
        let below = String::from_utf8_lossy(head).replace("1048576", "65536");
        let below = [below.as_bytes(), &self.body[head.len()..][..60 << 10]].concat();
        [
            Box::new(move || {
                let _closed = connect(self.passport).map(|mut wire| {
                    wire.send(&self.poll);
                    wire
                });
            }),
            Box::new(move || keep(&mut idle, 1060, connect(self.passport))),
            Box::new(move || {
                let wire = connect(self.passport).map(|wire| sent(wire, &self.body));
                keep(&mut large, 900, wire);
            }),
            Box::new(move || {
                let wire = connect(self.passport).map(|wire| sent(wire, &below));
                keep(&mut small, 900, wire);
            }),
            Box::new(move || repeat(&mut proofs, self.wallet, &self.used_proof)),
            Box::new(move || repeat(&mut secrets, self.passport, &self.wrong_secret)),
        ]
    }

    /// Runs for a while, at the lowest priority; returns the number of requests and connections.
    fn run(&self, length: Duration) -> u64 {
        let (begun, done) = (Instant::now(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for mut act in self.kinds() {
                let done = &done;
                scope.spawn(move || {
                    rustix::process::setpriority_process(None, 19).expect("a lower priority");
                    let pause = Duration::from_secs(6) / PER_SECOND;
                    while begun.elapsed() < length {
                        let sent = Instant::now();
                        act();
                        done.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(pause.saturating_sub(sent.elapsed()));
                    }
                });
            }
        });
        done.into_inner()
    }
}

/// Sends as much as the socket accepts at once.
fn sent(mut wire: Wire, bytes: &[u8]) -> Wire {
    let _ = wire.stream.set_nonblocking(true);
    let _ = wire.stream.write(bytes);
    wire
}

/// Sends a request on a kept connection and reads its response.
fn repeat(kept: &mut Option<Wire>, addr: SocketAddr, request: &[u8]) {
    if kept.is_none() {
        *kept = Wire::connect_from(SOURCE, addr).ok();
    }
    let answered = kept
        .as_mut()
        .map(|wire| wire.send(request).answer(PATIENCE));
    if !matches!(answered, Some(Ok(_))) {
        *kept = None;
    }
}

/// `ron <args>`; what it prints.
fn bare(args: &[&str]) -> String {
    ok(&Command::new(ron_binary()).args(args).output().unwrap())
}

/// A request to the wallet with a proof that has been used.
fn used_proof(fleet: &Fleet) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    let key = key.to_str().unwrap();
    bare(&["token", "key", key]);
    let token = ok(&fleet.ron(&["token", "--audience", "svc-wallet", "--key", key]));
    let token = token.trim();
    let path = "/v1/balance?account=acct%3Aoperator&asset=ron";
    let base = fleet.api("svc-wallet");
    let url = format!("{base}{path}");
    let proof = bare(&["token", "proof", token, "--key", key, "--url", &url]);
    let credential = format!("DPoP {token}");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {credential}\r\nDPoP: {}\r\n\r\n",
        base.trim_start_matches("http://"),
        proof.trim()
    );
    let mut wire = Wire::connect(addr_of(&base));
    let first = status(&mut wire, request.as_bytes());
    assert!(first == 200 || first == 404, "{first}");
    assert_eq!(status(&mut wire, request.as_bytes()), 401, "it counts once");
    request.into_bytes()
}

#[test]
fn a_flood_from_one_address_hurts_no_other() {
    let _turn = alone();
    let asked = std::env::var("RON_FLOOD_SECONDS").ok();
    let seconds = asked.as_ref().map_or(5, |text| text.parse().unwrap());
    let fleet = Fleet::as_by_default();
    let (flood, ask) = (Flood::of(&fleet), good_token_request(&fleet));
    let pid = fleet.pid();
    let watched = |work: &dyn Fn() -> u64| {
        let (stop, peak) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| issue(flood.passport, &ask, &stop));
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    peak.fetch_max(rss_kib(pid), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let done = work();
            stop.store(true, Ordering::Relaxed);
            (client.join().unwrap(), peak.load(Ordering::Relaxed), done)
        })
    };
    let (mut quiet, idle, _) = watched(&|| {
        std::thread::sleep(Duration::from_secs(2));
        0
    });
    let (mut seen, peak, done) = watched(&|| flood.run(Duration::from_secs(seconds)));
    let ended = Instant::now();
    let (before, under) = (quiet.p99_ms(), seen.p99_ms());
    println!(
        "{seconds} s, {done} requests and connections: {} tokens, p99 {under:.2} ms (quiet {before:.2} ms); \
         memory {idle} KiB before, {peak} KiB at most",
        seen.latencies.len()
    );
    assert_eq!(quiet.failures, [""; 0]);
    assert_eq!(seen.failures, [""; 0], "another address was refused");
    let late = quiet.late + seen.late;
    assert!(late * 10 <= seen.latencies.len(), "{late} were late");
    assert!(peak < PEAK_KIB, "{peak} KiB");
    while rss_kib(pid) >= AFTER_KIB {
        assert!(
            ended.elapsed() < Duration::from_secs(60),
            "{} KiB a minute after the flood",
            rss_kib(pid)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let after = rss_kib(pid);
    println!("{after} KiB after {:?}", ended.elapsed());
    if asked.is_some() {
        let row = format!(
            "| {seconds} | {} | {} | {before:.1} | {under:.1} | {} | {} | {} |\n",
            done / seconds,
            seen.latencies.len(),
            idle >> 10,
            peak >> 10,
            after >> 10
        );
        std::fs::write(
            workspace().join("docs/bench/flood.md"),
            PAGE.to_owned() + &row,
        )
        .unwrap();
    }
}

/// The page of figures, without its row.
const PAGE: &str = "# Flood

Cheap requests in large numbers from one address (127.0.0.2, at the lowest priority, on the machine of the service): long polls
that are closed at once, idle connections, bodies of 1 MiB and unfinished ones of 64 KiB, used proofs of possession, wrong client
secrets. Meanwhile another client on 127.0.0.1 requests tokens; none of its requests is refused. Measured by
`cargo xtask flood 60`, which writes this page; memory is that of `ron up`
with all six services.

| seconds | sent per s | tokens issued | p99 quiet, ms | p99 under the flood, ms | MiB before | MiB at most | MiB after |
|--:|--:|--:|--:|--:|--:|--:|--:|
";
