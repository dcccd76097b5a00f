//! The supervisor: a restart that races with shutdown, the order of a drain, late starts.
#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use super::{Count, REJECT, explore, far, size, thread};
use crate::metrics::{KernelMetrics, Registry};
use crate::queue::{Recv, bare_queue};
use crate::supervisor::{Supervisor, ThreadCtx};
use crate::time::SystemClock;
use crate::topology::{Count as Number, Stage, ThreadSpec, Topology};

static WORKERS: ThreadSpec = row("m-work-", Stage::Work);
static WRITERS: ThreadSpec = row("m-write-", Stage::Write);
static TOPOLOGY: Topology = Topology {
    service: "model",
    threads: &[WORKERS, WRITERS],
    queues: &[],
    locks: &[],
};

const fn row(name: &'static str, stage: Stage) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Number::Pool("n"),
        stage,
        critical: false,
        job: "model",
    }
}

const LONG: Duration = Duration::from_secs(36_000);

/// Metrics are outside the model: plain counters, made once.
fn metrics() -> KernelMetrics {
    KernelMetrics::new(&Registry::new("m"))
}

fn supervisor(metrics: &KernelMetrics) -> Supervisor {
    Supervisor::new(&TOPOLOGY, metrics.clone(), SystemClock::shared())
}

fn wait(ctx: &ThreadCtx) {
    assert!(ctx.shutdown.wait(far()));
}

/// A thread that crashes runs again, unless shutdown came first; either way it ends, is joined, and
/// the counters of its row are right. Mutant `restart`.
#[test]
fn restart_and_shutdown_end_every_thread_once() {
    const POOL: usize = size(2, 5);
    let km = metrics();
    explore(move || {
        let sup = supervisor(&km);
        let runs = Count::new();
        let seen = runs.clone();
        sup.spawn_pool(&WORKERS, POOL, move |ctx| {
            // The first run returns at once, which counts as a crash until a drain begins.
            if seen.add(1) > 0 {
                wait(ctx);
            }
        });
        let report = sup.drain(LONG);
        assert!(report.stragglers.is_empty());
        let plane = &sup.planes()[0];
        assert_eq!((plane.live, plane.total as usize), (0, POOL));
        assert!(plane.restarts <= 1, "only the crash is restarted");
        let begun = runs.get();
        let normal = (POOL as u64)..=(POOL as u64 + u64::from(plane.restarts));
        assert!(normal.contains(&begun), "{begun} runs, {plane:?}");
        assert!(sup.topology().threads.is_empty());
    });
}

/// The drain stops and joins stage after stage: an item that a worker sends while it ends is still
/// written. Mutant `drain`.
#[test]
fn a_drain_loses_nothing_between_two_stages() {
    const POOL: usize = size(1, 4);
    let km = metrics();
    explore(move || {
        let sup = supervisor(&km);
        let (tx, rx) = bare_queue::<u64>(&REJECT, POOL);
        let written = Count::new();
        let count = written.clone();
        sup.spawn_pool(&WRITERS, 1, move |ctx| {
            while let Recv::Item(_) = rx.recv(&ctx.shutdown, far()) {
                count.add(1);
            }
            while rx.try_recv().is_some() {
                count.add(1);
            }
        });
        let refused = Count::new();
        let back = refused.clone();
        let once: Arc<Vec<_>> = Arc::new((0..POOL).map(|_| Count::new()).collect());
        sup.spawn_pool(&WORKERS, POOL, move |ctx| {
            wait(ctx);
            if once[ctx.index].add(1) == 0 && tx.try_send(1).is_err() {
                back.add(1);
            }
        });
        let report = sup.drain(LONG);
        assert!(report.stragglers.is_empty());
        assert_eq!((written.get(), refused.get()), (POOL as u64, 0));
    });
}

/// A thread whose start races with the drain is joined by it or never started. Mutant `late`.
#[test]
fn no_thread_outlives_the_drain() {
    let km = metrics();
    explore(move || {
        let sup = supervisor(&km);
        let inside = Count::new();
        let starters: Vec<_> = (0..size(1, 3))
            .map(|_| {
                let (sup, inside) = (sup.clone(), inside.clone());
                thread::spawn(move || {
                    sup.spawn_pool(&WORKERS, size(1, 2), move |ctx| {
                        inside.add(1);
                        wait(ctx);
                        inside.sub(1);
                    });
                })
            })
            .collect();
        let report = sup.drain(LONG);
        assert!(report.stragglers.is_empty());
        for s in starters {
            s.join().unwrap();
        }
        assert_eq!(inside.get(), 0, "a thread runs after the drain");
        assert!(sup.topology().threads.is_empty());
    });
}
