//! Compute workers are killed under load: half of them, then all but one, then the last.

#![allow(clippy::disallowed_methods)] // the tests' own threads

mod support;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_client::ClientError;
use ron_kernel::net::{Address, SharedConnection, SharedListener, SharedPoller};
use ron_kernel::{Clock, Net, OsNet, PlaneState, SharedClock, SharedNet};
use ron_proto::rewarder::{ComputeRequest, EpochRun, RunState};
use ron_proto::values::ContentId;
use ron_service::Running;
use serde_json::{Value, json};
use support::{Caller, by, end, policy, start_on, start_with};

const WORKERS: u32 = 4;
/// Restarts of a row in a minute.
const BUDGET: u32 = 10;

/// The machine's sockets, but a compute worker that connects panics. It connects only to fetch a snapshot.
#[derive(Debug)]
struct FailingNet(SharedNet);

impl Net for FailingNet {
    fn bind(&self, address: &Address) -> io::Result<SharedListener> {
        self.0.bind(address)
    }

    fn connect(&self, address: &Address, limit: Option<Duration>) -> io::Result<SharedConnection> {
        let thread = std::thread::current();
        let worker = thread.name().is_some_and(|n| n.starts_with("rew-work-"));
        assert!(!worker, "killed by the test");
        self.0.connect(address, limit)
    }

    fn poller(&self) -> io::Result<SharedPoller> {
        self.0.poller()
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn workers(running: &Running) -> PlaneState {
    let planes = running.supervisor().planes();
    let found = planes.into_iter().find(|plane| plane.name == "rew-work");
    found.expect("the row of the workers")
}

/// Computes an epoch and waits for the end of its run.
fn compute(
    caller: &Caller,
    epoch: &str,
    request: &ComputeRequest,
) -> Result<EpochRun, ClientError> {
    let epoch = epoch.parse().expect("an id");
    let wait = Duration::from_secs(20);
    caller.typed().compute(&epoch, request, wait, by())
}

/// Makes the worker that takes it panic: the run's snapshot must be fetched. The run fails and says so at once.
fn kill(caller: &Caller, n: u32, good: &ComputeRequest) {
    let lethal = ComputeRequest {
        snapshot: ContentId([n as u8; 32]),
        ..good.clone()
    };
    let failed = compute(caller, &format!("lethal-{n}"), &lethal).expect_err("its worker died");
    let ClientError::Refused { problem, .. } = &failed else {
        panic!("{failed}");
    };
    let reason = problem.details.as_ref().map(|details| &details["reason"]);
    let said = (problem.code.as_str(), reason);
    assert_eq!(said, ("run_failed", Some(&json!("internal"))));
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Asks `/readyz`, which must answer 200, until told to stop; the causes that it named as degraded.
fn stays_ready(caller: &Caller, stop: &AtomicBool) -> BTreeSet<String> {
    let mut degraded = BTreeSet::new();
    while !stop.load(Ordering::SeqCst) {
        let reply = caller.readyz();
        let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert_eq!(reply.status, 200, "{body}");
        let causes = body["degraded"].as_array().expect("a list").iter();
        degraded.extend(causes.filter_map(Value::as_str).map(str::to_owned));
        std::thread::sleep(Duration::from_millis(5));
    }
    degraded
}

#[test]
fn runs_go_on_while_one_worker_lives_and_readiness_says_how_it_stands() {
    let net: SharedNet = Arc::new(FailingNet(OsNet::shared()));
    let top = format!(
        "amnesia = true\nconcurrency.jobs = {WORKERS}\nsnapshot.url = \"http://127.0.0.1:1/{{hex}}\""
    );
    let (running, caller) = start_on(&top, net);
    let mut good = caller.inputs(&policy(&json!({})), "acct:a,m,1\nacct:b,m,3\n");
    good.dry_run = true;
    let (stop, sealed) = (AtomicBool::new(false), AtomicU64::new(0));
    let degraded = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for client in 0..3 {
            let (caller, good, stop, sealed) = (&caller, &good, &stop, &sealed);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let run = compute(caller, &format!("load-{client}-{n}"), good);
                    let run = run.expect("it was computed");
                    assert_eq!(run.state, RunState::Sealed, "{:?}", run.reason);
                    sealed.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let watch = scope.spawn(|| stays_ready(&caller, &stop));
        let goes_on = || {
            let before = sealed.load(Ordering::SeqCst);
            until("runs go on", || sealed.load(Ordering::SeqCst) > before + 20);
        };
        goes_on();
        // Half of them at once: restarted.
        std::thread::scope(|killers| {
            for n in 0..WORKERS / 2 {
                let (caller, good) = (&caller, &good);
                killers.spawn(move || kill(caller, n, good));
            }
        });
        until("the killed workers are back", || {
            let row = workers(&running);
            row.restarts == WORKERS / 2 && row.live == WORKERS
        });
        goes_on();
        // Beyond the budget of restarts a killed worker stays away.
        for n in WORKERS / 2..BUDGET + WORKERS - 1 {
            kill(&caller, n, &good);
            // One at a time: those that wait for their restart are no workers either.
            until("every other worker lives", || {
                let row = workers(&running);
                row.live + row.lost == WORKERS
            });
        }
        until("one worker is left", || {
            let row = workers(&running);
            (row.restarts, row.lost, row.live) == (BUDGET, WORKERS - 1, 1)
        });
        goes_on();
        stop.store(true, Ordering::SeqCst);
        watch.join().expect("it was ready all the time")
    });
    println!(
        "{} runs sealed; degraded: {degraded:?}",
        sealed.into_inner()
    );
    assert_eq!(degraded, BTreeSet::from(["rew-work".to_owned()]));
    let line = format!("svc_rewarder_service_restarts_total{{kind=\"rew-work-\"}} {BUDGET}");
    assert!(caller.metrics().contains(&line), "{}", caller.metrics());

    kill(&caller, BUDGET + WORKERS, &good);
    until("the last worker is lost", || workers(&running).live == 0);
    let reply = caller.readyz();
    let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(reply.status, 503);
    // The artifact writer may be among them: without workers its queue has no sender left.
    let missing = body["missing"].as_array().expect("a list");
    assert!(missing.contains(&json!("rew-work")), "{body}");
    end(running);
}

/// The clock of a service, which makes the scheduler panic once when it is told to.
#[derive(Debug)]
struct FailingClock(SharedClock, Arc<AtomicBool>);

impl Clock for FailingClock {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn unix_ms(&self) -> u64 {
        let thread = std::thread::current();
        let killed = thread.name() == Some("rew-sched") && self.1.swap(false, Ordering::SeqCst);
        assert!(!killed, "killed by the test");
        self.0.unix_ms()
    }
}

#[test]
fn a_scheduler_that_panics_keeps_its_runs_in_amnesia_too() {
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = armed.clone();
    let (running, caller) = start_with("amnesia = true", |parts| {
        parts.clock = Arc::new(FailingClock(parts.clock.clone(), trigger));
    });
    let good = caller.inputs(&policy(&json!({})), "acct:a,m,1\nacct:b,m,3\n");
    let before = compute(&caller, "kept", &good).expect("computed");
    armed.store(true, Ordering::SeqCst);
    // Its answer is lost with the scheduler.
    let _ = compute(&caller, "lethal", &good);
    until("the scheduler was killed and is back", || {
        let planes = running.supervisor().planes();
        let row = planes.iter().find(|plane| plane.name == "rew-sched");
        row.is_some_and(|row| (row.restarts, row.live) == (1, 1))
    });
    let after = compute(&caller, "kept", &good).expect("known");
    assert_eq!(
        (after.state, after.commitment),
        (RunState::Sealed, before.commitment)
    );
    let next = compute(&caller, "next", &good).expect("computed");
    assert_eq!(next.state, RunState::Sealed);
    end(running);
    let (running, caller) = start_with("amnesia = true", |_| {});
    caller.get("/rewarder/epochs/kept", 404);
    end(running);
}
