//! What a reload of the configuration changes in a running service, group by group.

use std::time::Duration;

use ron_custody::Cause;
use ron_kernel::{Shutdown, Snapshot};
use ron_proto::kms::{
    DestroyKey, PayloadPolicy, Period, RotateEvery, RotateLogKey, SignRequest, UpdateKey,
};
use ron_proto::values::Alg;

use super::envelope::{one, why, wrap};
use super::{Rig, create_request, settings, signed};
use crate::settings::pause_while;
use crate::work::key_request::KeyRequest;

/// An engine in memory whose configuration has these lines.
fn start(lines: &[(&str, &str)]) -> Rig {
    Rig::start(settings(&with(lines)), None).expect("starts")
}

fn with<'a>(lines: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("amnesia", "true"), ("signers", "1")], lines].concat()
}

fn reload(rig: &Rig, lines: &[(&str, &str)]) {
    rig.engine.kms.adopt(settings(&with(lines)));
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = ron_kernel::Deadline::within(Duration::from_secs(20));
    while !holds() {
        assert!(!until.expired(), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn rotation_and_destruction() {
    let rig = start(&[]);
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let destroy = |delay_s: Option<u64>| {
        KeyRequest::Destroy(DestroyKey {
            delay: delay_s.map(|s| Period::from_s(s).expect("a period")),
            ..DestroyKey::default()
        })
    };
    assert_eq!(rig.change(&key, destroy(Some(5))).status, 400);
    reload(
        &rig,
        &[
            ("destroy.delay_min", "1s"),
            ("destroy.delay", "100s"),
            ("rotation.jitter_percent", "0"),
        ],
    );
    let mut ask = create_request("p", Alg::Ed25519, PayloadPolicy::Any, 2);
    ask.rotate_every = Some(RotateEvery::Every(
        Period::from_s(86_400).expect("a period"),
    ));
    let doc: ron_proto::kms::KeyDoc = rig.create_as(&rig.caller, ask).json();
    let next = doc.rotation.expect("a schedule").next;
    assert!(next.0 - doc.created.0 >= 86_400_000, "without jitter");
    assert_eq!(rig.change(&key, destroy(Some(5))).status, 200);
    let update = UpdateKey {
        rotate_every: Some(RotateEvery::Never),
        ..UpdateKey::default()
    };
    rig.change(&doc.key, KeyRequest::Update(update));
    assert_eq!(rig.change(&doc.key, destroy(None)).status, 200);
    let at = rig.doc(&doc.key).destroy_at.expect("ordered");
    let ahead = at.0 - rig.engine.kms.clock.unix_ms();
    assert!((80_000..=100_000).contains(&ahead), "{ahead}");
    rig.stop();
}

#[test]
fn deadlines_of_requests() {
    let rig = start(&[("sign_deadline", "30s")]);
    let kms = &rig.engine.kms;
    let left = || {
        let call = kms.internal_call(&rig.caller.tenant);
        call.deadline.remaining()
    };
    assert!(left() > Duration::from_secs(20));
    reload(
        &rig,
        &[("sign_deadline", "100ms"), ("audit.reserve_wait", "1ms")],
    );
    assert!(left() <= Duration::from_millis(100));
    // Without room in the audit queue, a request waits for `audit.reserve_wait` only.
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let mut held = Vec::new();
    eventually("all room is free", || {
        held.extend(std::iter::from_fn(|| kms.credits.try_acquire()));
        held.len() == kms.settings.load().keys.audit_queue
    });
    let refused = rig.sign(SignRequest::message(key, *b"m"));
    assert_eq!(refused.code(), "busy");
    drop(held);
    rig.stop();
}

#[test]
fn limits_of_nonces() {
    let rig = start(&[("nonces.block", "1")]);
    let key = rig.create("p", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let wraps = || why(one(&rig, wrap(&key, None, b"text")));
    assert_eq!([wraps(), wraps()], [None, None]);
    reload(&rig, &[("nonces.block", "1"), ("nonces.cap", "3")]);
    // A block that was requested ahead is used up first.
    let refused = (0..4).filter_map(|_| wraps()).collect::<Vec<_>>();
    assert!(refused.contains(&Cause::UsesExhausted), "{refused:?}");
    rig.stop();
}

#[test]
fn checkpoints_and_keys_of_the_log() {
    let rig = start(&[("audit.checkpoint_interval", "1m")]);
    let reader = rig.engine.reader.clone().expect("a log");
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let lag = || reader.size_durable() - reader.checkpoint_size();
    assert!(lag() > 0);
    reload(&rig, &[("audit.checkpoint_interval", "10ms")]);
    eventually("the leaf that waits is covered", || lag() == 0);
    reload(
        &rig,
        &[
            ("audit.checkpoint_interval", "1m"),
            ("audit.checkpoint_ops", "2"),
        ],
    );
    for _ in 0..3 {
        signed(&rig.sign(SignRequest::message(key.clone(), *b"m")));
    }
    eventually("two leaves are enough", || lag() < 2);
    assert_eq!(rig.rotate_log_key(RotateLogKey::default()).status, 200);
    assert_eq!(rig.engine.kms.ring.signing().len(), 2);
    reload(&rig, &[("audit.log_key_overlap", "0s")]);
    assert_eq!(rig.engine.kms.ring.signing().len(), 1);
    rig.stop();
}

#[test]
fn attestation() {
    let rig = start(&[]);
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let sign = || rig.sign(SignRequest::message(key.clone(), *b"m"));
    signed(&sign());
    reload(&rig, &[("attest.require", "required")]);
    assert_eq!(sign().code(), "attestation_missing");
    reload(&rig, &[]);
    signed(&sign());
    rig.stop();
}

/// The pause of the threads that verify the log and have devices attest.
#[test]
fn pauses() {
    let (trigger, shutdown) = Shutdown::pair();
    let pause = Snapshot::new(Duration::from_secs(3600));
    let woke = ron_kernel::scoped(2, |worker| {
        if worker == 0 {
            return pause_while(&shutdown, || *pause.load());
        }
        pause.store(Duration::from_millis(1));
        false
    });
    assert_eq!(woke, [false, false], "the pause ended, not the service");
    trigger.fire();
    assert!(pause_while(&shutdown, || Duration::from_secs(3600)));
}
