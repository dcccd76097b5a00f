//! Power cuts at every operation of a scripted workload, with every result for unsynced bytes.
//! After each cut, every acknowledged entry is in the log, otherwise only a prefix of the batch in
//! progress, and the log accepts new entries.

mod common;

use common::{dir, entries, entry, open, private, signer, verify};
use ron_files::trial::{Draws, number};
use ron_files::{CrashMode, FaultKind, SimDisk};
use ron_tlog::Log;

/// What callers knew before the power cut.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledged {
    entries: u64,
    checkpoint: u64,
    /// Size after the batch in progress.
    asked: u64,
}

/// Batches of these sizes, a checkpoint after every third; stops at the first error.
fn work(disk: &SimDisk, batches: &[u64]) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    let Ok(mut log) = open(disk) else {
        return acknowledged;
    };
    for (at, n) in batches.iter().enumerate() {
        acknowledged.asked = acknowledged.entries + n;
        match log.append(&entries(acknowledged.entries, *n)) {
            Ok(first) => assert_eq!(first, acknowledged.entries),
            Err(_) => return acknowledged,
        }
        acknowledged.entries += n;
        if at % 3 == 2 {
            if log.publish_checkpoint(&signer()).is_err() {
                return acknowledged;
            }
            acknowledged.checkpoint = acknowledged.entries;
        }
    }
    acknowledged
}

/// Opens the log after the crash, checks the guarantees, and appends further entries.
fn check(disk: &SimDisk, acknowledged: Acknowledged, what: &str) {
    let mut log = open(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    let size = log.size();
    assert!(
        size >= acknowledged.entries,
        "{what}: {} were acknowledged, {size} are there",
        acknowledged.entries
    );
    assert!(
        [acknowledged.entries, acknowledged.asked].contains(&size),
        "{what}: {} were acknowledged and {} asked for, {size} are there: a part of a batch",
        acknowledged.entries,
        acknowledged.asked
    );
    let reader = log.reader();
    assert!(
        reader.checkpoint_size() >= acknowledged.checkpoint,
        "{what}: checkpoint {}",
        reader.checkpoint_size()
    );
    let from = size.saturating_sub(70);
    for index in from..size {
        assert_eq!(
            reader
                .record(index)
                .unwrap_or_else(|e| panic!("{what}: {e}")),
            (entry(index), private(index)),
            "{what}: {index}"
        );
    }
    go_on(disk, &mut log, what);
}

fn go_on(disk: &SimDisk, log: &mut Log, what: &str) {
    let size = log.size();
    log.append(&entries(size, 2))
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    log.publish_checkpoint(&signer())
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let verified = verify(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(
        (verified.size, verified.checkpoint_size),
        (size + 2, size + 2),
        "{what}"
    );
}

/// Cuts the power at every operation of the workload in turn; `modes` receives its number and the bytes that can be torn.
fn every_cut(batches: &[u64], modes: impl Fn(u64, usize) -> Vec<CrashMode>) -> u64 {
    let whole = SimDisk::new();
    work(&whole, batches);
    let operations = whole.operations();
    let mut images = 0;
    for cut in 1..=operations {
        let disk = SimDisk::new();
        disk.fail_after(cut, FaultKind::PowerOff);
        let acknowledged = work(&disk, batches);
        assert!(disk.list_is_refused(), "the cut at {cut} came");
        for mode in modes(cut, disk.torn_max()) {
            let image = disk.fork();
            image.crash(mode);
            check(
                &image,
                acknowledged,
                &format!("power cut at operation {cut} of {operations}, {mode:?}"),
            );
            images += 1;
        }
    }
    images
}

/// Whether the simulated power is off.
trait Dark {
    fn list_is_refused(&self) -> bool;
}

impl Dark for SimDisk {
    fn list_is_refused(&self) -> bool {
        ron_files::Disk::list(self, dir()).is_err()
    }
}

#[test]
fn any_torn_length_of_the_last_write() {
    let images = every_cut(&[1, 3, 2, 2, 1, 4, 1, 2], |_, bytes| {
        (0..=bytes).map(CrashMode::TearLast).collect()
    });
    assert!(images > 2_000, "{images} images");
}

#[test]
fn power_cuts_across_segments() {
    let batches = [200, 1, 40, 14, 1, 7, 300, 1, 2, 3, 20];
    let images = every_cut(&batches, |cut, _| {
        let mut modes = vec![
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::HoleInLast(0),
            CrashMode::HoleInLast(512),
        ];
        modes.extend([1, 71, 72, 73, 127, 128].map(CrashMode::TearLast));
        modes.push(CrashMode::TearLast((cut * 37 % 900) as usize));
        modes
    });
    assert!(images > 500, "{images} images");
}

#[test]
fn a_second_cut_during_recovery_does_no_harm() {
    let batches = [250, 3, 4];
    let disk = SimDisk::new();
    let acknowledged = work(&disk, &batches);
    let log = open(&disk);
    drop(log);
    for torn in [10, 100, 200] {
        let base = disk.fork();
        let mut log = open(&base).expect("opens");
        base.fail_after(2, FaultKind::PowerOff);
        assert!(log.append(&entries(acknowledged.entries, 9)).is_err());
        base.crash(CrashMode::TearLast(torn));
        for cut in 1..8 {
            let again = base.fork();
            again.fail_after(cut, FaultKind::PowerOff);
            drop(open(&again));
            for mode in [
                CrashMode::LoseAll,
                CrashMode::KeepAll,
                CrashMode::TearLast(5),
            ] {
                let image = again.fork();
                image.crash(mode);
                let acknowledged = Acknowledged {
                    asked: acknowledged.entries + 9,
                    ..acknowledged
                };
                check(
                    &image,
                    acknowledged,
                    &format!("torn at {torn}, then cut at {cut}, {mode:?}"),
                );
            }
        }
    }
}

#[test]
fn any_failing_operation_leaves_a_log_that_opens() {
    let batches = [200, 1, 40, 14, 1, 7, 300, 1, 2];
    let whole = SimDisk::new();
    work(&whole, &batches);
    for kind in [FaultKind::Io, FaultKind::NoSpace] {
        for at in 1..=whole.operations() {
            let disk = SimDisk::new();
            disk.fail_after(at, kind);
            let acknowledged = work(&disk, &batches);
            let what = format!("{kind:?} at operation {at}");
            // The process restarts without a crash of the machine: the cache still returns
            // everything.
            check(&disk.fork(), acknowledged, &what);
            let size = open(&disk).unwrap_or_else(|e| panic!("{what}: {e}")).size();
            // The entries found at that start are durable from then on.
            disk.crash(CrashMode::LoseAll);
            let acknowledged = Acknowledged {
                entries: size,
                asked: size,
                ..acknowledged
            };
            check(&disk, acknowledged, &format!("{what}, then a power cut"));
        }
    }
}

/// Random workloads, cuts and results; `RON_CRASH_IMAGES` sets the number for a long run.
#[test]
fn random_cuts_of_random_workloads() {
    let mut draws = Draws::seeded();
    for image in 0..number("RON_CRASH_IMAGES", 300) {
        let count = 2 + draws.below(12);
        let mut batch = |_| {
            1 + if draws.below(6) == 0 {
                draws.below(300)
            } else {
                draws.below(9)
            }
        };
        let batches: Vec<u64> = (0..count).map(&mut batch).collect();
        let whole = SimDisk::new();
        work(&whole, &batches);
        let cut = 1 + draws.below(whole.operations());
        let disk = SimDisk::new();
        disk.fail_after(cut, FaultKind::PowerOff);
        let acknowledged = work(&disk, &batches);
        let mode = draws.crash_mode(1_000);
        disk.crash(mode);
        let what = format!("image {image}: {batches:?} cut at {cut}, {mode:?}");
        check(&disk, acknowledged, &what);
    }
}
