//! The ledger on a log that an engine keeps, on several nodes: what holds of it on every engine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::SimDisk;
use ron_kernel::SeededRandom;
use ron_ledger::copies::CopyError;
use ron_ledger::core::{Op, Outcome, Salts};
use ron_ledger::engine::{Atomicity, CommitError, Committed, Engine, EngineOptions, Request};
use ron_proto::ledger::{Details, Entry};
use ron_proto::{Amount, Timestamp};
use ron_tlog::append::EngineError as LogError;
use ron_tlog::store::StoreError;

use crate::contract::{Rig, Rule, soon};

const T0: Timestamp = Timestamp(1_700_000_000_000);

fn dir() -> &'static Path {
    Path::new("/ledger")
}

fn options() -> EngineOptions {
    let mut options = EngineOptions::new("test/ledger");
    options.segment_entries = 256;
    options.random = Arc::new(SeededRandom::new(3));
    options
}

/// A node: its disk, and its sessions.
fn node<R: Rig>(rig: &R, disk: &SimDisk, log: &str, holder: &str) -> Engine
where
    R::Store: 'static,
{
    let session = || Box::new(rig.store(log, holder)) as _;
    let within = Duration::from_secs(60);
    let (disk, sessions) = (Arc::new(disk.clone()), [session(), session()]);
    Engine::open_shared(disk, dir(), options(), sessions, within).unwrap()
}

/// Claims the ledger from its present holder, and waits for the outcome.
fn try_take_over(node: &mut Engine) -> Result<(), CopyError> {
    let seen = node.log_head(soon())?.epoch;
    loop {
        match node.claim(seen, &[], T0, soon()) {
            Err(CopyError::Log(LogError::Store(StoreError::Unknown(_)))) => {}
            outcome => return outcome,
        }
    }
}

fn take_over(node: &mut Engine) {
    try_take_over(node).unwrap();
}

fn catch_up(node: &mut Engine) {
    while node.follow(soon()).unwrap() > 0 {}
}

fn issue(key: &str, to: &str, amount: u128) -> Entry {
    Entry::Issue {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(amount),
        details: Details::default(),
        batch: None,
        budgets: Vec::new(),
    }
}

fn transfer(key: &str, from: &str, to: &str, amount: u128) -> Entry {
    Entry::Transfer {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(amount),
        up_to: None,
        nonce: None,
        details: Details::default(),
        batch: None,
        daily_ceiling: None,
        budgets: Vec::new(),
    }
}

fn request(entries: Vec<Entry>, atomicity: Atomicity) -> Request {
    let salts = Salts::new([[1; 16], [2; 16], [3; 16], [4; 16], [5; 16]]);
    let op = |entry| Op::new(entry, &salts).unwrap();
    Request {
        ops: entries.into_iter().map(op).collect(),
        atomicity,
    }
}

fn commit(node: &mut Engine, entries: Vec<Entry>) -> Result<Committed, CommitError> {
    node.commit(T0, &[request(entries, Atomicity::Independent)])
}

/// The state's canonical bytes.
fn image(node: &Engine) -> Vec<u8> {
    let mut out = Vec::new();
    node.shared().state(|state| {
        let add = |bytes: &[u8]| {
            out.extend_from_slice(bytes);
            Ok::<(), ()>(())
        };
        state.freeze().encode(add).unwrap();
    });
    out
}

fn balance(node: &Engine, account: &str) -> u128 {
    let account = account.parse().unwrap();
    node.shared().state(|state| {
        let asset = state.asset_ix(&"ron".parse().unwrap()).unwrap();
        let row = state.account(&account);
        row.map_or(0, |row| row.balance(asset).available(0))
    })
}

/// What holds of a ledger on every engine.
pub fn rules<R: Rig>() -> Vec<Rule<R>>
where
    R::Store: 'static,
{
    vec![
        (
            "the same commits give the same ledger in files and in an engine",
            the_same_commits_give_the_same_ledger,
        ),
        (
            "a ledger has one holder, and the next one knows all keys",
            a_ledger_has_one_holder,
        ),
    ]
}

fn the_same_commits_give_the_same_ledger<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let mut shared = node(rig, &SimDisk::new(), "same ledger", "a");
    take_over(&mut shared);
    let files = Arc::new(SimDisk::new());
    let mut files = Engine::open(files, dir(), options(), T0).unwrap();
    let mut both = |entries: Vec<Entry>, atomicity| {
        let requests = [request(entries, atomicity)];
        let one = shared.commit(T0, &requests).unwrap();
        assert_eq!(files.commit(T0, &requests).unwrap(), one);
        assert_eq!(
            shared.shared().reader().head(),
            files.shared().reader().head()
        );
    };
    both(vec![issue("i", "a", 1_000)], Atomicity::Independent);
    // A linked commit that crosses the length of a segment.
    for n in 0..3 {
        let linked = (0..120).map(|i| transfer(&format!("l{n}.{i}"), "a", "b", 1));
        both(linked.collect(), Atomicity::Linked);
    }
    both(
        vec![transfer("much", "a", "b", 5_000)],
        Atomicity::Independent,
    );
    assert_eq!(image(&shared), image(&files));
}

fn a_ledger_has_one_holder<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    let disks = [SimDisk::new(), SimDisk::new()];
    let mut one = node(rig, &disks[0], "two ledgers", "a");
    let mut two = node(rig, &disks[1], "two ledgers", "b");
    let early = commit(&mut two, vec![issue("early", "a", 1)]);
    assert!(matches!(early, Err(CommitError::Standby)), "{early:?}");
    take_over(&mut one);
    commit(&mut one, vec![issue("i", "a", 1_000)]).unwrap();
    let linked = (0..300).map(|i| transfer(&format!("t{i}"), "a", "b", 1));
    let linked = request(linked.collect(), Atomicity::Linked);
    one.commit(T0, std::slice::from_ref(&linked)).unwrap();
    catch_up(&mut two);
    assert_eq!(image(&one), image(&two));
    assert_eq!((balance(&two, "a"), balance(&two, "b")), (700, 300));
    // A snapshot of the standby is as good as one of the holder.
    let job = two.begin_snapshot(true).unwrap();
    two.snapshotter().write(&job).unwrap();
    commit(&mut one, vec![transfer("last", "a", "c", 9)]).unwrap();
    take_over(&mut two);
    // A request that is sent again has its first answer, and none is decided twice.
    let again = two.commit(T0, std::slice::from_ref(&linked)).unwrap();
    let known = |outcome: &Outcome| matches!(outcome, Outcome::Known { .. });
    assert!(again.outcomes[0].iter().all(known));
    let again = commit(&mut two, vec![transfer("last", "a", "c", 9)]).unwrap();
    assert!(again.outcomes[0].iter().all(known));
    commit(&mut two, vec![transfer("next", "b", "c", 1)]).unwrap();
    let late = commit(&mut one, vec![transfer("late", "a", "c", 1)]);
    assert!(matches!(late, Err(CommitError::Standby)), "{late:?}");
    catch_up(&mut one);
    assert_eq!(image(&one), image(&two));
    assert_eq!(balance(&one, "c"), 10);
    drop(two);
    let mut two = node(rig, &disks[1], "two ledgers", "b");
    assert_eq!(two.opened().snapshot_seq, 301);
    catch_up(&mut two);
    assert_eq!(image(&one), image(&two));
    let mut third = node(rig, &SimDisk::new(), "two ledgers", "c");
    catch_up(&mut third);
    assert_eq!(image(&third), image(&one));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ron_files::CrashMode;
    use ron_ledger::copies::Resolved;
    use ron_ledger::core::Verdict;

    use super::*;
    use crate::memory::{Defect, FAULTS, MemoryEngine, below};

    #[test]
    fn the_rules_hold_in_memory() {
        for (rule, check) in rules() {
            println!("{rule}");
            check(&MemoryEngine::new(Defect::None));
        }
    }

    /// What a claim or a step of a standby has copied before it failed is in the books after the next step.
    #[test]
    fn books_follow_a_copy_that_came_in_parts() {
        for n in 0..4 {
            let engine = MemoryEngine::new(Defect::None);
            let mut one = node(&engine, &SimDisk::new(), "parts", "a");
            take_over(&mut one);
            for i in 0..3 {
                commit(&mut one, vec![issue(&format!("i{i}"), "a", 7)]).unwrap();
            }
            let mut two = node(&engine, &SimDisk::new(), "parts", "b");
            engine.refuse_read_after(n);
            assert!(try_take_over(&mut two).is_err(), "{n}");
            catch_up(&mut two);
            assert_eq!(image(&two), image(&one), "{n}");
            take_over(&mut two);
            commit(&mut two, vec![transfer("t", "a", "b", 21)]).unwrap();
            assert_eq!(balance(&two, "b"), 21);
        }
    }

    /// A holder without work sees that another node has claimed the ledger.
    #[test]
    fn a_holder_that_looks_at_the_head_sees_the_claim_of_another() {
        let engine = MemoryEngine::new(Defect::None);
        let mut one = node(&engine, &SimDisk::new(), "idle", "a");
        take_over(&mut one);
        assert_eq!(one.log_head(soon()).unwrap().holder, "a");
        assert!(one.epoch().is_some());
        take_over(&mut node(&engine, &SimDisk::new(), "idle", "b"));
        assert_eq!(one.log_head(soon()).unwrap().holder, "b");
        assert_eq!(one.epoch(), None);
    }

    /// What a client knows of a payment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Answer {
        Done,
        Refused,
        /// The ledger did not decide it.
        Not,
        Nothing,
    }

    fn told(committed: &Committed) -> Answer {
        match &committed.outcomes[0][0] {
            Outcome::Fresh {
                verdict: Verdict::Done(_),
                ..
            } => Answer::Done,
            _ => Answer::Refused,
        }
    }

    /// Sends one payment to a node, which takes the ledger over when it is a standby, and waits for its outcome.
    fn pay(node: &mut Engine, key: &str, amount: u128, fault: impl Fn()) -> Answer {
        if node.epoch().is_none() {
            match try_take_over(node) {
                Ok(()) => {}
                Err(CopyError::Log(LogError::Store(
                    StoreError::Refused(_) | StoreError::Fenced | StoreError::Unknown(_),
                ))) => return Answer::Not,
                Err(error) => panic!("{error:?}"),
            }
        }
        match commit(node, vec![transfer(key, "a", "b", amount)]) {
            Ok(committed) => return told(&committed),
            Err(CommitError::Undecided(_)) => {}
            Err(CommitError::Unavailable(_) | CommitError::Standby) => return Answer::Not,
            Err(error) => panic!("{error:?}"),
        }
        loop {
            fault();
            match node.resolve(soon()) {
                Ok(Resolved::Done(committed)) => return told(&committed),
                Ok(Resolved::NotDone) => return Answer::Not,
                Err(CommitError::Standby) => return Answer::Nothing,
                Err(CommitError::Undecided(_) | CommitError::Unavailable(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Two nodes pay from one account, with every outcome of the engine, lost primaries, power cuts and restarts of the nodes.
    fn two_ledgers_under_faults(seed: u64) -> [usize; 4] {
        let engine = MemoryEngine::new(Defect::None);
        let random = SeededRandom::new(seed);
        let below = |n| below(&random, n);
        let disks = [SimDisk::new(), SimDisk::new()];
        let mut lives = [0, 0];
        let name = |at: usize, life: u32| format!("{at}.{life}");
        let mut nodes = [0, 1].map(|at| node(&engine, &disks[at], "books", &name(at, 0)));
        take_over(&mut nodes[0]);
        commit(&mut nodes[0], vec![issue("i", "a", 200)]).unwrap();
        let mut answers: Vec<(String, Answer)> = Vec::new();
        let mut repeated = BTreeSet::new();
        for n in 0..60 {
            let at = usize::from(below(2));
            let fault = || {
                if below(3) == 0 {
                    engine.fail_next(FAULTS[usize::from(below(5))]);
                }
            };
            match below(8) {
                0 => engine.fail_over(),
                1 => {
                    let modes = [CrashMode::LoseAll, CrashMode::TearLast(9)];
                    disks[at].crash(modes[usize::from(below(2))]);
                    lives[at] += 1;
                    nodes[at] = node(&engine, &disks[at], "books", &name(at, lives[at]));
                }
                2 => drop(nodes[at].follow(soon())),
                3 => {
                    if let Some(job) = nodes[at].begin_snapshot(true) {
                        nodes[at].snapshotter().write(&job).unwrap();
                    }
                }
                _ => {
                    fault();
                    // Some keys are sent again, to any node, whatever was answered.
                    let again = below(4) == 0 && !answers.is_empty();
                    let key = if again {
                        answers[usize::from(below(60)) % answers.len()].0.clone()
                    } else {
                        format!("k{n}")
                    };
                    let amount = u128::from(key.len() as u32 * 7);
                    let answer = pay(&mut nodes[at], &key, amount, fault);
                    if again {
                        repeated.insert(key);
                    } else {
                        answers.push((key, answer));
                    }
                }
            }
        }
        let mut last = node(&engine, &SimDisk::new(), "books", "last");
        while try_take_over(&mut last).is_err() {}
        check(&last, &answers, &repeated, seed);
        for node in &mut nodes {
            while node.follow(soon()).is_err() {}
            assert_eq!(image(node), image(&last), "seed {seed}");
        }
        [Answer::Done, Answer::Refused, Answer::Not, Answer::Nothing]
            .map(|told| answers.iter().filter(|(_, answer)| *answer == told).count())
    }

    /// What was answered is in the books, and the books add up.
    fn check(last: &Engine, answers: &[(String, Answer)], repeated: &BTreeSet<String>, seed: u64) {
        let total = balance(last, "a") + balance(last, "b");
        assert_eq!(total, 200, "seed {seed}");
        let shared = last.shared();
        for (key, answer) in answers {
            let op = &request(vec![transfer(key, "a", "b", 1)], Atomicity::Independent).ops[0];
            let found = shared.keys().resolve(&[op.key()]).unwrap()[0];
            match answer {
                Answer::Done | Answer::Refused => assert!(found.is_some(), "seed {seed}: {key}"),
                Answer::Not if repeated.contains(key) => {}
                Answer::Not => assert_eq!(found, None, "seed {seed}: {key}"),
                // The holder that came next says what became of it.
                Answer::Nothing => {}
            }
        }
        shared.state(|state| state.audit().unwrap());
    }

    #[test]
    fn two_ledgers_lose_and_double_nothing() {
        let mut sums = [0; 4];
        for seed in 0..100 {
            let found = two_ledgers_under_faults(seed);
            sums.iter_mut().zip(found).for_each(|(sum, n)| *sum += n);
        }
        println!("done, refused, not decided, left to the other node: {sums:?}");
        assert!(sums[0] > 500 && sums[1] > 100 && sums[2] > 100, "{sums:?}");
    }
}
