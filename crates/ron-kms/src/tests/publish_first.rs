//! A rotation on request whose version is published before it signs.

use ron_proto::kms::{PayloadPolicy, RotateAnswer, RotateRequest, SignRequest};
use ron_proto::values::Alg;

use super::lifecycle::{START_MS, Timed, eventually};
use super::{op_id, signed};
use crate::audit::leaf::Op;

#[test]
fn a_rotation_on_request_publishes_first_where_it_is_asked_to() {
    let timed = Timed::memory();
    let rig = &timed.rig;
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let ask = |n| RotateRequest {
        expected_head: Some(1),
        publish_first: true,
        op_id: Some(op_id(n)),
    };
    let published: RotateAnswer = rig.rotate(&key, ask(11)).json();
    let again: RotateAnswer = rig.rotate(&key, ask(11)).json();
    assert_eq!(published, again, "once per operation id");
    let waits = published.document.waiting.clone().expect("it waits");
    let ahead_ms = waits.signs_from.0 - START_MS;
    assert!((600_000..660_000).contains(&ahead_ms), "{ahead_ms}");
    let other = rig.rotate(&key, ask(12));
    assert_eq!((other.status, other.code().as_str()), (409, "stale_head"));
    let text = String::from_utf8_lossy(&other.body);
    assert!(text.contains("ron kms rotate --now"), "{text}");
    timed.pass(ahead_ms / 1000 - 30);
    let signs = || signed(&rig.sign(SignRequest::message(key.clone(), *b"m"))).version;
    assert_eq!((signs(), rig.doc(&key).head_since), (1, None));
    timed.pass(60);
    eventually("it signs", || rig.doc(&key).head == 2);
    assert_eq!(signs(), 2);
    let since = rig.doc(&key).head_since.expect("it has waited");
    assert!(since >= waits.signs_from, "{since}");
    timed.pass(10_000);
    assert_eq!(rig.doc(&key).head, 2, "without a schedule there is no next");
    // The next one signs at once, as that of a key that may be known to others.
    let now = rig.rotated(&key).document;
    assert_eq!((now.head, now.head_since, now.waiting), (3, None, None));
    let ops: Vec<Op> = timed.leaves(&key).iter().map(|leaf| leaf.op).collect();
    let made = ops.iter().filter(|op| **op == Op::Publish).count();
    assert_eq!(made, 2, "one is the refusal");
    assert!(ops.contains(&Op::Activate) && ops.contains(&Op::Rotate));
    timed.rig.stop();
}
