//! Attestations and birth certificates of local keys: they verify, and changed ones do not.

use ron_http::Response;
use ron_proto::kms::{
    AttestAnswer, AttestRequest, BirthCertificate, KeyDoc, PayloadPolicy, RotateRequest,
};
use ron_proto::values::Alg;

use super::{Rig, TestReply, memory_settings, principal};
use crate::attest::verify::{Expect, verify};
use crate::work::SignJob;
use crate::work::attest::AttestTask;
use crate::work::operation::one;

impl Rig {
    pub fn attest(&self, doc: &KeyDoc, request: AttestRequest) -> TestReply {
        let (call, waiter) = self.call_context(&self.caller);
        let task = AttestTask {
            key: doc.key.clone().into(),
            request,
        };
        let what = one(task, |answer| {
            Ok(Response::json(200, &AttestAnswer::from(answer?)))
        });
        self.engine.kms.submit_sign(SignJob { call, what });
        Self::got(waiter)
    }

    /// The evidence and the proof of the key's making, as `ron kms attest` puts them together.
    pub fn certificate(&self, doc: &KeyDoc, nonce: &[u8]) -> BirthCertificate {
        let request = AttestRequest {
            version: None,
            nonce: nonce.to_vec().into(),
        };
        let evidence: AttestAnswer = self.attest(doc, request).json();
        let reader = self.engine.reader.as_ref().expect("a log");
        let birth = evidence.statement.birth;
        let end = ron_kernel::Deadline::within(super::WAIT);
        let proof = loop {
            match reader.proof(birth) {
                Ok(proof) => break proof,
                Err(error) => assert!(!end.expired(), "{error}"),
            }
            std::thread::yield_now();
        };
        BirthCertificate {
            v: 1,
            evidence,
            proof,
        }
    }
}

#[test]
fn a_birth_certificate_verifies_offline_and_no_other_does() {
    let rig = Rig::start(memory_settings(), None).expect("starts");
    let doc = rig.create("issuer", Alg::Ed25519, PayloadPolicy::Digest, 1);
    let other = rig.create("issuer", Alg::EcdsaP256, PayloadPolicy::Any, 2);
    let good = rig.certificate(&doc, b"fresh");
    let expect = Expect {
        vkey: Some(good.evidence.vkey.clone()),
        nonce: Some(b"fresh".to_vec()),
        attestation_key: None,
    };
    let birth = verify(&good, &expect).expect("verifies");
    assert_eq!((&birth.key, birth.version), (&doc.key, 1));
    assert!(birth.leaf < birth.log_size && birth.quoted.is_none());
    assert_eq!(good.evidence.class, "none");
    let second = rig.certificate(&other, b"fresh");
    let check = |what: &str, change: &dyn Fn(&mut BirthCertificate)| {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(verify(&bad, &expect).is_err(), "{what}");
    };
    check("another key", &|c| {
        c.evidence.statement.key = other.key.clone();
    });
    check("another version", &|c| {
        c.evidence.statement.version = 2;
    });
    check("another public key", &|c| {
        c.evidence.statement.public_key = second.evidence.statement.public_key.clone();
    });
    check("another policy", &|c| {
        c.evidence.statement.payload = PayloadPolicy::Any;
    });
    check("another time", &|c| {
        c.evidence.statement.said.0 += 1;
    });
    check("another signature", &|c| {
        c.evidence.signature.0[0] ^= 1;
    });
    check("another leaf", &|c| {
        c.evidence.birth_leaf = second.evidence.birth_leaf.clone();
    });
    check("another proof", &|c| {
        c.proof = second.proof.clone();
    });
    check("a claim of a TPM", &|c| {
        c.evidence.statement.backend = ron_proto::kms::KeyBackend::Tpm;
    });
    check("another class", &|c| {
        c.evidence.class = "tpm2-certify".into();
    });
    check("another log", &|c| {
        c.evidence.vkey = c.evidence.vkey.replace('+', "x+");
    });
    let stale = Expect {
        nonce: Some(b"later".to_vec()),
        ..expect.clone()
    };
    assert!(verify(&good, &stale).is_err());
    rig.stop();
}

#[test]
fn evidence_is_refused_where_the_key_would_be() {
    let mut rig = Rig::start(memory_settings(), None).expect("starts");
    let doc = rig.create("issuer", Alg::Ed25519, PayloadPolicy::Any, 1);
    let of = |version, nonce: Vec<u8>| AttestRequest {
        version,
        nonce: nonce.into(),
    };
    assert_eq!(rig.attest(&doc, of(Some(2), vec![])).code(), "not_found");
    assert_eq!(
        rig.attest(&doc, of(None, vec![0; 65])).code(),
        "bad_request"
    );
    rig.rotate(&doc.key, RotateRequest::default());
    let old: AttestAnswer = rig.attest(&doc, of(Some(1), vec![])).json();
    let new: AttestAnswer = rig.attest(&doc, of(None, vec![])).json();
    assert_eq!((old.statement.version, new.statement.version), (1, 2));
    assert_ne!(old.statement.public_key, new.statement.public_key);
    rig.caller = principal("other", None);
    assert_eq!(rig.attest(&doc, of(None, vec![])).code(), "forbidden");
    let counted = |result| rig.gauge(&format!("ron_kms_attest_total{{result=\"{result}\"}} "));
    assert_eq!(
        (counted("ok"), counted("refused"), counted("no_key")),
        (2, 3, 0)
    );
    rig.stop();
}
