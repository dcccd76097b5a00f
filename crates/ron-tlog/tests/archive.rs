//! Segments in the archive: everything that is read of a log is read as before, and no crash between the steps loses an entry.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{dir, entries, entry, fill, key, open, options, private, signer, verify};
use ron_files::{CrashMode, Disk, FaultKind, SimDisk};
use ron_tlog::append::{
    AppendError, ArchiveError, ArchivedSegment, Archiver, Visited, archived_files, rewrite_private,
    verify_present,
};
use ron_tlog::{Log, LogOptions, OpenError, TlogProof};

/// Entries of a log with three full blocks, of which two can be archived.
const ENTRIES: u64 = 900;

fn archive() -> &'static Path {
    Path::new("/archive")
}

fn with_archive() -> LogOptions {
    LogOptions {
        archive_dir: Some(archive().to_owned()),
        ..options()
    }
}

fn open_archived(disk: &SimDisk) -> Result<Log, OpenError> {
    Log::open(Arc::new(disk.clone()), dir(), with_archive())
}

fn step(archiver: &mut Archiver) -> Result<Option<ArchivedSegment>, ArchiveError> {
    archiver.step(Duration::ZERO, 0, &|| false)
}

/// A log, and its disk, with this many segments in the archive.
fn archived(count: usize) -> (SimDisk, Log) {
    let disk = SimDisk::new();
    let mut log = open_archived(&disk).expect("opens");
    fill(&mut log, ENTRIES);
    let mut archiver = log.archiver();
    for number in 0..count {
        let done = step(&mut archiver).expect("archives").expect("is due");
        assert_eq!(done.number, number as u64);
        assert!(done.archived_bytes < done.bytes, "{done:?}");
    }
    (disk, log)
}

/// The compressed file of a segment.
fn packed(disk: &SimDisk, number: u64) -> PathBuf {
    packed_in(disk, archive(), number)
}

fn packed_in(disk: &SimDisk, archive: &Path, number: u64) -> PathBuf {
    let meta = disk.peek(&file("log.meta")).expect("there");
    let meta = String::from_utf8(meta).expect("text");
    let salt = meta.lines().find_map(|line| line.strip_prefix("salt "));
    let name = format!("{number:08}.seg.zst");
    archive.join(salt.expect("named")).join(name)
}

fn file(name: &str) -> PathBuf {
    dir().join(name)
}

fn check_reads(log: &Log) {
    let reader = log.reader();
    for index in 0..ENTRIES {
        let record = reader.record(index).expect("is read");
        assert_eq!(record, (entry(index), private(index)), "{index}");
    }
    for index in [0, 255, 256, 300, 513, ENTRIES - 1] {
        let proof = reader.proof(index).expect("proven");
        let proof = TlogProof::parse(&proof).expect("in the format");
        proof
            .verify(&entry(index), &[key()], Some(common::ORIGIN))
            .unwrap_or_else(|e| panic!("{index}: {e}"));
    }
    let mut seen = 0;
    let all = reader.entries(0..ENTRIES, |index, leaf| {
        assert_eq!((index, leaf), (seen, &entry(index)[..]));
        seen += 1;
        Ok::<(), ron_tlog::ReadError>(())
    });
    all.expect("all are read");
    reader.tile(0, 0, 256).expect("a tile");
    reader.entry_bundle(0, 256).expect("a bundle");
}

#[test]
fn a_log_with_archived_segments_reads_verifies_and_goes_on() {
    let (disk, log) = archived(2);
    assert_eq!(
        step(&mut log.archiver()).expect("no fault"),
        None,
        "a start reads the rest"
    );
    check_reads(&log);
    verify(&disk).expect("verifies");
    let small = disk
        .peek(&file("00000000.seg"))
        .expect("stands for it")
        .len();
    assert_eq!(small, 148);
    assert_eq!(archived_files(&disk, dir()).expect("named").len(), 2);
    drop(log);
    // The directory names its archive itself.
    let mut log = open(&disk).expect("opens");
    assert!(log.recovery().scanned < 512, "{:?}", log.recovery());
    check_reads(&log);
    log.append(&entries(ENTRIES, 300)).expect("appends");
    log.publish_checkpoint(&signer()).expect("publishes");
    let third = step(&mut log.archiver())
        .expect("archives")
        .expect("is due");
    assert_eq!(third.number, 2);
    verify(&disk).expect("verifies");
    drop(log);
    // Without indexes everything is read from the archive.
    for block in 0..4 {
        disk.poke(&file(&format!("{block:08}.idx")), None);
    }
    let log = open(&disk).expect("opens");
    assert_eq!(log.recovery().scanned, ENTRIES + 300);
    check_reads(&log);
}

#[test]
fn an_archived_segment_is_unpacked_by_any_zstd_program_to_what_it_was() {
    use std::io::Read as _;
    let (disk, log) = archived(0);
    let before = disk.peek(&file("00000000.seg")).expect("there");
    step(&mut log.archiver())
        .expect("archives")
        .expect("is due");
    let bytes = disk.peek(&packed(&disk, 0)).expect("there");
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(&bytes[..]).expect("a frame");
    let mut unpacked = Vec::new();
    decoder.read_to_end(&mut unpacked).expect("unpacked");
    assert_eq!(unpacked, before);
}

#[test]
fn only_segments_of_some_age_behind_the_checkpoint_are_archived() {
    let disk = SimDisk::new();
    let mut log = open_archived(&disk).expect("opens");
    while log.size() < 700 {
        log.append(&entries(log.size(), 7)).expect("appends");
    }
    let mut archiver = log.archiver();
    assert_eq!(
        step(&mut archiver).expect("no fault"),
        None,
        "no checkpoint"
    );
    log.publish_checkpoint(&signer()).expect("publishes");
    let written = disk.open_write(&file("00000000.seg")).expect("there");
    written.set_modified_ms(1_000).expect("set");
    let hour = Duration::from_secs(3600);
    let mut at = |now_ms| archiver.step(hour, now_ms, &|| false).expect("no fault");
    assert_eq!(at(3_600_999), None, "too young");
    assert_eq!(at(3_601_000).map(|done| done.number), Some(0));
    let stopped = archiver.step(Duration::ZERO, 0, &|| true);
    assert_eq!(stopped.expect("no fault"), None);
    let mut without = open(&SimDisk::new()).expect("opens");
    fill(&mut without, ENTRIES);
    assert_eq!(
        step(&mut without.archiver()).expect("no fault"),
        None,
        "no archive"
    );
}

/// Power cuts and failures at every operation of archiving: the log opens, with every entry, and archives what is left.
#[test]
fn no_crash_while_archiving_loses_an_entry() {
    let (disk, log) = archived(0);
    drop(log);
    let work = |disk: &SimDisk| -> bool {
        let Ok(log) = open_archived(disk) else {
            return false;
        };
        let mut archiver = log.archiver();
        step(&mut archiver).is_ok() && step(&mut archiver).is_ok()
    };
    let whole = disk.fork();
    let before = whole.operations();
    assert!(work(&whole));
    let operations = whole.operations() - before;
    assert!(operations > 25, "{operations}");
    let mut images = 0;
    for fault in [FaultKind::PowerOff, FaultKind::Io, FaultKind::NoSpace] {
        for cut in 1..=operations {
            let broken = disk.fork();
            broken.fail_after(cut, fault);
            work(&broken);
            for mode in [
                CrashMode::LoseAll,
                CrashMode::KeepAll,
                CrashMode::HoleInLast(0),
                CrashMode::TearLast(100),
            ] {
                let image = broken.fork();
                image.crash(mode);
                let what = format!("{fault:?} at {cut} of {operations}, {mode:?}");
                let log = open_archived(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(log.size(), ENTRIES, "{what}");
                verify(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
                let mut archiver = log.archiver();
                while step(&mut archiver)
                    .unwrap_or_else(|e| panic!("{what}: {e}"))
                    .is_some()
                {}
                assert_eq!(
                    archived_files(&image, dir()).expect("named").len(),
                    2,
                    "{what}"
                );
                verify(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
                images += 1;
            }
        }
    }
    assert!(images > 300, "{images}");
}

#[test]
fn a_log_opens_without_its_archive_and_says_what_is_missing() {
    let (disk, log) = archived(2);
    drop(log);
    let (name, path) = ("00000001.seg.zst", packed(&disk, 1));
    let bytes = disk.peek(&path).expect("there");
    disk.poke(&path, None);
    let mut log = open_archived(&disk).expect("opens");
    log.append(&entries(ENTRIES, 1)).expect("appends");
    log.publish_checkpoint(&signer()).expect("publishes");
    log.reader().proof(300).expect("proven from the index");
    let error = log
        .reader()
        .record(300)
        .expect_err("is not there")
        .to_string();
    assert!(error.contains("/00000001.seg.zst is not there"), "{error}");
    let error = verify(&disk).expect_err("is not there").to_string();
    assert!(error.contains("mount the archive"), "{error}");
    // A copy of the log, such as a backup, has the files beside it.
    disk.poke(&file(name), Some(bytes.clone()));
    verify(&disk).expect("verifies");
    disk.poke(&file(name), Some(bytes[..bytes.len() - 1].to_vec()));
    let error = verify(&disk).expect_err("is cut").to_string();
    assert!(error.contains("damaged, cut, or another one"), "{error}");
}

#[test]
fn another_archive_is_taken_once_the_files_are_there() {
    let (disk, log) = archived(1);
    drop(log);
    let new = LogOptions {
        archive_dir: Some(PathBuf::from("/new")),
        ..options()
    };
    let open_new = || Log::open(Arc::new(disk.clone()), dir(), new.clone());
    let error = open_new().expect_err("the files are elsewhere").to_string();
    assert!(
        error.contains("move the files there to /new first"),
        "{error}"
    );
    let bytes = disk.peek(&packed(&disk, 0));
    disk.poke(&packed_in(&disk, Path::new("/new"), 0), bytes);
    disk.poke(&packed(&disk, 0), None);
    check_reads(&open_new().expect("opens"));
}

#[test]
fn a_record_of_an_archived_segment_is_erased_also_in_the_archive() {
    let (disk, log) = archived(2);
    drop(log);
    let erase = |disk: &SimDisk| {
        rewrite_private(disk, dir(), 4, &mut |leaf, private| {
            assert_eq!(leaf, entry(4));
            private.fill(0);
            Ok(())
        })
    };
    let path = packed(&disk, 0);
    let whole = disk.fork();
    let before = whole.operations();
    erase(&whole).expect("erased");
    for cut in 1..=whole.operations() - before {
        let image = disk.fork();
        image.fail_after(cut, FaultKind::PowerOff);
        assert!(erase(&image).is_err() || image.peek(&path).is_none());
        image.crash(CrashMode::LoseAll);
        erase(&image).unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        assert_eq!(image.peek(&path), None, "cut at {cut}");
        let log = open_archived(&image).expect("opens");
        let record = log.reader().record(4).expect("is read");
        assert_eq!(record, (entry(4), vec![0; private(4).len()]));
        // It goes to the archive again, as it is now.
        step(&mut log.archiver())
            .expect("archives")
            .expect("is due");
        assert_eq!(log.reader().record(4).expect("is read"), record);
    }
}

#[test]
fn nothing_is_appended_to_a_log_that_ends_in_the_archive() {
    let (disk, log) = archived(2);
    drop(log);
    for name in ["00000002.seg", "00000003.seg", "checkpoint"] {
        disk.poke(&file(name), None);
    }
    let opened = open_archived(&disk).map(|mut log| {
        let appended = log.append(&entries(log.size(), 1));
        assert!(
            matches!(appended, Err(AppendError::Io { .. })),
            "{appended:?}"
        );
        log.size()
    });
    assert!(opened.is_err(), "{opened:?}");
}

#[test]
fn a_check_of_what_is_present_needs_no_archive_and_finds_other_hashes() {
    let (disk, log) = archived(2);
    drop(log);
    for number in 0..2 {
        disk.poke(&packed(&disk, number), None);
    }
    let check = |disk: &SimDisk| {
        let (mut passed, mut read) = (Vec::new(), Vec::new());
        let verified = verify_present(disk, dir(), &[key()], &mut |visited| {
            match visited {
                Visited::Entry(index, leaf, _) => {
                    assert_eq!(leaf, entry(index));
                    read.push(index);
                }
                Visited::Archived(after) => passed.push(after),
            }
            Ok(())
        });
        (verified, passed, read)
    };
    let (verified, passed, read) = check(&disk);
    assert_eq!(verified.expect("verifies").size, ENTRIES);
    assert_eq!(
        (passed.len(), read[0], read.len() as u64),
        (2, passed[1], ENTRIES - passed[1])
    );
    // Of a damaged index file the entries count, which are not there.
    let index = disk.peek(&file("00000000.idx")).expect("there");
    disk.flip(&file("00000000.idx"), index.len() as u64 - 5, 0);
    let error = check(&disk).0.expect_err("not verified").to_string();
    assert!(error.contains("mount the archive"), "{error}");
}
