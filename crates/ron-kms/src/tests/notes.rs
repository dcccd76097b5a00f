//! Which policy notes a key of payload policy `note` signs.

use ron_proto::kms::{JwtPolicy, KeyDoc, NotePolicy, PayloadPolicy, SignRequest};
use ron_proto::values::Alg;

use super::Rig;

#[test]
fn a_policy_note_lists_only_keys_that_sign_tokens_of_its_issuer_here() {
    let rig = Rig::memory();
    let jwt = |iss: &str| {
        PayloadPolicy::Jwt(JwtPolicy {
            typ: vec!["at+jwt".into()],
            iss: iss.into(),
            aud: vec!["a".into()],
            max_ttl_s: 60,
        })
    };
    let ours = rig.create("issuer", Alg::Ed25519, jwt("http://i"), 1);
    let other = rig.create("issuer", Alg::Ed25519, jwt("http://other"), 2);
    let any = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 3);
    let origin = "http://i/policy".to_owned();
    let policy = PayloadPolicy::Note(NotePolicy { origin });
    let notes = rig.create("note", Alg::Ed25519, policy, 4);
    let kid = |doc: &KeyDoc| {
        doc.versions[0]
            .jwk
            .as_ref()
            .expect("it has one")
            .kid
            .clone()
    };
    let signs = |kids: &[String]| {
        let mut text = "http://i/policy\nversion 1\nissuer http://i\n".to_owned();
        for kid in kids {
            text = format!("{text}key {kid} EdDSA 1 - good\n");
        }
        let request = SignRequest::message(notes.key.clone(), text.into_bytes());
        rig.sign(request).status
    };
    let first = kid(&ours);
    assert_eq!(signs(&[]), 200);
    assert_eq!(signs(std::slice::from_ref(&first)), 200);
    rig.rotated(&ours.key);
    assert_eq!(signs(std::slice::from_ref(&first)), 200, "an older version");
    for outsider in [kid(&other), kid(&any), kid(&notes), "x".to_owned()] {
        assert_eq!(signs(&[first.clone(), outsider.clone()]), 403, "{outsider}");
    }
}
