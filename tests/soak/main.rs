//! The soak: the whole loop in six processes under mixed load, with kills, reloads, rotations and revocations at seeded
//! times. At the end nothing that was promised is missing, every log verifies, and no process uses more of the machine than
//! after the warm-up. `cargo xtask soak MINUTES` is the long test; `RON_SOAK_MINUTES` sets the length here.
//!
//! ```text
//! |  warm-up 1/4  |        storm 1/2: kills and all else        |  calm 1/4: all but kills  |
//!             ^ measured                                                ^ measured        ^
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

mod checks;
mod load;
mod rig;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ron_kernel::Deadline;
use ron_proto::kms::{CreateKey, PayloadPolicy, RotateLogKey, RotateRequest};
use ron_proto::values::{Alg, Kid, OpId};
use ron_tests::{Draws, SERVICES, number, ok, ron_on};
use serde_json::json;

use load::{EPOCH_PAYS, Load};
use rig::{Rig, Use};

/// The part of the minutes that start and checks take.
const AROUND: Duration = Duration::from_secs(20);
const PAYERS: usize = 2;

pub fn op_id(n: u128) -> OpId {
    OpId(uuid::Uuid::from_u128(
        0x0190_0000_0000_7000_8000_0000_0000_0000 + n,
    ))
}

fn minutes() -> u64 {
    number("RON_SOAK_MINUTES", 2).max(1)
}

/// Use of the machine: after the warm-up, after the calm has settled in, and at the end.
#[derive(Default)]
struct Measured {
    warm: BTreeMap<&'static str, Use>,
    calm: BTreeMap<&'static str, Use>,
    end: BTreeMap<&'static str, Use>,
}

/// The faults applied to the services.
struct Faults {
    rng: Draws,
    kills: BTreeMap<&'static str, u64>,
    order: Vec<&'static str>,
    done: BTreeMap<&'static str, u64>,
    turn: u64,
}

impl Faults {
    fn new() -> Self {
        let mut rng = Draws::seeded();
        let mut order = SERVICES.to_vec();
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
        Self {
            rng,
            kills: BTreeMap::new(),
            order,
            done: BTreeMap::new(),
            turn: 0,
        }
    }

    /// Applies one fault, then pauses.
    fn strike(&mut self, load: &Load<'_>, app: &Kid, kill: bool) {
        self.turn += 1;
        let what = if kill && self.turn % 2 == 1 {
            let at = self.kills.values().sum::<u64>() as usize % self.order.len();
            let name = self.order[at];
            *self.kills.entry(name).or_default() += 1;
            load.rig.kill(name);
            "kill"
        } else {
            self.other(load, app)
        };
        *self.done.entry(what).or_default() += 1;
        std::thread::sleep(Duration::from_millis(800 + self.rng.below(1_700)));
    }

    fn other(&mut self, load: &Load<'_>, app: &Kid) -> &'static str {
        let within = || Deadline::within(Duration::from_secs(5));
        let id = op_id(1 << 80 | u128::from(self.turn));
        let kms = load.kms();
        let rotate = |key: &Kid| {
            let request = RotateRequest {
                expected_head: None,
                op_id: Some(id),
                ..RotateRequest::default()
            };
            let done = load.until_answered(|| kms.rotate(key, &request, within()));
            done.unwrap_or_else(|e| panic!("rotate: {e}"));
        };
        match self.rng.below(10) {
            0..=4 => {
                let name = SERVICES[self.rng.below(SERVICES.len() as u64) as usize];
                load.rig.signal(name, "-HUP");
                "reload"
            }
            5..=6 => {
                rotate(app);
                "rotate a key"
            }
            7..=8 => {
                let made = ron_tests::read_json(&load.rig.path().join("bootstrap.json"));
                rotate(&made["issuer_key"].as_str().unwrap().parse().unwrap());
                "rotate the issuer's"
            }
            _ => {
                let request = RotateLogKey {
                    expected_number: None,
                    op_id: Some(id),
                };
                let done = load.until_answered(|| kms.rotate_log_key(&request, within()));
                done.unwrap_or_else(|e| panic!("rotate the log's key: {e}"));
                "rotate the log's"
            }
        }
    }
}

fn sample(load: &Load<'_>, into: &mut BTreeMap<&'static str, Use>) {
    for (name, now) in load.rig.uses() {
        let most = into.entry(name).or_default();
        *most = most.most(now);
    }
}

/// Samples once a second for some time.
fn watch(load: &Load<'_>, time: Duration, into: &mut BTreeMap<&'static str, Use>) {
    let since = Instant::now();
    while since.elapsed() < time {
        sample(load, into);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Warm-up, storm, calm.
fn weather(load: &Load<'_>, app: &Kid, faults: &mut Faults, time: Duration) -> Measured {
    let mut measured = Measured::default();
    let quarter = time / 4;
    std::thread::sleep(quarter * 2 / 3);
    watch(load, quarter / 3, &mut measured.warm);
    let since = Instant::now();
    while since.elapsed() < quarter * 2 || faults.kills.len() < SERVICES.len() {
        faults.strike(load, app, true);
    }
    let since = Instant::now();
    while since.elapsed() < quarter / 3 {
        faults.strike(load, app, false);
    }
    sample(load, &mut measured.calm);
    while since.elapsed() < quarter * 2 / 3 {
        faults.strike(load, app, false);
        sample(load, &mut measured.calm);
    }
    watch(load, quarter / 3, &mut measured.end);
    measured
}

/// The key that signs, the pool, the policy of its epochs.
fn prepare(load: &Load<'_>) -> Kid {
    let request = CreateKey {
        tenant: "ron".parse().unwrap(),
        purpose: "soak".parse().unwrap(),
        alg: Alg::Ed25519,
        payload: PayloadPolicy::Any,
        exportable: false,
        derived: false,
        rotate_every: None,
        backend: None,
        op_id: op_id(1),
        token: None,
    };
    let made = load
        .kms()
        .create_key(&request, Deadline::within(ron_tests::CALL));
    load.issue("fund", "pool:default/soak", "pts", EPOCH_PAYS * 10_000);
    let policy = json!({
        "format": 1, "tenant": "default", "id": "soak", "version": 1, "rule_set": "hamilton/1", "asset": "pts",
        "pool": {"account": "pool:default/soak", "amount_minor": EPOCH_PAYS.to_string()},
        "metrics": {"work": {"weight": "1", "class": "metering"}},
        "classes_allowed": ["metering"], "residual": {"owner": "pool:default/soak"}
    });
    let path = load.rig.path().join("soak.json");
    std::fs::write(&path, policy.to_string()).unwrap();
    let path = path.to_str().unwrap();
    ok(&ron_on(
        load.rig.path(),
        &["policy", "sign", "--kind", "reward", path],
    ));
    made.unwrap().key
}

#[test]
fn the_whole_loop_stands_load_kills_reloads_rotations_and_revocations() {
    let time = Duration::from_secs(60 * minutes()).saturating_sub(AROUND);
    let mut faults = Faults::new();
    let rig = Rig::start();
    let load = Load::on(&rig);
    let app = prepare(&load);
    let measured = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        let (load, key) = (&load, &app);
        for n in 0..PAYERS {
            workers.push(scope.spawn(move || load.pay(n)));
        }
        workers.push(scope.spawn(move || load.sign(key)));
        workers.push(scope.spawn(move || load.tokens()));
        workers.push(scope.spawn(move || load.epochs()));
        workers.push(scope.spawn(move || load.read_console()));
        // A failure here must end the workers too, or the scope waits for ever.
        let weather = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            weather(load, key, &mut faults, time)
        }));
        load.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
        weather.unwrap_or_else(|e| std::panic::resume_unwind(e))
    });
    table(&load, &faults, &measured);
    checks::promises_were_kept(&load);
    for (name, code) in rig.stop() {
        assert_eq!(code, Some(0), "{name}");
    }
    checks::logs_verify(&load);
    checks::flat(&measured.warm, &measured.calm, &measured.end);
}

fn table(load: &Load<'_>, faults: &Faults, measured: &Measured) {
    let mib = |u: Option<&Use>| u.map_or(0, |u| u.rss >> 20);
    println!(
        "{:<14} {:>6} {:>8} {:>8} {:>8} {:>14} {:>14}",
        "service", "kills", "warm MiB", "calm MiB", "end MiB", "threads", "descriptors"
    );
    for name in SERVICES {
        let (warm, end) = (measured.warm[name], measured.end[name]);
        println!(
            "{name:<14} {:>6} {:>8} {:>8} {:>8} {:>14} {:>14}",
            faults.kills.get(name).unwrap_or(&0),
            warm.rss >> 20,
            mib(measured.calm.get(name)),
            end.rss >> 20,
            format!("{} -> {}", warm.threads, end.threads),
            format!("{} -> {}", warm.fds, end.fds),
        );
    }
    println!("done: {:?}", load.done.lock().unwrap());
    println!(
        "faults: {:?}; tries repeated: {}",
        faults.done,
        load.repeated.load(std::sync::atomic::Ordering::Relaxed)
    );
}
