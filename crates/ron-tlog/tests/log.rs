//! The log on disk: entries are read back, proven and served; damage is refused with the index.

#![allow(clippy::needless_for_each)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use common::{dir, entries, entry, fill, key, open, options, private, signer, verify};
use ron_files::{CrashMode, Disk as _, FaultKind, OsDisk, SimDisk};
use ron_tlog::append::LeafFiles;
use ron_tlog::tile::{TilePath, split_bundle, tiles_of};
use ron_tlog::tree::{Frontier, leaf_hash, verify_consistency};
use ron_tlog::{
    AppendError, Checkpoint, CheckpointError, Log, LogOptions, OpenError, ProofError, ReadError,
    TlogProof, verify_dir,
};

/// Three full segments and a half.
const N: u64 = 3 * 256 + 130;

fn filled() -> SimDisk {
    let disk = SimDisk::new();
    let mut log = open(&disk).expect("a new log");
    assert!(log.recovery().created);
    fill(&mut log, N);
    disk
}

#[test]
fn appended_entries_are_read_back() {
    let disk = filled();
    for round in 0..2 {
        let log = open(&disk).expect("opens");
        let reader = log.reader();
        assert_eq!(
            (log.size(), reader.size_durable(), reader.checkpoint_size()),
            (N, N, N)
        );
        for index in [0, 1, 63, 64, 65, 255, 256, 300, 511, 512, N - 2, N - 1] {
            assert_eq!(reader.entry(index).expect("there"), entry(index), "{index}");
            let both = (entry(index), private(index));
            assert_eq!(reader.record(index).expect("there"), both, "{index}");
            let leaf = leaf_hash(&entry(index));
            assert_eq!(reader.leaf_hash(index).expect("there"), leaf, "{index}");
        }
        assert!(matches!(
            reader.entry(N),
            Err(ReadError::NotFound { index: N, size: N })
        ));
        let mut next = 5;
        reader
            .entries(5..N, |index, data| {
                assert_eq!((index, data), (next, &entry(next)[..]));
                next += 1;
                Ok::<(), ReadError>(())
            })
            .expect("reads");
        assert_eq!(next, N);
        assert!(
            log.recovery().cut.is_none() && log.recovery().rebuilt_indexes.is_empty(),
            "round {round}"
        );
        assert!(
            log.recovery().scanned < 512,
            "only the segments of the last block are read: {}",
            log.recovery().scanned
        );
        drop(log);
        disk.crash(CrashMode::LoseAll);
    }
    let verified = verify(&disk).expect("whole");
    assert_eq!(
        (verified.size, verified.checkpoint_size, verified.tail_bytes),
        (N, N, 0)
    );
    assert_eq!(verified.notes, Vec::<String>::new());
}

#[test]
fn tiles_and_bundles_give_the_root() {
    let disk = filled();
    let reader = open(&disk).expect("opens").reader();
    let mut leaves: BTreeMap<u64, [u8; 32]> = BTreeMap::new();
    for tile in tiles_of(N) {
        match tile {
            TilePath::Hashes {
                level,
                index,
                width,
            } => {
                let bytes = reader.tile(level, index, width).expect("served");
                assert_eq!(bytes.len(), usize::from(width) * 32);
                for (at, hash) in bytes.chunks(32).enumerate().filter(|_| level == 0) {
                    leaves.insert(index * 256 + at as u64, hash.try_into().expect("32 bytes"));
                }
                if level == 1 {
                    let whole: Vec<_> = (0..256).map(|i| leaves[&i]).collect();
                    assert_eq!(bytes[..32], ron_tlog::tree::complete_root(&whole));
                }
            }
            TilePath::Entries { index, width } => {
                let bundle = reader.entry_bundle(index, width).expect("served");
                let split = split_bundle(&bundle).expect("whole");
                for (at, data) in split.iter().enumerate() {
                    assert_eq!(leaf_hash(data), leaves[&(index * 256 + at as u64)]);
                }
            }
        }
    }
    let mut frontier = Frontier::new();
    for leaf in leaves.values() {
        frontier.push(*leaf);
    }
    assert_eq!((frontier.size(), frontier.root()), (N, reader.head().root));
    assert!(reader.tile(0, N / 256, 131).is_err());
    assert!(reader.tile(1, 0, 4).is_err());
    assert!(reader.tile(9, 0, 1).is_err());
    assert!(reader.entry_bundle(u64::MAX, 256).is_err());
}

#[test]
fn every_entry_is_proven_offline() {
    let disk = filled();
    let mut log = open(&disk).expect("opens");
    let first = log.append(&entries(N, 3)).expect("appends");
    let reader = log.reader();
    let note = reader.checkpoint().expect("published");
    for index in (0..N).step_by(13).chain([N - 1]) {
        let proof = TlogProof::parse(&reader.proof(index).expect("proven")).expect("in the format");
        let checkpoint = proof
            .verify(&entry(index), &[key()], Some(common::ORIGIN))
            .expect("holds");
        assert_eq!((checkpoint.size, &proof.checkpoint[..]), (N, &*note));
    }
    assert!(matches!(
        reader.proof(first),
        Err(ProofError::NotYetCovered { covered: N, .. })
    ));
    assert!(matches!(
        reader.proof(N + 3),
        Err(ProofError::NotFound { .. })
    ));
    log.publish_checkpoint(&signer()).expect("publishes");
    assert!(reader.proof(first).is_ok());
    for old in [1, 255, 256, 257, 600, N] {
        let proof = reader.consistency(old, N + 3).expect("there");
        let (a, b) = (reader.root_at(old).expect("there"), reader.head().root);
        assert_eq!(
            verify_consistency(old, N + 3, &proof, &a, &b),
            Ok(()),
            "from {old}"
        );
    }
}

#[test]
fn checkpoints_are_published_once_and_take_cosignatures() {
    let disk = SimDisk::new();
    let mut log = open(&disk).expect("a new log");
    assert!(log.reader().checkpoint().is_none());
    log.append(&entries(0, 9)).expect("appends");
    let mut checkpointer = log.take_checkpointer().expect("the first time");
    assert!(matches!(
        log.publish_checkpoint(&signer()),
        Err(CheckpointError::HandedOut)
    ));
    assert_eq!(checkpointer.uncovered(), 9);
    let text = checkpointer.publish(&[&signer()]).expect("publishes");
    let operations = disk.operations();
    assert_eq!(checkpointer.publish(&[&signer()]).expect("the same"), text);
    assert_eq!(disk.operations(), operations, "an idle log writes none");
    let line = ron_tlog::note::NoteSignature {
        name: "witness.example".into(),
        key_id: 7,
        signature: vec![1; 72],
    };
    let cosigned = checkpointer
        .add_signatures(&text, &[line.clone(), line])
        .expect("added");
    assert_eq!(
        ron_tlog::Note::parse(&cosigned)
            .expect("a note")
            .signatures
            .len(),
        2
    );
    assert!(matches!(
        checkpointer.add_signatures(&text, &[]),
        Err(CheckpointError::Superseded)
    ));
    drop(log);
    assert!(
        matches!(open(&disk), Err(OpenError::InUse(_))),
        "the checkpointer still may write"
    );
    drop(checkpointer);
    assert_eq!(
        open(&disk).expect("opens").reader().checkpoint().as_deref(),
        Some(&*cosigned)
    );
    assert_eq!(verify(&disk).expect("whole").checkpoint_size, 9);
}

#[test]
fn entries_that_do_not_fit_are_refused_and_change_nothing() {
    let disk = SimDisk::new();
    let mut log = Log::open(
        Arc::new(disk.clone()),
        dir(),
        LogOptions {
            entry_bytes_max: 100,
            ..options()
        },
    )
    .expect("a new log");
    let operations = disk.operations();
    let long = [vec![0; 100], vec![0; 101]];
    assert!(matches!(
        log.append(&long),
        Err(AppendError::EntryTooLarge {
            at: 1,
            bytes: 101,
            most: 100
        })
    ));
    assert_eq!(log.append::<Vec<u8>>(&[]).expect("nothing to do"), 0);
    assert_eq!(
        (disk.operations(), log.size(), log.poisoned()),
        (operations, 0, false)
    );
    assert_eq!(log.append(&[vec![], vec![0; 100]]).expect("fits"), 0);
    assert_eq!(log.reader().entry(0).expect("there"), Vec::<u8>::new());
    drop(log);
    let mut log = Log::open(Arc::new(disk), dir(), options()).expect("opens");
    let huge = vec![vec![0; 65_535]; 1100];
    assert!(matches!(
        log.append(&huge),
        Err(AppendError::BatchTooLarge { .. })
    ));
    assert_eq!(log.append(&[vec![7; 65_535]]).expect("fits"), 2);
    assert_eq!(log.reader().entry(2).expect("there"), vec![7; 65_535]);
}

#[test]
fn wrong_options_are_refused() {
    let disk = filled();
    let try_open =
        |options: LogOptions| Log::open(Arc::new(disk.clone()), dir(), options).map(|_| ());
    let other = LogOptions {
        origin: "other.example".into(),
        ..options()
    };
    assert!(matches!(try_open(other), Err(OpenError::Origin { .. })));
    let unlisted = ron_tlog::Ed25519NoteSigner::new(
        common::ORIGIN,
        ron_crypto::sign::Ed25519Key::from_seed(&[1; 32]),
    );
    let unlisted = unlisted.expect("a legal name").verifier().clone();
    let foreign = LogOptions {
        verifiers: vec![unlisted],
        ..options()
    };
    assert!(matches!(try_open(foreign), Err(OpenError::Checkpoint(_))));
    assert!(matches!(
        try_open(LogOptions::new("")),
        Err(OpenError::Options(_))
    ));
    let short = LogOptions {
        segment_entries: 100,
        ..options()
    };
    assert!(matches!(try_open(short), Err(OpenError::Options(_))));
    assert_eq!(
        try_open(LogOptions::new(common::ORIGIN)).map_err(|e| e.to_string()),
        Ok(()),
        "no key, no check"
    );
}

#[test]
fn a_head_known_from_elsewhere_catches_a_rollback() {
    let disk = filled();
    let old = disk.fork();
    let mut log = open(&disk).expect("opens");
    log.append(&entries(N, 1)).expect("appends");
    log.publish_checkpoint(&signer()).expect("publishes");
    let head = log.reader().checkpoint_head().expect("published");
    let with_head = |head: Checkpoint| LogOptions {
        known_heads: vec![head],
        ..options()
    };
    let error =
        Log::open(Arc::new(old.clone()), dir(), with_head(head.clone())).expect_err("rolled back");
    assert!(
        matches!(error, OpenError::Damaged { index: N, .. }),
        "{error}"
    );
    let forked = Checkpoint {
        size: 300,
        root: [1; 32],
        ..head
    };
    assert!(matches!(
        Log::open(Arc::new(old.clone()), dir(), with_head(forked)),
        Err(OpenError::Damaged { .. })
    ));
    assert!(open(&old).is_ok(), "by itself it is a fine log");
}

#[test]
fn a_failed_write_or_sync_closes_the_log_for_writing() {
    for (after, kind) in [
        (1, FaultKind::Io),
        (1, FaultKind::NoSpace),
        (2, FaultKind::Io),
    ] {
        let disk = SimDisk::new();
        let mut log = open(&disk).expect("a new log");
        fill(&mut log, 100);
        let reader = log.reader();
        disk.fail_after(after, kind);
        assert!(matches!(
            log.append(&entries(100, 5)),
            Err(AppendError::Io { .. })
        ));
        let operations = disk.operations();
        assert!(matches!(
            log.append(&entries(100, 5)),
            Err(AppendError::Poisoned)
        ));
        assert!(matches!(
            log.publish_checkpoint(&signer()),
            Err(CheckpointError::Poisoned)
        ));
        assert_eq!(disk.operations(), operations, "nothing is retried");
        assert!(log.poisoned() && reader.poisoned());
        assert_eq!(
            (log.size(), reader.entry(99).expect("reads go on")),
            (100, entry(99))
        );
        drop(log);
        // Reopened without a restart: kept entries must really be on disk, although the failed sync
        // marked them clean.
        let log = open(&disk).expect("opens");
        let kept = log.size();
        assert!(kept == 100 || kept == 105, "{kept}");
        drop(log);
        disk.crash(CrashMode::LoseAll);
        assert_eq!(open(&disk).expect("opens").size(), kept, "{after} {kind:?}");
    }
    let disk = SimDisk::new();
    let mut log = open(&disk).expect("a new log");
    log.append(&entries(0, 5)).expect("appends");
    disk.fail_after(3, FaultKind::Io);
    assert!(matches!(
        log.publish_checkpoint(&signer()),
        Err(CheckpointError::Io(_))
    ));
    assert!(matches!(
        log.append(&entries(5, 1)),
        Err(AppendError::Poisoned)
    ));
}

#[test]
fn derived_files_are_rebuilt() {
    let disk = filled();
    let path = |name: &str| dir().join(name);
    let good = disk.peek(&path("00000001.idx")).expect("there");
    let mut flipped_leaf = good.clone();
    *flipped_leaf.last_mut().expect("not empty") ^= 1;
    let mut flipped_root = good.clone();
    flipped_root[130] ^= 1;
    let foreign = disk.peek(&path("00000002.idx")).expect("there");
    for (bad, rebuilt) in [
        (None, true),
        (Some(Vec::new()), true),
        (Some(flipped_root), true),
        (Some(foreign), true),
        (Some(flipped_leaf), false), // found by the tile root when it is read
    ] {
        disk.poke(&path("00000001.idx"), bad);
        let noted = verify(&disk).expect("the entries are whole").notes;
        assert_eq!(noted.len(), 1, "{noted:?}");
        let log = open(&disk).expect("opens");
        assert_eq!(
            log.recovery().rebuilt_indexes,
            if rebuilt { vec![1] } else { vec![] }
        );
        for index in 256..512 {
            assert_eq!(log.reader().entry(index).expect("there"), entry(index));
            assert!(log.reader().proof(index).is_ok());
        }
        assert_eq!(
            log.reader().tile(0, 1, 256).expect("there")[..32],
            leaf_hash(&entry(256))
        );
        assert_eq!(
            disk.peek(&path("00000001.idx")) == Some(good.clone()),
            rebuilt
        );
    }
}

#[test]
fn a_batch_lies_in_one_segment_however_long_it_is() {
    let disk = SimDisk::new();
    let mut log = open(&disk).expect("a new log");
    log.append(&entries(0, 250)).expect("appends");
    log.append(&entries(250, 700)).expect("appends");
    log.publish_checkpoint(&signer()).expect("publishes");
    log.append(&entries(950, 3)).expect("appends");
    let check = |log: &Log, what: &str| {
        let reader = log.reader();
        for index in (0..950).step_by(19).chain(945..953) {
            assert_eq!(reader.entry(index).expect("there"), entry(index), "{what}");
        }
        let mut seen = Vec::new();
        let visit = |index, _: &[u8]| {
            seen.push(index);
            Ok::<(), ReadError>(())
        };
        reader.entries(200..953, visit).expect("reads");
        assert!(seen.iter().copied().eq(200..953), "{what}");
        assert!(reader.proof(700).is_ok(), "{what}");
        assert_eq!(reader.tile(0, 2, 256).expect("there").len(), 8192, "{what}");
    };
    check(&log, "written");
    drop(log);
    let names = disk.list(dir()).expect("listed");
    let ending = |ending: &str| names.iter().filter(|name| name.ends_with(ending)).count();
    assert_eq!((ending(".seg"), ending(".idx")), (2, 3), "{names:?}");
    for block in [None, Some(0), Some(1), Some(2)] {
        if let Some(block) = block {
            disk.poke(&dir().join(format!("{block:08}.idx")), None);
        }
        let log = open(&disk).expect("opens");
        check(&log, "opened");
        let rebuilt: Vec<u64> = block.into_iter().collect();
        assert_eq!(log.recovery().rebuilt_indexes, rebuilt);
    }
    verify(&disk).expect("whole");
}

/// A directory of the format before, as its last program left it: 300 entries in batches of 7, one full segment.
fn format2() -> SimDisk {
    let disk = SimDisk::new();
    let files: [(&str, &[u8]); 5] = [
        ("log.meta", include_bytes!("format2/log.meta")),
        ("checkpoint", include_bytes!("format2/checkpoint")),
        ("00000000.seg", include_bytes!("format2/00000000.seg")),
        ("00000000.idx", include_bytes!("format2/00000000.idx")),
        ("00000001.seg", include_bytes!("format2/00000001.seg")),
    ];
    for (name, bytes) in files {
        disk.poke(&dir().join(name), Some(bytes.to_vec()));
    }
    disk
}

#[test]
fn a_log_of_format_2_goes_on_in_this_format() {
    let disk = format2();
    assert_eq!(verify(&disk).expect("whole").notes, Vec::<String>::new());
    let mut log = open(&disk).expect("opens");
    assert_eq!(log.size(), 300);
    // No earlier program opens it from now on: what follows may not be as that program expects.
    let meta = disk.peek(&dir().join("log.meta")).expect("there");
    assert!(meta.starts_with(b"ron-tlog 3\n"));
    log.append(&entries(300, 400)).expect("appends");
    fill(&mut log, 800);
    drop(log);
    disk.crash(CrashMode::LoseAll);
    let log = open(&disk).expect("opens");
    assert_eq!(log.size(), 800);
    for index in (0..800).step_by(7) {
        assert_eq!(log.reader().entry(index).expect("there"), entry(index));
    }
    drop(log);
    assert_eq!(verify(&disk).expect("whole").notes, Vec::<String>::new());
    // Without index files everything is read, in both formats.
    for block in 0..3 {
        disk.poke(&dir().join(format!("{block:08}.idx")), None);
    }
    let log = open(&disk).expect("opens");
    assert_eq!(log.recovery().rebuilt_indexes, [0, 1, 2]);
}

#[test]
fn a_log_of_format_2_outlives_a_power_cut_at_any_operation_of_its_first_opening() {
    for at in 1.. {
        let disk = format2();
        disk.fail_after(at, FaultKind::PowerOff);
        let done = open(&disk).is_ok();
        disk.crash(CrashMode::LoseAll);
        assert_eq!(open(&disk).expect("opens").size(), 300, "operation {at}");
        if done {
            break;
        }
    }
}

#[test]
fn the_real_disk_works_and_verifies_while_it_grows() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path().join("audit");
    let mut log = Log::open(Arc::new(OsDisk), &dir, options()).expect("a new log");
    assert!(matches!(
        Log::open(Arc::new(OsDisk), &dir, options()),
        Err(OpenError::InUse(_))
    ));
    let mut checked = 0;
    while log.size() < N {
        let at = log.size();
        log.append(&entries(at, 41.min(N - at))).expect("appends");
        log.publish_checkpoint(&signer()).expect("publishes");
        let verified = verify_dir(&dir, &key(), &mut |_, _, _| Ok(()), &mut |_, _| ())
            .expect("whole while open");
        assert_eq!(
            (verified.size, verified.checkpoint_size),
            (log.size(), log.size())
        );
        checked += 1;
    }
    assert!(checked > 20);
    let names = OsDisk.list(&dir).expect("listed");
    assert_eq!(
        names
            .iter()
            .filter(|n| n.strip_suffix(".seg").is_some())
            .count(),
        // Three have 287 entries each: seven batches of 41.
        4
    );
    drop(log);
    assert_eq!(
        Log::open(Arc::new(OsDisk), &dir, options())
            .expect("opens")
            .size(),
        N
    );
}

#[test]
fn leaves_are_read_segment_by_segment_beside_the_writer() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path().join("audit");
    assert!(LeafFiles::open(&OsDisk, &dir).expect("readable").is_none());
    let mut log = Log::open(Arc::new(OsDisk), &dir, options()).expect("a new log");
    fill(&mut log, N);
    let files = LeafFiles::open(&OsDisk, &dir)
        .expect("readable")
        .expect("a log");
    assert_eq!(
        (files.origin(), files.segments()),
        (log.origin(), &[0, 1, 2, 3][..])
    );
    // The newest segment first: none depends on those before it.
    let mut found = BTreeSet::new();
    let mut take = |index: u64, leaf: &[u8]| {
        assert_eq!(leaf, entry(index));
        found.insert(index);
        ControlFlow::Continue(())
    };
    for segment in files.segments().iter().rev() {
        files.read(*segment, &mut take).expect("whole");
    }
    assert!(found.into_iter().eq(0..N));
    let mut seen = 0;
    let mut one = |_: u64, _: &[u8]| {
        seen += 1;
        ControlFlow::Break(())
    };
    files.read(1, &mut one).expect("whole");
    assert_eq!(seen, 1);

    // A batch that is not whole yet is none; within the log it is damage.
    let path = |segment: u64| dir.join(format!("{segment:08}.seg"));
    for segment in [3, 1] {
        let whole = fs::read(path(segment)).expect("there");
        fs::write(path(segment), &whole[..whole.len() - 1]).expect("written");
    }
    let mut last = 0;
    let mut newest = |index: u64, _: &[u8]| {
        last = index;
        ControlFlow::Continue(())
    };
    files.read(3, &mut newest).expect("torn");
    assert!(last < N - 1, "{last}");
    let damaged = files.read(1, &mut |_, _| ControlFlow::Continue(()));
    assert!(
        matches!(damaged, Err(OpenError::Damaged { .. })),
        "{damaged:?}"
    );
}
