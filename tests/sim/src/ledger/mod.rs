//! The ledger's engine and threads on a simulated disk.

mod book;
mod caller;
mod draws;
mod world;

use world::{Plan, World};

use crate::explore::explore;

#[test]
fn what_is_answered_is_in_the_log_once() {
    explore(|operations| World::new(Plan::default(), operations).live());
}

#[test]
fn faults_of_the_disk_lose_nothing_that_was_answered() {
    explore(|operations| {
        let plan = Plan {
            faults: true,
            ..Plan::default()
        };
        World::new(plan, operations).live();
    });
}
