//! A node's copy becomes the log when the engine is lost.

use ron_files::{CrashMode, FaultKind};
use ron_tlog::append::from_copy;

use super::tests::{LOG, shared, why};
use super::*;
use crate::memory::{Defect, MemoryEngine};

fn without_engine(disk: &SimDisk) -> Result<Migrated, MigrateError> {
    from_copy(Arc::new(disk.clone()), dir(), options(), &signer())
}

/// The disk of a node that followed to the end, that of one that did not, and the last root.
fn lost() -> (SimDisk, SimDisk, ron_tlog::Hash) {
    let (engine, behind, _) = shared();
    let disk = SimDisk::new();
    let mut follower = node(&engine, &disk, LOG, "c#1");
    catch_up(&mut follower).unwrap();
    follower.publish_checkpoint(&signer()).unwrap();
    let root = follower.root();
    (disk, behind, root)
}

#[test]
fn a_copy_becomes_the_log_when_the_engine_is_lost() {
    let (disk, behind, root) = lost();
    let moved = without_engine(&disk).unwrap();
    assert_eq!((moved.size, moved.root), (985, root));
    let mut log = in_files(&disk).unwrap();
    // A checkpoint covers the end now, which that of the engine did not.
    assert_eq!(log.reader().checkpoint_size(), 985);
    log.append(&entries(985, 10)).unwrap();
    drop(log);
    let said = why(without_engine(&disk));
    assert!(said.contains("of its own already"), "{said}");
    // To another engine, whose nodes have everything, also that whose copy is behind.
    let fresh = MemoryEngine::new(Defect::None);
    assert_eq!(to_engine(&fresh, &disk, LOG, false).unwrap().size, 995);
    let mut other = node(&fresh, &behind, LOG, "b#2");
    catch_up(&mut other).unwrap();
    assert_eq!(leaves(&other), entries(0, 995));
}

/// What a node has seen signed it must have: the rest is at another node.
#[test]
fn a_copy_that_is_behind_its_checkpoint_does_not_become_the_log() {
    let (disk, behind, _) = lost();
    let path = dir().join("checkpoint");
    let note = ron_files::read_small(&disk, &path, 1 << 16)
        .unwrap()
        .expect("it is signed");
    ron_files::write_atomic(&behind, dir(), "checkpoint", &note).unwrap();
    let said = why(without_engine(&behind));
    assert!(said.contains("the copy of another node"), "{said}");
    assert!(is_copy(Arc::new(behind), dir(), &options().origin).unwrap());
}

#[test]
fn a_copy_becomes_the_log_over_a_power_cut_at_any_operation() {
    for mode in [
        CrashMode::LoseAll,
        CrashMode::KeepAll,
        CrashMode::TearLast(9),
    ] {
        for at in 1.. {
            let (disk, _, root) = lost();
            // What the node has read is on its disk, as it is a while later.
            disk.crash(CrashMode::KeepAll);
            disk.fail_after(at, FaultKind::PowerOff);
            let ended = without_engine(&disk);
            let is_off = disk.is_off();
            disk.crash(mode);
            let what = format!("{mode:?} at {at}");
            if is_off && is_copy(Arc::new(disk.clone()), dir(), &options().origin).unwrap() {
                without_engine(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            } else if !is_off {
                ended.unwrap();
            }
            assert_eq!(in_files(&disk).unwrap().root(), root, "{what}");
            if !is_off {
                assert!(at > 5, "{at}");
                break;
            }
        }
    }
}
