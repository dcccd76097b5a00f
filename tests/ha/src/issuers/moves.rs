//! An issuer that goes to a database and back: what was revoked stays revoked, and any step of the way may fail.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ron_files::OsDisk;
use ron_http::Method;
use ron_kernel::{OsRandom, Random as _, SystemClock};
use ron_service::log_move::{Move, MoveError, Step};
use ron_service::records::{Engine, EngineDurability, Engines, Postgres};
use ron_service::{Config, Running, Service as _};
use ron_tlog::VerifierKey;
use ron_tlog::append::Migrated;
use ron_tlog::store::LogStore as _;
use serde_json::{Value, json};
use svc_passport::{IssuerMove, IssuerService, LOG_DIR, SvcPassport, USED_IDS, verify};
use tempfile::TempDir;

use super::Rig;
use crate::cluster::Cluster;
use crate::contract::{Rig as _, soon, wait_for};
use crate::memory::FAULTS;
use crate::migrate::world::{Ending, World};
use crate::services::{private_dir, stop, try_start};

/// The command on a data directory.
fn with<T>(
    (config, url, engines): (&str, &str, &dyn Engines),
    data: &Path,
    go: impl FnOnce(&IssuerMove<'_>) -> T,
) -> T {
    let text = format!("insecure_loopback = true\n{config}");
    let config = Config::from_toml(SvcPassport::TABLE, Path::new("passport.toml"), &text).unwrap();
    let service = IssuerService::of(&config, Arc::new(OsDisk)).unwrap();
    let vkey = fs::read_to_string(data.join("log.vkey")).unwrap();
    let keys = [VerifierKey::parse(vkey.trim()).unwrap()];
    let engine = Engine {
        url: url.into(),
        schema: "svc_passport".into(),
        durability: EngineDurability::Standby,
    };
    go(&IssuerMove {
        service: &service,
        log: Move {
            data: service.data(),
            log: LOG_DIR,
            place: "host-a:/data",
            keys: &keys,
            engine: &engine,
            engines,
            run: OsRandom.u64(),
        },
        random: OsRandom::shared(),
        clock: SystemClock::shared(),
    })
}

impl Rig {
    fn in_files(&self) -> Result<Running, String> {
        try_start::<SvcPassport>(&self.config(0, ""))
    }

    fn moving<T>(&self, go: impl FnOnce(&IssuerMove<'_>) -> T) -> T {
        let (config, url) = (self.config(0, ""), self.cluster.primary.url());
        with((&config, &url, &Postgres), self.dirs[0].path(), go)
    }

    fn to_files(&self, is_resumed: bool) -> Result<Migrated, MoveError> {
        self.moving(|issuer| issuer.to_files(is_resumed, &mut |_| {}))
    }

    fn events(&self, node: &Running) -> Vec<Value> {
        let reply = self.feed(node, 0);
        let page: Value = serde_json::from_slice(&reply.body).unwrap();
        page["events"].as_array().expect("events").clone()
    }

    /// What administrators see of the revocations, with reasons and callers.
    fn listed(&self, node: &Running) -> Value {
        let path = "/v1/passport/revocations?limit=100";
        let reply = self.operator.call(node, Method::GET, path, None, None);
        let page: Value = serde_json::from_slice(&reply.body).unwrap();
        page["revocations"].clone()
    }
}

fn jti(token: &str) -> Value {
    let claims = token.split('.').nth(1).expect("claims");
    let claims = ron_proto::b64::from_url(claims).expect("base64url");
    serde_json::from_slice::<Value>(&claims).expect("JSON")["jti"].clone()
}

fn why<T>(outcome: Result<T, MoveError>) -> String {
    outcome.map(drop).unwrap_err().to_string()
}

/// The offline check of the log in a data directory: leaves, and rows if there are any.
fn verified(data: &Path) -> (u64, Option<u64>) {
    let vkey = fs::read_to_string(data.join("log.vkey")).unwrap();
    let vkey = VerifierKey::parse(vkey.trim()).unwrap();
    let verified = verify(&data.join(LOG_DIR), &vkey, &mut |_, _| {}).unwrap();
    (verified.leaves, verified.rows)
}

#[test]
fn an_issuer_goes_to_a_database_and_back() {
    let rig = Rig::new(Cluster::pair());
    let data = rig.dirs[0].path();
    let node = rig.in_files().expect("an issuer in files");
    wait_for("the issuer is ready", || node.ready().ready);
    let [good, bad, worse] = ["user:1", "user:2", "user:3"].map(|user| rig.issue(&node, user));
    rig.revoked(&node, &json!({"jti": jti(&bad), "reason": "stolen laptop"}));
    // The service goes on until the command asks for its end, and revokes meanwhile.
    let (mut node, mut expected) = (Some(node), None);
    let moved = rig.moving(|issuer| {
        issuer.to_engine(false, &mut |step| {
            let Step::Stop(by) = step else { return };
            assert!(by.contains("in use by process"), "{by}");
            let running = node.take().expect("it is asked to stop once");
            rig.revoked(
                &running,
                &json!({"jti": jti(&worse), "reason": "another one"}),
            );
            expected = Some((rig.events(&running), rig.listed(&running)));
            stop(running);
        })
    });
    let (events, listed) = expected.expect("the service ran");
    assert_eq!(moved.unwrap().size, events.len() as u64);
    assert!(listed.to_string().contains("stolen laptop"), "{listed}");
    let refused = rig.in_files().map(stop).unwrap_err();
    assert!(
        refused.contains("schema svc_passport") && refused.contains("migrate --to files"),
        "{refused}"
    );
    let said = why(rig.moving(|issuer| issuer.to_engine(false, &mut |_| {})));
    assert!(said.contains("nothing to move"), "{said}");
    // The same from the database, and at a second node.
    let nodes = rig.start_both();
    for node in &nodes {
        assert!(rig.events(node).starts_with(&events));
        assert!(rig.listed(node).to_string().contains("stolen laptop"));
        let verdicts = [&good, &bad, &worse].map(|token| rig.verdict(node, token));
        assert_eq!(verdicts, [true, false, false]);
    }
    rig.revoked(
        &nodes[1],
        &json!({"jti": jti(&good), "reason": "at the second node"}),
    );
    let events = rig.wait_for_one_feed(&nodes);
    let listed = rig.listed(&nodes[0]);
    let said = why(rig.to_files(false));
    assert!(said.contains("in use"), "{said}");
    let [one, two] = nodes;
    stop(one);
    assert_eq!(verified(data).0, events.len() as u64);
    // Back, while the second node runs: it revokes nothing more, and issues nothing.
    let moved = rig.to_files(false).unwrap();
    assert_eq!(moved.size, events.len() as u64);
    let late = rig.revoke(&two, &json!({"epoch": 2, "reason": "late"}));
    assert_ne!(late.status, 200);
    wait_for("the second node issues nothing", || {
        rig.try_issue(&two, "user:4").status == 503
    });
    stop(two);
    assert_eq!(
        verified(data),
        (events.len() as u64, Some(events.len() as u64))
    );
    let node = rig.in_files().expect("an issuer in files again");
    assert!(rig.events(&node).starts_with(&events));
    assert_eq!(
        rig.listed(&node).as_array().unwrap().len(),
        listed.as_array().unwrap().len()
    );
    wait_for("the issuer is ready", || node.ready().ready);
    for token in [&good, &bad, &worse] {
        assert!(!rig.verdict(&node, token));
    }
    let last = rig.issue(&node, "user:5");
    rig.revoked(
        &node,
        &json!({"jti": jti(&last), "reason": "after the way back"}),
    );
    let events = rig.events(&node);
    stop(node);
    let refused = rig.try_start(0).map(stop).unwrap_err();
    assert!(refused.contains("ron issuer migrate"), "{refused}");
    // There once more: what is there is compared, the rest is added.
    let again = rig
        .moving(|issuer| issuer.to_engine(false, &mut |_| {}))
        .unwrap();
    assert!(again.sent < again.size, "{again:?}");
    let node = rig.try_start(0).expect("it starts");
    wait_for("the node has read the log", || node.ready().ready);
    assert!(rig.events(&node).starts_with(&events));
    assert!(!rig.verdict(&node, &last));
    stop(node);
}

/// A data directory with revocations, its configuration without the place, and the engine's view of it.
struct Ways {
    rig: Rig,
    made: TempDir,
    leaves: u64,
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Ways {
    fn fork(&self) -> TempDir {
        let dir = private_dir();
        copy(self.made.path(), dir.path());
        dir
    }

    fn go<T>(&self, world: &World, data: &Path, go: impl FnOnce(&IssuerMove<'_>) -> T) -> T {
        let place = self.rig.dirs[0].path().display().to_string();
        let config = self
            .rig
            .config(0, "")
            .replace(&place, &data.display().to_string());
        with((&config, "memory://engine", world), data, go)
    }

    fn there(&self, world: &World, data: &Path, resumed: bool) -> Result<Migrated, MoveError> {
        self.go(world, data, |issuer| issuer.to_engine(resumed, &mut |_| {}))
    }

    fn back(&self, world: &World, data: &Path, resumed: bool) -> Result<Migrated, MoveError> {
        self.go(world, data, |issuer| issuer.to_files(resumed, &mut |_| {}))
    }

    /// Whether files take revocations, and whether the engine does.
    fn used(&self, world: &World, data: &Path) -> [bool; 2] {
        let meta = fs::read_to_string(data.join(LOG_DIR).join("log.meta")).unwrap();
        let origin = meta
            .lines()
            .find_map(|line| line.strip_prefix("origin "))
            .unwrap();
        let rows = ron_service::open_private(&data.join("passport.db")).unwrap();
        let count = "SELECT count(*) FROM revocation";
        let count: i64 = rows.query_row(count, [], |row| row.get(0)).unwrap();
        // A start in files wants a row for each leaf.
        let is_whole = count.cast_unsigned() == self.leaves;
        drop(rows);
        let head = world.logs.store(origin, "looks").head(soon()).unwrap();
        let is_shared = head.epoch > 0 && head.transit().is_none();
        [!meta.contains("copy_of") && is_whole, is_shared]
    }
}

type Go = fn(&Ways, &World, &Path, bool) -> Result<Migrated, MoveError>;

/// The way with the n-th write to the log or to the records failing, for each n until there is none.
fn after_any_write(ways: &Ways, begin: impl Fn() -> (World, TempDir), go: Go, ended: [bool; 2]) {
    let resume = |world: &World, data: &Path, what: &str| {
        let used = ways.used(world, data);
        assert_ne!(used, [true; 2], "{what}: two places");
        let resumed = go(ways, world, data, true).map(drop);
        let resumed = resumed.or_else(|error| match error {
            MoveError::Refused(why) if why.contains("no migration") => Ok(()),
            error => Err(error),
        });
        resumed.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(ways.used(world, data), ended, "{what}");
    };
    for fault in FAULTS {
        for n in 1.. {
            let (world, dir) = begin();
            world.logs.fail_write(n, fault);
            let went = go(ways, &world, dir.path(), false);
            let is_reached = !world.logs.has_faults();
            world.logs.forget_faults();
            let what = format!("{fault:?} at write {n}");
            resume(&world, dir.path(), &what);
            if !is_reached {
                went.unwrap_or_else(|error| panic!("{what}: {error}"));
                break;
            }
        }
    }
    for ending in [Ending::Refused, Ending::UnknownDone] {
        let (world, dir) = begin();
        *world.ends.lock().unwrap() = Some((1, ending));
        let _ = go(ways, &world, dir.path(), false);
        world.ends.lock().unwrap().take();
        resume(&world, dir.path(), &format!("{ending:?} of the records"));
    }
}

#[test]
fn an_issuers_way_is_ended_after_any_write_that_fails() {
    let rig = Rig::new(Cluster::pair());
    let node = rig.in_files().expect("an issuer in files");
    wait_for("the issuer is ready", || node.ready().ready);
    for _ in 0..3 {
        let token = rig.issue(&node, "user:1");
        rig.revoked(&node, &json!({"jti": jti(&token), "reason": "stolen"}));
    }
    stop(node);
    let made = private_dir();
    copy(rig.dirs[0].path(), made.path());
    let leaves = verified(made.path()).0;
    let ways = Ways { rig, made, leaves };
    let files = || (World::new(&USED_IDS), ways.fork());
    after_any_write(&ways, files, Ways::there, [false, true]);
    let shared = || {
        let (world, dir) = files();
        ways.there(&world, dir.path(), false).unwrap();
        (world, dir)
    };
    after_any_write(&ways, shared, Ways::back, [true, false]);
    // A row that is not what its leaf commits to is found before anything is closed.
    let (world, dir) = files();
    let rows = ron_service::open_private(&dir.path().join("passport.db")).unwrap();
    let change = "UPDATE revocation SET reason = 'another' WHERE seq = 2";
    rows.execute_batch(change).unwrap();
    drop(rows);
    let said = why(ways.there(&world, dir.path(), false));
    assert!(said.contains("its leaf is not that of its row"), "{said}");
    assert!(!ways.used(&world, dir.path())[1]);
}
