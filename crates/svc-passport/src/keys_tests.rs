//! The keys that are published, and since when and until when.

use super::*;
use crate::names::GRACE_S;
use ron_proto::passport::TTL_S_MAX;
use serde_json::json;

/// Versions made at these seconds.
fn versions(created_s: &[u64]) -> Vec<KeyVersionDoc> {
    let version = |(at, created_s): (usize, &u64)| {
        json!({
            "version": at + 1, "created": Timestamp(created_s * 1000),
            "jwk": {"kty": "OKP", "crv": "Ed25519", "x": "", "kid": format!("k{}", at + 1), "alg": "EdDSA", "use": "sig"},
            "receipt": {"log": "l", "index": at}
        })
    };
    let versions = created_s.iter().enumerate().map(version).collect();
    serde_json::from_value(versions).expect("versions as the KMS shows them")
}

#[test]
fn a_key_leaves_the_set_when_the_last_of_its_tokens_has_ended() {
    let versions = versions(&[1_000, 2_000, 3_000]);
    let check = |head: (u32, u64), now_s: u64, kids: &[&str], expired: Option<u32>| {
        let read = verifying(&versions, (head.0, Timestamp(head.1 * 1000)), now_s);
        let live: Vec<_> = read.live.iter().map(|(v, _)| v.kid.as_str()).collect();
        assert_eq!(
            (live.as_slice(), read.expired),
            (kids, expired),
            "{head:?} {now_s}"
        );
    };
    let end = |since: u64| since + TTL_S_MAX + GRACE_S;
    // The head signs since it was made. The first version was followed by the second when the third was made, at the latest.
    check((3, 0), end(3_000) - 1, &["k1", "k2", "k3"], None);
    check((3, 0), end(3_000), &["k3"], Some(2));
    check((3, 0), u64::MAX, &["k3"], Some(2)); // the newest stays
    // The third is published and waits: the second signs, for as long as that takes.
    check((2, 0), end(2_000) - 1, &["k1", "k2", "k3"], None);
    check((2, 0), end(2_000), &["k2", "k3"], Some(1));
    check((2, 0), u64::MAX, &["k2", "k3"], Some(1));
    // It has waited, and signs.
    check((3, 9_000), end(9_000) - 1, &["k2", "k3"], Some(1));
    check((3, 9_000), end(9_000), &["k3"], Some(2));
}

const HOLD: Duration = Duration::from_millis(750);
const NOW_MS: u64 = 1_000_000;

/// A keeper that has read nothing yet, after a process that has published these versions.
fn after_restart(published: &[KeyVersionDoc]) -> KeyKeeper {
    let registry = ron_kernel::Registry::new("svc_passport");
    let http = Arc::new(ron_http::HttpClient::new(ron_http::ClientConfig::default()));
    let kms = KmsClient::new("http://127.0.0.1:1", ron_client::Credential::none(), http);
    let parts = KeeperParts {
        kms: Arc::new(kms),
        keys: Vec::new(),
        names: Arc::new(Names {
            now: "http://i".to_owned(),
            former: Vec::new(),
        }),
        pq_key: None,
        timeout: Duration::ZERO,
        hold: HOLD,
        max_age: Duration::from_secs(60),
        view: Arc::new(Snapshot::new(RevocationView::unchecked())),
        others: false,
        clock: ron_kernel::ManualClock::at(NOW_MS),
        metrics: Metrics::new(&registry),
        km: KernelMetrics::new(&registry),
    };
    let keys = published.iter().filter_map(|version| version.jwk.clone());
    let stored = Jwks {
        keys: keys.collect(),
    };
    KeyKeeper::new(parts, stored, |_| {})
}

fn signs_with(version: &KeyVersionDoc) -> SigningKey {
    SigningKey {
        key: "default/tokens/ed25519/0191e7a0-0000-7000-8000-000000000001"
            .parse()
            .expect("a key"),
        version: version.version,
        jwk: version.jwk.clone().expect("a key set's"),
    }
}

#[test]
fn after_a_restart_a_head_that_was_never_published_is_held() {
    let versions = versions(&[1_000, 2_000]);
    let (known, new) = (signs_with(&versions[0]), signs_with(&versions[1]));
    let keeper = after_restart(&versions[..1]);
    let held = Some(keeper.clock.now() + HOLD);
    let old = keeper.published();
    assert_eq!(keeper.from(&old, &known), None);
    assert_eq!(keeper.from(&old, &new), held);
    let keeper = after_restart(&versions);
    assert_eq!(
        keeper.from(&keeper.published(), &new),
        None,
        "it has waited"
    );
    let keeper = after_restart(&[]);
    assert_eq!(
        keeper.from(&keeper.published(), &new),
        None,
        "the first start"
    );
}

#[test]
fn after_a_restart_a_version_that_was_published_before_is_not_late() {
    let versions = versions(&[1_000, 2_000]);
    let waits = signs_with(&versions[1]);
    let late = |published: &[KeyVersionDoc], ahead_ms: u64| {
        let keeper = after_restart(published);
        keeper.is_late(&keeper.published(), &waits, Timestamp(NOW_MS + ahead_ms))
    };
    assert!(!late(&versions, 0));
    assert!(!late(&versions, 59_999));
    assert!(late(&versions[..1], 59_999));
    assert!(!late(&versions[..1], 60_000));
}
