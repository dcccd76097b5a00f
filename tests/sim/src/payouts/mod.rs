//! The rewarder and the ledger, unchanged, with a stand-in for the KMS: whatever the network, kills and operators do, an epoch is
//! paid once, what a separate calculation says.

mod artifacts;
mod check;
mod durable;
mod formats;
mod kms;
mod operator;
mod plan;
mod services;
mod shares;
mod treasury;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_files::SimDisk;
use ron_sim::thread::JoinHandle;
use ron_sim::{ensure, thread, time};

use crate::chance::{below, ms, one_of};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::machine::stop;
use crate::money::LEDGER;
use crate::net::{SimNet, Weather};
use check::Evidence;
use kms::Kms;
use operator::{Answer, Noted, Operator};
use plan::Plan;
use services::Manner;
use treasury::Treasury;

const REWARDER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 4));
const KMS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 5));
const OPERATORS: u8 = 2;
/// Within which every epoch comes to its end, without faults.
const RECOVERY: Duration = Duration::from_secs(10);

fn manner() -> Manner {
    Manner {
        auto_settle: below(3) > 0,
    }
}

/// Begins the operators' work.
fn operate(operators: Vec<Operator>) -> Vec<JoinHandle<Operator>> {
    let begin = |mut operator: Operator| {
        let name = format!("operator-{}", operator.number);
        let body = move || {
            operator.work();
            operator
        };
        thread::spawn_named(name, body).expect("a thread")
    };
    operators.into_iter().map(begin).collect()
}

/// A network without faults: some answers are slow.
fn good_weather() -> Weather {
    Weather {
        slow_segments: one_of([0, 20_000, 200_000]),
        slow: ms(20),
        ..Weather::default()
    }
}

/// A world on a good network, with the ledger in memory.
fn run_calm(operations: &Operations) {
    let net = SimNet::new(Weather::default());
    let plan = Arc::new(Plan::drawn());
    let date = Date::default();
    let mut kms = Kms::new();
    kms.start(&net);
    let mut ledger = services::ledger(&net, 1, &date, None);
    let disk = Arc::new(SimDisk::new());
    let mut rewarder = services::rewarder(&net, manner(), 1, &date, disk);
    let mut treasury = Treasury::new(&net);
    let ready = time::now() + RECOVERY;
    treasury.fund(plan.enough(), ready);
    let mut chief = Operator::new(&net, &plan, 7, Some(&Arc::default()));
    chief.is_answered_before(ready);
    net.set_weather(good_weather());
    let operators = (0..OPERATORS).map(|number| Operator::new(&net, &plan, number, None));
    let operators = operate(operators.collect());
    let told = end(operators, operations);
    let paid = finish(
        &mut chief,
        &treasury,
        &kms,
        told,
        true,
        time::now() + RECOVERY,
    );
    ensure(paid > 0, "no epoch was paid");
    stop(&net, &mut rewarder, REWARDER);
    stop(&net, &mut ledger, LEDGER);
    (0..chief.calls).for_each(|_| operations.add());
}

/// What operators were told, when they have ended.
fn end(operators: Vec<JoinHandle<Operator>>, operations: &Operations) -> Vec<Noted> {
    let mut told = Vec::new();
    for operator in operators {
        let operator = operator.join().expect("it is not killed");
        told.extend(operator.told);
        (0..operator.calls).for_each(|_| operations.add());
    }
    told
}

/// Every epoch comes to its end, and all agrees with the log. How many were paid.
fn finish(
    chief: &mut Operator,
    treasury: &Treasury,
    kms: &Kms,
    mut told: Vec<Noted>,
    dates_hold: bool,
    by: Instant,
) -> usize {
    let plan = chief.plan.clone();
    let epochs = 0..plan.epochs.len();
    let ends: Vec<Answer> = epochs.clone().map(|e| chief.finish(e, by)).collect();
    for (epoch, end) in epochs.zip(&ends) {
        let manifest = chief.read(epoch);
        let due = matches!(end, Answer::Run(run) if run.commitment.is_some());
        ensure(
            manifest.is_some() || !due,
            &format!("the manifest of {:?} is lost", plan.epochs[epoch].id),
        );
    }
    told.append(&mut chief.told);
    let log = treasury
        .log()
        .unwrap_or_else(|error| panic!("the log: {error}"));
    let seen = Evidence {
        plan: &plan,
        log: &log,
        ends: &ends,
        told: &told,
        kms,
        dates_hold,
        funds: treasury.funds,
    };
    seen.check()
}

#[test]
fn on_a_good_network_every_epoch_is_paid_what_the_plan_says() {
    explore_services(u64::MAX, run_calm);
}
