//! The running service over HTTP, compute-only: uploads, refusals, a run, its proof, a restart.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::service_token;
use ron_client::{ClientError, Credential, RewarderClient};
use ron_crypto::sign::Ed25519Key;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{
    ComputeRequest, EpochRun, ImportKind, POLICY_KIND, PayoutProof, RunManifest, RunState,
    SignedPolicy, SnapshotInfo,
};
use ron_proto::{ContentId, b64, jcs};
use ron_service::{Config, Parts, Running, StartError};
use serde_json::{Value, json};
use svc_rewarder::SvcRewarder;
use svc_rewarder::manifest::verify::check_proof;
use svc_rewarder::settings::TABLE;

const TOKEN_SEED: [u8; 32] = [5; 32];

fn key() -> Ed25519Key {
    Ed25519Key::from_seed(&[1; 32])
}

fn by() -> Deadline {
    Deadline::within(Duration::from_secs(10))
}

fn start(data: &Path) -> Result<Running, StartError> {
    start_with(data, "")
}

/// The causes for which the service is not ready.
fn missing(running: &Running) -> String {
    let http = HttpClient::new(ClientConfig::default());
    let url = format!("{}/readyz", running.health_url());
    let reply = http.call(Call::get(&url, by())).expect("an answer");
    let doc: Value = reply.json().expect("JSON");
    doc["missing"].to_string()
}

/// Shorter than a write waits for another writer of the file.
const HELD: Duration = Duration::from_millis(1_900);

#[test]
fn a_disk_that_hangs_is_reported_and_the_run_goes_on() {
    let attempts = 10;
    // On a machine that stalls for so long that the write gave up first, it is tried again.
    let on_time = (0..attempts).any(|_| hang_is_reported());
    assert!(on_time, "no attempt of {attempts} was on time");
}

/// False when the other writer held the file for longer than the service's write waits.
fn hang_is_reported() -> bool {
    let data = tempfile::tempdir().expect("a directory");
    let running = start(data.path()).expect("it starts");
    running.wait_ready(by()).expect("it gets ready");
    let caller = Caller::new(&running);
    let request = inputs(&caller);
    let epoch = "e1".parse().expect("an epoch");
    // Another writer of the file stands for a disk that does not answer.
    let other = rusqlite::Connection::open(data.path().join("rewarder.db")).expect("opens");
    let held = Deadline::within(HELD);
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let wait = Duration::from_secs(9);
    let computed = std::thread::scope(|scope| {
        let run = scope.spawn(|| caller.typed().compute(&epoch, &request, wait, by()));
        while missing(&running) != "[\"disk\"]" && !held.expired() {
            let pause = Deadline::within(Duration::from_millis(10));
            running.stop_token().wait(pause);
        }
        other.execute_batch("ROLLBACK").expect("unlocked");
        let on_time = !held.expired();
        let computed = run.join().expect("no panic");
        on_time.then_some(computed)
    });
    let Some(computed) = computed else {
        return false;
    };
    computed.expect("computed");
    assert_eq!(missing(&running), "[]");
    let url = format!("{}/metrics", running.health_url());
    let page = caller.http.call(Call::get(&url, by())).expect("metrics");
    let page = String::from_utf8(page.body).expect("text");
    let counted = "svc_rewarder_io_timeouts_total{op=\"store\"} 1";
    assert!(page.contains(counted), "{page}");
    end(running);
    true
}

#[test]
fn no_run_begins_while_the_disk_is_full() {
    let data = tempfile::tempdir().expect("a directory");
    // The maximum of the key: more than any machine of a test has.
    let full = "[limits]\ndisk_reserve = \"1024TiB\"\n";
    let running = start_with(data.path(), full).expect("it starts");
    assert!(missing(&running).contains("disk_full"));
    let caller = Caller::new(&running);
    let request = inputs(&caller);
    let epoch = "e1".parse().expect("an epoch");
    let wait = Duration::from_secs(5);
    let refused = caller.typed().compute(&epoch, &request, wait, by());
    let refused = refused.expect_err("refused").to_string();
    assert!(refused.contains("limits.disk_reserve"), "{refused}");
    assert_eq!(caller.typed().epochs(by()).expect("a list").epochs, []);
    end(running);
}

fn end(mut running: Running) {
    let report = running.drain(Duration::from_secs(5));
    assert_eq!(report.stragglers, Vec::<String>::new());
}

/// The same, with more lines of the section `[policy]`.
fn start_with(data: &Path, policy: &str) -> Result<Running, StartError> {
    let token = service_token::generate("tester", &TOKEN_SEED);
    let text = format!(
        "data_dir = \"{}\"\nuds_only = true\nuds_path = \"{}\"\n\
         [policy]\npublic_keys = [\"{}\"]\n{policy}\
         [[auth.principals]]\nname = \"tester\"\nsha256 = \"{}\"\n\
         scopes = [\"rewarder:run\", \"rewarder:read\"]\n",
        data.display(),
        data.join("run/api.sock").display(),
        b64::url(&key().public()),
        service_token::hash(&token)
    );
    let config = Config::load(
        &TABLE,
        Some((Path::new("test.toml"), &text)),
        &|_| None,
        &[],
    )
    .map_err(StartError::from)?;
    ron_service::start::<SvcRewarder>(config, Parts::ephemeral("svc-rewarder")?)
}

struct Caller {
    http: Arc<HttpClient>,
    base: String,
    auth: String,
}

impl Caller {
    fn new(running: &Running) -> Self {
        let token = service_token::generate("tester", &TOKEN_SEED);
        Self {
            http: Arc::new(HttpClient::new(ClientConfig::default())),
            base: running.api_url(),
            auth: format!("Bearer {token}"),
        }
    }

    fn typed(&self) -> RewarderClient {
        let token = service_token::generate("tester", &TOKEN_SEED);
        RewarderClient::new(&self.base, Credential::bearer(&token), self.http.clone())
    }

    fn call(&self, method: Method, path: &str, body: Option<(&str, &[u8])>) -> Reply {
        let url = format!("{}{path}", self.base);
        let call = Call {
            method,
            url: &url,
            headers: &[("Authorization", &self.auth)],
            body: body.map(|(_, bytes)| bytes.to_vec()),
            content_type: body.map(|(kind, _)| kind),
            deadline: by(),
            idempotent: false,
        };
        self.http.call(call).expect("an answer")
    }

    /// Status and problem code of a response that must be an error.
    fn refused(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &[u8])>,
    ) -> (u16, String, String) {
        let reply = self.call(method, path, body);
        let problem = reply.problem().expect("a problem");
        (reply.status, problem.code, problem.detail)
    }
}

fn signed(edit: &Value) -> SignedPolicy {
    let mut policy = json!({
        "format": 1, "tenant": "default", "id": "test", "version": 1, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:default/test", "amount_minor": "1000"},
        "metrics": {"m": {"weight": "3/2", "class": "metering"}},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/test"}
    });
    for (field, value) in edit.as_object().expect("an object of replaced fields") {
        policy[field] = value.clone();
    }
    let message = policy_message(POLICY_KIND, &jcs::canonicalize(&policy));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "k".into(),
        value: b64::url(&key().sign(&message)),
    };
    SignedPolicy { policy, signature }
}

fn body(document: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("JSON")
}

const CSV: &[u8] = b"account,metric,amount\nacc:a,m,5\nacc:b,m,3\nacc:c/d,m,2\n";

fn refusals(caller: &Caller) {
    let put =
        |path: &str, kind, bytes: &[u8]| caller.refused(Method::PUT, path, Some((kind, bytes)));
    let post =
        |path: &str, kind, bytes: &[u8]| caller.refused(Method::POST, path, Some((kind, bytes)));
    let json = "application/json";
    let mut altered = signed(&json!({}));
    altered.policy["pool"]["amount_minor"] = "9000".into();
    let (status, code, detail) = put("/rewarder/policy/test", json, &body(&altered));
    assert_eq!((status, code.as_str()), (422, "policy_refused"), "{detail}");
    let unsigned = json!({"policy": signed(&json!({})).policy});
    assert_eq!(put("/rewarder/policy/test", json, &body(&unsigned)).0, 400);
    let (_, code, detail) = put("/rewarder/policy/other", json, &body(&signed(&json!({}))));
    assert_eq!(code, "policy_refused", "{detail}");
    let bad = b"account,metric,amount\nacc:a,m,5\nacc:b,m,-3\n";
    let (status, code, detail) = post("/rewarder/snapshots", "text/csv", bad);
    assert_eq!((status, code.as_str()), (400, "bad_snapshot"));
    assert!(detail.contains("line 3"), "{detail}");
    assert_eq!(post("/rewarder/snapshots", "text/plain", CSV).0, 415);
    assert_eq!(
        post("/rewarder/snapshots?kind=sums", "text/csv", CSV).1,
        "bad_request"
    );
    assert_eq!(
        post("/rewarder/snapshots", "application/octet-stream", CSV).1,
        "bad_snapshot"
    );
    let zero = format!("/rewarder/snapshots/b3:{}", "0".repeat(64));
    assert_eq!(put(&zero, "text/csv", CSV).1, "cid_mismatch");
    assert_eq!(post("/rewarder/epochs/e1/compute", json, b"{}").0, 400);
    assert_eq!(post("/rewarder/epochs/e%201/compute", json, b"{}").0, 400);
    let (status, _, detail) = post("/rewarder/epochs/e1/settle?wait=31", json, b"");
    assert_eq!(status, 400);
    assert!(detail.contains("at most 30"), "{detail}");
    for path in [
        "/rewarder/epochs/e1",
        "/rewarder/epochs/e1/manifest",
        zero.as_str(),
        "/rewarder/policy/none",
    ] {
        assert_eq!(caller.refused(Method::GET, path, None).0, 404, "{path}");
    }
    let other_caller = Caller {
        auth: "Bearer nobody".into(),
        http: caller.http.clone(),
        base: caller.base.clone(),
    };
    assert_eq!(
        other_caller
            .refused(Method::GET, "/rewarder/epochs", None)
            .0,
        401
    );
}

fn inputs(caller: &Caller) -> ComputeRequest {
    let client = caller.typed();
    let policy = signed(&json!({}));
    let id = "test".parse().expect("an id");
    let stored = client.put_policy(&id, &policy, by()).expect("stored");
    assert_eq!(
        client
            .put_policy(&id, &policy, by())
            .expect("the same again"),
        stored
    );
    let posted = caller.call(Method::POST, "/rewarder/snapshots", Some(("text/csv", CSV)));
    assert_eq!(posted.status, 201);
    let info: SnapshotInfo = posted.json().expect("what was sealed");
    assert_eq!((info.accounts, info.metrics[0].sum.0), (3, 10));
    let again = client
        .put_csv(&info.cid, ImportKind::Totals, CSV.to_vec(), by())
        .expect("there");
    assert_eq!(again, info);
    ComputeRequest {
        snapshot: info.cid,
        policy_id: id,
        policy_hash: stored.hash,
        dry_run: false,
        adjusts: None,
    }
}

fn check_results(caller: &Caller, run: &EpochRun) {
    assert_eq!(
        (run.state, run.totals.expect("sealed").payout_minor.0),
        (RunState::Sealed, 1000)
    );
    let get = |path: &str| caller.call(Method::GET, path, None);
    let manifest: RunManifest = get("/rewarder/epochs/e1/manifest")
        .json()
        .expect("a manifest");
    assert_eq!(Some(manifest.commitment), run.commitment);
    let proof: PayoutProof = get("/rewarder/epochs/e1/proof/acc%3Ac%2Fd")
        .json()
        .expect("a proof for a name with a slash");
    assert_eq!(proof.payout.amount_minor.0, 200);
    assert_eq!(proof.manifest, manifest);
    check_proof(&proof).expect("a true proof");
    assert_eq!(
        caller
            .refused(Method::GET, "/rewarder/epochs/e1/proof/acc%3Az", None)
            .0,
        404
    );
    let page: Value = get("/rewarder/epochs/e1/payouts?from=1&limit=1")
        .json()
        .expect("a page");
    assert_eq!(
        (&page["payouts"][0]["amount_minor"], &page["next"]),
        (&json!("300"), &json!(2))
    );
    assert_eq!(
        caller
            .refused(Method::GET, "/rewarder/epochs/e1/payouts?limit=0", None)
            .0,
        400
    );
    let (status, code, _) = caller.refused(Method::POST, "/rewarder/epochs/e1/settle", None);
    assert_eq!(
        (status, code.as_str()),
        (501, "not_implemented"),
        "no ledger is configured"
    );
}

#[test]
fn uploads_runs_proofs_refusals_and_a_restart() {
    let data = tempfile::tempdir().expect("a directory");
    let mut running = start(data.path()).expect("it starts");
    running.wait_ready(by()).expect("it gets ready");
    threads_are_those_of_the_table(&running);
    assert!(
        start(data.path()).is_err(),
        "a second one on the same directory"
    );
    let caller = Caller::new(&running);
    refusals(&caller);
    let request = inputs(&caller);
    let epoch = "e1".parse().expect("an epoch");
    let wait = Duration::from_secs(9);
    let run = caller
        .typed()
        .compute(&epoch, &request, wait, by())
        .expect("computed");
    check_results(&caller, &run);
    let other = b"account,metric,amount\nacc:a,m,6\n";
    let info: SnapshotInfo = caller
        .call(
            Method::POST,
            "/rewarder/snapshots",
            Some(("text/csv", other)),
        )
        .json()
        .expect("sealed");
    let other = ComputeRequest {
        snapshot: info.cid,
        ..request.clone()
    };
    let error = caller
        .typed()
        .compute(&epoch, &other, wait, by())
        .expect_err("other inputs");
    assert_eq!(error.code(), Some("epoch_conflict"));
    assert!(matches!(error, ClientError::Refused { status: 409, .. }));
    let report = running.drain(Duration::from_secs(5));
    assert_eq!(report.stragglers, Vec::<String>::new());
    drop(running);
    let mut running = start(data.path()).expect("it starts again");
    running.wait_ready(by()).expect("it gets ready");
    let caller = Caller::new(&running);
    let again = caller
        .typed()
        .compute(&epoch, &request, wait, by())
        .expect("known");
    assert_eq!(
        (again.commitment, again.updated_at),
        (run.commitment, run.updated_at)
    );
    let list = caller.typed().epochs(by()).expect("a list");
    assert_eq!(list.epochs.len(), 1);
    assert_eq!(
        running.drain(Duration::from_secs(5)).stragglers,
        Vec::<String>::new()
    );
}

/// The thread names in /proc are exactly those of the topology. A thread sets its name when it
/// first runs, so a busy machine needs a moment.
fn threads_are_those_of_the_table(running: &Running) {
    let live: BTreeSet<String> = running
        .supervisor()
        .topology()
        .threads
        .into_iter()
        .map(|thread| thread.name)
        .collect();
    let within = by();
    while named_threads() != live && !within.expired() {
        running
            .stop_token()
            .wait(Deadline::within(Duration::from_millis(10)));
    }
    assert_eq!(named_threads(), live);
}

fn named_threads() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for task in std::fs::read_dir("/proc/self/task").expect("Linux") {
        let comm = task.expect("a task").path().join("comm");
        let name = std::fs::read_to_string(comm).unwrap_or_default();
        if name.starts_with("rew-") {
            found.insert(name.trim_end().to_owned());
        }
    }
    found
}

/// Writes a policy of this version into the operator's directory; returns its hash.
fn operator_puts(dir: &Path, version: u64) -> ContentId {
    let signed = signed(&json!({ "version": version }));
    let canonical = jcs::canonicalize(&signed.policy);
    std::fs::write(dir.join("reward.json"), &canonical).expect("written");
    let mut signature = jcs::to_vec(&signed.signature).expect("JSON");
    signature.push(b'\n');
    std::fs::write(dir.join("reward.json.sig"), signature).expect("written");
    ContentId::of(&canonical)
}

#[test]
fn an_older_policy_of_the_operators_directory_does_not_come_back() {
    let data = tempfile::tempdir().expect("a directory");
    let dir = tempfile::tempdir().expect("a directory");
    let policy = format!("dir = \"{}\"\n", dir.path().display());
    let start = || {
        let running = start_with(data.path(), &policy).expect("it starts");
        running.wait_ready(by()).expect("it gets ready");
        let caller = Caller::new(&running);
        (running, caller)
    };
    let version = |caller: &Caller| {
        let reply = caller.call(Method::GET, "/rewarder/policy/test", None);
        assert_eq!(reply.status, 200, "{:?}", reply.problem());
        let found: SignedPolicy = reply.json().expect("a policy");
        found.policy["version"].as_u64().expect("a version")
    };
    let (mut running, caller) = start();
    let posted = caller.call(Method::POST, "/rewarder/snapshots", Some(("text/csv", CSV)));
    let info: SnapshotInfo = posted.json().expect("what was sealed");
    let compute = |caller: &Caller, epoch: &str, hash: ContentId| {
        let request = ComputeRequest {
            snapshot: info.cid,
            policy_id: "test".parse().expect("an id"),
            policy_hash: hash,
            dry_run: false,
            adjusts: None,
        };
        let epoch = epoch.parse().expect("an epoch");
        let wait = Duration::from_secs(9);
        caller.typed().compute(&epoch, &request, wait, by())
    };
    // Not used yet: the operator may still choose another.
    operator_puts(dir.path(), 3);
    let second = operator_puts(dir.path(), 2);
    assert_eq!(version(&caller), 2);
    compute(&caller, "e1", second).expect("computed");
    let first = operator_puts(dir.path(), 1);
    let holds = |caller: &Caller| {
        assert_eq!(version(caller), 2);
        let refused = compute(caller, "e2", first).expect_err("it is older");
        assert_eq!(refused.code(), Some("policy_refused"), "{refused}");
        let why = refused.to_string();
        assert!(why.contains("versions only grow"), "{why}");
        // The stored one stays usable, for epochs before a change.
        compute(caller, "e1", second).expect("the same run");
    };
    holds(&caller);
    running.drain(Duration::from_secs(5));
    drop(running);
    let (mut running, caller) = start();
    holds(&caller);
    operator_puts(dir.path(), 4);
    assert_eq!(version(&caller), 4);
    running.drain(Duration::from_secs(5));
}
