//! Sources of snapshots: uploads of any size that go through the disk, ranges of a stored file, and
//! another rewarder from which a content id is fetched.

use std::fmt::Write as FmtWrite;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::service_token;
use ron_client::{Credential, RewarderClient};
use ron_crypto::sign::Ed25519Key;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{ComputeRequest, ImportKind, POLICY_KIND, RunState, SignedPolicy};
use ron_proto::values::ContentId;
use ron_proto::{b64, jcs};
use ron_service::{Config, Parts, Running};
use serde_json::{Value, json};
use svc_rewarder::SvcRewarder;
use svc_rewarder::inputs::import;
use svc_rewarder::settings::TABLE;

const SEED: [u8; 32] = [6; 32];
/// More rows than any service keeps in memory.
const ROWS: usize = 120_000;

fn key() -> Ed25519Key {
    Ed25519Key::from_seed(&[1; 32])
}

fn by() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

fn start(data: &Path, more: &str) -> Running {
    let principal = |name: &str, tenant: &str| {
        let hash = service_token::hash(&service_token::generate(name, &SEED));
        format!(
            "[[auth.principals]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{hash}\"\n\
             scopes = [\"rewarder:run\", \"rewarder:read\"]\n"
        )
    };
    let text = format!(
        "data_dir = \"{}\"\nuds_only = true\nuds_path = \"{}\"\n{more}\n\
         [policy]\npublic_keys = [\"{}\"]\n{}{}",
        data.display(),
        data.join("run/api.sock").display(),
        b64::url(&key().public()),
        principal("tester", "default"),
        principal("neighbour", "other")
    );
    let file = Some((Path::new("test.toml"), text.as_str()));
    let config = Config::load(&TABLE, file, &|_| None, &[]).expect("a good configuration");
    let parts = Parts::ephemeral("svc-rewarder").expect("parts");
    let running = ron_service::start::<SvcRewarder>(config, parts).expect("it starts");
    running.wait_ready(by()).expect("it gets ready");
    running
}

struct Caller {
    http: Arc<HttpClient>,
    base: String,
    typed: RewarderClient,
}

impl Caller {
    fn new(running: &Running) -> Self {
        let config = ClientConfig {
            max_response_bytes: 64 << 20,
            ..ClientConfig::default()
        };
        let http = Arc::new(HttpClient::new(config));
        let token = Credential::bearer(&service_token::generate("tester", &SEED));
        let base = running.api_url();
        Self {
            typed: RewarderClient::new(&base, token, http.clone()),
            http,
            base,
        }
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        more: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Reply {
        let auth = format!("Bearer {}", service_token::generate("tester", &SEED));
        let mut headers = more.to_vec();
        headers.push(("Authorization", &auth));
        let call = Call {
            method,
            url: &format!("{}{path}", self.base),
            headers: &headers,
            content_type: body.as_ref().map(|_| "text/csv"),
            body,
            deadline: by(),
            idempotent: false,
        };
        self.http.call(call).expect("an answer")
    }
}

impl Caller {
    /// The status for an upload of which only the head is sent, and its connection: 100 when the
    /// body may follow.
    fn announced(&self, principal: &str, length: u64) -> (String, UnixStream) {
        let socket = self.base.trim_start_matches("unix:");
        let socket = socket.trim_end_matches(':');
        let mut stream = UnixStream::connect(socket).expect("a connection");
        let auth = service_token::generate(principal, &SEED);
        let head = format!(
            "POST /rewarder/snapshots HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {auth}\r\n\
             Content-Type: text/csv\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).expect("an answer");
        let status = String::from_utf8_lossy(&begin[9..]).into_owned();
        (status, stream)
    }
}

fn usage(rows: usize) -> String {
    let mut text = String::from("account,metric,amount\n");
    for row in (0..rows).rev() {
        let _ = FmtWrite::write_fmt(
            &mut text,
            format_args!("acct:with-a-longer-name-{row:07},m,{}\n", row + 1),
        );
    }
    text
}

fn policy() -> SignedPolicy {
    let policy = json!({
        "format": 1, "tenant": "default", "id": "test", "version": 1, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:default/test", "amount_minor": "1000000"},
        "metrics": {"m": {"weight": "1", "class": "metering"}},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/test"}
    });
    let message = policy_message(POLICY_KIND, &jcs::canonicalize(&policy));
    let value = b64::url(&key().sign(&message));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "k".into(),
        value,
    };
    SignedPolicy { policy, signature }
}

fn end(mut running: Running) {
    let report = running.drain(Duration::from_secs(10));
    assert_eq!(report.stragglers, Vec::<String>::new());
}

/// Permissions of the one snapshot that a service has stored.
fn mode_of_snapshot(data: &Path) -> u32 {
    let dir = data.join("snapshots/tenant-default");
    let mut files = std::fs::read_dir(dir).expect("there").flatten();
    let file = files.next().expect("stored");
    file.metadata().expect("there").permissions().mode() & 0o777
}

fn left_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).expect("there").count()
}

#[test]
fn a_large_upload_goes_through_the_disk_and_is_read_back_in_ranges() {
    let data = tempfile::tempdir().expect("a directory");
    let running = start(
        data.path(),
        "[limits]\nmax_snapshot_bytes = \"7MiB\"\nimport_memory = \"1MiB\"",
    );
    let caller = Caller::new(&running);
    let text = usage(ROWS);
    assert!(text.len() > 4 << 20, "{}", text.len());
    let sealed = import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    let cid = sealed.cid();
    let stored = caller
        .typed
        .put_csv(&cid, ImportKind::Totals, text.clone().into_bytes(), by())
        .expect("stored");
    assert_eq!((stored.cid, stored.accounts), (cid, ROWS as u64));
    assert_eq!(mode_of_snapshot(data.path()), 0o644, "for auditors too");
    let bytes = sealed.bytes().expect("in memory").into_owned();
    let file = data.path().join("sealed");
    std::fs::write(&file, &bytes).expect("writable");
    let open = std::fs::File::open(&file).expect("there");
    let again = caller.typed.put_sealed_file(&cid, &open, by());
    assert_eq!(again.expect("the same again"), stored);
    let wrong = ContentId([7; 32]);
    let open = std::fs::File::open(&file).expect("there");
    let error = caller.typed.put_sealed_file(&wrong, &open, by());
    assert_eq!(error.expect_err("another id").code(), Some("cid_mismatch"));

    let path = format!("/rewarder/snapshots/b3%3A{}", hex::encode(cid.0));
    let whole = caller.call(Method::GET, &path, &[], None);
    assert_eq!((whole.status, whole.body == bytes), (200, true));
    let part = caller.call(Method::GET, &path, &[("Range", "bytes=100-299")], None);
    assert_eq!((part.status, part.body.as_slice()), (206, &bytes[100..300]));
    let range = format!("bytes 100-299/{}", bytes.len());
    assert_eq!(part.header("content-range"), Some(range.as_str()));
    let none = caller.call(Method::GET, &path, &[("Range", "bytes=99999999-")], None);
    assert_eq!(none.status, 416);
    let info = caller.call(Method::GET, &path, &[("Accept", "application/json")], None);
    let info: Value = info.json().expect("JSON");
    assert_eq!(info["bytes"], bytes.len());

    let mut bad = text.into_bytes();
    bad.extend_from_slice(b"acct:x,m,-1\n");
    let refused = caller.call(Method::POST, "/rewarder/snapshots", &[], Some(bad));
    let problem = refused.problem().expect("a problem");
    assert_eq!(
        (refused.status, problem.code.as_str()),
        (400, "bad_snapshot")
    );
    assert!(
        problem.detail.contains(&format!("line {}", ROWS + 2)),
        "{}",
        problem.detail
    );
    assert_eq!(caller.announced("tester", 8 << 20).0, "413");
    assert_eq!(
        left_in(&data.path().join("intake")),
        0,
        "nothing is left behind"
    );
    end(running);
}

fn token_file(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("source.token");
    let file = std::fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&path);
    let secret = service_token::generate("tester", &SEED);
    file.expect("new")
        .write_all(secret.as_bytes())
        .expect("writable");
    path
}

/// One tenant gets half of the 16 places for uploads, the next one half of what is left.
#[test]
fn slow_uploads_of_one_tenant_leave_places_for_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let running = start(dir.path(), "");
    let caller = Caller::new(&running);
    let slow = |principal: &str| -> Vec<UnixStream> {
        let all = (0..17).map(|_| caller.announced(principal, 1 << 20));
        let (open, refused): (Vec<_>, Vec<_>) = all.partition(|(status, _)| status == "100");
        assert!(refused.iter().all(|(status, _)| status == "429"));
        open.into_iter().map(|(_, stream)| stream).collect()
    };
    let first = slow("tester");
    assert_eq!(first.len(), 8);
    let second = slow("neighbour");
    assert_eq!(second.len(), 4);
    drop((first, second));
    end(running);
}

#[test]
fn a_content_id_is_fetched_from_another_service_and_computed() {
    let (first, second) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    let source = start(first.path(), "");
    let token = token_file(second.path());
    let data = second.path().join("data");
    let running = start(
        &data,
        &format!(
            "[snapshot]\nurl = \"{}/rewarder/snapshots/{{cid}}\"\ntoken_file = \"{}\"",
            source.api_url(),
            token.display()
        ),
    );
    let (there, here) = (Caller::new(&source), Caller::new(&running));
    let text = usage(ROWS);
    let sealed = import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    let request = ComputeRequest {
        snapshot: sealed.cid(),
        policy_id: "test".parse().expect("an id"),
        policy_hash: {
            let stored = here
                .typed
                .put_policy(&"test".parse().expect("an id"), &policy(), by());
            stored.expect("stored").hash
        },
        dry_run: false,
        adjusts: None,
    };
    let epoch = "e1".parse().expect("an epoch");
    let wait = Duration::from_secs(25);
    let missing = here.typed.compute(&epoch, &request, wait, by());
    let missing = missing.expect_err("nobody has it");
    assert_eq!(missing.code(), Some("run_failed"), "{missing}");
    assert!(missing.to_string().contains("has no snapshot"), "{missing}");
    let file = second.path().join("sealed");
    std::fs::write(&file, sealed.bytes().expect("in memory")).expect("writable");
    let open = std::fs::File::open(&file).expect("there");
    let stored = there.typed.put_sealed_file(&sealed.cid(), &open, by());
    stored.expect("stored");
    let run = here.typed.compute(&epoch, &request, wait, by());
    let run = run.expect("fetched and computed");
    let recipients = run.totals.expect("sealed").recipients;
    assert_eq!((run.state, recipients > 0), (RunState::Sealed, true));
    for data in [first.path(), &data] {
        assert_eq!(mode_of_snapshot(data), 0o644, "for auditors too");
    }
    end(source);
    let epoch = "e2".parse().expect("an epoch");
    let run = here.typed.compute(&epoch, &request, wait, by());
    assert_eq!(run.expect("it is here now").state, RunState::Sealed);
    let other = ComputeRequest {
        snapshot: ContentId([9; 32]),
        ..request
    };
    let epoch = "e3".parse().expect("an epoch");
    let away = here.typed.compute(&epoch, &other, wait, by());
    let away = away.expect_err("the source is gone");
    assert!(away.retryable(), "{away}");
    assert!(
        away.to_string().contains("the source of snapshots"),
        "{away}"
    );
    assert_eq!(left_in(&data.join("intake")), 0, "nothing is left behind");
    end(running);
}
