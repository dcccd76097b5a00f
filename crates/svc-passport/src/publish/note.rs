//! The text of the policy note: the facts that verifiers need, as lines of words, in a fixed order. Pure.

use std::fmt::Write as _;

use ron_auth::RevocationView;
pub use ron_auth::policy_note::origin;

use ron_tlog::note::VerifierKey;

use crate::keys::IssuerKeys;
use crate::names::Names;
use crate::sync::InForce;

/// The text of the note. Its `version` is the number of the feed's last event: it grows with every change and survives
/// restarts.
pub fn text(
    (names, now_s): (&Names, u64),
    base: &str,
    policy: &InForce,
    keys: &IssuerKeys,
    view: &RevocationView,
    log_key: &VerifierKey,
) -> String {
    let mut out = origin(names.first());
    let _ = write!(out, "\nversion {}\nissuer {}\n", view.after(), names.now);
    for former in names.ending(now_s) {
        let _ = writeln!(out, "was {} {}", former.issuer, former.end_s());
    }
    let _ = write!(
        out,
        "policy {} {}\nepoch {}\n",
        policy.policy.version,
        policy.hash,
        view.epoch()
    );
    let mut algs: Vec<&str> = keys.heads.iter().map(|h| h.key.jwk.alg.as_str()).collect();
    algs.sort_unstable();
    let _ = writeln!(out, "algs {}", algs.join(" "));
    for key in &keys.validity {
        let end = key
            .end_s()
            .map_or_else(|| "-".to_owned(), |end| end.to_string());
        let state = if view.kid_revoked(&key.kid) {
            "revoked"
        } else {
            "good"
        };
        let _ = writeln!(
            out,
            "key {} {} {} {end} {state}",
            key.kid, key.alg, key.created_s
        );
    }
    let _ = writeln!(out, "jwks {base}/.well-known/jwks.json");
    if !keys.pq_jwks.keys.is_empty() {
        let _ = writeln!(out, "jwks-pq {base}/.well-known/jwks-pq.json");
    }
    let _ = write!(
        out,
        "status {base}/v1/passport/status/\nevents {base}/v1/passport/events\nrevocations {log_key}\n"
    );
    out
}

#[cfg(test)]
mod tests {
    use ron_proto::Timestamp;

    use super::*;
    use crate::keys::Validity;
    use crate::names::Former;

    #[test]
    fn the_text_says_what_verifiers_need_and_is_no_checkpoint() {
        let keys = IssuerKeys {
            validity: vec![Validity {
                kid: "K".to_owned(),
                alg: "EdDSA".to_owned(),
                created_s: 10,
                superseded_s: Some(20),
            }],
            ..IssuerKeys::default()
        };
        let origin = ron_auth::revocation_log::origin("http://i");
        let log_key = VerifierKey::ed25519(&origin, &[7; 32]).unwrap();
        let policy = crate::samples::in_force(4);
        let view = RevocationView::unchecked();
        let former = Former {
            issuer: "http://i".to_owned(),
            public_url: "http://i".to_owned(),
            keys: Vec::new(),
            moved: Timestamp(1_000),
        };
        let names = Names {
            now: "https://id.example".to_owned(),
            former: vec![former],
        };
        let text = text((&names, 0), "http://b", &policy, &keys, &view, &log_key);
        let read = ron_auth::PolicyNote::read(&text, "http://i").expect("verifiers can read it");
        assert_eq!(
            (read.version, read.kids().collect::<Vec<_>>()),
            (0, vec!["K"])
        );
        assert_eq!(read.log_key, Some(log_key));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "http://i/policy");
        assert_eq!(lines[1], "version 0");
        assert_eq!(lines[2], "issuer https://id.example");
        assert_eq!(lines[3], "was http://i 3721");
        assert!(lines.contains(&"key K EdDSA 10 3740 good"), "{text}");
        let named = format!("policy 4 {}", policy.hash);
        assert!(lines.contains(&&*named) && text.ends_with('\n'));
    }
}
