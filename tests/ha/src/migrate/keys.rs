//! A key service that goes from files to an engine and back, when any step of it fails.

use std::path::Path;
use std::sync::Arc;

use ron_custody::backend::Backends;
use ron_custody::store::{KeyStore, MIGRATIONS, SealSource, StoreSettings, peek};
use ron_files::{CrashMode, Dir, FaultKind, SimDisk};
use ron_http::Method;
use ron_kernel::{OsRandom, Random as _, SystemClock};
use ron_kms::RonKms;
use ron_kms::migrate::{KeyMove, KeyService, LOG};
use ron_proto::kms::KeyBackend;
use ron_proto::values::Timestamp;
use ron_service::log_move::{Move, MoveError};
use ron_service::records::{Engine, EngineDurability, FileRecords, RecordStore};
use ron_service::{Config, Parts, Store};
use ron_tlog::VerifierKey;
use ron_tlog::append::{Migrated, refuse_copy, verify_on};
use ron_tlog::store::LogStore as _;
use serde_json::{Value, json};

use crate::contract::{Rig as _, soon, wait_for};
use crate::memory::{Defect, FAULTS, Fault, MemoryEngine};
use crate::services::{Caller, stop};

use super::world::{Ending, World};

const ORIGIN: &str = "kms.example/a";
const PLACE: &str = "host-a:/data";

fn config() -> String {
    format!(
        "insecure_loopback = true\ndata_dir = \"/data\"\n[audit]\norigin = \"{ORIGIN}\"\ncheckpoint_interval = \"10ms\"\n"
    )
}

/// What a key service has left in files: three keys, and answers under ids.
struct Files {
    disk: SimDisk,
    vkey: VerifierKey,
}

fn made() -> Files {
    let disk = SimDisk::new();
    let caller = Caller::new("ron", "tester");
    let scopes = [
        "kms:sign",
        "kms:read",
        "kms:create",
        "kms:rotate",
        "kms:admin",
    ];
    let text = format!("{}{}", config(), caller.principal(&scopes));
    let config = Config::from_toml(&ron_kms::TABLE, Path::new("kms.toml"), &text).unwrap();
    let mut parts = Parts::ephemeral("ron-kms").unwrap();
    parts.disk = Arc::new(disk.clone());
    let kms = ron_service::start::<RonKms>(config, parts).unwrap();
    let post = |path: &str, body: Value| {
        let reply = caller.call(&kms, Method::POST, path, None, Some(&body));
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(reply.status < 300, "{path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let id = |n: u32| format!("0190f0a0-0000-7000-8000-{n:012}");
    for n in 0..3 {
        let key = post(
            "/v1/kms/keys",
            json!({"tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any", "exportable": false, "op_id": id(n)}),
        );
        let key = key["key"].clone();
        for at in 0..4 {
            let op = id(100 + 10 * n + at);
            post(
                "/v1/kms/sign",
                json!({"key": key, "message": "YQ", "op_id": op}),
            );
        }
    }
    let mut vkey = String::new();
    wait_for("a checkpoint", || {
        let reply = caller.get(&kms, "/audit/v1/vkey");
        vkey = String::from_utf8(reply.body).unwrap();
        caller.get(&kms, "/audit/v1/checkpoint").status == 200
    });
    stop(kms);
    Files {
        disk,
        vkey: VerifierKey::parse(vkey.trim()).unwrap(),
    }
}

/// The command on a disk and an engine.
fn with<T>(
    world: &World,
    disk: &SimDisk,
    vkey: &VerifierKey,
    go: impl FnOnce(&KeyMove<'_>) -> T,
) -> T {
    let config = Config::from_toml(&ron_kms::TABLE, Path::new("kms.toml"), &config()).unwrap();
    let service = KeyService::of(&config, Arc::new(disk.clone())).unwrap();
    let engine = Engine {
        url: "memory://engine".into(),
        schema: "ron_kms".into(),
        durability: EngineDurability::Standby,
    };
    go(&KeyMove {
        service: &service,
        log: Move {
            data: service.data(),
            log: LOG,
            place: PLACE,
            keys: std::slice::from_ref(vkey),
            engine: &engine,
            engines: world,
            run: OsRandom.u64(),
        },
        random: OsRandom::shared(),
        clock: SystemClock::shared(),
    })
}

fn there(
    world: &World,
    disk: &SimDisk,
    vkey: &VerifierKey,
    is_resumed: bool,
) -> Result<Migrated, MoveError> {
    with(world, disk, vkey, |kms| {
        kms.to_engine(is_resumed, &mut |_| {})
    })
}

fn back(
    world: &World,
    disk: &SimDisk,
    vkey: &VerifierKey,
    is_resumed: bool,
) -> Result<Migrated, MoveError> {
    with(world, disk, vkey, |kms| {
        kms.to_files(is_resumed, &mut |_| {})
    })
}

fn home(disk: &SimDisk) -> Dir {
    Dir::new(Arc::new(disk.clone()), "/data")
}

fn settings(home: &Dir) -> StoreSettings {
    StoreSettings {
        home: Some(home.clone()),
        seal: SealSource::KeyFile {
            path: "/data/seal.key".into(),
            may_create: true,
        },
        origin: Some(ORIGIN.into()),
    }
}

fn backends() -> Backends {
    Backends::new(KeyBackend::File, Vec::new(), SystemClock::shared())
}

fn open(records: Box<dyn RecordStore>, home: &Dir) -> Result<KeyStore, String> {
    let (settings, random) = (settings(home), OsRandom::shared());
    let opened = KeyStore::open_in(records, &settings, backends(), random, Timestamp(1));
    opened.map_err(|e| e.to_string())
}

/// What readers see of keys.
fn shown(store: &KeyStore) -> Vec<String> {
    let index = store.index();
    let keys = index.keys.values().map(|key| format!("{:?}", key.to_doc()));
    keys.collect()
}

/// The keys in files, if a service may use them.
fn in_files(disk: &SimDisk) -> Option<Vec<String>> {
    let home = home(&disk.fork());
    let log = home.join(LOG);
    refuse_copy(&**log.disk(), log.path()).ok()?;
    if !home.exists("keys.db").unwrap() {
        return None;
    }
    let store = Store::open_without_copies(&home, "keys.db", MIGRATIONS).unwrap();
    let mut records = FileRecords::new(store);
    peek(&mut records).unwrap()?;
    Some(shown(&open(Box::new(records), &home).ok()?))
}

/// The keys in the engine, if nodes may use them and the log.
fn in_engine(world: &World, disk: &SimDisk) -> Option<Vec<String>> {
    let mut log = world.logs.store(ORIGIN, "looks");
    let head = log.head(soon()).unwrap();
    let mut records = world.tables();
    let found = peek(&mut *records).unwrap()?;
    if head.size == 0 || head.transit().is_some() || found.transit.is_some() {
        return None;
    }
    Some(shown(&open(records, &home(&disk.fork())).unwrap()))
}

/// The ids that the engine has, with their answers.
fn ids(world: &World, disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let home = home(&disk.fork());
    let answers = open(world.tables(), &home).unwrap().answers();
    let mut upkeep = world.logs.sessions(ORIGIN, "looks").upkeep;
    let all = upkeep.ids_after("ron-kms", "", 1_000, soon()).unwrap();
    let opened = all.into_iter().map(|id| {
        let about = [hex_of(&id.once.key), id.once.body_hash.to_vec()].concat();
        let answer = answers.open(&about, &id.once.answer);
        (id.once.key, answer.expect("it was sealed for this id"))
    });
    opened.collect()
}

fn hex_of(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// A service that was moved as the test wants it to be.
struct Rig {
    made: Files,
    /// What readers see of the keys.
    keys: Vec<String>,
    ids: Vec<(String, Vec<u8>)>,
}

impl Rig {
    fn new() -> Self {
        let made = made();
        let keys = in_files(&made.disk).expect("keys in files");
        assert_eq!(keys.len(), 3);
        let (world, disk) = (World::new(MIGRATIONS), made.disk.fork());
        there(&world, &disk, &made.vkey, false).unwrap();
        assert_eq!(in_engine(&world, &disk).as_ref(), Some(&keys));
        let ids = ids(&world, &disk);
        assert_eq!(ids.len(), 12);
        Self { made, keys, ids }
    }

    fn in_files(&self) -> (World, SimDisk) {
        (World::new(MIGRATIONS), self.made.disk.fork())
    }

    fn in_engine(&self) -> (World, SimDisk) {
        let (world, disk) = self.in_files();
        self.there(&world, &disk, false).unwrap();
        (world, disk)
    }

    fn there(&self, world: &World, disk: &SimDisk, resumed: bool) -> Result<Migrated, MoveError> {
        there(world, disk, &self.made.vkey, resumed)
    }

    fn back(&self, world: &World, disk: &SimDisk, resumed: bool) -> Result<Migrated, MoveError> {
        back(world, disk, &self.made.vkey, resumed)
    }

    /// At most one place is in use, with all keys.
    fn is_in_one_place(&self, world: &World, disk: &SimDisk, what: &str) {
        let places = [in_files(disk), in_engine(world, disk)];
        let used: Vec<_> = places.iter().flatten().collect();
        assert!(used.len() <= 1, "{what}: two places");
        assert!(used.iter().all(|keys| **keys == self.keys), "{what}");
    }

    fn ends_there(&self, world: &World, disk: &SimDisk, what: &str) {
        self.is_in_one_place(world, disk, what);
        let ended = self.there(world, disk, true).map(drop);
        let ended = ended.or_else(|error| match error {
            // It was interrupted after its end.
            MoveError::Refused(why) if why.contains("no migration") => Ok(()),
            error => Err(error),
        });
        ended.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(in_engine(world, disk).as_ref(), Some(&self.keys), "{what}");
        assert_eq!(in_files(disk), None, "{what}");
        assert_eq!(ids(world, disk), self.ids, "{what}");
        let home = home(disk);
        assert!(!home.exists("keys.db").unwrap(), "{what}");
        assert_eq!(home.join("replay").list().unwrap(), [""; 0], "{what}");
    }

    fn ends_back(&self, world: &World, disk: &SimDisk, what: &str) {
        self.is_in_one_place(world, disk, what);
        let ended = self.back(world, disk, true).map(drop);
        let ended = ended.or_else(|error| match error {
            MoveError::Refused(why) if why.contains("of its own") => Ok(()),
            error => Err(error),
        });
        ended.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(in_files(disk).as_ref(), Some(&self.keys), "{what}");
        assert_eq!(in_engine(world, disk), None, "{what}");
        let (log, keys) = (home(disk).join(LOG), [self.made.vkey.clone()]);
        let verified = verify_on(
            &**log.disk(),
            log.path(),
            &keys,
            &mut |_, _, _| Ok(()),
            &mut |_, _| {},
        );
        verified.unwrap_or_else(|error| panic!("{what}: {error}"));
        // The journal has the answers: they come along once more.
        let world = World::new(MIGRATIONS);
        self.there(&world, disk, false)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(ids(&world, disk), self.ids, "{what}");
    }
}

type Ends = fn(&Rig, &World, &SimDisk, &str);

/// One way: how it begins, goes and is ended.
struct Way {
    begin: fn(&Rig) -> (World, SimDisk),
    go: fn(&Rig, &World, &SimDisk, bool) -> Result<Migrated, MoveError>,
    ends: Ends,
}

const THERE: Way = Way {
    begin: Rig::in_files,
    go: Rig::there,
    ends: Rig::ends_there,
};
const BACK: Way = Way {
    begin: Rig::in_engine,
    go: Rig::back,
    ends: Rig::ends_back,
};

/// The way with the n-th operation failing, for each n until it has no such operation; `least` are fewer than it has.
fn each(
    rig: &Rig,
    way: &Way,
    (kind, least): (&str, usize),
    fail: impl Fn(&World, &SimDisk, usize),
    is_reached: impl Fn(&World, &SimDisk) -> bool,
) {
    for n in 1.. {
        let (world, disk) = (way.begin)(rig);
        fail(&world, &disk, n);
        let went = (way.go)(rig, &world, &disk, false);
        let is_reached = is_reached(&world, &disk);
        let what = format!("{kind} {n}");
        (way.ends)(rig, &world, &disk, &what);
        if !is_reached {
            went.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(n > least, "{kind}: {n} operations");
            println!("{kind}: {n}");
            return;
        }
    }
}

fn after_any_operation(rig: &Rig, way: &Way, [writes, disk, records]: [usize; 3]) {
    for fault in FAULTS {
        each(
            rig,
            way,
            (&format!("{fault:?} at write"), writes),
            |world, _, n| world.logs.fail_write(n, fault),
            |world, _| {
                let is_reached = !world.logs.has_faults();
                world.logs.forget_faults();
                if matches!(fault, Fault::UnknownLocal) {
                    world.logs.fail_over();
                }
                is_reached
            },
        );
    }
    for ending in [Ending::Refused, Ending::UnknownDone] {
        each(
            rig,
            way,
            (&format!("{ending:?} at transaction"), records),
            |world, _, n| *world.ends.lock().unwrap() = Some((n, ending)),
            |world, _| world.ends.lock().unwrap().take().is_none(),
        );
    }
    for mode in [
        CrashMode::LoseAll,
        CrashMode::KeepAll,
        CrashMode::TearLast(9),
    ] {
        each(
            rig,
            way,
            (&format!("{mode:?} at disk operation"), disk),
            |_, disk, n| disk.fail_after(n as u64, FaultKind::PowerOff),
            |_, disk| {
                let is_off = disk.is_off();
                disk.crash(mode);
                is_off
            },
        );
    }
}

#[test]
fn a_way_there_is_ended_after_any_operation_that_fails() {
    after_any_operation(&Rig::new(), &THERE, [3, 10, 1]);
}

#[test]
fn a_way_back_is_ended_after_any_operation_that_fails() {
    after_any_operation(&Rig::new(), &BACK, [1, 10, 2]);
}

fn why<T>(outcome: Result<T, MoveError>) -> String {
    outcome.map(drop).unwrap_err().to_string()
}

#[test]
fn what_does_not_fit_is_refused() {
    let rig = Rig::new();
    // A second time, and the way back twice.
    let (world, disk) = rig.in_engine();
    let said = why(rig.there(&world, &disk, false));
    assert!(said.contains("nothing to move"), "{said}");
    let said = why(rig.there(&world, &disk, true));
    assert!(said.contains("no migration of it is to be ended"), "{said}");
    rig.back(&world, &disk, false).unwrap();
    let said = why(rig.back(&world, &disk, false));
    assert!(said.contains("--resume"), "{said}");
    // Files of an earlier time, whose later state is in the engine.
    let (world, backup) = (World::new(MIGRATIONS), rig.made.disk.fork());
    rig.there(&world, &disk, false).unwrap();
    let said = why(rig.there(&world, &backup, true));
    assert!(said.contains("has claimed"), "{said}");
    assert_eq!(in_files(&backup).as_ref(), Some(&rig.keys));
    // An engine with other keys.
    let (other, disk) = (World::new(MIGRATIONS), rig.made.disk.fork());
    let made = made();
    there(&other, &made.disk, &made.vkey, false).unwrap();
    let world = World {
        logs: MemoryEngine::new(Defect::None),
        ..other
    };
    let said = why(rig.there(&world, &disk, false));
    assert!(said.contains("other keys"), "{said}");
    assert_eq!(in_files(&disk).as_ref(), Some(&rig.keys));
    // Starts that a TPM of this host counts.
    let counted = rig.made.disk.fork();
    let opened = KeyStore::open(
        &settings(&home(&counted)),
        backends(),
        OsRandom::shared(),
        Timestamp(1),
    );
    opened.unwrap().set_tpm_counter(4).unwrap();
    let said = why(rig.there(&World::new(MIGRATIONS), &counted, false));
    assert!(said.contains("counted in a TPM"), "{said}");
    assert_eq!(in_files(&counted).as_ref(), Some(&rig.keys));
    // Remembered answers that are lost.
    let journal = home(&disk).join("replay");
    let name = journal.list().unwrap().remove(0);
    disk.flip(&journal.file(&name), 40, 3);
    let said = why(rig.there(&World::new(MIGRATIONS), &disk, false));
    assert!(said.contains("accept the loss"), "{said}");
    assert_eq!(in_files(&disk).as_ref(), Some(&rig.keys));
}
