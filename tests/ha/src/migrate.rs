//! A log that goes from files to an engine and back: what holds of it on every engine, and when any step of it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ron_files::SimDisk;
use ron_tlog::append::{
    Back, Fill, Log, MigrateError, Migrated, finish_tombstone, is_copy, to_files,
};
use ron_tlog::store::{LogStore, StoreError, Transit, Writer};
use ron_tlog::tree::Frontier;
use ron_tlog::{LogReader, OpenError};

use crate::contract::{Rig, Rule, append, batch, soon};
use crate::log::{catch_up, dir, leaves, node, options, signer, take_over};

/// Where the engine is, as `log.meta` says it.
const PLACE: &str = "postgresql://db.example/ron";
/// Where the files are, as the engine says it.
const FILES: &str = "host-a:/copy";

/// Each start of a migration has another name.
static RUNS: AtomicU64 = AtomicU64::new(1);

/// A log in files: a checkpoint covers its first part.
pub fn files() -> SimDisk {
    let disk = SimDisk::new();
    let mut log = Log::open(Arc::new(disk.clone()), dir(), options()).unwrap();
    let mut from = 0;
    for (count, is_signed) in [
        (1, false),
        (250, false),
        (3, true),
        (300, true),
        (64, false),
        (2, false),
    ] {
        log.append(&entries(from, count)).unwrap();
        from += count;
        if is_signed {
            log.publish_checkpoint(&signer()).unwrap();
        }
    }
    disk
}

fn entries(from: u64, count: u64) -> Vec<String> {
    (from..from + count).map(|n| format!("entry {n}")).collect()
}

fn session<R: Rig>(rig: &R, log: &str, holder: &str) -> Box<dyn LogStore>
where
    R::Store: 'static,
{
    Box::new(rig.store(log, holder))
}

fn begin<R: Rig>(rig: &R, disk: &SimDisk, log: &str, is_resumed: bool) -> Result<Fill, MigrateError>
where
    R::Store: 'static,
{
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let holder = Transit::Filling(FILES.into()).holder(run);
    let store = session(rig, log, &holder);
    let disk = Arc::new(disk.clone());
    Fill::begin(disk, dir(), options(), store, None, is_resumed)
}

/// The whole way to the engine, as the command goes it.
fn to_engine<R: Rig>(
    rig: &R,
    disk: &SimDisk,
    log: &str,
    is_resumed: bool,
) -> Result<Migrated, MigrateError>
where
    R::Store: 'static,
{
    let name = format!("migrated-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let nodes = || [session(rig, log, &name), session(rig, log, &name)];
    let shared = || Arc::new(disk.clone());
    if is_resumed && is_copy(shared(), dir(), &options().origin)? {
        return finish_tombstone(shared(), dir(), options(), nodes());
    }
    let mut fill = begin(rig, disk, log, is_resumed)?;
    fill.copy_signed(&mut |_, _| {})?;
    fill.finish(PLACE, nodes(), &mut |_, _| {})
}

/// The whole way back.
fn back<R: Rig>(
    rig: &R,
    disk: &SimDisk,
    log: &str,
    is_resumed: bool,
) -> Result<Migrated, MigrateError>
where
    R::Store: 'static,
{
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let holder = Transit::Moved(FILES.into()).holder(run);
    let sessions = Back {
        node: [session(rig, log, &holder), session(rig, log, &holder)],
        reads: session(rig, log, "reads"),
        place: FILES.into(),
        signer: None,
    };
    let disk = Arc::new(disk.clone());
    to_files(disk, dir(), options(), sessions, is_resumed, &mut |_, _| {})
}

fn in_files(disk: &SimDisk) -> Result<Log, OpenError> {
    Log::open(Arc::new(disk.clone()), dir(), options())
}

/// Everything that third parties see of a log.
fn seen(reader: &LogReader) -> Vec<String> {
    let size = reader.size_durable();
    let covered = reader.checkpoint_size();
    let proofs = (0..covered)
        .step_by(97)
        .map(|index| reader.proof(index).unwrap());
    let tiles = (0..size / 256).map(|index| format!("{:?}", reader.tile(0, index, 256).unwrap()));
    let head = format!("{:?} {:?}", reader.head(), reader.checkpoint());
    proofs.chain(tiles).chain([head]).collect()
}

/// What holds of a migration on every engine.
pub fn rules<R: Rig>() -> Vec<Rule<R>>
where
    R::Store: 'static,
{
    vec![
        (
            "a log goes to an engine and back under the same roots",
            there_and_back,
        ),
        (
            "no shared writer appends to a log that a migration has",
            shared_writers_are_fenced,
        ),
    ]
}

fn shared_writers_are_fenced<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let name = "fenced writers";
    let mut writer = rig.store(name, "a");
    let mut tree = Frontier::new();
    let next = batch(&mut tree, &["one"]);
    append(&mut writer, Writer::Shared, &next, soon()).unwrap();
    let next = batch(&mut tree, &["two"]);
    for transit in [Transit::Filling(FILES.into()), Transit::Moved(FILES.into())] {
        let mut migration = rig.store(name, &transit.holder(7));
        let seen = migration.head(soon()).unwrap().epoch;
        migration.claim(seen, soon()).unwrap();
        let fenced = append(&mut writer, Writer::Shared, &next, soon());
        assert_eq!(fenced, Err(StoreError::Moved));
    }
    let mut node = rig.store(name, "migrated-1");
    let seen = node.head(soon()).unwrap().epoch;
    node.claim(seen, soon()).unwrap();
    append(&mut writer, Writer::Shared, &next, soon()).unwrap();
}

fn there_and_back<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let name = "there and back";
    let disk = files();
    let before = seen(&in_files(&disk).unwrap().reader());
    let moved = to_engine(rig, &disk, name, false).unwrap();
    assert_eq!((moved.size, moved.sent), (620, 620));
    let refused = in_files(&disk).map(drop).unwrap_err().to_string();
    assert!(
        refused.contains(PLACE) && refused.contains("migrate --to files"),
        "{refused}"
    );
    let mut one = node(rig, &disk, name, "a#1");
    assert_eq!(seen(&one.reader()), before);
    take_over(&mut one);
    one.append(&entries(620, 30), soon()).unwrap();
    one.publish_checkpoint(&signer()).unwrap();
    let other = SimDisk::new();
    let mut two = node(rig, &other, name, "b#1");
    catch_up(&mut two).unwrap();
    take_over(&mut two);
    two.append(&entries(650, 5), soon()).unwrap();
    two.publish_checkpoint(&signer()).unwrap();
    drop(one);
    // The other node goes on to write until it is fenced.
    let moved = back(rig, &disk, name, false).unwrap();
    assert_eq!((moved.size, moved.root), (655, two.root()));
    let shown = two.append(&entries(655, 1), soon());
    assert!(shown.is_err(), "{shown:?}");
    let head = two.head(soon());
    assert!(
        matches!(&head, Err(e) if e.to_string().contains(FILES)),
        "{head:?}"
    );
    let mut log = in_files(&disk).unwrap();
    assert_eq!(seen(&log.reader()), seen(&two.reader()));
    log.append(&entries(655, 400)).unwrap();
    log.publish_checkpoint(&signer()).unwrap();
    let after = seen(&log.reader());
    drop(log);
    // There once more: what is there is compared, the rest is added.
    let moved = to_engine(rig, &disk, name, false).unwrap();
    assert_eq!((moved.size, moved.sent), (1_055, 400));
    let mut one = node(rig, &disk, name, "a#2");
    take_over(&mut one);
    assert_eq!(seen(&one.reader()), after);
    assert_eq!(leaves(&one), entries(0, 1_055));
    catch_up(&mut two).unwrap();
    assert_eq!(two.root(), one.root());
}

#[cfg(all(test, feature = "postgres"))]
mod keys;
#[cfg(test)]
mod lost;
#[cfg(all(test, feature = "postgres"))]
pub mod world;

#[cfg(test)]
mod tests {
    use ron_files::{CrashMode, FaultKind};
    use ron_tlog::append::{Record, clear_copy, rewrite_private};
    use ron_tlog::store::Refusal;

    use super::*;
    use crate::memory::{Defect, FAULTS, MemoryEngine};

    pub const LOG: &str = "log";

    #[test]
    fn the_rules_hold_in_memory() {
        for (rule, check) in rules() {
            println!("{rule}");
            check(&MemoryEngine::new(Defect::None));
        }
    }

    /// An interrupted way to the engine: the files are whole or say where the log is, and the way is ended afterwards.
    fn ends_there(engine: &MemoryEngine, disk: &SimDisk, before: &[String], what: &str) {
        let fork = disk.fork();
        match in_files(&fork) {
            Ok(mut log) => {
                assert_eq!(seen(&log.reader()), before, "{what}");
                log.append(&["usable"]).unwrap();
            }
            Err(OpenError::Refused(why)) => assert!(why.contains(PLACE), "{what}: {why}"),
            Err(error) => panic!("{what}: {error}"),
        }
        to_engine(engine, disk, LOG, true)
            .map(drop)
            .or_else(|error| match error {
                // It was interrupted after its end.
                MigrateError::Refused(why) if why.contains("no migration") => Ok(()),
                error => Err(error),
            })
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut node = node(engine, disk, LOG, "a#1");
        take_over(&mut node);
        assert_eq!(seen(&node.reader()), before, "{what}");
        assert_eq!(leaves(&node), entries(0, 620), "{what}");
    }

    /// A way whose n-th write to the engine fails, for each fault and each n until it has no such write; `writes` are fewer than it has.
    fn after_any_write(
        writes: usize,
        is_ended: impl Fn(&MemoryEngine, &SimDisk) -> bool,
        begin: &dyn Fn() -> (MemoryEngine, SimDisk),
        ends: impl Fn(&MemoryEngine, &SimDisk, &str),
    ) {
        for fault in FAULTS {
            for n in 1.. {
                let (engine, disk) = begin();
                engine.fail_write(n, fault);
                let is_done = is_ended(&engine, &disk);
                let is_reached = !engine.has_faults();
                if !is_done {
                    engine.fail_over();
                    ends(&engine, &disk, &format!("{fault:?} at write {n}"));
                }
                if !is_reached {
                    assert!(is_done && n > writes, "{fault:?}: {n} writes");
                    break;
                }
            }
        }
    }

    #[test]
    fn a_way_there_is_ended_after_any_write_that_fails() {
        let source = files();
        let before = seen(&in_files(&source.fork()).unwrap().reader());
        let begin = || (MemoryEngine::new(Defect::None), source.fork());
        after_any_write(
            5,
            |engine, disk| to_engine(engine, disk, LOG, false).is_ok(),
            &begin,
            |engine, disk, what| {
                ends_there(engine, disk, &before, what);
            },
        );
    }

    #[test]
    fn a_way_there_is_ended_after_any_read_that_fails() {
        let source = files();
        let before = seen(&in_files(&source.fork()).unwrap().reader());
        for n in 0..9 {
            let (engine, disk) = (MemoryEngine::new(Defect::None), source.fork());
            engine.refuse_read_after(n);
            if to_engine(&engine, &disk, LOG, false).is_err() {
                ends_there(&engine, &disk, &before, &format!("read {n}"));
            } else {
                assert!(n > 4, "each batch is read back");
            }
        }
    }

    #[test]
    fn a_way_there_survives_a_power_cut_at_any_operation() {
        let source = files();
        let before = seen(&in_files(&source.fork()).unwrap().reader());
        for mode in [
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::TearLast(9),
        ] {
            for at in 1.. {
                let (engine, disk) = (MemoryEngine::new(Defect::None), source.fork());
                disk.fail_after(at, FaultKind::PowerOff);
                let ended = to_engine(&engine, &disk, LOG, false);
                let is_off = disk.is_off();
                disk.crash(mode);
                if is_off {
                    let what = format!("{mode:?} at {at}");
                    ends_there(&engine, &disk, &before, &what);
                } else {
                    ended.unwrap();
                    assert!(at > 3, "{at}");
                    break;
                }
            }
        }
    }

    /// A log in an engine with one node that is stopped, whose copy is not complete, and one that writes.
    pub fn shared() -> (MemoryEngine, SimDisk, Vec<String>) {
        let (engine, disk) = (MemoryEngine::new(Defect::None), files());
        to_engine(&engine, &disk, LOG, false).unwrap();
        let mut other = node(&engine, &SimDisk::new(), LOG, "b#1");
        take_over(&mut other);
        for n in 0..4 {
            other.append(&entries(620 + n * 90, 90), soon()).unwrap();
        }
        other.publish_checkpoint(&signer()).unwrap();
        other.append(&entries(980, 5), soon()).unwrap();
        let seen = seen(&other.reader());
        (engine, disk, seen)
    }

    /// An interrupted way back: before the engine is fenced the node goes on, and the way is ended afterwards.
    fn ends_back(engine: &MemoryEngine, disk: &SimDisk, before: &[String], what: &str) {
        let fork = disk.fork();
        let ended = match in_files(&fork) {
            Ok(log) => seen(&log.reader()) == before,
            Err(_) => false,
        };
        let mut reads = engine.store(LOG, "reads");
        let is_fenced = reads.head(soon()).unwrap().transit().is_some();
        assert!(!ended || is_fenced, "{what}: two logs");
        back(engine, disk, LOG, is_fenced).unwrap_or_else(|error| panic!("{what}: {error}"));
        let log = in_files(disk).unwrap();
        assert_eq!(seen(&log.reader()), before, "{what}");
    }

    #[test]
    fn a_way_back_is_ended_after_any_write_or_read_that_fails() {
        let (_, _, before) = shared();
        let begin = || {
            let (engine, disk, _) = shared();
            (engine, disk)
        };
        after_any_write(
            1,
            |engine, disk| back(engine, disk, LOG, false).is_ok(),
            &begin,
            |engine, disk, what| {
                ends_back(engine, disk, &before, what);
            },
        );
        for n in 0..12 {
            let (engine, disk, _) = shared();
            engine.refuse_read_after(n);
            if back(&engine, &disk, LOG, false).is_err() {
                ends_back(&engine, &disk, &before, &format!("read {n}"));
            }
        }
    }

    #[test]
    fn a_way_back_survives_a_power_cut_at_any_operation() {
        for mode in [
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::TearLast(9),
        ] {
            for at in 1.. {
                let (engine, disk, before) = shared();
                disk.fail_after(at, FaultKind::PowerOff);
                let ended = back(&engine, &disk, LOG, false);
                let is_off = disk.is_off();
                disk.crash(mode);
                let what = format!("{mode:?} at {at}");
                if is_off {
                    ends_back(&engine, &disk, &before, &what);
                } else {
                    ended.unwrap();
                    // What was not flushed before `log.meta` was changed is gone now.
                    let log = in_files(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(seen(&log.reader()), before, "{what}");
                    assert!(at > 5, "{at}");
                    break;
                }
            }
        }
    }

    /// The files would not be opened: nothing is claimed.
    #[test]
    fn a_log_without_the_checkpoints_that_it_mentions_is_not_taken_back() {
        let (engine, disk, _) = shared();
        engine.forget_checkpoints(LOG);
        let said = why(back(&engine, &disk, LOG, false));
        assert!(said.contains("no checkpoint of 980"), "{said}");
        let head = engine.store(LOG, "reads").head(soon()).unwrap();
        assert_eq!(head.transit(), None);
    }

    pub fn why<T>(outcome: Result<T, MigrateError>) -> String {
        outcome.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let is_usable = |disk: &SimDisk| in_files(&disk.fork()).is_ok();
        // The log of a node.
        let engine = MemoryEngine::new(Defect::None);
        take_over(&mut node(&engine, &SimDisk::new(), LOG, "http://b#1"));
        let disk = files();
        let said = why(to_engine(&engine, &disk, LOG, true));
        assert!(
            said.contains("http://b") && said.contains("another schema"),
            "{said}"
        );
        // Another log that a migration has begun.
        let engine = MemoryEngine::new(Defect::None);
        let other = SimDisk::new();
        let mut log = in_files(&other).unwrap();
        log.append(&["another"]).unwrap();
        log.publish_checkpoint(&signer()).unwrap();
        drop(log);
        let mut fill = begin(&engine, &other, LOG, false).unwrap();
        fill.copy_signed(&mut |_, _| {}).unwrap();
        let before = engine.store(LOG, "reads").head(soon()).unwrap();
        let said = why(to_engine(&engine, &disk, LOG, false));
        assert!(said.contains("--resume"), "{said}");
        let said = why(to_engine(&engine, &disk, LOG, true));
        assert!(said.contains("another one"), "{said}");
        let after = engine.store(LOG, "reads").head(soon()).unwrap();
        assert_eq!(after, before, "the other migration is not fenced");
        // A backup of an earlier time, whose later state went there and back.
        let engine = MemoryEngine::new(Defect::None);
        let (backup, moved) = (disk.fork(), disk.fork());
        in_files(&moved).unwrap().append(&entries(620, 3)).unwrap();
        to_engine(&engine, &moved, LOG, false).unwrap();
        let said = why(to_engine(&engine, &backup, LOG, true));
        assert!(said.contains("has claimed"), "{said}");
        back(&engine, &moved, LOG, false).unwrap();
        let said = why(to_engine(&engine, &backup, LOG, false));
        assert!(said.contains("earlier time"), "{said}");
        assert!(is_usable(&backup) && is_usable(&moved));
        // Of two sides that hold the log of their own, none is taken for a copy.
        let said = why(back(&engine, &backup, "no log", false));
        assert!(said.contains("of its own"), "{said}");
    }

    #[test]
    fn a_source_with_a_fault_is_refused() {
        let engine = MemoryEngine::new(Defect::None);
        let disk = files();
        disk.flip(&dir().join("00000000.seg"), 4_000, 3);
        let said = why(to_engine(&engine, &disk, LOG, false));
        assert!(said.contains("damaged at entry"), "{said}");
        let meta = |from: &str, to: &str| {
            let (disk, path) = (files(), dir().join("log.meta"));
            let text = String::from_utf8(disk.peek(&path).unwrap()).unwrap();
            disk.poke(&path, Some(text.replace(from, to).into_bytes()));
            why(to_engine(
                &MemoryEngine::new(Defect::None),
                &disk,
                LOG,
                false,
            ))
        };
        let said = meta("ron-tlog 3", "ron-tlog 1");
        assert!(said.contains("no longer reads"), "{said}");
        let said = meta("ron-tlog 3", "ron-tlog 5");
        assert!(said.contains("newer program"), "{said}");
        let engine = MemoryEngine::new(Defect::None);
        let said = why(to_engine(&engine, &SimDisk::new(), LOG, false));
        assert!(said.contains("holds no log"), "{said}");
        let moved = files();
        to_engine(&engine, &moved, LOG, false).unwrap();
        let said = why(begin(&engine, &moved, LOG, false));
        assert!(said.contains("is the copy of a log"), "{said}");
        let foreign = {
            let store = session(&engine, LOG, "x");
            let mut options = options();
            options.origin = "another.example/log".into();
            Fill::begin(Arc::new(files()), dir(), options, store, None, false)
        };
        let said = why(foreign);
        assert!(said.contains("another.example/log"), "{said}");
    }

    /// A record with a private part, which no root covers.
    struct Private;

    impl Record for Private {
        fn leaf(&self) -> &[u8] {
            b"leaf"
        }

        fn private(&self) -> &[u8] {
            b"memo"
        }
    }

    #[test]
    fn what_no_root_covers_is_compared_too() {
        let (engine, disk) = (MemoryEngine::new(Defect::None), SimDisk::new());
        let mut log = in_files(&disk).unwrap();
        log.append(&[Private]).unwrap();
        log.publish_checkpoint(&signer()).unwrap();
        drop(log);
        let mut fill = begin(&engine, &disk, LOG, false).unwrap();
        fill.copy_signed(&mut |_, _| {}).unwrap();
        let erase = |_: &[u8], private: &mut [u8]| {
            private.fill(0);
            Ok(())
        };
        rewrite_private(&disk, dir(), 0, &mut { erase }).unwrap();
        let said = why(to_engine(&engine, &disk, LOG, true));
        assert!(said.contains("its batch at entry 0 differs"), "{said}");
        assert!(in_files(&disk).is_ok());
    }

    /// Entries get what opens them; leaves, places and what was there stay.
    #[test]
    fn entries_get_private_parts_on_the_way() {
        let (engine, disk) = (MemoryEngine::new(Defect::None), SimDisk::new());
        let mut log = in_files(&disk).unwrap();
        log.append(&["one", "two"]).unwrap();
        log.append(&[Private]).unwrap();
        log.publish_checkpoint(&signer()).unwrap();
        let before = seen(&log.reader());
        drop(log);
        let go = |is_resumed, name: &'static str| -> Result<Migrated, MigrateError> {
            let make = move |index: u64, leaf: &[u8]| {
                let leaf = std::str::from_utf8(leaf).map_err(|e| e.to_string())?;
                Ok(format!("{name} {index} {leaf}").into_bytes())
            };
            let fill = begin(&engine, &disk, LOG, is_resumed)?;
            let mut fill = fill.adding(Some(Box::new(make)));
            fill.copy_signed(&mut |_, _| {})
        };
        assert_eq!(go(false, "of").unwrap().size, 3);
        let said = why(go(true, "another"));
        assert!(said.contains("batch at entry 0 differs"), "{said}");
        assert_eq!(go(true, "of").unwrap().sent, 0);
        let fill = begin(&engine, &disk, LOG, true).unwrap();
        let make = |index: u64, leaf: &[u8]| {
            let leaf = String::from_utf8_lossy(leaf);
            Ok(format!("of {index} {leaf}").into_bytes())
        };
        let fill = fill.adding(Some(Box::new(make)));
        let nodes = [
            session(&engine, LOG, "moved"),
            session(&engine, LOG, "moved"),
        ];
        fill.finish(PLACE, nodes, &mut |_, _| {}).unwrap();
        clear_copy(&disk, dir()).unwrap();
        let mut node = node(&engine, &disk, LOG, "a#1");
        catch_up(&mut node).unwrap();
        take_over(&mut node);
        node.publish_checkpoint(&signer()).unwrap();
        assert_eq!(seen(&node.reader()), before);
        let mut private = Vec::new();
        let visit = |_, _: &[u8], part: &[u8]| {
            private.push(String::from_utf8(part.to_vec()).unwrap());
            Ok::<(), ron_tlog::ReadError>(())
        };
        node.reader().records(0..3, visit).unwrap();
        assert_eq!(private, ["of 0 one", "of 1 two", "memo"]);
        assert!(clear_copy(&files(), dir()).is_err(), "it is no copy");
    }

    #[test]
    fn no_record_of_a_copy_is_rewritten() {
        let engine = MemoryEngine::new(Defect::None);
        let disk = files();
        let rewrite = || rewrite_private(&disk, dir(), 7, &mut |_, _| Ok(()));
        rewrite().unwrap();
        to_engine(&engine, &disk, LOG, false).unwrap();
        let refused = rewrite();
        assert!(
            matches!(&refused, Err(OpenError::Refused(why)) if why.contains("to files first")),
            "{refused:?}"
        );
    }

    /// Nodes that are started too early, or too late, stand by and say why; an earlier run of the command is fenced.
    #[test]
    fn no_node_claims_a_log_that_is_on_its_way() {
        let engine = MemoryEngine::new(Defect::None);
        let disk = files();
        let mut fill = begin(&engine, &disk, LOG, false).unwrap();
        fill.copy_signed(&mut |_, _| {}).unwrap();
        let mut early = node(&engine, &SimDisk::new(), LOG, "b#1");
        catch_up(&mut early).unwrap();
        let head = early.head(soon());
        let is_transit = |error: &ron_tlog::append::EngineError| {
            matches!(
                error,
                ron_tlog::append::EngineError::Store(StoreError::Refused(Refusal::Transit(_)))
            )
        };
        assert!(head.as_ref().is_err_and(is_transit), "{head:?}");
        let moved = to_engine(&engine, &disk, LOG, true).unwrap();
        assert_eq!(moved.size, 620);
        let late = fill.copy_signed(&mut |_, _| {});
        assert!(
            matches!(&late, Err(MigrateError::Store(StoreError::Fenced))),
            "{late:?}"
        );
        take_over(&mut early);
        early.append(&entries(620, 1), soon()).unwrap();
    }
}
