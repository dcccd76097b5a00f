//! Rates of appends to a log in PostgreSQL with a synchronous standby on the same machine, of the fleet on such a database, and the room
//! that entries take in it: `ha-rates SECONDS [LOAD-PROGRAM ARGUMENTS...]`.

use std::process::Command;
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
    let mut args = std::env::args().skip(1);
    let seconds = args.next();
    let seconds = seconds.map_or(5, |text| text.parse().expect("a number of seconds"));
    let cluster = Cluster::pair();
    println!(
        "entries of {ENTRY_BYTES} bytes, one append in flight, PostgreSQL with a synchronous standby on the same disk"
    );
    for entries in [1, 64, 512] {
        measure(&cluster, entries, Duration::from_secs(seconds));
    }
    if let Some(load) = args.next() {
        fleet(&cluster, &load, &args.collect::<Vec<_>>());
    }
}

/// Loads the fleet, and says what its logs take in the database.
fn fleet(cluster: &Cluster, load: &str, args: &[String]) {
    let url = cluster.primary.url();
    let mut command = Command::new(load);
    command.args(["fleet", "--database", &url]).args(args);
    let ended = command.status().expect("the load program runs");
    assert!(ended.success(), "{command:?}: {ended}");
    let logs = cluster.primary.admin(
        "SELECT schemaname::text FROM pg_tables WHERE tablename = 'log_head' AND schemaname <> 'rates' ORDER BY 1",
        &[],
    );
    for row in 0..logs.len() {
        let schema = logs.text(row, 0).expect("a name");
        let sizes = cluster.primary.admin(
            &format!(
                "SELECT (SELECT sum(size)::bigint FROM {schema}.log_head), sum(pg_total_relation_size(relid))::bigint \
                 FROM pg_partition_tree('{schema}.log_batch')"
            ),
            &[],
        );
        let number = |column| sizes.int8(0, column).expect("a number");
        let (entries, bytes) = (number(0), number(1));
        println!(
            "- log of {schema}: {entries} entries, {:.0} bytes each in the tables of its batches",
            bytes as f64 / entries.max(1) as f64
        );
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
