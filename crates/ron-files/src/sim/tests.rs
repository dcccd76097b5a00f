//! What the simulated disk keeps and loses at a power cut.

use super::*;

fn path() -> PathBuf {
    PathBuf::from("/d/f")
}

fn with_two_writes() -> SimDisk {
    let disk = SimDisk::new();
    let file = disk.create(&path()).expect("created");
    file.write_at(0, b"safe").expect("written");
    file.sync_data().expect("synced");
    disk.sync_dir(Path::new("/d")).expect("synced");
    file.write_at(4, b"risky").expect("written");
    disk
}

#[test]
fn a_crash_keeps_synced_bytes() {
    for (mode, left) in [
        (CrashMode::LoseAll, b"safe".to_vec()),
        (CrashMode::KeepAll, b"saferisky".to_vec()),
        (CrashMode::TearLast(2), b"saferi".to_vec()),
        (CrashMode::HoleInLast(0), b"safe\0\0\0\0\0".to_vec()),
    ] {
        let disk = with_two_writes();
        disk.crash(mode);
        assert_eq!(disk.peek(&path()), Some(left), "{mode:?}");
    }
}

#[test]
fn dates_and_files_without_names_are_lost() {
    for (mode, left) in [(CrashMode::LoseAll, 5), (CrashMode::KeepAll, 7)] {
        let disk = with_two_writes();
        let file = disk.open_write(&path()).expect("open");
        file.set_modified_ms(5).expect("dated");
        file.sync_data().expect("synced");
        file.set_modified_ms(7).expect("dated");
        let unnamed = disk.unnamed(Path::new("/d")).expect("room");
        unnamed.write_at(0, b"x").expect("written");
        disk.crash(mode);
        let file = disk.open_read(&path()).expect("open");
        assert_eq!(file.modified_ms().expect("known"), left, "{mode:?}");
        assert_eq!(disk.list(Path::new("/d")).expect("listed"), ["f"]);
        assert!(unnamed.len().is_err(), "handles do not survive the machine");
    }
}

#[test]
fn a_directory_is_removed_name_by_name() {
    for at in 1..=3 {
        let disk = with_two_writes();
        for name in ["/d/a", "/d/sub/b"] {
            disk.create(Path::new(name)).expect("created");
        }
        disk.fail_after(at, FaultKind::Io);
        assert!(disk.remove_dir_all(Path::new("/d")).is_err());
        assert!(!disk.list(Path::new("/d")).expect("listed").is_empty());
        disk.remove_dir_all(Path::new("/d")).expect("the rest");
        assert_eq!(disk.list(Path::new("/d")).expect("listed"), [""; 0]);
    }
}

#[test]
fn names_need_a_directory_sync() {
    let disk = with_two_writes();
    disk.rename(&path(), Path::new("/d/g")).expect("renamed");
    disk.crash(CrashMode::LoseAll);
    assert_eq!(disk.list(Path::new("/d")).expect("listed"), ["f"]);
}

#[test]
fn a_failed_sync_loses_the_bytes_for_good() {
    let disk = with_two_writes();
    let file = disk.open_write(&path()).expect("open");
    disk.fail_after(1, FaultKind::Io);
    assert!(file.sync_data().is_err());
    file.sync_data().expect("the second sync lies, as on Linux");
    assert_eq!(disk.peek(&path()), Some(b"saferisky".to_vec()));
    disk.crash(CrashMode::LoseAll);
    assert_eq!(disk.peek(&path()), Some(b"safe".to_vec()));
    assert!(file.len().is_err(), "handles do not survive the machine");
}

#[test]
fn a_bit_turns_over_in_open_files_and_on_the_disk() {
    let disk = with_two_writes();
    let file = disk.open_read(&path()).expect("open");
    disk.flip(&path(), 0, 1);
    let mut first = [0; 4];
    file.read_at(0, &mut first).expect("read");
    assert_eq!(&first, b"qafe");
    disk.crash(CrashMode::LoseAll);
    assert_eq!(disk.peek(&path()), Some(b"qafe".to_vec()));
}

#[test]
fn power_stays_off_until_the_restart() {
    let disk = with_two_writes();
    disk.fail_after(1, FaultKind::PowerOff);
    assert!(disk.create(Path::new("/d/x")).is_err());
    assert!(disk.open_read(&path()).is_err());
    disk.crash(CrashMode::LoseAll);
    assert!(disk.open_read(&path()).is_ok());
}

#[test]
fn a_killed_process_loses_its_locks_and_handles_alone() {
    let disk = with_two_writes();
    let file = disk.open_write(&path()).expect("open");
    let held = disk.lock(Path::new("/d/LOCK")).expect("no error");
    disk.kill();
    assert!(file.len().is_err(), "handles do not survive the process");
    assert_eq!(disk.peek(&path()), Some(b"saferisky".to_vec()));
    let again = disk.lock(Path::new("/d/LOCK")).expect("no error");
    assert!(again.is_some());
    drop(held);
    let third = disk.lock(Path::new("/d/LOCK")).expect("no error");
    assert!(
        third.is_none(),
        "the lock of a dead process releases no other"
    );
    disk.crash(CrashMode::LoseAll);
    assert_eq!(disk.peek(&path()), Some(b"safe".to_vec()));
}

#[test]
fn a_crash_may_decide_for_each_write_by_itself() {
    let outcome = |seed| {
        let disk = SimDisk::new();
        for name in ["a", "b"] {
            let file = disk.create(&Path::new("/d").join(name)).expect("created");
            file.write_at(0, b"one").expect("written");
            file.write_at(3, b"two").expect("written");
        }
        disk.sync_dir(Path::new("/d")).expect("synced");
        disk.create(Path::new("/e/c")).expect("created");
        disk.crash(CrashMode::Each(seed));
        ["/d/a", "/d/b", "/e/c"].map(|path| disk.peek(Path::new(path)))
    };
    let all: Vec<_> = (0..400).map(|seed| outcome(2 * seed)).collect();
    let files = |wanted: &[u8], at: usize| {
        all.iter()
            .filter(|found| found[at].as_deref() == Some(wanted))
            .count()
    };
    for at in [0, 1] {
        for wanted in [&b""[..], b"one", b"onetwo", b"on", b"\0\0\0two", b"onetw"] {
            assert!(files(wanted, at) > 0, "{wanted:?}");
        }
    }
    let named = all.iter().filter(|found| found[2].is_some()).count();
    assert!((100..300).contains(&named), "{named} of 400 new names");
    let parted = all.iter().filter(|found| found[0] != found[1]).count();
    assert!(parted > 100);
    assert_eq!(outcome(7), outcome(7));
}

#[test]
fn a_sector_that_is_not_written_keeps_what_it_was() {
    let disk = SimDisk::new();
    let file = disk.create(&path()).expect("created");
    file.write_at(0, &[1; 1024]).expect("written");
    file.sync_data().expect("synced");
    disk.sync_dir(Path::new("/d")).expect("synced");
    file.write_at(256, &[2; 1024]).expect("written");
    disk.crash(CrashMode::HoleInLast(512));
    let kept = disk.peek(&path()).expect("the file");
    assert_eq!(kept[..768], [[1; 256].as_slice(), &[2; 512]].concat());
    assert_eq!(kept[768..], [[1; 256].as_slice(), &[0; 256]].concat());
}
