//! The register against files that were changed while the service was down, and against crashes.

use std::path::Path;
use std::sync::Arc;

use ron_auth::RevocationView;
use ron_crypto::sign::Ed25519Key;
use ron_files::{CrashMode, Dir, Disk, FaultKind, MemoryDisk, OsDisk, SimDisk};
use ron_kernel::{OsRandom, SystemClock};
use ron_proto::passport::Revoked;
use ron_tlog::note::Ed25519NoteSigner;

use super::PAGE_MAX;
use super::draft::Draft;
use super::register::{BATCH_MAX, LogPlace, Register, RegisterRefused};
use super::store::RevocationStore;

const ORIGIN: &str = "http://i/revocations";

fn place(disk: Arc<dyn Disk>, dir: &Path) -> LogPlace<'_> {
    let signer = Ed25519NoteSigner::new(ORIGIN, Ed25519Key::from_seed(&[7; 32])).unwrap();
    LogPlace {
        disk,
        dir,
        signer: Arc::new(signer),
        known: Vec::new(),
        witnesses: None,
        random: OsRandom::shared(),
        archive_dir: None,
    }
}

/// A new register in memory.
pub fn memory() -> (Register, RevocationView) {
    let store = RevocationStore::memory().unwrap();
    Register::open(store, place(Arc::new(MemoryDisk::new()), Path::new("/log"))).unwrap()
}

fn open(dir: &Path) -> Result<(Register, RevocationView), RegisterRefused> {
    let store = RevocationStore::open(&Dir::os(dir)).unwrap();
    Register::open(store, place(Arc::new(OsDisk), &dir.join("log")))
}

fn jti(n: u32) -> Revoked {
    Revoked::Jti {
        jti: format!("j-{n}"),
        until: 99,
    }
}

fn draft(revoked: &Revoked) -> Draft<'_> {
    Draft {
        revoked,
        reason: "leaked",
        actor: "operator",
    }
}

fn record(register: &mut Register, all: &[Revoked]) {
    let drafts: Vec<Draft<'_>> = all.iter().map(draft).collect();
    register.record(&drafts, 7, 0).unwrap();
}

/// Runs SQL on the database of a register that is closed.
fn sql(dir: &Path, text: &str) {
    let conn = rusqlite::Connection::open(dir.join("passport.db")).unwrap();
    conn.execute_batch(text).unwrap();
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A register with three events, recorded by two commits.
fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut register, view) = open(dir.path()).unwrap();
    assert_eq!((view.after(), view.epoch()), (0, 1));
    record(&mut register, &[jti(1)]);
    record(&mut register, &[jti(2), Revoked::Epoch { epoch: 5 }]);
    dir
}

fn refused(dir: &Path, wanted: &str) {
    let Err(why) = open(dir) else {
        panic!("accepted, not: {wanted}")
    };
    assert!(why.to_string().contains(wanted), "{why}");
}

#[test]
fn events_are_numbered_kept_and_paged() {
    let dir = filled();
    let (register, view) = open(dir.path()).unwrap();
    assert_eq!((view.after(), view.epoch(), view.len()), (3, 5, 2));
    let page = register.page(1, 3, 5).unwrap();
    assert_eq!((page.events.len(), page.next), (2, 3));
    assert_eq!(page.events[0].revoked, jti(2));
    assert!(page.checkpoint.starts_with("http://i/revocations\n3\n"));
    let end = register.page(3, 3, 5).unwrap();
    assert_eq!((end.events.len(), end.next), (0, 3));
    assert_eq!(register.page(u64::MAX, 3, 5).unwrap().events.len(), 0);
}

/// Bytes of memory that this process uses.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// With `RON_LIVE_REVOCATIONS=100000`, figures of `docs/bench/passport.md`.
#[test]
fn a_start_reads_many_live_revocations() {
    let count = ron_files::trial::number("RON_LIVE_REVOCATIONS", 2_500);
    let dir = tempfile::tempdir().unwrap();
    let (mut register, _) = open(dir.path()).unwrap();
    let name = |n: u64| format!("{n:040}");
    let all = (0..count).map(|n| Revoked::Jti {
        jti: name(n),
        until: u64::MAX,
    });
    let all: Vec<Revoked> = all.collect();
    for some in all.chunks(BATCH_MAX) {
        record(&mut register, some);
    }
    drop(register);
    let (before, clock) = (resident(), SystemClock::shared());
    let begun = clock.now();
    let (register, view) = open(dir.path()).unwrap();
    let start = clock.now() - begun;
    let memory = resident().saturating_sub(before);
    assert_eq!(view.len() as u64, count);
    assert!((0..count).all(|n| view.jtis_of(&name(n)).count() == 1));
    let begun = clock.now();
    let next = RevocationView::clone(&view);
    let copied = clock.now() - begun;
    assert_eq!(next, view);
    let page = register.page(0, count, 1).unwrap();
    assert_eq!(page.events.len(), PAGE_MAX);
    let page = serde_json::to_vec(&page).unwrap().len();
    println!(
        "{count}: start {start:?}, {memory} bytes of memory, copy {copied:?}, a page of {page} bytes"
    );
}

#[test]
fn deleted_changed_and_added_rows_are_refused_by_number() {
    let check = |change: &str, wanted: &str| {
        let dir = filled();
        sql(dir.path(), change);
        refused(dir.path(), wanted);
    };
    check(
        "DELETE FROM revocation WHERE seq = 1",
        "has no revocation event 1",
    );
    check(
        "DELETE FROM revocation WHERE seq = 2",
        "has no revocation event 2",
    );
    check(
        "DELETE FROM revocation WHERE seq = 3",
        "has no revocation event 3",
    );
    check("DELETE FROM revocation", "has no revocation event 1");
    for (column, value) in [
        ("what", "'{\"kind\":\"jti\",\"jti\":\"j-9\",\"until\":99}'"),
        ("ts_ms", "8"),
        ("salt", "x'00'"),
        ("actor", "'somebody'"),
        ("reason", "'lost'"),
        ("by_salt", "zeroblob(16)"),
    ] {
        check(
            &format!("UPDATE revocation SET {column} = {value} WHERE seq = 2"),
            "event 2 of passport.db is not what its leaf",
        );
    }
    let add = |seq: u64| {
        format!(
            "INSERT INTO revocation SELECT {seq}, ts_ms, what, salt, actor, reason, by_salt, sig FROM revocation WHERE seq = 3"
        )
    };
    check(
        &add(4),
        "has revocation event 4, but the revocation log ends",
    );
    check(
        &add(9),
        "has revocation event 9, but the revocation log ends",
    );
    check(
        "DELETE FROM revocation WHERE seq = 2; UPDATE revocation SET seq = 2 WHERE seq = 3",
        "has no revocation event 3",
    );
}

#[test]
fn an_older_database_and_a_cut_older_or_missing_log_are_refused() {
    let older = filled();
    let newer = tempfile::tempdir().unwrap();
    copy(older.path(), newer.path());
    record(&mut open(newer.path()).unwrap().0, &[jti(4)]);

    let mixed = |database: &Path, log: &Path| {
        let dir = tempfile::tempdir().unwrap();
        copy(log, dir.path());
        for file in ["passport.db", "passport.db-wal", "passport.db-shm"] {
            let _ = std::fs::remove_file(dir.path().join(file));
            if database.join(file).exists() {
                std::fs::copy(database.join(file), dir.path().join(file)).unwrap();
            }
        }
        dir
    };
    let old_database = mixed(older.path(), newer.path());
    refused(old_database.path(), "has no revocation event 4");
    // The row of event 4 carries this service's signature, so its leaf is appended again: the same log as before.
    let old_log = mixed(newer.path(), older.path());
    let (register, view) = open(old_log.path()).unwrap();
    assert_eq!(view.root(), open(newer.path()).unwrap().1.root());
    drop(register);

    let segment = newer.path().join("log/00000000.seg");
    let whole = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &whole[..whole.len() - 30]).unwrap();
    refused(newer.path(), "the revocation log is refused");
    std::fs::write(&segment, &whole).unwrap();
    open(newer.path()).unwrap();
    std::fs::remove_dir_all(newer.path().join("log")).unwrap();
    refused(newer.path(), "there is no revocation log");
}

#[test]
fn a_whole_older_register_is_refused_where_a_newer_head_is_known() {
    let dir = filled();
    let older = tempfile::tempdir().unwrap();
    copy(dir.path(), older.path());
    let (mut register, _) = open(dir.path()).unwrap();
    record(&mut register, &[jti(4)]);
    let head = register.reader().checkpoint_head().unwrap();
    let store = RevocationStore::open(&Dir::os(older.path())).unwrap();
    let log = older.path().join("log");
    let mut place = place(Arc::new(OsDisk), &log);
    place.known.push(head);
    let why = Register::open(store, place).err().expect("it is older");
    assert!(
        why.to_string().contains("the revocation log is refused"),
        "{why}"
    );
}

/// Records four commits until the power of the log's disk is cut; returns the number of acknowledged events.
fn work(disk: &SimDisk, home: &Path) -> u64 {
    let store = RevocationStore::open(&Dir::os(home)).unwrap();
    let place = place(Arc::new(disk.clone()), Path::new("/log"));
    let Ok((mut register, _)) = Register::open(store, place) else {
        return 0;
    };
    let mut acknowledged = 0;
    for commit in 1..=4_u32 {
        let all: Vec<Revoked> = (0..commit).map(|n| jti(10 * commit + n)).collect();
        let drafts: Vec<Draft<'_>> = all.iter().map(draft).collect();
        if register.record(&drafts, 7, 0).is_err() {
            assert!(register.poisoned());
            break;
        }
        acknowledged += u64::from(commit);
    }
    acknowledged
}

#[test]
fn no_acknowledged_event_is_lost_wherever_the_power_is_cut() {
    let operations = {
        let (disk, home) = (SimDisk::new(), tempfile::tempdir().unwrap());
        assert_eq!(work(&disk, home.path()), 10);
        disk.operations()
    };
    for cut in 1..=operations {
        let (disk, home) = (SimDisk::new(), tempfile::tempdir().unwrap());
        disk.fail_after(cut, FaultKind::PowerOff);
        let acknowledged = work(&disk, home.path());
        for mode in [
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::TearLast(disk.torn_max() / 2),
        ] {
            let what = format!("power cut at operation {cut} of {operations}, {mode:?}");
            let image = disk.fork();
            image.crash(mode);
            let store = RevocationStore::open(&Dir::os(home.path())).unwrap();
            let rows = store.last().unwrap();
            let opened = Register::open(store, place(Arc::new(image), Path::new("/log")));
            let (register, view) = opened.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(view.after() >= acknowledged, "{what}");
            assert_eq!(view.after(), rows, "{what}: all rows have leaves");
            assert_eq!(register.reader().checkpoint_size(), rows, "{what}");
        }
    }
}

/// The log fails after the row of an event was written: readers are shown what the checkpoint covers, and the caller is not told
/// that nothing was changed, because the next start completes the event.
#[test]
fn an_event_without_its_leaf_is_not_shown() {
    let (disk, home) = (SimDisk::new(), Dir::new(Arc::new(SimDisk::new()), "/d"));
    let open = || {
        let store = RevocationStore::open(&home).unwrap();
        Register::open(store, place(Arc::new(disk.clone()), Path::new("/log"))).unwrap()
    };
    let (mut register, _) = open();
    record(&mut register, &[jti(1)]);
    disk.fail_after(1, FaultKind::Io);
    let failed = register.record(&[draft(&jti(2))], 7, 0).unwrap_err();
    let told = failed.problem().detail;
    assert!(told.contains("may take effect"), "{told}");
    let page = register.page(0, 1, 1).unwrap();
    assert_eq!((page.events.len(), page.next), (1, 1));
    assert!(page.checkpoint.starts_with("http://i/revocations\n1\n"));
    drop(register);
    disk.crash(CrashMode::KeepAll);
    let (register, view) = open();
    assert_eq!(view.after(), 2, "it takes effect");
    assert_eq!(register.page(0, 2, 1).unwrap().events[1].revoked, jti(2));
}
