//! The same requests to local keys and to keys in SoftHSM and in the TPM get the same answers, except for what must
//! differ: names, signatures, times, backends.

use std::path::PathBuf;

use ron_proto::kms::{
    Digest, DigestAlg, KeyBackend, NotePolicy, PayloadPolicy, RotateRequest, SignBatch, SignItem,
    SignRequest,
};
use ron_proto::values::Alg;

use super::super::{Rig, create_request, op_id, settings};
use super::swtpm::{Swtpm, flags as tpm_flags};
use super::{in_child, softhsm, var};

/// The answers to a sequence of requests, without the parts that differ between any two keys.
fn transcript(rig: &Rig, backend: KeyBackend, salt: u128) -> Vec<String> {
    let mut said = Vec::new();
    let mut say = |what: &str, got: String| said.push(format!("{what}: {got}"));
    let request = |payload, n| ron_proto::kms::CreateKey {
        backend: Some(backend),
        ..create_request("same", Alg::EcdsaP256, payload, salt + n)
    };
    let any = rig
        .create_as(&rig.caller, request(PayloadPolicy::Any, 1))
        .json::<ron_proto::kms::KeyDoc>();
    say(
        "create",
        format!(
            "{} {} {:?} {}",
            any.head, any.min_verify_version, any.state, any.exportable
        ),
    );
    let again = rig.create_as(&rig.caller, request(PayloadPolicy::Any, 1));
    say(
        "create again",
        format!(
            "{} {}",
            again.status,
            again.json::<ron_proto::kms::KeyDoc>().key == any.key
        ),
    );
    let other = rig.create_as(&rig.caller, request(PayloadPolicy::Digest, 1));
    say("same op_id, other body", other.code());
    let mut sign = |what: &str, request: SignRequest| {
        let got = rig.sign(request.clone());
        let shape = if got.status == 200 {
            let answer = got.json::<ron_proto::kms::SignAnswer>();
            let message = request.message.clone().map(|m| m.0).unwrap_or_default();
            let ok = rig
                .verify(&any.key, Some(answer.version), &message, &answer.signatures)
                .ok;
            let lengths: Vec<usize> = answer
                .signatures
                .iter()
                .map(|s| s.signature.0.len())
                .collect();
            format!("v{} {lengths:?} {ok}", answer.version)
        } else {
            got.code()
        };
        said.push(format!("{what}: {} {shape}", got.status));
    };
    let message = |text: &[u8]| SignRequest::message(any.key.clone(), text);
    sign("message", message(b"text"));
    sign("empty", message(b""));
    sign("64 KiB", message(&vec![7; 64 * 1024]));
    sign("too large", message(&vec![7; 64 * 1024 + 1]));
    sign("imitates a digest", message(b"ron-kms/v1/digest\0x"));
    sign(
        "digest",
        SignRequest::digest(any.key.clone(), Digest::new(DigestAlg::Sha256, &[1; 32])),
    );
    sign(
        "neither",
        SignRequest {
            message: None,
            ..message(b"")
        },
    );
    sign(
        "pinned head",
        SignRequest {
            version: Some(1),
            ..message(b"x")
        },
    );
    sign(
        "pinned future",
        SignRequest {
            version: Some(2),
            ..message(b"x")
        },
    );
    let with_op = SignRequest {
        op_id: Some(op_id(salt + 50)),
        ..message(b"op")
    };
    let (one, two) = (rig.sign(with_op.clone()), rig.sign(with_op.clone()));
    let said_again = one.body == two.body;
    let changed = rig.sign(SignRequest {
        message: Some(b"other".to_vec().into()),
        ..with_op
    });
    let rotated = rig.rotate(
        &any.key,
        RotateRequest {
            expected_head: Some(1),
            op_id: None,
            ..RotateRequest::default()
        },
    );
    let stale = rig.rotate(
        &any.key,
        RotateRequest {
            expected_head: Some(1),
            op_id: None,
            ..RotateRequest::default()
        },
    );
    let old = rig.sign(SignRequest {
        version: Some(1),
        ..message(b"x")
    });
    let item = |text: &[u8]| SignItem {
        message: Some(text.to_vec().into()),
        ..SignItem::default()
    };
    let batch = rig.sign_batch(SignBatch {
        key: Some(any.key.clone().into()),
        version: None,
        items: vec![item(b"a"), item(&[0; 70_000]), item(b"b")],
    });
    let results: Vec<String> = batch
        .results
        .iter()
        .map(|r| {
            r.error
                .as_ref()
                .map_or_else(|| "signed".to_owned(), |e| e.code.clone())
        })
        .collect();
    said.push(format!(
        "{said_again} {} {} {} {} {results:?}",
        changed.code(),
        rotated.status,
        stale.code(),
        old.code()
    ));
    let origin = "same.example/log";
    let note = PayloadPolicy::Note(NotePolicy {
        origin: origin.into(),
    });
    let log = rig
        .create_as(&rig.caller, request(note, 2))
        .json::<ron_proto::kms::KeyDoc>();
    for (size, root) in [(5, 1_u8), (5, 1), (4, 1), (9, 2), (5, 2), (9, 3)] {
        use base64::Engine as _;
        let root = base64::engine::general_purpose::STANDARD.encode([root; 32]);
        let text = format!("{origin}\n{size}\n{root}\n");
        let got = rig.sign(SignRequest::message(log.key.clone(), text.into_bytes()));
        said.push(format!("checkpoint {size}: {} {}", got.status, got.code()));
    }
    said
}

#[test]
fn the_same_requests_get_the_same_answers() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::differential::the_same_requests_get_the_same_answers";
    let env = || {
        let mut env = softhsm::token(dir.path());
        env.push(("TSS2_LOG".into(), "all+NONE".into()));
        env
    };
    if !in_child(name, env) {
        return;
    }
    let dir = PathBuf::from(var("RON_DIR"));
    let swtpm = Swtpm::start(&dir.join("tpm"));
    let mut flags = softhsm::flags(&dir, softhsm::MODULE);
    flags.extend(
        tpm_flags(&dir, swtpm.port)
            .into_iter()
            .filter(|(k, _)| k == "tpm.tcti"),
    );
    let flags: Vec<_> = flags
        .iter()
        .map(|(k, v)| {
            (
                k.as_str(),
                if k == "sign_deadline" {
                    "5s"
                } else {
                    v.as_str()
                },
            )
        })
        .collect();
    let rig = Rig::start(settings(&flags), None).expect("starts");
    let file = transcript(&rig, KeyBackend::File, 1000);
    assert!(
        file.len() > 15 && file.iter().any(|line| line.contains("true")),
        "{file:#?}"
    );
    assert_eq!(transcript(&rig, KeyBackend::Pkcs11, 2000), file);
    assert_eq!(transcript(&rig, KeyBackend::Tpm, 3000), file);
    rig.stop();
}
