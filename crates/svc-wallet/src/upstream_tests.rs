//! Retries, the breaker, the active node and the clocks of calls.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use ron_client::Credential;
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::{Registry, SeededRandom, SystemClock};
use serde_json::json;

use super::*;

/// A ledger that nobody serves: each attempt fails at once and is known not to be sent.
fn unserved(attempts: Attempts, failures: usize) -> Upstream {
    ledger_at("http://127.0.0.1:1", attempts, failures)
}

fn ledger_at(urls: &str, attempts: Attempts, failures: usize) -> Upstream {
    let http = HttpClient::new(ClientConfig {
        breaker: None,
        ..ClientConfig::default()
    });
    let limits = CallLimits {
        stalled_after: StalledAfter {
            silent: Duration::from_secs(10),
            hangs: Duration::from_secs(10),
        },
        attempts,
        breaker: BreakerLimits {
            failures,
            ..BreakerLimits::default()
        },
    };
    Upstream::new(
        LedgerClient::new(urls, Credential::none(), Arc::new(http)),
        1,
        limits,
        Arc::new(SystemClock),
        Arc::new(SeededRandom::new(1)),
        Metrics::new(&Registry::new("svc_wallet")),
    )
}

fn nothing() -> CommitRequest<&'static Entry> {
    CommitRequest {
        entries: Vec::new(),
        linked: false,
        batch: false,
    }
}

#[test]
fn a_commit_is_tried_as_often_and_waits_as_long_as_configured() {
    let check = |tries: u32, base_ms: u64, cap_ms: u64, waits_ms: u64| {
        let attempts = Attempts {
            tries,
            base: Duration::from_millis(base_ms),
            cap: Duration::from_millis(cap_ms),
        };
        let upstream = unserved(attempts, 100);
        let began = upstream.clock.now();
        let done = upstream.commit(0, &nothing());
        let took = upstream.clock.now().saturating_duration_since(began);
        assert!(matches!(done, Committed::NotDone(_)), "{done:?}");
        let failed =
            upstream
                .metrics
                .upstream
                .with_label_values(&["ron-ledger", "commit", "not_sent"]);
        assert_eq!(failed.get(), u64::from(tries));
        assert!(took >= Duration::from_millis(waits_ms), "{tries}: {took:?}");
    };
    check(1, 5_000, 5_000, 0);
    check(3, 40, 1_000, 40 + 80);
    check(5, 40, 60, 40 + 60 + 60 + 60);
}

#[test]
fn the_breaker_opens_after_the_configured_failures() {
    let once = Attempts {
        tries: 1,
        base: Duration::from_millis(1),
        cap: Duration::from_millis(1),
    };
    let upstream = unserved(once, 3);
    for level in [0, 0, 2, 2] {
        upstream.commit(0, &nothing());
        assert_eq!(upstream.breaker.level(), level);
    }
    let refused = ["ron-ledger", "commit", "breaker_open"];
    let refused = upstream.metrics.upstream.with_label_values(&refused);
    assert_eq!(refused.get(), 1, "the fourth commit is not sent");
}

/// A node of a ledger that answers each request with its head, and the node that it names as active.
#[allow(clippy::disallowed_methods)] // its thread ends with the test
fn node() -> (String, Arc<Snapshot<Option<Closed>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let closed = Arc::new(Snapshot::new(None));
    let shown = Arc::clone(&closed);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]); // a GET is one segment
            let head = json!({"origin": "o", "seq": 1, "size": 2, "root": "r", "checkpoint_size": 2,
                "ts": "2025-03-01T12:00:00.000Z", "closed": shown.load().as_ref()});
            let body = head.to_string();
            let about = format!("connection: close\r\ncontent-length: {}", body.len());
            let _ = write!(stream, "HTTP/1.1 200 OK\r\n{about}\r\n\r\n{body}");
        }
    });
    (url, closed)
}

#[test]
fn writes_follow_the_active_node_of_the_ledger() {
    let (a, a_closed) = node();
    let (b, b_closed) = node();
    let standby = |active: &str| Closed {
        cause: ClosedCause::NotActive,
        detail: String::new(),
        active: Some(active.to_owned()),
    };
    b_closed.store(Some(standby(&a)));
    let once = Attempts {
        tries: 1,
        base: Duration::from_millis(1),
        cap: Duration::from_millis(1),
    };
    let upstream = ledger_at(&format!("{a},{b}"), once, 1);
    upstream.probe(0).expect("it answers");
    assert_eq!(upstream.trouble(), None);
    // The node answers with a head, which no commit is answered with: a failure of the node.
    assert!(matches!(
        upstream.commit(0, &nothing()),
        Committed::Unknown(_)
    ));
    assert_eq!(upstream.breaker.level(), 2);

    a_closed.store(Some(standby(&a)));
    upstream.probe(0).expect("it answers");
    let refused = upstream.trouble().expect("no node writes");
    assert_eq!((refused.code, refused.details), ("retry_later", None));

    a_closed.store(Some(standby(&b)));
    b_closed.store(None);
    upstream.probe(0).expect("it answers");
    assert_eq!(
        upstream.breaker.level(),
        0,
        "those were failures of the other node"
    );
    assert_eq!(upstream.trouble(), None);
    assert_eq!(
        upstream
            .client
            .active_head(Deadline::within(TRY_MAX))
            .expect("a head")
            .node,
        1
    );
}

#[test]
fn the_oldest_call_is_the_one_that_began_first() {
    let zero = Deadline::within(Duration::ZERO).at();
    let clocks = Clocks::new(3, zero);
    let at = |ms| zero + Duration::from_millis(ms);
    assert_eq!(clocks.age(at(50)), Duration::ZERO);
    clocks.begin(0, at(10));
    clocks.begin(2, at(30));
    assert_eq!(clocks.age(at(50)), Duration::from_millis(40));
    clocks.end(0, at(50), true);
    assert_eq!(clocks.age(at(50)), Duration::from_millis(20));
}

#[test]
fn time_without_answer_ends_with_any_answer_and_counts_only_during_calls() {
    let zero = Deadline::within(Duration::ZERO).at();
    let clocks = Clocks::new(2, zero);
    let (at, ms) = (|n| zero + Duration::from_millis(n), Duration::from_millis);
    assert_eq!(clocks.time_without_answer(at(900)), ms(0), "nobody asked");
    clocks.begin(0, at(1_000));
    assert_eq!(
        clocks.time_without_answer(at(1_080)),
        ms(80),
        "asked at 1000"
    );
    clocks.begin(1, at(1_010));
    clocks.end(1, at(1_060), true);
    assert_eq!(
        clocks.time_without_answer(at(1_080)),
        ms(20),
        "heard at 1060"
    );
    clocks.begin(1, at(1_100));
    clocks.end(1, at(1_150), false);
    assert_eq!(
        clocks.time_without_answer(at(1_160)),
        ms(100),
        "a broken call is none"
    );
    clocks.end(0, at(1_200), false);
    assert_eq!(clocks.time_without_answer(at(2_000)), ms(0));
}

#[test]
fn a_ledger_is_stalled_by_silence_or_by_one_call_that_hangs() {
    let zero = Deadline::within(Duration::ZERO).at();
    let clocks = Clocks::new(2, zero);
    let (at, ms) = (|n| zero + Duration::from_millis(n), Duration::from_millis);
    let after = StalledAfter {
        silent: ms(120),
        hangs: ms(500),
    };
    let left = |n| clocks.stalls_within(at(n), after);
    assert_eq!(left(900), ms(120), "a call that begins now may be silent");
    clocks.begin(0, at(1_000));
    assert_eq!((left(1_000), left(1_090)), (ms(120), ms(30)));
    assert_eq!((left(1_120), left(2_000)), (ms(0), ms(0)));
    for n in (1_100..1_500).step_by(50) {
        clocks.begin(1, at(n));
        clocks.end(1, at(n + 10), true);
    }
    assert_eq!(left(1_460), ms(40), "the first call hangs at 1500");
    clocks.end(0, at(1_470), true);
    assert_eq!(left(1_480), ms(120));
}
