//! The gate of a ledger whose log is in an engine, and the role of its node.

use std::path::Path;
use std::sync::Arc;

use ron_files::{Disk, DiskRoom, SimDisk};
use ron_kernel::{Registry, SystemClock};
use ron_proto::Timestamp;
use ron_proto::ledger::ClosedCause;

use super::support::*;
use crate::engine::Engine;
use crate::ledger::{BROKEN, Gate, LOST, POISONED};
use crate::role::Role;

#[test]
fn a_holder_that_cannot_write_leaves_the_log_to_another_unless_the_engine_lost_data() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let engine = Engine::open(disk, Path::new("/ledger"), options(65_536), Timestamp(T0)).unwrap();
    let shared = engine.shared();
    for (why, stays, cause) in [
        (POISONED, false, ClosedCause::DiskFailed),
        (BROKEN, false, ClosedCause::Broken),
        (LOST, true, ClosedCause::EngineLostData),
    ] {
        let role = Arc::new(Role::standby("http://10.0.0.1:7460", &Registry::new("t")));
        let clock = SystemClock::shared();
        let gate = Gate::new(clock, DiskRoom::unlimited(), Some(Arc::clone(&role)));
        let closed = gate.closed(&shared).expect("a standby writes nothing");
        assert_eq!(closed.cause, ClosedCause::NotActive);
        role.set_active(true);
        assert_eq!(gate.closed(&shared), None);
        assert!(gate.close(why), "it was open");
        assert!(!gate.close(POISONED), "it is closed already");
        assert!(gate.is_shut());
        let closed = gate.closed(&shared).expect("it is closed");
        assert_eq!(closed.cause, cause, "the first reason is not the gravest");
        assert_eq!(role.is_active(), stays, "{cause:?}");
    }
}
