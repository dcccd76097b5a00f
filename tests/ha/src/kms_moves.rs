//! Key services that go to a database and back, with callers before and after: what they are answered, and what is refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ron_client::{ClientError, Credential, KmsClient};
use ron_files::OsDisk;
use ron_kernel::{OsRandom, Random as _, SystemClock};
use ron_kms::RonKms;
use ron_kms::migrate::{KeyMove, KeyService, LOG};
use ron_proto::kms::{CreateKey, KeyDoc, PayloadPolicy, RotateRequest, SignAnswer, SignRequest};
use ron_proto::{Alg, Kid, OpId};
use ron_service::log_move::{Move, MoveError, Step};
use ron_service::records::{Engine, EngineDurability, Postgres};
use ron_service::{Config, Running};
use ron_tlog::VerifierKey;
use ron_tlog::append::{Migrated, verify_on};
use ron_tlog::proof::TlogProof;
use tempfile::TempDir;
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::contract::{soon, wait_for};
use crate::services::{Caller, name_a_lost_standby, private_dir, put, stop, try_start};

const ORIGINS: [&str; 2] = ["kms.example/a", "kms.example/b"];
const SCOPES: [&str; 8] = [
    "kms:sign",
    "kms:read",
    "kms:create",
    "kms:rotate",
    "kms:admin",
    "kms:wrap",
    "kms:unwrap",
    "kms:audit",
];

struct Rig {
    cluster: Cluster,
    dirs: [TempDir; 2],
    files: TempDir,
    caller: Caller,
}

impl Rig {
    fn new() -> Self {
        let files = private_dir();
        put(files.path(), "seal", "ab".repeat(32).as_bytes());
        Self {
            cluster: Cluster::pair(),
            dirs: [private_dir(), private_dir()],
            files,
            caller: Caller::new("ron", "tester"),
        }
    }

    fn config(&self, node: usize, more: &str) -> String {
        format!(
            "data_dir = \"{}\"\nsign_deadline = \"5s\"\n{more}[audit]\norigin = \"{}\"\ncheckpoint_interval = \"10ms\"\n[seal]\nkey_file = \"{}\"\n{}",
            self.dirs[node].path().display(),
            ORIGINS[node],
            self.files.path().join("seal").display(),
            self.caller.principal(&SCOPES),
        )
    }

    fn url(&self) -> String {
        self.cluster.primary.url()
    }

    fn shared(&self) -> String {
        let url = self.url();
        format!("[records]\nurl = \"{url}\"\n[log]\nurl = \"{url}\"\n")
    }

    fn in_files(&self, node: usize) -> Result<Running, String> {
        try_start::<RonKms>(&self.config(node, ""))
    }

    fn in_database(&self, node: usize) -> Result<Running, String> {
        try_start::<RonKms>(&self.config(node, &self.shared()))
    }

    fn client(&self, node: &Running) -> KmsClient {
        let http = Arc::new(ron_http::HttpClient::new(ron_http::ClientConfig {
            breaker: None,
            insecure_loopback: true,
            ..ron_http::ClientConfig::default()
        }));
        KmsClient::new(
            &node.api_url(),
            Credential::bearer(&self.caller.token),
            http,
        )
    }

    /// The command on a node's data directory.
    fn with<T>(&self, node: usize, go: impl FnOnce(&KeyMove<'_>) -> T) -> T {
        let text = format!("insecure_loopback = true\n{}", self.config(node, ""));
        let config = Config::from_toml(&ron_kms::TABLE, Path::new("kms.toml"), &text).unwrap();
        let service = KeyService::of(&config, Arc::new(OsDisk)).unwrap();
        let pin = VerifierKey::parse(&self.pin(node)).unwrap();
        let keys = service.verifiers(&pin).unwrap();
        let engine = Engine {
            url: self.url(),
            schema: "ron_kms".into(),
            durability: EngineDurability::Standby,
        };
        go(&KeyMove {
            service: &service,
            log: Move {
                data: service.data(),
                log: LOG,
                place: &format!("host-{node}:/data"),
                keys: &keys,
                engine: &engine,
                engines: &Postgres,
                run: OsRandom.u64(),
            },
            random: OsRandom::shared(),
            clock: SystemClock::shared(),
        })
    }

    /// The verifier key that an auditor pinned when the node had started for the first time.
    fn pin(&self, node: usize) -> String {
        fs::read_to_string(self.files.path().join(format!("vkey{node}"))).unwrap()
    }

    fn keep_pin(&self, node: usize, client: &KmsClient) {
        let vkey = client.audit_vkey(soon()).unwrap();
        put(
            self.files.path(),
            &format!("vkey{node}"),
            vkey.trim().as_bytes(),
        );
    }

    fn to_engine(&self, node: usize, is_resumed: bool) -> Result<Migrated, MoveError> {
        self.with(node, |kms| kms.to_engine(is_resumed, &mut |_| {}))
    }

    fn to_files(&self, node: usize, is_resumed: bool) -> Result<Migrated, MoveError> {
        self.with(node, |kms| kms.to_files(is_resumed, &mut |_| {}))
    }

    /// Size and root of the whole log in files. Proofs that were given before hold for its leaves.
    fn verified(&self, node: usize, proofs: &[(u64, String)]) -> (u64, [u8; 32]) {
        let dir = self.dirs[node].path().join(LOG);
        let pin = VerifierKey::parse(&self.pin(node)).unwrap();
        let keys = ron_kms::kept_keys(&dir, &pin).unwrap();
        let mut held = 0;
        let mut check = |index, leaf: &[u8], _: &[u8]| {
            for (_, proof) in proofs.iter().filter(|(at, _)| *at == index) {
                let proof = TlogProof::parse(proof).unwrap();
                proof.verify(leaf, &keys, Some(ORIGINS[node])).unwrap();
                held += 1;
            }
            Ok(())
        };
        let verified = verify_on(&OsDisk, &dir, &keys, &mut check, &mut |_, _| {}).unwrap();
        assert_eq!(held, proofs.len());
        (verified.size, verified.root)
    }
}

fn id(number: u128) -> OpId {
    OpId(Uuid::from_u128(number))
}

fn make(client: &KmsClient, number: u128, alg: Alg) -> KeyDoc {
    let request = CreateKey {
        tenant: "ron".parse().unwrap(),
        purpose: "app".parse().unwrap(),
        alg,
        payload: PayloadPolicy::Any,
        exportable: false,
        derived: false,
        rotate_every: None,
        backend: None,
        op_id: id(number),
        token: None,
    };
    client.create_key(&request, soon()).unwrap()
}

fn sign(client: &KmsClient, key: &Kid, number: u128) -> Result<SignAnswer, ClientError> {
    let message = number.to_string().into_bytes();
    let request = SignRequest {
        op_id: Some(id(number)),
        ..SignRequest::message(key.clone(), message)
    };
    client.sign(&request, soon())
}

/// Everything that callers have been given and that must not change: keys, signatures under ids, proofs.
#[derive(Debug, PartialEq)]
struct Answers {
    keys: Vec<KeyDoc>,
    answers: Vec<SignAnswer>,
}

fn seen(client: &KmsClient, kids: &[Kid], numbers: &[u128]) -> Answers {
    Answers {
        keys: kids
            .iter()
            .map(|kid| client.key(kid, soon()).unwrap())
            .collect(),
        answers: numbers
            .iter()
            .map(|n| sign(client, &kids[0], *n).unwrap())
            .collect(),
    }
}

/// The proof of a leaf, once a checkpoint covers it.
fn proof(client: &KmsClient, index: u64) -> String {
    let mut found = None;
    wait_for("a checkpoint covers the leaf", || {
        found = client.audit_proof(index, soon()).ok();
        found.is_some()
    });
    found.unwrap()
}

fn why<T>(outcome: Result<T, MoveError>) -> String {
    outcome.map(drop).unwrap_err().to_string()
}

fn refused(started: Result<Running, String>) -> String {
    started.map(stop).unwrap_err()
}

#[test]
fn a_key_service_goes_to_a_database_and_back() {
    let mut rig = Rig::new();
    let node = rig.in_files(0).unwrap();
    let client = rig.client(&node);
    rig.keep_pin(0, &client);
    let first = make(&client, 1, Alg::Ed25519).key;
    let wraps = make(&client, 2, Alg::Aes256Gcm).key;
    let rotated = client.rotate(
        &first,
        &RotateRequest {
            op_id: Some(id(3)),
            ..RotateRequest::default()
        },
        soon(),
    );
    rotated.unwrap();
    let kids = [first.clone(), wraps];
    let mut numbers: Vec<u128> = (100..110).collect();
    let signed: Vec<_> = numbers
        .iter()
        .map(|n| sign(&client, &first, *n).unwrap())
        .collect();
    let proofs = [0, 9].map(|at: usize| {
        let index = signed[at].receipt.index;
        (index, proof(&client, index))
    });
    // The service goes on until the command asks for its end, and signs meanwhile.
    let (mut node, mut expected) = (Some(node), None);
    numbers.push(110);
    let moved = rig.with(0, |kms| {
        kms.to_engine(false, &mut |step| {
            let Step::Stop(by) = step else { return };
            assert!(by.contains("in use by process"), "{by}");
            sign(&client, &first, 110).unwrap();
            expected = Some(seen(&client, &kids, &numbers));
            stop(node.take().expect("it is asked to stop once"));
        })
    });
    let expected = expected.expect("the service ran");
    let moved = moved.unwrap();
    assert_eq!((moved.size, moved.root), rig.verified(0, &proofs));
    let data = rig.dirs[0].path();
    assert!(
        !data.join("keys.db").exists()
            && fs::read_dir(data.join("replay")).unwrap().next().is_none()
    );
    let said = refused(rig.in_files(0));
    assert!(
        said.contains("schema ron_kms") && said.contains("migrate --to files"),
        "{said}"
    );
    let said = why(rig.to_engine(0, false));
    assert!(said.contains("nothing to move"), "{said}");
    // The same from the database, at a second node too, and old receipts verify.
    let node = rig.in_database(0).unwrap();
    let client = rig.client(&node);
    assert_eq!(seen(&client, &kids, &numbers), expected);
    let other = rig.in_database(1).unwrap();
    let at_other = rig.client(&other);
    rig.keep_pin(1, &at_other);
    assert_eq!(seen(&at_other, &kids, &numbers), expected);
    let elsewhere = sign(&at_other, &first, 111).unwrap();
    assert_eq!(elsewhere.receipt.log, ORIGINS[1]);
    numbers.push(111);
    let made_there = make(&at_other, 4, Alg::Ed25519).key;
    wait_for("the first node has the key", || {
        client.key(&made_there, soon()).is_ok()
    });
    let said = why(rig.to_files(0, false));
    assert!(said.contains("in use"), "{said}");
    let kids = [kids[0].clone(), kids[1].clone(), made_there];
    let expected = seen(&client, &kids, &numbers);
    stop(node);
    // Back, while the second node runs: it signs nothing more and changes nothing.
    let moved = rig.to_files(0, false).unwrap();
    assert_eq!((moved.size, moved.root), rig.verified(0, &proofs));
    let late = sign(&at_other, &first, 112).unwrap_err();
    assert_eq!(late.status(), Some(503), "{late}");
    let request = RotateRequest {
        op_id: Some(id(5)),
        ..RotateRequest::default()
    };
    let late = at_other.rotate(&first, &request, soon()).unwrap_err();
    assert!(matches!(late.status(), Some(503 | 504)), "{late}");
    stop(other);
    let said = refused(rig.in_database(1));
    assert!(
        said.contains("moved to the files at host-0:/data")
            || said.contains("moved to host-0:/data"),
        "{said}"
    );
    let node = rig.in_files(0).unwrap();
    let client = rig.client(&node);
    assert_eq!(seen(&client, &kids, &numbers), expected);
    let again = sign(&client, &first, 112).unwrap();
    assert_eq!(again.receipt.log, ORIGINS[0]);
    proof(&client, again.receipt.index);
    stop(node);
    rig.verified(0, &proofs);
    let said = refused(rig.in_database(0));
    assert!(said.contains("ron kms migrate"), "{said}");
    // There once more: what the database has is compared, and the rest is added.
    let again = rig.to_engine(0, false).unwrap();
    assert!(again.sent < again.size, "{again:?}");
    let node = rig.in_database(0).unwrap();
    numbers.push(112);
    assert_eq!(
        seen(&rig.client(&node), &kids, &numbers).keys,
        expected.keys
    );
    name_a_lost_standby(&[&node], &mut rig.cluster);
    stop(node);
}
