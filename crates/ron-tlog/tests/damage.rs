//! Deleted, edited, reordered, exchanged, cut: the offline check refuses and names the entry;
//! opening refuses what it reads.

#![allow(clippy::needless_for_each)]

mod common;

use std::path::PathBuf;

use common::{dir, entries, entry, fill, key, open, options, signer, verify};
use ron_files::SimDisk;
use ron_tlog::append::verify_on;
use ron_tlog::{OpenError, VerifyError};

const N: u64 = 2 * 256 + 100;
/// First entries of the segments: each ends with the batch of 7 that reaches 256 entries.
const FIRSTS: [u64; 3] = [0, 259, 518];
const SEGMENT_HEADER: usize = 128;
const BATCH_HEADER: usize = 72;

fn path(name: &str) -> PathBuf {
    dir().join(name)
}

fn filled() -> SimDisk {
    let disk = SimDisk::new();
    fill(&mut open(&disk).expect("a new log"), N);
    disk
}

/// The batches and entries of a segment:
/// `(offset of the batch, [(index, offset, length of the entry)])`.
type Map = Vec<(usize, Vec<(u64, usize, usize)>)>;

fn map(bytes: &[u8]) -> Map {
    let mut batches: Map = Vec::new();
    let mut at = SEGMENT_HEADER;
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    let mut index = u64_at(24);
    while at < bytes.len() {
        if bytes[at] == 0xB7 {
            assert_eq!(index, u64_at(at + 16));
            batches.push((at, Vec::new()));
            at += BATCH_HEADER;
        } else {
            let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
            let len = 10 + u16_at(at + 1) + u16_at(at + 3);
            batches
                .last_mut()
                .expect("a batch")
                .1
                .push((index, at, len));
            index += 1;
            at += len;
        }
    }
    batches
}

/// The checksum as the writer computes it; tests know the salt.
fn crc(parts: &[&[u8]]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    // The log's salt is the first draw of its generator.
    let random = options().random;
    hasher.update(&random.bytes::<16>());
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().to_le_bytes()
}

fn refused(disk: &SimDisk) -> VerifyError {
    // Without comparing contents: the log's own hashes must find the damage.
    verify_on(disk, dir(), &[key()], &mut |_, _, _| Ok(()), &mut |_, _| ()).expect_err("damaged")
}

#[test]
fn a_changed_byte_anywhere_in_a_segment_is_found_and_named() {
    let disk = filled();
    for (number, first) in FIRSTS.into_iter().enumerate() {
        let name = path(&format!("{number:08}.seg"));
        let good = disk.peek(&name).expect("there");
        let batches = map(&good);
        for at in (0..good.len()).step_by(29) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            disk.poke(&name, Some(bad));
            let error = refused(&disk);
            let named = error.index.expect("an index");
            let hit = batches
                .iter()
                .flat_map(|b| &b.1)
                .find(|(_, from, len)| (*from..from + len).contains(&at));
            let batch = batches
                .iter()
                .rfind(|b| b.0 <= at)
                .map_or(first, |b| b.1[0].0);
            let expected = hit.map_or(batch, |h| h.0);
            assert_eq!(named, expected, "byte {at} of segment {number}: {error}");
            if number == 2 {
                let refusal = open(&disk).expect_err("opening reads this segment");
                assert!(
                    matches!(refusal, OpenError::Damaged { index, .. } if index == named),
                    "{refusal}"
                );
            }
        }
        disk.poke(&name, Some(good));
    }
    verify(&disk).expect("whole again");
}

#[test]
fn an_entry_edited_with_a_right_checksum_is_found() {
    for (number, exact) in [(0u64, true), (1, true), (2, false)] {
        let disk = filled();
        let name = path(&format!("{number:08}.seg"));
        let mut bytes = disk.peek(&name).expect("there");
        let batches = map(&bytes);
        let (_, in_batch) = &batches[5];
        let (index, at, len) = in_batch[3];
        bytes[at + 10] ^= 1;
        let sum = crc(&[&index.to_le_bytes(), &bytes[at + 10..at + len]]);
        bytes[at + 5..at + 9].copy_from_slice(&sum);
        disk.poke(&name, Some(bytes));
        let named = refused(&disk).index.expect("an index");
        if exact {
            // The index file of a full block has the leaf hash.
            assert_eq!(named, index);
        } else {
            // The next batch recorded the root of all entries before it.
            assert_eq!(named, in_batch[0].0);
            assert!(matches!(open(&disk), Err(OpenError::Damaged { .. })));
        }
    }
}

#[test]
fn reordered_and_deleted_entries_are_found() {
    let disk = filled();
    let name = path("00000001.seg");
    let good = disk.peek(&name).expect("there");
    let batches = map(&good);
    let end = |b: usize| batches.get(b + 1).map_or(good.len(), |next| next.0);
    let piece = |b: usize| &good[batches[b].0..end(b)];
    let swapped = [&good[..batches[4].0], piece(5), piece(4), &good[end(5)..]].concat();
    let deleted = [&good[..batches[4].0], &good[end(4)..]].concat();
    let doubled = [&good[..end(4)], piece(4), &good[end(4)..]].concat();
    for (what, bytes, index) in [
        ("swapped", swapped, batches[4].1[0].0),
        ("deleted", deleted, batches[4].1[0].0),
        ("doubled", doubled, batches[5].1[0].0),
    ] {
        disk.poke(&name, Some(bytes));
        assert_eq!(refused(&disk).index, Some(index), "{what}");
    }
    // Two entries within a batch, each with its own checksum.
    let entries = &batches[4].1;
    let ((i, a, a_len), (_, b, b_len)) = (entries[1], entries[2]);
    assert_eq!(a + a_len, b);
    let within = [
        &good[..a],
        &good[b..b + b_len],
        &good[a..a + a_len],
        &good[b + b_len..],
    ]
    .concat();
    disk.poke(&name, Some(within));
    assert_eq!(refused(&disk).index, Some(i));
}

#[test]
fn missing_exchanged_and_foreign_files_are_found() {
    let disk = filled();
    let seg = |n: u64| path(&format!("{n:08}.seg"));
    let check = |index: Option<u64>, open_index: Option<u64>, what: &str| {
        assert_eq!(refused(&disk).index, index, "verify: {what}");
        match (open(&disk), open_index) {
            (Err(OpenError::Damaged { index, .. }), Some(wanted)) => {
                assert_eq!(index, wanted, "open: {what}");
            }
            (Err(OpenError::Checkpoint(_)), None) => {}
            (other, _) => panic!("open: {what}: {other:?}"),
        }
    };
    let kept: Vec<_> = (0..3).map(|n| disk.peek(&seg(n)).expect("there")).collect();
    for n in 0..3 {
        disk.poke(&seg(n), None);
        let first = FIRSTS[n as usize];
        check(Some(first), Some(first), &format!("segment {n} gone"));
        disk.poke(&seg(n), Some(kept[n as usize].clone()));
    }
    disk.poke(&seg(0), Some(kept[1].clone()));
    disk.poke(&seg(1), Some(kept[0].clone()));
    check(Some(0), Some(0), "segments exchanged");
    disk.poke(&seg(0), Some(kept[0].clone()));
    disk.poke(&seg(1), Some(kept[1].clone()));
    let meta = disk.peek(&path("log.meta")).expect("there");
    disk.poke(&path("log.meta"), None);
    assert!(verify(&disk).is_err());
    assert!(matches!(
        open(&disk),
        Err(OpenError::Damaged { index: 0, .. })
    ));
    disk.poke(&path("log.meta"), Some(meta));
    let note = disk.peek(&path("checkpoint")).expect("there");
    let mut forged = note.clone();
    forged[first_digit_of_size()] ^= 1;
    disk.poke(&path("checkpoint"), Some(forged));
    check(None, None, "checkpoint changed");
    disk.poke(&path("checkpoint"), Some(note));
    verify(&disk).expect("whole again");
}

/// Offset of the size in the checkpoint.
fn first_digit_of_size() -> usize {
    common::ORIGIN.len() + 1
}

#[test]
fn cut_below_the_checkpoint_is_refused_and_cut_above_is_recovery() {
    let disk = filled();
    let name = path("00000002.seg");
    let good = disk.peek(&name).expect("there");
    for keep in (0..good.len()).step_by(61) {
        disk.poke(&name, Some(good[..keep].to_vec()));
        let whole: u64 = map(&good)
            .iter()
            .filter(|(at, entries)| entries.last().map_or(*at, |(_, from, len)| from + len) <= keep)
            .map(|(_, entries)| entries.len() as u64)
            .sum();
        let named = refused(&disk).index.expect("an index");
        assert!(
            named >= FIRSTS[2] + whole && named < N,
            "cut at {keep}: {named}"
        );
        assert!(
            matches!(open(&disk), Err(OpenError::Damaged { index, .. }) if index >= FIRSTS[2]),
            "cut at {keep}"
        );
    }
    disk.poke(&name, Some(good));
    let mut log = open(&disk).expect("opens");
    log.append(&entries(N, 5)).expect("appends");
    drop(log);
    let longer = disk.peek(&name).expect("there");
    disk.poke(&name, Some(longer[..longer.len() - 1].to_vec()));
    assert_eq!(
        verify(&disk).expect("only unsigned entries are torn").size,
        N
    );
    let log = open(&disk).expect("opens");
    let cut = log.recovery().cut.clone().expect("a torn tail");
    assert_eq!((log.size(), cut.index), (N, N));
    assert_eq!(log.reader().entry(N - 1).expect("there"), entry(N - 1));
}

#[test]
fn a_segment_that_is_shorter_than_its_successor_says_is_refused() {
    let disk = filled();
    let name = path("00000000.seg");
    let good = disk.peek(&name).expect("there");
    let (last, _) = map(&good).pop().expect("a batch");
    for keep in [last, good.len() - 1] {
        disk.poke(&name, Some(good[..keep].to_vec()));
        // Opening does not read this segment's entries, and yet it does not go on without them.
        assert!(
            matches!(open(&disk), Err(OpenError::Damaged { index, .. }) if index < FIRSTS[1]),
            "cut at {keep}"
        );
        assert!(refused(&disk).index < Some(FIRSTS[1]));
    }
}

#[test]
fn damage_before_a_later_batch_is_no_torn_tail() {
    let disk = filled();
    let mut log = open(&disk).expect("opens");
    log.append(&entries(N, 5)).expect("appends");
    log.append(&entries(N + 5, 5)).expect("appends");
    drop(log);
    let name = path("00000002.seg");
    let good = disk.peek(&name).expect("there");
    let batches = map(&good);
    let (at, in_batch) = &batches[batches.len() - 2];
    for (what, byte) in [
        ("its header", *at),
        ("its first entry", in_batch[0].1 + 9),
        ("its last entry", in_batch[4].1 + 9),
    ] {
        let mut bad = good.clone();
        bad[byte] ^= 1;
        disk.poke(&name, Some(bad));
        let error = open(&disk).expect_err("the batch was durable once: another follows it");
        assert!(
            matches!(error, OpenError::Damaged { index, .. } if (N..N + 5).contains(&index)),
            "{what}: {error}"
        );
        assert!(refused(&disk).index >= Some(N));
    }
}

#[test]
fn an_older_or_missing_checkpoint_is_detected_by_later_batches() {
    let disk = filled();
    let old = disk.peek(&path("checkpoint")).expect("there");
    let mut log = open(&disk).expect("opens");
    log.append(&entries(N, 1)).expect("appends");
    log.publish_checkpoint(&signer()).expect("publishes");
    log.append(&entries(N + 1, 1)).expect("appends");
    drop(log);
    for put in [Some(old), None] {
        disk.poke(&path("checkpoint"), put);
        assert!(matches!(open(&disk), Err(OpenError::Damaged { .. })));
        assert!(verify(&disk).is_err());
    }
}

#[test]
fn an_older_program_refuses_a_newer_format() {
    let disk = filled();
    let name = path("00000002.seg");
    let mut bytes = disk.peek(&name).expect("there");
    bytes[8] = 4;
    disk.poke(&name, Some(bytes));
    assert!(matches!(
        open(&disk),
        Err(OpenError::NewerFormat {
            found: 4,
            known: 3,
            ..
        })
    ));
    assert!(
        verify(&disk)
            .expect_err("refused")
            .why
            .contains("has format 4")
    );
}

#[test]
fn the_visitor_may_reject_an_entry() {
    let disk = filled();
    let error = verify_on(
        &disk,
        dir(),
        &[key()],
        &mut |index, _, _| {
            if index == 300 {
                Err("the books do not balance".into())
            } else {
                Ok(())
            }
        },
        &mut |_, _| (),
    )
    .expect_err("objected");
    assert_eq!(
        (error.index, error.to_string()),
        (Some(300), "entry 300: the books do not balance".into())
    );
}
