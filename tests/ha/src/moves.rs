//! A ledger as a service goes to a database and back, with callers before and after: what they are answered, and what is refused.
#![allow(clippy::disallowed_methods)] // a test waits

use std::fs;

use ron_files::Dir;
use ron_kernel::{OsRandom, Random as _};
use ron_ledger::{migrate, receipt};
use ron_service::Running;
use ron_service::log_move::{Move, MoveError, Step};
use ron_service::records::{Engine, EngineDurability, Postgres};
use ron_tlog::VerifierKey;
use ron_tlog::append::Migrated;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::contract::wait_for;
use crate::ledgers::Rig;
use crate::services::stop;

/// The ledger of a directory, which a command moves.
struct Ledger {
    data: Dir,
    vkey: VerifierKey,
    engine: Engine,
}

impl Ledger {
    fn of(rig: &Rig, node: usize) -> Self {
        let data = rig.dirs[node].path();
        let vkey = fs::read_to_string(data.join("log.vkey")).expect("the node has started once");
        Self {
            data: Dir::os(data),
            vkey: VerifierKey::parse(vkey.trim()).expect("a key"),
            engine: Engine {
                url: rig.cluster.primary.url(),
                schema: "ron_ledger".into(),
                durability: EngineDurability::Standby,
            },
        }
    }

    fn moving(&self) -> Move<'_> {
        Move {
            data: &self.data,
            log: migrate::LOG,
            place: "host-a:/data",
            keys: std::slice::from_ref(&self.vkey),
            engine: &self.engine,
            engines: &Postgres,
            run: OsRandom.u64(),
        }
    }

    fn to_engine(&self, is_resumed: bool) -> Result<Migrated, MoveError> {
        self.moving().to_engine(is_resumed, &mut |_| {})
    }

    fn to_files(&self, is_resumed: bool) -> Result<Migrated, MoveError> {
        self.moving().to_files(is_resumed, &mut |_| {})
    }

    fn meta(&self) -> String {
        fs::read_to_string(self.data.path().join("log/log.meta")).expect("a log")
    }
}

/// What callers see of a ledger that does not change: balances, and the answer to each request that was sent before.
fn seen(rig: &Rig, node: &Running, keys: usize) -> Vec<Vec<u8>> {
    let balance = rig.wallet.get(node, "/v1/ledger/accounts/alice").body;
    let again = (0..keys).map(|n| {
        let reply = rig.issue(node, &format!("k{n}"));
        assert_eq!(reply.status, 200);
        reply.body
    });
    [balance].into_iter().chain(again).collect()
}

/// The receipts of all entries, once a checkpoint covers them.
fn receipts(rig: &Rig, node: &Running, keys: usize) -> Vec<Vec<u8>> {
    let one = |n| {
        let reply = rig.issue(node, &format!("k{n}"));
        let told: Value = serde_json::from_slice(&reply.body).expect("JSON");
        let txid = told["results"][0]["txid"].as_str().expect("an id");
        let path = format!("/v1/ledger/tx/{txid}/receipt");
        let mut body = Vec::new();
        wait_for("a checkpoint covers the entry", || {
            let reply = rig.wallet.get(node, &path);
            body = reply.body;
            reply.status == 200
        });
        body
    };
    (0..keys).map(one).collect()
}

fn verify(receipts: &[Vec<u8>], vkey: &VerifierKey) {
    for json in receipts {
        let file = receipt::read(json).expect("a receipt");
        let proven = receipt::verify(&file, vkey, None);
        assert!(proven.is_ok(), "{:?}", proven.err());
    }
}

/// Root and size as a node shows them.
fn head(rig: &Rig, node: &Running) -> [Value; 2] {
    let head = rig.head(node);
    [head["seq"].clone(), head["root"].clone()]
}

fn why<T>(outcome: Result<T, MoveError>) -> String {
    outcome.map(drop).unwrap_err().to_string()
}

#[test]
fn a_ledger_goes_to_a_database_and_back() {
    let rig = Rig::new(Cluster::pair());
    let files = || rig.try_start_with(0, "").expect("a ledger in files");
    let node = files();
    for n in 0..20 {
        assert_eq!(rig.issue(&node, &format!("k{n}")).status, 200);
    }
    let before = receipts(&rig, &node, 20);
    let ledger = Ledger::of(&rig, 0);
    verify(&before, &ledger.vkey);
    // The service goes on until the command asks for its end, and takes entries meanwhile.
    let mut node = Some(node);
    let mut expected = None;
    let moved = ledger.moving().to_engine(false, &mut |step| {
        let Step::Stop(by) = step else { return };
        assert!(by.contains("in use by process"), "{by}");
        let running = node.take().expect("it is asked to stop once");
        assert_eq!(rig.issue(&running, "k20").status, 200);
        expected = Some((seen(&rig, &running, 21), head(&rig, &running)));
        stop(running);
    });
    let (expected, root) = expected.expect("the ledger ran");
    assert_eq!(moved.expect("it is moved").size, 22);
    assert!(
        ledger
            .meta()
            .contains("copy_of engine postgresql://ron@127.0.0.1")
    );
    let refused = rig.try_start_with(0, "").map(stop).unwrap_err();
    assert!(
        refused.contains("schema ron_ledger") && refused.contains("migrate --to files"),
        "{refused}"
    );
    let said = why(ledger.to_engine(false));
    assert!(said.contains("nothing to move"), "{said}");
    // The same answers from the database, under the same root, and old receipts verify.
    let node = rig.start(0);
    assert_eq!(head(&rig, &node), root);
    assert_eq!(seen(&rig, &node, 21), expected);
    wait_for("the node is active", || rig.is_active(&node));
    rig.issue_in_the_end(&node, "k21");
    verify(&before, &ledger.vkey);
    verify(&receipts(&rig, &node, 22), &ledger.vkey);
    rig.copy_key(1);
    let other = rig.start(1);
    wait_for("the second node follows", || {
        head(&rig, &other) == head(&rig, &node)
    });
    let said = why(ledger.to_files(false));
    assert!(said.contains("in use"), "{said}");
    stop(node);
    wait_for("the second node is active", || rig.is_active(&other));
    rig.issue_in_the_end(&other, "k22");
    let (expected, root) = (seen(&rig, &other, 23), head(&rig, &other));
    // Back, while the second node is active: it writes nothing more, and says where the ledger is.
    let moved = ledger.to_files(false).expect("it is moved back");
    assert_eq!(moved.size, 24);
    wait_for("the second node does not write", || {
        rig.issue(&other, "late").status == 503
    });
    wait_for("it says where the ledger is", || {
        let closed = rig.head(&other)["closed"].to_string();
        closed.contains("moved to the files at host-a:/data")
    });
    let node = files();
    assert_eq!(head(&rig, &node), root);
    assert_eq!(seen(&rig, &node, 23), expected);
    verify(&before, &ledger.vkey);
    assert_eq!(rig.issue(&node, "k23").status, 200);
    verify(&receipts(&rig, &node, 24), &ledger.vkey);
    stop(node);
    stop(other);
    // A start with the database is refused: the files are a log of their own again.
    let refused = rig.try_start(0).map(stop).unwrap_err();
    assert!(refused.contains("log of its own"), "{refused}");
}

/// A rehearsal leaves nothing; a database that would lose what it acknowledges is refused before anything is copied.
#[test]
fn a_rehearsal_leaves_nothing_and_an_unsafe_database_is_refused() {
    let rig = Rig::new(Cluster::pair());
    let node = rig.try_start_with(0, "").expect("a ledger in files");
    for n in 0..5 {
        assert_eq!(rig.issue(&node, &format!("k{n}")).status, 200);
    }
    receipts(&rig, &node, 5);
    let ledger = Ledger::of(&rig, 0);
    let schemas = || {
        let sql = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'ron_ledger%'";
        rig.cluster.primary.admin(sql, &[]).int8(0, 0)
    };
    let meta = ledger.meta();
    for _ in 0..2 {
        let copied = ledger.moving().rehearse(&mut |_| {}).expect("a rehearsal");
        assert_eq!((copied.size, copied.sent), (6, 6));
        assert_eq!(schemas(), Ok(0));
    }
    let foreign = [
        "CREATE SCHEMA ron_ledger_rehearsal",
        "CREATE TABLE ron_ledger_rehearsal.kept (n int)",
    ];
    for sql in foreign {
        rig.cluster.primary.admin(sql, &[]);
    }
    let said = why(ledger.moving().rehearse(&mut |_| {}));
    assert!(said.contains("cannot drop schema"), "{said}");
    let kept = "SELECT count(*) FROM ron_ledger_rehearsal.kept";
    assert_eq!(rig.cluster.primary.admin(kept, &[]).int8(0, 0), Ok(0));
    rig.cluster
        .primary
        .admin("DROP SCHEMA ron_ledger_rehearsal CASCADE", &[]);
    let names = ["synchronous_standby_names", "*", "s1"];
    rig.cluster.primary.set(names[0], names[1]);
    let said = why(ledger.to_engine(false));
    assert!(said.contains("must name a standby"), "{said}");
    assert_eq!(schemas(), Ok(0));
    rig.cluster.primary.set(names[0], names[2]);
    assert_eq!(ledger.meta(), meta);
    assert_eq!(rig.issue(&node, "after").status, 200);
    stop(node);
    // Without the service nothing has to be waited for.
    assert_eq!(ledger.to_engine(false).expect("it is moved").size, 7);
}
