//! The audit log: no success without a durable leaf, and no undetected change of the log.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{CrashMode, FaultKind, SimDisk};
use ron_http::Response;
use ron_kernel::{Deadline, ReplyWaiter};
use ron_proto::kms::{PayloadPolicy, SignAnswer, SignRequest};
use ron_proto::values::Alg;
use ron_tlog::append::{Log, LogOptions};

use super::{Rig, file_settings, memory_settings, op_id, signed};
use crate::audit::leaf::{Leaf, OK, Op};
use crate::audit::verify::{verify_dir, verify_on};

/// The answers of a run with disk faults, and what survived on the disk.
struct Run {
    acknowledged: Vec<SignAnswer>,
    refused: usize,
    /// Signatures that the backend made, answered or not.
    made: u64,
    leaves: Vec<Leaf>,
}

/// Signs from several threads while the disk fails at its n-th operation, then loses power.
fn run_with_fault(after: u64, kind: FaultKind) -> Run {
    let disk = SimDisk::new();
    let rig = Rig::start(memory_settings(), Some(disk.clone())).expect("starts");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let first = signed(&rig.sign(SignRequest::message(doc.key.clone(), *b"before")));
    disk.fail_after(after, kind);
    let mut acknowledged = vec![first.clone()];
    let mut refused = 0;
    for round in 0..6_u32 {
        let sent: Vec<ReplyWaiter<Response>> = (0..4)
            .map(|n| {
                let text = format!("{round} {n}").into_bytes();
                rig.send_sign(&rig.caller, SignRequest::message(doc.key.clone(), text))
            })
            .collect();
        for waiter in sent {
            let got = Rig::wait(waiter);
            match got.status {
                200 => acknowledged.push(signed(&got)),
                503 => refused += 1,
                other => panic!("status {other}"),
            }
        }
    }
    // A failed log refuses signatures, but verification works.
    if refused > 0 {
        assert!(!rig.engine.kms.health.is_ok());
        assert!(!rig.ready.snapshot().ready);
        assert!(rig.verify(&doc.key, None, b"before", &first.signatures).ok);
        assert_eq!(
            rig.sign(SignRequest::message(doc.key.clone(), *b"late"))
                .status,
            503
        );
    }
    disk.crash(CrashMode::LoseAll);
    rig.sup.drain(Duration::from_secs(5));
    let vkey = rig.engine.keys.chain().newest().clone();
    let origin = rig.engine.kms.origin.clone();
    let made = rig.engine.kms.metrics.evidence.signatures_made.get();
    drop(rig);
    let options = LogOptions::new(origin).verified_by(vkey);
    let log = Log::open(Arc::new(disk.fork()), Path::new("/audit"), options).expect("reopens");
    let reader = log.reader();
    let leaves = (0..log.size())
        .map(|i| Leaf::parse(&reader.entry(i).expect("entry")).expect("leaf"))
        .collect();
    Run {
        acknowledged,
        refused,
        made,
        leaves,
    }
}

#[test]
fn no_success_without_a_durable_leaf() {
    let mut failed_runs = 0;
    for kind in [FaultKind::Io, FaultKind::NoSpace] {
        for after in 1..15 {
            let run = run_with_fault(after, kind);
            failed_runs += usize::from(run.refused > 0);
            let answers = run.acknowledged.len() as u64;
            assert!(
                (answers..=answers + run.refused as u64).contains(&run.made),
                "{} made, {answers} answered, {} refused",
                run.made,
                run.refused
            );
            for answer in &run.acknowledged {
                let index = answer.receipt.index as usize;
                let leaf = run.leaves.get(index).unwrap_or_else(|| {
                    panic!("fault {after} {kind:?}: leaf {index} was acknowledged and is lost")
                });
                assert_eq!((leaf.op, leaf.result.as_str()), (Op::Sign, OK));
                let raw = answer.signatures[0].signature.as_slice();
                assert_eq!(
                    leaf.output_sha256,
                    Some(hex::encode(ron_crypto::hash::sha256(raw)))
                );
            }
        }
    }
    assert!(failed_runs > 10, "the disk hardly failed: {failed_runs}");
}

fn fill(dir: &Path, rounds: u32) -> String {
    let rig = Rig::file(dir).expect("starts");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, u128::from(rounds));
    for n in 0..rounds {
        let request = SignRequest::message(doc.key.clone(), n.to_string().into_bytes());
        assert_eq!(rig.sign(request).status, 200);
    }
    let vkey = rig.engine.keys.vkey();
    rig.stop();
    vkey
}

#[test]
fn the_offline_check_counts_and_needs_only_directory_and_key() {
    let dir = tempfile::tempdir().expect("dir");
    let vkey = fill(dir.path(), 7);
    let mut progress = 0;
    let report =
        verify_dir(&dir.path().join("audit"), &vkey, &mut |_, _| progress += 1).expect("verifies");
    // start, create, seven signatures, stop
    assert_eq!(
        (report.size, report.checkpoint_size),
        (10, 10),
        "the stop leaf is signed too"
    );
    assert_eq!(report.ops.get("sign"), Some(&7));
    let (_, ops) = report.keys.iter().next().expect("one key");
    assert_eq!((ops.signatures, ops.versions, ops.refused), (7, 1, 0));
    let other = "example.org/x+00000000+AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    assert!(verify_dir(&dir.path().join("audit"), other, &mut |_, _| ()).is_err());
    // A log that goes on after a restart is one log.
    let again = fill(dir.path(), 3);
    assert_eq!(again, vkey);
    let report = verify_dir(&dir.path().join("audit"), &vkey, &mut |_, _| ()).expect("verifies");
    assert_eq!(report.size, 16);
}

#[test]
fn an_edited_log_is_named_offline_and_refuses_writes_at_start() {
    let dir = tempfile::tempdir().expect("dir");
    let vkey = fill(dir.path(), 5);
    let segment = dir.path().join("audit/00000000.seg");
    let good = std::fs::read(&segment).expect("segment");
    let needle = b"\"op\":\"sign\"";
    let places: Vec<usize> = (0..good.len() - needle.len())
        .filter(|&i| good[i..].starts_with(needle))
        .collect();
    assert_eq!(places.len(), 5);
    let mut edited = good.clone();
    edited[places[2] + 7] = b'S';
    std::fs::write(&segment, &edited).expect("writes");
    let error = verify_dir(&dir.path().join("audit"), &vkey, &mut |_, _| ()).expect_err("edited");
    assert_eq!(
        error.index,
        Some(4),
        "{error}: start, create, two signatures, then this one"
    );
    let rig = Rig::file(dir.path()).expect("starts to verify");
    assert_eq!(
        rig.sign(SignRequest::message(rig_key(&rig), *b"x")).code(),
        "audit_tampered"
    );
    assert!(!rig.ready.snapshot().ready);
    assert_eq!(rig.engine.kms.metrics.integrity_failed.get(), 1);
    rig.sup.drain(Duration::from_secs(5));
}

fn rig_key(rig: &Rig) -> ron_proto::values::Kid {
    rig.engine
        .kms
        .index
        .load()
        .keys
        .keys()
        .next()
        .expect("a key")
        .clone()
}

#[test]
fn a_log_that_was_cut_or_rolled_back_is_found_at_start() {
    let check = |what: &str, anchored: bool, harm: &dyn Fn(&Path, &Path)| {
        let dir = tempfile::tempdir().expect("dir");
        let (data, old) = (dir.path().join("data"), dir.path().join("old"));
        let mut settings = file_settings(&data);
        settings.keys.anchor_dir = anchored.then(|| dir.path().join("anchor"));
        let start = || Rig::start(settings.clone(), None).expect("starts");
        let rig = start();
        let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
        rig.stop();
        copy(&data, &old);
        let rig = start();
        for n in 0..4_u8 {
            assert_eq!(
                rig.sign(SignRequest::message(doc.key.clone(), [n])).status,
                200
            );
        }
        rig.rotated(&doc.key);
        rig.stop();
        harm(&data, &old);
        let rig = start();
        assert!(!rig.engine.kms.health.is_ok(), "{what}: not noticed");
        assert_eq!(rig.engine.kms.metrics.integrity_failed.get(), 1, "{what}");
        assert_eq!(
            rig.sign(SignRequest::message(doc.key.clone(), *b"x"))
                .status,
            503,
            "{what}"
        );
        rig.sup.drain(Duration::from_secs(5));
    };
    let replace = |from: &Path, to: &Path| {
        std::fs::remove_dir_all(to).expect("removes");
        copy(from, to);
    };
    check("log deleted", false, &|data, _| {
        std::fs::remove_dir_all(data.join("audit")).expect("removes");
    });
    check("log rolled back", false, &|data, old| {
        replace(&old.join("audit"), &data.join("audit"));
    });
    check("store rolled back", false, &|data, old| {
        for entry in std::fs::read_dir(old)
            .expect("dir")
            .map(|e| e.expect("entry"))
        {
            if entry.file_type().expect("type").is_file() {
                std::fs::copy(entry.path(), data.join(entry.file_name())).expect("copies");
            }
        }
    });
    check("segment cut", false, &|data, _| {
        let segment = data.join("audit/00000000.seg");
        let bytes = std::fs::read(&segment).expect("reads");
        std::fs::write(&segment, &bytes[..bytes.len() * 2 / 3]).expect("writes");
    });
    check(
        "everything rolled back, but not the anchor",
        true,
        &|data, old| replace(old, data),
    );
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("dir");
    for entry in std::fs::read_dir(from)
        .expect("dir")
        .map(|e| e.expect("entry"))
    {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copies");
        }
    }
}

#[test]
fn checkpoints_follow_the_leaves_and_prove_them() {
    let mut settings = memory_settings();
    settings.keys.checkpoint_interval = Duration::from_millis(100);
    let disk = SimDisk::new();
    let rig = Rig::start(settings, Some(disk.clone())).expect("starts");
    let doc = rig.create(
        "app",
        Alg::Ed25519,
        PayloadPolicy::Any,
        op_id(1).0.as_u128(),
    );
    let answer = signed(&rig.sign(SignRequest::message(doc.key, *b"x")));
    let reader = rig.engine.reader.clone().expect("a log");
    let until = Deadline::within(Duration::from_secs(5));
    let (_fire, never) = ron_kernel::Shutdown::pair();
    while reader.checkpoint_size() <= answer.receipt.index {
        assert!(!until.expired(), "no checkpoint");
        never.wait(Deadline::within(Duration::from_millis(10)));
    }
    let proof = reader.proof(answer.receipt.index).expect("covered");
    assert!(proof.starts_with("c2sp.org/tlog-proof@v1\n"), "{proof}");
    let keys = rig.engine.keys.chain();
    // An idle log writes no checkpoints.
    let (size, syncs) = (reader.checkpoint_size(), disk.syncs());
    never.wait(Deadline::within(Duration::from_millis(300)));
    assert_eq!((reader.checkpoint_size(), disk.syncs()), (size, syncs));
    rig.stop();
    let report = verify_on(
        &disk,
        Path::new("/audit"),
        keys.keys(),
        &|| false,
        &mut |_, _| (),
    )
    .expect("whole");
    assert_eq!(report.size, report.checkpoint_size);
}
