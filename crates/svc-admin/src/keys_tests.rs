//! Keys of a service that answers from a table.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // the service is a thread of the test

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Mutex;

use super::*;
use crate::node::Outcome;
use crate::node::tests::{answer, node, sampling};
use ron_http::ClientConfig;
use ron_kernel::{KernelMetrics, ManualClock, Registry};

#[test]
fn an_issuer_is_read_from_its_policy_note() {
    let note = "http://i:1/policy\nversion 12\nissuer http://i:2\nwas http://i:1 99\npolicy 4 b3:00\nepoch 3\nalgs EdDSA\n\
                key old EdDSA 1000 2000 revoked\nkey now EdDSA 1500 - good\njwks http://i:2/x\n\n— signature key x y z a b\n";
    let view = read_note("p", note).expect("read");
    let head = (
        view.issuer.as_str(),
        view.epoch,
        view.revocations,
        view.policy,
    );
    assert_eq!(head, ("http://i:2", 3, 12, Some(4)));
    let keys = view.keys.iter();
    let keys: Vec<_> = keys
        .map(|key| (key.kid.as_str(), key.verifies_until, key.revoked))
        .collect();
    let ended = Some(Timestamp(2_000_000));
    assert_eq!(keys, [("now", None, false), ("old", ended, true)]);
    for bad in [
        "",
        "nothing of it",
        "issuer x\nversion many",
        "issuer x\nkey a b c - good",
        "\nissuer x",
    ] {
        assert_eq!(read_note("p", bad), None, "{bad:?}");
    }
}

/// Answers by the path of a request; 404 for others.
type Answers = Arc<Mutex<BTreeMap<String, (u16, String)>>>;

/// Serves on a socket in this directory: tokens of services are sent over no plain TCP.
fn serve(dir: &Path, answers: Answers) -> String {
    let socket = dir.join("api.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let signed = lines
                .by_ref()
                .take_while(|line| !line.is_empty())
                .any(|line| line.eq_ignore_ascii_case("authorization: bearer ron_token"));
            let found = answers.lock().expect("whole").get(&path).cloned();
            let (status, body) = match found {
                Some(found) if signed => found,
                Some(_) => (401, String::new()),
                None => (404, String::new()),
            };
            let _ = write!(
                &stream,
                "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    format!("unix:{}", socket.display())
}

const KEY: &str = "ron/issuer/ed25519/00000000-0000-7000-8000-000000000001";
const GONE: &str = "ron/note/ed25519/00000000-0000-7000-8000-000000000002";

fn key(name: &str, state: &str, more: &str) -> String {
    format!(
        r#"{{"key":"{name}","payload":"any","head":3,"min_verify_version":1,"state":"{state}","backend":"file","attestation":"none","exportable":false,"created":"2026-01-02T03:04:05.000Z"{more}}}"#
    )
}

struct Trial {
    fleet: Fleet,
    clock: Arc<ManualClock>,
    watch: KeyWatch,
    keys: Keys,
    answers: Answers,
    dir: tempfile::TempDir,
}

impl Trial {
    /// A key service; whether the console has a token for it.
    fn start(with_token: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let token = dir.path().join("token");
        std::fs::write(&token, "ron_token").expect("written");
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("set");
        let answers = Answers::default();
        let mut spec = node("kms").spec;
        spec.api_url = Some(serve(dir.path(), answers.clone()));
        spec.credential = with_token.then_some(token);
        let node = Node::new(spec, sampling());
        let mut outcome = answer("up 1\n");
        if let Outcome::Answered(answers) = &mut outcome {
            let status = answers.status.as_mut().expect("a status");
            status.service = Some(KMS.to_owned());
        }
        node.absorb(outcome, 1_000_000, 5_000);
        let clock = ManualClock::at(1_000_000);
        let client = Arc::new(HttpClient::new(ClientConfig::default()));
        let metrics = KernelMetrics::new(&Registry::new("t"));
        let (fleet, _) = Fleet::new(sampling(), client.clone(), clock.clone(), metrics);
        fleet.adopt(vec![Arc::new(node)]);
        Self {
            fleet,
            watch: KeyWatch {
                client,
                clock: clock.clone(),
            },
            clock,
            keys: Keys::new(empty(Timestamp(0))),
            answers,
            dir,
        }
    }

    fn say(&self, path: &str, status: u16, body: &str) {
        let mut answers = self.answers.lock().expect("whole");
        answers.insert(path.to_owned(), (status, body.to_owned()));
    }

    /// What is published after the next reading.
    fn read(&self) -> Arc<KeyOverview> {
        self.clock.advance(Duration::from_millis(PACE_MS));
        self.watch.tick(&self.fleet, &self.keys);
        self.keys.load()
    }
}

#[test]
fn keys_and_what_waits_for_approvals_are_read_over_all_pages() {
    let trial = Trial::start(true);
    let rotation = r#","rotation":{"every":"30d","next":"2026-02-02T00:00:00.000Z"},"waiting":{"version":4,"signs_from":"2026-02-01T00:00:00.000Z"}"#;
    let first = format!(
        r#"{{"keys":[{}],"next":"{KEY}"}}"#,
        key(KEY, "active", rotation)
    );
    let damaged = r#"{"key":"ron/x/ed25519/00000000-0000-7000-8000-000000000003","state":"quarantined","reason":"restore it"}"#;
    let second = format!(
        r#"{{"keys":[{}],"quarantined":[{damaged}]}}"#,
        key(GONE, "destroyed", "")
    );
    trial.say("/v1/kms/keys?limit=200", 200, &first);
    let after = encode(KEY);
    trial.say(
        &format!("/v1/kms/keys?limit=200&after={after}"),
        200,
        &second,
    );
    let waiting = format!(
        r#"{{"requests":[{{"id":"00000000-0000-7000-8000-000000000009","key":"{KEY}","op":"export","body":"{{}}","operation_sha256":"00","requester":"operator","needed":2,"approved_by":["ann"],"created":"2026-01-02T03:04:05.000Z","expires":"2026-01-03T03:04:05.000Z"}}]}}"#
    );
    let page = waiting.replacen('{', &format!(r#"{{"next":"{KEY}","#), 1);
    trial.say("/v1/kms/approvals?limit=50", 200, &page);
    let later = format!("/v1/kms/approvals?limit=50&after={after}");
    trial.say(&later, 200, r#"{"requests":[]}"#);
    let read = trial.read();
    assert_eq!(read.sources[0].problem, None);
    let keys = read.keys.iter();
    let keys: Vec<_> = keys
        .map(|key| (key.state.as_str(), key.version, key.waiting))
        .collect();
    // What needs an operator comes first.
    let wanted = [
        ("quarantined", None, None),
        ("active", Some(3), Some(4)),
        ("destroyed", Some(3), None),
    ];
    assert_eq!(keys, wanted);
    let next = read.keys[1].next_rotation.expect("planned");
    assert_eq!(next.to_string(), "2026-02-01T00:00:00.000Z");
    let [approval] = &read.approvals[..] else {
        panic!("{:?}", read.approvals);
    };
    assert_eq!((approval.op.as_str(), approval.needed), ("export", 2));
    assert_eq!(approval.approved_by, ["ann"]);
    let cut = |read: &KeyOverview| {
        let source = &read.sources[0];
        (source.truncated, source.approvals_truncated)
    };
    assert_eq!(cut(&read), (false, false));
    // Without an end, the reading ends at its bound and says so.
    trial.say(&later, 200, &page);
    let endless = trial.read();
    assert_eq!((cut(&endless), endless.approvals.len()), ((false, true), 3));
    trial.say(&later, 200, r#"{"requests":[]}"#);
    let read = trial.read();
    // An outage leaves what was read, and says so.
    trial.say("/v1/kms/keys?limit=200", 503, "");
    let later = trial.read();
    let problem = later.sources[0].problem.as_deref();
    assert_eq!(problem, Some("answered 503"));
    assert_eq!(later.sources[0].read_at, read.sources[0].read_at);
    assert_eq!(
        (&later.keys, &later.approvals),
        (&read.keys, &read.approvals)
    );
}

#[test]
fn a_console_that_may_not_read_keys_shows_none_and_says_what_to_configure() {
    let without = Trial::start(false);
    let read = without.read();
    let problem = read.sources[0].problem.clone().expect("a problem");
    assert!(problem.contains("no credential_file") && problem.contains("kms:read"));
    assert!(read.keys.is_empty() && read.sources[0].read_at.is_none());
    let refused = Trial::start(true);
    refused.say("/v1/kms/keys?limit=200", 403, "");
    let problem = refused.read().sources[0].problem.clone();
    let problem = problem.expect("a problem");
    assert!(problem.contains("answered 403") && problem.contains("kms:read"));
    // The file counts at each reading.
    std::fs::remove_file(refused.dir.path().join("token")).expect("removed");
    let problem = refused.read().sources[0].problem.clone();
    assert!(problem.expect("a problem").contains("token"));
}

#[test]
fn keys_are_read_at_their_own_pace() {
    let trial = Trial::start(true);
    trial.say("/v1/kms/keys?limit=200", 200, r#"{"keys":[]}"#);
    trial.say("/v1/kms/approvals?limit=50", 200, r#"{"requests":[]}"#);
    let first = trial.read();
    trial.clock.advance(Duration::from_secs(10));
    trial.watch.tick(&trial.fleet, &trial.keys);
    assert_eq!(trial.keys.load().as_of, first.as_of);
    assert!(trial.read().as_of > first.as_of);
}
