//! Two tokens in one service: each key stays in its own, and one that fails takes no other keys with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ron_proto::kms::{
    CreateKey, DestroyKey, KeyBackend, KeyDoc, KeyState, Period, RotateRequest, SignRequest,
    TokenObject,
};
use ron_proto::values::{Alg, TokenName};
use ron_service::{Config, ServiceSettings as _};

use super::super::{Rig, TestReply, signed};
use super::adopt::{adopted, request};
use super::softhsm::{LABEL, MODULE, PIN, home, init, secret, shimmed, token, tool_of};
use super::{in_backend, in_child, openssl_agrees, until};
use crate::settings::{Settings, TABLE};
use crate::work::key_request::KeyRequest;

/// Name, label and PIN of the second token.
const NAME: &str = "old";
const OLD: &str = "of the other tenant";
const OLD_PIN: &str = "973105";

/// The tokens of two tenants, each with a PIN of its own.
fn two_tokens(dir: &Path) -> Vec<(String, String)> {
    let env = token(dir);
    add_old(dir);
    env
}

/// The second token behind the module that hangs on command, the first one behind the real module.
fn two_modules(dir: &Path) -> Vec<(String, String)> {
    let env = shimmed(dir);
    add_old(dir);
    env
}

fn add_old(dir: &Path) {
    let before = directories(dir);
    init(dir, OLD, OLD_PIN);
    let mut new = directories(dir);
    new.retain(|path| !before.contains(path));
    let [new] = &new[..] else {
        panic!("one token was made: {new:?}")
    };
    std::fs::write(dir.join("old-dir"), new.to_str().expect("utf-8")).expect("writes");
    secret(dir, "old.pin", OLD_PIN);
}

/// The directories of SoftHSM's tokens.
fn directories(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join("tokens")).expect("a directory");
    all.map(|entry| entry.expect("an entry").path()).collect()
}

/// Takes the second token away.
fn pull(dir: &Path) {
    std::fs::rename(old_dir(dir), dir.join("pulled")).expect("moved");
}

fn plug(dir: &Path) {
    std::fs::rename(dir.join("pulled"), old_dir(dir)).expect("moved back");
}

fn old_dir(dir: &Path) -> PathBuf {
    PathBuf::from(std::fs::read_to_string(dir.join("old-dir")).expect("a path"))
}

/// The first token, which has no name.
fn first(dir: &Path) -> String {
    format!(
        "data_dir = \"{0}/data\"\nsigners = 1\nsign_deadline = \"10s\"\ndestroy.delay_min = \"1s\"\nbackends.probe_every = \"200ms\"\n\
         [pkcs11]\nmodule = \"{MODULE}\"\ntoken = \"{LABEL}\"\npin = \"{0}/pin\"\nsessions = 2\n",
        dir.display()
    )
}

/// The second token, in this module.
fn second(dir: &Path, module: &str) -> String {
    format!(
        "[[pkcs11.tokens]]\nname = \"{NAME}\"\nmodule = \"{module}\"\nlabel = \"{OLD}\"\npin = \"{}/old.pin\"\nsessions = 2\n",
        dir.display()
    )
}

fn rig(text: &str) -> Rig {
    let config = Config::from_toml(&TABLE, Path::new("kms.toml"), text).expect("valid");
    let settings = Settings::from_config(&config).expect("valid");
    Rig::start(settings, None).expect("starts")
}

fn both(dir: &Path) -> Rig {
    rig(&(first(dir) + &second(dir, MODULE)))
}

fn in_token(name: &str, alg: Alg, op: u128) -> CreateKey {
    CreateKey {
        token: Some(name.parse().expect("a name")),
        ..in_backend(KeyBackend::Pkcs11, alg, op)
    }
}

/// A key in each token.
fn keys(rig: &Rig) -> [KeyDoc; 2] {
    let here = rig.create_in(KeyBackend::Pkcs11, Alg::EcdsaP256, 1);
    let there = rig.create_as(&rig.caller, in_token(NAME, Alg::EcdsaP256, 2));
    [here, there.json()]
}

/// The objects of both tokens, as others see them.
fn listed(dir: &Path) -> [String; 2] {
    [(LABEL, PIN), (OLD, OLD_PIN)]
        .map(|(label, pin)| tool_of(dir, label, &["--login", "--pin", pin, "--list-objects"]))
}

fn detail(reply: &TestReply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

#[test]
fn each_key_stays_in_the_token_that_its_request_names() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::tokens::each_key_stays_in_the_token_that_its_request_names";
    if !in_child(name, || two_tokens(dir.path())) {
        return;
    }
    let dir = home();
    let text = b"signed in a token";
    let service = both(&dir);
    let docs = keys(&service);
    let named: TokenName = NAME.parse().expect("a name");
    let shown = |doc: &KeyDoc| (doc.backend.clone(), doc.token.clone());
    let expected = [None, Some(named.clone())].map(|token| ("pkcs11".to_owned(), token));
    assert_eq!(docs.each_ref().map(shown), expected);
    for doc in &docs {
        openssl_agrees(&dir, doc, text, &signed(&service.sign_text(doc, text)));
        let rotated = service.rotated(&doc.key).document;
        assert_eq!(shown(&rotated), shown(doc));
    }
    let objects = |listed: &str, doc: &KeyDoc| listed.matches(&doc.key.to_string()).count();
    let counts =
        |dir: &Path| listed(dir).map(|text| docs.each_ref().map(|doc| objects(&text, doc)));
    assert_eq!(counts(&dir), [[4, 0], [0, 4]]);
    service.stop();
    let service = both(&dir);
    for doc in &docs {
        let now = service.doc(&doc.key);
        assert_eq!((now.head, shown(&now)), (2, shown(doc)));
        openssl_agrees(&dir, &now, text, &signed(&service.sign_text(&now, text)));
    }
    let destroy = DestroyKey {
        delay: Some(Period::from_s(1).expect("a period")),
        ..DestroyKey::default()
    };
    let ordered = service.change(&docs[1].key, KeyRequest::Destroy(destroy));
    assert_eq!(ordered.status, 200, "{}", detail(&ordered));
    until("it is destroyed", || {
        service.doc(&docs[1].key).state == KeyState::Destroyed
    });
    assert_eq!(counts(&dir), [[4, 0], [0, 0]]);
    service.stop();
}

#[test]
fn requests_name_tokens_of_the_configuration() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::tokens::requests_name_tokens_of_the_configuration";
    if !in_child(name, || two_tokens(dir.path())) {
        return;
    }
    let dir = home();
    let service = both(&dir);
    let refused = |ask: CreateKey| {
        let got = service.create_as(&service.caller, ask);
        (got.status, got.code(), detail(&got))
    };
    let (status, code, why) = refused(in_token("odl", Alg::Ed25519, 1));
    assert_eq!((status, code.as_str()), (400, "unsupported"));
    assert!(why.contains("set `token` to `old`"), "{why}");
    for backend in [None, Some(KeyBackend::File)] {
        let ask = CreateKey {
            backend,
            ..in_token(NAME, Alg::Ed25519, 2)
        };
        let (status, code, why) = refused(ask);
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{why}");
    }
    // An object is found in the token that the request names, and in no other.
    let pair = [
        "--keypairgen",
        "--key-type",
        "EC:prime256v1",
        "--label",
        "site",
    ];
    let login = ["--id", "0a01", "--login", "--pin", OLD_PIN];
    tool_of(&dir, OLD, &[&pair[..], &login].concat());
    let site = |op| request(Alg::EcdsaP256, TokenObject::Label("site".into()), op);
    assert_eq!(adopted(&service, site(3)).code(), "unsupported");
    let mut ask = site(4);
    ask.token = Some(NAME.parse().expect("a name"));
    let doc: KeyDoc = adopted(&service, ask).json();
    assert_eq!(doc.token.as_ref().map(TokenName::as_str), Some(NAME));
    openssl_agrees(&dir, &doc, b"x", &signed(&service.sign_text(&doc, b"x")));
    service.stop();
    // The only token is meant without its name, and the key keeps the name.
    let only = first(&dir).replace(&format!("token = \"{LABEL}\"\n"), "");
    let only = only.replace(&format!("pin = \"{}/pin\"\n", dir.display()), "");
    let service = rig(&(only + &second(&dir, MODULE)));
    let made = service.create_in(KeyBackend::Pkcs11, Alg::Ed25519, 5);
    assert_eq!(made.token.as_ref().map(TokenName::as_str), Some(NAME));
    signed(&service.sign_text(&made, b"x"));
    service.stop();
}

#[test]
fn a_token_that_is_away_takes_only_its_own_keys_out_of_use() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::tokens::a_token_that_is_away_takes_only_its_own_keys_out_of_use";
    if !in_child(name, || two_tokens(dir.path())) {
        return;
    }
    let dir = home();
    let service = both(&dir);
    let [here, there] = keys(&service);
    let before = signed(&service.sign_text(&there, b"text"));
    let refused = |service: &Rig| {
        let got = service.sign_text(&there, b"text");
        let (why, code) = (detail(&got), got.code());
        assert_eq!((got.status, code.as_str()), (503, "store_unavailable"));
        assert!(why.contains("pkcs11-old"), "{why}");
        let verified = service.verify_request(&there.key, b"text", &before.signatures);
        assert!(verified.expect("verifies").ok);
        signed(&service.sign_text(&here, b"text"));
        why
    };
    pull(&dir);
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        refused(&service);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(service.ready.snapshot().degraded, ["pkcs11-old"]);
    for (backend, open) in [("pkcs11", 2), ("pkcs11-old", 0)] {
        let sessions = format!("ron_kms_backend_sessions{{backend=\"{backend}\",state=\"open\"}} ");
        assert_eq!(service.gauge(&sessions), open, "{backend}");
        let count = format!("ron_kms_backend_reconnects_total{{backend=\"{backend}\"}} ");
        assert_eq!(service.gauge(&count), 0, "{backend}");
    }
    service.stop();
    // A start without it, with a wrong PIN, and without its block.
    let service = both(&dir);
    refused(&service);
    service.stop();
    plug(&dir);
    secret(&dir, "old.pin", "000000");
    let service = both(&dir);
    refused(&service);
    service.stop();
    secret(&dir, "old.pin", OLD_PIN);
    let service = rig(&first(&dir));
    let why = refused(&service);
    assert!(why.contains("no longer configured"), "{why}");
    let rotated = service.change(&there.key, KeyRequest::Rotate(RotateRequest::default()));
    assert_eq!(rotated.code(), "unsupported", "{}", detail(&rotated));
    assert_eq!(service.doc(&there.key).token, there.token);
    service.stop();
    let service = both(&dir);
    for doc in [&here, &there] {
        signed(&service.sign_text(doc, b"text"));
    }
    service.stop();
}

#[test]
fn tokens_come_back_one_by_one_and_together() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::tokens::tokens_come_back_one_by_one_and_together";
    if !in_child(name, || two_tokens(dir.path())) {
        return;
    }
    let dir = home();
    let signs = |service: &Rig, doc: &KeyDoc| service.sign_text(doc, b"text").status == 200;
    // This module finds tokens when it is initialised, so the second token has a module of its own.
    let copy = dir.join("copy.so");
    std::fs::copy(MODULE, &copy).expect("copies");
    let service = rig(&(first(&dir) + &second(&dir, copy.to_str().expect("utf-8"))));
    let docs = keys(&service);
    pull(&dir);
    assert!(!signs(&service, &docs[1]));
    plug(&dir);
    until("it is back", || signs(&service, &docs[1]));
    let reconnects = "ron_kms_backend_reconnects_total{backend=\"pkcs11\"} ";
    assert!(signs(&service, &docs[0]) && service.gauge(reconnects) == 0);
    service.stop();
    // With one module for both: it is initialised again while none of them is in use.
    let service = both(&dir);
    std::fs::rename(dir.join("tokens"), dir.join("away")).expect("moved");
    until("both are away", || {
        !docs.iter().any(|doc| signs(&service, doc))
    });
    std::thread::sleep(Duration::from_secs(1));
    std::fs::rename(dir.join("away"), dir.join("tokens")).expect("moved back");
    until("both are back", || {
        docs.iter().all(|doc| signs(&service, doc))
    });
    assert_eq!(service.ready.snapshot().degraded, Vec::<String>::new());
    service.stop();
}

#[test]
fn a_token_that_hangs_delays_only_its_own_keys() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::tokens::a_token_that_hangs_delays_only_its_own_keys";
    if !in_child(name, || two_modules(dir.path())) {
        return;
    }
    let dir = home();
    let shim = dir.join("shim.so");
    let text = first(&dir) + &second(&dir, shim.to_str().expect("utf-8"));
    let service = rig(&text);
    let [here, there] = keys(&service);
    signed(&service.sign_text(&there, b"text"));
    super::softhsm::say("hang");
    let until_then = ron_kernel::Deadline::within(Duration::from_secs(3));
    let ask = || SignRequest::message(there.key.clone(), *b"x");
    let hanging = [ask(), ask()].map(|ask| service.send_sign_by(ask, until_then));
    for _ in 0..20 {
        signed(&service.sign_text(&here, b"meanwhile"));
    }
    for waiter in hanging {
        assert_eq!(Rig::wait(waiter).status, 504);
    }
    let hung = |backend: &str| {
        service.gauge(&format!(
            "ron_kms_quarantined_calls_total{{backend=\"{backend}\"}} "
        ))
    };
    assert_eq!((hung("pkcs11"), hung("pkcs11-old")), (0, 2));
    super::softhsm::say("ok");
    until("it signs again", || {
        service.sign_text(&there, b"after").status == 200
    });
    signed(&service.sign_text(&here, b"after"));
    service.stop();
}
