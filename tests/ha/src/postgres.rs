//! The contract on PostgreSQL with a synchronous standby, and what holds of PostgreSQL alone.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_pg::{Durability, PgLogBeat, PgLogOptions, PgLogStore, Upkeep};

use crate::cluster::{Cluster, waiter};
use crate::contract::{Rig, TwoHosts, soon, wait_for};

/// A cluster as the contract breaks it.
#[derive(Debug)]
pub struct PgRig(Mutex<Broken>);

#[derive(Debug)]
struct Broken {
    cluster: Cluster,
    installed: BTreeSet<String>,
    durability: Durability,
}

impl PgRig {
    pub fn new(cluster: Cluster, durability: Durability) -> Self {
        Self(Mutex::new(Broken {
            cluster,
            installed: BTreeSet::new(),
            durability,
        }))
    }

    pub fn durability(&self) -> Durability {
        self.0.lock().unwrap().durability
    }

    /// Options of a log, whose tables are made the first time.
    pub fn options(&self, log: &str, holder: &str) -> PgLogOptions {
        let mut broken = self.0.lock().unwrap();
        let conninfo = broken.cluster.primary.conninfo();
        let mut options = PgLogOptions::new(&conninfo, "ha", log, holder);
        options.durability = broken.durability;
        options.guard = Some("ha.guard".into());
        if broken.installed.insert(log.into()) {
            let mut upkeep = Upkeep::new(options.clone(), waiter());
            upkeep.install(soon()).expect("tables are made");
            let guard = "CREATE TABLE IF NOT EXISTS ha.guard AS SELECT 0::bigint AS version";
            broken.cluster.primary.admin(guard, &[]);
            let grant = "GRANT ALL ON ha.guard TO ron";
            broken.cluster.primary.admin(grant, &[]);
        }
        options
    }

    pub fn cluster<T>(&self, work: impl FnOnce(&mut Cluster) -> T) -> T {
        work(&mut self.0.lock().unwrap().cluster)
    }
}

impl TwoHosts for PgRig {
    fn short(&self) -> Duration {
        // An append has to be sent within it, also on a slow machine that starts other servers meanwhile.
        Duration::from_secs(3)
    }

    fn set_standby(&self, reachable: bool) {
        self.cluster(|cluster| cluster.set_standby(reachable));
    }

    fn set_synchronous(&self, synchronous: bool) {
        let names = if synchronous { "s1" } else { "" };
        self.cluster(|cluster| cluster.primary.set("synchronous_standby_names", names));
        // Stores read the settings once a second.
        let (_trigger, never) = Shutdown::pair();
        never.wait(Deadline::within(Duration::from_millis(1_100)));
    }

    fn cancel_waits(&self) {
        let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        wait_for("a write waits for the standby", || {
            self.cluster(|cluster| cluster.primary.admin(sql, &[]).int8(0, 0) != Ok(0))
        });
    }

    fn restart_primary(&self) {
        self.cluster(Cluster::restart_primary);
    }
}

impl Rig for PgRig {
    type Store = PgLogStore;
    type Beat = PgLogBeat;

    fn store(&self, log: &str, holder: &str) -> PgLogStore {
        PgLogStore::new(self.options(log, holder), waiter())
    }

    fn set_version(&self, version: u64) {
        self.options("guard", "guard"); // which makes the table
        let waits = "set_config('synchronous_commit', 'on', true) = 'on'";
        let sql = format!("UPDATE ha.guard SET version = {version} WHERE {waits}");
        self.cluster(|cluster| cluster.primary.admin(&sql, &[]));
    }

    fn beat(&self, log: &str) -> PgLogBeat {
        PgLogBeat::new(self.options(log, "beat"), waiter())
    }

    fn fail_over(&self) {
        let mut broken = self.0.lock().unwrap();
        broken.cluster.fail_over();
        broken.durability = Durability::Storage; // the new primary has no standby yet
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write, copy};
    use std::net::{Shutdown as Half, TcpListener, TcpStream};
    use std::sync::OnceLock;

    use ron_kernel::{Clock, OsNet, SystemClock};
    use ron_pg::{Connection, Param, PgError, Waiter};
    use ron_tlog::store::{LogStore, Refusal, StoreError, Writer};
    use ron_tlog::tree::Frontier;

    use super::*;
    use crate::contract::{append, batch, rules};

    #[test]
    fn postgresql_keeps_the_contract() {
        let rig = PgRig::new(Cluster::pair(), Durability::Standby);
        // The rules of a store come last: they take the primary away.
        let nodes = crate::log::rules()
            .into_iter()
            .chain(crate::once::rules())
            .chain(crate::shared_log::rules())
            .chain(crate::ledger::rules())
            .chain(crate::migrate::rules());
        for (rule, check) in nodes.chain(rules()) {
            let begun = SystemClock.now();
            check(&rig);
            let took = SystemClock.now() - begun;
            println!("{rule}: {:.1} s", took.as_secs_f64());
        }
    }

    /// Every setting that would let an acknowledged entry vanish.
    #[test]
    fn an_unsafe_server_is_refused() {
        let rig = PgRig::new(Cluster::pair(), Durability::Standby);
        let mut options = rig.options("unsafe", "a");
        let claim = |options: &PgLogOptions| {
            let mut store = PgLogStore::new(options.clone(), waiter());
            let head = store.head(soon()).expect("reads go on");
            store.claim(head.epoch, soon())
        };
        assert!(claim(&options).is_ok());
        for (setting, wrong, right) in [
            ("fsync", "off", "on"),
            ("full_page_writes", "off", "on"),
            ("synchronous_standby_names", "", "s1"),
            ("synchronous_standby_names", "*", "s1"),
            ("synchronous_standby_names", "ANY 1 (s1, s2)", "s1"),
        ] {
            rig.cluster(|cluster| cluster.primary.set(setting, wrong));
            let refused = claim(&options);
            let Err(StoreError::Refused(Refusal::Unsafe(why))) = refused else {
                panic!("{setting} = {wrong}: {refused:?}");
            };
            assert!(why.contains(setting), "{why}");
            rig.cluster(|cluster| cluster.primary.set(setting, right));
        }
        // Settings of the role are set right in each session, and warnings are not turned off.
        for set in [
            "synchronous_commit = 'off'",
            "client_min_messages = 'error'",
        ] {
            let sql = format!("ALTER ROLE ron SET {set}");
            rig.cluster(|cluster| cluster.primary.admin(&sql, &[]));
        }
        assert!(claim(&options).is_ok());
        options.conninfo = rig.cluster(|c| c.standby.as_ref().unwrap().conninfo());
        let refused = claim(&options);
        let Err(StoreError::Refused(Refusal::Unsafe(why))) = refused else {
            panic!("a standby: {refused:?}");
        };
        assert!(why.contains("recovery"), "{why}");
    }

    /// Sessions that wait for the standby do not notice that their client is gone, so a store must not add more of them.
    #[test]
    fn a_store_that_waits_has_two_sessions_at_most() {
        let rig = PgRig::new(Cluster::pair(), Durability::Standby);
        let mut store = rig.store("sessions", "a");
        let epoch = store.claim(0, soon()).unwrap().epoch;
        let writer = Writer::Owner { epoch };
        let only = batch(&mut Frontier::new(), &["one"]);
        rig.set_standby(false);
        let short = || Deadline::within(rig.short());
        let unknown = append(&mut store, writer, &only, short());
        assert!(
            matches!(unknown, Err(StoreError::Unknown(_))),
            "{unknown:?}"
        );
        let sql = "SELECT count(*) FROM pg_stat_activity \
                   WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        for _ in 0..4 {
            let waits = store.resolve(writer, &[], &only, short());
            assert!(matches!(waits, Err(StoreError::Unknown(_))), "{waits:?}");
            let sessions = rig.cluster(|cluster| cluster.primary.admin(sql, &[]).int8(0, 0));
            assert_eq!(sessions, Ok(2));
        }
        rig.set_standby(true);
        assert!(store.resolve(writer, &[], &only, soon()).unwrap().done);
    }

    /// A pooler makes up the number by which a client cancels: the server's own is another.
    #[test]
    fn a_pooler_is_refused() {
        let cluster = Cluster::alone();
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = proxy.local_addr().unwrap().port();
        let conninfo = format!(
            "hostaddr=127.0.0.1 port={port} user=ron dbname=postgres sslmode=disable gssencmode=disable"
        );
        let mut options = PgLogOptions::new(&conninfo, "ha", "pooler", "a");
        options.durability = Durability::Storage;
        let both: OnceLock<(TcpStream, TcpStream)> = OnceLock::new();
        let outcomes = ron_kernel::scoped(3, |part| match part {
            0 => Some(PgLogStore::new(options.clone(), waiter()).claim(0, soon())),
            1 => {
                let (client, _) = proxy.accept().unwrap();
                let server = TcpStream::connect(("127.0.0.1", cluster.primary.port)).unwrap();
                greet(&client, &server);
                let _ = both.set((client.try_clone().unwrap(), server.try_clone().unwrap()));
                let _ = copy(&mut &client, &mut &server); // until the client closes
                let _ = server.shutdown(Half::Both);
                None
            }
            _ => {
                wait_for("a session", || both.get().is_some());
                let (client, server) = both.get().unwrap();
                let _ = copy(&mut &*server, &mut &*client);
                None
            }
        });
        let Some(Err(StoreError::Refused(Refusal::Unsafe(why)))) = &outcomes[0] else {
            panic!("{outcomes:?}");
        };
        assert!(why.contains("pooler"), "{why}");
    }

    /// Passes the start of a session on, with another process number.
    fn greet(mut client: &TcpStream, mut server: &TcpStream) {
        let mut length = [0; 4];
        client.read_exact(&mut length).unwrap();
        let mut rest = vec![0; u32::from_be_bytes(length) as usize - 4];
        client.read_exact(&mut rest).unwrap();
        server.write_all(&[&length[..], &rest].concat()).unwrap();
        loop {
            let mut head = [0; 5];
            server.read_exact(&mut head).unwrap();
            let length = u32::from_be_bytes(head[1..].try_into().unwrap());
            let mut body = vec![0; length as usize - 4];
            server.read_exact(&mut body).unwrap();
            if head[0] == b'K' {
                body[3] ^= 1;
            }
            client.write_all(&[&head[..], &body].concat()).unwrap();
            if head[0] == b'Z' {
                return;
            }
        }
    }

    #[test]
    fn partitions_are_made_ahead_of_need() {
        let cluster = Cluster::alone();
        let mut options = PgLogOptions::new(&cluster.primary.conninfo(), "ha", "parts", "a");
        options.durability = Durability::Storage;
        options.partition_entries = 8;
        let mut upkeep = Upkeep::new(options.clone(), waiter());
        upkeep.install(soon()).unwrap();
        upkeep.install(soon()).unwrap();
        let mut store = PgLogStore::new(options, waiter());
        let epoch = store.claim(0, soon()).unwrap().epoch;
        let (mut tree, mut all) = (Frontier::new(), Vec::new());
        let next = |tree: &mut Frontier| batch(tree, &["a", "b", "c"]);
        let writer = Writer::Owner { epoch };
        let mut ahead = Vec::new();
        for _ in 0..6 {
            let three = next(&mut tree);
            append(&mut store, writer, &three, soon()).unwrap();
            all.push(three);
            ahead.push(upkeep.ahead(soon()).unwrap());
        }
        // 3, 6, 9, 12, 15, 18 entries of 8 each.
        assert_eq!(ahead, [0, 1, 0, 1, 1, 0]);
        // Without upkeep a batch is refused, changes nothing, and goes in afterwards.
        for _ in 0..2 {
            let three = next(&mut tree);
            append(&mut store, writer, &three, soon()).unwrap();
            all.push(three);
        }
        let three = next(&mut tree);
        let refused = append(&mut store, writer, &three, soon());
        let Err(StoreError::Refused(Refusal::Rejected(why))) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("partition"), "{why}");
        assert_eq!(store.head(soon()).unwrap().size, 24);
        upkeep.ahead(soon()).unwrap();
        append(&mut store, writer, &three, soon()).unwrap();
        all.push(three);
        let read = store.read_from(0, 1_000_000, soon()).unwrap();
        assert!(read.into_iter().map(|stored| stored.batch).eq(all));
        // 27 entries: three partitions are closed, and are frozen once.
        assert_eq!(upkeep.freeze_closed(soon()), Ok(3));
        assert_eq!(upkeep.freeze_closed(soon()), Ok(0));
        let sql = "SELECT count(*) FROM pg_class WHERE relname ~ '^log_batch_.*_[0-2]$' \
                   AND relallvisible = relpages AND relpages > 0";
        let frozen = cluster.primary.admin(sql, &[]);
        assert_eq!(frozen.int8(0, 0), Ok(3));
    }

    #[test]
    fn expired_ids_are_forgotten() {
        let cluster = Cluster::alone();
        let mut options = PgLogOptions::new(&cluster.primary.conninfo(), "ha", "ids", "a");
        options.durability = Durability::Storage;
        options.once_kept = Duration::ZERO;
        let mut upkeep = Upkeep::new(options.clone(), waiter());
        upkeep.install(soon()).unwrap();
        let mut store = PgLogStore::new(options.clone(), waiter());
        let epoch = store.claim(0, soon()).unwrap().epoch;
        let id = ron_tlog::store::Once {
            scope: "scope".into(),
            key: "key".into(),
            body_hash: [1; 32],
            answer: Vec::new(),
        };
        let mut tree = Frontier::new();
        for _ in 0..2 {
            let one = batch(&mut tree, &["one"]);
            let appended = store.append(
                Writer::Owner { epoch },
                std::slice::from_ref(&id),
                &mut |_| Some(one.clone()),
                soon(),
            );
            assert_eq!(appended.unwrap().repeats, []);
            assert_eq!(upkeep.forget_expired(soon()), Ok(1));
        }
        assert_eq!(upkeep.forget_expired(soon()), Ok(0));
    }

    #[test]
    fn a_node_that_starts_does_not_wait_for_appends() {
        let cluster = Cluster::alone();
        let conninfo = cluster.primary.conninfo();
        let mut options = PgLogOptions::new(&conninfo, "ha", "begun", "a");
        options.durability = Durability::Storage;
        Upkeep::new(options.clone(), waiter())
            .install(soon())
            .unwrap();
        // As an append that has taken its ids and has not reached the log's head yet.
        let mut append = Connection::connect(&conninfo, &waiter(), soon()).unwrap();
        append.query("BEGIN", &[], soon()).unwrap();
        let lock = "LOCK TABLE ha.log_unique, ha.log_batch IN ROW EXCLUSIVE MODE";
        append.query(lock, &[], soon()).unwrap();
        for log in ["begun", "another"] {
            options.log = log.into();
            let installed = Upkeep::new(options.clone(), waiter()).install(soon());
            assert_eq!(installed, Ok(()), "{log}");
        }
        append.query("COMMIT", &[], soon()).unwrap();
    }

    #[test]
    fn calls_of_a_connection_end() {
        let cluster = Cluster::alone();
        let conninfo = cluster.primary.conninfo();
        let connect = || Connection::connect(&conninfo, &waiter(), soon()).unwrap();
        let soon_over = || Deadline::within(Duration::from_millis(200));

        // At the deadline; the answer is still waited for afterwards.
        let mut connection = connect();
        let slow = connection.query("SELECT 7::bigint FROM pg_sleep(1)", &[], soon_over());
        assert_eq!(slow.map(|rows| rows.len()), Err(PgError::TimedOut));
        let busy = connection.query("SELECT 1", &[], soon());
        assert!(matches!(busy, Err(PgError::Misuse(_))));
        assert_eq!(connection.finish(soon()).unwrap().int8(0, 0), Ok(7));

        // Values, also empty ones and one that does not fit the socket's buffers.
        let large = vec![7; 20_000_000];
        let sql = "SELECT $1::bytea, $2::text, $3::bigint, $4::int, length($5::bytea), $6::text[] = ARRAY['a', ''], NULL";
        let params = [
            Param::Bytes(b""),
            Param::Text("text"),
            Param::Int8(-5),
            Param::Int4(6),
            Param::Bytes(&large),
            Param::Texts(&["a", ""]),
        ];
        let rows = connection.query(sql, &params, soon()).unwrap();
        assert_eq!(rows.bytes(0, 0), Ok(&b""[..]));
        assert_eq!(rows.text(0, 1), Ok("text"));
        assert_eq!((rows.int8(0, 2), rows.int4(0, 3)), (Ok(-5), Ok(6)));
        assert_eq!(
            (rows.int4(0, 4), rows.boolean(0, 5)),
            (Ok(20_000_000), Ok(true))
        );
        assert!(rows.bytes(0, 6).is_err() && rows.bytes(1, 0).is_err());
        let echoed = connection.query("SELECT $1::bytea", &[Param::Bytes(&large)], soon());
        assert_eq!(echoed.unwrap().bytes(0, 0), Ok(&large[..]));

        // Errors and notices of the server.
        let failed = connection.query("SELECT 1 / 0", &[], soon());
        let Err(PgError::Server {
            sqlstate, fatal, ..
        }) = failed
        else {
            panic!("{failed:?}");
        };
        assert_eq!((sqlstate.as_str(), fatal), ("22012", false));
        let notice = "DO $$ BEGIN RAISE WARNING 'careful'; END $$";
        let rows = connection.query(notice, &[], soon()).unwrap();
        assert_eq!(rows.notices[0].message, "careful");
        let quiet = connection.query("SELECT 1", &[], soon()).unwrap();
        assert_eq!(quiet.notices, []);
        let ended = connection.query("SELECT pg_terminate_backend(pg_backend_pid())", &[], soon());
        assert!(
            matches!(
                ended,
                Err(PgError::Server { fatal: true, .. } | PgError::Lost(_))
            ),
            "{ended:?}"
        );

        // No server, and a server that says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let conninfo = format!("hostaddr=127.0.0.1 port={port} user=ron");
        let waits = Connection::connect(&conninfo, &waiter(), soon_over());
        assert!(matches!(waits, Err(PgError::Connect(_))), "{waits:?}");
        drop(silent);
        let refused = Connection::connect(&conninfo, &waiter(), soon());
        assert!(matches!(refused, Err(PgError::Connect(_))), "{refused:?}");
    }

    #[test]
    fn tls_and_passwords_work_without_waits() {
        let cluster = Cluster::alone();
        let conninfo = cluster.add_tls();
        let mut connection = Connection::connect(&conninfo, &waiter(), soon()).unwrap();
        let sql = "SELECT version, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let rows = connection.query(sql, &[], soon()).unwrap();
        assert_eq!(rows.boolean(0, 1), Ok(true));
        let large = vec![7; 5_000_000];
        for bytes in (0..50).map(|n| n * 997).chain([5_000_000]) {
            let sent = [Param::Bytes(&large[..bytes])];
            let echoed = connection.query("SELECT $1::bytea", &sent, soon());
            assert_eq!(echoed.unwrap().bytes(0, 0), Ok(&large[..bytes]));
        }
        for wrong in [
            conninfo.replace("secret", "guess"),
            conninfo
                .replace("channel_binding=require", "")
                .replace("verify-ca", "disable"),
        ] {
            let refused = Connection::connect(&wrong, &waiter(), soon());
            assert!(matches!(refused, Err(PgError::Connect(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_service_that_stops_does_not_wait_for_the_server() {
        let cluster = Cluster::alone();
        let (trigger, token) = Shutdown::pair();
        let waiter = Waiter::new(&OsNet, &token, Duration::ZERO).unwrap();
        let conninfo = cluster.primary.conninfo();
        let mut connection = Connection::connect(&conninfo, &waiter, soon()).unwrap();
        connection.send("SELECT pg_sleep(300)", &[]).unwrap();
        let connection = Mutex::new(connection);
        let begun = SystemClock.now();
        let outcomes = ron_kernel::scoped(2, |part| {
            if part == 0 {
                return connection.lock().unwrap().finish(soon()).err();
            }
            let never = Shutdown::pair().1;
            never.wait(Deadline::within(Duration::from_millis(200)));
            trigger.fire();
            None
        });
        assert_eq!(outcomes[0], Some(PgError::Stopping));
        assert!(SystemClock.now() - begun < Duration::from_secs(30));
    }

    /// A call that waits in vain does not end what the others of the drain write, once the server answers again.
    #[test]
    fn a_service_that_stops_waits_for_the_grace() {
        const GRACE: Duration = Duration::from_secs(2);
        let cluster = Cluster::alone();
        let (trigger, token) = Shutdown::pair();
        let waiter = Waiter::new(&OsNet, &token, GRACE).unwrap();
        let conninfo = cluster.primary.conninfo();
        let connect = || Connection::connect(&conninfo, &waiter, soon());
        let mut connection = connect().unwrap();
        trigger.fire();
        Shutdown::pair().1.wait(Deadline::within(GRACE));
        let sleep = |connection: &mut Connection, seconds: &str| {
            let sql = format!("SELECT pg_sleep({seconds})");
            connection.query(&sql, &[], soon()).map(|_| ())
        };
        assert_eq!(sleep(&mut connection, "0.05"), Ok(()), "after the stop too");
        let begun = SystemClock.now();
        assert_eq!(sleep(&mut connection, "30"), Err(PgError::Stopping));
        let waited = SystemClock.now() - begun;
        assert!((GRACE..2 * GRACE).contains(&waited), "{waited:?}");
        assert_eq!(connect().err(), Some(PgError::Stopping), "it does not wait");
        assert!(SystemClock.now() - begun < waited + GRACE / 2);
        let mut again = None;
        wait_for("the server is asked again", || {
            again = connect().ok();
            again.is_some()
        });
        let long = "0.8"; // more than the part of the grace that a server has which was silent
        assert_eq!(sleep(&mut again.unwrap(), long), Ok(()));
    }
}
