//! Two key services with the same keys, as processes on a PostgreSQL pair. Both sign; keys are retired and destroyed at one while the
//! other signs; processes are killed and the database goes away. Each signature has its leaf in the log of its node.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)] // a test waits, and its clients are threads

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ron_client::{ClientError, Credential, KmsClient};
use ron_crypto::hash::sha256;
use ron_custody::keys::{Input, SecretKey};
use ron_files::OsDisk;
use ron_ha::cluster::Cluster;
use ron_ha::contract::wait_for;
use ron_ha::processes::Node;
use ron_ha::services::{Caller, private_dir, put};
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::{Deadline, SeededRandom};
use ron_kms::{Leaf, Op};
use ron_proto::kms::{
    ApprovalRule, Approve, Approver, AskApproval, Bytes, CreateKey, DestroyKey, KeyDoc, KeyOp,
    KeyPolicy, KeyState, NotePolicy, PayloadPolicy, PolicyRule, PutKeyPolicy, RetireKey,
    RotateLogKey, RotateRequest, SignAnswer, SignBatch, SignItem, SignRequest, SignResult,
    approval_text,
};
use ron_proto::{Alg, Kid, OpId};
use ron_tlog::append::verify_on;
use ron_tlog::note::VerifierKey;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ha-node");
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

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

fn id(number: u128) -> OpId {
    OpId(Uuid::from_u128(number))
}

/// Each try is one request: what a node says is what the test sees.
fn http() -> Arc<HttpClient> {
    Arc::new(HttpClient::new(ClientConfig {
        breaker: None,
        insecure_loopback: true,
        ..ClientConfig::default()
    }))
}

struct Fleet {
    cluster: Cluster,
    nodes: [Node; 2],
    clients: [KmsClient; 2],
    caller: Caller,
    /// Signatures that were answered.
    signed: Mutex<Vec<SignAnswer>>,
    vkeys: [String; 2],
    files: TempDir,
}

fn origin(node: usize) -> String {
    format!("kms.example/{}", ["a", "b"][node])
}

fn config(url: &str, node: usize, files: &TempDir, caller: &Caller) -> String {
    format!(
        "sign_deadline = \"5s\"\n[records]\nurl = \"{url}\"\n[log]\nurl = \"{url}\"\n[audit]\norigin = \"{}\"\n\
         [seal]\nkey_file = \"{}\"\n[destroy]\ndelay_min = \"1s\"\n[nonces]\nblock = 1\n{}",
        origin(node),
        files.path().join("seal").display(),
        caller.principal(&SCOPES),
    )
}

fn create(number: u128, alg: Alg) -> CreateKey {
    CreateKey {
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
    }
}

impl Fleet {
    fn config(&self, node: usize) -> String {
        config(&self.cluster.primary.url(), node, &self.files, &self.caller)
    }

    fn new() -> Self {
        let cluster = Cluster::pair();
        let files = private_dir();
        put(files.path(), "seal", "ab".repeat(32).as_bytes());
        let caller = Caller::new("ron", "tester");
        let mut nodes = [Node::new(PROGRAM, "ron-kms"), Node::new(PROGRAM, "ron-kms")];
        let url = cluster.primary.url();
        for (number, node) in nodes.iter_mut().enumerate() {
            node.configure(&config(&url, number, &files, &caller));
            node.start();
        }
        let client =
            |node: &Node| KmsClient::new(&node.url, Credential::bearer(&caller.token), http());
        let clients = [client(&nodes[0]), client(&nodes[1])];
        let vkeys = clients.each_ref().map(|client| {
            let mut vkey = None;
            wait_for("the node answers", || {
                vkey = client.audit_vkey(soon()).ok();
                vkey.is_some()
            });
            vkey.unwrap()
        });
        Self {
            cluster,
            nodes,
            clients,
            caller,
            signed: Mutex::default(),
            vkeys,
            files,
        }
    }

    fn try_create(&self, node: usize, number: u128, alg: Alg) -> Result<KeyDoc, ClientError> {
        self.clients[node].create_key(&create(number, alg), soon())
    }

    /// Makes a key at one node, and waits until the other has it.
    fn create(&self, node: usize, number: u128, alg: Alg) -> Kid {
        let mut made = None;
        wait_for("a key is made", || {
            made = self.try_create(node, number, alg).ok();
            made.is_some()
        });
        let key = made.unwrap().key;
        wait_for("the other node has the key", || {
            self.clients[1 - node].key(&key, soon()).is_ok()
        });
        key
    }

    fn sign(&self, node: usize, request: &SignRequest) -> Result<SignAnswer, ClientError> {
        let answer = self.clients[node].sign(request, soon())?;
        self.signed.lock().unwrap().push(answer.clone());
        Ok(answer)
    }

    fn sign_until_done(&self, node: usize, request: &SignRequest) -> SignAnswer {
        let mut answer = None;
        wait_for("a signature", || {
            answer = self.sign(node, request).ok();
            answer.is_some()
        });
        answer.unwrap()
    }

    fn post(&self, node: usize, path: &str, body: &Value) -> Reply {
        let bearer = format!("Bearer {}", self.caller.token);
        let called = self.caller.http.call(Call {
            method: Method::POST,
            url: &format!("{}{path}", self.nodes[node].url),
            headers: &[("Authorization", bearer.as_str())],
            body: Some(body.to_string().into_bytes()),
            content_type: Some("application/json"),
            deadline: soon(),
            idempotent: false,
        });
        called.expect("the node answers")
    }

    fn readiness(&self, node: usize) -> (u16, String) {
        let called = self.caller.http.call(Call {
            method: Method::GET,
            url: &format!("{}/readyz", self.nodes[node].health),
            headers: &[],
            body: None,
            content_type: None,
            deadline: soon(),
            idempotent: true,
        });
        let reply = called.expect("the node answers");
        (
            reply.status,
            String::from_utf8_lossy(&reply.body).into_owned(),
        )
    }

    fn audit(&self, node: usize) -> PathBuf {
        self.nodes[node].dir.path().join("data/audit")
    }

    /// Stops both nodes, verifies their logs as an auditor does, and finds the leaf of each signature.
    fn verify(&mut self) {
        let mut leaves = BTreeMap::new();
        for number in 0..2 {
            self.nodes[number].stop();
            let report =
                ron_kms::verify_dir(&self.audit(number), &self.vkeys[number], &mut |_, _| ());
            let report = report.unwrap();
            assert_eq!(report.checkpoint_size, report.size, "all is signed");
            let pin = VerifierKey::parse(&self.vkeys[number]).unwrap();
            let keys = ron_kms::kept_keys(&self.audit(number), &pin).unwrap();
            let mut each = |index: u64, bytes: &[u8], _: &[u8]| {
                leaves.insert((origin(number), index), Leaf::parse(bytes)?);
                Ok(())
            };
            let dir = self.audit(number);
            verify_on(&OsDisk, &dir, &keys, &mut each, &mut |_, _| ()).unwrap();
        }
        let mut ids = BTreeMap::new();
        for (place, leaf) in &leaves {
            if let (Some(id), "ok") = (&leaf.op_id, leaf.result.as_str()) {
                assert_eq!(ids.insert(id.clone(), place), None, "{id} has two leaves");
            }
        }
        for answer in self.signed.lock().unwrap().iter() {
            let place = (answer.receipt.log.clone(), answer.receipt.index);
            let leaf = &leaves[&place];
            assert_eq!((leaf.op, leaf.result.as_str()), (Op::Sign, "ok"));
            let all: Vec<&[u8]> = answer
                .signatures
                .iter()
                .map(|s| s.signature.as_slice())
                .collect();
            assert_eq!(leaf.output_sha256, Some(hex(&sha256(&all.concat()))));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

/// Runs `work` at each node at the same time.
fn at_both<T: Send>(work: impl Fn(usize) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let work = &work;
        let other = scope.spawn(move || work(1));
        [work(0), other.join().expect("no panic")]
    })
}

#[test]
fn two_nodes_have_the_same_keys() {
    let mut fleet = Fleet::new();
    both_sign_and_change_keys(&fleet);
    an_id_is_done_once(&fleet);
    what_a_destroyed_key_has_wrapped_is_decrypted_nowhere(&fleet);
    leaves_state_versions_in_their_order(&fleet);
    a_batch_repeats_what_was_done(&fleet);
    what_was_done_is_answered_when_the_key_is_out_of_use(&fleet);
    a_key_that_is_out_of_use_signs_nowhere(&fleet);
    approvals_are_of_both_nodes(&mut fleet);
    a_node_that_was_killed_goes_on(&mut fleet);
    a_database_that_is_away_comes_back(&mut fleet);
    changes_are_made_once_through_crashes_of_the_database(&mut fleet);
    a_name_is_of_one_process(&mut fleet);
    a_data_directory_keeps_its_name(&mut fleet);
    fleet.verify();
}

fn both_sign_and_change_keys(fleet: &Fleet) {
    let key = fleet.create(0, 1, Alg::Ed25519);
    let message = |node: usize, n: u32| format!("{node} {n}").into_bytes();
    at_both(|node| {
        for n in 0..40 {
            let request = SignRequest::message(key.clone(), message(node, n));
            let answer = fleet.sign_until_done(node, &request);
            assert_eq!(answer.receipt.log, origin(node));
        }
    });
    // Changes at both, each of which the other may have to decide again.
    let heads = at_both(|node| {
        let heads = (0..5_u128).map(|n| {
            let request = RotateRequest {
                op_id: Some(id(100 + 10 * node as u128 + n)),
                ..RotateRequest::default()
            };
            let mut head = None;
            wait_for("a rotation", || {
                head = fleet.clients[node].rotate(&key, &request, soon()).ok();
                head.is_some()
            });
            head.unwrap().document.head
        });
        heads.collect::<Vec<_>>()
    });
    let mut heads = heads.concat();
    heads.sort_unstable();
    assert_eq!(
        heads,
        (2..=11).collect::<Vec<u32>>(),
        "each made one version"
    );
    for node in 0..2 {
        wait_for("the newest version is seen", || {
            fleet.clients[node]
                .key(&key, soon())
                .is_ok_and(|doc| doc.head == 11)
        });
        let answer = fleet.sign_until_done(node, &SignRequest::message(key.clone(), *b"newest"));
        assert_eq!(answer.version, 11);
    }
    let rotate = RotateLogKey::default();
    assert_eq!(
        fleet.clients[1]
            .rotate_log_key(&rotate, soon())
            .unwrap()
            .number,
        2
    );
}

fn an_id_is_done_once(fleet: &Fleet) {
    let key = fleet.create(1, 2, Alg::EcdsaP256);
    for n in 0..20 {
        let request = SignRequest {
            op_id: Some(id(1_000 + n)),
            ..SignRequest::message(key.clone(), n.to_string().into_bytes())
        };
        let [one, two] = at_both(|node| fleet.sign_until_done(node, &request));
        assert_eq!(one, two, "one signature");
        let other = SignRequest {
            message: Some(b"other".as_slice().into()),
            ..request
        };
        let refused = fleet.sign(0, &other).unwrap_err();
        assert_eq!(refused.code(), Some("idempotency_mismatch"));
    }
    // Of a change too.
    let [one, two] = at_both(|node| {
        let mut made = None;
        wait_for("a key", || {
            made = fleet.try_create(node, 3, Alg::Ed25519).ok();
            made.is_some()
        });
        made.unwrap()
    });
    assert_eq!((&one.key, &one.receipt), (&two.key, &two.receipt));
    // What is not remembered is decrypted again, at the node that is asked.
    let wraps = fleet.create(0, 4, Alg::Aes256Gcm);
    let body = json!({"key": wraps, "plaintext": true, "op_id": id(2_000)});
    let first = fleet.post(0, "/v1/kms/datakey", &body);
    assert_eq!(
        first.status,
        200,
        "{}",
        String::from_utf8_lossy(&first.body)
    );
    let again = fleet.post(1, "/v1/kms/datakey", &body);
    let read = |reply: &Reply| serde_json::from_slice::<Value>(&reply.body).unwrap();
    assert_eq!(read(&first), read(&again));
}

/// Also not as the repetition of an operation, which is decrypted again: a request that is sent after the acknowledgement of the
/// destruction, at the node whose keys are older.
fn what_a_destroyed_key_has_wrapped_is_decrypted_nowhere(fleet: &Fleet) {
    for round in 0..6 {
        let key = fleet.create(0, 60 + round, Alg::Aes256Gcm);
        let body = json!({"key": key, "plaintext": true, "op_id": id(2_100 + round)});
        for node in 0..2 {
            let done = fleet.post(node, "/v1/kms/datakey", &body);
            assert_eq!(done.status, 200, "round {round}");
        }
        let order = DestroyKey {
            delay: Some("1s".parse().unwrap()),
            ..DestroyKey::default()
        };
        fleet.clients[0].destroy(&key, &order, soon()).unwrap();
        wait_for("one node has destroyed the key", || {
            fleet.clients.iter().any(|client| {
                let doc = client.key(&key, soon());
                doc.is_ok_and(|doc| doc.state == KeyState::Destroyed)
            })
        });
        for node in 0..2 {
            let after = fleet.post(node, "/v1/kms/datakey", &body);
            let text = String::from_utf8_lossy(&after.body).into_owned();
            assert!(after.status >= 400, "round {round}, node {node}: {text}");
        }
    }
}

/// Checkpoints of a `note` key beside blocks of use numbers and changes, each of which raises the version of the store. The end
/// of the test verifies the logs.
fn leaves_state_versions_in_their_order(fleet: &Fleet) {
    let note = CreateKey {
        payload: PayloadPolicy::Note(NotePolicy {
            origin: "notes.example".into(),
        }),
        ..create(70, Alg::Ed25519)
    };
    let note = fleet.clients[0].create_key(&note, soon()).unwrap().key;
    let (wraps, other) = (
        fleet.create(0, 71, Alg::Aes256Gcm),
        fleet.create(1, 72, Alg::Ed25519),
    );
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let body = json!({"key": wraps, "plaintext": "AA"});
            while !is_over.load(Ordering::SeqCst) {
                fleet.post(0, "/v1/kms/wrap", &body);
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let _ = fleet.clients[1].rotate(&other, &RotateRequest::default(), soon());
            }
        });
        let root = format!("{}=", "A".repeat(43));
        let mut signed = 0;
        for size in 1..200 {
            let text = format!("notes.example\n{size}\n{root}\n");
            let request = SignRequest::message(note.clone(), text.into_bytes());
            signed += u32::from(fleet.sign(0, &request).is_ok());
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(signed > 20, "{signed} checkpoints");
    });
}

fn a_batch_repeats_what_was_done(fleet: &Fleet) {
    let key = fleet.create(0, 5, Alg::Ed25519);
    let item = |n: u128, text: &str| SignItem {
        op_id: Some(id(3_000 + n)),
        message: Some(text.as_bytes().into()),
        ..SignItem::default()
    };
    let batch = |items| SignBatch {
        key: Some(key.clone().into()),
        version: None,
        items,
    };
    let sign = |node: usize, items| {
        let answer = fleet.clients[node].sign_batch(&batch(items), soon());
        answer.unwrap().results
    };
    let first = sign(0, vec![item(1, "one"), item(3, "three")]);
    let items = vec![
        item(0, "zero"),
        item(1, "one"),
        item(2, "two"),
        item(3, "other"),
    ];
    let second = sign(1, items.clone());
    let again = sign(0, items);
    assert_eq!(second, again);
    assert_eq!(second[1], first[0]);
    let receipt = |result: &SignResult| match (&result.answer, &result.error) {
        (Some(answer), None) => (answer.receipt.log.clone(), answer.receipt.index),
        (_, error) => (error.as_ref().unwrap().code.clone(), 0),
    };
    let all: Vec<_> = second.iter().map(receipt).collect();
    assert_eq!(all[0].0, origin(1));
    assert_eq!(all[2], (origin(1), all[0].1 + 1), "the next leaf");
    assert_eq!(all[3].0, "idempotency_mismatch");
}

/// The answer of an operation is that of its first time; what was refused may be tried again.
fn what_was_done_is_answered_when_the_key_is_out_of_use(fleet: &Fleet) {
    let [key, other] = [6, 7].map(|n| fleet.create(0, n, Alg::Ed25519));
    let request = |key: &Kid, n| SignRequest {
        op_id: Some(id(n)),
        ..SignRequest::message(key.clone(), *b"once")
    };
    let first = fleet.sign_until_done(0, &request(&key, 4_000));
    fleet.clients[0]
        .retire(&key, &RetireKey::default(), soon())
        .unwrap();
    for node in 0..2 {
        assert_eq!(fleet.sign(node, &request(&key, 4_000)).unwrap(), first);
        let refused = fleet.sign(node, &request(&key, 4_001)).unwrap_err();
        // A node whose keys are older notices that with the leaf.
        assert!(matches!(refused.status(), Some(409 | 503)), "{refused}");
    }
    fleet.sign_until_done(1, &request(&other, 4_001));
}

/// A request that is sent after the acknowledgement of the change gets no signature, from either node.
fn a_key_that_is_out_of_use_signs_nowhere(fleet: &Fleet) {
    for round in 0..8_u128 {
        let key = fleet.create(0, 10 + round, Alg::Ed25519);
        let (is_over, signed) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
        std::thread::scope(|scope| {
            for node in 0..2 {
                let (key, is_over, signed, count) = (key.clone(), &is_over, &signed[node], round);
                scope.spawn(move || {
                    for n in 0.. {
                        let was_over = is_over.load(Ordering::SeqCst);
                        let text = format!("{count} {node} {n}").into_bytes();
                        match fleet.sign(node, &SignRequest::message(key.clone(), text)) {
                            Ok(_) => {
                                assert!(!was_over, "round {round}: signed at node {node}");
                                signed.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(refused) if refused.code() == Some("key_not_active") => return,
                            Err(refused) => assert_eq!(refused.status(), Some(503), "{refused}"),
                        }
                    }
                });
            }
            let enough = 3 + round as u64 % 5;
            wait_for("both have signed", || {
                signed.iter().all(|n| n.load(Ordering::SeqCst) >= enough)
            });
            let at = &fleet.clients[round as usize % 2];
            if round % 4 < 2 {
                at.retire(&key, &RetireKey::default(), soon()).unwrap();
            } else {
                let order = DestroyKey {
                    delay: Some("1s".parse().unwrap()),
                    ..DestroyKey::default()
                };
                at.destroy(&key, &order, soon()).unwrap();
            }
            is_over.store(true, Ordering::SeqCst);
        });
        if round % 4 >= 2 {
            for client in &fleet.clients {
                wait_for("the key is destroyed", || {
                    let doc = client.key(&key, soon());
                    doc.is_ok_and(|doc| doc.state == KeyState::Destroyed)
                });
            }
        }
    }
}

/// What is asked for at one node is approved at both, over a kill of the first, and done once.
fn approvals_are_of_both_nodes(fleet: &mut Fleet) {
    let key = fleet.create(0, 25, Alg::Ed25519);
    let secrets = [1, 2].map(|seed| SecretKey::generate(Alg::Ed25519, &SeededRandom::new(seed)).0);
    let approvers = std::iter::zip(["alice", "bob"], &secrets).map(|(name, secret)| Approver {
        name: name.to_owned(),
        alg: Alg::Ed25519,
        public_key: Bytes(secret.public().raw().to_vec()),
    });
    let governed = KeyOp::ALL.iter().copied().filter(|op| op.is_governed());
    let policy = KeyPolicy {
        allow: vec![PolicyRule {
            ops: governed.collect(),
            ..PolicyRule::default()
        }],
        deny: Vec::new(),
        approvals: Some(ApprovalRule {
            needed: 2,
            ops: vec![KeyOp::Destroy],
            within: "1h".parse().unwrap(),
            approvers: approvers.collect(),
        }),
    };
    let put = PutKeyPolicy {
        policy: Some(policy),
        op_id: Some(id(2_500)),
    };
    fleet.clients[0].put_key_policy(&key, &put, soon()).unwrap();
    let destroy = DestroyKey {
        delay: Some("30d".parse().unwrap()),
        op_id: Some(id(2_501)),
        ..DestroyKey::default()
    };
    let ask = AskApproval {
        destroy: Some(destroy.clone()),
        ..AskApproval::default()
    };
    fleet.clients[0].ask_approval(&key, &ask, soon()).unwrap();
    let approve = |fleet: &Fleet, node: usize, name: &str, secret: &SecretKey| {
        let mut waits = None;
        wait_for("the node knows what waits", || {
            let list = fleet.clients[node].approvals(&key, soon());
            waits = list.ok().and_then(|list| list.requests.into_iter().next());
            waits.is_some()
        });
        let text = approval_text(id(2_501), &waits.unwrap().operation_sha256);
        let signed = secret.sign(Input::Message(text.as_bytes()), None);
        let approval = Approve {
            approver: name.to_owned(),
            signature: signed[0].signature.clone(),
        };
        let approved = fleet.clients[node].approve(&key, id(2_501), &approval, soon());
        approved.unwrap();
    };
    let refused_at_both = |fleet: &Fleet| {
        for code in at_both(|node| {
            let refused = fleet.clients[node].destroy(&key, &destroy, soon());
            refused.unwrap_err().code().map(str::to_owned)
        }) {
            assert_eq!(code.as_deref(), Some("approval_missing"));
        }
    };
    refused_at_both(fleet);
    approve(fleet, 1, "alice", &secrets[0]);
    refused_at_both(fleet);
    fleet.nodes[0].kill();
    fleet.nodes[0].start();
    approve(fleet, 0, "bob", &secrets[1]);
    let states = at_both(|node| {
        let done = fleet.clients[node].destroy(&key, &destroy, soon());
        done.unwrap().document.state
    });
    assert_eq!(states, [KeyState::PendingDestruction; 2]);
}

fn a_node_that_was_killed_goes_on(fleet: &mut Fleet) {
    let key = fleet.create(1, 30, Alg::Ed25519);
    for round in 0..4_u32 {
        let is_killed = AtomicBool::new(false);
        let pid = fleet.nodes[0].pid();
        let shared = &*fleet;
        std::thread::scope(|scope| {
            for node in 0..2 {
                let (key, is_killed) = (key.clone(), &is_killed);
                scope.spawn(move || {
                    for n in 0.. {
                        let text = format!("kill {round} {node} {n}").into_bytes();
                        let done = shared.sign(node, &SignRequest::message(key.clone(), text));
                        if is_killed.load(Ordering::SeqCst) {
                            // The other one is not held up.
                            assert!(node == 0 || done.is_ok(), "{done:?}");
                            return;
                        }
                    }
                });
            }
            let before = shared.signed.lock().unwrap().len();
            wait_for("signatures", || {
                shared.signed.lock().unwrap().len() > before + 10 + round as usize
            });
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            is_killed.store(true, Ordering::SeqCst);
        });
        fleet.nodes[0].kill();
        fleet.nodes[0].start();
        fleet.sign_until_done(0, &SignRequest::message(key.clone(), *b"again"));
    }
}

fn a_database_that_is_away_comes_back(fleet: &mut Fleet) {
    let key = fleet.create(0, 40, Alg::Ed25519);
    // Its standby is away: commits have no outcome.
    fleet.cluster.set_standby(false);
    for node in 0..2 {
        let refused = fleet.sign(node, &SignRequest::message(key.clone(), *b"away"));
        let status = refused.unwrap_err().status();
        assert!(matches!(status, None | Some(503 | 504)), "{status:?}");
    }
    wait_for("signing is refused at once", || {
        let refused = fleet.sign(0, &SignRequest::message(key.clone(), *b"refused"));
        matches!(
            refused,
            Err(ClientError::Refused {
                status: 503,
                retry_after_s: Some(_),
                ..
            })
        )
    });
    assert!(
        fleet.clients[1].key(&key, soon()).is_ok(),
        "what was read is shown"
    );
    for node in 0..2 {
        wait_for("readiness names the cause", || {
            let (status, body) = fleet.readiness(node);
            status == 503 && body.contains("engine")
        });
    }
    let _ = fleet.try_create(1, 41, Alg::Ed25519); // it is made, or not
    fleet.cluster.set_standby(true);
    for node in 0..2 {
        fleet.sign_until_done(node, &SignRequest::message(key.clone(), *b"back"));
    }
    let made = fleet.create(1, 41, Alg::Ed25519);
    assert_eq!(fleet.create(0, 41, Alg::Ed25519), made, "once");
    fleet.cluster.restart_primary();
    for node in 0..2 {
        fleet.sign_until_done(node, &SignRequest::message(made.clone(), *b"restarted"));
    }
    for node in 0..2 {
        wait_for("the node is ready again", || fleet.readiness(node).0 == 200);
    }
}

/// A commit that the crash of the database leaves without an answer is found, and finished.
fn changes_are_made_once_through_crashes_of_the_database(fleet: &mut Fleet) {
    const ROUNDS: u64 = 6;
    let Fleet {
        cluster, clients, ..
    } = fleet;
    let (is_over, clients) = (AtomicBool::new(false), &*clients);
    let made = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for node in 0..2_u128 {
            let (is_over, made) = (&is_over, &made);
            scope.spawn(move || {
                let at = &clients[node as usize];
                let mut n = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let number = 5_000 + 2_000 * node + 2 * n;
                    let request = create(number, Alg::Ed25519);
                    let mut key = None;
                    wait_for("a key", || {
                        key = at.create_key(&request, soon()).ok().map(|doc| doc.key);
                        key.is_some()
                    });
                    let key = key.unwrap();
                    let request = RotateRequest {
                        op_id: Some(id(number + 1)),
                        ..RotateRequest::default()
                    };
                    wait_for("a rotation", || {
                        let rotated = at.rotate(&key, &request, soon());
                        rotated.is_ok_and(|changed| changed.document.head == 2)
                    });
                    made.lock().unwrap().push((number, key));
                    n += 1;
                }
            });
        }
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let request = RotateLogKey {
                    op_id: Some(id(9_000 + u128::from(round))),
                    ..RotateLogKey::default()
                };
                wait_for("a rotation of a log's key", || {
                    let at = &clients[round as usize % 2];
                    at.rotate_log_key(&request, soon()).is_ok()
                });
                let before = made.lock().unwrap().len();
                wait_for("changes", || {
                    made.lock().unwrap().len() > before || is_over.load(Ordering::SeqCst)
                });
            }
        });
        for round in 0..ROUNDS {
            let before = made.lock().unwrap().len();
            wait_for("changes", || {
                made.lock().unwrap().len() > before + round as usize
            });
            std::thread::sleep(Duration::from_millis(7 * round));
            cluster.restart_primary();
        }
        is_over.store(true, Ordering::SeqCst);
    });
    for (number, key) in made.into_inner().unwrap() {
        for client in clients {
            let again = client.create_key(&create(number, Alg::Ed25519), soon());
            assert_eq!(again.unwrap().key, key, "{number}");
            let doc = client.key(&key, soon()).unwrap();
            assert_eq!((doc.head, doc.versions.len()), (2, 1), "{number}");
        }
    }
}

/// Another name with the data directory of a node is refused, and does not join the store.
fn a_data_directory_keeps_its_name(fleet: &mut Fleet) {
    fleet.nodes[1].stop();
    let config = fleet.config(1);
    fleet.nodes[1].configure(&config.replace(&origin(1), "kms.example/other"));
    fleet.nodes[1].start();
    wait_for("the other name is refused", || {
        let log = std::fs::read_to_string(fleet.nodes[1].log()).unwrap_or_default();
        log.contains("set audit.origin = \"kms.example/b\" again")
    });
    fleet.nodes[1].kill();
    let rows = fleet
        .cluster
        .primary
        .admin("SELECT origin FROM ron_kms_keys.logs", &[]);
    assert_eq!(rows.len(), 1, "the second of two nodes");
    fleet.nodes[1].configure(&config);
    fleet.nodes[1].start();
    let key = fleet.create(0, 80, Alg::Ed25519);
    fleet.sign_until_done(1, &SignRequest::message(key, *b"named"));
}

/// A process with the name of a node goes on with its log, and the node writes no more: a host that is lost is replaced so.
fn a_name_is_of_one_process(fleet: &mut Fleet) {
    let key = fleet.create(1, 50, Alg::Ed25519);
    let mut other = Node::new(PROGRAM, "ron-kms");
    other.configure(&fleet.config(0));
    other.start();
    wait_for("the node has lost its log", || {
        let refused = fleet.sign(0, &SignRequest::message(key.clone(), *b"lost"));
        let (status, body) = fleet.readiness(0);
        refused.is_err() && status == 503 && body.contains("audit")
    });
    let client = KmsClient::new(&other.url, Credential::bearer(&fleet.caller.token), http());
    let request = SignRequest::message(key.clone(), *b"replaced");
    let mut answer = None;
    wait_for("the other process signs", || {
        answer = client.sign(&request, soon()).ok();
        answer.is_some()
    });
    let answer = answer.unwrap();
    assert_eq!(answer.receipt.log, origin(0));
    fleet.signed.lock().unwrap().push(answer);
    other.stop();
    fleet.nodes[0].stop();
    fleet.nodes[0].start();
    fleet.sign_until_done(0, &request);
}
