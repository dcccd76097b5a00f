//! The same seed gives the same trace, byte for byte: again in this process, in other processes, and from its schedule.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use ron_sim::chan::{self, select};
use ron_sim::sync::{AtomicU64, Condvar, Mutex, RwLock};
use ron_sim::{Failure, Group, Sim, fault, note, thread, time};

/// A program that uses every source of chance: threads, waits with deadlines, hash maps, random numbers, faults, pauses,
/// and the clocks of the standard library.
fn program() {
    let (tx, rx) = chan::named::<u64>("jobs", 2);
    let (urgent, soon) = chan::named::<u64>("urgent", 1);
    let sum = Arc::new(Mutex::named("sum", HashMap::new()));
    let turns = Arc::new(AtomicU64::new(0));
    let quiet = Arc::new((Mutex::new(false), Condvar::new()));
    let config = Arc::new(RwLock::new(1));
    let others = Group::new("workers");
    let mut workers = Vec::new();
    for n in 0..3 {
        let (rx, soon, sum, turns) = (rx.clone(), soon.clone(), sum.clone(), turns.clone());
        let (quiet, config) = (quiet.clone(), config.clone());
        let work = move || {
            loop {
                let at = time::now() + Duration::from_millis(3 + n);
                let job = match select(&[&rx, &soon], Some(at)) {
                    None => break,
                    Some(0) => rx.take(),
                    Some(_) => soon.take(),
                };
                let Ok(job) = job else { break };
                turns.fetch_add(1, Ordering::Relaxed);
                if fault::happens("a slow job", 200_000) {
                    time::sleep(Duration::from_micros(fault::random() % 5_000));
                }
                *sum.lock().entry(job % 7).or_insert(0) += job * *config.read();
                let mut set = quiet.0.lock();
                *set = true;
                quiet
                    .1
                    .wait_until(&mut set, time::now() + Duration::from_micros(job));
            }
            quiet.1.notify_one();
        };
        workers.push(others.spawn(&format!("worker-{n}"), work).unwrap());
    }
    drop((rx, soon));
    for job in 0..20 {
        let at = time::now() + Duration::from_millis(1);
        if tx.send_deadline(fault::random() % 1_000, at).is_err() {
            *config.write() += 1;
            let _ = urgent.try_send(job);
        }
        thread::yield_now();
        note(&format!("{:?} {:?}", Instant::now(), SystemTime::now()));
    }
    drop((tx, urgent));
    for worker in workers {
        worker.join().unwrap();
    }
    // The order of a hash map: of its seeds, which come from the run's seed.
    let sum = sum.lock();
    let order: Vec<u64> = sum.keys().copied().collect();
    for key in order {
        time::sleep(Duration::from_nanos(1 + key));
    }
}

fn sim(seed: u64) -> Sim {
    Sim {
        pauses: true,
        keep_trace: true,
        ..Sim::new(seed)
    }
}

/// The trace of some seeds, as a process writes it.
fn traces() -> String {
    let runs = (0..12).map(|seed| {
        let outcome = sim(seed).run(program);
        assert!(outcome.failure.is_none(), "{outcome}");
        let (text, hash) = (outcome.trace.text(), outcome.hash);
        format!("seed {seed}, {hash:016x}\n{text}{}\n", outcome.schedule)
    });
    runs.collect()
}

#[test]
fn a_seed_repeats_in_one_process() {
    let first = traces();
    assert!(first.len() > 50_000, "{} bytes of trace", first.len());
    for _ in 0..4 {
        assert!(traces() == first, "a trace differs from the first");
    }
}

#[test]
fn a_seed_repeats_in_other_processes() {
    let dir = std::env::temp_dir().join(format!("ron-sim-traces-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let ours = traces();
    for n in 0..3 {
        let file = dir.join(n.to_string());
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "determinism::writes_its_traces_when_asked"])
            .env("RON_SIM_TRACES", &file)
            .output()
            .unwrap();
        assert!(status.status.success(), "{status:?}");
        let theirs = std::fs::read_to_string(&file).unwrap();
        let same = ours.lines().zip(theirs.lines()).take_while(|(a, b)| a == b);
        assert!(ours == theirs, "line {} differs", same.count());
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The other process of the test above; alone it shows that the seeds run.
#[test]
fn writes_its_traces_when_asked() {
    let text = traces();
    if let Ok(file) = std::env::var("RON_SIM_TRACES") {
        std::fs::write(file, text).unwrap();
    }
}

#[test]
fn a_schedule_alone_gives_the_trace_of_its_seed() {
    for seed in 0..40 {
        let first = sim(seed).run(program);
        let again = Sim {
            schedule: Some(first.schedule.to_string().parse().unwrap()),
            ..sim(seed)
        };
        let second = again.run(program);
        let difference = first.trace.first_difference(&second.trace);
        assert_eq!(difference, None, "seed {seed}");
        assert_eq!(
            (first.hash, &first.schedule),
            (second.hash, &second.schedule)
        );
    }
}

/// The order in which a hash map of the standard library is walked.
#[test]
fn hash_maps_have_the_order_of_the_seed() {
    let order = |seed| {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        crate::passes(&Sim::new(seed), move || {
            let map: HashMap<u32, u32> = (0..40).map(|n| (n, n)).collect();
            tx.send(map.into_keys().collect::<Vec<_>>()).unwrap();
        });
        rx.recv().unwrap()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    // Outside of a run the machine's entropy is left.
    let outside = || {
        let map: HashMap<u32, u32> = (0..40).map(|n| (n, n)).collect();
        map.into_keys().collect::<Vec<_>>()
    };
    let other = std::thread::spawn(outside);
    assert_ne!(other.join().unwrap(), outside());
}

#[test]
fn seeds_differ() {
    let mut hashes: Vec<u64> = (0..100).map(|seed| sim(seed).run(program).hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 100);
}

#[test]
fn runs_beside_each_other_do_not_meet() {
    let alone: Vec<u64> = (0..8).map(|seed| sim(seed).run(program).hash).collect();
    let beside: Vec<u64> = std::thread::scope(|scope| {
        #[allow(clippy::needless_collect)] // all are started before the first is joined
        let runs: Vec<_> = (0..8)
            .map(|seed| scope.spawn(move || sim(seed).run(program).hash))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(alone, beside);
}

#[test]
fn a_program_left_to_chance_is_reported_as_such() {
    static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let body: ron_sim::Body = Arc::new(|| {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        time::sleep(Duration::from_millis(1 + run));
        panic!("a failure at another time in each run");
    });
    let finding = Sim::new(1).search(0..3, &body).unwrap();
    let failure = finding.short.failure.unwrap();
    assert!(matches!(failure, Failure::Chance { .. }), "{failure}");
}
