//! The protocol of a log in an engine, without its code: every order of the steps of two nodes, of the engine, and of what breaks
//! between them, explored by stateright. `crates/ron-tlog/src/store.rs` is the contract that it abstracts from.
//!
//! The engine is a primary with a journal and a standby that has the first part of it. A commit waits for the standby and
//! is invisible meanwhile; a primary that restarts shows it all the same. Requests that a node has given up may arrive later. A root is
//! the list of the entries that it stands for.
//!
//! Not in the model: ids of clients (`Once`), shared writers, partitions of tables, and beats: who claims when is any order here.

use stateright::{Checker, Model, Property};

/// What is wrong with the protocol. The checker must find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// An append does not compare the epoch.
    AnyEpoch,
    /// An append does not compare the root before it.
    AnyRoot,
    /// A commit is answered before the standby has it.
    NoWait,
    /// A cancelled wait counts as done.
    NoticeIsDone,
    /// A time-out counts as done.
    TimeOutIsDone,
    /// A time-out counts as refused.
    TimeOutIsRefused,
    /// An append without a known outcome is sent again.
    SentAgain,
    /// An unknown append is looked for in what the engine shows, without a claim.
    ResolvedByReading,
    /// A claim does not compare the epoch.
    AnyClaim,
    /// The head of a claim is what was read before it.
    ReadBeforeClaim,
    /// What a standby reads is served at once.
    ServedAtOnce,
    /// A claim does not compare the witness.
    NoWitness,
    /// A claim does not compare the node's own copy.
    NoCopy,
    /// A checkpoint is signed without a look at the engine's head.
    SignedBlindly,
}

const MUTANTS: [Mutant; 14] = [
    Mutant::AnyEpoch,
    Mutant::AnyRoot,
    Mutant::NoWait,
    Mutant::NoticeIsDone,
    Mutant::TimeOutIsDone,
    Mutant::TimeOutIsRefused,
    Mutant::SentAgain,
    Mutant::ResolvedByReading,
    Mutant::AnyClaim,
    Mutant::ReadBeforeClaim,
    Mutant::ServedAtOnce,
    Mutant::NoWitness,
    Mutant::NoCopy,
    Mutant::SignedBlindly,
];

type Log = Vec<u8>;

/// A record of the engine's journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Op {
    Claim { holder: u8 },
    Append { entry: u8 },
    Message,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Request {
    Append {
        epoch: u8,
        before: Log,
        entry: u8,
    },
    /// `read` is what the engine showed when the claim was sent.
    Claim {
        seen: u8,
        read: Log,
    },
    Confirm,
}

/// A log as a part of the journal makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Head {
    log: Log,
    epoch: u8,
    holder: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Engine {
    journal: Vec<Op>,
    /// Records that the standby has.
    replicated: usize,
    /// Records that the primary shows.
    visible: usize,
    /// The last record waits for the standby, with its request and the node that still waits for the answer.
    waiting: Option<(Request, Option<u8>)>,
}

impl Engine {
    fn head(&self, records: usize) -> Head {
        let mut head = Head::default();
        for op in &self.journal[..records] {
            match op {
                Op::Claim { holder } => {
                    head.epoch += 1;
                    head.holder = *holder;
                }
                Op::Append { entry } => head.log.push(*entry),
                Op::Message => {}
            }
        }
        head
    }
    fn shown(&self) -> Head {
        self.head(self.visible)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// Final entries: what it serves.
    copy: Log,
    /// The epoch under which it writes.
    epoch: Option<u8>,
    /// Sent and not answered.
    request: Option<Request>,
    /// An append without a known outcome.
    pending: Option<u8>,
    /// A claim of this epoch was sent and has no known outcome.
    claiming: Option<u8>,
    /// Read and not confirmed.
    provisional: Option<Log>,
    /// It has seen that the engine lost data.
    alarm: bool,
}

/// What a client knows of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    New,
    Sent,
    Done,
    Refused,
    /// The node that had it was fenced: the new holder's log says.
    Left,
}

/// Failures that may still come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Budget {
    time_outs: u8,
    fail_overs: u8,
    restarts: u8,
    cancels: u8,
    losses: u8,
    claims: u8,
    reads: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    engine: Engine,
    nodes: [Node; 2],
    /// Requests that a node has given up and that may still arrive.
    late: Vec<(u8, Request)>,
    outcomes: Vec<Outcome>,
    /// The newest head that the witness has cosigned.
    witness: Log,
    budget: Budget,
    /// The engine has lost what it had acknowledged: an operator's mistake, which the protocol only has to notice.
    lost: bool,
    broken: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Append(u8),
    SendAgain(u8),
    Claim(u8),
    Resolve(u8),
    Read(u8),
    Sign(u8),
    /// The request of a node, or the n-th late one, reaches the engine.
    Arrive(u8),
    ArriveLate(u8),
    Replicate,
    TimeOut(u8),
    /// The wait for the standby is cancelled at the primary: the answer comes with a notice.
    Cancel,
    Restart,
    FailOver,
    LoseData,
}

struct Protocol {
    mutant: Mutant,
    entries: u8,
    budget: Budget,
}

fn extends(log: &Log, earlier: &Log) -> bool {
    log.starts_with(earlier)
}

impl World {
    fn done(&mut self, node: u8, entry: u8) {
        let node = &mut self.nodes[usize::from(node)];
        (node.request, node.pending) = (None, None);
        node.copy.push(entry);
        if !extends(&node.copy, &self.witness) {
            self.broken = Some("an entry is acknowledged beside what the witness has");
        }
        if self.engine.head(self.engine.journal.len()).log != node.copy {
            self.broken = Some("an entry is acknowledged in a log without the ones before it");
        }
        self.outcomes[usize::from(entry)] = Outcome::Done;
    }

    fn fenced(&mut self, at: u8, request: &Request) {
        let shown = self.engine.shown();
        let node = &mut self.nodes[usize::from(at)];
        node.request = None;
        match request {
            Request::Append { entry, .. } => {
                node.epoch = None;
                self.outcomes[usize::from(*entry)] = Outcome::Refused;
            }
            Request::Claim { .. } => {
                let earlier = node.claiming.is_some_and(|seen| shown.epoch > seen);
                if earlier && shown.holder == at {
                    return; // by its own claim, whose answer was lost: it claims from there
                }
                node.claiming = None;
                node.epoch = None;
                if let Some(entry) = node.pending.take() {
                    self.outcomes[usize::from(entry)] = Outcome::Left;
                }
            }
            Request::Confirm => {}
        }
    }

    /// A standby takes over what it has read.
    fn follow(&mut self, at: u8, read: Log) {
        let node = &mut self.nodes[usize::from(at)];
        if extends(&read, &node.copy) {
            node.copy = read;
        } else {
            node.alarm = true;
        }
    }
}

impl Protocol {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    /// A request reaches the engine; `from` is the node that waits for the answer.
    fn arrive(&self, world: &mut World, node: u8, request: Request, from: Option<u8>) {
        let engine = &mut world.engine;
        let head = engine.head(engine.journal.len());
        let op = match &request {
            Request::Append {
                epoch,
                before,
                entry,
            } => {
                let fits = (head.epoch == *epoch || self.is(Mutant::AnyEpoch))
                    && (head.log == *before || self.is(Mutant::AnyRoot));
                fits.then_some(Op::Append { entry: *entry })
            }
            Request::Claim { seen, .. } => {
                let fits = head.epoch == *seen || self.is(Mutant::AnyClaim);
                if fits && head.epoch != *seen {
                    // Nothing is lost by it, but two nodes take the log from each other without an end.
                    world.broken =
                        Some("a late claim takes the log from a holder that it has not seen");
                }
                fits.then_some(Op::Claim { holder: node })
            }
            Request::Confirm => Some(Op::Message),
        };
        match op {
            Some(op) => {
                engine.journal.push(op);
                engine.waiting = Some((request, from));
                if self.is(Mutant::NoWait) {
                    engine.visible = engine.journal.len();
                    self.answer(world);
                }
            }
            None => {
                if let Some(node) = from {
                    world.fenced(node, &request);
                }
            }
        }
    }

    /// The waiting record is answered: its client gets a plain success.
    fn answer(&self, world: &mut World) {
        let head = world.engine.head(world.engine.journal.len());
        let Some((request, Some(node))) = world.engine.waiting.take() else {
            return;
        };
        match request {
            Request::Append { entry, .. } => world.done(node, entry),
            Request::Claim { read, .. } => self.claimed(world, node, read, head),
            Request::Confirm => {
                world.nodes[usize::from(node)].request = None;
                let read = world.nodes[usize::from(node)].provisional.take();
                if let Some(read) = read {
                    world.follow(node, read);
                }
            }
        }
    }

    /// A claim is in force; `head` was read after it.
    fn claimed(&self, world: &mut World, at: u8, read: Log, mut head: Head) {
        if self.is(Mutant::ReadBeforeClaim) {
            head.log = read;
        }
        let witness = world.witness.clone();
        let node = &mut world.nodes[usize::from(at)];
        (node.request, node.claiming) = (None, None);
        let extends_witness = extends(&head.log, &witness) || self.is(Mutant::NoWitness);
        let extends_copy = extends(&head.log, &node.copy) || self.is(Mutant::NoCopy);
        if !extends_witness || !extends_copy {
            node.alarm = true;
            node.epoch = None;
            return;
        }
        if let Some(entry) = node.pending.take() {
            let place = node.copy.len();
            let done = head.log.get(place) == Some(&entry);
            world.outcomes[usize::from(entry)] = if done {
                Outcome::Done
            } else {
                Outcome::Refused
            };
        }
        if !extends(&head.log, &node.copy) {
            world.broken = Some("a node writes to a log that lacks what it has served");
        }
        node.copy = head.log;
        node.epoch = Some(head.epoch);
    }

    /// A node gives up its request, whose outcome it does not know.
    fn unknown(&self, world: &mut World, at: u8) {
        let node = &mut world.nodes[usize::from(at)];
        match node.request.take() {
            Some(Request::Append { entry, .. }) => {
                if self.is(Mutant::TimeOutIsDone) {
                    return world.done(at, entry);
                }
                if self.is(Mutant::TimeOutIsRefused) {
                    world.outcomes[usize::from(entry)] = Outcome::Refused;
                    return;
                }
                node.pending = Some(entry);
            }
            Some(Request::Claim { seen, .. }) => {
                node.claiming = Some(node.claiming.unwrap_or(seen));
            }
            Some(Request::Confirm) => node.provisional = None,
            None => {}
        }
    }

    /// The requests of all nodes are cut off from the engine, and none arrives late.
    fn cut_all(&self, world: &mut World) {
        world.late.clear();
        world.engine.waiting = None;
        for at in 0..2 {
            self.unknown(world, at);
        }
    }

    /// The epoch that a node's next claim compares.
    fn next_claim(world: &World, at: u8) -> u8 {
        let shown = world.engine.shown();
        let node = &world.nodes[usize::from(at)];
        match node.claiming {
            Some(seen) if !(shown.holder == at && shown.epoch > seen) => seen,
            _ => shown.epoch,
        }
    }

    fn of_node(&self, world: &World, at: u8, steps: &mut Vec<Step>) {
        let node = &world.nodes[usize::from(at)];
        if node.alarm {
            return;
        }
        if node.request.is_some() {
            if world.engine.waiting.is_none() {
                steps.push(Step::Arrive(at));
            }
            if world.budget.time_outs > 0 {
                steps.push(Step::TimeOut(at));
            }
            return;
        }
        let claims = world.budget.claims > 0;
        if node.pending.is_some() {
            if self.is(Mutant::SentAgain) {
                steps.push(Step::SendAgain(at));
            } else if claims || self.is(Mutant::ResolvedByReading) {
                steps.push(Step::Resolve(at));
            }
            return;
        }
        if node.epoch.is_some() && node.claiming.is_none() {
            if world.outcomes.contains(&Outcome::New) {
                steps.push(Step::Append(at));
            }
            if node.copy.len() > world.witness.len() || self.is(Mutant::SignedBlindly) {
                steps.push(Step::Sign(at));
            }
        } else {
            if claims {
                steps.push(Step::Claim(at));
            }
            if world.budget.reads > 0 && node.claiming.is_none() {
                steps.push(Step::Read(at));
            }
        }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            engine: Engine::default(),
            nodes: Default::default(),
            late: Vec::new(),
            outcomes: vec![Outcome::New; usize::from(self.entries)],
            witness: Log::new(),
            budget: self.budget.clone(),
            lost: false,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for at in 0..2 {
            self.of_node(world, at, steps);
        }
        let engine = &world.engine;
        if engine.waiting.is_none() {
            steps.extend((0..world.late.len() as u8).map(Step::ArriveLate));
        }
        if engine.replicated < engine.journal.len() {
            steps.push(Step::Replicate);
            if world.budget.fail_overs > 0 {
                steps.push(Step::FailOver);
            }
        }
        if engine.waiting.is_some() {
            if world.budget.restarts > 0 {
                steps.push(Step::Restart);
            }
            if world.budget.cancels > 0 {
                steps.push(Step::Cancel);
            }
        }
        if world.budget.losses > 0 && !engine.head(engine.replicated).log.is_empty() {
            steps.push(Step::LoseData);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut next = last.clone();
        let world = &mut next;
        match step {
            Step::Append(at) => {
                let entry = world.outcomes.iter().position(|o| *o == Outcome::New)? as u8;
                world.outcomes[usize::from(entry)] = Outcome::Sent;
                let node = &mut world.nodes[usize::from(at)];
                node.request = Some(Request::Append {
                    epoch: node.epoch?,
                    before: node.copy.clone(),
                    entry,
                });
            }
            Step::SendAgain(at) => {
                let node = &mut world.nodes[usize::from(at)];
                let entry = node.pending.take()?;
                // What a client without the protocol would do: whatever the log has now comes before.
                let shown = world.engine.shown();
                node.request = Some(Request::Append {
                    epoch: shown.epoch,
                    before: shown.log,
                    entry,
                });
            }
            Step::Claim(at) => {
                world.budget.claims -= 1;
                let seen = Self::next_claim(world, at);
                let read = world.engine.shown().log;
                world.nodes[usize::from(at)].request = Some(Request::Claim { seen, read });
            }
            Step::Resolve(at) => {
                let shown = world.engine.shown();
                let again = Self::next_claim(world, at);
                let node = &mut world.nodes[usize::from(at)];
                if self.is(Mutant::ResolvedByReading) {
                    let entry = node.pending.take()?;
                    let done = shown.log.get(node.copy.len()) == Some(&entry);
                    if done {
                        world.done(at, entry);
                    } else {
                        world.outcomes[usize::from(entry)] = Outcome::Refused;
                    }
                } else {
                    world.budget.claims -= 1;
                    let seen = match node.claiming {
                        Some(_) => again,
                        None => node.epoch?,
                    };
                    let read = shown.log;
                    node.request = Some(Request::Claim { seen, read });
                }
            }
            Step::Read(at) => {
                world.budget.reads -= 1;
                let read = world.engine.shown().log;
                if self.is(Mutant::ServedAtOnce) {
                    world.follow(at, read);
                } else {
                    let node = &mut world.nodes[usize::from(at)];
                    (node.provisional, node.request) = (Some(read), Some(Request::Confirm));
                }
            }
            Step::Sign(at) => {
                let shown = world.engine.shown();
                let node = &mut world.nodes[usize::from(at)];
                let same = (Some(shown.epoch), &shown.log) == (node.epoch, &node.copy);
                if same || self.is(Mutant::SignedBlindly) {
                    if !extends(&node.copy, &world.witness) {
                        world.broken = Some("a head is signed that does not extend the signed one");
                    }
                    if !extends(&shown.log, &node.copy) {
                        world.broken = Some("a head is signed that the engine does not have");
                    }
                    world.witness = node.copy.clone();
                } else if Some(shown.epoch) == node.epoch {
                    (node.alarm, node.epoch) = (true, None);
                } else {
                    node.epoch = None;
                }
            }
            Step::Arrive(at) => {
                let request = world.nodes[usize::from(at)].request.clone()?;
                self.arrive(world, at, request, Some(at));
            }
            Step::ArriveLate(n) => {
                let (node, request) = world.late.remove(usize::from(n));
                self.arrive(world, node, request, None);
            }
            Step::Replicate => {
                let engine = &mut world.engine;
                engine.replicated = engine.journal.len();
                engine.visible = engine.replicated;
                self.answer(world);
            }
            Step::TimeOut(at) => {
                world.budget.time_outs -= 1;
                let request = world.nodes[usize::from(at)].request.clone()?;
                match &mut world.engine.waiting {
                    // It stays at the engine, where nobody waits for its answer any more.
                    Some((_, client)) if *client == Some(at) => *client = None,
                    _ => world.late.push((at, request)),
                }
                self.unknown(world, at);
            }
            Step::Cancel => {
                world.budget.cancels -= 1;
                world.engine.visible = world.engine.journal.len();
                if self.is(Mutant::NoticeIsDone) {
                    self.answer(world);
                } else if let Some((_, Some(node))) = world.engine.waiting.take() {
                    self.unknown(world, node);
                }
            }
            Step::Restart => {
                world.budget.restarts -= 1;
                self.cut_all(world);
                world.engine.visible = world.engine.journal.len();
            }
            Step::FailOver => {
                world.budget.fail_overs -= 1;
                self.cut_all(world);
                let engine = &mut world.engine;
                engine.journal.truncate(engine.replicated);
                engine.visible = engine.replicated;
            }
            Step::LoseData => {
                world.budget.losses -= 1;
                self.cut_all(world);
                let engine = &mut world.engine;
                let newest = engine.journal[..engine.replicated]
                    .iter()
                    .rposition(|op| matches!(op, Op::Append { .. }))?;
                engine.journal.truncate(newest);
                (engine.replicated, engine.visible) = (newest, newest);
                world.lost = true;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "nothing that was signed or answered is contradicted",
                |_, w: &World| w.broken.is_none(),
            ),
            Property::always(
                "what was acknowledged is on both hosts, once",
                |_, w: &World| {
                    let log = w.engine.head(w.engine.replicated).log;
                    let of = |entry: usize| log.iter().filter(move |e| usize::from(**e) == entry);
                    w.lost
                        || w.outcomes.iter().enumerate().all(|(entry, outcome)| {
                            *outcome != Outcome::Done || of(entry).count() == 1
                        })
                },
            ),
            Property::always("what was refused never comes", |_, w: &World| {
                let log = w.engine.head(w.engine.journal.len()).log;
                w.lost
                    || w.outcomes.iter().enumerate().all(|(entry, outcome)| {
                        *outcome != Outcome::Refused || !log.contains(&(entry as u8))
                    })
            }),
            Property::always("no entry is there twice", |_, w: &World| {
                let log = w.engine.head(w.engine.journal.len()).log;
                (0..log.len()).all(|at| !log[..at].contains(&log[at]))
            }),
            Property::always("a node serves only what stays", |_, w: &World| {
                let log = w.engine.head(w.engine.replicated).log;
                w.lost || w.nodes.iter().all(|node| extends(&log, &node.copy))
            }),
            Property::always("no alarm without a loss", |_, w: &World| {
                w.lost || w.nodes.iter().all(|node| !node.alarm)
            }),
            Property::sometimes(
                "an entry is acknowledged after a takeover",
                |_, w: &World| {
                    w.engine.shown().epoch > 1 && w.outcomes.last() == Some(&Outcome::Done)
                },
            ),
            Property::sometimes("a standby serves what it has read", |_, w: &World| {
                w.nodes
                    .iter()
                    .any(|node| node.epoch.is_none() && !node.copy.is_empty())
            }),
            Property::sometimes("an unknown append is refused in the end", |_, w: &World| {
                w.budget.time_outs == 0 && w.outcomes.contains(&Outcome::Refused)
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::{DiscoveryClassification, HasDiscoveries};

    use super::*;

    fn failures() -> Budget {
        Budget {
            time_outs: 2,
            fail_overs: 1,
            restarts: 1,
            cancels: 1,
            losses: 0,
            claims: 3,
            reads: 1,
        }
    }

    fn losses() -> Budget {
        Budget {
            time_outs: 0,
            fail_overs: 0,
            restarts: 0,
            cancels: 0,
            losses: 1,
            claims: 4,
            reads: 1,
        }
    }

    /// Number of states, and the first property that does not hold with the steps that lead there.
    fn explore(mutant: Mutant, entries: u8, budget: Budget) -> (usize, Option<String>) {
        let protocol = Protocol {
            mutant,
            entries,
            budget,
        };
        let checker = protocol.checker().threads(2);
        let checker = checker.finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.spawn_bfs().join();
        let mut wrong = checker.discoveries().into_iter().filter(|(name, _)| {
            let kind = checker.discovery_classification(name);
            matches!(kind, DiscoveryClassification::Counterexample)
        });
        let wrong = wrong.next();
        let wrong = wrong.map(|(name, path)| format!("{name}: {:?}", path.into_actions()));
        (checker.unique_state_count(), wrong)
    }

    #[test]
    fn every_order_keeps_the_protocol() {
        let protocol = Protocol {
            mutant: Mutant::None,
            entries: 2,
            budget: failures(),
        };
        let checker = protocol.checker().threads(2).spawn_bfs().join();
        println!("failures: {} states", checker.unique_state_count());
        // Also that what the model is about is reached.
        checker.assert_properties();
        let (states, wrong) = explore(Mutant::None, 3, losses());
        println!("losses: {states} states");
        assert_eq!(wrong, None);
    }

    #[test]
    fn every_mutant_is_found() {
        for mutant in MUTANTS {
            let found = [(2, failures()), (3, losses())]
                .into_iter()
                .find_map(|(entries, budget)| explore(mutant, entries, budget).1);
            let found = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
            println!("{mutant:?}: {found}");
        }
    }
}
