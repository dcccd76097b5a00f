//! Which entries stand together in one commit.

use ron_kernel::OsRandom;

use super::support::{epoch_open, issue, payout};
use crate::engine::Atomicity;
use crate::requests::ops_of;

#[test]
fn only_the_openings_of_one_epoch_are_linked() {
    let open = |epoch: &str, commitment| epoch_open(epoch, "pool:t/x", 10, 1, commitment);
    for (entries, good) in [
        (vec![open("e", 1), open("e", 1)], true),
        (vec![open("e", 1)], true),
        (vec![open("e", 1), open("f", 1)], false),
        (vec![open("e", 1), open("e", 2)], false),
        (vec![open("e", 1), payout("e", 0, "a", 10)], false),
        (vec![payout("e", 0, "a", 10)], false),
        (vec![open("e", 1), issue("k", "a", 1)], false),
        (vec![issue("k", "a", 1), open("e", 1)], false),
    ] {
        let linked = ops_of(entries.clone(), Atomicity::Linked, &OsRandom);
        assert_eq!(linked.is_ok(), good, "{entries:?}");
        let batch = ops_of(entries.clone(), Atomicity::Batch, &OsRandom);
        assert!(batch.is_err(), "{entries:?}");
    }
}
