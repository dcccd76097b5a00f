//! A log that several nodes write at once, each with a copy: what holds of it on every engine.

use std::sync::Arc;

use ron_files::SimDisk;
use ron_kernel::Deadline;
use ron_tlog::append::{EngineError, ReadError, SharedLog};
use ron_tlog::store::StoreError;

use crate::contract::{Rig, Rule, soon, wait_for};
use crate::log::{dir, options, signer};

/// A node with its disk and its session.
pub fn node<R: Rig>(rig: &R, disk: &SimDisk, log: &str, holder: &str) -> SharedLog
where
    R::Store: 'static,
{
    let store = Box::new(rig.store(log, holder));
    SharedLog::open(Arc::new(disk.clone()), dir(), options(), store).unwrap()
}

/// All leaves that a node has.
pub fn leaves(node: &SharedLog) -> Vec<String> {
    let reader = node.reader();
    let mut leaves = Vec::new();
    let visit = |_, leaf: &[u8]| {
        leaves.push(String::from_utf8(leaf.to_vec()).unwrap());
        Ok::<(), ReadError>(())
    };
    reader.entries(0..reader.size_durable(), visit).unwrap();
    leaves
}

/// What holds of a shared log on every engine.
pub fn rules<R: Rig>() -> Vec<Rule<R>>
where
    R::Store: 'static,
{
    vec![
        ("nodes write one log in turns", nodes_write_in_turns),
        ("nodes write one log at once", nodes_write_at_once),
        (
            "without the engine's standby no node knows the end of a shared log",
            a_lost_standby_leaves_appends_open,
        ),
    ]
}

fn nodes_write_in_turns<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let disks = [SimDisk::new(), SimDisk::new(), SimDisk::new()];
    let mut nodes = [0, 1, 2].map(|n| node(rig, &disks[n], "turns", &format!("node {n}")));
    let early = nodes[0].append(&["too early"], soon());
    assert!(
        matches!(&early, Err(EngineError::Store(StoreError::Refused(_)))),
        "{early:?}"
    );
    for node in &mut nodes {
        assert_eq!(node.refresh(soon()).unwrap(), 0..0);
    }
    for round in 0..4_u64 {
        for (n, node) in (0..).zip(&mut nodes) {
            let size = 3 * round + n;
            let behind = node.append(&["one that does not know the end"], soon());
            if size > node.size() {
                assert!(
                    matches!(&behind, Err(EngineError::Store(StoreError::Moved))),
                    "{behind:?}"
                );
            } else {
                // The first of all has the end.
                assert_eq!((round, n, behind.unwrap()), (0, 0, 0));
                continue;
            }
            // What is made depends on what the others have written.
            let mut seen = Vec::new();
            let reader = node.reader();
            let mut make = |came: std::ops::Range<u64>| {
                seen.push(came.clone());
                vec![format!("{n} after {}", reader.size_durable())]
            };
            let done = node.append_by(&mut make, soon()).unwrap();
            assert_eq!(done, size..size + 1);
            assert_eq!(seen.len(), 2, "{seen:?}");
            assert_eq!((seen[0].is_empty(), seen[1].end), (true, size), "{seen:?}");
            let last = node.reader().entry(size).unwrap();
            assert_eq!(last, format!("{n} after {size}").into_bytes());
        }
    }
    let mut checkpoints = Vec::new();
    for node in &mut nodes {
        node.refresh(soon()).unwrap();
        assert_eq!(node.size(), 12);
        checkpoints.push(node.publish_checkpoint(&signer()).unwrap());
    }
    assert!(checkpoints.iter().all(|note| *note == checkpoints[0]));
    assert_eq!(leaves(&nodes[0]), leaves(&nodes[2]));
    // A node that gives up has written nothing.
    let nothing = nodes[1].append_by(&mut |_| Vec::<String>::new(), soon());
    assert_eq!(nothing.unwrap(), 12..12);
}

fn nodes_write_at_once<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    const EACH: usize = 8;
    let disks = [SimDisk::new(), SimDisk::new(), SimDisk::new()];
    let logs = disks
        .iter()
        .map(|disk| node(rig, disk, "at once", "a node"));
    let logs: Vec<_> = logs.map(std::sync::Mutex::new).collect();
    let written = ron_kernel::scoped(3, |n| {
        let mut log = logs[n].lock().unwrap();
        log.refresh(soon()).unwrap();
        let entries = (0..EACH).map(|i| format!("{n} {i}"));
        let places = entries.map(|entry| {
            let mut make = |_| vec![entry.clone(), entry.clone()];
            let done = log.append_by(&mut make, soon()).unwrap();
            (done, entry)
        });
        places.collect::<Vec<_>>()
    });
    for log in &logs {
        let mut log = log.lock().unwrap();
        log.refresh(soon()).unwrap();
        let found = leaves(&log);
        assert_eq!(found.len(), 3 * 2 * EACH);
        for (place, entry) in written.iter().flatten() {
            let at = place.start as usize;
            assert_eq!((&found[at], &found[at + 1]), (entry, entry));
        }
    }
}

fn a_lost_standby_leaves_appends_open<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let mut one = node(rig, &SimDisk::new(), "open", "one");
    let mut other = node(rig, &SimDisk::new(), "open", "other");
    one.refresh(soon()).unwrap();
    other.refresh(soon()).unwrap();
    rig.set_standby(false);
    let short = || Deadline::within(rig.short());
    let open = one.append_by(&mut |_| vec!["open"], short());
    assert!(
        matches!(&open, Err(EngineError::Store(StoreError::Unknown(_)))),
        "{open:?}"
    );
    assert_eq!((one.size(), other.size()), (0, 0));
    assert!(other.refresh(short()).is_err(), "the end is not known");
    rig.set_standby(true);
    wait_for("the append has an outcome", || one.refresh(soon()).is_ok());
    // Whether it came in is the engine's to say; it is the same at both.
    wait_for("the other reads on", || other.refresh(soon()).is_ok());
    assert_eq!(leaves(&one), leaves(&other));
    assert_eq!(leaves(&one), ["open"]);
}

#[cfg(test)]
mod tests {
    use ron_files::CrashMode;
    use ron_kernel::SeededRandom;
    use ron_tlog::store::Refusal;

    use super::*;
    use crate::log::tests::Beside;
    use crate::memory::{Defect, FAULTS, MemoryEngine, below};

    #[test]
    fn the_engine_in_memory_keeps_a_shared_log() {
        let engine = MemoryEngine::new(Defect::None);
        for (rule, check) in rules() {
            println!("{rule}");
            check(&engine);
        }
    }

    /// Whether a batch is in the log; the engine fails on the way.
    fn one_append(node: &mut SharedLog, batch: &[String], whole: bool, fault: impl Fn()) -> bool {
        let appended = if whole {
            fault();
            node.append_by(&mut |_| batch.to_vec(), soon()).map(drop)
        } else {
            loop {
                fault();
                match node.append(batch, soon()) {
                    Err(EngineError::Store(StoreError::Moved)) => {
                        while node.refresh(soon()).is_err() {}
                    }
                    outcome => break outcome.map(drop),
                }
            }
        };
        match appended {
            Ok(()) => return true,
            Err(EngineError::Store(StoreError::Refused(why))) => {
                // Also the reading on between two tries may be refused: an earlier try was not in the log.
                assert!(matches!(why, Refusal::Unavailable(_)), "{why}");
                return false;
            }
            Err(EngineError::Store(StoreError::Unknown(_))) => {}
            Err(error) => panic!("{error:?}"),
        }
        loop {
            fault();
            match node.resolve(soon()) {
                Ok(found) => return found.is_some(),
                Err(EngineError::Store(StoreError::Unknown(_) | StoreError::Refused(_))) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Three nodes write, with every outcome of the engine, lost primaries, power cuts and restarts of the nodes.
    ///
    /// Returns how many batches were acknowledged and refused.
    fn three_nodes_under_faults(seed: u64) -> [u32; 2] {
        let engine = MemoryEngine::new(Defect::None);
        let random = SeededRandom::new(seed);
        let below = |n| below(&random, n);
        let disks = [SimDisk::new(), SimDisk::new(), SimDisk::new()];
        let mut nodes = [0, 1, 2].map(|at| node(&engine, &disks[at], "faults", &at.to_string()));
        for node in &mut nodes {
            node.refresh(soon()).unwrap();
        }
        let (mut acknowledged, mut refused) = (Vec::new(), Vec::new());
        let mut outcomes = [0; 2];
        for n in 0..80 {
            let at = usize::from(below(3));
            let fault = || match below(6) {
                0 | 1 => engine.fail_next(FAULTS[usize::from(below(5))]),
                2 if below(3) == 0 => engine.fail_over(),
                _ => {}
            };
            match below(8) {
                0 => engine.fail_over(),
                1 => {
                    let how = [CrashMode::LoseAll, CrashMode::TearLast(9)][usize::from(below(2))];
                    disks[at].crash(how);
                    nodes[at] = node(&engine, &disks[at], "faults", &at.to_string());
                    while nodes[at].refresh(soon()).is_err() {}
                }
                2 => {
                    fault();
                    drop(nodes[at].refresh(soon()));
                }
                3 => drop(nodes[at].publish_checkpoint(&signer())),
                _ => {
                    let batch = (0..=below(4)).map(|i| format!("{seed} {n} {i}"));
                    let batch: Vec<String> = batch.collect();
                    let done = one_append(&mut nodes[at], &batch, below(2) == 0, fault);
                    outcomes[usize::from(!done)] += 1;
                    if done {
                        &mut acknowledged
                    } else {
                        &mut refused
                    }
                    .extend(batch);
                }
            }
        }
        engine.fail_over();
        let mut last = node(&engine, &SimDisk::new(), "faults", "last");
        while last.refresh(soon()).is_err() {}
        let found = leaves(&last);
        let times = |entry: &String| found.iter().filter(|other| *other == entry).count();
        for entry in &acknowledged {
            assert_eq!(times(entry), 1, "seed {seed}: {entry}");
        }
        for entry in &refused {
            assert_eq!(times(entry), 0, "seed {seed}: {entry}");
        }
        assert_eq!(found.len(), acknowledged.len(), "seed {seed}");
        // In the order of their acknowledgement.
        assert_eq!(found, acknowledged, "seed {seed}");
        for node in &mut nodes {
            while node.refresh(soon()).is_err() {}
            assert_eq!(leaves(node), found, "seed {seed}");
            assert_eq!(node.root(), last.root());
        }
        outcomes
    }

    #[test]
    fn three_nodes_lose_and_double_nothing() {
        let mut sums = [0; 2];
        for seed in 0..300 {
            for (sum, n) in sums.iter_mut().zip(three_nodes_under_faults(seed)) {
                *sum += n;
            }
        }
        println!("acknowledged, refused: {sums:?}");
        assert!(sums[0] > 5_000 && sums[1] > 500, "{sums:?}");
    }

    /// Between a node's look at the head and its reading another node goes on.
    #[test]
    fn a_first_read_beside_a_writer_is_no_loss() {
        let engine = MemoryEngine::new(Defect::None);
        let mut writer = node(&engine, &SimDisk::new(), "beside", "writer");
        writer.refresh(soon()).unwrap();
        writer.append(&["a"], soon()).unwrap();
        let happens = move || {
            writer.append(&["b", "c"], soon()).unwrap();
        };
        let store = Beside(engine.store("beside", "reader"), Some(Box::new(happens)));
        let disk = Arc::new(SimDisk::new());
        let mut reader = SharedLog::open(disk, dir(), options(), Box::new(store)).unwrap();
        assert_eq!(reader.refresh(soon()).unwrap(), 0..3);
        assert_eq!(leaves(&reader), ["a", "b", "c"]);
    }

    /// The engine of an old backup: nothing is written to it, also when the copy lost what it had.
    #[test]
    fn an_engine_that_lost_data_is_not_written_to() {
        let engine = MemoryEngine::new(Defect::None);
        let disk = SimDisk::new();
        let mut one = node(&engine, &disk, "lost", "one");
        one.refresh(soon()).unwrap();
        one.append(&["a", "b"], soon()).unwrap();
        one.publish_checkpoint(&signer()).unwrap();
        let other_disk = SimDisk::new();
        let mut other = node(&engine, &other_disk, "lost", "other");
        other.refresh(soon()).unwrap();
        other.publish_checkpoint(&signer()).unwrap();
        let is_lost = |found: Result<_, EngineError>| {
            matches!(found, Err(EngineError::Store(StoreError::Lost(_))))
        };
        let empty = MemoryEngine::new(Defect::None);
        drop(one);
        let mut one = node(&empty, &disk, "lost", "one");
        assert!(is_lost(one.refresh(soon()).map(drop)));
        assert!(one.publish_checkpoint(&signer()).is_err());
        let early = one.append(&["c"], soon());
        assert!(matches!(
            early,
            Err(EngineError::Store(StoreError::Refused(_)))
        ));
        other_disk.crash(CrashMode::LoseAll); // the checkpoint alone was flushed
        drop(other);
        let mut other = node(&empty, &other_disk, "lost", "other");
        assert_eq!(other.size(), 0);
        assert!(is_lost(other.refresh(soon()).map(drop)));
        drop(other);
        let mut other = node(&engine, &other_disk, "lost", "other");
        assert_eq!(other.refresh(soon()).unwrap(), 0..2);
        // Another log of as many entries.
        let forked = MemoryEngine::new(Defect::None);
        let mut fork = node(&forked, &SimDisk::new(), "lost", "fork");
        fork.refresh(soon()).unwrap();
        fork.append(&["c", "d"], soon()).unwrap();
        drop(one);
        let mut one = node(&forked, &disk, "lost", "one");
        assert!(is_lost(one.refresh(soon()).map(drop)));
    }
}
