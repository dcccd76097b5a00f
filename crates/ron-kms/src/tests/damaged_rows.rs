//! Damaged rows of the key store beside those of keys: indexes of leaves, and operations.

use ron_proto::kms::{AttestRequest, Digest, DigestAlg, PayloadPolicy, SignRequest};
use ron_proto::values::Alg;

use super::lifecycle::eventually;
use super::store::{copy, database, with_keys};
use super::{Rig, create_request, signed};

/// Also beyond the end of the log, where an index that is whole says that leaves were removed.
#[test]
fn a_changed_index_of_a_leaf_takes_only_its_version_out_of_use() {
    let request = AttestRequest {
        version: None,
        nonce: vec![7; 32].into(),
    };
    for index in ["birth + 1", "1000000", "NULL"] {
        let dir = tempfile::tempdir().expect("dir");
        let docs = with_keys(dir.path());
        let kid = &docs[0].key;
        let change =
            format!("UPDATE versions SET birth = {index} WHERE kid = '{kid}' AND number = 2");
        database(dir.path()).execute_batch(&change).expect("set");
        let rig = Rig::file(dir.path()).expect("starts");
        let why = rig.ready.causes()[0].2.clone();
        assert!(why.contains(&format!("{kid}#v2 are damaged")), "{why}");
        let digest = Digest::new(DigestAlg::Blake3, &[7; 32]);
        let refused = rig.sign(SignRequest::digest(kid.clone(), digest));
        assert_eq!(refused.code(), "quarantined");
        let refused = rig.attest(&rig.doc(kid), request.clone());
        assert_eq!(refused.code(), "quarantined");
        signed(&rig.sign(SignRequest::message(docs[1].key.clone(), *b"x")));
        rig.rotated(kid);
        rig.stop();
    }
}

#[test]
fn a_damaged_record_of_an_operation_is_named_and_never_taken_for_another() {
    let dir = tempfile::tempdir().expect("dir");
    with_keys(dir.path());
    let again = |rig: &Rig| {
        let request = create_request("manifest", Alg::EcdsaP256, PayloadPolicy::Any, 2);
        rig.create_as(&rig.caller, request)
    };
    let id = {
        let sql = "SELECT op_id FROM ops WHERE answer LIKE '%manifest%'";
        database(dir.path()).query_row(sql, [], |r| r.get::<_, String>(0))
    };
    let id = id.expect("stored");
    for change in [
        "body = zeroblob(32)",
        "body = x'00'",
        "created = created - 1",
        "answer = replace(answer, 'manifest', 'manifesu')",
        "answer = NULL",
        "mac = zeroblob(32)",
    ] {
        let copied = tempfile::tempdir().expect("dir");
        copy(dir.path(), copied.path());
        let sql = format!("UPDATE ops SET {change} WHERE op_id = '{id}'");
        database(copied.path()).execute_batch(&sql).expect("set");
        let rig = Rig::file(copied.path()).expect("starts");
        eventually(change, || rig.ready.snapshot().degraded == ["operations"]);
        let why = rig.ready.causes()[0].2.clone();
        assert!(
            why.contains(&format!("/{id} are damaged")),
            "{change}: {why}"
        );
        let refused = again(&rig);
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "answers_lost"),
            "{change}"
        );
        // Other operations are not affected, and the damaged one is forgotten after its day.
        rig.create("other", Alg::Ed25519, PayloadPolicy::Any, 9);
        rig.stop();
    }
    let rig = Rig::file(dir.path()).expect("starts");
    assert_eq!(again(&rig).status, 201, "as before");
    rig.stop();
}
