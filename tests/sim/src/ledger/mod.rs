//! The ledger's engine and threads on a simulated disk.

mod book;
mod caller;
mod draws;
mod names;
mod world;

pub use book::{same_account, same_totals};
use ron_files::FaultKind;
use world::{Plan, World};

use crate::explore::{explore, explore_at_most};

/// Each killed ledger leaves some fifteen threads.
const KILLS: u64 = 300;

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

/// One fault at each of the first 500 operations of the disk, of each kind, in 1,500 seeds.
#[test]
fn a_fault_at_any_operation_of_the_disk_loses_nothing() {
    explore(|operations| {
        let seed = operations.seed();
        let kinds = [FaultKind::Io, FaultKind::NoSpace, FaultKind::PowerOff];
        // Far apart, so that few seeds reach all parts of a run.
        let at = 1 + seed * 37 % 500;
        let plan = Plan {
            fault_at: Some((at, kinds[(seed % 3) as usize])),
            ..Plan::default()
        };
        World::new(plan, operations).live();
    });
}

#[test]
fn a_kill_at_any_moment_loses_nothing_that_was_answered() {
    explore_at_most(KILLS, |operations| {
        let plan = Plan {
            kills: true,
            ..Plan::default()
        };
        World::new(plan, operations).live();
    });
}

#[test]
fn rot_of_a_file_is_noticed() {
    explore(|operations| World::new(Plan::default(), operations).with_rot());
}
