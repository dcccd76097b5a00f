//! Derivation through the whole engine: what is derived, who may, what the log says.

use proptest::prelude::*;
use ron_crypto::hash::{hkdf_sha256, hmac_sha256, sha256};
use ron_custody::{Cause, Refusal};
use ron_http::Principal;
use ron_proto::kms::{
    Bytes, KeyPolicy, PayloadPolicy, PutKeyPolicy, RetireKey, SetAlias, UpdateKey,
};
use ron_proto::values::{Alg, Alias, Kid};
use serde_json::json;

use super::envelope::{leaf, logged_as, one, task, unwrap, why};
use super::lifecycle::{Timed, destroy};
use super::names::limited;
use super::{Rig, op_id, principal};
use crate::audit::entry::Logged;
use crate::audit::leaf::Op;
use crate::work::derive::{Derivation, Derived};
use crate::work::envelope::{EnvelopeOp, EnvelopeOutput, EnvelopeTask};
use crate::work::key_request::KeyRequest;
use crate::work::task_key::TaskKey;

const AGREES: [Alg; 3] = [Alg::EcdhP256, Alg::EcdhP384, Alg::EcdhX25519];

/// What is derived from `key` for `output`, with the public key of `peer`.
fn derivation(rig: &Rig, key: &Kid, peer: Option<&Kid>, output: Derived) -> EnvelopeTask {
    let public = |peer: &Kid| rig.doc(peer).versions[0].public_key.clone();
    let what = Derivation {
        peer_public: peer.map(public),
        salt: Some(Bytes::from(b"salt".as_slice())),
        info: Bytes::from(b"info".as_slice()),
        bytes: 32,
        output,
    };
    task(key, None, EnvelopeOp::Derive(Box::new(what)))
}

fn mac_of(rig: &Rig, key: &Kid, peer: Option<&Kid>) -> EnvelopeTask {
    let message = Bytes::from(b"message".as_slice());
    derivation(rig, key, peer, Derived::Hmac(message))
}

fn wrapped(rig: &Rig, key: &Kid, by: impl Into<TaskKey>) -> EnvelopeTask {
    derivation(rig, key, None, Derived::Wrap(by.into()))
}

fn done_by(
    rig: &Rig,
    caller: &Principal,
    task: EnvelopeTask,
) -> Result<Logged<EnvelopeOutput>, Refusal> {
    logged_as(rig, caller, task)
}

impl Rig {
    fn make(&self, alg: Alg, op: u128) -> Kid {
        self.create("app", alg, PayloadPolicy::Any, op).key
    }
}

#[test]
fn two_keys_share_a_secret_that_is_wrapped_or_makes_a_mac() {
    let rig = Rig::memory();
    let by = rig.make(Alg::Aes256Gcm, 100);
    for (n, alg) in (0..).zip(AGREES) {
        let [one_key, two_key, three] = [1, 2, 3].map(|k| rig.make(alg, 10 * n + k));
        let of = |key: &Kid, peer: &Kid| one(&rig, mac_of(&rig, key, Some(peer))).expect("a MAC");
        let mac = of(&one_key, &two_key).mac.expect("a MAC");
        assert_eq!(Some(&mac), of(&two_key, &one_key).mac.as_ref(), "{alg}");
        assert_ne!(Some(&mac), of(&one_key, &three).mac.as_ref(), "{alg}");

        let mut ask = derivation(
            &rig,
            &one_key,
            Some(&two_key),
            Derived::Wrap(by.clone().into()),
        );
        ask.aad = Some(Bytes::from(b"row 7".as_slice()));
        ask.context = Some("orders".to_owned());
        let made = done_by(&rig, &rig.caller.clone(), ask).expect("wrapped");
        let recorded = leaf(&rig, made.receipt().index);
        let made = made.output;
        assert_eq!(made.wrapped_by, Some(by.at(1)));
        assert_eq!(
            (made.version, &made.mac, &made.plaintext),
            (Some(1), &None, &None)
        );
        let text = made.ciphertext.expect("a ciphertext");
        let secret = one(&rig, unwrap(&by, Some(b"row 7"), &text)).expect("opens");
        let secret = secret.plaintext.expect("a secret");
        assert_eq!(hmac_sha256(secret.expose(), b"message")[..], mac.0);

        assert_eq!(recorded.op, Op::Derive);
        assert_eq!(recorded.key, Some(one_key.to_string()));
        let context = format!("wrapped by {by}; orders");
        assert_eq!(recorded.context, Some(context));
        let peer = rig.doc(&two_key).versions[0].public_key.clone();
        assert_eq!(recorded.input_sha256, Some(hex::encode(sha256(&peer.0))));
        assert_eq!(recorded.output_sha256, Some(hex::encode(sha256(&text.0))));
    }
    rig.stop();
}

#[test]
fn public_keys_that_are_no_points_are_refused_with_a_leaf() {
    let rig = Rig::memory();
    for (n, alg) in (0..).zip(AGREES) {
        let key = rig.make(alg, n);
        let peer = rig.doc(&key).versions[0].public_key.clone().0;
        let check = |peer: Option<Vec<u8>>| {
            let mut ask = mac_of(&rig, &key, None);
            if let EnvelopeOp::Derive(what) = &mut ask.what {
                what.peer_public = peer.map(Bytes);
            }
            let at = rig.engine.kms.log_size();
            let refused = one(&rig, ask).expect_err("no point");
            assert_eq!(refused.cause, Cause::BadRequest, "{alg}");
            assert!(refused.detail.contains("peer_public"), "{}", refused.detail);
            let recorded = leaf(&rig, at);
            assert_eq!(
                (recorded.op, recorded.result.as_str()),
                (Op::Derive, "bad_request")
            );
        };
        check(None);
        check(Some(Vec::new()));
        check(Some(peer[1..].to_vec()));
        check(Some([&peer[..], &[0]].concat()));
        check(Some(vec![0; peer.len()]));
        check(Some(vec![0xff; peer.len()]));
        if alg == Alg::EcdhX25519 {
            let mut one = vec![0; 32];
            one[0] = 1;
            check(Some(one.clone()));
            // The same point with the bit set that X25519 ignores.
            let mut high = peer.clone();
            high[31] |= 0x80;
            check(Some(high));
        } else {
            let mut off = peer.clone();
            *off.last_mut().expect("bytes") ^= 1;
            check(Some(off));
            let mut compressed = peer[..=peer.len() / 2].to_vec();
            compressed[0] = 2 + (peer[peer.len() - 1] & 1);
            check(Some(compressed));
        }
    }
    let hkdf = rig.make(Alg::HkdfSha256, 20);
    let other = rig.make(Alg::EcdhP256, 21);
    let with_peer = one(&rig, mac_of(&rig, &hkdf, Some(&other)));
    assert_eq!(why(with_peer), Some(Cause::BadRequest));
    for (op, alg) in [
        (30, Alg::Aes256Gcm),
        (31, Alg::HmacSha256),
        (32, Alg::EcdsaP256),
    ] {
        let key = rig.make(alg, op);
        assert_eq!(
            why(one(&rig, mac_of(&rig, &key, None))),
            Some(Cause::Unsupported)
        );
        let by = wrapped(&rig, &hkdf, key.clone());
        let expected = (!alg.wraps()).then_some(Cause::Unsupported);
        assert_eq!(why(one(&rig, by)), expected, "{alg}");
        let wrap = super::envelope::wrap(&hkdf, None, b"x");
        assert_eq!(why(one(&rig, wrap)), Some(Cause::Unsupported));
    }
    rig.stop();
}

#[test]
fn versions_that_would_unwrap_derive_when_they_are_named() {
    let timed = Timed::memory();
    let rig = &timed.rig;
    let key = rig.make(Alg::HkdfSha256, 1);
    let ask = |version: Option<u32>| {
        let mut ask = mac_of(rig, &key, None);
        ask.version = version;
        one(rig, ask).map(|made| (made.version, made.mac))
    };
    let first = ask(None).expect("derives");
    assert_eq!(first.0, Some(1));
    rig.rotated(&key);
    let second = ask(None).expect("derives");
    assert_eq!(second.0, Some(2));
    assert_ne!(first.1, second.1);
    assert_eq!(ask(Some(1)), Ok(first.clone()));
    assert_eq!(why(ask(Some(3))), Some(Cause::NotFound));
    assert_eq!(why(ask(Some(0))), Some(Cause::NotFound));
    let least = |min| {
        let update = UpdateKey {
            min_verify_version: Some(min),
            ..UpdateKey::default()
        };
        assert_eq!(rig.change(&key, KeyRequest::Update(update)).status, 200);
    };
    least(2);
    assert_eq!(why(ask(Some(1))), Some(Cause::BadRequest));
    least(1);
    let retire = KeyRequest::Retire(RetireKey::default());
    assert_eq!(rig.change(&key, retire).status, 200);
    assert_eq!(why(ask(None)), Some(Cause::KeyNotActive));
    assert_eq!(ask(Some(2)), Ok(second));
    assert_eq!(ask(Some(1)), Ok(first));
    assert_eq!(rig.change(&key, destroy(60)).status, 200);
    assert_eq!(ask(Some(1)).map(|made| made.0), Ok(Some(1)), "pending");
    timed.pass(61);
    assert_eq!(why(ask(Some(1))), Some(Cause::KeyNotActive));
    timed.rig.stop();
}

#[test]
fn the_key_that_wraps_is_used_only_by_callers_that_may_wrap_with_it() {
    let rig = Rig::memory();
    let (key, by) = (rig.make(Alg::HkdfSha256, 1), rig.make(Alg::Aes256Gcm, 2));
    let elsewhere = rig
        .create("other", Alg::Aes256Gcm, PayloadPolicy::Any, 3)
        .key;
    let check = |caller: &Principal, by: &Kid, want: Option<Cause>| {
        assert_eq!(
            why(done_by(&rig, caller, wrapped(&rig, &key, by.clone()))),
            want
        );
    };
    check(&limited(&["op=derive,wrap"]), &by, None);
    check(&limited(&["op=derive"]), &by, Some(Cause::Forbidden));
    check(&limited(&["key=ron/app"]), &by, None);
    check(
        &limited(&["key=ron/app"]),
        &elsewhere,
        Some(Cause::Forbidden),
    );
    check(&principal("other", None), &by, Some(Cause::Forbidden));
    let mut nobody = by.clone();
    nobody.id = uuid::Uuid::nil();
    check(&rig.caller.clone(), &nobody, Some(Cause::NotFound));

    // A policy decides about the wrapping key as about every wrap.
    let alias: Alias = "kek".parse().expect("an alias");
    let named = SetAlias {
        key: by.clone(),
        from: None,
        op_id: None,
    };
    assert_eq!(
        rig.change(&by, KeyRequest::SetAlias(alias.clone(), named))
            .status,
        200
    );
    let through_alias = || {
        let mut ask = wrapped(&rig, &key, ron_proto::values::KeyRef::from(alias.clone()));
        crate::api::look_up(&rig.engine.kms, &rig.caller, &mut ask);
        ask.op = Some((op_id(77), [7; 32]));
        done_by(&rig, &rig.caller.clone(), ask)
    };
    let made = through_alias().expect("wrapped");
    assert_eq!(made.output.wrapped_by, Some(by.at(1)));
    let size = rig.engine.kms.log_size();
    assert_eq!(
        through_alias().as_ref(),
        Ok(&made),
        "repeated, without a leaf"
    );
    assert_eq!(rig.engine.kms.log_size(), size);
    let policy: KeyPolicy = serde_json::from_value(json!({
        "allow": [{"who": {"principals": ["tester"]}, "ops": ["policy", "unwrap"]}]
    }))
    .expect("a policy");
    let put = PutKeyPolicy {
        policy: Some(policy),
        op_id: None,
    };
    let put = KeyRequest::PutPolicy(Box::new(put));
    assert_eq!(rig.change(&by, put).status, 200);
    check(&rig.caller.clone(), &by, Some(Cause::KeyPolicyDenied));
    assert_eq!(
        why(through_alias()),
        Some(Cause::KeyPolicyDenied),
        "nor is it repeated"
    );
    rig.stop();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Any salt, info, length and message: the answer is what the standards say of the imported secret.
    #[test]
    fn a_derivation_is_hkdf_and_a_mac_is_hmac(
        secret in proptest::collection::vec(any::<u8>(), 16..=128),
        salt in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
        info in proptest::collection::vec(any::<u8>(), 0..80),
        bytes in 16_usize..200,
        message in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let rig = Rig::memory();
        let key = super::transfer::imported(&rig, Alg::HkdfSha256, &secret);
        let what = Derivation {
            peer_public: None,
            salt: salt.clone().map(Bytes),
            info: Bytes(info.clone()),
            bytes,
            output: Derived::Hmac(Bytes(message.clone())),
        };
        let made = one(&rig, task(&key, None, EnvelopeOp::Derive(Box::new(what))));
        let mut derived = vec![0; bytes];
        hkdf_sha256(&salt.unwrap_or_default(), &secret, &info, &mut derived);
        let want = hmac_sha256(&derived, &message).to_vec();
        prop_assert_eq!(made.expect("derives").mac, Some(Bytes(want)));
        rig.stop();
    }
}
