//! Record files on a disk that loses power at every operation, and with every byte damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_crypto::secret::Secret32;
use ron_files::trial::{Draws, number};
use ron_files::{
    Check, CrashMode, Disk as _, FaultKind, FileError, Kind, Opened, RecordFile, SimDisk, Tail,
};

const KIND: Kind = Kind {
    name: b"TEST",
    version: 1,
};
/// Bytes before the first record, and before a record's body.
const FIRST: usize = 32;
const HEAD: usize = 28;

fn path() -> PathBuf {
    PathBuf::from("/d/records")
}

fn key(byte: u8) -> Arc<Check> {
    Arc::new(Check::Mac(Secret32::from_slice(&[byte; 32])))
}

/// Bodies of very different lengths; one contains the mark of a record.
fn body(n: u64) -> Vec<u8> {
    match n % 4 {
        0 => Vec::new(),
        1 => n.to_be_bytes().to_vec(),
        2 => [b"\xb7REC\0\0\0\0\0\0\0\x01".as_slice(), &[n as u8; 40]].concat(),
        _ => vec![n as u8; 700],
    }
}

fn open(
    disk: &SimDisk,
    check: Arc<Check>,
    tail: Tail,
) -> Result<(Option<Opened>, Vec<Vec<u8>>), FileError> {
    let mut seen = Vec::new();
    let opened = RecordFile::open(disk, &path(), KIND, 7, check, tail, |place, body| {
        assert_eq!(place.read().expect("read again"), body);
        seen.push(body.to_vec());
    })?;
    Ok((opened, seen))
}

/// Appends batches of these sizes; returns how many records were acknowledged and how many were attempted.
fn work(disk: &SimDisk, check: &Arc<Check>, batches: &[u64]) -> (u64, u64) {
    let Ok(mut file) = RecordFile::create(disk, &path(), KIND, 7, check.clone()) else {
        return (0, 0);
    };
    let mut acknowledged = 0;
    for size in batches {
        let next = acknowledged + size;
        let mut places = Vec::new();
        for n in acknowledged..next {
            let body = body(n);
            let (front, back) = body.split_at(body.len() / 3);
            places.push(file.add(&[front, back]));
        }
        if file.commit().is_err() {
            assert!(matches!(file.commit(), Err(FileError::Closed { .. })));
            return (acknowledged, next);
        }
        for (n, place) in (acknowledged..).zip(places) {
            assert_eq!(place.read().ok(), Some(body(n)));
        }
        acknowledged = next;
    }
    (acknowledged, acknowledged)
}

/// Opens the file after a crash: the acknowledged records and at most a prefix of the last batch are there, and it goes on.
fn check_image(
    disk: &SimDisk,
    check: &Arc<Check>,
    (acknowledged, attempted): (u64, u64),
    what: &str,
) {
    if disk.open_read(&path()).is_err() {
        assert_eq!(acknowledged, 0, "{what}: the file is gone");
        return;
    }
    let opened = open(disk, check.clone(), Tail::MayBeTorn);
    let (opened, seen) = opened.unwrap_or_else(|why| panic!("{what}: {why}"));
    let Some(Opened { mut file, .. }) = opened else {
        assert_eq!(acknowledged, 0, "{what}: the file has no start");
        return;
    };
    let found = seen.len() as u64;
    assert!(
        acknowledged <= found && found <= attempted,
        "{what}: {found} of {acknowledged}"
    );
    assert!((0..).zip(&seen).all(|(n, seen)| body(n) == *seen), "{what}");
    file.add(&[&body(found)]);
    file.commit().unwrap_or_else(|why| panic!("{what}: {why}"));
    let lost = disk.fork();
    lost.crash(CrashMode::LoseAll);
    let (_, again) =
        open(&lost, check.clone(), Tail::Whole).unwrap_or_else(|why| panic!("{what}: {why}"));
    assert_eq!(
        again.len() as u64,
        found + 1,
        "{what}: all that was seen stays"
    );
}

const BATCHES: [u64; 8] = [1, 3, 2, 1, 7, 1, 1, 4];

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    for check in [key(1), Arc::new(Check::Sum)] {
        let whole = SimDisk::new();
        work(&whole, &check, &BATCHES);
        let operations = whole.operations();
        for cut in 1..=operations {
            let disk = SimDisk::new();
            disk.fail_after(cut, FaultKind::PowerOff);
            let told = work(&disk, &check, &BATCHES);
            let torn = (0..=disk.torn_max()).step_by(13).map(CrashMode::TearLast);
            let holes = (0..4).map(|n| CrashMode::HoleInLast(512 * n));
            for mode in torn
                .chain(holes)
                .chain([CrashMode::LoseAll, CrashMode::KeepAll])
            {
                let image = disk.fork();
                image.crash(mode);
                check_image(&image, &check, told, &format!("cut at {cut}, {mode:?}"));
            }
        }
    }
}

#[test]
fn a_failing_operation_closes_the_file_and_a_restart_saves_what_it_finds() {
    for kind in [FaultKind::Io, FaultKind::NoSpace] {
        let whole = SimDisk::new();
        work(&whole, &key(1), &BATCHES);
        for at in 1..=whole.operations() {
            let disk = SimDisk::new();
            disk.fail_after(at, kind);
            let told = work(&disk, &key(1), &BATCHES);
            check_image(&disk, &key(1), told, &format!("{kind:?} at {at}"));
        }
    }
}

#[test]
fn a_power_cut_while_a_torn_file_is_opened_does_no_harm() {
    let disk = SimDisk::new();
    let (acknowledged, _) = work(&disk, &key(1), &[3, 5]);
    let mut file = open(&disk, key(1), Tail::MayBeTorn)
        .expect("opens")
        .0
        .expect("there")
        .file;
    disk.fail_after(2, FaultKind::PowerOff);
    for n in acknowledged..acknowledged + 5 {
        file.add(&[&body(n)]);
    }
    assert!(file.commit().is_err());
    for torn in [0, 30, 300, 900] {
        let torn_disk = disk.fork();
        torn_disk.crash(CrashMode::TearLast(torn));
        for cut in 1..=4 {
            let again = torn_disk.fork();
            again.fail_after(cut, FaultKind::PowerOff);
            assert!(cut > 3 || open(&again, key(1), Tail::MayBeTorn).is_err() || torn == 0);
            for mode in [
                CrashMode::LoseAll,
                CrashMode::KeepAll,
                CrashMode::TearLast(5),
            ] {
                let image = again.fork();
                image.crash(mode);
                let told = (acknowledged, acknowledged + 5);
                check_image(
                    &image,
                    &key(1),
                    told,
                    &format!("torn at {torn}, cut at {cut}, {mode:?}"),
                );
            }
        }
    }
}

#[test]
fn every_flipped_byte_is_refused_with_its_place_or_is_in_the_last_batch() {
    let disk = SimDisk::new();
    let (count, _) = work(&disk, &key(1), &BATCHES);
    let good = disk.peek(&path()).expect("there");
    let length = |n: u64| HEAD + body(n).len();
    let last_batch = FIRST + (0..count - 4).map(length).sum::<usize>();
    let mut starts = vec![0, 8, FIRST];
    starts.extend((0..count).scan(FIRST, |at, n| {
        *at += length(n);
        Some(*at)
    }));
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x20;
        disk.poke(&path(), Some(bytes));
        let whole = open(&disk, key(1), Tail::Whole).expect_err("every byte counts");
        let opened = open(&disk, key(1), Tail::MayBeTorn);
        if at >= last_batch {
            let (opened, seen) = opened.expect("as if the last batch were torn");
            let cut = opened.expect("it has a start").cut;
            assert!(cut > 0 && seen.len() as u64 >= count - 4, "{at}");
            continue;
        }
        for why in [opened.expect_err("damage"), whole] {
            match why {
                FileError::Damaged { offset, .. } => {
                    let offset = usize::try_from(offset).expect("small");
                    let next = starts.iter().find(|start| **start > offset);
                    assert!(starts.contains(&offset) && offset <= at, "{at}: {offset}");
                    assert!(next.is_none_or(|next| at < *next), "{at}: {offset}");
                }
                FileError::Newer { found: 0x21, .. } => assert_eq!(at, 7),
                other => panic!("{at}: {other}"),
            }
        }
        assert_eq!(
            disk.peek(&path()).map(|b| b.len()),
            Some(good.len()),
            "left alone"
        );
    }
}

#[test]
fn a_file_of_another_key_number_or_kind_is_refused() {
    let disk = SimDisk::new();
    work(&disk, &key(1), &BATCHES);
    let open_as = |kind: Kind, id, check| {
        RecordFile::open(&disk, &path(), kind, id, check, Tail::MayBeTorn, |_, _| {})
            .map(drop)
            .expect_err("refused")
            .to_string()
    };
    let other = Kind {
        name: b"ELSE",
        version: 1,
    };
    for (why, words) in [
        (open_as(KIND, 7, key(2)), "/d/records is damaged at byte 8"),
        (open_as(KIND, 8, key(1)), "/d/records is damaged at byte 8"),
        (
            open_as(KIND, 7, Arc::new(Check::Sum)),
            "/d/records is damaged at byte 8",
        ),
        (open_as(other, 7, key(1)), "/d/records is damaged at byte 0"),
    ] {
        assert!(why.starts_with(words), "{why}");
    }
    let mut bytes = disk.peek(&path()).expect("there");
    bytes[7] = 2;
    disk.poke(&path(), Some(bytes));
    let newer = open_as(KIND, 7, key(1));
    assert!(
        newer.contains("format 2") && newer.contains("up to 1"),
        "{newer}"
    );
    disk.poke(&path(), Some(b"RONTEST\x02".to_vec()));
    assert!(
        open_as(KIND, 7, key(1)).contains("format 2"),
        "even if only its start is there"
    );
}

#[test]
fn a_record_that_changes_while_the_file_is_open_is_not_returned() {
    let disk = SimDisk::new();
    let mut file = RecordFile::create(&disk, &path(), KIND, 7, key(1)).expect("made");
    assert!(file.is_empty() && file.id() == 7 && file.path() == Path::new("/d/records"));
    let place = file.add(&[b"an answer"]);
    file.commit().expect("written");
    assert_eq!(place.read().expect("sound"), b"an answer");
    let raw = disk.open_write(&path()).expect("open");
    raw.write_at(60, b"b").expect("written");
    assert!(matches!(
        place.read(),
        Err(FileError::Damaged { offset: 32, .. })
    ));
}

#[test]
fn scratch_records_are_read_back_and_never_flushed() {
    let disk = SimDisk::new();
    let mut file = RecordFile::scratch(&disk, &path(), KIND).expect("made");
    let places: Vec<_> = (0..9).map(|n| (n, file.add(&[&body(n)]))).collect();
    file.commit().expect("written");
    assert!(
        places
            .iter()
            .all(|(n, place)| place.read().ok() == Some(body(*n)))
    );
    assert_eq!(disk.syncs(), 0);
}

/// Random batches, cuts and results; `RON_CRASH_IMAGES` sets the number for a long run.
#[test]
fn random_cuts_of_random_batches() {
    let mut draws = Draws::seeded();
    for image in 0..number("RON_CRASH_IMAGES", 300) {
        let batches: Vec<u64> = (0..=draws.below(12)).map(|_| 1 + draws.below(9)).collect();
        let whole = SimDisk::new();
        work(&whole, &key(1), &batches);
        let cut = 1 + draws.below(whole.operations());
        let disk = SimDisk::new();
        disk.fail_after(cut, FaultKind::PowerOff);
        let told = work(&disk, &key(1), &batches);
        let mode = draws.crash_mode(4_000);
        disk.crash(mode);
        let what = format!("image {image}: {batches:?} cut at {cut}, {mode:?}");
        check_image(&disk, &key(1), told, &what);
    }
}
