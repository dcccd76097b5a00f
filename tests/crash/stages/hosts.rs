//! A rewarder on another host, which shares nothing but the ledger and the key service with the first.

use std::time::Duration;

use ron_tests::tools::signal;
use ron_tests::{json, number};

use super::{Rewarder, Services};

impl Services {
    /// Has the rewarder pay the epoch, and kills it as soon as the ledger has opened that; whether the ledger had not paid all of it then.
    fn killed_while_paying(&self, rewarder: &mut Rewarder, epoch: &str) -> bool {
        let (path, pid) = (
            format!("/v1/ledger/epochs/default/{epoch}"),
            rewarder.child.id(),
        );
        let closed = std::thread::scope(|scope| {
            let driven = scope.spawn(|| self.drive(rewarder, epoch));
            while self.ledger(&path).status != 200 && !driven.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            signal(pid, "-KILL");
            driven.join().unwrap()
        });
        !closed && json(&self.ledger(&path), 200)["state"] != "closed"
    }
}

/// With the same usage it finishes the epochs that the first one has begun to pay; and two that pay the same epoch at once pay each
/// payee once.
#[test]
fn a_rewarder_on_another_host_finishes_what_a_killed_one_was_paying() {
    let services = Services::start();
    let count = (number("RON_STAGE_KILLS", 20) as usize / 2).max(3);
    let funded = services.fund(2 * count as u128);
    let host = tempfile::tempdir().unwrap();
    let mut other = services.elsewhere(host.path());
    let mut begun = 0;
    for round in 0..count {
        let epoch = format!("hosts:{round}");
        let mut rewarder = services.rewarder();
        begun += usize::from(services.killed_while_paying(&mut rewarder, &epoch));
        assert!(services.drive(&mut other, &epoch), "the other one finishes");
        services.closed(&epoch);
    }
    println!("{begun} of {count} epochs were open in the ledger when their rewarder was killed");
    assert!(begun > 0, "no epoch was begun by a killed rewarder");
    let mut rewarder = services.rewarder();
    for round in 0..count {
        let epoch = format!("hosts:both-{round}");
        std::thread::scope(|scope| {
            let first = scope.spawn(|| services.drive(&mut rewarder, &epoch));
            assert!(services.drive(&mut other, &epoch));
            assert!(first.join().unwrap());
        });
        services.closed(&epoch);
    }
    let last = format!("hosts:both-{}", count - 1);
    services.paid_once(&other, &last, 2 * count as u128, funded);
}
