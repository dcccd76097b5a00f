//! The rewarder and the ledger with their files, each on a machine of its own whose power may be cut: an epoch is paid once, however
//! often both are killed between its opening, its payouts and its close, and what is paid is on the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_sim::{ensure, fault, time};

use super::kms::{Face, Kms};
use super::operator::{Answer, Operator};
use super::plan::Plan;
use super::treasury::Treasury;
use super::{KMS, LEDGER, OPERATORS, REWARDER, artifacts, end, finish, manner, operate, services};
use crate::chance::{below, ms};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::machine::Machine;
use crate::money::bad_weather;
use crate::net::{SimNet, Weather};

/// Within which every epoch comes to its end after the last fault. Each connection that has fallen silent costs the rewarder a call of
/// two seconds, and three such calls an attempt.
const RECOVERY: Duration = Duration::from_secs(20);

struct World {
    net: SimNet,
    plan: Arc<Plan>,
    kms: Kms,
    ledger: Machine,
    rewarder: Machine,
    treasury: Treasury,
    /// Whether the ledger's date was always right.
    dates_hold: bool,
}

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        let mut kms = Kms::new();
        kms.start(&net);
        let ledger = |net: &SimNet, number, date: &Date, disk| {
            services::ledger(net, number, date, Some(disk))
        };
        let manner = manner();
        let rewarder = move |net: &SimNet, number, date: &Date, disk| {
            services::rewarder(net, manner, number, date, disk)
        };
        let ends: Arc<dyn Fn() + Send + Sync> = Arc::new(|| {});
        Self {
            plan: Arc::new(Plan::drawn()),
            kms,
            ledger: Machine::boot(&net, LEDGER, Arc::new(ledger), ends.clone()),
            rewarder: Machine::boot(&net, REWARDER, Arc::new(rewarder), ends),
            treasury: Treasury::new(&net),
            net,
            dates_hold: true,
        }
    }

    /// One fault after the other, then none.
    fn disturb(&mut self) {
        for _ in 0..2 + below(6) {
            time::sleep(ms(below(800)));
            match below(24) {
                0 => hosts::part(&self.net, REWARDER, LEDGER, 3_000),
                1 => hosts::part(&self.net, REWARDER, KMS, 3_000),
                2 => {
                    let operator = client_ip(below(OPERATORS.into()) as u8);
                    hosts::part(&self.net, REWARDER, operator, 2_000);
                }
                3 => self.net.set_weather(bad_weather()),
                4 => self.pause(),
                5..=7 => self.kill_in_a_settlement(),
                9 => self.end_rewarder(),
                10 => self.ledger.kill(&self.net),
                11 => self.ledger.cut_power(&self.net),
                12 => self.rewarder.restart(&self.net),
                13 => self.ledger.restart(&self.net),
                14 | 19 | 20 => self.turn_kms(),
                15 => self.kill_kms(),
                16 => self.rewarder.fail_disk(&self.net),
                17 => self.ledger.fail_disk(&self.net),
                8 | 18 => self.rewarder.date.jump(),
                21 | 22 => self.end_in_a_computation(),
                _ => {
                    self.dates_hold = false;
                    self.ledger.date.jump();
                }
            }
        }
        self.net.set_weather(Weather::default());
        self.rewarder.be_well();
        self.ledger.be_well();
    }

    fn pause(&self) {
        let of = match below(3) {
            0 => Some(&self.kms.group),
            1 => self.ledger.process.as_ref().map(|process| &process.group),
            _ => self.rewarder.process.as_ref().map(|process| &process.group),
        };
        fault::happened("a service stands still");
        if let Some(group) = of {
            group.pause(ms(below(1_500)));
        }
    }

    /// One of both dies soon after a manifest is signed, so while its epoch is opened, paid or closed.
    fn kill_in_a_settlement(&mut self) {
        let (signed, by) = (self.kms.signatures(), time::now() + ms(700));
        while self.kms.signatures() == signed && time::now() < by {
            time::sleep(Duration::from_micros(200));
        }
        time::sleep(Duration::from_micros(below(8_000)));
        match below(4) {
            0 => self.ledger.kill(&self.net),
            1 => self.ledger.cut_power(&self.net),
            _ => self.end_rewarder(),
        }
    }

    /// The rewarder ends when a manifest has come to its disk, which says that all of its run is there.
    fn end_in_a_computation(&mut self) {
        let manifests = |world: &Self| artifacts::manifests(&world.rewarder.image, &world.plan);
        let (before, by) = (manifests(self), time::now() + ms(700));
        while manifests(self) == before && time::now() < by {
            time::sleep(Duration::from_micros(100));
        }
        self.end_rewarder();
    }

    /// The rewarder is killed, or its machine loses its power. What the ledger has opened by then is on its disk.
    fn end_rewarder(&mut self) {
        if below(2) == 0 {
            fault::happened("a service is killed");
            self.rewarder.die(&self.net);
            self.rewarder.image.kill();
        } else {
            self.rewarder.lose_power(&self.net);
        }
        // What was under way has arrived by then.
        time::sleep(ms(below(400)));
        let log = self.treasury.log().unwrap_or_default();
        if !log.is_empty() {
            fault::happened("a disk is inspected");
        }
        artifacts::check(&self.rewarder.image, &self.plan, &log);
        self.rewarder.start_again(&self.net);
    }

    fn turn_kms(&self) {
        fault::happened("the KMS does not sign");
        self.kms
            .turn([Face::Away, Face::OtherKey][below(2) as usize]);
        // Longer than the three calls of an attempt.
        time::sleep(ms(below(4_000)));
        self.kms.turn(Face::Good);
    }

    fn kill_kms(&mut self) {
        self.kms.group.kill();
        self.net.sever(KMS);
        time::sleep(ms(below(1_500)));
        self.kms.start(&self.net);
    }
}

fn run(operations: &Operations) {
    let mut world = World::start();
    let over = Arc::new(AtomicBool::new(false));
    let operator = |number| Operator::new(&world.net, &world.plan, number, Some(&over));
    let mut chief = operator(7);
    let ready = time::now() + RECOVERY;
    let enough = world.plan.enough();
    // At first the pool may be too short for all epochs, or for one.
    let first = enough / [1, 1, 3, 100][below(4) as usize];
    world.treasury.fund(first.max(1), ready);
    chief.is_answered_before(ready);
    let operators = operate((0..OPERATORS).map(operator).collect());
    world.disturb();
    over.store(true, Ordering::SeqCst);
    let told = end(operators, operations);
    let recovered = time::now() + RECOVERY;
    world.treasury.fund(enough, recovered);
    chief.is_answered_before(recovered);
    let recorded = told.iter().filter(|t| matches!(t.said, Answer::Run(_)));
    chief.recorded = recorded.map(|told| told.epoch).collect();
    let (treasury, dates_hold) = (&world.treasury, world.dates_hold);
    let paid = finish(
        &mut chief, treasury, &world.kms, told, dates_hold, recovered,
    );
    ensure(paid > 0, "no epoch was paid");
    let log = world.treasury.log().expect("the ledger answers");
    artifacts::check(&world.rewarder.image, &world.plan, &log);
    world.rewarder.stop(&world.net);
    world.ledger.stop(&world.net);
    (0..chief.calls).for_each(|_| operations.add());
}

/// Seeds of a process: the threads of killed services stay until it ends.
const SEEDS_MAX: u64 = 60;

#[test]
fn over_kills_and_power_cuts_an_epoch_is_paid_once_and_what_is_paid_is_on_the_disk() {
    explore_services(SEEDS_MAX, run);
}
