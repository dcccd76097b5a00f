//! Two issuers whose log of revocations is in one database, with a KMS and verifiers, as services.
#![allow(clippy::disallowed_methods)] // a test waits

mod moves;
mod witnessed;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::dpop::make_proof;
use ron_auth::{Holder, client_secret, policy_note, service_token};
use ron_client::{Credential, KmsClient};
use ron_crypto::sign::Ed25519Key;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::{Clock as _, SystemClock};
use ron_kms::RonKms;
use ron_ledger::RonLedger;
use ron_proto::kms::{CreateKey, JwtPolicy, KeyDoc, NotePolicy, PayloadPolicy, RotateRequest};
use ron_proto::passport::TTL_S_MAX;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::{Alg, Kid, b64, jcs};
use ron_service::Running;
use ron_tlog::note::VerifierKey;
use serde_json::{Value, json};
use svc_passport::SvcPassport;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::contract::{soon, wait_for};
use crate::services::{Caller, name_a_lost_standby, private_dir, put, start, stop, try_start};

/// The secret of the client `robot`.
fn secret() -> String {
    client_secret::generate("robot", &[57; 32])
}

const ISSUER: &str = "http://issuer.example";

/// The KMS, the issuers' directories, and their callers.
struct Rig {
    cluster: Cluster,
    kms: Running,
    /// Holds the signed policy and the tokens of services.
    files: TempDir,
    dirs: [TempDir; 2],
    /// Lines of the issuers' configuration: keys and policy.
    keys: String,
    /// Rotates the key that signs tokens.
    keeper: KmsClient,
    token_key: Kid,
    note_vkey: String,
    /// Revokes, reads the feed, and verifies.
    operator: Caller,
    /// Has tokens issued to others.
    teller: Caller,
    verifier: Caller,
    /// More lines of the configuration of nodes with an engine.
    more: String,
}

/// Writes the issuer policy; returns the key that has signed it.
fn write_policy(files: &TempDir) -> String {
    let key = Ed25519Key::from_seed(&[53; 32]);
    let rule = |id: &str| {
        json!({"client_id": id, "tenant": "default", "subjects": ["user:*"], "max_ttl_s": 900,
            "audiences": [{"audience": "ron-ledger", "scopes": ["ledger:read"]}]})
    };
    let policy = json!({"version": 1, "clients": [rule("teller"), rule("robot")]});
    let bytes = jcs::canonicalize(&policy);
    let sig = PolicySig {
        alg: "ed25519".to_owned(),
        key: b64::url(&key.public()),
        value: b64::url(&key.sign(&policy_message("issuer", &bytes))),
    };
    put(files.path(), "issuer.json", &bytes);
    let sig = ron_service::signed_policy::signature_bytes(&sig).expect("a document");
    put(files.path(), "issuer.json.sig", &sig);
    b64::url(&key.public())
}

/// A key of the KMS for the issuer.
fn make_key(kms: &KmsClient, number: u8, purpose: &str, payload: PayloadPolicy) -> KeyDoc {
    let op_id = format!("01890a5d-ac96-774b-bcce-{number:012x}");
    let request = CreateKey {
        tenant: "ron".parse().expect("a tenant"),
        purpose: purpose.parse().expect("a purpose"),
        alg: Alg::Ed25519,
        payload,
        exportable: false,
        derived: false,
        rotate_every: None,
        backend: None,
        op_id: op_id.parse().expect("an operation id"),
        token: None,
    };
    kms.create_key(&request, soon()).expect("a key")
}

impl Rig {
    fn new(cluster: Cluster) -> Self {
        let files = private_dir();
        let policy_key = write_policy(&files);
        let [issuer, keeper] = [("ron", "svc-passport"), ("ron", "keeper")];
        let (issuer, keeper) = (
            Caller::new(issuer.0, issuer.1),
            Caller::new(keeper.0, keeper.1),
        );
        put(files.path(), "kms.token", issuer.token.as_bytes());
        let kms = start::<RonKms>(&format!(
            "amnesia = true\n[policy]\npublic_keys = [\"{policy_key}\"]\n{}{}",
            issuer.principal(&["kms:sign", "kms:read"]),
            keeper.principal(&["kms:create", "kms:rotate", "kms:read"]),
        ));
        let http = Arc::new(HttpClient::new(ClientConfig {
            insecure_loopback: true,
            ..ClientConfig::default()
        }));
        let client = KmsClient::new(&kms.api_url(), Credential::bearer(&keeper.token), http);
        let jwt = PayloadPolicy::Jwt(JwtPolicy {
            typ: vec!["at+jwt".to_owned(), "statuslist+jwt".to_owned()],
            iss: ISSUER.to_owned(),
            aud: Vec::new(),
            issuer_policy: true,
            max_ttl_s: TTL_S_MAX,
        });
        let tokens = make_key(&client, 1, "issuer", jwt).key;
        let token_key = tokens.clone();
        let origin = policy_note::origin(ISSUER);
        let note = PayloadPolicy::Note(NotePolicy {
            origin: origin.clone(),
        });
        let note = make_key(&client, 2, "note", note);
        let head = note.head_version().expect("a key has a head");
        let public: &[u8; 32] = head.public_key.as_slice().try_into().expect("Ed25519");
        let vkey = VerifierKey::ed25519(&origin, public).expect("a good name");
        let path = files.path().display().to_string();
        let keys = format!(
            "[kms]\nurl = \"{}\"\ntoken_file = \"{path}/kms.token\"\nkey = \"{tokens}\"\nnote_key = \"{}\"\n\
             refresh_interval = \"1m\"\n[policy]\ndir = \"{path}\"\npublic_keys = [\"{policy_key}\"]\n",
            kms.api_url(),
            note.key,
        );
        let verifier = Caller::new("ron", "ron-ledger");
        put(files.path(), "verifier.token", verifier.token.as_bytes());
        Self {
            cluster,
            kms,
            files,
            dirs: [private_dir(), private_dir()],
            keys,
            keeper: client,
            token_key,
            note_vkey: vkey.to_string(),
            operator: Caller::new("default", "operator"),
            teller: Caller::new("default", "teller"),
            verifier,
            more: String::new(),
        }
    }

    fn try_start(&self, node: usize) -> Result<Running, String> {
        let url = self.cluster.primary.url();
        let engine = format!(
            "[log]\nurl = \"{url}\"\n[records]\nurl = \"{url}\"\n{}",
            self.more
        );
        try_start::<SvcPassport>(&self.config(node, &engine))
    }

    /// The configuration of a node; without an engine it is in files.
    fn config(&self, node: usize, engine: &str) -> String {
        let admin = ["passport:admin", "passport:introspect"];
        format!(
            "data_dir = \"{}\"\nissuer = \"{ISSUER}\"\npublic_url = [\"http://node-{node}\", \"{ISSUER}\"]\n\
             {engine}\
             [[clients]]\nid = \"robot\"\nsecret_sha256 = [\"{}\"]\n{}{}{}{}",
            self.dirs[node].path().display(),
            service_token::hash(&secret()),
            self.keys,
            self.operator.principal(&admin),
            self.teller.principal(&["passport:issue"]),
            self.verifier.principal(&["passport:introspect"]),
        )
    }

    /// Both nodes; the second has the key of the first.
    fn start_both(&self) -> [Running; 2] {
        let one = self.try_start(0).expect("it starts");
        wait_for("the first node has read the log and the keys", || {
            one.ready().ready
        });
        let Err(refused) = self.try_start(1) else {
            panic!("a node without the key has started");
        };
        assert!(refused.contains("note.key"), "{refused}");
        self.copy_key();
        let two = self.try_start(1).expect("it starts");
        wait_for("the second node is ready", || two.ready().ready);
        [one, two]
    }

    /// Gives the second node the key of the first.
    fn copy_key(&self) {
        for name in ["note.key", "log.vkey"] {
            let path = |node: usize| self.dirs[node].path().join(name);
            fs::copy(path(0), path(1)).expect("a copy");
        }
    }

    /// A service that accepts passports, and follows one node.
    fn ledger(&self, node: &Running) -> Running {
        start::<RonLedger>(&format!(
            "amnesia = true\n[ledger]\nprojection = false\n[auth]\nissuer = \"{ISSUER}\"\n\
             jwks_url = \"{}/.well-known/jwks.json\"\nnote_vkey = [\"{}\"]\ntoken_file = \"{}/verifier.token\"\n",
            node.api_url(),
            self.note_vkey,
            self.files.path().display(),
        ))
    }

    fn try_issue(&self, node: &Running, subject: &str) -> Reply {
        let body = json!({"subject_ref": subject, "audience": "ron-ledger"});
        let path = "/v1/passport/issue";
        self.teller
            .call(node, Method::POST, path, None, Some(&body))
    }

    fn issue(&self, node: &Running, subject: &str) -> String {
        let mut token = String::new();
        // A busy machine reads the log late for a moment.
        wait_for("a token is issued", || {
            let reply = self.try_issue(node, subject);
            if reply.status != 200 {
                assert_eq!(
                    reply.status,
                    503,
                    "{}",
                    String::from_utf8_lossy(&reply.body)
                );
                return false;
            }
            let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
            body["token"]
                .as_str()
                .expect("a token")
                .clone_into(&mut token);
            true
        });
        token
    }

    /// A token request of the client `robot` with a proof; status and code of its answer.
    fn prove(&self, node: &Running, proof: &str) -> (u16, String) {
        let form = format!(
            "grant_type=client_credentials&client_id=robot&client_secret={}&audience=ron-ledger",
            secret()
        );
        let called = self.operator.http.call(Call {
            method: Method::POST,
            url: &format!("{}/oauth2/token", node.api_url()),
            headers: &[("DPoP", proof)],
            body: Some(form.into_bytes()),
            content_type: Some("application/x-www-form-urlencoded"),
            deadline: soon(),
            idempotent: false,
        });
        let reply = called.expect("the service answers");
        let told: Value = serde_json::from_slice(&reply.body).expect("JSON");
        let code = told["error"].as_str().unwrap_or_default().to_owned();
        (reply.status, code)
    }

    fn revoke(&self, node: &Running, what: &Value) -> Reply {
        let path = "/v1/passport/revoke";
        self.operator
            .call(node, Method::POST, path, None, Some(what))
    }

    /// Number of the event.
    fn revoked(&self, node: &Running, what: &Value) -> u64 {
        let reply = self.revoke(node, what);
        let text = String::from_utf8_lossy(&reply.body);
        assert_eq!(reply.status, 200, "{text}");
        let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
        body["event"].as_u64().expect("a number")
    }

    fn feed(&self, node: &Running, after: u64) -> Reply {
        let path = format!("/v1/passport/events?after={after}");
        self.operator.get(node, &path)
    }

    /// Whether the issuer holds a token for valid.
    fn verdict(&self, node: &Running, token: &str) -> bool {
        let body = json!({"token": token});
        let path = "/v1/passport/verify";
        let reply = self
            .operator
            .call(node, Method::POST, path, None, Some(&body));
        let told: Value = serde_json::from_slice(&reply.body).expect("JSON");
        told["ok"].as_bool().unwrap_or_else(|| panic!("{told}"))
    }

    /// Both feeds have the same events, numbered without gaps, under the same checkpoint.
    fn wait_for_one_feed(&self, nodes: &[Running; 2]) -> Vec<Value> {
        let mut events = Vec::new();
        wait_for("both nodes have the same feed", || {
            let [one, two] = nodes.each_ref().map(|node| self.feed(node, 0));
            if (one.status, two.status) != (200, 200) || one.body != two.body {
                return false;
            }
            let page: Value = serde_json::from_slice(&one.body).expect("JSON");
            events.clone_from(page["events"].as_array().expect("events"));
            true
        });
        let numbers = events
            .iter()
            .map(|event| event["seq"].as_u64().expect("a number"));
        assert!(numbers.eq(1..=events.len() as u64), "{events:?}");
        events
    }
}

fn accepts(ledger: &Running, token: &str) -> bool {
    let mut holder = Caller::new("default", "holder");
    token.clone_into(&mut holder.token);
    match holder.get(ledger, "/v1/ledger/accounts/nobody").status {
        200 | 404 => true,
        401 | 503 => false,
        other => panic!("{other}"),
    }
}

/// The node that finds a new key while it issues announces it, and the other reads it then and not within its minute.
fn rotated(rig: &Rig, nodes: &[Running; 2]) {
    let published = |node: &Running| {
        let reply = rig.operator.get(node, "/.well-known/jwks.json");
        let keys: Value = serde_json::from_slice(&reply.body).expect("JSON");
        keys["keys"].as_array().expect("keys").len()
    };
    assert_eq!(nodes.each_ref().map(published), [1, 1]);
    let rotated = rig
        .keeper
        .rotate(&rig.token_key, &RotateRequest::default(), soon());
    rotated.expect("a new version");
    let begun = SystemClock.now();
    rig.issue(&nodes[0], "user:3");
    wait_for("both nodes publish the new key", || {
        nodes.each_ref().map(published) == [2, 2]
    });
    let took = SystemClock.now() - begun;
    println!("both publish the key after {} ms", took.as_millis());
    assert!(took < Duration::from_secs(40), "{took:?}");
}

/// Two nodes revoke at once, and each knows what the other has answered; services see it by either of them.
#[test]
fn two_issuers_revoke_at_once_and_no_event_is_lost() {
    let rig = Rig::new(Cluster::pair());
    let nodes = rig.start_both();
    let numbers = ron_kernel::scoped(12, |n| {
        let what = json!({"jti": format!("token-{n}"), "reason": "leaked"});
        rig.revoked(&nodes[n % 2], &what)
    });
    let events = rig.wait_for_one_feed(&nodes);
    for (n, number) in numbers.iter().enumerate() {
        let event = &events[*number as usize - 1];
        assert_eq!(event["revoked"]["jti"], format!("token-{n}"), "{event}");
    }
    // An epoch is one of both.
    let mut statuses = ron_kernel::scoped(2, |n| {
        let what = json!({"epoch": 7, "reason": "all of them"});
        rig.revoke(&nodes[n], &what).status
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);

    let ledgers = nodes.each_ref().map(|node| rig.ledger(node));
    let tokens = [0, 1].map(|n| rig.issue(&nodes[n], &format!("user:{n}")));
    for ledger in &ledgers {
        for token in &tokens {
            wait_for("each service accepts the tokens of each node", || {
                accepts(ledger, token)
            });
        }
    }
    // Revoked at the node that has not issued it.
    for n in 0..2 {
        let begun = SystemClock.now();
        let what = json!({"subject_ref": format!("user:{n}"), "reason": "left"});
        rig.revoked(&nodes[1 - n], &what);
        for ledger in &ledgers {
            wait_for("both services refuse the token", || {
                !accepts(ledger, &tokens[n])
            });
        }
        wait_for("the other node too", || !rig.verdict(&nodes[n], &tokens[n]));
        let took = SystemClock.now() - begun;
        println!("in force everywhere after {} ms", took.as_millis());
        assert!(took < Duration::from_secs(25), "{took:?}");
    }

    rotated(&rig, &nodes);

    // One node is gone: the other goes on.
    let before = rig.wait_for_one_feed(&nodes).len() as u64;
    let [one, two] = nodes;
    stop(one);
    let token = rig.issue(&two, "user:2");
    let what = json!({"subject_ref": "user:2", "reason": "left"});
    assert_eq!(rig.revoked(&two, &what), before + 1);
    assert!(!rig.verdict(&two, &token));
    // It comes back with what it has missed.
    let one = rig.try_start(0).expect("it starts");
    wait_for("the node is ready", || one.ready().ready);
    assert!(!rig.verdict(&one, &token));
    assert_eq!(rig.wait_for_one_feed(&[one, two]).len() as u64, before + 1);
    for ledger in ledgers {
        stop(ledger);
    }
}

/// A proof that two nodes get at once counts at one of them.
#[test]
fn a_proof_counts_once_at_two_issuers() {
    let rig = Rig::new(Cluster::pair());
    let nodes = rig.start_both();
    let holder = Holder::new(Ed25519Key::from_seed(&[9; 32]));
    let url = format!("{ISSUER}/oauth2/token");
    let proof = |id: &str| {
        let now_s = SystemClock.unix_ms() / 1000;
        make_proof(&holder, "POST", &url, None, None, now_s, id)
    };
    wait_for("the database has the tables of both nodes", || {
        let used = |n: usize| rig.prove(&nodes[n], &proof(&format!("first {n}"))).0;
        // Each try uses an id up, also one that was refused.
        [used(0), used(1)]
            .iter()
            .all(|status| [200, 400].contains(status))
    });
    let mut passed = 0;
    for round in 0..10 {
        let proof = proof(&format!("round {round}"));
        let mut answers = ron_kernel::scoped(2, |n| rig.prove(&nodes[n], &proof));
        answers.sort();
        if answers[0].0 == 200 {
            assert_ne!(answers[1].0, 200, "twice");
            passed += u32::from(answers[1] == (400, "invalid_dpop_proof".to_owned()));
        } else {
            // A busy machine: no node knows in time, and none has issued a token.
            assert!(
                answers
                    .iter()
                    .all(|(status, _)| [400, 503].contains(status)),
                "{answers:?}"
            );
        }
        let again = rig.prove(&nodes[round % 2], &proof);
        assert_ne!(again.0, 200);
    }
    assert!(passed > 0, "no proof was accepted");
    rig.cluster.set_standby(false);
    let (status, code) = rig.prove(&nodes[0], &proof("away"));
    assert_eq!((status, code.as_str()), (503, "temporarily_unavailable"));
    rig.cluster.set_standby(true);
    wait_for("proofs are accepted again", || {
        rig.prove(&nodes[0], &proof(&format!("{}", SystemClock.unix_ms())))
            .0
            == 200
    });
    for node in nodes {
        stop(node);
    }
}

/// Without the database nothing is issued or revoked, and verifying goes on; afterwards nothing has to be restarted.
#[test]
fn an_issuer_without_its_database_verifies_and_issues_nothing() {
    let mut rig = Rig::new(Cluster::pair());
    let nodes = rig.start_both();
    let token = rig.issue(&nodes[0], "user:1");
    let what = json!({"jti": "before", "reason": "leaked"});
    let last = rig.revoked(&nodes[1], &what);
    wait_for("the other node has it", || {
        rig.feed(&nodes[0], last - 1).body == rig.feed(&nodes[1], last - 1).body
    });
    for node in &nodes {
        let log = rig.operator.log_of(node);
        assert!(log.active && log.entries >= last, "{log:?}");
        wait_for("the node has asked the database", || {
            rig.operator
                .log_of(node)
                .engine
                .is_some_and(|engine| engine.standbys.len() == 1)
        });
    }
    // The server answers reads, and has no standby: another may be the primary.
    rig.cluster.set_standby(false);
    for node in &nodes {
        wait_for("no token is issued", || {
            rig.try_issue(node, "user:1").status == 503
        });
        wait_for("the cause is named", || {
            node.ready()
                .missing
                .iter()
                .any(|cause| cause.contains("revocations"))
        });
        assert!(!rig.operator.log_of(node).active);
        assert!(rig.verdict(node, &token), "verifying goes on");
        // Known events are shown; that there are no others is not said.
        assert_eq!(rig.feed(node, last - 1).status, 200);
        assert_eq!(rig.feed(node, last).status, 503);
    }
    let what = json!({"jti": "meanwhile", "reason": "leaked"});
    assert_eq!(rig.revoke(&nodes[0], &what).status, 503);
    rig.cluster.set_standby(true);
    for (n, node) in nodes.iter().enumerate() {
        rig.issue(node, "user:1");
        let what = json!({"jti": format!("after-{n}"), "reason": "leaked"});
        wait_for("it is revoked", || rig.revoke(node, &what).status == 200);
        wait_for("the node is ready", || node.ready().ready);
    }
    let events = rig.wait_for_one_feed(&nodes);
    let times = |jti: &str| events.iter().filter(|e| e["revoked"]["jti"] == jti).count();
    assert_eq!(
        [times("before"), times("after-0"), times("after-1")],
        [1, 1, 1]
    );
    assert!(times("meanwhile") <= 1, "{events:?}");
    name_a_lost_standby(&[&nodes[0], &nodes[1]], &mut rig.cluster);
    let [one, two] = nodes;
    stop(one);
    stop(two);
    let Rig { kms, .. } = rig;
    stop(kms);
}
