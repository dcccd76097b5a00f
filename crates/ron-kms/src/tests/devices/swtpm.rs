//! Keys in a real swtpm, which the tests start on free ports, also behind a proxy that stalls.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_kernel::Deadline;
use ron_proto::kms::{KeyBackend, PayloadPolicy, SignRequest};
use ron_proto::values::Alg;

use super::super::{Rig, settings, signed};
use super::{in_backend, in_child, openssl_agrees, until, var};

/// A running swtpm; killed when dropped.
pub struct Swtpm {
    child: Child,
    dir: PathBuf,
    /// Data port; the control port is the next one.
    pub port: u16,
}

/// Two ports in a row, taken.
fn pair() -> [TcpListener; 2] {
    let seed = std::process::id() as u16 % 2000;
    let take = |port: u16| TcpListener::bind(("127.0.0.1", port)).ok();
    let mut pairs = (0..2000_u16).map(|n| 22_000 + (seed + n) % 2000 * 2);
    let taken = pairs.find_map(|port| Some([take(port)?, take(port + 1)?]));
    taken.expect("two free ports")
}

fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("bound").port()
}

impl Swtpm {
    /// With its state in `dir`, new or kept.
    pub fn start(dir: &Path) -> Self {
        // Another process may take the ports between the check and the start of swtpm.
        let mut tries = (0..10).map(|_| port_of(&pair()[0]));
        let started = tries.find_map(|port| Self::start_at(dir, port));
        started.expect("swtpm starts on one of ten pairs of ports")
    }

    /// `None` when it ends at once.
    fn start_at(dir: &Path, port: u16) -> Option<Self> {
        std::fs::create_dir_all(dir).expect("dir");
        let child = Command::new("swtpm")
            .args(["socket", "--tpm2", "--seccomp", "action=none"])
            .args(["--flags", "not-need-init,startup-clear", "--tpmstate"])
            .arg(format!("dir={}", dir.display()))
            .arg("--server")
            .arg(format!("type=tcp,port={port},bindaddr=127.0.0.1"))
            .arg("--ctrl")
            .arg(format!("type=tcp,port={},bindaddr=127.0.0.1", port + 1))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("swtpm starts; run scripts/setup.sh");
        let mut swtpm = Self {
            child,
            dir: dir.to_owned(),
            port,
        };
        let mut ended = false;
        until("swtpm listens", || {
            ended = swtpm.child.try_wait().expect("asked").is_some();
            ended || TcpStream::connect(("127.0.0.1", port + 1)).is_ok()
        });
        (!ended).then_some(swtpm)
    }

    /// Kills it: a device that is pulled out.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port with the same state.
    pub fn again(&mut self) {
        let started = Self::start_at(&self.dir.clone(), self.port);
        *self = started.expect("its ports are still free");
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Settings with a TPM at `port`.
pub fn flags(dir: &Path, port: u16) -> Vec<(String, String)> {
    [
        (
            "data_dir",
            dir.join("data").to_str().expect("utf-8").to_owned(),
        ),
        ("signers", "1".into()),
        ("sign_deadline", "600ms".into()),
        ("tpm.tcti", format!("swtpm:host=127.0.0.1,port={port}")),
        ("backends.probe_every", "200ms".into()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .to_vec()
}

fn rig(dir: &Path, port: u16) -> Rig {
    let flags = flags(dir, port);
    let flags: Vec<_> = flags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    Rig::start(settings(&flags), None).expect("starts")
}

/// The TPM library writes every error to stderr; the child is configured not to.
pub fn quiet(dir: &Path) -> Vec<(String, String)> {
    vec![
        ("TSS2_LOG".into(), "all+NONE".into()),
        ("RON_DIR".into(), dir.to_str().expect("utf-8").into()),
    ]
}

#[test]
fn signatures_of_the_tpm_verify_elsewhere_and_survive_a_crash() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::swtpm::signatures_of_the_tpm_verify_elsewhere_and_survive_a_crash";
    if !in_child(name, || quiet(dir.path())) {
        return;
    }
    let dir = PathBuf::from(var("RON_DIR"));
    let mut swtpm = Swtpm::start(&dir.join("tpm"));
    let first = rig(&dir, swtpm.port);
    let doc = first.create_in(KeyBackend::Tpm, Alg::EcdsaP256, 1);
    assert_eq!(
        (doc.backend.as_str(), doc.attestation.as_str()),
        ("tpm", "tpm2-certify")
    );
    let file = first.create("local", Alg::Ed25519, PayloadPolicy::Any, 2);
    for n in 0..20_u8 {
        let answer = signed(&first.sign_text(&doc, &[n]));
        openssl_agrees(&dir, &doc, &[n], &answer);
    }
    let before = signed(&first.sign_text(&doc, b"text"));
    let secrets_are_derived = Alg::ALL.into_iter().filter(|alg| alg.derives());
    for alg in secrets_are_derived.chain([Alg::Ed25519]) {
        let wrong = in_backend(KeyBackend::Tpm, alg, 3);
        let got = first.create_as(&first.caller, wrong);
        assert_eq!(got.code(), "unsupported", "{alg}");
    }
    swtpm.kill();
    for _ in 0..3 {
        let asked = Instant::now();
        let got = first.sign_text(&doc, b"text");
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
    let verified = first
        .verify_request(&doc.key, b"text", &before.signatures)
        .expect("verifies");
    assert!(verified.ok && verified.cache_age_ms.is_some());
    signed(&first.sign_text(&file, b"others go on"));
    swtpm.again();
    until("it signs again", || {
        first.sign_text(&doc, b"text").status == 200
    });
    first.stop();
    let second = rig(&dir, swtpm.port);
    let rotated = second.rotated(&doc.key).document;
    let answer = signed(&second.sign_text(&doc, b"after"));
    assert_eq!(answer.version, 2);
    openssl_agrees(&dir, &rotated, b"after", &answer);
    second.stop();
}

/// Forwards two ports to two others; forwards nothing while `stalled`.
fn proxy(to: u16, stalled: &Arc<AtomicBool>) -> u16 {
    let listeners = pair();
    let from = port_of(&listeners[0]);
    for (offset, listener) in (0..).zip(listeners) {
        let stalled = stalled.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let stalled = stalled.clone();
                std::thread::spawn(move || {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", to + offset)) else {
                        return;
                    };
                    let (c2, s2) = (
                        client.try_clone().expect("clone"),
                        server.try_clone().expect("clone"),
                    );
                    let held = stalled.clone();
                    std::thread::spawn(move || forward(c2, s2, &held));
                    forward(server, client, &stalled);
                });
            }
        });
    }
    from
}

fn forward(mut from: TcpStream, mut to: TcpStream, stalled: &AtomicBool) {
    let mut buffer = [0_u8; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        while stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_tpm_that_stalls_blocks_nobody_else() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::swtpm::a_tpm_that_stalls_blocks_nobody_else";
    if !in_child(name, || quiet(dir.path())) {
        return;
    }
    let dir = PathBuf::from(var("RON_DIR"));
    let swtpm = Swtpm::start(&dir.join("tpm"));
    let stalled = Arc::new(AtomicBool::new(false));
    let rig = rig(&dir, proxy(swtpm.port, &stalled));
    let doc = rig.create_in(KeyBackend::Tpm, Alg::EcdsaP256, 1);
    let file = rig.create("local", Alg::Ed25519, PayloadPolicy::Any, 2);
    signed(&rig.sign_text(&doc, b"text"));
    stalled.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let deadline = Deadline::within(Duration::from_secs(2));
    let waiting = rig.send_sign_by(SignRequest::message(doc.key.clone(), *b"x"), deadline);
    for _ in 0..5 {
        let asked = Instant::now();
        signed(&rig.sign_text(&file, b"meanwhile"));
        assert!(
            asked.elapsed() < Duration::from_millis(1_500),
            "{:?}",
            asked.elapsed()
        );
    }
    let got = Rig::wait(waiting);
    let took = begun.elapsed();
    assert_eq!(
        (got.status, got.code().as_str()),
        (504, "deadline_exceeded")
    );
    assert!(took < Duration::from_secs(4), "{took:?}");
    until("the owner is set aside", || {
        rig.gauge("ron_kms_quarantined_calls_total{backend=\"tpm\"} ") >= 1
    });
    let brief = || {
        let deadline = Deadline::within(Duration::from_millis(600));
        Rig::wait(rig.send_sign_by(SignRequest::message(doc.key.clone(), *b"x"), deadline))
    };
    until("the keeper has found it silent", || brief().status == 503);
    stalled.store(false, Ordering::SeqCst);
    until("it signs again", || {
        rig.sign_text(&doc, b"text").status == 200
    });
    rig.stop();
}

#[test]
fn tpm_evidence_is_checked_by_third_parties() {
    use crate::attest::verify::{Expect, verify};
    use ron_proto::kms::AttestRequest;

    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::swtpm::tpm_evidence_is_checked_by_third_parties";
    if !in_child(name, || quiet(dir.path())) {
        return;
    }
    let dir = PathBuf::from(var("RON_DIR"));
    let mut swtpm = Swtpm::start(&dir.join("tpm"));
    let mut all = flags(&dir, swtpm.port);
    all.push(("attest.require".into(), "required".into()));
    all.push(("attest.refresh_every".into(), "200ms".into()));
    let all: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let rig = Rig::start(settings(&all), None).expect("starts");
    let doc = rig.create_in(KeyBackend::Tpm, Alg::EcdsaP256, 1);
    let local = rig.create("local", Alg::Ed25519, PayloadPolicy::Any, 2);
    let mut first = None;
    until("the first evidence", || {
        let answer = rig.sign_text(&doc, b"x");
        let refused = answer.status != 200;
        first = Some(answer);
        !refused
    });
    let first = signed(&first.expect("a signature"));
    let said = first
        .attestation
        .expect("no signature before the first evidence");
    assert_eq!(said.class, "tpm2-certify");
    assert!(said.confirmed.0 > 0);
    let refused = rig.sign_text(&local, b"x");
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "attestation_missing")
    );
    let good = rig.certificate(&doc, b"fresh");
    let tpm = good.evidence.tpm.clone().expect("evidence");
    let expect = Expect {
        vkey: Some(good.evidence.vkey.clone()),
        attestation_key: Some(tpm.attestation_key.0.clone()),
        nonce: Some(b"fresh".to_vec()),
    };
    let birth = verify(&good, &expect).expect("verifies");
    let (registers, _) = birth.quoted.expect("a quote");
    assert_eq!(registers, [0, 1, 4, 7]);
    assert_eq!(good.evidence.class, "tpm2-certify");
    // A change of any byte of the TPM's evidence is detected.
    for at in 0..tpm.certify.0.len() {
        let mut bad = good.clone();
        bad.evidence.tpm.as_mut().expect("evidence").certify.0[at] ^= 1;
        assert!(verify(&bad, &expect).is_err(), "certify byte {at}");
    }
    for at in 0..tpm.key_public.0.len() {
        let mut bad = good.clone();
        bad.evidence.tpm.as_mut().expect("evidence").key_public.0[at] ^= 1;
        assert!(verify(&bad, &expect).is_err(), "public byte {at}");
    }
    let swapped = |change: &dyn Fn(&mut ron_proto::kms::TpmEvidenceDoc)| {
        let mut bad = good.clone();
        change(bad.evidence.tpm.as_mut().expect("evidence"));
        assert!(verify(&bad, &expect).is_err());
    };
    swapped(&|t| {
        std::mem::swap(&mut t.certify, &mut t.quote);
    });
    swapped(&|t| {
        t.quote_signature = t.certify_signature.clone();
    });
    let mut bad = good.clone();
    bad.evidence.tpm = None;
    assert!(verify(&bad, &expect).is_err());
    // The attestation key is the same after a restart of the TPM, so that a verifier can know it in advance.
    swtpm.kill();
    until("signing is refused without evidence", || {
        rig.sign_text(&doc, b"x").status == 503
    });
    swtpm.again();
    until("it attests again", || {
        rig.sign_text(&doc, b"x").status == 200
    });
    let again = rig.certificate(&doc, b"fresh");
    verify(&again, &expect).expect("the same attestation key");
    checkquote(&dir, &good);
    let old = AttestRequest {
        version: Some(1),
        nonce: b"".to_vec().into(),
    };
    rig.rotated(&doc.key);
    assert_eq!(rig.attest(&doc, old).code(), "version_not_head");
    rig.stop();
}

/// `tpm2_checkquote` agrees, with the nonce that the statement gives.
fn checkquote(dir: &Path, certificate: &ron_proto::kms::BirthCertificate) {
    use ron_custody::keys::PublicKey;
    let evidence = &certificate.evidence;
    let tpm = evidence.tpm.as_ref().expect("evidence");
    let ak = PublicKey::from_raw(Alg::EcdsaP256, tpm.attestation_key.as_slice()).expect("a point");
    std::fs::write(dir.join("ak.pem"), ak.pem()).expect("writes");
    std::fs::write(dir.join("quote"), tpm.quote.as_slice()).expect("writes");
    std::fs::write(dir.join("quote.sig"), tpm.quote_signature.as_slice()).expect("writes");
    let nonce = hex::encode(crate::attest::tpm_nonce(&evidence.statement));
    let check = |nonce: &str| {
        Command::new("tpm2_checkquote")
            .args([
                "-u",
                "ak.pem",
                "-m",
                "quote",
                "-s",
                "quote.sig",
                "-g",
                "sha256",
                "-q",
                nonce,
            ])
            .current_dir(dir)
            .output()
            .expect("tpm2_checkquote runs; run scripts/setup.sh")
    };
    let out = check(&nonce);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(!check(&nonce.replace(&nonce[..2], "00")).status.success() || nonce.starts_with("00"));
}

#[test]
fn a_store_sealed_by_a_tpm_opens_with_that_tpm_only() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::swtpm::a_store_sealed_by_a_tpm_opens_with_that_tpm_only";
    if !in_child(name, || quiet(dir.path())) {
        return;
    }
    let dir = PathBuf::from(var("RON_DIR"));
    let mut swtpm = Swtpm::start(&dir.join("tpm"));
    let blob = dir.join("seal.blob");
    let start = |port: u16| {
        let mut all = flags(&dir, port);
        all.push(("seal.tpm_file".into(), blob.to_str().expect("utf-8").into()));
        let all: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        Rig::start(settings(&all), None)
    };
    let rig = start(swtpm.port).expect("starts");
    let doc = rig.create("local", Alg::Ed25519, PayloadPolicy::Any, 1);
    signed(&rig.sign_text(&doc, b"x"));
    rig.stop();
    assert!(blob.exists() && !dir.join("data/seal.key").exists());
    let rig = start(swtpm.port).expect("starts again");
    signed(&rig.sign_text(&doc, b"x"));
    rig.stop();
    swtpm.kill();
    let unavailable = start(swtpm.port).err().expect("the TPM is unavailable");
    assert!(
        unavailable.to_string().contains("seal.tpm_file"),
        "{unavailable}"
    );
    let outsider = Swtpm::start(&dir.join("another"));
    let refused = start(outsider.port).err().expect("another TPM");
    assert!(refused.to_string().contains("another TPM"), "{refused}");
}

#[test]
fn a_destroyed_key_of_the_tpm_is_forgotten_also_while_the_tpm_is_away() {
    use crate::work::key_request::KeyRequest;
    use ron_proto::kms::{DestroyKey, KeyState, Period};

    let dir = tempfile::tempdir().expect("dir");
    let name =
        "tests::devices::swtpm::a_destroyed_key_of_the_tpm_is_forgotten_also_while_the_tpm_is_away";
    if !in_child(name, || quiet(dir.path())) {
        return;
    }
    let dir = PathBuf::from(var("RON_DIR"));
    let mut swtpm = Swtpm::start(&dir.join("tpm"));
    let mut all = flags(&dir, swtpm.port);
    all.push(("destroy.delay_min".into(), "1s".into()));
    let all: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let rig = Rig::start(settings(&all), None).expect("starts");
    let doc = rig.create_in(KeyBackend::Tpm, Alg::EcdsaP256, 1);
    let before = signed(&rig.sign_text(&doc, b"text"));
    swtpm.kill();
    let order = KeyRequest::Destroy(DestroyKey {
        below_version: None,
        delay: Some(Period::from_s(1).expect("a period")),
        expected_head: None,
        op_id: None,
    });
    assert_eq!(rig.change(&doc.key, order).status, 200);
    until("it is destroyed", || {
        rig.doc(&doc.key).state == KeyState::Destroyed
    });
    swtpm.again();
    assert_eq!(rig.sign_text(&doc, b"text").code(), "key_not_active");
    let old = rig.verify_request(&doc.key, b"text", &before.signatures);
    assert!(old.is_ok_and(|answer| answer.ok), "it verifies for ever");
    rig.stop();
}
