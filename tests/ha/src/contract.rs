//! The contract of `LogStore` and `LogBeat`: what holds of every engine, and under every failure
//! that a test can cause.

use std::sync::Mutex;
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_tlog::store::{
    Appended, Batch, LogBeat, LogStore, Once, Place, Refusal, Repeat, StoreError, Tail, Writer,
    check_extends,
};
use ron_tlog::tree::{Frontier, empty_root, leaf_hash};

/// An engine with a copy on another host, as a test breaks it.
pub trait TwoHosts: Sync {
    /// Time after which a call that cannot end is given up.
    fn short(&self) -> Duration;

    /// Stops the standby, or lets it go on.
    fn set_standby(&self, reachable: bool);

    /// False: commits do not wait for a standby, as by a mistake of the operator.
    fn set_synchronous(&self, synchronous: bool);

    /// Waits until a write waits for the standby, and cancels the wait at the primary.
    fn cancel_waits(&self);

    /// The primary crashes and comes back, without a standby.
    fn restart_primary(&self);
}

/// An engine for logs.
pub trait Rig: TwoHosts {
    type Store: LogStore;
    type Beat: LogBeat;

    /// A session of the claimant `holder` with a log, which is created if it is not there.
    fn store(&self, log: &str, holder: &str) -> Self::Store;

    fn beat(&self, log: &str) -> Self::Beat;

    /// Gives the guard of all stores another version, which is on the standby when this returns.
    fn set_version(&self, version: u64);

    /// The primary is lost with what the standby does not have; the standby takes its place.
    fn fail_over(&self);
}

/// A rule, and its check.
pub type Rule<R> = (&'static str, fn(&R));

/// The rules, in the order in which they can be checked on one engine: the last takes its primary away.
pub fn rules<R: Rig>() -> Vec<Rule<R>> {
    vec![
        ("a new log is empty", a_new_log_is_empty),
        ("what is appended is read", what_is_appended_is_read),
        ("a claim compares the epoch", a_claim_compares_the_epoch),
        (
            "an epoch that is past changes nothing",
            a_past_epoch_changes_nothing,
        ),
        (
            "a batch goes to its place only",
            a_batch_goes_to_its_place_only,
        ),
        ("shared writers take turns", shared_writers_take_turns),
        ("an id is used once", an_id_is_used_once),
        ("ids go with their batch", ids_go_with_their_batch),
        ("two at once have one answer", two_at_once_have_one_answer),
        ("a guard is compared", a_guard_is_compared),
        (
            "nothing passes a guard that was raised",
            nothing_passes_a_guard_that_was_raised,
        ),
        (
            "the newest checkpoint is kept",
            the_newest_checkpoint_is_kept,
        ),
        ("a beat is counted", a_beat_is_counted),
        (
            "asynchronous by mistake is refused",
            asynchronous_is_refused,
        ),
        (
            "a lost standby delays writes alone",
            a_lost_standby_delays_writes_alone,
        ),
        (
            "a notice makes a commit unknown",
            a_notice_makes_a_commit_unknown,
        ),
        ("a shared append is resolved", a_shared_append_is_resolved),
        (
            "ids are resolved with their batch",
            ids_are_resolved_with_their_batch,
        ),
        ("a claim comes before a read", a_claim_comes_before_a_read),
        ("a provisional tail is cut", a_provisional_tail_is_cut),
    ]
}

/// For calls that must succeed.
pub fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

/// Waits until something holds: three minutes at most, because a server that was killed first replays what it has, on a disk that
/// other tests use too.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let (_trigger, never) = Shutdown::pair();
    let give_up = Deadline::within(Duration::from_secs(180));
    while !holds() {
        assert!(!give_up.expired(), "{what}: not within three minutes");
        never.wait(Deadline::within(Duration::from_millis(5)));
    }
}

/// The next batch of a tree, with its real root.
pub fn batch(tree: &mut Frontier, entries: &[&str]) -> Batch {
    let (first, before) = (tree.size(), tree.root());
    for entry in entries {
        tree.push(leaf_hash(entry.as_bytes()));
    }
    Batch {
        place: Place {
            first,
            count: entries.len() as u32,
            before,
            root: tree.root(),
        },
        frame: entries.join("\n").into_bytes(),
    }
}

/// Appends a batch that has no ids of clients.
pub fn append(
    store: &mut impl LogStore,
    writer: Writer,
    batch: &Batch,
    deadline: Deadline,
) -> Result<Appended, StoreError> {
    store.append(writer, &[], &mut |_| Some(batch.clone()), deadline)
}

fn done(batch: &Batch) -> Appended {
    Appended {
        place: Some(batch.place),
        repeats: Vec::new(),
    }
}

/// A claimed log: its holder, and the right to write.
fn owned<R: Rig>(rig: &R, log: &str, holder: &str) -> (R::Store, Writer) {
    let mut store = rig.store(log, holder);
    let seen = store.head(soon()).unwrap().epoch;
    let epoch = store.claim(seen, soon()).unwrap().epoch;
    (store, Writer::Owner { epoch })
}

/// All batches of a log, in order and without a gap; the head fits them.
fn content<R: Rig>(rig: &R, log: &str) -> Vec<Batch> {
    let mut store = rig.store(log, "reader");
    let mut found = Vec::new();
    let mut next = 0;
    loop {
        let read = store.read_from(next, 100, soon()).unwrap();
        if read.is_empty() {
            break;
        }
        for stored in read {
            assert_eq!(stored.batch.place.first, next, "a gap in {log}");
            next = stored.batch.place.end();
            found.push(stored.batch);
        }
    }
    let head = store.head(soon()).unwrap();
    let root = found.last().map_or_else(empty_root, |last| last.place.root);
    assert_eq!((head.size, head.root), (next, root), "head of {log}");
    found
}

fn id(key: &str, body: u8, answer: &str) -> Once {
    Once {
        scope: "scope".into(),
        key: key.into(),
        body_hash: [body; 32],
        answer: answer.into(),
    }
}

fn a_new_log_is_empty<R: Rig>(rig: &R) {
    let mut store = rig.store("new", "a");
    let head = store.head(soon()).unwrap();
    assert_eq!((head.size, head.root), (0, empty_root()));
    assert_eq!((head.epoch, head.holder.as_str()), (0, ""));
    assert_eq!(store.read_from(0, 1_000, soon()), Ok(vec![]));
    assert_eq!(store.checkpoint(soon()), Ok(None));
    assert_eq!(rig.beat("new").observe(soon()), Ok(0));
}

fn what_is_appended_is_read<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "read", "a");
    let mut tree = Frontier::new();
    let batches: Vec<Batch> = [&["one"][..], &["two", "three"], &["four"], &["five"]]
        .iter()
        .map(|entries| batch(&mut tree, entries))
        .collect();
    for batch in &batches {
        assert_eq!(append(&mut store, writer, batch, soon()), Ok(done(batch)));
    }
    assert_eq!(content(rig, "read"), batches);
    // One that is larger than the bound comes alone; others as far as they fit.
    let read = |first, bytes| {
        let read = rig.store("read", "b").read_from(first, bytes, soon());
        read.unwrap().into_iter().map(|stored| stored.batch)
    };
    assert!(read(0, 1).eq(batches[..1].iter().cloned()));
    assert!(read(1, 9).eq(batches[1..2].iter().cloned()));
    assert!(read(1, 13).eq(batches[1..3].iter().cloned()));
    assert!(read(3, 1_000).eq(batches[2..].iter().cloned()));
    assert_eq!(read(5, 1_000).count(), 0);
    // Logs are apart.
    assert_eq!(content(rig, "read beside"), []);
}

fn a_claim_compares_the_epoch<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.store("claim", "a"), rig.store("claim", "b"));
    let head = a.claim(0, soon()).unwrap();
    assert_eq!((head.epoch, head.holder.as_str()), (1, "a"));
    assert_eq!(b.claim(0, soon()), Err(StoreError::Fenced));
    assert_eq!(b.claim(2, soon()), Err(StoreError::Fenced));
    let head = b.claim(1, soon()).unwrap();
    assert_eq!((head.epoch, head.holder.as_str()), (2, "b"));
    assert_eq!(a.claim(1, soon()), Err(StoreError::Fenced));
    assert_eq!(a.head(soon()), Ok(head));
}

fn a_past_epoch_changes_nothing<R: Rig>(rig: &R) {
    let (mut a, old) = owned(rig, "fence", "a");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one"]);
    assert_eq!(append(&mut a, old, &first, soon()), Ok(done(&first)));
    let (mut b, new) = owned(rig, "fence", "b");
    let second = batch(&mut tree, &["two"]);
    for _ in 0..2 {
        assert_eq!(
            append(&mut a, old, &second, soon()),
            Err(StoreError::Fenced)
        );
    }
    let refused = a.append(
        old,
        &[id("fence", 1, "")],
        &mut |_| Some(second.clone()),
        soon(),
    );
    assert_eq!(refused, Err(StoreError::Fenced));
    assert_eq!(
        a.put_checkpoint(old, 1, "old", soon()),
        Err(StoreError::Fenced)
    );
    assert_eq!(content(rig, "fence"), std::slice::from_ref(&first));
    assert_eq!(a.checkpoint(soon()), Ok(None));
    assert_eq!(append(&mut b, new, &second, soon()), Ok(done(&second)));
    assert_eq!(content(rig, "fence"), [first, second]);
    let epochs = b.read_from(0, 1_000, soon()).unwrap();
    assert!(epochs.iter().map(|stored| stored.epoch).eq([1, 2]));
}

fn a_batch_goes_to_its_place_only<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "place", "a");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one", "two"]);
    assert_eq!(append(&mut store, writer, &first, soon()), Ok(done(&first)));
    let other = batch(&mut tree, &["three"]);
    let (mut ahead, mut beside) = (other.clone(), other);
    ahead.place.first += 1;
    beside.place.before = [9; 32];
    for wrong in [ahead, first.clone(), beside] {
        assert_eq!(
            append(&mut store, writer, &wrong, soon()),
            Err(StoreError::Fenced)
        );
        let shared = append(&mut store, Writer::Shared, &wrong, soon());
        assert_eq!(shared, Err(StoreError::Moved));
    }
    assert_eq!(content(rig, "place"), [first]);
}

fn shared_writers_take_turns<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.store("shared", "a"), rig.store("shared", "b"));
    let mut tree = Frontier::new();
    let mut behind = tree.clone();
    let first = batch(&mut tree, &["of a"]);
    assert_eq!(
        append(&mut a, Writer::Shared, &first, soon()),
        Ok(done(&first))
    );
    let late = batch(&mut behind, &["of b"]);
    assert_eq!(
        append(&mut b, Writer::Shared, &late, soon()),
        Err(StoreError::Moved)
    );
    assert_eq!(b.read_from(0, 1_000, soon()).unwrap()[0].batch, first);
    let second = batch(&mut tree, &["of b"]);
    assert_eq!(
        append(&mut b, Writer::Shared, &second, soon()),
        Ok(done(&second))
    );
    assert_eq!(b.put_checkpoint(Writer::Shared, 2, "note", soon()), Ok(()));
    assert_eq!(content(rig, "shared"), [first, second]);
}

fn an_id_is_used_once<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "once", "a");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one", "two"]);
    let ids = [id("once 1", 1, "answer 1"), id("once 2", 2, "answer 2")];
    let appended = store.append(writer, &ids, &mut |_| Some(first.clone()), soon());
    assert_eq!(appended, Ok(done(&first)));
    // The same body, another body, and a new id between them.
    let ids = [
        id("once 1", 1, "other"),
        id("once 1b", 3, "answer 3"),
        id("once 2", 9, "other"),
    ];
    let repeats = vec![
        Repeat {
            at: 0,
            same_body: true,
            answer: "answer 1".into(),
        },
        Repeat {
            at: 2,
            same_body: false,
            answer: "answer 2".into(),
        },
    ];
    let second = batch(&mut tree, &["three"]);
    let mut seen = Vec::new();
    let appended = store.append(
        writer,
        &ids,
        &mut |repeats| {
            seen.push(repeats.to_vec());
            Some(second.clone())
        },
        soon(),
    );
    assert_eq!(seen, std::slice::from_ref(&repeats), "called once");
    let place = Some(second.place);
    assert_eq!(appended, Ok(Appended { place, repeats }));
    // Nothing is left, in another log of the same scope.
    let (mut other, writer) = owned(rig, "once beside", "a");
    let appended = other
        .append(writer, &ids[1..2], &mut |_| None, soon())
        .unwrap();
    assert_eq!(appended.place, None);
    assert_eq!(appended.repeats[0].answer, b"answer 3");
    assert_eq!(content(rig, "once"), [first, second]);
    assert_eq!(content(rig, "once beside"), []);
    let unsorted = [id("b", 1, ""), id("a", 1, "")];
    for wrong in [&unsorted[..], &[id("a", 1, ""), id("a", 1, "")]] {
        let refused = other.append(writer, wrong, &mut |_| None, soon());
        assert!(matches!(
            refused,
            Err(StoreError::Refused(Refusal::Rejected(_)))
        ));
    }
}

fn ids_go_with_their_batch<R: Rig>(rig: &R) {
    let (mut a, old) = owned(rig, "atomic", "a");
    let (mut b, new) = owned(rig, "atomic", "b");
    let only = batch(&mut Frontier::new(), &["one"]);
    let ids = [id("atomic", 1, "answer")];
    let fenced = a.append(old, &ids, &mut |_| Some(only.clone()), soon());
    assert_eq!(fenced, Err(StoreError::Fenced));
    let appended = b.append(new, &ids, &mut |_| Some(only.clone()), soon());
    assert_eq!(appended, Ok(done(&only)), "the id is free");
    assert_eq!(content(rig, "atomic"), [only]);
}

fn two_at_once_have_one_answer<R: Rig>(rig: &R) {
    const NODES: usize = 4;
    for round in 0..5 {
        let key = format!("at once {round}");
        // One log per node, as the audit logs of key services: only the id is shared.
        let answers = ron_kernel::scoped(NODES, |node| {
            let (mut store, writer) = owned(rig, &format!("at once {node}"), &format!("{node}"));
            let head = store.head(soon()).unwrap();
            let place = Place {
                first: head.size,
                count: 1,
                before: head.root,
                root: [round; 32],
            };
            let mine = format!("answer of {node}");
            let ids = [id(&key, 1, &mine)];
            let mut make = |repeats: &[Repeat]| {
                repeats.is_empty().then(|| Batch {
                    place,
                    frame: key.clone().into_bytes(),
                })
            };
            let appended = store.append(writer, &ids, &mut make, soon()).unwrap();
            match appended.repeats.first() {
                Some(repeat) => (false, repeat.answer.clone()),
                None => (appended.place.is_some(), mine.into_bytes()),
            }
        });
        assert_eq!(
            answers.iter().filter(|(first, _)| *first).count(),
            1,
            "{answers:?}"
        );
        assert!(
            answers.iter().all(|(_, answer)| *answer == answers[0].1),
            "{answers:?}"
        );
    }
}

fn a_guard_is_compared<R: Rig>(rig: &R) {
    rig.set_version(7);
    let (mut a, old) = owned(rig, "guard", "a");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one"]);
    let under = |store: &mut R::Store, version, writer, once: &[Once], batch: &Batch| {
        store.append_guarded(version, writer, once, &mut |_| Some(batch.clone()), soon())
    };
    let ids = [id("guard", 1, "answer")];
    for version in [6, 8] {
        for once in [&[][..], &ids] {
            let stale = under(&mut a, Some(version), old, once, &first);
            assert_eq!(stale, Err(StoreError::Stale), "under {version}");
        }
        let stale = under(&mut a, Some(version), Writer::Shared, &[], &first);
        assert_eq!(stale, Err(StoreError::Stale), "under {version}");
    }
    assert_eq!(content(rig, "guard"), []);
    let appended = under(&mut a, Some(7), old, &ids, &first);
    assert_eq!(appended, Ok(done(&first)), "the id is free");
    let second = batch(&mut tree, &["two"]);
    let appended = under(&mut a, Some(7), Writer::Shared, &[], &second);
    assert_eq!(appended, Ok(done(&second)));
    rig.set_version(8);
    let third = batch(&mut tree, &["three"]);
    let stale = under(&mut a, Some(7), old, &[], &third);
    assert_eq!(stale, Err(StoreError::Stale));
    let appended = under(&mut a, None, old, &[], &third);
    assert_eq!(appended, Ok(done(&third)), "no guard was asked for");
    let fourth = batch(&mut tree, &["four"]);
    let appended = under(&mut a, Some(8), old, &[], &fourth);
    assert_eq!(appended, Ok(done(&fourth)));
    // An owner that is fenced must hear that, whatever the guard says.
    let (_, _) = owned(rig, "guard", "b");
    let fifth = batch(&mut tree, &["five"]);
    for version in [7, 8] {
        let fenced = under(&mut a, Some(version), old, &[], &fifth);
        assert_eq!(fenced, Err(StoreError::Fenced), "under {version}");
        let moved = under(&mut a, Some(version), Writer::Shared, &[], &first);
        assert_eq!(moved, Err(StoreError::Moved), "under {version}");
    }
    assert_eq!(content(rig, "guard"), [first, second, third, fourth]);
    // What is answered from repeats may depend on the records too. Nothing is appended, by whichever writer.
    let (mut c, owner) = owned(rig, "guard", "c");
    let mut repeat = |version| {
        let mut none = |_: &[Repeat]| None;
        let found = c.append_guarded(version, owner, &ids, &mut none, soon());
        found.map(|appended| (appended.place, appended.repeats.len()))
    };
    assert_eq!(repeat(Some(7)), Err(StoreError::Stale));
    assert_eq!(repeat(Some(8)), Ok((None, 1)));
    assert_eq!(repeat(None), Ok((None, 1)));
}

/// What a change of the records has ended is in no log afterwards: entries of a writer that keeps on under the version
/// before come all before the change was acknowledged.
fn nothing_passes_a_guard_that_was_raised<R: Rig>(rig: &R) {
    const ROUNDS: u64 = 20;
    rig.set_version(100);
    let raised = Mutex::new(100);
    ron_kernel::scoped(2, |node| {
        if node == 0 {
            for version in 101..=100 + ROUNDS {
                rig.set_version(version);
                *raised.lock().unwrap() = version;
            }
            return;
        }
        let (mut store, writer) = owned(rig, "raised", "a");
        let (mut tree, mut version) = (Frontier::new(), 100);
        while version < 100 + ROUNDS {
            let acknowledged = *raised.lock().unwrap();
            let mut longer = tree.clone();
            let next = batch(&mut longer, &["one"]);
            let make = &mut |_: &[Repeat]| Some(next.clone());
            match store.append_guarded(Some(version), writer, &[], make, soon()) {
                Ok(_) => {
                    assert!(acknowledged <= version, "{version} after {acknowledged}");
                    tree = longer;
                }
                Err(StoreError::Stale) => version += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    });
}

fn the_newest_checkpoint_is_kept<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "checkpoint", "a");
    let three = batch(&mut Frontier::new(), &["one", "two", "three"]);
    append(&mut store, writer, &three, soon()).unwrap();
    for (size, note) in [(2, "two"), (3, "three"), (3, "three, cosigned"), (1, "one")] {
        assert_eq!(store.put_checkpoint(writer, size, note, soon()), Ok(()));
    }
    assert_eq!(
        store.put_checkpoint(writer, 4, "four", soon()),
        Err(StoreError::Fenced)
    );
    let newest = rig.store("checkpoint", "b").checkpoint(soon());
    assert_eq!(newest, Ok(Some((3, "three, cosigned".into()))));
    let head = store.head(soon()).unwrap();
    let root_at = |size| (size == 3).then_some(three.place.root);
    assert_eq!(
        check_extends(&head, &[(3, three.place.root)], root_at),
        Ok(())
    );
}

fn a_beat_is_counted<R: Rig>(rig: &R) {
    let (mut holder, mut standby) = (rig.beat("beat"), rig.beat("beat"));
    for count in 1..=3 {
        assert_eq!(holder.beat(soon()), Ok(()));
        assert_eq!(standby.observe(soon()), Ok(count));
    }
    assert_eq!(rig.beat("beat beside").observe(soon()), Ok(0));
}

fn asynchronous_is_refused<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "asynchronous", "a");
    let only = batch(&mut Frontier::new(), &["one"]);
    rig.set_synchronous(false);
    let refused = append(&mut store, writer, &only, soon());
    let claimed = rig.store("asynchronous", "b").claim(1, soon());
    rig.set_synchronous(true);
    assert!(
        matches!(refused, Err(StoreError::Refused(Refusal::Unsafe(_)))),
        "{refused:?}"
    );
    assert!(
        matches!(claimed, Err(StoreError::Refused(Refusal::Unsafe(_)))),
        "{claimed:?}"
    );
    assert_eq!(content(rig, "asynchronous"), []);
    assert_eq!(append(&mut store, writer, &only, soon()), Ok(done(&only)));
}

fn a_lost_standby_delays_writes_alone<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "standby", "a");
    let mut beat = rig.beat("standby");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one"]);
    assert_eq!(append(&mut store, writer, &first, soon()), Ok(done(&first)));
    beat.beat(soon()).unwrap();
    rig.set_standby(false);
    let second = batch(&mut tree, &["two"]);
    let short = || Deadline::within(rig.short());
    let unknown = append(&mut store, writer, &second, short());
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    let third = batch(&mut tree.clone(), &["three"]);
    let refused = append(&mut store, writer, &third, short());
    assert_eq!(refused, Err(StoreError::Refused(Refusal::Unresolved)));
    // Reads and beats go on.
    let read = rig.store("standby", "reader").read_from(0, 1_000, soon());
    assert_eq!(read.unwrap()[0].batch, first);
    beat.beat(soon()).unwrap();
    assert_eq!(beat.observe(soon()), Ok(2));
    // A claim waits, and is not repeated: the epoch rises by one.
    let Writer::Owner { epoch } = writer else {
        unreachable!("an owner")
    };
    for _ in 0..3 {
        let waits = store.resolve(writer, &[], &second, short());
        assert!(matches!(waits, Err(StoreError::Unknown(_))), "{waits:?}");
    }
    assert_eq!(
        store.claim(epoch + 1, short()),
        Err(Refusal::Unresolved.into())
    );
    rig.set_standby(true);
    let resolved = store.resolve(writer, &[], &second, soon()).unwrap();
    assert_eq!(resolved.head.epoch, epoch + 1);
    let writer = Writer::Owner { epoch: epoch + 1 };
    if !resolved.done {
        assert_eq!(
            append(&mut store, writer, &second, soon()),
            Ok(done(&second))
        );
    }
    let third = batch(&mut tree, &["three"]);
    assert_eq!(append(&mut store, writer, &third, soon()), Ok(done(&third)));
    assert_eq!(content(rig, "standby"), [first, second, third]);
}

/// Appends while the standby is unreachable and an operator cancels the wait: the primary has the batch, and no other.
fn append_at_the_primary_alone<R: Rig>(
    rig: &R,
    store: &mut R::Store,
    writer: Writer,
    batch: &Batch,
) -> Result<Appended, StoreError> {
    rig.set_standby(false);
    let store = Mutex::new(store);
    let mut outcomes = ron_kernel::scoped(2, |part| {
        if part == 1 {
            rig.cancel_waits();
            return None;
        }
        let mut store = store.lock().unwrap();
        Some(append(&mut **store, writer, batch, soon()))
    });
    outcomes.swap_remove(0).expect("the first appends")
}

fn a_notice_makes_a_commit_unknown<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "notice", "a");
    let only = batch(&mut Frontier::new(), &["one"]);
    let outcome = append_at_the_primary_alone(rig, &mut store, writer, &only);
    // A store that waits for the cancelled write says so; in both cases nothing is acknowledged.
    assert!(
        matches!(outcome, Err(StoreError::Unknown(_))),
        "{outcome:?}"
    );
    rig.set_standby(true);
    let resolved = store.resolve(writer, &[], &only, soon()).unwrap();
    assert!(resolved.done, "the primary had it, and has not failed");
    assert_eq!(content(rig, "notice"), [only]);
}

fn a_shared_append_is_resolved<R: Rig>(rig: &R) {
    let mut store = rig.store("shared unknown", "a");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one"]);
    let ids = [id("shared unknown", 1, "answer")];
    rig.set_standby(false);
    let short = Deadline::within(rig.short());
    let unknown = store.append(Writer::Shared, &ids, &mut |_| Some(first.clone()), short);
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    rig.set_standby(true);
    let resolved = store.resolve(Writer::Shared, &ids, &first, soon()).unwrap();
    assert!(resolved.done);
    assert_eq!(content(rig, "shared unknown"), std::slice::from_ref(&first));
    // Another writer was first at the place.
    let lost = batch(&mut tree.clone(), &["lost"]);
    let second = batch(&mut tree, &["two"]);
    append(
        &mut rig.store("shared unknown", "b"),
        Writer::Shared,
        &second,
        soon(),
    )
    .unwrap();
    let resolved = store.resolve(Writer::Shared, &[], &lost, soon()).unwrap();
    assert!(!resolved.done);
    assert_eq!(content(rig, "shared unknown"), [first, second]);
}

fn ids_are_resolved_with_their_batch<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "ids unknown", "a");
    let only = batch(&mut Frontier::new(), &["one"]);
    let ids = [id("ids unknown", 1, "answer")];
    rig.set_standby(false);
    let short = Deadline::within(rig.short());
    let unknown = store.append(writer, &ids, &mut |_| Some(only.clone()), short);
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    rig.set_standby(true);
    let resolved = store.resolve(writer, &ids, &only, soon()).unwrap();
    let (mut other, writer) = owned(rig, "ids unknown beside", "a");
    let repeats = other.append(writer, &ids, &mut |_| None, soon()).unwrap();
    assert_eq!(repeats.repeats.len(), usize::from(resolved.done));
    assert_eq!(
        content(rig, "ids unknown").len(),
        usize::from(resolved.done)
    );
}

fn a_claim_comes_before_a_read<R: Rig>(rig: &R) {
    let (mut a, writer) = owned(rig, "claim first", "a");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one"]);
    append(&mut a, writer, &first, soon()).unwrap();
    rig.set_standby(false);
    let second = batch(&mut tree, &["two"]);
    let unknown = append(&mut a, writer, &second, Deadline::within(rig.short()));
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    rig.restart_primary();
    // The restarted primary shows what no standby has; a claim does not return it yet.
    let mut b = rig.store("claim first", "b");
    assert_eq!(b.head(soon()).unwrap().size, 2);
    let waits = b.claim(1, Deadline::within(rig.short()));
    assert!(matches!(waits, Err(StoreError::Unknown(_))), "{waits:?}");
    rig.set_standby(true);
    let head = b.claim(1, soon()).unwrap();
    assert_eq!((head.size, head.epoch), (2, 2));
    let fenced = a.resolve(writer, &[], &second, soon());
    assert_eq!(fenced, Err(StoreError::Fenced));
    assert_eq!(content(rig, "claim first"), [first, second]);
}

fn a_provisional_tail_is_cut<R: Rig>(rig: &R) {
    let (mut store, writer) = owned(rig, "provisional", "a");
    let mut tree = Frontier::new();
    let first = batch(&mut tree, &["one"]);
    append(&mut store, writer, &first, soon()).unwrap();
    let mut tail = Tail::after(0);
    let mut follower = rig.store("provisional", "f");
    let read = tail.follow(&mut follower, 1_000, soon()).unwrap();
    assert!(read.iter().map(|stored| &stored.batch).eq([&first]));
    let vanishes = batch(&mut tree.clone(), &["two", "three"]);
    let unknown = append_at_the_primary_alone(rig, &mut store, writer, &vanishes);
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    // The follower sees it, and may not serve it.
    assert_eq!(follower.head(soon()).unwrap().size, 3);
    let waits = tail.follow(&mut follower, 1_000, Deadline::within(rig.short()));
    assert!(matches!(waits, Err(StoreError::Unknown(_))), "{waits:?}");
    assert_eq!(tail.size(), 1);
    rig.fail_over();
    let (mut b, writer) = owned(rig, "provisional", "b");
    let second = batch(&mut tree, &["another"]);
    append(&mut b, writer, &second, soon()).unwrap();
    let mut follower = rig.store("provisional", "f");
    let read = tail.follow(&mut follower, 1_000, soon()).unwrap();
    assert!(read.iter().map(|stored| &stored.batch).eq([&second]));
    assert_eq!((tail.size(), tail.cut()), (2, 2));
    assert_eq!(content(rig, "provisional"), [first, second]);
    // Behind what was final, there is an alarm.
    let lost = Tail::after(9).follow(&mut follower, 1_000, soon());
    assert!(matches!(lost, Err(StoreError::Lost(_))), "{lost:?}");
}
