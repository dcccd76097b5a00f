//! Keys inside another key service: the same responses as from the service's own store, also while
//! the other service hangs, crashes and returns.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_proto::b64;
use ron_tests::tools::signal;
use serde_json::{Value, json};

use super::service::{Service, op_id, token, until, write_private};

/// A service whose keys may be in `far`, called as `api` at `url`.
fn near(url: &str, api: &str, more: &str) -> Service {
    let dir = tempfile::tempdir().unwrap();
    let file = write_private(&dir.path().join("far.token"), &token());
    let lines = format!(
        "{more}\nremote.url = \"{url}\"\nremote.api = \"{api}\"\nremote.tenant = \"acme\"\n\
         remote.token = \"{}\"\nbackends.probe_every = \"200ms\"\n",
        file.display()
    );
    Service::start_in(dir, &lines)
}

/// The responses to a sequence of requests, without the parts that differ between any two keys.
fn transcript(service: &Service, alg: &str, backend: &str, salt: u128) -> Vec<String> {
    let mut said = Vec::new();
    let key = service.create(alg, backend, salt);
    let other = service.create(alg, backend, salt + 1);
    let aad = (alg == "aes256-gcm").then(|| b64::url(b"bound"));
    let mut ask = |what: &str, path: &str, body: &Value| {
        let reply = service.post(path, body);
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        let length = answer["ciphertext"].as_str().map(|_| "ciphertext");
        said.push(format!(
            "{what}: {} {} v{} from v{} {} {length:?}",
            reply.status,
            answer["code"],
            answer["version"],
            answer["from_version"],
            answer["plaintext"],
        ));
        answer
    };
    let wrap = |text: &[u8]| json!({"key": key, "plaintext": b64::url(text), "aad": aad});
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let unwrap = |text: &Value| json!({"key": key, "ciphertext": text, "aad": aad});
    let small = ask("wrap", "wrap", &wrap(b"a secret"))["ciphertext"].clone();
    ask("unwrap", "unwrap", &unwrap(&small));
    let block = ask("2 KiB", "wrap", &wrap(&[7; 2048]))["ciphertext"].clone();
    ask("unwrap 2 KiB", "unwrap", &unwrap(&block));
    ask("too large", "wrap", &wrap(&vec![7; 64 * 1024 + 1]));
    ask(
        "no key of that version",
        "wrap",
        &with(wrap(b"x"), "version", 2.into()),
    );
    if alg == "aes256-gcm" {
        ask("empty", "wrap", &wrap(b""));
        let other_aad = with(unwrap(&small), "aad", b64::url(b"other").into());
        ask("other aad", "unwrap", &other_aad);
        ask(
            "no aad",
            "unwrap",
            &with(unwrap(&small), "aad", Value::Null),
        );
        let long = with(wrap(b"x"), "aad", b64::url(&[1; 4097]).into());
        ask("aad too large", "wrap", &long);
    } else {
        ask(
            "aad",
            "wrap",
            &with(wrap(b"x"), "aad", b64::url(b"no").into()),
        );
    }
    ask(
        "another key",
        "unwrap",
        &with(unwrap(&small), "key", other.clone().into()),
    );
    let raw = b64::from_url(small.as_str().unwrap()).unwrap();
    for (what, bytes) in [
        ("cut", raw[..raw.len() - 1].to_vec()),
        (
            "a bit",
            [&raw[..raw.len() - 1], &[raw[raw.len() - 1] ^ 1]].concat(),
        ),
        ("header only", raw[..6].to_vec()),
        ("other version", [&raw[..5], &[9], &raw[6..]].concat()),
        ("nothing", Vec::new()),
    ] {
        ask(what, "unwrap", &unwrap(&b64::url(&bytes).into()));
    }
    let id = op_id(salt + 50);
    let once = with(wrap(b"once"), "op_id", id.clone().into());
    let first = ask("with op_id", "wrap", &once);
    let again = ask("again", "wrap", &once);
    let mismatch = with(once, "plaintext", b64::url(b"twice").into());
    ask("another body", "wrap", &mismatch);
    let opened = with(unwrap(&small), "op_id", op_id(salt + 51).into());
    ask("unwrap once", "unwrap", &opened);
    ask("unwrap again", "unwrap", &opened);
    let rotated = ask(
        "rotate",
        &format!("keys/{key}/rotate"),
        &json!({"expected_head": 1}),
    );
    let second = ask("wrap", "wrap", &wrap(b"second"))["ciphertext"].clone();
    ask("old", "unwrap", &unwrap(&small));
    ask("new", "unwrap", &unwrap(&second));
    ask("rewrap", "rewrap", &unwrap(&small));
    ask(
        "datakey",
        "datakey",
        &json!({"key": key, "plaintext": false}),
    );
    ask("hmac", "hmac", &json!({"key": key, "message": ""}));
    ask("sign", "sign", &json!({"key": key, "message": ""}));
    said.push(format!(
        "{} {}",
        first == again,
        rotated["document"]["head"]
    ));
    said
}

#[test]
fn the_same_requests_get_the_same_answers_wherever_the_key_is() {
    let far = Service::start("");
    let by_ron = near(&far.url, "ron", "");
    let by_vault = near(&format!("{}:/v1/transit", far.url), "vault-transit", "");
    let gcm = transcript(&by_ron, "aes256-gcm", "file", 1000);
    assert!(
        gcm.len() > 25 && gcm[1].contains(&b64::url(b"a secret")),
        "{gcm:#?}"
    );
    assert_eq!(transcript(&by_ron, "aes256-gcm", "remote", 2000), gcm);
    assert_eq!(transcript(&by_vault, "aes256-gcm", "remote", 3000), gcm);
    let kwp = transcript(&by_ron, "aes256-kwp", "file", 4000);
    assert_eq!(transcript(&by_ron, "aes256-kwp", "remote", 5000), kwp);
    let wrong = json!({
        "tenant": "acme", "purpose": "tests", "alg": "ed25519", "backend": "remote", "op_id": op_id(1),
    });
    assert_eq!(by_ron.post("keys", &wrong).status, 400, "wrapping only");
    // Each version is a separate key in the far service, and every use is in the far service's log.
    assert!(far.metric("ron_kms_keys{alg=\"aes256-gcm\",state=\"active\"} ") >= 6);
    assert!(far.metric("ron_kms_ops_total{alg=\"aes256-kwp\",op=\"unwrap\",result=\"ok\"} ") >= 4);
}

/// Forwards one socket to another; holds back the far side's bytes while `stalled`.
fn proxy(at: &Path, to: PathBuf, stalled: &Arc<AtomicBool>) {
    let listener = UnixListener::bind(at).unwrap();
    let stalled = stalled.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = UnixStream::connect(&to) else {
                continue;
            };
            let (c2, s2) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || forward(c2, s2, None));
            let stalled = stalled.clone();
            std::thread::spawn(move || forward(server, client, Some(&stalled)));
        }
    });
}

fn forward(mut from: UnixStream, mut to: UnixStream, stalled: Option<&AtomicBool>) {
    let mut buffer = [0_u8; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        while stalled.is_some_and(|s| s.load(Ordering::SeqCst)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Status, code and time of a wrap.
fn wraps(service: &Service, key: &str) -> (u16, String, Duration, bool) {
    let asked = Instant::now();
    let reply = service.post("wrap", &json!({"key": key, "plaintext": "AAAA"}));
    let code = reply.problem().map(|p| p.code).unwrap_or_default();
    (
        reply.status,
        code,
        asked.elapsed(),
        reply.retry_after_s().is_some(),
    )
}

#[test]
fn a_service_that_hangs_crashes_and_comes_back_blocks_nobody_else() {
    let mut far = Service::start("");
    let stalled = Arc::new(AtomicBool::new(false));
    let between = far.dir.path().join("proxy.sock");
    proxy(&between, far.dir.path().join("run/api.sock"), &stalled);
    let url = format!("unix:{}", between.display());
    let near = near(&url, "ron", "sign_deadline = \"4s\"");
    let key = near.create("aes256-gcm", "remote", 1);
    let local = near.create("aes256-gcm", "file", 2);
    assert_eq!(wraps(&near, &key).0, 200);
    // It hangs: the caller gets a response in time, other callers are not affected.
    let wrapped = "ron_kms_ops_total{alg=\"aes256-gcm\",op=\"wrap\",result=\"ok\"} ";
    let before = far.metric(wrapped);
    stalled.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| wraps(&near, &key));
        until("the far service has answered, and is not heard", || {
            far.metric(wrapped) > before
        });
        for _ in 0..5 {
            assert_eq!(wraps(&near, &local).0, 200);
        }
        assert!(!hanging.is_finished(), "the others waited for it");
        let (status, code, _, _) = hanging.join().unwrap();
        assert_eq!((status, code.as_str()), (504, "deadline_exceeded"));
    });
    until("the keeper has found it silent", || {
        wraps(&near, &key).0 == 503
    });
    stalled.store(false, Ordering::SeqCst);
    until("it wraps again", || wraps(&near, &key).0 == 200);
    // It crashes: calls are refused at once, and recover without a restart of this service.
    for round in 0..2 {
        far.kill();
        until("it is known to be away", || wraps(&near, &key).0 == 503);
        let (status, code, _, retry) = wraps(&near, &key);
        assert_eq!(
            (status, code.as_str(), retry),
            (503, "store_unavailable", true)
        );
        assert_eq!(wraps(&near, &local).0, 200);
        let body = json!({
            "tenant": "acme", "purpose": "tests", "alg": "aes256-gcm", "backend": "remote",
            "op_id": op_id(100 + round),
        });
        assert_eq!(near.post("keys", &body).status, 503);
        far.again();
        until("it wraps again", || wraps(&near, &key).0 == 200);
        // A request that was refused during the outage succeeds under the same operation id.
        until("it is made", || near.post("keys", &body).status == 201);
    }
    let reconnects = near.metric("ron_kms_backend_reconnects_total{backend=\"remote\"} ");
    assert!(reconnects >= 3, "{reconnects}");
    // A call ends by itself: no thread is lost to a hanging peer.
    let hanging = "ron_kms_backend_sessions{backend=\"remote\",state=\"hanging\"} ";
    until("every thread is back", || near.metric(hanging) == 0);
}

#[test]
fn a_refused_credential_is_not_tried_again_before_a_reload() {
    let far = Service::start("");
    let dir = tempfile::tempdir().unwrap();
    let file = write_private(&dir.path().join("far.token"), "ron_acme_wrong");
    let near = Service::start(&format!(
        "remote.url = \"{}\"\nremote.tenant = \"acme\"\nremote.token = \"{}\"\n\
         backends.probe_every = \"200ms\"\n",
        far.url,
        file.display()
    ));
    let refused =
        "ron_kms_http_requests_total{method=\"GET\",route=\"/v1/kms/keys\",status=\"401\"} ";
    let asked = || far.metric(refused);
    let body = json!({
        "tenant": "acme", "purpose": "tests", "alg": "aes256-gcm", "backend": "remote", "op_id": op_id(7),
    });
    assert_eq!(near.post("keys", &body).status, 503);
    let before = asked();
    assert!(before >= 1);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(asked(), before, "nobody tries a refused credential again");
    write_private(&file, &token());
    signal(near.pid(), "-HUP");
    until("the new credential is taken", || {
        near.post("keys", &body).status == 201
    });
}
