//! Two issuers whose log has a witness: each has what it wrote cosigned, and a database that was set back is noticed by a node that has
//! never seen what it lost.

use ron_pg::Param;
use ron_service::Running;
use serde_json::json;

use super::Rig;
use crate::cluster::Cluster;
use crate::contract::wait_for;
use crate::services::{private_dir, stop};
use crate::witnessed::witness;

fn cosigned(rig: &Rig, node: &Running) -> u64 {
    rig.operator.cosigned(node, "svc_passport_cosigned_size")
}

/// Makes the log and its key, and a witness that the nodes start with.
fn rig() -> (Rig, tempfile::TempDir, Running) {
    let mut rig = Rig::new(Cluster::pair());
    for node in rig.start_both() {
        stop(node);
    }
    let dir = private_dir();
    let (witness, config) = witness(rig.dirs[0].path(), dir.path());
    rig.more = config;
    (rig, dir, witness)
}

/// A witness that has cosigned what the other node has written contradicts nothing: this node reads it, and goes on.
#[test]
fn two_issuers_have_their_checkpoints_cosigned_by_one_witness() {
    let (rig, _dir, witness) = rig();
    let nodes = [0, 1].map(|node| rig.try_start(node).expect("it starts"));
    wait_for("both nodes are ready", || {
        nodes.iter().all(|node| node.ready().ready)
    });
    let mut last = 0;
    for round in 0..8 {
        let numbers = ron_kernel::scoped(6, |n| {
            let what = json!({"jti": format!("token-{round}-{n}"), "reason": "leaked"});
            rig.revoked(&nodes[n % 2], &what)
        });
        last = numbers.into_iter().max().expect("a number");
    }
    for node in &nodes {
        wait_for("the witness has cosigned all", || {
            cosigned(&rig, node) == last
        });
        let ready = node.ready();
        assert!(ready.ready && ready.degraded.is_empty(), "{ready:?}");
    }
    for node in nodes {
        stop(node);
    }
    stop(witness);
}

/// An old backup of the database comes back, and with it tokens that were revoked since. A new node knows of it from the witness alone: it
/// issues and revokes nothing.
#[test]
fn a_database_that_is_behind_the_witness_is_not_used() {
    let (mut rig, _dir, witness) = rig();
    let one = rig.try_start(0).expect("it starts");
    wait_for("it is ready", || one.ready().ready);
    let primary = &rig.cluster.primary;
    let head = "SELECT size, root FROM svc_passport.log_head";
    let before = primary.admin(head, &[]);
    let mut last = 0;
    for n in 0..3 {
        let what = json!({"jti": format!("token-{n}"), "reason": "leaked"});
        last = rig.revoked(&one, &what);
    }
    wait_for("the witness has cosigned them", || {
        cosigned(&rig, &one) == last
    });
    stop(one);
    let size = before.int8(0, 0).expect("a size");
    let old = [
        Param::Int8(size),
        Param::Bytes(before.bytes(0, 1).expect("a root")),
    ];
    primary.admin(
        "UPDATE svc_passport.log_head SET size = $1, root = $2",
        &old,
    );
    primary.admin(
        "DELETE FROM svc_passport.log_batch WHERE first >= $1",
        &old[..1],
    );
    rig.dirs[1] = private_dir();
    rig.copy_key();
    let two = rig.try_start(1).expect("it starts");
    wait_for("it says why", || {
        let ready = two.ready();
        !ready.ready && ready.missing.contains(&"revocations".to_owned())
    });
    assert_eq!(rig.try_issue(&two, "user:1").status, 503);
    let what = json!({"jti": "token-9", "reason": "leaked"});
    assert_eq!(rig.revoke(&two, &what).status, 503);
    let now = primary.admin(head, &[]).int8(0, 0).expect("a size");
    assert_eq!(now, size, "nothing was written");
    stop(two);

    // Without its witness a node can only compare with what it has seen itself.
    stop(witness);
    let two = rig.try_start(1).expect("it starts");
    wait_for("it is ready", || two.ready().ready);
    wait_for("it says so", || {
        two.ready().degraded.contains(&"witness".to_owned())
    });
    stop(two);
}
