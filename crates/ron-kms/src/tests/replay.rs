//! Damage and loss of the journal of answers: noticed at the next start, and not the end of everything else.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_proto::kms::{PayloadPolicy, RotateRequest, SignRequest};
use ron_proto::values::{Alg, Kid};

use super::store::copy;
use super::{Rig, op_id, settings, signed};
use crate::audit::leaf::{Leaf, Op};

fn request(kid: &Kid, op: u128) -> SignRequest {
    SignRequest {
        op_id: Some(op_id(op)),
        ..SignRequest::message(kid.clone(), *b"x")
    }
}

fn segment(dir: &Path) -> PathBuf {
    dir.join("replay/0000000000000001")
}

/// Signs under five operation ids, each in a batch of its own; the key and the length of the journal after each.
fn five(rig: &Rig, dir: &Path) -> (Kid, Vec<u64>) {
    let kid = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let (_never_set, never) = Shutdown::pair();
    let length = |op| {
        signed(&rig.sign(request(&kid, op)));
        // Stamps of leaves are in milliseconds, and leaves of one time count as one batch.
        never.wait(Deadline::within(Duration::from_millis(2)));
        fs::metadata(segment(dir)).expect("there").len()
    };
    let lengths = (10..15).map(length).collect();
    (kid, lengths)
}

/// Why a service on a changed copy of `dir` is degraded, if its journal is the reason. All else works.
fn lost(dir: &Path, kid: &Kid, change: impl FnOnce(&Path)) -> Option<String> {
    let copied = tempfile::tempdir().expect("dir");
    copy(dir, copied.path());
    change(copied.path());
    let rig = Rig::file(copied.path()).expect("starts");
    let why = why(&rig);
    assert!(rig.ready.snapshot().ready);
    signed(&rig.sign(SignRequest::message(kid.clone(), *b"x")));
    let answer = rig.sign(request(kid, 99));
    if why.is_some() {
        let code = (answer.status, answer.code());
        assert_eq!(code, (503, "answers_lost".to_owned()));
    } else {
        signed(&answer);
    }
    rig.stop();
    why
}

fn why(rig: &Rig) -> Option<String> {
    let causes = rig.ready.causes();
    let cause = causes.into_iter().find(|(name, ..)| *name == "replay");
    cause.map(|(.., why)| why)
}

fn cut(to: u64) -> impl FnOnce(&Path) {
    move |dir| {
        let file = fs::OpenOptions::new().write(true).open(segment(dir));
        file.and_then(|file| file.set_len(to)).expect("cut");
    }
}

#[test]
fn a_journal_that_is_cut_between_batches_or_removed_is_noticed() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let (kid, lengths) = five(&rig, dir.path());
    let killed = tempfile::tempdir().expect("dir");
    copy(dir.path(), killed.path());
    rig.stop();
    let stopped = dir.path();

    assert_eq!(lost(stopped, &kid, |_| {}), None);
    assert_eq!(lost(killed.path(), &kid, |_| {}), None);
    for (batch, length) in lengths.iter().enumerate() {
        let complete = batch + 1 == lengths.len();
        let why = lost(stopped, &kid, cut(*length));
        assert_eq!(why.is_none(), complete, "batch {batch}: {why:?}");
        // After a kill the answers of the last batch may not have been written.
        let may_be_lost = batch + 2 >= lengths.len();
        let why = lost(killed.path(), &kid, cut(*length));
        assert_eq!(why.is_none(), may_be_lost, "batch {batch}: {why:?}");
    }
    let gone = |dir: &Path| fs::remove_file(segment(dir)).expect("removed");
    assert!(lost(stopped, &kid, gone).is_some());
    assert!(lost(killed.path(), &kid, gone).is_some());
    let gone = |dir: &Path| fs::remove_dir_all(dir.join("replay")).expect("removed");
    let why = lost(stopped, &kid, gone).expect("noticed");
    assert!(why.contains(&op_id(14).to_string()), "{why}");
}

/// The counters beside the log are a cache: without them, or with others, the log itself says which answers there were.
#[test]
fn the_counters_beside_the_log_hide_no_lost_answer() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let (kid, _) = five(&rig, dir.path());
    rig.stop();
    let counters = dir.path().join("audit/counters.json");
    let text = fs::read_to_string(&counters).expect("kept at the stop");
    let mut changed: serde_json::Value = serde_json::from_str(&text).expect("json");
    let answered = changed["counters"]["answered"].take();
    assert_eq!(answered["op_id"], op_id(14).to_string(), "{text}");
    let members = changed["counters"].as_object_mut().expect("members");
    members.remove("answered");
    fs::write(&counters, changed.to_string()).expect("writes");
    let gone = |dir: &Path| fs::remove_dir_all(dir.join("replay")).expect("removed");
    assert!(lost(dir.path(), &kid, gone).is_some());
    fs::remove_file(&counters).expect("removed");
    assert!(lost(dir.path(), &kid, gone).is_some());
}

#[test]
fn a_damaged_journal_refuses_new_operation_ids_until_its_loss_is_accepted() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let (kid, lengths) = five(&rig, dir.path());
    rig.stop();
    let mut bytes = fs::read(segment(dir.path())).expect("there");
    bytes[lengths[1] as usize + 40] ^= 1;
    fs::write(segment(dir.path()), &bytes).expect("writes");
    let why_lost = lost(dir.path(), &kid, |_| {}).expect("noticed");
    assert!(why_lost.contains("is damaged at byte"), "{why_lost}");

    let start = |accepted: &str| {
        let data = dir.path().to_str().expect("utf-8");
        let flags = [
            ("data_dir", data),
            ("signers", "2"),
            ("replay.accept_loss", accepted),
        ];
        Rig::start_on(settings(&flags), None).expect("starts")
    };
    let rig = start("0123456789abcdef");
    let cause = why(&rig).expect("another loss was accepted");
    let (_, rest) = cause.split_once("replay.accept_loss = \"").expect("named");
    let (name, _) = rest.split_once('"').expect("in quotes");
    rig.stop();
    assert_eq!(fs::read(segment(dir.path())).expect("there"), bytes);

    // Operation ids of changes are in the key store.
    let rig = start("");
    let rotate = RotateRequest {
        expected_head: None,
        op_id: Some(op_id(50)),
        ..RotateRequest::default()
    };
    assert_eq!(rig.rotate(&kid, rotate).status, 200);
    rig.stop();

    let rig = start(name);
    assert_eq!(why(&rig), None);
    let again = signed(&rig.sign(request(&kid, 99)));
    rig.stop();
    let aside = segment(dir.path()).with_extension("lost");
    assert_eq!(fs::read(aside).expect("set aside"), bytes);
    let rig = Rig::file(dir.path()).expect("starts");
    assert_eq!(why(&rig), None);
    assert_eq!(signed(&rig.sign(request(&kid, 99))).receipt, again.receipt);
    let reader = rig.engine.reader.clone().expect("log");
    let leaves = (0..reader.size_durable()).map(|at| reader.entry(at).expect("leaf"));
    let leaves = leaves.map(|leaf| Leaf::parse(&leaf).expect("leaf"));
    let forgot: Vec<Leaf> = leaves.filter(|l| l.op == Op::ForgetAnswers).collect();
    assert_eq!(forgot.len(), 1);
    assert!(
        forgot[0]
            .context
            .as_ref()
            .is_some_and(|c| c.contains("damaged"))
    );
    rig.stop();
    // What was accepted once is accepted for that loss alone.
    fs::remove_dir_all(dir.path().join("replay")).expect("removed");
    let rig = start(name);
    assert!(why(&rig).is_some());
    rig.stop();
}
