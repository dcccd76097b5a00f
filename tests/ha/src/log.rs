//! A log whose batches an engine keeps, on several nodes: what holds of it on every engine.

use std::path::Path;
use std::sync::Arc;

use ron_crypto::sign::Ed25519Key;
use ron_files::SimDisk;
use ron_kernel::SeededRandom;
use ron_tlog::append::{EngineError, EngineLog, Log, LogOptions};
use ron_tlog::note::Ed25519NoteSigner;
use ron_tlog::store::StoreError;

use crate::contract::{Rig, Rule, soon};

const ORIGIN: &str = "log.example/ha";

/// A log of short segments.
pub fn options() -> LogOptions {
    let verifier = signer().verifier().clone();
    LogOptions {
        segment_entries: 256,
        random: Arc::new(SeededRandom::new(5)),
        ..LogOptions::new(ORIGIN).verified_by(verifier)
    }
}

pub fn signer() -> Ed25519NoteSigner {
    Ed25519NoteSigner::new(ORIGIN, Ed25519Key::from_seed(&[42; 32])).unwrap()
}

pub fn dir() -> &'static Path {
    Path::new("/copy")
}

/// A node: its name, its disk, and its session.
pub fn node<R: Rig>(rig: &R, disk: &SimDisk, log: &str, holder: &str) -> EngineLog
where
    R::Store: 'static,
{
    let session = || Box::new(rig.store(log, holder));
    EngineLog::open(
        Arc::new(disk.clone()),
        dir(),
        options(),
        session(),
        session(),
    )
    .unwrap()
}

/// Claims the log from its present holder, and waits for the outcome.
fn try_take_over(node: &mut EngineLog) -> Result<(), EngineError> {
    let seen = node.head(soon())?.epoch;
    loop {
        match node.claim(seen, &[], soon()) {
            Err(EngineError::Store(StoreError::Unknown(_))) => {}
            outcome => return outcome.map(drop),
        }
    }
}

pub fn take_over(node: &mut EngineLog) {
    try_take_over(node).unwrap();
}

/// Reads on until the end.
pub fn catch_up(node: &mut EngineLog) -> Result<(), EngineError> {
    while !node.follow(soon())?.is_empty() {}
    Ok(())
}

/// The same, and takes over the newest checkpoint.
fn catch_up_signed(node: &mut EngineLog) {
    catch_up(node).unwrap();
    node.publish_checkpoint(&signer()).unwrap();
}

/// All leaves that a node has.
pub fn leaves(node: &EngineLog) -> Vec<String> {
    let reader = node.reader();
    let mut leaves = Vec::new();
    let visit = |_, leaf: &[u8]| {
        leaves.push(String::from_utf8(leaf.to_vec()).unwrap());
        Ok::<(), ron_tlog::ReadError>(())
    };
    reader.entries(0..reader.size_durable(), visit).unwrap();
    leaves
}

fn records(from: u64, count: u64) -> Vec<String> {
    (from..from + count).map(|n| format!("entry {n}")).collect()
}

/// What holds of a log on every engine.
pub fn rules<R: Rig>() -> Vec<Rule<R>>
where
    R::Store: 'static,
{
    vec![
        (
            "the same entries give the same log in files and in an engine",
            the_same_entries_give_the_same_log,
        ),
        (
            "a standby has what the holder has, and takes over",
            a_standby_takes_over,
        ),
        (
            "a node without its copy has the whole log",
            a_node_without_its_copy_has_the_whole_log,
        ),
    ]
}

fn the_same_entries_give_the_same_log<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let (disk, files) = (SimDisk::new(), SimDisk::new());
    let mut engine = node(rig, &disk, "same", "a");
    take_over(&mut engine);
    let mut plain = Log::open(Arc::new(files), dir(), options()).unwrap();
    let mut from = 0;
    for count in [1, 250, 3, 300, 64, 1] {
        let batch = records(from, count);
        assert_eq!(engine.append(&batch, soon()).unwrap(), from);
        assert_eq!(plain.append(&batch).unwrap(), from);
        assert_eq!(engine.root(), plain.root());
        from += count;
    }
    engine.publish_checkpoint(&signer()).unwrap();
    plain.publish_checkpoint(&signer()).unwrap();
    let (one, other) = (engine.reader(), plain.reader());
    assert_eq!(one.checkpoint(), other.checkpoint());
    for index in [0, 1, 255, 256, 511, from - 1] {
        assert_eq!(one.entry(index).unwrap(), other.entry(index).unwrap());
        assert_eq!(one.proof(index).unwrap(), other.proof(index).unwrap());
    }
    for (level, index, width) in [(0, 0, 256), (0, 1, 256), (0, 2, 107), (1, 0, 2)] {
        let tile = |log: &ron_tlog::LogReader| log.tile(level, index, width).unwrap();
        assert_eq!(tile(&one), tile(&other));
    }
    let bundle = |log: &ron_tlog::LogReader| log.entry_bundle(1, 256).unwrap();
    assert_eq!(bundle(&one), bundle(&other));
}

fn a_standby_takes_over<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let disks = [SimDisk::new(), SimDisk::new()];
    let mut holder = node(rig, &disks[0], "pair", "a");
    take_over(&mut holder);
    let mut standby = node(rig, &disks[1], "pair", "b");
    assert!(matches!(
        standby.append(&records(0, 1), soon()),
        Err(EngineError::Standby)
    ));
    let mut from = 0;
    for count in [5, 300, 1] {
        holder.append(&records(from, count), soon()).unwrap();
        catch_up(&mut standby).unwrap();
        assert_eq!(
            (standby.size(), standby.root()),
            (holder.size(), holder.root())
        );
        from += count;
    }
    holder.publish_checkpoint(&signer()).unwrap();
    catch_up_signed(&mut standby);
    let (one, other) = (holder.reader(), standby.reader());
    assert_eq!(one.checkpoint(), other.checkpoint());
    assert_eq!(one.proof(305).unwrap(), other.proof(305).unwrap());
    // The newest batch comes with the claim.
    holder.append(&records(from, 2), soon()).unwrap();
    let seen = standby.head(soon()).unwrap().epoch;
    assert_eq!(standby.claim(seen, &[], soon()).unwrap(), from..from + 2);
    standby.append(&records(from + 2, 3), soon()).unwrap();
    let fenced = [
        holder.append(&records(from + 2, 1), soon()).map(drop),
        holder.append(&records(from + 2, 1), soon()).map(drop),
    ];
    assert!(
        matches!(&fenced[0], Err(EngineError::Store(StoreError::Fenced))),
        "{fenced:?}"
    );
    assert!(
        matches!(&fenced[1], Err(EngineError::Standby)),
        "{fenced:?}"
    );
    catch_up(&mut holder).unwrap();
    assert_eq!(leaves(&holder), records(0, from + 5));
    assert_eq!(holder.root(), standby.root());
}

fn a_node_without_its_copy_has_the_whole_log<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let mut holder = node(rig, &SimDisk::new(), "copies", "a");
    take_over(&mut holder);
    for n in 0..60 {
        holder.append(&records(n * 10, 10), soon()).unwrap();
    }
    holder.publish_checkpoint(&signer()).unwrap();
    let disk = SimDisk::new();
    let mut standby = node(rig, &disk, "copies", "b");
    catch_up_signed(&mut standby);
    drop(standby);
    let segment = dir().join("00000001.seg");
    let whole = disk.peek(&segment).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    for (what, content) in [
        ("torn", Some(whole[..whole.len() - 7].to_vec())),
        ("damaged", Some(damaged)),
        ("gone", None),
        ("empty", Some(Vec::new())),
    ] {
        disk.poke(&segment, content);
        let mut standby = node(rig, &disk, "copies", "b");
        assert!(standby.size() < 600, "{what}");
        catch_up(&mut standby).unwrap();
        assert_eq!(leaves(&standby), records(0, 600), "{what}");
        drop(standby);
        disk.poke(&segment, None);
        let mut claimant = node(rig, &disk, "copies", "c").reading(1_000);
        take_over(&mut claimant);
        assert_eq!(leaves(&claimant), records(0, 600), "{what}");
        drop(claimant);
        let mut standby = node(rig, &disk, "copies", "b").reading(1_000);
        catch_up(&mut standby).unwrap();
        assert_eq!(standby.reader().checkpoint_size(), 600, "{what}");
        assert!(standby.reader().proof(599).is_ok(), "{what}");
    }
}

#[cfg(test)]
pub mod tests {
    use std::sync::OnceLock;

    use ron_files::{CrashMode, FaultKind};
    use ron_kernel::Deadline;
    use ron_tlog::append::{AppendError, LogReader};
    use ron_tlog::store::{Appended, Batch, Head, LogStore, MakeBatch, Once, StoredBatch, Writer};
    use ron_tlog::{CheckpointError, OpenError};

    use super::*;
    use crate::contract::{TwoHosts as _, append};
    use crate::memory::{Defect, FAULTS, Fault, MemoryEngine, MemoryStore, below};

    #[test]
    fn the_rules_hold_in_memory() {
        for (rule, check) in rules() {
            println!("{rule}");
            check(&MemoryEngine::new(Defect::None));
        }
    }

    #[test]
    fn a_copy_is_no_log_of_its_own_and_the_other_way_round() {
        let engine = MemoryEngine::new(Defect::None);
        let disk = SimDisk::new();
        drop(node(&engine, &disk, "mixed", "a"));
        let plain = Log::open(Arc::new(disk), dir(), options());
        assert!(
            matches!(&plain, Err(OpenError::Refused(why)) if why.contains("engine")),
            "{plain:?}"
        );
        let disk = SimDisk::new();
        drop(Log::open(Arc::new(disk.clone()), dir(), options()).unwrap());
        let session = || Box::new(engine.store("mixed", "a"));
        let copy = EngineLog::open(Arc::new(disk), dir(), options(), session(), session());
        assert!(
            matches!(&copy, Err(EngineError::Open(OpenError::Refused(why))) if why.contains("migrate")),
            "{copy:?}"
        );
    }

    /// What a claim has read before it fails stays, and nothing of it is read twice.
    #[test]
    fn a_claim_whose_reading_fails_goes_on_where_it_was() {
        for n in 0..4 {
            let engine = MemoryEngine::new(Defect::None);
            let mut one = node(&engine, &SimDisk::new(), "claims", "a");
            take_over(&mut one);
            for batch in 0..4 {
                one.append(&records(batch * 7, 7), soon()).unwrap();
            }
            let mut two = node(&engine, &SimDisk::new(), "claims", "b");
            engine.refuse_read_after(n);
            assert!(try_take_over(&mut two).is_err(), "{n}");
            assert_eq!(leaves(&two), records(0, n as u64 * 7));
            catch_up(&mut two).unwrap();
            assert_eq!(leaves(&two), records(0, 28));
            take_over(&mut two);
            two.append(&records(28, 7), soon()).unwrap();
        }
    }

    #[test]
    fn a_copy_survives_a_power_cut_at_any_operation() {
        for mode in [
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::TearLast(30),
        ] {
            for at in 1.. {
                let engine = MemoryEngine::new(Defect::None);
                let disk = SimDisk::new();
                disk.fail_after(at, FaultKind::PowerOff);
                let acknowledged = until_the_power_fails(&engine, &disk);
                disk.crash(mode);
                let mut again = node(&engine, &disk, "power", "a");
                take_over(&mut again);
                let (found, n) = (leaves(&again), acknowledged.0);
                assert!([n, n + 7].contains(&found.len()), "{mode:?} at {at}: {n}");
                assert_eq!(found, records(0, found.len() as u64));
                if acknowledged.1 {
                    break;
                }
            }
        }
    }

    /// Number of entries that were acknowledged, and whether the power lasted to the end.
    fn until_the_power_fails(engine: &MemoryEngine, disk: &SimDisk) -> (usize, bool) {
        let session = || Box::new(engine.store("power", "a"));
        let disk = Arc::new(disk.clone());
        let opened = EngineLog::open(disk, dir(), options(), session(), session());
        let Ok(mut log) = opened else {
            return (0, false);
        };
        take_over(&mut log);
        for n in 0..40 {
            if log.append(&records(n * 7, 7), soon()).is_err()
                || (n % 9 == 8 && log.publish_checkpoint(&signer()).is_err())
            {
                let done = log.size();
                return (done as usize, false);
            }
        }
        (280, true)
    }

    #[test]
    fn an_engine_that_lost_data_is_refused() {
        // The operator has made it asynchronous, and nothing noticed.
        let engine = MemoryEngine::new(Defect::AsynchronousUnnoticed);
        let disk = SimDisk::new();
        let mut holder = node(&engine, &disk, "lost", "a");
        take_over(&mut holder);
        holder.append(&records(0, 9), soon()).unwrap();
        engine.set_synchronous(false);
        engine.set_standby(false);
        holder.append(&records(9, 1), soon()).unwrap();
        holder.publish_checkpoint(&signer()).unwrap();
        let checkpoint = holder.reader().checkpoint_head().unwrap();
        holder.append(&records(10, 1), soon()).unwrap();
        engine.fail_over();
        engine.set_synchronous(true);
        // Nothing is signed that the engine does not have.
        let signed = holder.publish_checkpoint(&signer());
        assert!(
            matches!(&signed, Err(CheckpointError::Engine(StoreError::Lost(_)))),
            "{signed:?}"
        );
        assert_eq!(holder.reader().checkpoint_size(), 10);
        let lost = |outcome: Result<(), EngineError>| {
            assert!(
                matches!(outcome, Err(EngineError::Store(StoreError::Lost(_)))),
                "{outcome:?}"
            );
        };
        // By its own copy, after a restart and without entries in the copy, and by the witness of another node.
        let claim = |node: &mut EngineLog, known: &[ron_tlog::Checkpoint]| {
            let seen = node.head(soon()).unwrap().epoch;
            node.claim(seen, known, soon()).map(drop)
        };
        lost(claim(&mut holder, &[]));
        lost(catch_up(&mut holder));
        drop(holder);
        let segment = dir().join("00000000.seg");
        let copy = disk.peek(&segment);
        disk.poke(&segment, None);
        lost(claim(&mut node(&engine, &disk, "lost", "a"), &[]));
        let other = SimDisk::new();
        lost(claim(
            &mut node(&engine, &other, "lost", "b"),
            std::slice::from_ref(&checkpoint),
        ));
        // Another entry takes the place of the lost one: the size fits, the root does not.
        let mut third = node(&engine, &SimDisk::new(), "lost", "c");
        take_over(&mut third);
        third.append(&["instead".to_owned()], soon()).unwrap();
        lost(claim(&mut node(&engine, &disk, "lost", "a"), &[]));
        lost(claim(
            &mut node(&engine, &other, "lost", "b"),
            &[checkpoint],
        ));
        // And more follow it: what this node would read next does not continue its copy.
        take_over(&mut third);
        third.append(&records(50, 3), soon()).unwrap();
        disk.poke(&segment, copy);
        let mut behind = node(&engine, &disk, "lost", "a");
        assert_eq!(behind.size(), 11);
        lost(catch_up(&mut behind));
        lost(claim(&mut behind, &[]));
        assert_eq!(leaves(&behind), records(0, 11));
    }

    #[test]
    fn a_claim_of_its_own_epoch_ends_an_append_that_was_unknown() {
        for fault in [Fault::UnknownDone, Fault::UnknownNot] {
            let engine = MemoryEngine::new(Defect::None);
            let mut holder = node(&engine, &SimDisk::new(), "own", "a");
            take_over(&mut holder);
            engine.fail_next(fault);
            assert!(holder.append(&records(0, 3), soon()).is_err());
            let next = holder.append(&records(3, 1), soon());
            assert!(
                matches!(&next, Err(EngineError::Store(StoreError::Refused(_)))),
                "{next:?}"
            );
            let seen = holder.epoch().unwrap();
            holder.claim(seen, &[], soon()).unwrap();
            let done = if fault == Fault::UnknownDone { 3 } else { 0 };
            assert_eq!(holder.size(), done);
            assert_eq!(holder.resolve(soon()).unwrap(), None);
            assert_eq!(holder.append(&records(done, 2), soon()).unwrap(), done);
            assert_eq!(leaves(&holder), records(0, done + 2));
        }
    }

    /// A session beside which something happens before its first read, or behind its first append.
    pub struct Beside(pub MemoryStore, pub Option<Box<dyn FnOnce() + Send>>);

    impl LogStore for Beside {
        fn head(&mut self, by: Deadline) -> Result<Head, StoreError> {
            self.0.head(by)
        }

        fn claim(&mut self, seen: u64, by: Deadline) -> Result<Head, StoreError> {
            self.0.claim(seen, by)
        }

        fn append_guarded(
            &mut self,
            version: Option<u64>,
            writer: Writer,
            once: &[Once],
            batch: &mut MakeBatch<'_>,
            by: Deadline,
        ) -> Result<Appended, StoreError> {
            let done = self.0.append_guarded(version, writer, once, batch, by);
            if let Some(happens) = self.1.take() {
                happens();
            }
            done
        }

        fn append_run(
            &mut self,
            epoch: u64,
            run: &[Batch],
            by: Deadline,
        ) -> Result<(), StoreError> {
            self.0.append_run(epoch, run, by)
        }

        fn read_from(
            &mut self,
            first: u64,
            most: usize,
            by: Deadline,
        ) -> Result<Vec<StoredBatch>, StoreError> {
            if let Some(happens) = self.1.take() {
                happens();
            }
            self.0.read_from(first, most, by)
        }

        fn confirm(&mut self, by: Deadline) -> Result<(), StoreError> {
            self.0.confirm(by)
        }

        fn put_checkpoint(
            &mut self,
            writer: Writer,
            size: u64,
            note: &str,
            by: Deadline,
        ) -> Result<(), StoreError> {
            self.0.put_checkpoint(writer, size, note, by)
        }

        fn checkpoint(&mut self, by: Deadline) -> Result<Option<(u64, String)>, StoreError> {
            self.0.checkpoint(by)
        }
    }

    /// Between the claim of a node and its reading, another one has claimed the log and added what then vanishes.
    #[test]
    fn a_claim_takes_nothing_that_came_after_it() {
        let engine = MemoryEngine::new(Defect::None);
        let mut holder = node(&engine, &SimDisk::new(), "after", "a");
        take_over(&mut holder);
        holder.append(&records(0, 3), soon()).unwrap();
        let (mut other, beside) = (node(&engine, &SimDisk::new(), "after", "b"), engine.clone());
        let happens = move || {
            take_over(&mut other);
            beside.fail_next(Fault::UnknownLocal);
            assert!(other.append(&records(3, 1), soon()).is_err());
        };
        let store = Beside(engine.store("after", "c"), Some(Box::new(happens)));
        let checkpoints = Box::new(engine.store("after", "c"));
        let disk = Arc::new(SimDisk::new());
        let mut late =
            EngineLog::open(disk, dir(), options(), Box::new(store), checkpoints).unwrap();
        take_over(&mut late);
        assert_eq!(leaves(&late), records(0, 3));
        engine.fail_over();
        catch_up(&mut late).unwrap();
        assert_eq!(leaves(&late), records(0, 3));
    }

    /// The copy is closed, by a checkpoint that could not be written, while the engine takes a batch.
    #[test]
    fn a_batch_that_the_engine_has_is_not_said_to_be_refused() {
        let engine = MemoryEngine::new(Defect::None);
        let copy = Arc::new(OnceLock::<LogReader>::new());
        let closed = copy.clone();
        let happens = move || closed.get().expect("a reader").close_for_writing();
        let store = Beside(engine.store("closed", "a"), Some(Box::new(happens)));
        let checkpoints = Box::new(engine.store("closed", "a"));
        let disk = Arc::new(SimDisk::new());
        let mut holder =
            EngineLog::open(disk, dir(), options(), Box::new(store), checkpoints).unwrap();
        take_over(&mut holder);
        assert!(copy.set(holder.reader()).is_ok());
        let outcome = holder.append(&records(0, 2), soon());
        assert!(
            matches!(outcome, Err(EngineError::Copy(AppendError::Io { .. }))),
            "{outcome:?}"
        );
        let refused = holder.append(&records(2, 1), soon());
        assert!(
            matches!(refused, Err(EngineError::Copy(AppendError::Poisoned))),
            "{refused:?}"
        );
        let mut other = node(&engine, &SimDisk::new(), "closed", "b");
        catch_up(&mut other).unwrap();
        take_over(&mut other);
        assert_eq!(leaves(&other), records(0, 2));
    }

    #[test]
    fn an_old_answer_to_a_claim_is_no_loss_of_what_a_later_holder_wrote() {
        let engine = MemoryEngine::new(Defect::None);
        let (first, second) = (SimDisk::new(), SimDisk::new());
        let mut one = node(&engine, &first, "log", "a");
        let mut other = node(&engine, &second, "log", "b");
        take_over(&mut other);
        other.append(&records(0, 3), soon()).unwrap();
        catch_up(&mut one).unwrap();
        engine.set_standby(false);
        let seen = one.head(soon()).unwrap().epoch;
        let waits = one.claim(seen, &[], soon());
        assert!(
            matches!(waits, Err(EngineError::Store(StoreError::Unknown(_)))),
            "{waits:?}"
        );
        // It is carried out, and its answer is on the way while the other node claims the log again and writes.
        engine.set_standby(true);
        take_over(&mut other);
        other.append(&records(3, 2), soon()).unwrap();
        catch_up(&mut one).unwrap();
        let late = one.claim(seen, &[], soon());
        assert!(
            matches!(late, Err(EngineError::Store(StoreError::Fenced))),
            "{late:?}"
        );
        other.append(&records(5, 1), soon()).unwrap();
        catch_up(&mut one).unwrap();
        take_over(&mut one);
        one.append(&records(6, 1), soon()).unwrap();
        assert_eq!(leaves(&one), records(0, 7));
    }

    #[test]
    fn rows_that_were_changed_in_the_engine_are_refused() {
        let engine = MemoryEngine::new(Defect::None);
        let mut holder = node(&engine, &SimDisk::new(), "good", "a");
        take_over(&mut holder);
        holder.append(&records(0, 3), soon()).unwrap();
        let read = engine.store("good", "b").read_from(0, 1, soon()).unwrap();
        let good = &read[0].batch;
        let flip = |at: usize| {
            let mut batch = good.clone();
            batch.frame[at] ^= 1;
            batch
        };
        let mut changed: Vec<Batch> = (0..good.frame.len()).map(flip).collect();
        let mut other = good.clone();
        other.place.root[0] ^= 1;
        changed.push(other);
        let mut longer = good.clone();
        longer.frame.push(0);
        changed.push(longer);
        let mut shorter = good.clone();
        shorter.frame.pop();
        changed.push(shorter);
        let mut counted = good.clone();
        counted.place.count = 2;
        changed.push(counted);
        for (n, batch) in changed.iter().enumerate() {
            let log = format!("changed {n}");
            let mut store = engine.store(&log, "b");
            let epoch = store.claim(0, soon()).unwrap().epoch;
            append(&mut store, Writer::Owner { epoch }, batch, soon()).unwrap();
            let mut standby = node(&engine, &SimDisk::new(), &log, "c");
            let read = catch_up(&mut standby);
            assert!(
                matches!(&read, Err(EngineError::Store(StoreError::Damaged(_)))),
                "{n}: {read:?}"
            );
            assert_eq!(standby.size(), 0, "{n}");
        }
    }

    /// Two nodes take the log from each other, with every outcome of the engine, lost primaries, power cuts and
    /// restarts of the nodes.
    ///
    /// Returns how many batches were acknowledged, refused, and left to the other node.
    fn two_nodes_under_faults(seed: u64) -> [u32; 3] {
        let engine = MemoryEngine::new(Defect::None);
        let random = SeededRandom::new(seed);
        let below = |n| below(&random, n);
        let disks = [SimDisk::new(), SimDisk::new()];
        let names = |at: usize, life: u32| format!("{at}.{life}");
        let mut lives = [0, 0];
        let mut nodes = [0, 1].map(|at| node(&engine, &disks[at], "faults", &names(at, 0)));
        let (mut acknowledged, mut refused) = (Vec::new(), Vec::new());
        let mut outcomes = [0; 3];
        for n in 0..80 {
            let at = usize::from(below(2));
            let fault = || {
                if below(3) == 0 {
                    engine.fail_next(FAULTS[usize::from(below(5))]);
                }
            };
            match below(8) {
                0 => engine.fail_over(),
                1 => {
                    disks[at]
                        .crash([CrashMode::LoseAll, CrashMode::TearLast(9)][usize::from(below(2))]);
                    lives[at] += 1;
                    nodes[at] = node(&engine, &disks[at], "faults", &names(at, lives[at]));
                }
                2 => drop(nodes[at].follow(soon())),
                _ => {
                    fault();
                    let batch: Vec<String> =
                        (0..=below(4)).map(|i| format!("{seed} {n} {i}")).collect();
                    let outcome = one_append(&mut nodes[at], &batch, fault);
                    match outcome {
                        Some(true) => acknowledged.extend(batch),
                        Some(false) => refused.extend(batch),
                        None => {}
                    }
                    outcomes[outcome.map_or(2, |done| usize::from(!done))] += 1;
                }
            }
        }
        engine.fail_over();
        let mut last = node(&engine, &SimDisk::new(), "faults", "last");
        while try_take_over(&mut last).is_err() {}
        let found = leaves(&last);
        let times = |entry: &String| found.iter().filter(|other| *other == entry).count();
        for entry in &acknowledged {
            assert_eq!(times(entry), 1, "seed {seed}: {entry}");
        }
        for entry in &refused {
            assert_eq!(times(entry), 0, "seed {seed}: {entry}");
        }
        for entry in &found {
            assert_eq!(times(entry), 1, "seed {seed}: {entry}");
        }
        // In the order of their acknowledgement.
        let order: Vec<&String> = found.iter().filter(|e| acknowledged.contains(e)).collect();
        assert_eq!(
            order,
            acknowledged.iter().collect::<Vec<_>>(),
            "seed {seed}"
        );
        for node in &mut nodes {
            drop(node.follow(soon()));
            assert!(found.starts_with(&leaves(node)), "seed {seed}");
        }
        outcomes
    }

    /// Whether a batch is in the log; `None` when this node cannot know.
    fn one_append(node: &mut EngineLog, batch: &[String], fault: impl Fn()) -> Option<bool> {
        if node.epoch().is_none() {
            match try_take_over(node) {
                Ok(()) => {}
                Err(EngineError::Store(StoreError::Refused(_) | StoreError::Fenced)) => {
                    return Some(false);
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        match node.append(batch, soon()) {
            Ok(_) => return Some(true),
            Err(EngineError::Store(StoreError::Refused(_) | StoreError::Fenced)) => {
                return Some(false);
            }
            Err(EngineError::Store(StoreError::Unknown(_))) => {}
            Err(error) => panic!("{error:?}"),
        }
        loop {
            fault();
            match node.resolve(soon()) {
                Ok(found) => return Some(found.is_some()),
                Err(EngineError::Store(StoreError::Fenced)) => return None,
                Err(EngineError::Store(StoreError::Unknown(_) | StoreError::Refused(_))) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    #[test]
    fn two_nodes_lose_and_double_nothing() {
        let mut sums = [0; 3];
        for seed in 0..300 {
            for (sum, n) in sums.iter_mut().zip(two_nodes_under_faults(seed)) {
                *sum += n;
            }
        }
        println!("acknowledged, refused, left to the other node: {sums:?}");
        assert!(sums[0] > 5_000 && sums[1] > 1_000, "{sums:?}");
    }
}
