//! Models of the log and of its witness: loom runs every interleaving of a few threads, shuttle
//! samples those of more (`cargo xtask loom`). Each names the mutants, deliberately faulty versions,
//! that it must catch.
#![cfg(any(loom, shuttle))]
#![allow(missing_docs, dead_code, clippy::pedantic, clippy::needless_collect)]

/// The source of ron-service, which keeps the state of this thread to itself.
#[path = "../../../crates/ron-service/src/log_host/witness.rs"]
mod witness;

mod ready {
    pub use ron_service::ReadyBoard;
}

mod plain_disk;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;

use plain_disk::PlainDisk;
use ron_crypto::sign::Ed25519Key;
use ron_http::{Responder, Response};
use ron_kernel::queue::bare_queue;
use ron_kernel::{
    Deadline, Receiver, Recv, Registry, ReplySender, ReplyWaiter, SeededRandom, Sender, Shutdown,
    Snapshot, SystemClock, ThreadCtx, reply,
};
use ron_tlog::append::{Log, LogOptions, LogReader, WitnessStore};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::cosignature::Cosigner;
use ron_tlog::note::Ed25519NoteSigner;
use ron_tlog::tree::verify_consistency;
use ron_tlog::witness::AddCheckpoint;
use witness::{Job, Room, STATUSES, Submission, WITNESS_QUEUE};

/// A size for loom and one for shuttle.
const fn size(loom: usize, shuttle: usize) -> usize {
    if cfg!(loom) { loom } else { shuttle }
}

fn far() -> Deadline {
    Deadline::within(Duration::from_secs(36_000))
}

fn context() -> ThreadCtx {
    // The body ends when the last sender is dropped, so the token is never fired.
    let (trigger, shutdown) = Shutdown::pair();
    std::mem::forget(trigger);
    ThreadCtx {
        shutdown,
        index: 0,
        name: "model".into(),
    }
}

/// Explores a model: loom exhaustively up to one preemption less than `LOOM_MAX_PREEMPTIONS`
/// (default 2).
#[cfg(loom)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // The log's threads take many steps: one preemption less than in the other models keeps a run
    // to seconds.
    let asked = builder.preemption_bound.unwrap_or(2);
    builder.preemption_bound = Some(asked.saturating_sub(1).max(1));
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Explores a model: shuttle with `SHUTTLE_ITERATIONS` (default 4000) schedules, half of them
/// random, half with few but well-placed switches (PCT).
#[cfg(shuttle)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let asked = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = asked.map_or(4_000, |n| n.parse().expect("a number"));
    let model = Arc::new(model);
    let again = model.clone();
    let mut config = shuttle::Config::new();
    config.stack_size = 0x10_0000;
    let random = shuttle::scheduler::RandomScheduler::new(iterations / 2);
    shuttle::Runner::new(random, config.clone()).run(move || model());
    let placed = shuttle::scheduler::PctScheduler::new(3, iterations / 2);
    shuttle::Runner::new(placed, config).run(move || again());
}

/// A thread with enough stack for signing: the checkers' default stacks are small.
#[cfg(loom)]
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    let builder = thread::Builder::new().stack_size(0x2_0000);
    builder.spawn(body).expect("loom starts it")
}

#[cfg(shuttle)]
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::spawn(body)
}

fn signer() -> Ed25519NoteSigner {
    Ed25519NoteSigner::new("log.example", Ed25519Key::from_seed(&[1; 32])).expect("a name")
}

fn log() -> Log {
    let options = LogOptions {
        segment_entries: 256,
        random: Arc::new(SeededRandom::new(5)),
        ..LogOptions::new("log.example")
    };
    Log::open(Arc::new(PlainDisk::default()), Path::new("/l"), options).expect("an empty log")
}

/// One entry, and the sender for its index.
type Ask = (Vec<u8>, ReplySender<u64>);

/// Like the appender of a service: takes all waiting entries, makes them durable in one batch,
/// answers.
fn append_all(mut log: Log, asks: &Receiver<Ask>) {
    let ctx = context();
    while let Recv::Item(first) = asks.recv(&ctx.shutdown, far()) {
        let mut batch = vec![first];
        while let Some(more) = asks.try_recv() {
            batch.push(more);
        }
        let (entries, who): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let first = log.append(&entries).expect("appends");
        for (index, to) in (first..).zip(who) {
            let _ = to.send(index);
        }
    }
}

/// In every interleaving, each acknowledged entry has its own index, without gaps; readers see it
/// from its acknowledgement on; a checkpoint that is begun after the acknowledgement covers it, and
/// has the root of its size. Mutants `ack`, `head`.
#[test]
fn the_index_is_contiguous_and_a_checkpoint_covers_what_was_acknowledged() {
    const CLIENTS: usize = size(2, 4);
    explore(|| {
        let mut log = log();
        let (reader, checkpointer) = (log.reader(), log.take_checkpointer());
        let mut checkpointer = checkpointer.expect("once");
        let (to, asks) = bare_queue::<Ask>(&WITNESS_QUEUE, 8);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (to, reader, acknowledged) = (to.clone(), reader.clone(), acknowledged.clone());
                spawn(move || client(n, &to, &reader, &acknowledged))
            })
            .collect();
        drop(to);
        let appender = spawn(move || append_all(log, &asks));
        let (seen, counted) = (reader.clone(), acknowledged.clone());
        let publisher = spawn(move || {
            for _ in 0..size(1, 3) {
                let before = counted.load(Ordering::SeqCst);
                checkpointer.publish(&[&signer()]).expect("publishes");
                let head = seen.checkpoint_head().expect("just published");
                assert!(head.size >= before, "acknowledged and not covered");
                assert_eq!(
                    head.root,
                    seen.root_at(head.size).expect("there"),
                    "another root"
                );
            }
        });
        let mut indexes: Vec<u64> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        appender.join().unwrap();
        publisher.join().unwrap();
        indexes.sort_unstable();
        assert_eq!(indexes, (0..CLIENTS as u64).collect::<Vec<_>>());
    });
}

fn client(n: usize, to: &Sender<Ask>, reader: &LogReader, acknowledged: &AtomicU64) -> u64 {
    let entry = format!("entry of {n}").into_bytes();
    let (tell, told) = reply();
    assert!(to.send((entry.clone(), tell), far()).is_ok());
    let index = told.wait(far()).expect("answered");
    acknowledged.fetch_add(1, Ordering::SeqCst);
    assert_eq!(reader.entry(index).expect("there by now"), entry);
    index
}

/// Two histories of one log, for requests to a witness.
fn histories() -> [LogReader; 2] {
    ["a", "b"].map(|history| {
        let mut log = log();
        let entries: Vec<String> = (0..6).map(|n| format!("{history} {n}")).collect();
        log.append(&entries).expect("appends");
        log.reader()
    })
}

fn request(reader: &LogReader, old: u64, new: u64) -> AddCheckpoint {
    let checkpoint = Checkpoint {
        origin: "log.example".into(),
        size: new,
        root: reader.root_at(new).expect("there"),
    };
    let proof = match old {
        0 => Vec::new(),
        _ => reader.consistency(old, new).expect("there"),
    };
    AddCheckpoint {
        old,
        proof,
        checkpoint: checkpoint.sign(&[&signer()]).expect("signs"),
    }
}

/// Requests that race from the same state: a witness cosigns one history, each step from the end of
/// the last one, and stores the last checkpoint it cosigned. Mutant `batch`.
#[test]
fn a_witness_compares_and_stores_in_one_step() {
    explore(|| spawn(race_for_a_witness).join().unwrap());
}

fn race_for_a_witness() {
    const CLIENTS: usize = size(2, 4);
    {
        let histories = histories();
        let (to, jobs) = bare_queue::<Job>(&WITNESS_QUEUE, 16);
        let cosigner = Cosigner::new("w.example", Ed25519Key::from_seed(&[2; 32])).expect("name");
        let keys = vec![signer().verifier().clone()];
        let disk = Arc::new(PlainDisk::default());
        let store = WitnessStore::open(disk, Path::new("/w"), cosigner, keys).expect("opens");
        let notes = Arc::new(Snapshot::new(store.notes()));
        let mut room = Room {
            store,
            jobs,
            notes: notes.clone(),
            clock: SystemClock::shared(),
            ready: ready::ReadyBoard::new(&Registry::new("m")),
            asked: Registry::new("m").counter_closed("asked", "Asked.", &[("status", STATUSES)]),
        };
        let owner = spawn(move || {
            room.run(&context());
            room
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (to, reader) = (to.clone(), histories[n % 2].clone());
                spawn(move || ask(&to, &reader, 2 + n as u64))
            })
            .collect();
        drop(to);
        let asked: Vec<Asked> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        let room = owner.join().unwrap();
        let done: Vec<_> = asked.into_iter().filter_map(cosigned).collect();
        let last = room
            .store
            .last("log.example")
            .expect("one was taken")
            .clone();
        // Every cosigned checkpoint is an earlier state of the stored one.
        let history = histories
            .iter()
            .find(|h| h.root_at(last.size).ok() == Some(last.root));
        let history = history.expect("of one of the two");
        assert!(!done.is_empty());
        for (size, root) in done {
            assert!(size <= last.size, "{size} was cosigned and is forgotten");
            let proof = history.consistency(size, last.size).expect("there");
            assert_eq!(
                verify_consistency(size, last.size, &proof, &root, &last.root),
                Ok(()),
                "two histories"
            );
        }
    }
}

/// A client's request (size and root), and the waiter for its answer.
type Asked = (u64, [u8; 32], ReplyWaiter<Response>);

/// Sends a request from size 0. The answer is read after all threads have ended: waiting for it is
/// not a step of the model.
fn ask(to: &Sender<Job>, reader: &LogReader, new: u64) -> Asked {
    let deadline = Deadline::within(Duration::from_secs(36_000));
    let (responder, answer) = Responder::detached(deadline);
    let what = Submission::Checkpoint(request(reader, 0, new));
    assert!(to.send(Job { what, responder }, far()).is_ok());
    (new, reader.root_at(new).expect("there"), answer)
}

/// The checkpoint of a request that was answered with a cosignature.
fn cosigned((size, root, answer): Asked) -> Option<(u64, [u8; 32])> {
    let now = Deadline::within(Duration::ZERO);
    let response = answer.wait(now).expect("answered");
    (response.status == 200).then_some((size, root))
}
