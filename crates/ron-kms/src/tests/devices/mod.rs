//! Engines with a real SoftHSM2 token and a real swtpm, which the tests start in directories of their
//! own. Those with a TPM need the feature `tpm`: `cargo xtask devices`.
//!
//! A module reads its environment once per process, so each test runs again in a child process with
//! its own: [`in_child`].

#![allow(clippy::disallowed_methods)] // tests start programs and wait for them

mod adopt;
mod custody;
#[cfg(feature = "tpm")]
mod differential;
mod secrets;
mod softhsm;
#[cfg(feature = "tpm")]
mod swtpm;
#[cfg(feature = "tpm")]
mod swtpm_counter;
mod tokens;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ron_crypto::ecdsa::to_der;
use ron_custody::Refusal;
use ron_http::{Body, Response};
use ron_kernel::{Deadline, ReplyWaiter};
use ron_proto::kms::{
    CreateKey, KeyBackend, KeyDoc, PayloadPolicy, SignAnswer, SignRequest, Signature, VerifyAnswer,
    VerifyMode, VerifyRequest,
};
use ron_proto::values::{Alg, Kid};

use super::{Rig, TestReply, create_request};
use crate::work::SignJob;
use crate::work::operation::one;
use crate::work::sign::SignTask;

/// Set in the child process.
const CHILD: &str = "RON_KMS_DEVICE_TEST";

/// True in the child process. In the parent: runs the test `name` again with `env`, and requires that it passes.
pub fn in_child(name: &str, env: impl FnOnce() -> Vec<(String, String)>) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let out = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .envs(env())
        .output()
        .expect("runs");
    assert!(
        out.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("1 passed"), "{name} is not a test: {said}");
    false
}

/// An environment variable that the parent has set.
pub fn var(name: &str) -> String {
    std::env::var(name).expect("set by the parent")
}

/// Runs a program that must succeed; returns its output.
pub fn run(command: &mut Command) -> String {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}; run scripts/setup.sh"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{command:?} {}\n{text}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !holds() {
        assert!(Instant::now() < end, "not within 15 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Rig {
    pub fn create_in(&self, backend: KeyBackend, alg: Alg, op: u128) -> KeyDoc {
        let got = self.create_as(&self.caller, in_backend(backend, alg, op));
        got.json()
    }

    pub fn sign_text(&self, doc: &KeyDoc, text: &[u8]) -> TestReply {
        self.sign(SignRequest::message(doc.key.clone(), text))
    }

    /// As [`Rig::send_sign`], for a caller with less patience.
    pub fn send_sign_by(&self, request: SignRequest, deadline: Deadline) -> ReplyWaiter<Response> {
        let (mut call, waiter) = self.call_context(&self.caller);
        call.deadline = deadline;
        let what = one(SignTask::from_request(request), |answer| {
            answer.map(SignAnswer::from)
        });
        self.engine.kms.submit_sign(SignJob { call, what });
        waiter
    }

    /// The `Retry-After` of a refused signature.
    pub fn retry_after(&self, doc: &KeyDoc) -> Option<u32> {
        let request = SignRequest::message(doc.key.clone(), *b"text");
        let waiter = self.send_sign(&self.caller, request);
        let response = waiter
            .wait(Deadline::within(super::WAIT))
            .expect("answered");
        match response.body {
            Body::Problem(problem) => problem.retry_after_s,
            _ => None,
        }
    }

    pub fn verify_request(
        &self,
        key: &Kid,
        message: &[u8],
        signatures: &[Signature],
    ) -> Result<VerifyAnswer, Refusal> {
        let request = VerifyRequest {
            key: key.clone().into(),
            version: None,
            message: Some(message.to_vec().into()),
            digest: None,
            prehash: None,
            signatures: signatures.to_vec(),
            mode: VerifyMode::And,
        };
        self.engine.kms.verify(&self.caller, request)
    }
}

pub fn in_backend(backend: KeyBackend, alg: Alg, op: u128) -> CreateKey {
    CreateKey {
        backend: Some(backend),
        ..create_request("device", alg, PayloadPolicy::Any, op)
    }
}

/// Checks a signature of the head version with OpenSSL.
pub fn openssl_agrees(dir: &Path, doc: &KeyDoc, text: &[u8], answer: &SignAnswer) {
    let head = doc.head_version().expect("a head");
    assert_eq!(head.version, answer.version);
    let raw = answer.signatures[0].signature.as_slice();
    let path = |name: &str| dir.join(name);
    std::fs::write(path("key.pem"), &head.public_key_pem).expect("writes");
    std::fs::write(path("text"), text).expect("writes");
    std::fs::write(path("sig.raw"), raw).expect("writes");
    let mut command = Command::new("openssl");
    if doc.key.alg == Alg::Ed25519 {
        std::fs::write(path("sig"), raw).expect("writes");
        command.args(["pkeyutl", "-verify", "-pubin", "-rawin", "-inkey"]);
        command
            .arg(path("key.pem"))
            .arg("-in")
            .arg(path("text"))
            .arg("-sigfile")
            .arg(path("sig"));
    } else {
        let sig = if doc.key.alg.is_rsa() {
            raw.to_vec()
        } else {
            to_der(raw)
        };
        std::fs::write(path("sig"), sig).expect("writes");
        let hash = match doc.key.alg {
            Alg::EcdsaP384 => "-sha384",
            _ => "-sha256",
        };
        command.args(["dgst", hash]);
        if doc.key.alg.is_rsa() {
            command.args(["-sigopt", "rsa_padding_mode:pss"]);
            command.args(["-sigopt", "rsa_pss_saltlen:digest"]);
        }
        command
            .arg("-verify")
            .arg(path("key.pem"))
            .arg("-signature")
            .arg(path("sig"))
            .arg(path("text"));
    }
    run(&mut command);
}
