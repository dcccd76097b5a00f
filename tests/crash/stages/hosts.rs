//! A rewarder on another host, which shares nothing but the ledger and the key service with the first.

use ron_tests::number;

use super::{MANY, Services};

/// With the same usage it finishes the epochs that the first one has begun to pay; and two
/// that pay the same epoch at once pay each payee once.
#[test]
fn a_rewarder_on_another_host_finishes_what_a_killed_one_was_paying() {
    const EMIT: &str = "rew-emit";
    let services = Services::start();
    let count = (number("RON_STAGE_KILLS", 20) as usize / 4).max(2);
    let funded = services.fund(2 * count as u128 + 1);
    let host = tempfile::tempdir().unwrap();
    let mut rewarder = services.rewarder();
    services.points.set(&[(EMIT, MANY)]);
    assert!(services.drive(&mut rewarder, "hosts:first"));
    let operations = MANY - services.points.left(0);
    let mut other = services.elsewhere(host.path());
    let mut begun = 0;
    for round in 0..count {
        let epoch = format!("hosts:{round}");
        services
            .points
            .set(&[(EMIT, operations * (1 + round as i64) / (1 + count as i64))]);
        assert!(!services.drive(&mut rewarder, &epoch), "it is killed");
        services.points.set(&[]);
        let epochs = services.ledger(&format!("/v1/ledger/epochs/default/{epoch}"));
        begun += usize::from(epochs.status == 200);
        assert!(services.drive(&mut other, &epoch), "the other one finishes");
        services.closed(&epoch);
        rewarder = services.rewarder();
    }
    println!("{begun} of {count} epochs were open in the ledger when their rewarder was killed");
    assert!(begun > 0, "no epoch was begun by the killed rewarder");
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
    services.paid_once(&other, &last, 2 * count as u128 + 1, funded);
}
