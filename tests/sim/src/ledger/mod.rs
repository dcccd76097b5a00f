//! The ledger's engine and threads on a simulated disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Disk, DiskRoom, SimDisk};
use ron_kernel::{KernelMetrics, Registry, SeededRandom, Supervisor, SystemClock};
use ron_ledger::Ledger;
use ron_ledger::engine::{Engine, EngineOptions};
use ron_ledger::health::NoHealth;
use ron_ledger::metrics::Metrics;
use ron_ledger::topology::TOPOLOGY;
use ron_ledger::writer::{WriterParts, spawn};
use ron_proto::Timestamp;

use crate::explore::explore;

fn start(disk: &SimDisk) -> (Ledger, Supervisor) {
    let arc: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock = SystemClock::shared();
    let mut options = EngineOptions::new("sim/ledger");
    options.segment_entries = 256;
    options.random = Arc::new(SeededRandom::new(3));
    let now = Timestamp(clock.unix_ms());
    let engine = Engine::open(arc, Path::new("/ledger"), options, now).expect("opened");
    let registry = Registry::new("ron-ledger");
    let km = KernelMetrics::new(&registry);
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), clock.clone());
    let parts = WriterParts {
        sup: sup.clone(),
        km,
        clock,
        metrics: Metrics::new(&registry),
        health: Arc::new(NoHealth),
        room: DiskRoom::unlimited(),
        commits: 64,
    };
    let (ledger, _notifications) = spawn(engine, parts);
    (ledger, sup)
}

#[test]
fn a_new_ledger_starts_and_stops() {
    explore(100, || {
        let (ledger, sup) = start(&SimDisk::new());
        assert_eq!(ledger.head_seq(), 0);
        let stragglers = sup.drain(Duration::from_secs(5)).stragglers;
        assert_eq!(stragglers, Vec::<String>::new());
    });
}
