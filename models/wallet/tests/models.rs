//! Models of the wallet's protocols: loom runs every interleaving of a few threads, shuttle samples those of more
//! (`cargo xtask loom`). Each names the mutants, versions that are wrong on purpose, that it must catch.
#![cfg(any(loom, shuttle))]
#![allow(missing_docs, clippy::pedantic, clippy::needless_collect)]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;

use ron_http::{ClientConfig, HttpClient, Responder, Response};
use ron_kernel::queue::bare_queue;
use ron_kernel::{
    KernelMetrics, Receiver, Registry, Sender, Shutdown, ShutdownTrigger, Supervisor, SystemClock,
    ThreadCtx, Topology,
};
use ron_proto::ledger::Entry;
use ron_proto::{Account, Amount, Problem};
use ron_service::ReadyBoard;
use svc_wallet_models::audit::{Audit, Line};
use svc_wallet_models::balances::Balances;
use svc_wallet_models::commit::{CommitJob, Committer, Lanes};
use svc_wallet_models::flights::{Entered, FlightKey, Flights, Waiter};
use svc_wallet_models::metrics::Metrics;
use svc_wallet_models::pins::{Note, Pinned};
use svc_wallet_models::render::{self, Shape};
use svc_wallet_models::topology::{AUDIT_QUEUE, PIN_QUEUE, WORK_QUEUE};
use svc_wallet_models::upstream::{Fate, SharedUpstream, Upstream};
use svc_wallet_models::watch::Watch;

type Answer = ron_kernel_real::ReplyWaiter<Response>;

/// What is outside the models: made once.
struct Outside {
    km: KernelMetrics,
    metrics: Metrics,
    http: Arc<HttpClient>,
    ready: ReadyBoard,
}

fn outside() -> &'static Outside {
    static MADE: OnceLock<Outside> = OnceLock::new();
    MADE.get_or_init(|| {
        let registry = Registry::new("m");
        Outside {
            km: KernelMetrics::new(&registry),
            metrics: Metrics::new(&registry),
            http: Arc::new(HttpClient::new(ClientConfig::default())),
            ready: ReadyBoard::new(&ron_kernel_real::Registry::new("m")),
        }
    })
}

static TOPOLOGY: Topology = Topology {
    service: "model",
    threads: &[],
    queues: &[],
    locks: &[],
};

/// The wallet without its edges.
struct Wallet {
    flights: Arc<Flights>,
    pinned: Arc<Pinned>,
    balances: Arc<Balances>,
    upstream: SharedUpstream,
    audit: Audit,
    lanes: Lanes,
    receivers: Vec<Receiver<CommitJob>>,
    stop: (ShutdownTrigger, Shutdown),
    _lines: Receiver<Line>,
}

impl Wallet {
    fn new(committers: usize, fates: &[Fate]) -> Arc<Self> {
        outside();
        let lanes = (0..committers).map(|_| bare_queue(&WORK_QUEUE, 8));
        let (senders, receivers): (Vec<Sender<CommitJob>>, Vec<_>) = lanes.unzip();
        let (lines, lines_rx) = bare_queue(&AUDIT_QUEUE, 64);
        // Nobody writes pins down: the callers are told at once.
        let (notes, _) = bare_queue::<Note>(&PIN_QUEUE, 1);
        let upstream = Upstream::new(fates);
        upstream.client.put(&[Entry::Issue {
            principal: "bank".parse().unwrap(),
            key: "first".parse().unwrap(),
            to: "a".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(100),
            memo: None,
            reference: None,
            daily_ceiling: None,
        }]);
        Arc::new(Self {
            flights: Arc::new(Flights::default()),
            pinned: Arc::new(Pinned::new(Default::default(), notes)),
            balances: Arc::new(Balances::new(8)),
            upstream,
            audit: Audit::new(lines, SystemClock::shared()),
            lanes: Lanes::new(senders),
            receivers,
            stop: Shutdown::pair(),
            _lines: lines_rx,
        })
    }

    fn ctx(&self, index: usize) -> ThreadCtx {
        ThreadCtx {
            shutdown: self.stop.1.clone(),
            index,
            name: String::new(),
        }
    }

    /// Runs the committer of a lane, until the wallet is stopped.
    fn committer(&self, index: usize) -> thread::JoinHandle<()> {
        let o = outside();
        let committer = Committer {
            upstream: self.upstream.clone(),
            flights: self.flights.clone(),
            pinned: self.pinned.clone(),
            balances: self.balances.clone(),
            audit: self.audit.clone(),
            clock: SystemClock::shared(),
            metrics: o.metrics.clone(),
        };
        let (ctx, lane) = (self.ctx(index), self.receivers[index].clone());
        thread::spawn(move || committer.run(&ctx, &lane))
    }

    /// Runs the watch: it looks once, then waits until the wallet is stopped.
    fn watch(&self) -> thread::JoinHandle<()> {
        let o = outside();
        let watch = Watch {
            upstream: self.upstream.clone(),
            flights: self.flights.clone(),
            pinned: self.pinned.clone(),
            ready: o.ready.clone(),
            clock: SystemClock::shared(),
            metrics: o.metrics.clone(),
            sup: Supervisor::new(&TOPOLOGY, o.km.clone(), SystemClock::shared()),
            feed_http: o.http.clone(),
        };
        let ctx = self.ctx(0);
        thread::spawn(move || watch.run(&ctx))
    }

    /// What a handler does with a write that policy allows (api/submit.rs).
    fn send(&self, key: &str, nonce: u64, n: u128, within: Duration) -> Answer {
        let key: FlightKey = ("p".parse().unwrap(), key.parse().unwrap());
        let from: Account = "a".parse().unwrap();
        let entries: Arc<[Entry]> = Arc::new([Entry::Transfer {
            principal: key.0.clone(),
            key: key.1.clone(),
            from: from.clone(),
            to: "b".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(n),
            nonce,
            memo: None,
            reference: None,
            daily_ceiling: None,
        }]);
        let (responder, answer) = Responder::detached(ron_kernel_real::Deadline::within(within));
        let waiter = Waiter {
            since: responder.deadline().at(),
            responder,
            reads_account: true,
            op: "transfer",
        };
        match self.flights.enter(&key, &entries, waiter) {
            Entered::Follows => {}
            Entered::Differs(waiter) => waiter.responder.send(render::mismatch()),
            Entered::Leads => {
                let job = CommitJob {
                    key: key.clone(),
                    entries,
                    shape: Shape::One,
                    op: "transfer",
                };
                if self.lanes.put(&from, job).is_err() {
                    for landed in self.flights.land(&[&key]) {
                        for waiter in landed.leader.into_iter().chain(landed.followers) {
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

    fn pinned(&self, key: &str) -> bool {
        self.pinned
            .holds(&"p".parse().unwrap(), &key.parse().unwrap())
    }
}

const LONG: Duration = Duration::from_secs(36_000);

/// A size for loom and one for shuttle.
const fn size(loom: usize, shuttle: usize) -> usize {
    if cfg!(loom) { loom } else { shuttle }
}

/// What was answered so far; the one look there is.
fn told(answer: Answer) -> Option<Response> {
    let now = ron_kernel_real::Deadline::within(Duration::ZERO);
    answer.wait(now).ok()
}

/// What was answered; after everything has ended, nothing is too little.
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

/// The same request from several callers at once is one entry of the ledger and the same bytes for all; another
/// request under the key is refused, whoever came first. Mutants `flight`, `land`.
#[test]
fn one_key_is_one_commit_and_all_who_wait_are_told() {
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
        // Late, and another request: refused by the table, or by the ledger.
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

/// Debits of one account, queued in order, reach the ledger in order, with more than one committer. Mutant `lane`.
#[test]
fn debits_of_one_account_keep_their_order() {
    explore(|| {
        let w = Wallet::new(2, &[]);
        let committers = vec![w.committer(0), w.committer(1)];
        // Keys of different lengths: what the mutant goes by.
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

/// One nonce under several keys has one winner; the others learn the next.
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

/// A waiter whose time is over is told what is true: 503 only when nothing was or will be done, else 504 with a pin;
/// who waits longer has the answer all the same. Mutant `sent`.
#[test]
fn late_waiters_are_told_the_truth_and_leave_once() {
    for follower in [false, true] {
        explore(move || {
            let w = Wallet::new(1, &[]);
            let first = w.send("k", 1, 5, Duration::ZERO);
            let threads = vec![w.committer(0), w.watch()];
            let second = follower.then(|| w.send("k", 1, 5, LONG));
            w.stop();
            join(threads);
            let done = w.times_done("k");
            // The watch looks at least once; who comes after it is answered by the committer.
            match said(first).status {
                200 => assert_eq!(done, 1),
                503 => assert_eq!(done, usize::from(follower), "told that nothing was done"),
                // The committer's answer releases what the watch pinned, or comes to nothing.
                504 => assert_eq!(done, 1),
                other => panic!("{other}"),
            }
            assert!(second.is_none_or(|a| said(a).status == 200));
        });
    }
}

/// Whatever happens to the call, the caller is told done, nothing done, or unknown; when it is told unknown, the key
/// is pinned already; sent again it is done once. Mutant `pin`.
#[test]
fn an_unknown_outcome_is_pinned_before_it_is_told() {
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
            // A moment in between, for the checker to choose.
            w.pinned("elsewhere");
            if told(first).is_some_and(|r| r.status == 504) {
                assert!(w.pinned("k"), "told to ask, and nothing is known");
            }
            w.stop();
            join(vec![committer]);
            let (done, pinned) = (w.times_done("k"), w.pinned("k"));
            match fate {
                Fate::Well => assert_eq!((done, pinned), (1, false)),
                Fate::NotDone => assert_eq!((done, pinned), (0, false)),
                Fate::AnswerLost => assert_eq!((done, pinned), (1, true)),
                Fate::RequestLost => assert_eq!((done, pinned), (0, true)),
            }
            // Again, to a committer that comes after a restart.
            let again = w.send("k", 1, 5, LONG);
            let committer = w.committer(0);
            join(vec![committer]);
            assert_eq!((said(again).status, w.times_done("k")), (200, 1));
            assert!(!w.pinned("k"));
        });
    }
}

/// A balance that is served as fresh has in it every change that was told before. Mutant `balance`.
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
                    // From now on nothing older may be served as fresh.
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
        principal: "bank".parse().unwrap(),
        key: format!("more{i}").parse().unwrap(),
        to: "a".parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(1),
        memo: None,
        reference: None,
        daily_ceiling: None,
    }
}

/// What was queued when the drain begins is committed and answered. Mutant `leave`.
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
