//! Key policies and grants, at the operations that they decide about.

use ron_http::Principal;
use ron_proto::kms::{
    KeyPolicy, MakeGrant, PayloadPolicy, PutKeyPolicy, RetireGrant, RotateRequest, SignAnswer,
    SignRequest, UpdateKey, VerifyMode, VerifyRequest, When,
};
use ron_proto::values::{Alg, Kid};
use serde_json::{Value, json};

use super::lifecycle::leaves;
use super::{Rig, TestReply, op_id, principal};
use crate::audit::leaf::Op;
use crate::work::key_request::KeyRequest;

/// A service of tenant ron with these scopes.
fn named(name: &str, scopes: &[&str]) -> Principal {
    Principal {
        name: name.to_owned(),
        scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        ..principal("ron", None)
    }
}

fn policy(json: Value) -> KeyPolicy {
    serde_json::from_value(json).expect("a policy")
}

fn put(rig: &Rig, by: &Principal, key: &Kid, policy: impl Into<Option<KeyPolicy>>) -> TestReply {
    let policy = policy.into();
    let ask = PutKeyPolicy {
        policy,
        op_id: None,
    };
    rig.change_as(by, key, KeyRequest::PutPolicy(Box::new(ask)))
}

fn sign(rig: &Rig, by: &Principal, key: &Kid, context: Option<&str>) -> String {
    let request = SignRequest {
        context: context.map(str::to_owned),
        ..SignRequest::message(key, *b"m")
    };
    rig.sign_as(by, request).code()
}

fn grant(rig: &Rig, by: &Principal, key: &Kid, ask: MakeGrant) -> TestReply {
    rig.change_as(by, key, KeyRequest::MakeGrant(Box::new(ask)))
}

fn for_job(op: u128) -> MakeGrant {
    MakeGrant {
        grantee: "job".to_owned(),
        client: None,
        ops: vec![ron_proto::kms::KeyOp::Sign],
        when: When::default(),
        lifetime: "1h".parse().expect("a period"),
        op_id: Some(op_id(op)),
    }
}

/// `admin` changes the key, `web` signs invoices.
fn of_web() -> Value {
    json!({
        "allow": [
            {"who": {"principals": ["admin"]}, "ops": ["policy", "update", "grant"]},
            {"who": {"principals": ["web"]}, "ops": ["sign"], "when": {"context": ["invoice-*"]}}
        ]
    })
}

#[test]
fn a_policy_decides_about_every_operation() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::file(dir.path()).expect("starts");
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let admin = named("admin", &["kms:admin", "kms:sign"]);
    let (web, job) = (named("web", &["kms:sign"]), named("job", &["kms:sign"]));
    assert_eq!(sign(&rig, &job, &key, None), "ok");
    assert_eq!(put(&rig, &admin, &key, policy(of_web())).status, 200);
    let check = |rig: &Rig| {
        assert_eq!(sign(rig, &job, &key, None), "key_policy_denied");
        assert_eq!(sign(rig, &admin, &key, None), "key_policy_denied");
        assert_eq!(sign(rig, &web, &key, Some("invoice-7")), "ok");
        assert_eq!(sign(rig, &web, &key, Some("offer-7")), "key_policy_denied");
        let rotate = KeyRequest::Rotate(RotateRequest::default());
        assert_eq!(
            rig.change_as(&admin, &key, rotate).code(),
            "key_policy_denied"
        );
        let retired = KeyRequest::Update(UpdateKey {
            description: Some("invoices".to_owned()),
            ..UpdateKey::default()
        });
        assert_eq!(
            rig.change_as(&web, &key, retired).code(),
            "key_policy_denied"
        );
        assert_eq!(
            put(rig, &web, &key, None::<KeyPolicy>).code(),
            "key_policy_denied"
        );
    };
    check(&rig);
    // Signatures verify for those who may not sign.
    let made: SignAnswer = {
        let request = SignRequest {
            context: Some("invoice-8".to_owned()),
            ..SignRequest::message(&key, *b"m")
        };
        rig.sign_as(&web, request).json()
    };
    let request = VerifyRequest {
        key: key.clone().into(),
        version: None,
        message: Some(b"m".to_vec().into()),
        digest: None,
        prehash: None,
        signatures: made.signatures,
        mode: VerifyMode::And,
    };
    assert!(rig.engine.kms.verify(&job, request).expect("an answer").ok);
    rig.stop();
    let rig = Rig::file(dir.path()).expect("starts again");
    check(&rig);
    assert_eq!(put(&rig, &admin, &key, None::<KeyPolicy>).status, 200);
    assert_eq!(sign(&rig, &job, &key, None), "ok");
    let changes = leaves(&rig, &key);
    let changes = changes.iter().filter(|leaf| leaf.op == Op::KeyPolicy);
    let results: Vec<_> = changes.map(|leaf| leaf.result.as_str()).collect();
    assert_eq!(
        results,
        ["ok", "key_policy_denied", "key_policy_denied", "ok"]
    );
    rig.stop();
}

#[test]
fn a_policy_that_nobody_could_change_again_is_refused() {
    let rig = Rig::memory();
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let admin = named("admin", &["kms:admin"]);
    let check = |json: Value, code: &str| {
        assert_eq!(
            put(&rig, &admin, &key, policy(json.clone())).code(),
            code,
            "{json}"
        );
    };
    check(json!({"allow": []}), "key_policy_denied");
    check(
        json!({"allow": [{"who": {"principals": ["web"]}, "ops": ["policy"]}]}),
        "key_policy_denied",
    );
    check(
        json!({"allow": [{"ops": ["policy"]}], "deny": [{"ops": ["policy"]}]}),
        "key_policy_denied",
    );
    check(json!({"allow": [{"ops": ["read"]}]}), "bad_request");
    check(json!({"allow": [{"ops": ["policy"]}]}), "ok");
    rig.stop();
}

#[test]
fn a_repeated_id_gives_no_answer_to_those_who_may_not_sign_by_now() {
    let rig = Rig::memory();
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let (admin, job) = (named("admin", &["kms:admin"]), named("job", &["kms:sign"]));
    let request = SignRequest {
        op_id: Some(op_id(9)),
        ..SignRequest::message(&key, *b"m")
    };
    assert_eq!(rig.sign_as(&job, request.clone()).status, 200);
    assert_eq!(put(&rig, &admin, &key, policy(of_web())).status, 200);
    assert_eq!(rig.sign_as(&job, request).code(), "key_policy_denied");
    rig.stop();
}

#[test]
fn a_grant_lives_as_long_as_its_maker_may_and_until_it_is_retired() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::file(dir.path()).expect("starts");
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let admin = named("admin", &["kms:admin", "kms:sign"]);
    let (job, other) = (named("job", &["kms:sign"]), named("other", &["kms:sign"]));
    let signs =
        json!({"allow": [{"who": {"principals": ["admin"]}, "ops": ["policy", "grant", "sign"]}]});
    assert_eq!(grant(&rig, &admin, &key, for_job(20)).code(), "bad_request");
    assert_eq!(put(&rig, &admin, &key, policy(signs.clone())).status, 200);
    assert_eq!(
        grant(&rig, &job, &key, for_job(21)).code(),
        "key_policy_denied"
    );
    let no_scope = named("admin", &["kms:admin"]);
    assert_eq!(
        grant(&rig, &no_scope, &key, for_job(22)).code(),
        "forbidden"
    );
    for ops in [
        vec![],
        vec![ron_proto::kms::KeyOp::Destroy],
        vec![ron_proto::kms::KeyOp::Grant],
    ] {
        let ask = MakeGrant { ops, ..for_job(23) };
        assert_eq!(grant(&rig, &admin, &key, ask).code(), "bad_request");
    }
    let long = MakeGrant {
        lifetime: "91d".parse().expect("a period"),
        ..for_job(24)
    };
    assert_eq!(grant(&rig, &admin, &key, long).code(), "bad_request");
    assert_eq!(grant(&rig, &admin, &key, for_job(30)).status, 200);
    assert_eq!(grant(&rig, &admin, &key, for_job(31)).status, 200);
    assert_eq!(sign(&rig, &job, &key, None), "ok");
    assert_eq!(sign(&rig, &other, &key, None), "key_policy_denied");
    rig.stop();

    let rig = Rig::file(dir.path()).expect("starts again");
    assert_eq!(sign(&rig, &job, &key, None), "ok");
    // The maker may not sign any more: neither may the grantee.
    let only_policy =
        json!({"allow": [{"who": {"principals": ["admin"]}, "ops": ["policy", "grant"]}]});
    assert_eq!(put(&rig, &admin, &key, policy(only_policy)).status, 200);
    assert_eq!(sign(&rig, &job, &key, None), "key_policy_denied");
    assert_eq!(put(&rig, &admin, &key, policy(signs)).status, 200);
    assert_eq!(sign(&rig, &job, &key, None), "ok");
    let retire = |by: &Principal, id: u128| {
        let request = KeyRequest::RetireGrant(op_id(id), RetireGrant::default());
        rig.change_as(by, &key, request).code()
    };
    assert_eq!(retire(&other, 30), "forbidden");
    assert_eq!(retire(&job, 30), "ok");
    assert_eq!(retire(&job, 30), "not_found");
    assert_eq!(sign(&rig, &job, &key, None), "ok");
    assert_eq!(retire(&named("third", &["kms:admin"]), 31), "ok");
    assert_eq!(sign(&rig, &job, &key, None), "key_policy_denied");
    let ops: Vec<_> = leaves(&rig, &key)
        .iter()
        .filter(|leaf| matches!(leaf.op, Op::Grant | Op::GrantRetire) && leaf.result == "ok")
        .map(|leaf| leaf.op)
        .collect();
    assert_eq!(
        ops,
        [Op::Grant, Op::Grant, Op::GrantRetire, Op::GrantRetire]
    );
    rig.stop();
}
