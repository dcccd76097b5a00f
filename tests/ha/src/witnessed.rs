//! A shared ledger with a witness: standbys that are behind it, and a database that is.
#![allow(clippy::disallowed_methods)] // a test waits

use std::fs;
use std::path::Path;

use ron_crypto::sign::Ed25519Key;
use ron_http::{ApiInfo, Router};
use ron_kernel::Topology;
use ron_pg::Param;
use ron_service::log_host::witness::{WITNESS_QUEUE, WITNESS_THREAD, serve};
use ron_service::{
    Boot, ChassisSettings, Config, ConfigProblem, Running, Service, ServiceSettings, Settings as _,
    StartError, Table,
};
use ron_tlog::append::WitnessStore;
use ron_tlog::cosignature::Cosigner;
use ron_tlog::note::VerifierKey;

use crate::cluster::Cluster;
use crate::contract::wait_for;
use crate::ledgers::Rig;
use crate::services::{private_dir, start, stop};

ron_service::settings! {
    struct Settings {
        /// Verifier keys of the logs that it cosigns.
        "logs" => logs: Vec<VerifierKey>, restart(Trust);
    }
}

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        config.read().map_err(|problem| vec![problem])
    }
}

static TABLE: Table = Table {
    service: "ron-witness",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:0"),
        (ChassisSettings::health_addr, "127.0.0.1:0"),
    ],
    keys: Settings::GROUPS,
};

static TOPOLOGY: Topology = ron_service::topology! {
    service: "ron-witness",
    prefix: "wit",
    threads: [WITNESS_THREAD],
    queues: [WITNESS_QUEUE],
    locks: [],
};

/// A witness as `ron witness` runs it, with a key of the test.
struct Witness;

fn cosigner() -> Cosigner {
    Cosigner::new("w.example/witness", Ed25519Key::from_seed(&[9; 32])).expect("a name")
}

impl Service for Witness {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;

    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let chassis = boot.chassis;
        let dir = boot.data_dir.expect("a directory").file("cosigned");
        let store = WitnessStore::open(chassis.disk.clone(), &dir, cosigner(), boot.settings.logs);
        let store = store.map_err(StartError::failed)?;
        let (registry, km) = (&chassis.registry, &chassis.km);
        let (clock, ready) = (chassis.clock.clone(), chassis.ready.clone());
        let routes = serve(store, &chassis.sup, registry, km, clock, ready);
        let info = ApiInfo {
            title: "ron-witness",
            version: "0",
            description: "",
        };
        chassis.serve(Router::new(info).add_all(routes))
    }
}

/// Starts a witness of the log whose key a data directory has, and says how nodes are told of it.
pub fn witness(node: &Path, dir: &Path) -> (Running, String) {
    let vkey = fs::read_to_string(node.join("log.vkey")).expect("a key");
    let witness = start::<Witness>(&format!(
        "data_dir = \"{}\"\nlogs = [\"{}\"]\n",
        dir.join("witness").display(),
        vkey.trim()
    ));
    let policy = format!(
        "witness w {} {}\nquorum w\n",
        cosigner().verifier(),
        witness.api_url()
    );
    let file = dir.join("policy");
    fs::write(&file, policy).expect("a file");
    let config = format!("[witness]\npolicy_file = \"{}\"\n", file.display());
    (witness, config)
}

fn cosigned(rig: &Rig, node: &Running) -> u64 {
    rig.wallet.cosigned(node, "ron_ledger_cosigned_size")
}

/// Makes the log and its key, and a witness that the nodes start with.
fn rig() -> (Rig, tempfile::TempDir, Running) {
    let mut rig = Rig::new(Cluster::pair());
    let one = rig.start(0);
    wait_for("the first node is active", || rig.is_active(&one));
    stop(one);
    let dir = private_dir();
    let key = rig.key(0);
    let node = key.parent().expect("a data directory");
    let (witness, config) = witness(node, dir.path());
    rig.more = config;
    (rig, dir, witness)
}

/// A node that starts behind the witness is a standby like any other, and takes the ledger over. The active node has its checkpoints
/// cosigned.
#[test]
fn a_node_that_is_behind_the_witness_follows_and_takes_over() {
    let (rig, _dir, witness) = rig();
    let one = rig.start(0);
    wait_for("the first node is active", || rig.is_active(&one));
    rig.issue_in_the_end(&one, "before");
    rig.copy_key(1);
    let two = rig.start(1);
    wait_for("the second node has a checkpoint", || {
        rig.head(&two)["checkpoint_size"] == 2
    });
    stop(two);
    for n in 0..2 {
        rig.issue_in_the_end(&one, &format!("k{n}"));
    }
    wait_for("the witness has cosigned them", || {
        cosigned(&rig, &one) == 4
    });
    let two = rig.start(1);
    wait_for("the second node follows", || rig.head(&two)["seq"] == 3);
    stop(one);
    wait_for("the second node is active", || rig.is_active(&two));
    rig.issue_in_the_end(&two, "after");
    wait_for("the witness goes on with it", || cosigned(&rig, &two) == 5);
    let ready = two.ready();
    assert!(ready.ready && ready.degraded.is_empty(), "{ready:?}");
    stop(two);
    stop(witness);
}

/// A database that lost what a witness has cosigned is not written to, also by a node that has never seen it.
#[test]
fn a_database_that_is_behind_the_witness_is_not_written_to() {
    let (rig, _dir, witness) = rig();
    let one = rig.start(0);
    wait_for("the first node is active", || rig.is_active(&one));
    let primary = &rig.cluster.primary;
    let head = "SELECT size, root FROM ron_ledger.log_head";
    let before = primary.admin(head, &[]);
    for n in 0..3 {
        rig.issue_in_the_end(&one, &format!("k{n}"));
    }
    wait_for("the witness has cosigned them", || {
        cosigned(&rig, &one) == 4
    });
    stop(one);
    // An old backup of the database comes back.
    let size = before.int8(0, 0).expect("a size");
    let old = [
        Param::Int8(size),
        Param::Bytes(before.bytes(0, 1).expect("a root")),
    ];
    primary.admin("UPDATE ron_ledger.log_head SET size = $1, root = $2", &old);
    primary.admin(
        "DELETE FROM ron_ledger.log_batch WHERE first >= $1",
        &old[..1],
    );
    primary.admin(
        "DELETE FROM ron_ledger.log_checkpoint WHERE size > $1",
        &old[..1],
    );

    rig.copy_key(1);
    let two = rig.start(1);
    wait_for("it sees what is missing", || {
        rig.head(&two)["closed"]["cause"] == "engine_lost_data"
    });
    let size = || primary.admin(head, &[]).int8(0, 0).expect("a size");
    assert_eq!(size(), 1, "nothing was written");
    assert_eq!(rig.issue(&two, "new").status, 503);
    stop(two);

    // Without its witness a node can only compare with what it has seen itself.
    stop(witness);
    let two = rig.start(1);
    wait_for("it is active", || rig.is_active(&two));
    wait_for("it says so", || {
        two.ready().degraded.contains(&"witness".to_owned())
    });
    stop(two);
}
