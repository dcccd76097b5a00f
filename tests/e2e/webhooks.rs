//! Events of accounts: the long poll, and webhooks to receivers that check them with the libraries of the Standard
//! Webhooks project. A receiver that hangs, fails, lies or redirects delays its own messages only.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ron_http::{Call, Method, Reply};
use ron_kernel::Deadline;
use ron_tests::processes::{Rig, code};
use ron_tests::tools::Process;
use ron_tests::{json, ok, ron_on, until, workspace};
use serde_json::{Value, json};
use tempfile::TempDir;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// The secret before, which still signs while receivers change over.
const OLD_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A process that takes messages, and what it has seen.
struct Receiver {
    dir: TempDir,
    port: u16,
    _process: Process,
}

impl Receiver {
    fn start(mut command: Command, secret: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mode"), "ok").unwrap();
        std::fs::write(dir.path().join("seen"), "").unwrap();
        let child = command.arg(secret).arg(dir.path()).spawn().unwrap();
        let process = Process(child);
        let port = dir.path().join("port");
        until("the receiver listens", || port.exists());
        let port = std::fs::read_to_string(port).unwrap().parse().unwrap();
        Self {
            dir,
            port,
            _process: process,
        }
    }

    fn python(secret: &str) -> Self {
        let mut command = Command::new(ron_tests::python());
        command.arg(workspace().join("tests/interop/webhook_receiver.py"));
        Self::start(command, secret)
    }

    fn node(secret: &str) -> Self {
        let mut command = Command::new("node");
        command.arg(workspace().join("tests/interop/webhook_receiver.mjs"));
        Self::start(command, secret)
    }

    fn answers(&self, mode: &str) {
        let part = self.dir.path().join("mode.part");
        std::fs::write(&part, mode).unwrap();
        std::fs::rename(part, self.dir.path().join("mode")).unwrap();
    }

    fn seen(&self) -> Vec<Value> {
        let lines = std::fs::read_to_string(self.dir.path().join("seen")).unwrap();
        let whole = lines.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let parsed = whole.lines().map(serde_json::from_str);
        parsed.collect::<Result<_, _>>().unwrap()
    }

    /// Sequences of the entries in the order of their first arrival. Every message was genuine, and an
    /// entry always has the same id.
    fn sequences(&self) -> Vec<u64> {
        let (mut sequences, mut ids) = (Vec::new(), BTreeSet::new());
        for seen in self.seen() {
            assert_eq!(seen["genuine"], true, "{seen}");
            let seq = seen["body"]["data"]["seq"].as_u64().unwrap();
            ids.insert((seq, seen["id"].as_str().unwrap().to_owned()));
            if !sequences.contains(&seq) {
                sequences.push(seq);
            }
        }
        assert_eq!(ids.len(), sequences.len(), "{ids:?}");
        sequences
    }
}

/// One `[[webhooks]]` block.
fn block(dir: &Path, name: &str, port: u16, accounts: &[&str], more: &str) -> String {
    let secret = dir.join("webhook.secret");
    std::fs::write(&secret, format!("{SECRET}\n{OLD_SECRET}\n")).unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let mut text = String::new();
    write!(
        text,
        "\n[[webhooks]]\nname = \"{name}\"\nurl = \"http://127.0.0.1:{port}/hook\"\naccounts = {accounts:?}\n\
         secret_file = \"{}\"\n{more}",
        secret.display()
    )
    .unwrap();
    text
}

/// Starts the wallet again with these blocks.
fn configure(rig: &mut Rig, blocks: &str) {
    rig.kill("svc-wallet");
    let config = rig.dir.path().join("svc-wallet/config.toml");
    let mut text = std::fs::read_to_string(&config).unwrap();
    text.push_str(blocks);
    std::fs::write(&config, text).unwrap();
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
}

/// Issues one unit and returns the sequence.
fn issued(rig: &Rig, key: &str, account: &str) -> u64 {
    let reply = rig.patiently(|| rig.issue(key, account, 1).unwrap());
    json(&reply, 200)["receipt"]["seq"].as_u64().unwrap()
}

fn webhook(rig: &Rig, name: &str) -> Value {
    let doc = json(&rig.get("/v1/webhooks"), 200);
    let mut named = doc["webhooks"].as_array().unwrap().iter();
    let found = named.find(|webhook| webhook["name"] == name);
    found.unwrap_or_else(|| panic!("{doc}")).clone()
}

fn resume(rig: &Rig, name: &str, body: &Value) -> Reply {
    let path = format!("/v1/webhooks/{name}/resume");
    rig.call(Method::POST, &path, None, Some(body)).unwrap()
}

fn wait_started(rig: &Rig, names: &[&str]) {
    for name in names {
        until("the endpoint has a cursor", || {
            let file = rig.dir.path().join("svc-wallet/data/webhooks");
            file.join(format!("{name}.json")).exists()
        });
    }
}

#[test]
fn two_libraries_accept_every_message_and_kills_lose_none() {
    let mut rig = Rig::start();
    rig.wallet_set = vec!["webhook.retry_cap=1s"];
    issued(&rig, "before", "acct:shop-1");
    // One has the new secret, the other still the old one.
    let (python, node) = (Receiver::python(SECRET), Receiver::node(OLD_SECRET));
    let blocks = [
        block(rig.dir.path(), "py", python.port, &["acct:shop-*"], ""),
        block(rig.dir.path(), "js", node.port, &["acct:shop-1"], ""),
    ];
    configure(&mut rig, &blocks.concat());
    wait_started(&rig, &["py", "js"]);
    let (mut all, mut first) = (Vec::new(), Vec::new());
    for round in 0..4 {
        for n in 0..15 {
            let account = format!("acct:shop-{}", n % 3);
            let seq = issued(&rig, &format!("{round}-{n}"), &account);
            all.push(seq);
            first.extend((n % 3 == 1).then_some(seq));
            issued(&rig, &format!("{round}-{n}-other"), "acct:other");
        }
        rig.kill("svc-wallet");
        rig.run("svc-wallet");
        rig.wait_ready("svc-wallet");
    }
    until("all messages have arrived", || {
        python.sequences().len() == all.len() && node.sequences().len() == first.len()
    });
    // Each in the ledger's order, none of before the endpoint, none of other accounts.
    assert_eq!(python.sequences(), all);
    assert_eq!(node.sequences(), first);
    let seen = python.seen();
    let message = &seen[0]["body"];
    assert_eq!(message["type"], "entry.issue");
    assert_eq!(message["data"]["amount_minor"], "1");
    assert_eq!(message["timestamp"], message["data"]["ts"]);
    let text = message.to_string();
    assert!(
        !text.contains("0-0") && !text.contains("operator"),
        "{text}"
    );
    until("both are done", || {
        ["py", "js"].iter().all(|name| {
            let doc = webhook(&rig, name);
            doc["state"] == "active" && doc["behind"] == 0
        })
    });
}

#[test]
fn a_bad_receiver_delays_its_own_messages_only_and_can_be_resumed() {
    let mut rig = Rig::start();
    rig.wallet_set = vec![
        "webhook.deadline=500ms",
        "webhook.retry_cap=1s",
        "webhook.give_up_after=4s",
    ];
    let (good, bad, inside) = (
        Receiver::python(SECRET),
        Receiver::python(SECRET),
        Receiver::python(SECRET),
    );
    let blocks = [
        block(rig.dir.path(), "good", good.port, &["acct:*"], ""),
        block(rig.dir.path(), "bad", bad.port, &["acct:*"], ""),
        block(
            rig.dir.path(),
            "theirs",
            good.port,
            &["acct:b"],
            "tenant = \"b\"\n",
        ),
    ];
    configure(&mut rig, &blocks.concat());
    wait_started(&rig, &["good", "bad", "theirs"]);
    let mut all = Vec::new();
    let redirect = format!("redirect http://127.0.0.1:{}/", inside.port);
    for mode in ["fail", "hang", "drip", redirect.as_str()] {
        bad.answers(mode);
        let seq = issued(&rig, mode.split(' ').next().unwrap(), "acct:a");
        all.push(seq);
        until("the good one has it", || good.sequences().contains(&seq));
        until("the bad one was asked", || bad.sequences().contains(&seq));
        let name = mode.split(' ').next().unwrap();
        if name != "drip" {
            until("it is tried again", || {
                webhook(&rig, "bad")["state"] == "failing"
            });
        }
        bad.answers("ok");
        until("it is delivered in the end", || {
            let seen = bad.seen();
            let last = seen
                .iter()
                .rev()
                .find(|one| one["body"]["data"]["seq"] == seq);
            last.is_some_and(|one| one["how"] == "ok") && webhook(&rig, "bad")["after"] == seq
        });
    }
    assert!(inside.seen().is_empty(), "redirects are not followed");

    bad.answers("fail");
    let lost = issued(&rig, "lost", "acct:a");
    until("it is disabled", || {
        webhook(&rig, "bad")["state"] == "disabled"
    });
    let doc = webhook(&rig, "bad");
    assert!(doc["failure"].as_str().unwrap().contains("500"), "{doc}");
    // The alert for an endpoint that fails needs this series.
    let failed = "svc_wallet_webhook_attempts_total{endpoint=\"bad\",result=\"failed\"}";
    assert!(rig.wallet_metric(failed) > 0);
    let url = format!("http://127.0.0.1:{}/readyz", rig.port("svc-wallet") + 5);
    let within = Deadline::within(Duration::from_secs(10));
    let readyz = json(&rig.http.call(Call::get(&url, within)).unwrap(), 200);
    assert!(
        readyz["degraded"].to_string().contains("webhook-bad"),
        "{readyz}"
    );
    // Also after a restart.
    rig.kill("svc-wallet");
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
    bad.answers("ok");
    let later = issued(&rig, "later", "acct:a");
    until("the good one has it", || good.sequences().contains(&later));
    assert_eq!(webhook(&rig, "bad")["state"], "disabled");
    assert!(!bad.sequences().contains(&later));

    // Others' endpoints do not exist for the caller.
    let names = json(&rig.get("/v1/webhooks"), 200)["webhooks"].to_string();
    assert!(!names.contains("theirs"), "{names}");
    assert_eq!(resume(&rig, "theirs", &json!({})).status, 404);
    assert_eq!(resume(&rig, "bad", &json!({"since": 1})).status, 400);
    let ron = |args: &[&str]| ok(&ron_on(rig.dir.path(), args));
    // Nor do endpoints for a token that is limited to one account: they send entries of others too.
    let narrowed = ron(&[
        "token",
        "--audience",
        "svc-wallet",
        "--caveat",
        "account=acct:a",
    ]);
    let bearer = format!("Bearer {}", narrowed.trim());
    let url = format!("http://127.0.0.1:{}/v1/webhooks", rig.port("svc-wallet"));
    let reply = rig.http.call(Call {
        headers: &[("Authorization", &bearer)],
        ..Call::get(&url, Deadline::within(ron_tests::CALL))
    });
    assert_eq!(json(&reply.unwrap(), 200)["webhooks"], json!([]));
    let listed = ron(&["wallet", "webhooks", "--csv"]);
    assert!(
        listed.contains("bad,disabled,") && !listed.contains("theirs"),
        "{listed}"
    );
    ron(&["wallet", "resume-webhook", "bad"]);
    until("what was missed arrives", || {
        bad.sequences().contains(&lost) && bad.sequences().contains(&later)
    });
    all.extend([lost, later]);
    assert_eq!(bad.sequences(), all);
    // The receiver knows of a message before the cursor does.
    until("the cursor follows", || {
        webhook(&rig, "bad")["after"] == later
    });
    // A cursor beyond the head is a mistake: it changes nothing.
    let beyond = resume(&rig, "bad", &json!({"after": later + 1}));
    let detail = beyond.problem().unwrap().detail;
    assert_eq!((beyond.status, code(&beyond)), (400, "bad_request".into()));
    assert!(detail.contains(&format!("its last is {later}")), "{detail}");
    let doc = webhook(&rig, "bad");
    assert_eq!(
        (&doc["after"], &doc["state"]),
        (&json!(later), &json!("active"))
    );
    let before = bad.seen().len();
    assert_eq!(resume(&rig, "bad", &json!({"after": later})).status, 202);
    assert_eq!(resume(&rig, "bad", &json!({"after": 0})).status, 202);
    until("everything is sent again", || {
        bad.seen().len() >= before + all.len()
    });
    bad.answers("gone");
    issued(&rig, "gone", "acct:a");
    until("410 ends it at once", || {
        webhook(&rig, "bad")["state"] == "disabled"
    });
}

#[test]
fn events_of_an_account_have_no_gaps_and_arrive_at_once() {
    let rig = Rig::start();
    let made: Vec<u64> = (0..5)
        .map(|n| {
            issued(&rig, &format!("other-{n}"), "acct:b");
            issued(&rig, &format!("e-{n}"), "acct:a")
        })
        .collect();
    let page = |query: &str| {
        let path = format!("/v1/events?account=acct:a&{query}");
        json(&rig.get(&path), 200)
    };
    let sequences = |page: &Value| -> Vec<u64> {
        let events = page["events"].as_array().unwrap().iter();
        events.map(|e| e["seq"].as_u64().unwrap()).collect()
    };
    let (mut after, mut found) = (0, Vec::new());
    while found.len() < made.len() {
        let one = page(&format!("after={after}&limit=2&wait=5"));
        let new = sequences(&one);
        assert!(!new.is_empty() && new.len() <= 2, "{one}");
        found.extend(new);
        after = one["next"].as_u64().unwrap();
    }
    assert_eq!(found, made);
    let empty = page(&format!("after={after}&wait=0"));
    assert!(sequences(&empty).is_empty() && empty["next"].as_u64() >= Some(after));

    // Nothing happens to the account: entries of others end no poll.
    std::thread::scope(|scope| {
        let began = Instant::now();
        let poll = scope.spawn(|| page(&format!("after={after}&wait=2")));
        issued(&rig, "other", "acct:b");
        let empty = poll.join().unwrap();
        assert!(sequences(&empty).is_empty(), "{empty}");
        assert!(began.elapsed() >= Duration::from_secs(2));
    });
    for n in 0..20 {
        after = std::thread::scope(|scope| {
            let poll = scope.spawn(|| page(&format!("after={after}&wait=30")));
            std::thread::sleep(Duration::from_millis(n * 5));
            let began = Instant::now();
            let seq = issued(&rig, &format!("late-{n}"), "acct:a");
            let one = poll.join().unwrap();
            assert_eq!(sequences(&one), [seq]);
            // Far below the poll's own end: it was woken.
            assert!(began.elapsed() < Duration::from_secs(15));
            one["next"].as_u64().unwrap()
        });
    }
    for (query, status) in [
        ("account=acct:a&wait=31", 400),
        ("account=acct:a&limit=501", 400),
        ("account=acct:a&after=-1", 400),
        ("wait=1", 400),
        ("account=acct:a&since=1", 400),
    ] {
        let reply = rig.get(&format!("/v1/events?{query}"));
        assert_eq!(reply.status, status, "{query}: {}", code(&reply));
    }
    // A drain answers the polls.
    let path = format!("/v1/events?account=acct:a&after={after}&wait=30");
    std::thread::scope(|scope| {
        let began = Instant::now();
        let poll = scope.spawn(|| rig.get(&path));
        std::thread::sleep(Duration::from_millis(300));
        rig.signal("svc-wallet", "-TERM");
        let answer = poll.join().unwrap();
        assert_eq!((answer.status, code(&answer)), (503, "draining".into()));
        assert!(began.elapsed() < Duration::from_secs(15));
    });
}
