//! A database on several hosts, of which some do not answer.

use std::net::TcpListener;
use std::time::Duration;

use ron_kernel::Deadline;
use ron_pg::{Connection, Durability, PgError, PgLogOptions, PgLogStore, Upkeep};
use ron_tlog::store::{LogStore as _, StoreError};
use rustix::process::Signal;

use crate::cluster::{Cluster, waiter};
use crate::contract::{soon, wait_for};

/// The URL of a database with a server at each of these ports.
fn url(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    format!("postgresql://ron@{}/postgres", hosts.join(","))
}

/// A host that is stopped accepts connections, by its kernel, and says nothing.
#[test]
fn a_silent_host_and_a_standby_are_passed_over() {
    let cluster = Cluster::pair();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = silent.local_addr().expect("it has an address").port();
    let standby = cluster.standby.as_ref().expect("a standby").port;
    let primary = cluster.primary.port;
    let is_primary = |ports: &[u16]| {
        let mut connection = Connection::connect(&url(ports), &waiter(), soon())?;
        let rows = connection.query("SELECT NOT pg_is_in_recovery()", &[], soon())?;
        rows.boolean(0, 0)
    };
    for ports in [
        [silent, standby, primary],
        [primary, silent, standby],
        [standby, primary, silent],
    ] {
        assert_eq!(is_primary(&ports), Ok(true), "{ports:?}");
    }
    let Err(PgError::Connect(why)) = is_primary(&[standby, standby]) else {
        panic!("a standby was taken for a primary");
    };
    assert!(why.contains(&standby.to_string()), "{why}");
}

/// A claim that waits at a server which is no more the primary is not waited for.
#[test]
fn a_claim_at_a_stopped_primary_is_made_again_at_the_new_one() {
    let mut cluster = Cluster::pair();
    let standby = cluster.standby.as_ref().expect("a standby").port;
    let conninfo = url(&[cluster.primary.port, standby]);
    let mut options = PgLogOptions::new(&conninfo, "ha", "stopped", "a");
    let installed = Upkeep::new(options.clone(), waiter()).install(soon());
    installed.expect("tables are made");
    // The new primary has no standby.
    options.durability = Durability::Storage;
    let mut store = PgLogStore::new(options, waiter());
    let first = store.claim(0, soon()).expect("the log is free");
    cluster.set_standby(false);
    let short = || Deadline::within(Duration::from_secs(3));
    let claimed = store.claim(first.epoch, short());
    assert!(
        matches!(claimed, Err(StoreError::Unknown(_))),
        "{claimed:?}"
    );
    cluster.primary.signal(Signal::STOP);
    let promoted = cluster.standby.take().expect("a standby");
    promoted.signal(Signal::CONT);
    promoted.admin("SELECT pg_promote(true, 60)", &[]);
    wait_for("the claim is made at the new primary", || {
        store.claim(first.epoch, short()).is_ok()
    });
    assert!(store.head(soon()).expect("the head").epoch > first.epoch);
    drop(promoted);
}
