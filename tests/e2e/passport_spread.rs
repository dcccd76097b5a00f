//! How fast revocations reach the services that enforce them: a wallet and a KMS, each a process of
//! its own that follows the issuer's feed over a line, also when the line is cut while tokens are
//! revoked and repaired afterwards.
//!
//! `RON_REVOCATIONS=200` is the long run, which asserts the bound of 5 s for 99 of 100; the default
//! is short and finds revocations that are lost.

use std::time::{Duration, Instant};

use ron_proto::b64;
use ron_tests::consumers::{CONSUMERS, Source};
use ron_tests::line::{Line, Way};
use ron_tests::tools::{self, Process};
use ron_tests::{Fleet, OwnPlace, json, own_place};
use serde_json::Value;

/// Revocations take effect within this time, 99 of 100, on a quiet machine.
const BOUND: Duration = Duration::from_secs(5);
/// Maximum wait for anything here; a revocation that takes longer is lost, not slow.
const LOST: Duration = Duration::from_secs(30);
/// Revoked at once while the line is cut.
const MISSED: usize = 10;
const WATCHED: [&str; 2] = ["svc-wallet", "ron-kms"];

/// A second instance of a service that reaches the issuer only through a line.
struct Beside {
    service: &'static str,
    url: String,
    _process: Process,
    _data: tempfile::TempDir,
}

impl Beside {
    fn start(fleet: &Fleet, line: &Line, service: &'static str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let OwnPlace { api, mut sets, .. } = own_place(data.path(), service);
        sets.push("log.level=error".to_owned());
        sets.push(format!("auth.jwks_url={}/.well-known/jwks.json", line.url));
        if service == "svc-wallet" {
            sets.push(format!("ledger.url={}", fleet.api_socket("ron-ledger")));
        }
        let config = fleet.dir().join(service).join("config.toml");
        let process = Process::start(&mut tools::service(service, &config, &sets));
        let path = CONSUMERS
            .iter()
            .find(|(name, _)| *name == service)
            .unwrap()
            .1;
        tools::wait_listening(("127.0.0.1", api));
        Self {
            service,
            url: format!("http://127.0.0.1:{api}{path}"),
            _process: process,
            _data: data,
        }
    }

    fn status(&self, fleet: &Fleet, token: &str) -> u16 {
        fleet.get(&self.url, Some(token)).status
    }
}

/// A fleet, its line, and the observed services.
struct Rig {
    fleet: Fleet,
    line: Line,
    watched: Vec<Beside>,
    source: Source,
    revoker: String,
}

impl Rig {
    fn start() -> Self {
        let fleet = Fleet::start();
        let line = Line::to(&fleet.api_socket("svc-passport"));
        let start = |service| Beside::start(&fleet, &line, service);
        let watched: Vec<Beside> = WATCHED.into_iter().map(start).collect();
        let source = Source::of(&fleet);
        let revoker = fleet.token("svc-passport", Some("passport:admin"));
        let rig = Self {
            fleet,
            line,
            watched,
            source,
            revoker,
        };
        for beside in &rig.watched {
            let (token, since) = (rig.token(beside), Instant::now());
            while beside.status(&rig.fleet, &token) != 200 {
                assert!(
                    since.elapsed() < LOST,
                    "{} judges no passports",
                    beside.service
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        rig
    }

    fn token(&self, beside: &Beside) -> String {
        self.source.token(&self.fleet, beside.service, &[])
    }

    /// Revokes a token; returns when that was acknowledged.
    fn revoke(&self, token: &str) -> Instant {
        let payload = b64::from_url(token.split('.').nth(1).unwrap()).unwrap();
        let claims: Value = serde_json::from_slice(&payload).unwrap();
        let body = serde_json::json!({"jti": claims["jti"], "reason": "test"}).to_string();
        let url = format!("{}/v1/passport/revoke", self.fleet.api("svc-passport"));
        let reply = self.fleet.post(&url, Some(&self.revoker), &body, &[]);
        json(&reply, 200);
        Instant::now()
    }

    /// How long after its revocation each token is refused by its service.
    fn until_refused(&self, tokens: &[(&Beside, String, Instant)]) -> Vec<Duration> {
        let mut took = vec![None; tokens.len()];
        while took.iter().any(Option::is_none) {
            for (at, (beside, token, since)) in tokens.iter().enumerate() {
                if took[at].is_none() && beside.status(&self.fleet, token) == 401 {
                    took[at] = Some(since.elapsed());
                }
                let service = beside.service;
                assert!(
                    took[at].is_some() || since.elapsed() < LOST,
                    "{service}: lost"
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        took.into_iter().flatten().collect()
    }
}

/// Prints and checks the measurements.
fn judge(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent).div_ceil(100) - 1];
    let (p50, p99, max) = (at(50), at(99), at(100));
    println!(
        "{what}, {} revocations: p50 {p50:?}, p99 {p99:?}, max {max:?}",
        took.len()
    );
    if measures() {
        assert!(p99 < BOUND, "{what}: p99 {p99:?}");
    }
}

/// True in the long run, on a quiet machine; the short run finds lost revocations.
fn measures() -> bool {
    std::env::var_os("RON_REVOCATIONS").is_some()
}

fn wanted() -> usize {
    std::env::var("RON_REVOCATIONS").map_or(20, |n| n.parse().expect("a number"))
}

#[test]
fn revocations_reach_wallet_and_kms_in_time() {
    let rig = Rig::start();
    let mut took = vec![Vec::new(); WATCHED.len()];
    for n in 0..wanted() {
        let fresh = rig.watched.iter().map(|beside| (beside, rig.token(beside)));
        let fresh: Vec<_> = fresh.collect();
        for (beside, token) in &fresh {
            let status = beside.status(&rig.fleet, token);
            assert_eq!(status, 200, "{n} at {}", beside.service);
        }
        let taken = fresh.into_iter().map(|(beside, token)| {
            let since = rig.revoke(&token);
            (beside, token, since)
        });
        let taken: Vec<_> = taken.collect();
        for (all, one) in took.iter_mut().zip(rig.until_refused(&taken)) {
            all.push(one);
        }
    }
    for (service, took) in WATCHED.into_iter().zip(took) {
        judge(service, took);
    }
}

#[test]
fn revocations_that_a_cut_feed_has_missed_act_in_time_once_it_is_back() {
    let rig = Rig::start();
    let mut took = vec![Vec::new(); WATCHED.len()];
    for round in 0..wanted().div_ceil(MISSED) {
        let held = rig.watched.iter().flat_map(|beside| {
            let tokens = (0..MISSED).map(|_| rig.token(beside));
            tokens.map(move |token| (beside, token)).collect::<Vec<_>>()
        });
        let held: Vec<(&Beside, String)> = held.collect();
        let status = |at: usize| held[at].0.status(&rig.fleet, &held[at].1);
        for at in 0..held.len() {
            assert_eq!(status(at), 200, "{round}");
        }
        rig.line.set(Way::Cut);
        for (_, token) in &held {
            rig.revoke(token);
        }
        // Short and long outages: the pauses between attempts grow up to 1 s.
        std::thread::sleep(Duration::from_millis(200 + 900 * (round as u64 % 4)));
        for at in [0, held.len() - 1] {
            assert_eq!(status(at), 200, "{round}: the line is cut");
        }
        let repaired = Instant::now();
        rig.line.set(Way::Open);
        let taken = held
            .into_iter()
            .map(|(beside, token)| (beside, token, repaired));
        let taken: Vec<_> = taken.collect();
        let one = rig.until_refused(&taken);
        for (all, part) in took.iter_mut().zip(one.chunks(MISSED)) {
            all.extend_from_slice(part);
        }
    }
    for (service, took) in WATCHED.into_iter().zip(took) {
        judge(&format!("{service}, feed cut and back"), took);
    }
    let good = rig.watched.iter().map(|beside| (beside, rig.token(beside)));
    for (beside, token) in good {
        assert_eq!(beside.status(&rig.fleet, &token), 200, "{}", beside.service);
    }
}
