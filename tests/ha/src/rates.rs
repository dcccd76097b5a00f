//! Rates of appends to a log in PostgreSQL with a synchronous standby on the same machine: `ha-rates SECONDS`.

use std::time::Duration;

use ron_ha::cluster::{Cluster, waiter};
use ron_ha::contract::{append, soon};
use ron_kernel::{Clock, Deadline, SystemClock};
use ron_pg::{PgLogOptions, PgLogStore, Upkeep};
use ron_tlog::store::{Batch, LogStore, Place, Writer};
use ron_tlog::tree::empty_root;

/// Bytes of an entry, as a transfer has.
const ENTRY_BYTES: usize = 150;

fn main() {
    let seconds = std::env::args().nth(1);
    let seconds = seconds.map_or(5, |text| text.parse().expect("a number of seconds"));
    let cluster = Cluster::pair();
    println!(
        "entries of {ENTRY_BYTES} bytes, one append in flight, PostgreSQL with a synchronous standby on the same disk"
    );
    for entries in [1, 64, 512] {
        measure(&cluster, entries, Duration::from_secs(seconds));
    }
}

fn measure(cluster: &Cluster, entries: u32, time: Duration) {
    let log = format!("batches of {entries}");
    let options = PgLogOptions::new(&cluster.primary.conninfo(), "rates", &log, "rates");
    let installed = Upkeep::new(options.clone(), waiter()).install(soon());
    installed.expect("tables are made");
    let mut store = PgLogStore::new(options, waiter());
    let epoch = store.claim(0, soon()).expect("the log is free").epoch;
    let writer = Writer::Owner { epoch };
    let clock = SystemClock;
    let (begun, end) = (clock.now(), Deadline::within(time));
    let (mut first, mut before, mut waits) = (0, empty_root(), Vec::new());
    while !end.expired() {
        let place = Place {
            first,
            count: entries,
            before,
            root: [first as u8; 32],
        };
        let frame = vec![7; ENTRY_BYTES * entries as usize];
        let sent = clock.now();
        append(&mut store, writer, &Batch { place, frame }, soon()).expect("it is appended");
        waits.push(clock.now() - sent);
        (first, before) = (place.end(), place.root);
    }
    let took = (clock.now() - begun).as_secs_f64();
    waits.sort();
    let at = |part: usize| waits[(waits.len() - 1) * part / 100].as_secs_f64() * 1e3;
    println!(
        "batches of {entries:3}: {:8.0} entries/s, {:.2} ms median, {:.2} ms at 99 %",
        first as f64 / took,
        at(50),
        at(99)
    );
}
