//! The life of a key: states, schedules, destruction, and operation ids, in memory and across
//! restarts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{ClockAlarm, ManualClock};
use ron_kernel::{Deadline, Shutdown};
use ron_proto::kms::{
    DestroyKey, KeyChanged, KeyDoc, KeyState, PayloadPolicy, Period, RetireKey, RotateEvery,
    RotateRequest, SignRequest, UpdateKey,
};
use ron_proto::values::{Alg, Kid};
use rusqlite::Connection;

use super::{Rig, create_request, file_settings, memory_settings, op_id, principal, signed};
use crate::attest::verify::{Expect, verify};
use crate::audit::leaf::{Leaf, OK, Op};
use crate::settings::Settings;
use crate::work::key_request::KeyRequest;

pub(super) const START_MS: u64 = 1_800_000_000_000;

fn seconds(s: u64) -> Period {
    Period::from_s(s).expect("a period")
}

pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let (_fire, never) = Shutdown::pair();
    let until = Deadline::within(Duration::from_secs(10));
    while !holds() {
        assert!(!until.expired(), "not in time: {what}");
        never.wait(Deadline::within(Duration::from_millis(2)));
    }
}

fn retire() -> KeyRequest {
    KeyRequest::Retire(RetireKey::default())
}

pub(super) fn destroy(delay_s: u64) -> KeyRequest {
    KeyRequest::Destroy(DestroyKey {
        delay: Some(seconds(delay_s)),
        ..DestroyKey::default()
    })
}

fn cancel() -> KeyRequest {
    KeyRequest::CancelDestroy(RetireKey::default())
}

fn update(update: UpdateKey) -> KeyRequest {
    KeyRequest::Update(update)
}

/// Settings with short delays.
fn quick(mut settings: Settings) -> Settings {
    settings.keys.lifecycle.destroy_delay_min = Duration::from_secs(1);
    settings.keys.lifecycle.prepublish = Duration::from_secs(600);
    settings.keys.lifecycle.jitter_percent = 10;
    settings
}

/// A KMS on a clock that the test advances.
pub(super) struct Timed {
    pub(super) rig: Rig,
    clock: Arc<ManualClock>,
}

impl Timed {
    pub(super) fn start(settings: Settings) -> Self {
        let clock = ManualClock::at(START_MS);
        let rig = Rig::start_at(quick(settings), None, clock.clone()).expect("starts");
        Self { rig, clock }
    }

    pub(super) fn memory() -> Self {
        Self::start(memory_settings())
    }

    /// Advances the clock and waits until the scheduler has handled it.
    pub(super) fn pass(&self, s: u64) {
        for step in [s.saturating_sub(2), 1, 1] {
            self.clock.advance(Duration::from_secs(step));
            self.rig.engine.kms.submit_due();
            // The store thread works in order: once this change of another key is answered, everything due is done.
            let key = self.rig.engine.kms.index.load();
            let any = key.keys.keys().next().cloned().expect("a key");
            self.rig.change(&any, update(UpdateKey::default()));
        }
    }

    pub(super) fn leaves(&self, key: &Kid) -> Vec<Leaf> {
        leaves(&self.rig, key)
    }
}

pub(super) fn leaves(rig: &Rig, key: &Kid) -> Vec<Leaf> {
    let reader = rig.engine.reader.as_ref().expect("log");
    let all = (0..reader.size_durable()).map(|i| reader.entry(i).expect("leaf"));
    all.map(|bytes| Leaf::parse(&bytes).expect("leaf"))
        .filter(|leaf| leaf.key.as_deref() == Some(key.to_string().as_str()))
        .collect()
}

fn state(rig: &Rig, key: &Kid) -> KeyState {
    rig.doc(key).state
}

#[test]
fn each_state_allows_what_it_says_and_every_step_is_a_leaf() {
    let timed = Timed::memory();
    let rig = &timed.rig;
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let before = signed(&rig.sign(SignRequest::message(key.clone(), *b"m")));
    let check = |request: KeyRequest, status: u16, want: KeyState| {
        let what = format!("{request:?}");
        let got = rig.change(&key, request);
        assert_eq!(got.status, status, "{what}: {}", got.code());
        assert_eq!(state(rig, &key), want, "{what}");
        let signs = rig.sign(SignRequest::message(key.clone(), *b"m"));
        assert_eq!(signs.status == 200, want == KeyState::Active, "{what}");
        if signs.status != 200 {
            assert_eq!(signs.code(), "key_not_active");
        }
        assert!(
            rig.verify(&key, None, b"m", &before.signatures).ok,
            "{what}"
        );
    };
    check(cancel(), 409, KeyState::Active);
    check(destroy(60), 200, KeyState::PendingDestruction);
    check(destroy(60), 409, KeyState::PendingDestruction);
    check(retire(), 409, KeyState::PendingDestruction);
    check(cancel(), 200, KeyState::Active);
    check(retire(), 200, KeyState::Retired);
    check(retire(), 409, KeyState::Retired);
    check(
        KeyRequest::Rotate(RotateRequest::default()),
        409,
        KeyState::Retired,
    );
    check(destroy(60), 200, KeyState::PendingDestruction);
    check(cancel(), 200, KeyState::Retired);
    check(destroy(60), 200, KeyState::PendingDestruction);
    timed.pass(59);
    assert_eq!(state(rig, &key), KeyState::PendingDestruction);
    timed.pass(2);
    eventually("destroyed", || state(rig, &key) == KeyState::Destroyed);
    check(cancel(), 409, KeyState::Destroyed);
    check(destroy(60), 409, KeyState::Destroyed);
    assert!(rig.engine.kms.index.load().keys[&key].secret.is_none());
    let done: Vec<Op> = timed
        .leaves(&key)
        .iter()
        .filter(|leaf| leaf.result == OK && leaf.op != Op::Sign)
        .map(|leaf| leaf.op)
        .collect();
    let (d, c) = (Op::Destroy, Op::DestroyCancel);
    assert_eq!(done, [Op::Create, d, c, Op::Retire, d, c, d, Op::Destroyed]);
    let refused = timed.leaves(&key);
    let refused = refused
        .iter()
        .filter(|leaf| leaf.result == "key_not_active");
    assert!(refused.count() >= 6, "refusals are leaves too");
    timed.rig.stop();
}

#[test]
fn a_scheduled_version_is_shown_before_it_signs() {
    let timed = Timed::memory();
    let rig = &timed.rig;
    let mut ask = create_request("p", Alg::Ed25519, PayloadPolicy::Any, 1);
    ask.rotate_every = Some(RotateEvery::Every(seconds(3600)));
    let doc: KeyDoc = rig.create_as(&rig.caller, ask).json();
    let key = doc.key.clone();
    let planned = doc.rotation.expect("a schedule").next.0;
    let (soonest, latest) = (START_MS + 3240 * 1000, START_MS + 3600 * 1000);
    assert!(
        (soonest..=latest).contains(&planned),
        "at most the jitter early"
    );
    let until_shown = (planned - START_MS) / 1000 - 600;
    timed.pass(until_shown - 5);
    assert_eq!(rig.doc(&key).versions.len(), 1);
    timed.pass(10);
    eventually("shown", || rig.doc(&key).versions.len() == 2);
    let shown = rig.doc(&key);
    let waiting = shown.waiting.clone().expect("it waits");
    assert_eq!((shown.head, waiting.version), (1, 2));
    // The scheduler was some seconds late, so the version signs as much later.
    assert!((planned..planned + 10_000).contains(&waiting.signs_from.0));
    let answer = signed(&rig.sign(SignRequest::message(key.clone(), *b"m")));
    assert_eq!(answer.version, 1, "it does not sign yet");
    timed.pass(580);
    assert_eq!(rig.doc(&key).head, 1, "not before its time");
    timed.pass(30);
    eventually("it signs", || rig.doc(&key).head == 2);
    let now = rig.doc(&key);
    assert_eq!(now.versions[0], shown.versions[1]);
    assert!(now.waiting.is_none());
    assert!(now.rotation.expect("goes on").next.0 > planned + 3_000_000);
    let newer = signed(&rig.sign(SignRequest::message(key.clone(), *b"m")));
    assert_eq!(newer.version, 2);
    for answer in [&answer, &newer] {
        assert!(rig.verify(&key, None, b"m", &answer.signatures).ok);
    }
    let ops: Vec<Op> = timed.leaves(&key).iter().map(|leaf| leaf.op).collect();
    let at = |op| ops.iter().position(|o| *o == op).expect("a leaf");
    assert!(at(Op::Create) < at(Op::Publish) && at(Op::Publish) < at(Op::Activate));
    let birth =
        verify(&rig.certificate(&rig.doc(&key), b"n"), &Expect::default()).expect("verifies");
    assert_eq!((&birth.key, birth.version), (&key, 2));
    timed.rig.stop();
}

#[test]
fn a_rotation_by_hand_uses_the_version_that_waits() {
    let timed = Timed::memory();
    let rig = &timed.rig;
    let key = rig.create("p", Alg::EcdsaP256, PayloadPolicy::Any, 1).key;
    let every = Some(RotateEvery::Every(seconds(1800)));
    let set = |rotate_every| {
        update(UpdateKey {
            rotate_every,
            ..UpdateKey::default()
        })
    };
    assert_eq!(rig.change(&key, set(every)).status, 200);
    timed.pass(1300);
    eventually("shown", || rig.doc(&key).waiting.is_some());
    let shown = rig.doc(&key);
    let rotated = rig.rotated(&key).document;
    assert_eq!((rotated.head, rotated.versions.len()), (2, 1));
    assert_eq!(rotated.versions[0], shown.versions[1]);
    assert_eq!(rig.rotated(&key).document.head, 3, "then a fresh one");
    assert_eq!(rig.change(&key, set(Some(RotateEvery::Never))).status, 200);
    timed.pass(10_000);
    assert_eq!(rig.doc(&key).head, 3, "never is never");
    let short = rig.change(&key, set(Some(RotateEvery::Every(seconds(59)))));
    assert_eq!((short.status, short.code()), (400, "bad_request".into()));
    timed.rig.stop();
}

#[test]
fn schedules_and_states_survive_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let timed = Timed::start(file_settings(dir.path()));
    let rig = &timed.rig;
    let mut ask = create_request("p", Alg::Ed25519, PayloadPolicy::Any, 1);
    ask.rotate_every = Some(RotateEvery::Every(seconds(3600)));
    let rotating: KeyDoc = rig.create_as(&rig.caller, ask).json();
    let dying = rig.create("p", Alg::MlDsa44, PayloadPolicy::Any, 2).key;
    assert_eq!(rig.change(&dying, destroy(5000)).status, 200);
    timed.pass(3100);
    eventually("shown", || rig.doc(&rotating.key).waiting.is_some());
    let docs = [rig.doc(&rotating.key), rig.doc(&dying)];
    timed.rig.stop();
    let clock = ManualClock::at(START_MS + 3_720_000);
    let rig = Rig::start_at(quick(file_settings(dir.path())), None, clock.clone());
    let timed = Timed {
        rig: rig.expect("starts again"),
        clock,
    };
    let rig = &timed.rig;
    assert_eq!([rig.doc(&rotating.key), rig.doc(&dying)], docs);
    timed.pass(3);
    eventually("activated", || rig.doc(&rotating.key).head == 2);
    timed.pass(2000);
    eventually("destroyed", || state(rig, &dying) == KeyState::Destroyed);
    let destroyed = rig.doc(&dying);
    timed.rig.stop();
    let rig = Rig::file(dir.path()).expect("starts with a destroyed key");
    assert_eq!(rig.doc(&dying), destroyed);
    rig.stop();
}

/// A destroyed key never comes back, so the date that it waits for must be sure.
#[test]
fn nothing_is_destroyed_while_the_date_is_in_doubt() {
    let timed = Timed::memory();
    let rig = &timed.rig;
    rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1);
    let dying = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 2).key;
    assert_eq!(rig.change(&dying, destroy(60)).status, 200);
    for at_start in [true, false] {
        let ahead_ms = 315_360_000_000;
        timed.clock.doubt(Some(ClockAlarm { ahead_ms, at_start }));
        timed.clock.advance(Duration::from_secs(3_600));
        timed.rig.engine.kms.submit_due();
        assert_eq!(rig.engine.kms.store_tx.len(), 0, "nothing is ordered");
        assert_eq!(state(rig, &dying), KeyState::PendingDestruction);
    }
    timed.clock.doubt(None);
    timed.pass(3);
    eventually("destroyed", || state(rig, &dying) == KeyState::Destroyed);
    timed.rig.stop();
}

/// Whether a file under `dir` holds `needle`.
pub(super) fn holds(dir: &Path, needle: &[u8]) -> Option<String> {
    for entry in std::fs::read_dir(dir)
        .expect("dir")
        .map(|e| e.expect("entry"))
    {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = holds(&path, needle) {
                return Some(found);
            }
            continue;
        }
        let bytes = std::fs::read(&path).expect("reads");
        if bytes.windows(needle.len()).any(|window| window == needle) {
            return Some(path.display().to_string());
        }
    }
    None
}

pub(super) fn sealed_records(dir: &Path, key: &Kid) -> Vec<Vec<u8>> {
    let db = Connection::open(dir.join(ron_custody::store::FILE_NAME)).expect("opens");
    let mut query = db
        .prepare("SELECT sealed FROM versions WHERE kid = ?1 ORDER BY number")
        .expect("query");
    let rows = query.query_map([key.to_string()], |r| r.get::<_, Vec<u8>>(0));
    rows.expect("rows").map(|row| row.expect("blob")).collect()
}

#[test]
fn a_destroyed_key_is_in_no_file_any_more() {
    let dir = tempfile::tempdir().expect("dir");
    let timed = Timed::start(file_settings(dir.path()));
    let rig = &timed.rig;
    let keys: Vec<Kid> = (1..40)
        .map(|n| rig.create("p", Alg::Ed25519, PayloadPolicy::Any, n).key)
        .collect();
    let key = &keys[17];
    for _ in 0..3 {
        rig.rotated(key);
    }
    let records = sealed_records(dir.path(), key);
    assert_eq!(records.len(), 4);
    // The ciphertext and its tag: the record without header and nonce.
    let secrets: Vec<&[u8]> = records.iter().map(|r| &r[r.len() - 48..]).collect();
    for secret in &secrets {
        assert!(holds(dir.path(), secret).is_some(), "it is there before");
    }
    let survivor = sealed_records(dir.path(), &keys[3]).remove(0);
    assert_eq!(rig.change(key, destroy(60)).status, 200);
    timed.pass(70);
    eventually("destroyed", || state(rig, key) == KeyState::Destroyed);
    for secret in &secrets {
        assert_eq!(holds(dir.path(), secret), None, "while it runs");
    }
    assert!(holds(dir.path(), &survivor).is_some(), "others stay");
    timed.rig.stop();
    for secret in &secrets {
        assert_eq!(holds(dir.path(), secret), None, "after the stop");
    }
}

#[test]
fn min_verify_version_is_enforced() {
    let rig = Rig::memory();
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let old = signed(&rig.sign(SignRequest::message(key.clone(), *b"m")));
    rig.rotated(&key);
    let new = signed(&rig.sign(SignRequest::message(key.clone(), *b"m")));
    let set = |version| {
        let request = UpdateKey {
            min_verify_version: Some(version),
            ..UpdateKey::default()
        };
        rig.change(&key, update(request)).status
    };
    assert!(rig.verify(&key, None, b"m", &old.signatures).ok);
    assert_eq!(set(3), 400, "above the head");
    assert_eq!(set(0), 400);
    assert_eq!(set(2), 200);
    assert!(!rig.verify(&key, None, b"m", &old.signatures).ok);
    assert!(rig.verify(&key, None, b"m", &new.signatures).ok);
    assert_eq!(rig.doc(&key).min_verify_version, 2);
    assert_eq!(set(1), 200, "an operator's mistake can be corrected");
    assert!(rig.verify(&key, None, b"m", &old.signatures).ok);
    let leaf = leaves(&rig, &key);
    let said = leaf.iter().filter_map(|leaf| leaf.context.as_deref());
    assert!(said.into_iter().any(|text| text == "min_verify_version=2"));
    rig.stop();
}

#[test]
fn exportable_is_one_way() {
    let rig = Rig::memory();
    let mut ask = create_request("p", Alg::Ed25519, PayloadPolicy::Any, 1);
    ask.exportable = true;
    let doc: KeyDoc = rig.create_as(&rig.caller, ask).json();
    assert!(doc.exportable);
    let set = |flag| {
        let request = UpdateKey {
            exportable: Some(flag),
            ..UpdateKey::default()
        };
        rig.change(&doc.key, update(request)).status
    };
    assert_eq!(set(true), 200, "it is so already");
    assert_eq!(set(false), 200);
    assert!(!rig.doc(&doc.key).exportable);
    assert_eq!(set(true), 400);
    assert_eq!(
        rig.change(&doc.key, update(UpdateKey::default())).status,
        400
    );
    rig.stop();
}

#[test]
fn op_ids_of_changes_hold_across_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let settings = || quick(file_settings(dir.path()));
    let rig = Rig::start(settings(), None).expect("starts");
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let requests = |offset: u64| -> Vec<KeyRequest> {
        let op = |n: u128| Some(op_id(100 + n));
        vec![
            KeyRequest::Rotate(RotateRequest {
                expected_head: Some(1),
                op_id: op(1),
                ..RotateRequest::default()
            }),
            update(UpdateKey {
                min_verify_version: Some(1 + offset as u32),
                op_id: op(2),
                ..UpdateKey::default()
            }),
            KeyRequest::Destroy(DestroyKey {
                delay: Some(seconds(6000 + offset)),
                op_id: op(3),
                ..DestroyKey::default()
            }),
            KeyRequest::CancelDestroy(RetireKey {
                expected_head: Some(2),
                op_id: op(4),
            }),
            KeyRequest::Retire(RetireKey {
                expected_head: None,
                op_id: op(5),
            }),
        ]
    };
    let first: Vec<Vec<u8>> = requests(0)
        .into_iter()
        .map(|request| {
            let got = rig.change(&key, request);
            assert_eq!(got.status, 200, "{}", got.code());
            got.body
        })
        .collect();
    let repeat = |rig: &Rig| {
        for (request, first) in requests(0).into_iter().zip(&first) {
            let got = rig.change(&key, request);
            assert_eq!((got.status, &got.body), (200, first));
        }
        let other = KeyRequest::Retire(RetireKey {
            expected_head: None,
            op_id: Some(op_id(101)),
        });
        let got = rig.change(&key, other);
        assert_eq!(
            (got.status, got.code()),
            (422, "idempotency_mismatch".into())
        );
    };
    repeat(&rig);
    let changed: KeyChanged = serde_json::from_slice(&first[1]).expect("the type");
    assert_eq!(changed.op_id, op_id(102));
    let size = rig.engine.reader.as_ref().expect("log").size_durable();
    rig.stop();
    let rig = Rig::start(settings(), None).expect("starts again");
    repeat(&rig);
    let now = rig.engine.reader.as_ref().expect("log").size_durable();
    assert_eq!(now, size + 2, "only the stop and the start are new");
    rig.stop();
}

/// The store keeps of an answer what later changes can change; the rest is read from the key again.
#[test]
fn a_repeated_answer_is_that_of_its_time() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let mut ask = create_request("p", Alg::Ed25519, PayloadPolicy::Digest, 1);
    ask.exportable = true;
    ask.rotate_every = Some(RotateEvery::Every(seconds(3600)));
    let create = |rig: &Rig| rig.create_as(&rig.caller, ask.clone()).body;
    let made = create(&rig);
    let key = serde_json::from_slice::<KeyDoc>(&made)
        .expect("a document")
        .key;
    let rotate = |rig: &Rig| {
        let request = RotateRequest {
            expected_head: Some(1),
            op_id: Some(op_id(2)),
            ..RotateRequest::default()
        };
        rig.rotate(&key, request).body
    };
    let rotated = rotate(&rig);
    rig.rotated(&key);
    let all = update(UpdateKey {
        min_verify_version: Some(3),
        rotate_every: Some(RotateEvery::Never),
        exportable: Some(false),
        ..UpdateKey::default()
    });
    assert_eq!(rig.change(&key, all).status, 200);
    assert_eq!(rig.change(&key, destroy(100_000)).status, 200);
    let rig = {
        rig.stop();
        Rig::file(dir.path()).expect("starts again")
    };
    let text = |body: Vec<u8>| String::from_utf8(body).expect("JSON");
    assert_eq!(text(create(&rig)), text(made));
    assert_eq!(text(rotate(&rig)), text(rotated));
    rig.stop();
}

#[test]
fn a_wrong_head_and_another_tenant_change_nothing() {
    let rig = Rig::memory();
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    rig.rotated(&key);
    let before = rig.doc(&key);
    let all = |expected_head| {
        [
            KeyRequest::Rotate(RotateRequest {
                expected_head,
                op_id: None,
                ..RotateRequest::default()
            }),
            update(UpdateKey {
                min_verify_version: Some(2),
                expected_head,
                ..UpdateKey::default()
            }),
            KeyRequest::Retire(RetireKey {
                expected_head,
                op_id: None,
            }),
            KeyRequest::Destroy(DestroyKey {
                expected_head,
                ..DestroyKey::default()
            }),
            KeyRequest::CancelDestroy(RetireKey {
                expected_head,
                op_id: None,
            }),
        ]
    };
    for request in all(Some(1)) {
        let got = rig.change(&key, request);
        assert_eq!((got.status, got.code()), (409, "stale_head".into()));
        let body: serde_json::Value = serde_json::from_slice(&got.body).expect("json");
        assert_eq!(body["details"]["head"], 2);
    }
    for outsider in [
        principal("other", None),
        principal("ron", Some(&["ron/q/"])),
    ] {
        for request in all(None) {
            let got = rig.change_as(&outsider, &key, request);
            assert_eq!((got.status, got.code()), (403, "forbidden".into()));
        }
    }
    assert_eq!(rig.doc(&key), before);
    let mut missing = key;
    missing.id = uuid::Uuid::from_u128(7);
    for request in all(None) {
        assert_eq!(rig.change(&missing, request).status, 404);
    }
    rig.stop();
}
