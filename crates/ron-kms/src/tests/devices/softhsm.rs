//! Keys inside SoftHSM2, directly and through a module that fails and hangs on command.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ron_custody::Cause;
use ron_proto::kms::{KeyBackend, PayloadPolicy, SignRequest};
use ron_proto::values::Alg;

use super::super::envelope::{one, why, wrap};
use super::super::{Rig, settings, signed};
use super::{in_backend, in_child, openssl_agrees, run, until, var};

pub const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
pub const LABEL: &str = "ron";
pub const PIN: &str = "648219";

/// Makes a token in `dir`; returns the environment variables with which a process finds it.
pub fn token(dir: &Path) -> Vec<(String, String)> {
    let at = |name: &str| dir.join(name).to_str().expect("utf-8").to_owned();
    std::fs::create_dir(at("tokens")).expect("dir");
    let conf = format!(
        "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\n",
        at("tokens")
    );
    std::fs::write(at("softhsm2.conf"), conf).expect("writes");
    init(dir, LABEL, PIN);
    secret(dir, "pin", PIN);
    vec![
        ("SOFTHSM2_CONF".into(), at("softhsm2.conf")),
        ("RON_DIR".into(), dir.to_str().expect("utf-8").into()),
    ]
}

/// Initialises a token of this label.
pub fn init(dir: &Path, label: &str, pin: &str) {
    let options = ["--init-token", "--free", "--so-pin", "91827364"];
    run(Command::new("softhsm2-util")
        .args(options)
        .args(["--label", label, "--pin", pin])
        .env("SOFTHSM2_CONF", dir.join("softhsm2.conf")));
}

pub fn secret(dir: &Path, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(dir.join(name), text).expect("writes");
    std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o600)).expect("mode");
}

/// A token behind the module that obeys `say`.
pub fn shimmed(dir: &Path) -> Vec<(String, String)> {
    let module = dir.join("shim.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/devices/shim.c");
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&module)
        .arg(source)
        .arg("-ldl"));
    let mut env = token(dir);
    let control = dir.join("control");
    std::fs::write(&control, "ok").expect("writes");
    // A file of its own, so that a process that uses the real module too has two modules.
    let real = dir.join("real.so");
    std::fs::copy(MODULE, &real).expect("copies");
    env.push(("RON_SHIM_REAL".into(), real.to_str().expect("utf-8").into()));
    env.push((
        "RON_SHIM_CONTROL".into(),
        control.to_str().expect("utf-8").into(),
    ));
    env
}

pub fn say(word: &str) {
    // Renamed into place: the module must not read half a word.
    let control = PathBuf::from(var("RON_SHIM_CONTROL"));
    let new = control.with_extension("new");
    std::fs::write(&new, word).expect("writes");
    std::fs::rename(new, control).expect("renames");
}

pub fn flags(dir: &Path, module: &str) -> Vec<(String, String)> {
    let at = |name: &str| dir.join(name).to_str().expect("utf-8").to_owned();
    // Short only where calls hang on command: a disk may delay the token itself for as long.
    let patience = if module == MODULE { "10s" } else { "600ms" };
    [
        ("data_dir", at("data")),
        ("signers", "1".into()),
        ("sign_deadline", patience.into()),
        ("pkcs11.module", module.into()),
        ("pkcs11.token", LABEL.into()),
        ("pkcs11.pin", at("pin")),
        ("pkcs11.sessions", "2".into()),
        ("backends.probe_every", "200ms".into()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .to_vec()
}

pub fn rig(dir: &Path, module: &str) -> Rig {
    let flags = flags(dir, module);
    let flags: Vec<_> = flags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    Rig::start(settings(&flags), None).expect("starts")
}

pub fn home() -> PathBuf {
    PathBuf::from(var("RON_DIR"))
}

#[test]
fn signatures_of_the_token_verify_elsewhere_and_survive_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let name =
        "tests::devices::softhsm::signatures_of_the_token_verify_elsewhere_and_survive_a_restart";
    if !in_child(name, || token(dir.path())) {
        return;
    }
    let dir = home();
    let text = b"signed inside the token";
    let first = rig(&dir, MODULE);
    let algs = [Alg::Ed25519, Alg::EcdsaP256, Alg::EcdsaP384, Alg::Rsa2048];
    let keys: Vec<_> = (1..)
        .zip(algs)
        .map(|(op, alg)| first.create_in(KeyBackend::Pkcs11, alg, op))
        .collect();
    for doc in &keys {
        assert_eq!(
            (doc.backend.as_str(), doc.attestation.as_str()),
            ("pkcs11", "statement")
        );
        let answer = signed(&first.sign_text(doc, text));
        openssl_agrees(&dir, doc, text, &answer);
        assert!(first.verify(&doc.key, None, text, &answer.signatures).ok);
        if !doc.key.alg.is_rsa() {
            pkcs11_tool_agrees(&dir, &format!("{}#v1", doc.key), doc.key.alg, text);
        }
    }
    let listed = tool(
        &dir,
        &[
            "--login",
            "--pin",
            PIN,
            "--list-objects",
            "--type",
            "privkey",
        ],
    );
    assert_eq!(
        listed.matches("never extractable").count(),
        keys.len(),
        "{listed}"
    );
    let old = signed(&first.sign_text(&keys[0], text));
    first.stop();
    let second = rig(&dir, MODULE);
    for doc in &keys {
        let answer = signed(&second.sign_text(doc, text));
        openssl_agrees(&dir, doc, text, &answer);
        let rotated = second.rotated(&doc.key);
        assert_eq!(
            (rotated.document.head, rotated.document.backend.as_str()),
            (2, "pkcs11")
        );
        let answer = signed(&second.sign_text(doc, text));
        assert_eq!(answer.version, 2);
        openssl_agrees(&dir, &rotated.document, text, &answer);
    }
    assert!(second.verify(&keys[0].key, None, text, &old.signatures).ok);
    // An operation that the token does not support is refused; no other backend does it.
    let secrets_are_derived = Alg::ALL.into_iter().filter(|alg| alg.derives());
    for alg in secrets_are_derived.chain([Alg::MlDsa65]) {
        let wrong = in_backend(KeyBackend::Pkcs11, alg, 9);
        let got = second.create_as(&second.caller, wrong);
        assert_eq!(got.code(), "unsupported", "{alg}");
    }
    let wrong = in_backend(KeyBackend::Tpm, Alg::EcdsaP256, 10);
    assert_eq!(
        second.create_as(&second.caller, wrong).code(),
        "unsupported"
    );
    second.stop();
}

pub fn tool(dir: &Path, args: &[&str]) -> String {
    tool_of(dir, LABEL, args)
}

pub fn tool_of(dir: &Path, label: &str, args: &[&str]) -> String {
    run(Command::new("pkcs11-tool")
        .args(["--module", MODULE, "--token-label", label])
        .args(args)
        .current_dir(dir))
}

/// Verifies what [`openssl_agrees`] has left in `dir`, with the public key inside the token.
fn pkcs11_tool_agrees(dir: &Path, label: &str, alg: Alg, text: &[u8]) {
    use ron_crypto::hash::{sha256, sha384};
    let (mechanism, input) = match alg {
        Alg::Ed25519 => ("EDDSA", text.to_vec()),
        Alg::EcdsaP384 => ("ECDSA", sha384(text).to_vec()),
        _ => ("ECDSA", sha256(text).to_vec()),
    };
    std::fs::write(dir.join("input"), input).expect("writes");
    // The tool verifies by id only; a label it would ignore.
    let listed = tool(dir, &["--list-objects", "--type", "pubkey"]);
    let (_, after) = listed.split_once(label).expect("labelled");
    let id = after
        .lines()
        .find_map(|line| line.trim().strip_prefix("ID:"))
        .expect("an id");
    let verify = ["--verify", "-m", mechanism, "--id", id.trim()];
    let files = ["--input-file", "input", "--signature-file", "sig.raw"];
    let said = tool(dir, &[&verify[..], &files].concat());
    assert!(said.contains("Signature is valid"), "{said}");
}

#[test]
fn a_call_that_hangs_blocks_nobody_else() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::softhsm::a_call_that_hangs_blocks_nobody_else";
    if !in_child(name, || shimmed(dir.path())) {
        return;
    }
    let dir = home();
    let rig = rig(&dir, dir.join("shim.so").to_str().expect("utf-8"));
    let one = rig.create_in(KeyBackend::Pkcs11, Alg::Ed25519, 1);
    let two = rig.create_in(KeyBackend::Pkcs11, Alg::EcdsaP256, 2);
    let file = rig.create("local", Alg::Ed25519, PayloadPolicy::Any, 3);
    say("hang-once");
    let begun = Instant::now();
    let until_then = ron_kernel::Deadline::within(Duration::from_secs(2));
    let hanging = rig.send_sign_by(SignRequest::message(one.key.clone(), *b"x"), until_then);
    std::thread::sleep(Duration::from_millis(200));
    for doc in [&two, &one, &file] {
        let asked = Instant::now();
        signed(&rig.sign_text(doc, b"meanwhile"));
        assert!(
            asked.elapsed() < Duration::from_millis(1_500),
            "{:?}",
            asked.elapsed()
        );
    }
    let got = Rig::wait(hanging);
    let took = begun.elapsed();
    assert_eq!(
        (got.status, got.code().as_str()),
        (504, "deadline_exceeded")
    );
    assert!(
        took >= Duration::from_millis(1_990) && took < Duration::from_secs(4),
        "{took:?}"
    );
    assert_eq!(
        rig.gauge("ron_kms_quarantined_calls_total{backend=\"pkcs11\"} "),
        1
    );
    // The hanging thread is replaced: the token keeps both of its sessions.
    let open = "ron_kms_backend_sessions{backend=\"pkcs11\",state=\"open\"} ";
    until("the seat is taken again", || rig.gauge(open) == 2);
    say("ok");
    let hung = "ron_kms_backend_sessions{backend=\"pkcs11\",state=\"hanging\"} ";
    until("the call came back", || rig.gauge(hung) == 0);
    signed(&rig.sign_text(&one, b"after"));
    rig.stop();
}

#[test]
fn a_token_that_is_away_is_refused_at_once_and_found_again() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::softhsm::a_token_that_is_away_is_refused_at_once_and_found_again";
    if !in_child(name, || shimmed(dir.path())) {
        return;
    }
    let dir = home();
    let rig = rig(&dir, dir.join("shim.so").to_str().expect("utf-8"));
    let doc = rig.create_in(KeyBackend::Pkcs11, Alg::Ed25519, 1);
    let file = rig.create("local", Alg::Ed25519, PayloadPolicy::Any, 2);
    let before = signed(&rig.sign_text(&doc, b"text"));
    let count = "ron_kms_backend_reconnects_total{backend=\"pkcs11\"} ";
    for (round, word) in (1..).zip(["fail", "lost", "fail"]) {
        say(word);
        for _ in 0..3 {
            let asked = Instant::now();
            let got = rig.sign_text(&doc, b"text");
            assert_eq!(
                (got.status, got.code().as_str()),
                (503, "store_unavailable")
            );
            assert!(
                asked.elapsed() < Duration::from_secs(1),
                "{:?}",
                asked.elapsed()
            );
        }
        assert!(rig.retry_after(&doc).is_some());
        let create = in_backend(KeyBackend::Pkcs11, Alg::Ed25519, 20 + round);
        assert_eq!(rig.create_as(&rig.caller, create).status, 503);
        let verified = rig
            .verify_request(&doc.key, b"text", &before.signatures)
            .expect("verifies");
        assert!(verified.ok && verified.cache_age_ms.is_some());
        signed(&rig.sign_text(&file, b"others go on"));
        let causes = rig.ready.snapshot();
        assert!(
            causes.ready && causes.degraded.iter().any(|c| c.contains("pkcs11")),
            "{causes:?}"
        );
        say("ok");
        until("it signs again", || {
            rig.sign_text(&doc, b"text").status == 200
        });
        assert_eq!(rig.gauge(count), round as i64);
        let verified = rig
            .verify_request(&doc.key, b"text", &before.signatures)
            .expect("verifies");
        assert!(verified.ok && verified.cache_age_ms.is_none());
    }
    rig.stop();
}

#[test]
fn a_key_that_was_deleted_in_the_token_is_an_error_of_that_key_alone() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::softhsm::a_key_that_was_deleted_in_the_token_is_an_error_of_that_key_alone";
    if !in_child(name, || token(dir.path())) {
        return;
    }
    let dir = home();
    let rig = rig(&dir, MODULE);
    let make = |alg, op| rig.create_in(KeyBackend::Pkcs11, alg, op);
    let [gone, other] = [(Alg::Ed25519, 1), (Alg::EcdsaP256, 2)].map(|(alg, op)| make(alg, op));
    let wraps = make(Alg::Aes256Kwp, 3);
    // Both sessions have used the keys, so that their handles are remembered.
    for doc in [&gone, &other, &gone, &other] {
        signed(&rig.sign_text(doc, b"before"));
    }
    let listed = tool(&dir, &["--login", "--pin", PIN, "--list-objects"]);
    for (doc, kind) in [(&gone, "privkey"), (&wraps, "secrkey")] {
        let (_, after) = listed
            .split_once(&format!("{}#v1", doc.key))
            .expect("labelled");
        let id = after
            .lines()
            .find_map(|line| line.trim().strip_prefix("ID:"));
        let which = ["--type", kind, "--id", id.expect("an id").trim()];
        let delete = ["--login", "--pin", PIN, "--delete-object"];
        tool(&dir, &[&delete[..], &which].concat());
    }
    for _ in 0..4 {
        let got = rig.sign_text(&gone, b"after");
        assert_eq!((got.status, got.code().as_str()), (503, "key_missing"));
        assert_eq!(rig.retry_after(&gone), None, "no retry helps");
        signed(&rig.sign_text(&other, b"after"));
        let wrapped = one(&rig, wrap(&wraps.key, None, b"secret"));
        assert_eq!(why(wrapped), Some(Cause::KeyMissing));
    }
    assert_eq!(rig.ready.snapshot().degraded, Vec::<String>::new());
    rig.rotated(&gone.key);
    assert_eq!(signed(&rig.sign_text(&gone, b"again")).version, 2);
    // Without the whole token, it is the device that is unavailable.
    std::fs::rename(dir.join("tokens"), dir.join("away")).expect("moved");
    for doc in [&gone, &other] {
        assert_eq!(rig.sign_text(doc, b"x").code(), "store_unavailable");
    }
    std::fs::rename(dir.join("away"), dir.join("tokens")).expect("moved back");
    until("it signs again", || {
        rig.sign_text(&other, b"x").status == 200
    });
    rig.stop();
}

#[test]
fn a_wrong_pin_is_tried_once() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::softhsm::a_wrong_pin_is_tried_once";
    if !in_child(name, || token(dir.path())) {
        return;
    }
    let dir = home();
    secret(&dir, "pin", "000000");
    let rig = rig(&dir, MODULE);
    let wrong = || rig.create_as(&rig.caller, in_backend(KeyBackend::Pkcs11, Alg::Ed25519, 1));
    assert_eq!(wrong().code(), "store_unavailable");
    std::thread::sleep(Duration::from_secs(1));
    // A token that counts wrong PINs shows a warning after the first, and locks after some.
    let shown = tool(&dir, &["--list-token-slots"]);
    assert!(!shown.contains("locked"), "{shown}");
    secret(&dir, "pin", PIN);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        wrong().code(),
        "store_unavailable",
        "nothing is tried before a reload"
    );
    for device in rig.engine.kms.backends.devices() {
        device.presence().adopt(Duration::from_millis(200));
    }
    until("it is up after a reload", || {
        rig.engine
            .kms
            .backends
            .devices()
            .iter()
            .all(|d| d.presence().unavailable().is_none())
    });
    rig.create_in(KeyBackend::Pkcs11, Alg::Ed25519, 2);
    rig.stop();
}
