//! Logs of several nodes, one each, that share the ids of clients and a guard, as the audit logs of key services do: an operation
//! is done once, whichever nodes it is sent to, and only as long as what it was decided from is right.

use std::collections::BTreeMap;
use std::sync::Mutex;

use ron_files::SimDisk;
use ron_tlog::append::{EngineError, EngineLog, OnceAppended};
use ron_tlog::store::{Once, Repeat, StoreError};

use crate::contract::{Rig, Rule, soon};
use crate::log::{leaves, node, take_over};

/// An operation of a client.
#[derive(Clone, Debug)]
pub struct Operation {
    pub id: String,
    pub body: u8,
}

fn operation(id: &str, body: u8) -> Operation {
    Operation {
        id: id.into(),
        body,
    }
}

/// The answer: which leaf of which log records the operation.
type Answer = String;

/// What became of operations.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Answered(Answer),
    /// The id was used with another body.
    Mismatch,
}

/// A node with a log of its own.
struct Node {
    log: EngineLog,
    name: String,
    disk: SimDisk,
}

impl Node {
    fn new<R: Rig>(rig: &R, name: &str) -> Self
    where
        R::Store: 'static,
    {
        let disk = SimDisk::new();
        let mut log = node(rig, &disk, name, name);
        take_over(&mut log);
        Self {
            log,
            name: name.into(),
            disk,
        }
    }

    /// Does a batch of operations under a version, in the order of their ids; those that were done before leave it.
    fn perform(
        &mut self,
        version: u64,
        operations: &[Operation],
    ) -> Result<Vec<Outcome>, EngineError> {
        let mut outcomes: Vec<Option<Outcome>> = operations.iter().map(|_| None).collect();
        loop {
            let open: Vec<usize> = (0..outcomes.len())
                .filter(|at| outcomes[*at].is_none())
                .collect();
            let first = self.log.size();
            let answer = |n: usize| format!("{}/{}", self.name, first + n as u64);
            let ids: Vec<Once> = open
                .iter()
                .enumerate()
                .map(|(n, at)| Once {
                    scope: "client".into(),
                    key: operations[*at].id.clone(),
                    body_hash: [operations[*at].body; 32],
                    answer: answer(n).into_bytes(),
                })
                .collect();
            let leaf = |at: &usize| format!("{} {}", operations[*at].id, operations[*at].body);
            let records: Vec<String> = open.iter().map(leaf).collect();
            match self
                .log
                .append_once(&records, Some(version), &ids, soon())?
            {
                OnceAppended::Done(_) => {
                    for (n, at) in open.iter().enumerate() {
                        outcomes[*at] = Some(Outcome::Answered(answer(n)));
                    }
                    return Ok(outcomes.into_iter().flatten().collect());
                }
                OnceAppended::Repeats(repeats) => {
                    assert!(!repeats.is_empty());
                    for repeat in repeats {
                        outcomes[open[repeat.at]] = Some(of_repeat(&repeat));
                    }
                }
            }
        }
    }
}

fn of_repeat(repeat: &Repeat) -> Outcome {
    if !repeat.same_body {
        return Outcome::Mismatch;
    }
    Outcome::Answered(String::from_utf8(repeat.answer.clone()).unwrap())
}

/// Checks that each operation that was answered has one leaf in all logs, and that its answers name it.
fn check_answers(nodes: &[Node], answers: &[(String, Answer)]) {
    let mut found = BTreeMap::new();
    for node in nodes {
        for (index, leaf) in leaves(&node.log).into_iter().enumerate() {
            let (id, _) = leaf.rsplit_once(' ').unwrap();
            let place = format!("{}/{index}", node.name);
            let twice = found.insert(id.to_owned(), place);
            assert_eq!(twice, None, "{id} has two leaves");
        }
    }
    for (id, answer) in answers {
        assert_eq!(found.get(id), Some(answer), "{id}");
    }
}

pub fn rules<R: Rig>() -> Vec<Rule<R>>
where
    R::Store: 'static,
{
    vec![
        (
            "what was done before leaves the batch",
            what_was_done_before_leaves_the_batch,
        ),
        (
            "an id at two nodes at once is done once",
            an_id_at_two_nodes_at_once_is_done_once,
        ),
        (
            "a log under a guard is decided again",
            a_log_under_a_guard_is_decided_again,
        ),
    ]
}

fn what_was_done_before_leaves_the_batch<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    rig.set_version(1);
    let mut nodes = [Node::new(rig, "leaves a"), Node::new(rig, "leaves b")];
    let done = nodes[0].perform(1, &[operation("leaves 2", 2), operation("leaves 4", 4)]);
    assert_eq!(
        done.unwrap(),
        ["leaves a/0", "leaves a/1"].map(|a| Outcome::Answered(a.into()))
    );
    let batch = [
        operation("leaves 1", 1),
        operation("leaves 2", 2),
        operation("leaves 3", 3),
        operation("leaves 4", 9),
    ];
    let done = nodes[1].perform(1, &batch).unwrap();
    let expected = ["leaves b/0", "leaves a/0", "leaves b/1"].map(|a| Outcome::Answered(a.into()));
    assert_eq!(done[..3], expected);
    assert_eq!(done[3], Outcome::Mismatch);
    // A batch of which nothing is left is no batch.
    let again = nodes[0].perform(1, &batch).unwrap();
    assert_eq!(again, done);
    assert_eq!((nodes[0].log.size(), nodes[1].log.size()), (2, 2));
}

fn an_id_at_two_nodes_at_once_is_done_once<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    const ROUNDS: u8 = 12;
    rig.set_version(1);
    let answers = Mutex::new(Vec::new());
    let nodes = ron_kernel::scoped(2, |at| {
        let mut node = Node::new(rig, &format!("once {at}"));
        for round in 0..ROUNDS {
            let batch: Vec<Operation> = (0..4)
                .map(|n| operation(&format!("once {round:02}.{n}"), n))
                .collect();
            let done = node.perform(1, &batch).unwrap();
            for (operation, outcome) in batch.into_iter().zip(done) {
                let Outcome::Answered(answer) = outcome else {
                    panic!("{operation:?}");
                };
                answers.lock().unwrap().push((operation.id, answer));
            }
        }
        node
    });
    let answers = answers.into_inner().unwrap();
    assert_eq!(answers.len(), 2 * 4 * usize::from(ROUNDS));
    check_answers(&nodes, &answers);
    let leaves: u64 = nodes.iter().map(|node| node.log.size()).sum();
    assert_eq!(leaves, 4 * u64::from(ROUNDS));
}

fn a_log_under_a_guard_is_decided_again<R: Rig>(rig: &R)
where
    R::Store: 'static,
{
    rig.set_version(5);
    let mut node = Node::new(rig, "decided");
    let batch = [operation("decided 1", 1)];
    for past in [4, 6] {
        let stale = node.perform(past, &batch);
        assert!(
            matches!(&stale, Err(EngineError::Store(StoreError::Stale))),
            "{stale:?}"
        );
    }
    let done = [Outcome::Answered("decided/0".into())];
    assert_eq!(node.perform(5, &batch).unwrap(), done);
    rig.set_version(6);
    // What was done is answered from the newest records only: an answer may be completed from them.
    let stale = node.perform(5, &batch);
    assert!(
        matches!(&stale, Err(EngineError::Store(StoreError::Stale))),
        "{stale:?}"
    );
    assert_eq!(node.perform(6, &batch).unwrap(), done);
    let stale = node.perform(5, &[operation("decided 2", 1)]);
    assert!(
        matches!(&stale, Err(EngineError::Store(StoreError::Stale))),
        "{stale:?}"
    );
    assert_eq!(node.log.size(), 1);
    assert!(node.log.epoch().is_some(), "it still holds its log");
    assert!(
        node.disk
            .peek(&crate::log::dir().join("00000000.seg"))
            .is_some()
    );
}

#[cfg(test)]
mod tests {
    use ron_kernel::SeededRandom;

    use super::*;
    use crate::memory::{Defect, FAULTS, MemoryEngine, below};

    #[test]
    fn the_rules_hold_in_memory() {
        for (rule, check) in rules() {
            println!("{rule}");
            check(&MemoryEngine::new(Defect::None));
        }
    }

    /// Operations that clients send again, to any node, until they have an answer, with every outcome of an append by chance and
    /// primaries that are lost.
    fn nodes_under_faults(seed: u64) -> usize {
        let engine = MemoryEngine::new(Defect::None);
        engine.set_version(1);
        let random = SeededRandom::new(seed);
        let below = |n: u8| below(&random, n);
        let mut nodes = ["a", "b", "c"].map(|name| Node::new(&engine, name));
        let (mut version, mut answers) = (1, Vec::new());
        for n in 0..60 {
            // Few ids, so that most are sent again.
            let mut batch: Vec<Operation> = (0..=below(3))
                .map(|_| {
                    let id = n / 4 * 4 + below(4);
                    operation(&format!("{id:03}"), id)
                })
                .collect();
            batch.sort_by(|one, other| one.id.cmp(&other.id));
            batch.dedup_by(|one, other| one.id == other.id);
            if below(6) == 0 && !engine.has_faults() {
                version += 1;
                engine.set_version(version);
            }
            if below(6) == 0 {
                engine.fail_over();
            }
            if below(2) == 0 {
                engine.fail_next(FAULTS[usize::from(below(5))]);
            }
            let node = &mut nodes[usize::from(below(3))];
            let under = version - u64::from(below(4) == 0);
            match node.perform(under, &batch) {
                Ok(outcomes) => {
                    for (operation, outcome) in batch.into_iter().zip(outcomes) {
                        let Outcome::Answered(answer) = outcome else {
                            panic!("seed {seed}: {operation:?}");
                        };
                        answers.push((operation.id, answer));
                    }
                }
                Err(EngineError::Store(StoreError::Refused(_))) => {}
                Err(EngineError::Store(StoreError::Stale)) => assert!(under < version),
                // The client gets no answer, and sends it again.
                Err(EngineError::Store(StoreError::Unknown(_))) => {
                    while let Err(error) = node.log.resolve(soon()) {
                        let EngineError::Store(StoreError::Unknown(_) | StoreError::Refused(_)) =
                            error
                        else {
                            panic!("seed {seed}: {error:?}");
                        };
                        if below(3) == 0 {
                            engine.fail_next(FAULTS[usize::from(below(5))]);
                        }
                    }
                }
                Err(error) => panic!("seed {seed}: {error:?}"),
            }
        }
        engine.fail_over();
        check_answers(&nodes, &answers);
        answers.len()
    }

    #[test]
    fn operations_are_done_once_under_faults() {
        let answered: usize = (0..300).map(nodes_under_faults).sum();
        println!("{answered} answers");
        assert!(answered > 10_000, "{answered}");
    }
}
