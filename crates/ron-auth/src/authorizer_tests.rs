//! The whole authorizer against a source of keys and events that the test controls.

use crate::settings::from_json;
use std::time::Duration;

use ron_crypto::sign::Ed25519Key;
use ron_http::{Credential, Headers, Method};
use ron_kernel::{Clock, ClockAlarm, Deadline, LockSpec, ManualClock, RankedMutex, Topology};
use ron_proto::kms::Bytes;
use ron_proto::passport::{RevocationEvent, RevocationPage, Revoked};
use ron_proto::{Timestamp, b64, scope};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::Ed25519NoteSigner;
use ron_tlog::tree::Frontier;
use serde_json::{Value, json};

use super::*;
use crate::refresh::FetchError;
use crate::{Holder, revocation_log, service_token};

#[path = "authorizer_transport_tests.rs"]
mod transport;

const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "http://issuer:1";
static LOCK: LockSpec = LockSpec {
    name: "test",
    rank: 1,
    guards: "the fake issuer",
};

/// The issuer's answers; `None` means no answer.
#[derive(Default)]
struct State {
    jwks: Option<Value>,
    events: Vec<Revoked>,
    epoch: u64,
    events_up: bool,
    asked: Vec<String>,
}

struct Fake(RankedMutex<State>);

impl Fetch for Fake {
    fn get(&self, url: &str, _: &Credential, _: Deadline) -> Result<Vec<u8>, FetchError> {
        let mut state = self.0.lock();
        state.asked.push(url.to_owned());
        if url.ends_with("/jwks.json") {
            let jwks = state.jwks.clone().ok_or(FetchError::Timeout)?;
            return Ok(jwks.to_string().into_bytes());
        }
        if !state.events_up {
            return Err(FetchError::Failed("refused".into()));
        }
        let after: usize = url
            .split("after=")
            .nth(1)
            .unwrap()
            .split('&')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let all = state.events.iter().enumerate();
        let all: Vec<RevocationEvent> = all
            .map(|(at, revoked)| RevocationEvent {
                seq: at as u64 + 1,
                ts: Timestamp(0),
                revoked: revoked.clone(),
                salt: Bytes::default(),
                by: Bytes::default(),
            })
            .collect();
        let mut tree = Frontier::new();
        for event in &all {
            tree.push(revocation_log::hash(event));
        }
        let head = Checkpoint {
            origin: revocation_log::origin(url.split_once("/v1/").unwrap().0),
            size: all.len() as u64,
            root: tree.root(),
        };
        let signer = Ed25519NoteSigner::new(&head.origin, Ed25519Key::from_seed(&[9; 32])).unwrap();
        let events: Vec<RevocationEvent> = all.into_iter().skip(after).take(1000).collect();
        let next = (after + events.len()) as u64;
        let page = RevocationPage {
            events,
            next: next.min(head.size),
            current_epoch: state.epoch,
            checkpoint: head.sign(&[&signer]).unwrap(),
        };
        Ok(serde_json::to_vec(&page).unwrap())
    }
    fn close(&self) {}
}

struct Rig {
    auth: Arc<RonAuthorizer>,
    fake: Arc<Fake>,
    clock: Arc<ManualClock>,
    registry: Registry,
    key: Ed25519Key,
    service: String,
}

fn jwk(kid: &str, key: &Ed25519Key) -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": b64::url(&key.public())})
}

fn rig() -> Rig {
    let key = Ed25519Key::from_seed(&[3; 32]);
    let service = service_token::generate("svc-wallet", &[5; 32]);
    let registry = Registry::new("t");
    let clock = ManualClock::at(NOW * 1000);
    let state = State {
        events_up: true,
        jwks: Some(json!({"keys": [jwk("k1", &key)]})),
        ..State::default()
    };
    let fake = Arc::new(Fake(RankedMutex::new(&LOCK, state)));
    let section = json!({
        "issuer": ISSUER, "jwks_url": "http://issuer:1/jwks.json", "unpinned": true,
        "principals": [{"name": "svc-wallet", "tenant": "ron", "scopes": ["ledger:commit"], "sha256": service_token::hash(&service), "key_prefixes": ["ron/log/"]}]
    });
    let mut config = AuthConfig::new("ron-ledger", from_json(&section)).unwrap();
    config.enforced_caveats = vec!["asset".into()];
    config.insecure_loopback = true;
    let auth =
        RonAuthorizer::with_fetch(config, &registry, clock.clone(), fake.clone(), None).unwrap();
    auth.served_at(&["http://ledger.example", "https://ledger.example"].map(str::to_owned));
    Rig {
        auth,
        fake,
        clock,
        registry,
        key,
        service,
    }
}

impl RonAuthorizer {
    fn decide(&self, head: &RequestHead, need: &Need) -> Result<Principal, AuthReject> {
        self.judge(head, need, &mut None)
    }
}

impl Rig {
    fn fresh() -> Self {
        let rig = rig();
        rig.refresh();
        rig
    }
    fn refresh(&self) {
        self.auth.refresh_keys_once().unwrap().unwrap();
        self.auth.read_feed_once(0).unwrap().unwrap();
    }
    #[allow(clippy::unused_self)] // reads as a question to the fixture
    fn token_by(&self, kid: &str, key: &Ed25519Key, change: impl Fn(&mut Value)) -> String {
        let mut claims = json!({"iss": ISSUER, "sub": "alice", "aud": "ron-ledger", "iat": NOW, "nbf": NOW, "exp": NOW + 900,
            "jti": "j1", "client_id": "c", "tenant": "t1", "scope": "ledger:read", "ron_epoch": 0});
        change(&mut claims);
        let header = json!({"alg": "EdDSA", "kid": kid, "typ": "at+jwt"});
        let signed = format!(
            "{}.{}",
            b64::url(header.to_string().as_bytes()),
            b64::url(claims.to_string().as_bytes())
        );
        format!("{signed}.{}", b64::url(&key.sign(signed.as_bytes())))
    }
    fn token(&self, change: impl Fn(&mut Value)) -> String {
        self.token_by("k1", &self.key, change)
    }
    fn caveated(&self, caveats: &[&str]) -> String {
        let details = json!([{"type": "ron", "caveats": caveats}]);
        self.token(|claims| claims["authorization_details"] = details.clone())
    }
    fn ask(&self, token: &str) -> Result<Principal, AuthReject> {
        self.auth.decide(
            &head(
                &[("authorization", &format!("Bearer {token}"))],
                "127.0.0.1:9",
            ),
            &Need::Scope(scope::LEDGER_READ),
        )
    }
}

fn head(headers: &[(&str, &str)], peer: &str) -> RequestHead {
    RequestHead {
        method: Method::GET,
        path: "/v1/ledger/head".into(),
        route: "/v1/ledger/head",
        headers: Headers::from_pairs(headers),
        peer: peer.parse().unwrap(),
        transport: Transport::Tcp,
        client_cert: None,
        trace: ron_http::Trace::new("r").unwrap(),
    }
}

#[test]
fn a_passport_becomes_a_principal_once_verified_and_from_the_cache_afterwards() {
    let rig = Rig::fresh();
    let token = rig.token(|_| {});
    for _ in 0..5 {
        let principal = rig.ask(&token).expect("a good passport");
        assert_eq!(
            (principal.name.as_str(), principal.kind),
            ("alice", PrincipalKind::Passport)
        );
        assert_eq!(
            (principal.tenant.to_string(), principal.jti),
            ("t1".to_owned(), Some("j1".to_owned()))
        );
    }
    assert!(
        rig.registry
            .render()
            .contains("t_auth_verifications_total 1"),
        "{}",
        rig.registry.render()
    );
    assert!(rig.registry.render().contains("t_auth_cache_hits_total 4"));
}

#[test]
fn refusals_have_their_reason_status_and_counter() {
    let rig = Rig::fresh();
    let bearer = |token: &str| format!("Bearer {token}");
    let good = rig.token(|_| {});
    let tampered = good.replace("eyJ", "eyK");
    let check = |headers: &[(&str, &str)], peer: &str, need: Need, reason: &str, status: u16| {
        let problem = rig
            .auth
            .authorize(&head(headers, peer), &need)
            .expect_err(reason);
        assert_eq!(
            (
                problem.status,
                problem.details.as_ref().unwrap()["reason"].as_str()
            ),
            (status, Some(reason))
        );
        let counter = format!("t_auth_failures_total{{reason=\"{reason}\"}}");
        assert!(rig.registry.render().contains(&counter), "{counter}");
        assert!(
            !problem.detail.contains("eyJ"),
            "no part of a token is sent back"
        );
    };
    let near = "127.0.0.1:9";
    let read = Need::Scope(scope::LEDGER_READ);
    check(&[], near, read, "missing", 401);
    check(&[], near, Need::Identity, "missing", 401);
    check(
        &[("authorization", "Basic YTpi")],
        near,
        read,
        "scheme",
        401,
    );
    check(&[("authorization", "Bearer ")], near, read, "scheme", 401);
    check(
        &[("authorization", &bearer("a b"))],
        near,
        read,
        "scheme",
        401,
    );
    check(
        &[
            ("authorization", &bearer(&good)),
            ("authorization", &bearer(&good)),
        ],
        near,
        read,
        "scheme",
        401,
    );
    check(
        &[("authorization", &bearer(&tampered))],
        near,
        read,
        "malformed",
        401,
    );
    check(
        &[("authorization", &bearer(&"a".repeat(5000)))],
        near,
        read,
        "oversize",
        401,
    );
    check(
        &[("authorization", &bearer(&good))],
        near,
        Need::Scope(scope::LEDGER_COMMIT),
        "scope",
        403,
    );
    let foreign = rig.token(|claims| claims["aud"] = json!("svc-wallet"));
    check(
        &[("authorization", &bearer(&foreign))],
        near,
        read,
        "audience",
        401,
    );
    // Service tokens.
    let wrong = service_token::generate("svc-wallet", &[6; 32]);
    let unknown = service_token::generate("svc-admin", &[5; 32]);
    let commit = Need::Scope(scope::LEDGER_COMMIT);
    check(
        &[("authorization", &bearer(&wrong))],
        near,
        commit,
        "service_token",
        401,
    );
    check(
        &[("authorization", &bearer(&unknown))],
        near,
        commit,
        "service_token",
        401,
    );
    check(
        &[("authorization", &bearer("ron_x"))],
        near,
        commit,
        "service_token",
        401,
    );
    check(
        &[("authorization", &bearer(&rig.service))],
        "10.0.0.1:9",
        commit,
        "plain_tcp",
        401,
    );
    check(
        &[("authorization", &bearer(&rig.service))],
        near,
        read,
        "scope",
        403,
    );
    assert!(rig.auth.authorize(&head(&[], near), &Need::Public).is_ok());
}

#[test]
fn service_tokens_work_while_the_issuer_is_away_and_passports_get_503() {
    let rig = rig();
    let told = Arc::new(RankedMutex::new(&LOCK, Vec::new()));
    let heard = told.clone();
    rig.auth
        .on_state(move |why| heard.lock().push(why.is_some()));
    let commit = |rig: &Rig| {
        let bearer = format!("Bearer {}", rig.service);
        rig.auth.decide(
            &head(&[("authorization", &bearer)], "[::ffff:127.0.0.1]:9"),
            &Need::Scope(scope::LEDGER_COMMIT),
        )
    };
    let principal = commit(&rig).expect("the service token");
    assert_eq!(
        (principal.name.as_str(), principal.kind),
        ("svc-wallet", PrincipalKind::Service)
    );
    assert_eq!(principal.key_prefixes, Some(vec!["ron/log/".to_owned()]));
    let token = rig.token(|_| {});
    assert_eq!(rig.ask(&token), Err(AuthReject::NoKeys));
    assert_eq!(AuthReject::NoKeys.problem().code, "unavailable");
    // Keys alone are not enough: a revoked token must not be accepted after a restart.
    rig.auth.refresh_keys_once().unwrap().unwrap();
    assert_eq!(rig.ask(&token), Err(AuthReject::NoKeys));
    assert!(rig.auth.degraded().unwrap().contains("revocations"));
    rig.auth.read_feed_once(0).unwrap().unwrap();
    assert!(rig.ask(&token).is_ok());
    assert_eq!(rig.auth.degraded(), None);
    rig.auth.report_state();
    assert_eq!(*told.lock(), [true, false]);
}

#[test]
fn a_rotated_key_is_found_by_refresh_and_a_withdrawn_one_stops_counting_even_from_the_cache() {
    let rig = Rig::fresh();
    let old = rig.token(|_| {});
    assert!(rig.ask(&old).is_ok());
    let next = Ed25519Key::from_seed(&[4; 32]);
    let new = rig.token_by("k2", &next, |_| {});
    assert_eq!(rig.ask(&new), Err(AuthReject::UnknownKid));
    rig.fake.0.lock().jwks = Some(json!({"keys": [jwk("k1", &rig.key), jwk("k2", &next)]}));
    rig.refresh();
    assert!(rig.ask(&new).is_ok() && rig.ask(&old).is_ok());
    rig.fake.0.lock().jwks = Some(json!({"keys": [jwk("k2", &next)]}));
    rig.refresh();
    assert_eq!(rig.ask(&old), Err(AuthReject::UnknownKid));
    // The same kid with a different key is a different key.
    rig.fake.0.lock().jwks = Some(json!({"keys": [jwk("k2", &rig.key)]}));
    rig.refresh();
    assert_eq!(rig.ask(&new), Err(AuthReject::Signature));
}

#[test]
fn time_and_revocation_are_checked_on_every_use() {
    let rig = Rig::fresh();
    let token = rig.token(|_| {});
    let other = rig.token(|claims| claims["jti"] = json!("j2"));
    assert!(rig.ask(&token).is_ok() && rig.ask(&other).is_ok());
    rig.fake.0.lock().events.push(Revoked::Jti {
        jti: "j1".into(),
        until: NOW + 900,
    });
    rig.auth.read_feed_once(0).unwrap().unwrap();
    assert_eq!(rig.ask(&token), Err(AuthReject::Revoked));
    assert!(rig.ask(&other).is_ok());
    {
        let mut state = rig.fake.0.lock();
        state.events.push(Revoked::Epoch { epoch: 1 });
        state.epoch = 1;
    }
    rig.auth.read_feed_once(0).unwrap().unwrap();
    assert_eq!(rig.ask(&other), Err(AuthReject::Epoch));
    let new = rig.token(|claims| claims["ron_epoch"] = json!(1));
    assert_eq!(
        rig.ask(&new),
        Err(AuthReject::Revoked),
        "its jti is still revoked"
    );
    let newer = rig.token(|claims| {
        claims["ron_epoch"] = json!(1);
        claims["jti"] = json!("j3");
    });
    assert!(rig.ask(&newer).is_ok());
    rig.clock.advance(Duration::from_secs(959));
    assert!(rig.ask(&newer).is_ok());
    rig.clock.advance(Duration::from_secs(1));
    assert_eq!(rig.ask(&newer), Err(AuthReject::Expired));
    assert_eq!(rig.clock.unix_ms() / 1000, NOW + 960);
}

/// A date that is in doubt since the start may be one at which an expired passport was valid.
#[test]
fn no_passport_counts_while_the_date_is_not_known() {
    let rig = Rig::fresh();
    let token = rig.token(|_| ());
    assert!(rig.ask(&token).is_ok());
    let alarm = |at_start| ClockAlarm {
        ahead_ms: -86_400_000,
        at_start,
    };
    rig.clock.doubt(Some(alarm(true)));
    assert_eq!(rig.ask(&token), Err(AuthReject::NoDate));
    let need = Need::Scope(scope::LEDGER_COMMIT);
    let bearer = format!("Bearer {}", rig.service);
    let by_service = head(&[("authorization", &bearer)], "127.0.0.1:9");
    assert!(rig.auth.decide(&by_service, &need).is_ok());
    // After a jump the service's own date goes on, and that was right.
    rig.clock.doubt(Some(alarm(false)));
    assert!(rig.ask(&token).is_ok());
}

#[test]
fn caveats_are_enforced_on_the_head_and_counted_ones_over_time() {
    let rig = Rig::fresh();
    let check = |caveats: &[&str], wanted: Result<(), AuthReject>| {
        assert_eq!(
            rig.ask(&rig.caveated(caveats)).map(|_| ()),
            wanted,
            "{caveats:?}"
        );
    };
    check(
        &[
            "svc=ron-ledger",
            "method=GET",
            "route=/v1/ledger",
            "ip_cidr=127.0.0.0/8",
            "tenant=t1",
        ],
        Ok(()),
    );
    check(&["svc=svc-wallet"], Err(AuthReject::Caveat));
    check(&["method=POST"], Err(AuthReject::Caveat));
    check(&["region=eu"], Err(AuthReject::Caveat));
    check(&["tenant=t2"], Err(AuthReject::Caveat));
    check(&["asset=ron"], Ok(())); // declared as enforced by the service
    check(&["account=a"], Err(AuthReject::CaveatUnsupported));
    check(
        &[&format!("proof.bind={}", "A".repeat(43))],
        Err(AuthReject::Binding),
    );
    let counted = rig.caveated(&["budget.reqs=2"]);
    assert!(rig.ask(&counted).is_ok() && rig.ask(&counted).is_ok());
    assert_eq!(rig.ask(&counted), Err(AuthReject::Budget));
}

#[test]
fn a_new_issuer_starts_with_nothing_and_a_removed_one_accepts_nothing() {
    let rig = Rig::fresh();
    let token = rig.token(|_| {});
    assert!(rig.ask(&token).is_ok());
    let other = json!({"issuer": "http://other:1", "jwks_url": "http://other:1/jwks.json", "unpinned": true});
    rig.auth.reload_json(&other).unwrap();
    assert_eq!(rig.ask(&token), Err(AuthReject::NoKeys));
    rig.refresh();
    assert_eq!(
        rig.ask(&token),
        Err(AuthReject::Issuer),
        "good signature, wrong issuer, and not from the cache"
    );
    rig.auth.reload_json(&json!({})).unwrap();
    assert_eq!(rig.ask(&token), Err(AuthReject::NoIssuer));
    assert_eq!(rig.auth.degraded(), None);
    assert!(rig.auth.reload_json(&json!({"issuer": "x"})).is_err());
}

static TOPOLOGY: Topology = Topology {
    service: "t",
    threads: &[row("t-auth-keys"), row("t-auth-feed")],
    queues: &[crate::refresh::REFRESH_QUEUE_SPEC],
    locks: &[],
};

const fn row(name: &'static str) -> ron_kernel::ThreadSpec {
    ron_kernel::ThreadSpec {
        name,
        count: ron_kernel::Count::One,
        stage: ron_kernel::Stage::Intake,
        critical: false,
        job: "test",
    }
}

#[test]
fn the_threads_find_an_issuer_that_comes_up_later_poll_it_gently_and_end_at_once() {
    let rig = rig();
    let jwks = rig.fake.0.lock().jwks.take();
    let metrics = KernelMetrics::new(&rig.registry);
    let sup = Supervisor::new(&TOPOLOGY, metrics, ron_kernel::SystemClock::shared());
    let (keys, feed) = (&TOPOLOGY.threads[0], &TOPOLOGY.threads[1]);
    rig.auth.spawn(&sup, crate::AuthThreads { keys, feed });
    let (_keep, never) = ron_kernel::Shutdown::pair();
    let pause = |ms: u64| never.wait(Deadline::within(Duration::from_millis(ms)));
    pause(300);
    assert!(rig.auth.degraded().is_some());
    rig.fake.0.lock().jwks = jwks;
    let patience = Deadline::within(Duration::from_secs(10));
    while rig.auth.degraded().is_some() && !patience.expired() {
        pause(5);
    }
    assert!(rig.ask(&rig.token(|_| {})).is_ok());
    rig.fake.0.lock().asked.clear();
    let began = Deadline::within(Duration::ZERO).at();
    pause(600);
    let asked = rig.fake.0.lock().asked.clone();
    let polls = asked.iter().filter(|url| url.contains("events")).count();
    let passed = Deadline::within(Duration::ZERO).at() - began;
    // One per 250 ms, whatever the backoff has reached.
    let most = usize::try_from(passed.as_millis()).expect("small") / 250 + 4;
    assert!((1..=most).contains(&polls), "{polls} polls in {passed:?}");
    let report = sup.drain(Duration::from_secs(5));
    assert!(
        report.stragglers.is_empty() && report.took < Duration::from_secs(4),
        "{report:?}"
    );
}

#[path = "authorizer_bound_tests.rs"]
mod bound;

#[path = "authorizer_feed_tests.rs"]
mod feed;
