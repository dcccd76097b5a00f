//! The leaves of an issuer's revocation log: an event of the feed is a leaf together with what it
//! commits to. Pure.
//!
//! A leaf hides its target, actor and reason behind salted hashes, so that the log can be shown to
//! auditors. The feed has the target and its salt, and the commitment to actor and reason: enough to
//! compute the leaf.

use ron_crypto::hash::sha256;
use ron_proto::kms::Bytes;
use ron_proto::passport::{RevocationEvent, Revoked, TTL_S_MAX};
use ron_tlog::tree::{Hash, leaf_hash};
use serde::Serialize;

/// Version of the leaves.
const LEAF_VERSION: u64 = 1;
/// Bytes of a salt: too many to guess.
pub const SALT_BYTES: usize = 16;

/// Identity of an issuer's revocation log, and the name of the key that signs its checkpoints.
pub fn origin(issuer: &str) -> String {
    format!("{issuer}/revocations")
}

/// A leaf. **The fields must stand in alphabetical order**: with ASCII names and integers only,
/// `serde_json` then writes the canonical form (RFC 8785) directly.
#[derive(Serialize)]
struct Leaf {
    by: Bytes,
    /// Unix seconds after which no valid token can match; absent for events that stay in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    kind: &'static str,
    target: Bytes,
    /// Unix milliseconds.
    ts: u64,
    v: u64,
}

/// The bytes of an event's leaf.
pub fn leaf(event: &RevocationEvent) -> Vec<u8> {
    let expires = match &event.revoked {
        Revoked::Jti { until, .. } => Some(*until),
        Revoked::Subject { issued_until, .. } => Some(issued_until.saturating_add(TTL_S_MAX)),
        Revoked::Kid { .. }
        | Revoked::Epoch { .. }
        | Revoked::Keys { .. }
        | Revoked::Policy { .. } => None,
    };
    let leaf = Leaf {
        by: event.by.clone(),
        expires,
        kind: event.revoked.kind(),
        target: commitment(
            "ron-revocation-target/v1",
            event.salt.as_slice(),
            &event.revoked,
        ),
        ts: event.ts.0,
        v: LEAF_VERSION,
    };
    serde_json::to_vec(&leaf).expect("a leaf is plain JSON")
}

/// The hash of an event's leaf in the tree.
pub fn hash(event: &RevocationEvent) -> Hash {
    leaf_hash(&leaf(event))
}

/// The commitment to actor and reason.
pub fn by(salt: &[u8; SALT_BYTES], actor: &str, reason: &str) -> Bytes {
    #[derive(Serialize)]
    struct By<'a> {
        actor: &'a str,
        reason: &'a str,
    }
    commitment("ron-revocation-by/v1", salt, &By { actor, reason })
}

/// SHA-256 of the purpose, a zero byte, the salt after its length in one byte, and the JSON.
fn commitment(purpose: &str, salt: &[u8], content: &impl Serialize) -> Bytes {
    let mut input = purpose.as_bytes().to_vec();
    input.push(0);
    // A longer salt is cut; the feed of a faithful issuer has none.
    let salt = &salt[..salt.len().min(usize::from(u8::MAX))];
    input.push(salt.len() as u8);
    input.extend_from_slice(salt);
    serde_json::to_writer(&mut input, content).expect("plain JSON");
    Bytes(sha256(&input).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::{Timestamp, jcs};
    use serde_json::{Value, json};

    fn event(revoked: Revoked) -> RevocationEvent {
        RevocationEvent {
            seq: 1,
            ts: Timestamp(1_700_000_000_123),
            revoked,
            salt: Bytes(vec![7; SALT_BYTES]),
            by: by(&[8; SALT_BYTES], "operator", "leaked"),
        }
    }

    #[test]
    fn a_leaf_is_canonical_and_shows_no_target_actor_or_reason() {
        let leaf = leaf(&event(Revoked::Subject {
            subject_ref: "alice".into(),
            issued_until: 1_700_000_000,
        }));
        let text = String::from_utf8(leaf.clone()).unwrap();
        let value: Value = serde_json::from_slice(&leaf).unwrap();
        assert_eq!(jcs::canonicalize(&value), leaf, "{text}");
        assert_eq!(
            (&value["kind"], &value["expires"], &value["ts"]),
            (
                &json!("subject"),
                &json!(1_700_003_600),
                &json!(1_700_000_000_123_u64)
            )
        );
        for hidden in ["alice", "operator", "leaked"] {
            assert!(!text.contains(hidden), "{text}");
        }
    }

    #[test]
    fn every_part_of_an_event_changes_its_leaf() {
        let first = event(Revoked::Kid { kid: "k".into() });
        let all: [&dyn Fn(&mut RevocationEvent); 4] = [
            &|e| e.ts.0 += 1,
            &|e| e.revoked = Revoked::Kid { kid: "l".into() },
            &|e| e.salt.0[0] ^= 1,
            &|e| e.by = by(&[8; SALT_BYTES], "operator", "lost"),
        ];
        for change in all {
            let mut changed = first.clone();
            change(&mut changed);
            assert_ne!(leaf(&changed), leaf(&first), "{changed:?}");
        }
    }

    #[test]
    fn the_form_of_the_leaf_is_fixed() {
        let leaf = leaf(&event(Revoked::Jti {
            jti: "1.2.x".into(),
            until: 9_000,
        }));
        assert_eq!(
            String::from_utf8(leaf).unwrap(),
            "{\"by\":\"F54hjZyK8w_cEHh1B5eSq4EgWc3J7yLMXhixoNYufMY\",\"expires\":9000,\"kind\":\"jti\",\"target\":\"QD8g8WUQjGhKu_XWzfcew1Fct1ASEw74yw_qPNWqUMo\",\"ts\":1700000000123,\"v\":1}"
        );
    }
}
