//! Power cuts at every operation of the disk: a directory with a manifest holds all of its run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ron_files::{CrashMode, Disk as _, FaultKind, SimDisk};
use serde_json::json;

use super::super::tests::{document, run, signed, snapshot};
use super::*;

type Files = BTreeMap<String, Vec<u8>>;

const MODES: [CrashMode; 5] = [
    CrashMode::LoseAll,
    CrashMode::KeepAll,
    CrashMode::TearLast(0),
    CrashMode::TearLast(20),
    CrashMode::HoleInLast(0),
];

fn on(disk: &SimDisk, dir: &Path) -> Dir {
    Dir::new(Arc::new(disk.clone()), dir)
}

/// The files of a directory; temporary files have no meaning.
fn files(disk: &SimDisk, dir: &Path) -> Files {
    let names = disk.list(dir).expect("the power is on").into_iter();
    let names = names.filter(|name| !name.ends_with(".tmp") && !name.starts_with(".new."));
    let content = |name: String| {
        let bytes = disk.peek(&dir.join(&name)).expect("listed");
        (name, bytes)
    };
    names.map(content).collect()
}

/// Calls `act` on a copy of `disk` until it ends before the power cut, which comes one operation
/// later each time, and shows `check` what every such crash leaves and whether `act` had ended.
fn each_crash(
    disk: &SimDisk,
    act: impl Fn(&SimDisk) -> io::Result<()>,
    check: impl Fn(&SimDisk, bool),
) {
    for at in 1.. {
        let disk = disk.fork();
        disk.fail_after(at, FaultKind::PowerOff);
        let done = act(&disk).is_ok();
        for mode in MODES {
            let image = disk.fork();
            image.crash(mode);
            check(&image, done);
        }
        if done {
            assert!(at > 3, "an operation without steps");
            return;
        }
    }
}

#[test]
fn a_power_cut_leaves_a_whole_run_or_no_manifest() {
    let dir = Path::new("/runs/tenant-default/epoch-e:1");
    let write_run = |disk: &SimDisk, rows: usize| {
        let (snapshot, policy) = (snapshot(rows), signed(&document(&json!({}))));
        write(&on(disk, dir), &run(&snapshot, &policy), &snapshot, &policy)
    };
    let alone = |rows| {
        let disk = SimDisk::new();
        write_run(&disk, rows).expect("written");
        files(&disk, dir)
    };
    let disk = SimDisk::new();
    write_run(&disk, 3).expect("written");
    add(&on(&disk, dir), RUN_SIG, b"signed").expect("written");
    add(&on(&disk, dir), LEDGER, b"evidence").expect("written");
    let (old, new) = (files(&disk, dir), alone(9));
    assert_eq!((old.len(), new.len()), (8, 6), "{:?}", new.keys());
    each_crash(
        &disk,
        |disk| write_run(disk, 9),
        |image, done| {
            let found = files(image, dir);
            match found.get(RUN) {
                Some(manifest) if *manifest == new[RUN] => assert_eq!(found, new),
                Some(_) => assert!(!done && found == old),
                None => assert!(!done),
            }
            write_run(image, 9).expect("computed again");
            assert_eq!(files(image, dir), new);
        },
    );
}

#[test]
fn a_power_cut_in_a_removal_leaves_a_whole_run_or_no_manifest() {
    let dir = Path::new("/runs/tenant-default/epoch-e:1");
    let disk = SimDisk::new();
    let (snapshot, policy) = (snapshot(3), signed(&document(&json!({}))));
    let place = on(&disk, dir);
    write(&place, &run(&snapshot, &policy), &snapshot, &policy).expect("written");
    let whole = files(&disk, dir);
    each_crash(
        &disk,
        |disk| remove(&on(disk, dir)),
        |image, done| {
            let found = files(image, dir);
            assert!(!found.contains_key(RUN) || !done && found == whole);
        },
    );
}

#[test]
fn a_power_cut_leaves_a_file_added_once_whole_or_absent() {
    let dir = Path::new("/snapshots");
    let disk = SimDisk::new();
    let spooled = Path::new("/spool/table");
    disk.poke(spooled, Some(b"from a file".to_vec()));
    let sources = [
        |_: &SimDisk| Source::Memory(b"from memory".to_vec()),
        |disk: &SimDisk| Source::open(disk, Path::new("/spool/table")).expect("there"),
    ];
    for source in sources {
        let content = source(&disk).whole().expect("readable").into_owned();
        let store = |disk: &SimDisk| add_once(&on(disk, dir), "x", &source(disk), "7");
        each_crash(
            &disk,
            |disk| store(disk).map(|new| assert!(new)),
            |image, done| {
                let kept = files(image, dir);
                assert!(!done || kept.contains_key("x"));
                assert_eq!(store(image).expect("stored"), kept.is_empty());
                assert_eq!(files(image, dir)["x"], content);
                assert_eq!(image.list(dir).expect("listed"), ["x"]);
            },
        );
    }
}

#[test]
fn a_file_of_a_killed_process_is_kept_before_it_is_relied_on() {
    let dir = Path::new("/runs/tenant-default/epoch-e:1");
    let relied_on: [fn(&Dir) -> io::Result<()>; 2] = [Dir::sync, |dir| {
        add_once(dir, LEDGER, &Source::Memory(b"evidence".to_vec()), "t")
            .map(|is_new| assert!(!is_new))
    }];
    for rely in relied_on {
        let disk = SimDisk::new();
        let place = on(&disk, dir);
        place.create().expect("made");
        add(&place, "written", b"evidence").expect("written");
        // A process that was killed between the two steps of putting a file in place.
        place
            .disk()
            .link(&place.file("written"), &place.file(LEDGER))
            .expect("linked");
        let lost = disk.fork();
        lost.crash(CrashMode::LoseAll);
        assert!(
            !files(&lost, dir).contains_key(LEDGER),
            "the test is of something"
        );
        rely(&place).expect("kept");
        disk.crash(CrashMode::LoseAll);
        assert!(files(&disk, dir).contains_key(LEDGER));
    }
}
