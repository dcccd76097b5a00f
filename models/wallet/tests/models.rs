//! Models of the wallet's protocols: loom runs every interleaving of a few threads, shuttle samples
//! those of more (`cargo xtask loom`). Each names the mutants, deliberately faulty versions, that it
//! must catch.
#![cfg(any(loom, shuttle))]
#![allow(missing_docs, clippy::pedantic, clippy::needless_collect)]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;

use ron_http::{ClientConfig, HttpClient, JointCalls, Responder, Response};
use ron_kernel::queue::bare_queue;
use ron_kernel::{
    Deadline, KernelMetrics, Receiver, Registry, ReplyWaiter, Sender, Shutdown, ShutdownTrigger,
    Supervisor, SystemClock, ThreadCtx, Topology,
};
use ron_proto::ledger::{Details, Entry, RequestKey};
use ron_proto::{Account, Amount, Problem};
use ron_service::ReadyBoard;
use svc_wallet_models::audit::{Audit, Line};
use svc_wallet_models::balances::{Balances, MaxAge};
use svc_wallet_models::commit::{CommitJob, CommitQueues, Committer};
use svc_wallet_models::inflight::{Admission, InFlightTable, Waiter};
use svc_wallet_models::metrics::Metrics;
use svc_wallet_models::own::{OwnEntries, OwnWrites, own_writes};
use svc_wallet_models::render::{self, Shape};
use svc_wallet_models::topology::{AUDIT_QUEUE, OWN_QUEUE, UNRESOLVED_QUEUE, WORK_QUEUE};
use svc_wallet_models::unresolved::{Change, UnresolvedKeys};
use svc_wallet_models::upstream::{Fate, SharedUpstream, Upstream};
use svc_wallet_models::watch::Watch;

type Answer = ReplyWaiter<Response>;

const MAX_AGE: MaxAge = MaxAge {
    fresh: Duration::from_millis(250),
    stale: Duration::from_secs(30),
};

/// The parts outside the models, made once.
struct Outside {
    km: KernelMetrics,
    metrics: Metrics,
}

fn outside() -> &'static Outside {
    static MADE: OnceLock<Outside> = OnceLock::new();
    MADE.get_or_init(|| {
        let registry = Registry::new("m");
        Outside {
            km: KernelMetrics::new(&registry),
            metrics: Metrics::new(&registry),
        }
    })
}

static TOPOLOGY: Topology = Topology {
    service: "model",
    threads: &[],
    queues: &[],
    locks: &[],
};

/// The wallet without HTTP, files and the real ledger.
struct Wallet {
    in_flight: Arc<InFlightTable>,
    unresolved: Arc<UnresolvedKeys>,
    balances: Arc<Balances>,
    upstream: SharedUpstream,
    own: OwnWrites,
    audit: Audit,
    queues: CommitQueues,
    receivers: Vec<Receiver<CommitJob>>,
    stop: (ShutdownTrigger, Shutdown),
    _lines: Receiver<Line>,
    _own: OwnEntries,
}

impl Wallet {
    fn new(committers: usize, fates: &[Fate]) -> Arc<Self> {
        outside();
        let queues = (0..committers).map(|_| bare_queue(&WORK_QUEUE, 8));
        let (senders, receivers): (Vec<Sender<CommitJob>>, Vec<_>) = queues.unzip();
        let (lines, lines_rx) = bare_queue(&AUDIT_QUEUE, 64);
        let (own, own_entries) = own_writes(bare_queue(&OWN_QUEUE, 8));
        // No thread writes unresolved keys to a file: callers are answered at once.
        let (notes, _) = bare_queue::<Change>(&UNRESOLVED_QUEUE, 1);
        let count = Registry::new("m").gauge("unresolved_keys", "Keys.");
        let upstream = Upstream::new(fates);
        upstream.client.put(&[Entry::Issue {
            tenant: "t".parse().unwrap(),
            principal: "bank".parse().unwrap(),
            key: "first".parse().unwrap(),
            to: "a".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(100),
            details: Details::default(),
            batch: None,
            budgets: Vec::new(),
        }]);
        Arc::new(Self {
            in_flight: Arc::new(InFlightTable::default()),
            unresolved: Arc::new(UnresolvedKeys::new(Default::default(), notes, count)),
            balances: Arc::new(Balances::new(8, MAX_AGE)),
            upstream,
            own,
            audit: Audit::new(lines, SystemClock::shared()),
            queues: CommitQueues::new(senders),
            receivers,
            stop: Shutdown::pair(),
            _lines: lines_rx,
            _own: own_entries,
        })
    }

    fn ctx(&self, index: usize) -> ThreadCtx {
        ThreadCtx {
            shutdown: self.stop.1.clone(),
            index,
            name: String::new(),
        }
    }

    /// Runs the committer of a shard, until the wallet is stopped.
    fn committer(&self, index: usize) -> thread::JoinHandle<()> {
        let o = outside();
        let committer = Committer {
            upstream: self.upstream.clone(),
            in_flight: self.in_flight.clone(),
            unresolved: self.unresolved.clone(),
            balances: self.balances.clone(),
            own: self.own.clone(),
            audit: self.audit.clone(),
            calls: JointCalls::default(),
            clock: SystemClock::shared(),
            metrics: o.metrics.clone(),
        };
        let (ctx, jobs) = (self.ctx(index), self.receivers[index].clone());
        thread::spawn(move || committer.run(&ctx, &jobs))
    }

    /// Runs the watch: it checks once, then waits until the wallet is stopped.
    fn watch(&self) -> thread::JoinHandle<()> {
        let o = outside();
        let watch = Watch {
            upstream: self.upstream.clone(),
            in_flight: self.in_flight.clone(),
            unresolved: self.unresolved.clone(),
            ready: ReadyBoard::new(&Registry::new("m")),
            clock: SystemClock::shared(),
            metrics: o.metrics.clone(),
            sup: Supervisor::new(&TOPOLOGY, o.km.clone(), SystemClock::shared()),
            followers: [0, 1].map(|_| Arc::new(HttpClient::new(ClientConfig::default()))),
        };
        let ctx = self.ctx(0);
        thread::spawn(move || watch.run(&ctx))
    }

    /// The steps of a handler for a write that the policy allows (api/submit.rs).
    fn send(&self, key: &str, nonce: u64, n: u128, within: Duration) -> Answer {
        let key = request_key(key);
        let from: Account = "a".parse().unwrap();
        let entries: Arc<[Entry]> = Arc::new([Entry::Transfer {
            tenant: key.tenant.clone(),
            principal: key.principal.clone(),
            key: key.key.clone(),
            from: from.clone(),
            to: "b".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(n),
            up_to: None,
            nonce: Some(nonce),
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        }]);
        let (responder, answer) = Responder::detached(Deadline::within(within));
        let waiter = Waiter {
            since: responder.deadline().at(),
            responder,
            reads_account: true,
            op: "transfer",
        };
        match self.in_flight.enter(&key, &entries, waiter) {
            Admission::Follower => {}
            Admission::Mismatch(waiter) => waiter.responder.send(render::mismatch()),
            Admission::Leader => {
                let job = CommitJob {
                    key: key.clone(),
                    entries,
                    shape: Shape::One,
                    op: "transfer",
                    trace: None,
                };
                if self.queues.put(&from, job).is_err() {
                    for finished in self.in_flight.finish(&[&key]) {
                        for waiter in finished.leader.into_iter().chain(finished.followers) {
                            waiter.responder.send(Problem::busy(1));
                        }
                    }
                }
            }
        }
        answer
    }

    fn stop(&self) {
        self.stop.0.fire();
    }

    fn times_done(&self, key: &str) -> usize {
        self.upstream.client.times_done(&key.parse().unwrap())
    }

    fn unresolved(&self, key: &str) -> bool {
        self.unresolved.holds(&request_key(key))
    }
}

fn request_key(key: &str) -> RequestKey {
    RequestKey {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
    }
}

const LONG: Duration = Duration::from_secs(36_000);

/// A model size by checker: loom explores everything and needs small models.
const fn size(loom: usize, shuttle: usize) -> usize {
    if cfg!(loom) { loom } else { shuttle }
}

/// The answer, if there is one yet. Consumes the waiter.
fn told(answer: Answer) -> Option<Response> {
    let now = Deadline::within(Duration::ZERO);
    answer.wait(now).ok()
}

/// The answer after all threads have ended; there must be one.
fn said(answer: Answer) -> Response {
    told(answer).expect("everybody who waits is answered")
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[cfg(loom)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.max_branches = 20_000;
    builder.check(model);
}

#[cfg(shuttle)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let asked = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = asked.map_or(4_000, |n| n.parse().unwrap());
    let model = Arc::new(model);
    let again = model.clone();
    shuttle::check_random(move || model(), iterations / 2);
    shuttle::check_pct(move || again(), iterations / 2, 3);
}

/// The same request from several callers at once is one entry of the ledger and the same bytes for
/// all; another request under the key is refused, whichever came first. Mutants `in_flight`, `complete`.
#[test]
fn one_key_is_one_commit_and_every_waiter_is_answered() {
    explore(|| {
        let w = Wallet::new(1, &[]);
        let committer = w.committer(0);
        let others: Vec<_> = (0..size(1, 4))
            .map(|_| {
                let w = w.clone();
                thread::spawn(move || w.send("k", 1, 5, LONG))
            })
            .collect();
        let mine = w.send("k", 1, 5, LONG);
        let mut answers = vec![mine];
        answers.extend(others.into_iter().map(|t| t.join().unwrap()));
        // Another request under the key, sent later: refused by the table or by the ledger.
        let other = cfg!(shuttle).then(|| w.send("k", 1, 6, LONG));
        w.stop();
        join(vec![committer]);
        let replies: Vec<Response> = answers.into_iter().map(said).collect();
        for r in &replies {
            assert_eq!(r.status, 200);
            assert_eq!(r.body.as_bytes(), replies[0].body.as_bytes());
        }
        assert_eq!(w.times_done("k"), 1);
        let replays = replies
            .iter()
            .filter(|r| r.get("idempotency-replayed").is_some());
        assert_eq!(replays.count(), replies.len() - 1);
        assert!(other.is_none_or(|a| said(a).status == 422));
    });
}

/// Debits of one account, queued in order, reach the ledger in order, with more than one committer.
/// Mutant `shard`.
#[test]
fn debits_of_one_account_keep_their_order() {
    explore(|| {
        let w = Wallet::new(2, &[]);
        let committers = vec![w.committer(0), w.committer(1)];
        // Keys of different lengths: the mutant selects the shard by the length.
        let keys: Vec<String> = (1..=size(2, 5)).map(|n| "k".repeat(n)).collect();
        let answers: Vec<Answer> = keys
            .iter()
            .enumerate()
            .map(|(i, k)| w.send(k, i as u64 + 1, 1, LONG))
            .collect();
        w.stop();
        join(committers);
        for (key, answer) in keys.iter().zip(answers) {
            assert_eq!(said(answer).status, 200, "{key}");
        }
    });
}

/// One nonce under several keys has one winner; the others get the next nonce in a 409.
#[test]
fn one_nonce_has_one_winner() {
    explore(|| {
        let w = Wallet::new(1, &[]);
        let committer = w.committer(0);
        let others: Vec<_> = (0..size(1, 4))
            .map(|i| {
                let w = w.clone();
                thread::spawn(move || w.send(&format!("k{i}"), 1, 5, LONG))
            })
            .collect();
        let mut answers = vec![w.send("mine", 1, 5, LONG)];
        answers.extend(others.into_iter().map(|t| t.join().unwrap()));
        w.stop();
        join(vec![committer]);
        let statuses: Vec<u16> = answers.into_iter().map(|a| said(a).status).collect();
        let won = statuses.iter().filter(|s| **s == 200).count();
        assert_eq!(won, 1, "{statuses:?}");
        assert!(statuses.iter().all(|s| [200, 409].contains(s)));
    });
}

/// A waiter whose deadline has passed gets a true answer: 503 only when nothing was or will be
/// done, else 504 with an unresolved key; a waiter with a later deadline still gets the result.
/// Mutant `sent`.
#[test]
fn late_waiters_get_a_true_answer_once() {
    for follower in [false, true] {
        explore(move || {
            let w = Wallet::new(1, &[]);
            let first = w.send("k", 1, 5, Duration::ZERO);
            let threads = vec![w.committer(0), w.watch()];
            let second = follower.then(|| w.send("k", 1, 5, LONG));
            w.stop();
            join(threads);
            let done = w.times_done("k");
            // The watch checks at least once; the committer answers the waiters that come after
            // that.
            match said(first).status {
                200 => assert_eq!(done, 1),
                503 => assert_eq!(done, usize::from(follower), "told that nothing was done"),
                // The committer's result resolves the key that the watch left unresolved, or is
                // discarded.
                504 => assert_eq!(done, 1),
                other => panic!("{other}"),
            }
            assert!(second.is_none_or(|a| said(a).status == 200));
        });
    }
}

/// For every result of the call, the caller gets done, not done, or unknown; when it gets unknown,
/// the key is recorded as unresolved already; a retry is done once. Mutant `unresolved`.
#[test]
fn an_unknown_outcome_is_recorded_before_it_is_answered() {
    for fate in [
        Fate::Well,
        Fate::NotDone,
        Fate::AnswerLost,
        Fate::RequestLost,
    ] {
        explore(move || {
            let w = Wallet::new(1, &[fate]);
            let committer = w.committer(0);
            let first = w.send("k", 1, 5, LONG);
            // A scheduling point for the checker.
            w.unresolved("elsewhere");
            if told(first).is_some_and(|r| r.status == 504) {
                assert!(w.unresolved("k"), "told to ask, and nothing is known");
            }
            w.stop();
            join(vec![committer]);
            let (done, unresolved) = (w.times_done("k"), w.unresolved("k"));
            match fate {
                Fate::Well => assert_eq!((done, unresolved), (1, false)),
                Fate::NotDone => assert_eq!((done, unresolved), (0, false)),
                Fate::AnswerLost => assert_eq!((done, unresolved), (1, true)),
                Fate::RequestLost => assert_eq!((done, unresolved), (0, true)),
            }
            // The retry, to a committer that starts after a restart.
            let again = w.send("k", 1, 5, LONG);
            let committer = w.committer(0);
            join(vec![committer]);
            assert_eq!((said(again).status, w.times_done("k")), (200, 1));
            assert!(!w.unresolved("k"));
        });
    }
}

/// A balance that is served as fresh contains every change that was reported before. Mutant
/// `balance`.
#[test]
fn a_balance_never_looks_younger_than_it_is() {
    explore(|| {
        let w = Wallet::new(1, &[]);
        let a: Account = "a".parse().unwrap();
        let asked = Instant::now();
        let changes: Vec<_> = (0..size(1, 3))
            .map(|i| {
                let (w, a) = (w.clone(), a.clone());
                thread::spawn(move || {
                    let put = w.upstream.client.put(&[issue_more(i)]);
                    let seq = put[0].receipt().unwrap().seq;
                    w.balances.changed([&a], seq);
                    // From now on no older balance may be served as fresh.
                    let fresh = w.balances.fresh(&a, asked);
                    assert!(fresh.is_none_or(|f| f.doc.seq >= seq), "stale");
                })
            })
            .collect();
        let readers: Vec<_> = (0..size(1, 3))
            .map(|_| {
                let (w, a) = (w.clone(), a.clone());
                thread::spawn(move || {
                    let doc = Arc::new(w.upstream.client.account(&a));
                    w.balances.keep(doc, asked);
                })
            })
            .collect();
        join(changes);
        join(readers);
        let last = w.upstream.client.account(&a).seq;
        let fresh = w.balances.fresh(&a, asked);
        assert!(fresh.is_none_or(|f| f.doc.seq == last), "stale at the end");
    });
}

fn issue_more(i: usize) -> Entry {
    Entry::Issue {
        tenant: "t".parse().unwrap(),
        principal: "bank".parse().unwrap(),
        key: format!("more{i}").parse().unwrap(),
        to: "a".parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(1),
        details: Details::default(),
        batch: None,
        budgets: Vec::new(),
    }
}

/// Requests that were queued when the drain begins are committed and answered. Mutant `leave`.
#[test]
fn a_drain_answers_everything_that_was_taken_in() {
    explore(|| {
        let w = Wallet::new(1, &[]);
        let committer = w.committer(0);
        let answers: Vec<Answer> = (1..=size(2, 6))
            .map(|n| w.send(&format!("k{n}"), n as u64, 1, LONG))
            .collect();
        w.stop();
        join(vec![committer]);
        for answer in answers {
            assert_eq!(said(answer).status, 200);
        }
    });
}
