//! Why a caller was refused: a closed list, usable as a metric label, with a separate reason per
//! attack.

use std::fmt::Write as _;

use ron_proto::Problem;

/// The algorithms of DPoP proofs, as challenges and `dpop_signing_alg_values_supported` have them.
pub const PROOF_ALGS: [&str; 6] = ["EdDSA", "Ed25519", "ES256", "ES384", "RS256", "PS256"];

/// One cause of refusal. `Display` is the sentence for the caller; it names a rule, never any
/// input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum AuthReject {
    #[error(
        "send a passport (`ron token --audience SERVICE` prints one) or a service token in one Authorization: Bearer header"
    )]
    Missing,
    #[error("the Authorization header must be given once, as Bearer and one token")]
    Scheme,
    #[error("the token is longer than 4096 bytes, or than its ML-DSA signature explains")]
    Oversize,
    #[error("the token is not a compact JWS: three base64url parts of JSON, JSON and signature")]
    Malformed,
    #[error("the token repeats a JSON member, nests too deeply or is not exact JSON")]
    NotStrict,
    #[error("the token's alg is not one that is accepted here, or not that of its key")]
    Alg,
    #[error("this service asks for an ML-DSA signature, which the token lacks")]
    PostQuantum,
    #[error("the token's typ is not at+jwt")]
    Typ,
    #[error("the token's header carries a member that is not allowed; only alg, kid and typ are")]
    HeaderMember,
    #[error("the token's key is not, or no longer, one of the issuer's; get a new token")]
    UnknownKid,
    #[error("the token's signature does not verify")]
    Signature,
    #[error("a claim of the token is missing or has the wrong type")]
    Claims,
    #[error("the token was issued by another issuer")]
    Issuer,
    #[error("the token is for another service; get one whose audience is this service")]
    Audience,
    #[error("the token has expired; get a new one")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token's epoch has been closed")]
    Epoch,
    #[error("the token has been revoked; get a new one, if its holder may still have one")]
    Revoked,
    #[error(
        "the token is bound: send it as Authorization: DPoP with a DPoP proof of its key, or over TLS with its client certificate"
    )]
    Binding,
    #[error("the DPoP proof is malformed, or not for this method, this token and its key")]
    Proof,
    #[error(
        "the DPoP proof is for another URL: its htu must be a base URL of this service (its public_url) with this path"
    )]
    ProofPlace,
    #[error(
        "the DPoP proof is older than a minute or from the future; check the clock, and make one for each request"
    )]
    ProofTime,
    #[error("the DPoP proof was used before")]
    ProofReplay,
    #[error(
        "this client has sent more DPoP proofs within a minute than are kept for it; send fewer"
    )]
    ProofsFull,
    #[error(
        "the token's narrowing statements are not signed by its holders, or do not only narrow"
    )]
    Narrowing,
    #[error(
        "the service token is not known here; its SHA-256 must be listed in auth.principals of this service"
    )]
    ServiceToken,
    #[error(
        "service tokens are not accepted over plain TCP: use this service's Unix socket (uds_path) or TLS"
    )]
    PlainTcp,
    #[error(
        "service tokens are not accepted on the socket for local programs: use a passport, or the socket for services (uds_path)"
    )]
    ClientSocket,
    #[error("this service accepts no passports: it has no issuer configured")]
    NoIssuer,
    #[error("the issuer's keys have not been read yet; service tokens work")]
    NoKeys,
    #[error(
        "the service's date is in doubt since its start, so the validity of passports is not known; service tokens work"
    )]
    NoDate,
    #[error("the caller lacks the scope that this route requires")]
    Scope,
    #[error("a caveat of the token forbids this request")]
    Caveat,
    #[error("a caveat of the token is one that this service cannot enforce")]
    CaveatUnsupported,
    #[error("the token's own rate is used up")]
    Rate,
    #[error("the token's own budget is used up")]
    Budget,
}

impl AuthReject {
    pub const ALL: [AuthReject; 36] = [
        Self::Missing,
        Self::Scheme,
        Self::Oversize,
        Self::Malformed,
        Self::NotStrict,
        Self::Alg,
        Self::PostQuantum,
        Self::Typ,
        Self::HeaderMember,
        Self::UnknownKid,
        Self::Signature,
        Self::Claims,
        Self::Issuer,
        Self::Audience,
        Self::Expired,
        Self::NotYet,
        Self::Epoch,
        Self::Revoked,
        Self::Binding,
        Self::Proof,
        Self::ProofPlace,
        Self::ProofTime,
        Self::ProofReplay,
        Self::ProofsFull,
        Self::Narrowing,
        Self::ServiceToken,
        Self::PlainTcp,
        Self::ClientSocket,
        Self::NoIssuer,
        Self::NoKeys,
        Self::NoDate,
        Self::Scope,
        Self::Caveat,
        Self::CaveatUnsupported,
        Self::Rate,
        Self::Budget,
    ];

    /// The word used in metrics, logs and `details.reason`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Scheme => "scheme",
            Self::Oversize => "oversize",
            Self::Malformed => "malformed",
            Self::NotStrict => "not_strict",
            Self::Alg => "alg",
            Self::PostQuantum => "post_quantum",
            Self::Typ => "typ",
            Self::HeaderMember => "header_member",
            Self::UnknownKid => "unknown_kid",
            Self::Signature => "signature",
            Self::Claims => "claims",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
            Self::Epoch => "epoch",
            Self::Revoked => "revoked",
            Self::Binding => "binding",
            Self::Proof => "proof",
            Self::ProofPlace => "proof_place",
            Self::ProofTime => "proof_time",
            Self::ProofReplay => "proof_replay",
            Self::ProofsFull => "proofs_full",
            Self::Narrowing => "narrowing",
            Self::ServiceToken => "service_token",
            Self::PlainTcp => "plain_tcp",
            Self::ClientSocket => "client_socket",
            Self::NoIssuer => "no_issuer",
            Self::NoKeys => "no_keys",
            Self::NoDate => "no_date",
            Self::Scope => "scope",
            Self::Caveat => "caveat",
            Self::CaveatUnsupported => "caveat_unsupported",
            Self::Rate => "rate",
            Self::Budget => "budget",
        }
    }

    /// 401 when the identity is missing or invalid, 403 when the request is not allowed, 429 when
    /// the token's own rate is used up, 503 while the issuer's keys have not been read
    /// or the date is not known.
    pub const fn status(self) -> u16 {
        match self {
            Self::Scope | Self::Caveat | Self::CaveatUnsupported | Self::Budget => 403,
            Self::Rate | Self::ProofsFull => 429,
            Self::NoKeys | Self::NoDate => 503,
            _ => 401,
        }
    }

    /// The problem document with the challenge of [`AuthReject::challenge`]; `scopes` are those that the
    /// token lacks, which the challenge then names (RFC 6750 section 3).
    pub fn challenging(self, dpop: bool, scopes: Option<&str>) -> Problem {
        let problem = self.problem();
        let Some(mut challenge) = self.challenge(dpop) else {
            return problem;
        };
        if let (Self::Scope, Some(scopes)) = (self, scopes) {
            let _ = write!(challenge, ", scope=\"{scopes}\"");
        }
        problem.with_challenge(challenge)
    }

    /// The value of `WWW-Authenticate`, by which standard clients decide what to do next (RFC 6750
    /// section 3, RFC 9449 section 7.1). `dpop` says whether the token came under that scheme. `None`
    /// for a refusal that no other token would change.
    fn challenge(self, dpop: bool) -> Option<String> {
        let error = match self {
            // Without a token there is no error to name.
            Self::Missing => return Some("Bearer".to_owned()),
            Self::Scheme => "invalid_request",
            Self::Proof | Self::ProofPlace | Self::ProofTime | Self::ProofReplay => {
                "invalid_dpop_proof"
            }
            Self::Scope | Self::Caveat | Self::CaveatUnsupported | Self::Budget => {
                "insufficient_scope"
            }
            _ if self.status() == 401 => "invalid_token",
            _ => return None,
        };
        // A bound token that was sent as Bearer needs the other scheme.
        Some(if dpop || self == Self::Binding {
            format!("DPoP algs=\"{}\", error=\"{error}\"", PROOF_ALGS.join(" "))
        } else {
            format!("Bearer error=\"{error}\"")
        })
    }

    /// The problem document for the caller.
    pub fn problem(self) -> Problem {
        let details = serde_json::json!({ "reason": self.reason() });
        let problem = match self.status() {
            403 => Problem::forbidden(self.to_string()),
            429 => {
                let mut problem = Problem::rate_limited(1);
                problem.detail = self.to_string();
                problem
            }
            503 => Problem::unavailable(self.to_string(), 2),
            _ => Problem::unauthorized(self.to_string()),
        };
        problem.with_details(details)
    }
}

impl From<AuthReject> for Problem {
    fn from(reject: AuthReject) -> Self {
        reject.problem()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_distinct_words_and_statuses_fit() {
        let mut words: Vec<&str> = AuthReject::ALL
            .iter()
            .map(|reject| reject.reason())
            .collect();
        assert!(
            words
                .iter()
                .all(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        );
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), AuthReject::ALL.len());
        for reject in AuthReject::ALL {
            let problem = reject.problem();
            assert_eq!(problem.status, reject.status(), "{reject:?}");
            assert_eq!(
                problem.details.as_deref(),
                Some(&serde_json::json!({ "reason": reject.reason() }))
            );
        }
        assert_eq!(AuthReject::NoKeys.problem().retry_after_s, Some(2));
    }

    #[test]
    fn challenges_name_scheme_and_error() {
        let check = |reject: AuthReject, dpop: bool, want: Option<&str>| {
            assert_eq!(reject.challenge(dpop).as_deref(), want, "{reject:?}");
        };
        check(AuthReject::Missing, false, Some("Bearer"));
        let expired = AuthReject::Expired;
        check(expired, false, Some("Bearer error=\"invalid_token\""));
        let bound = "DPoP algs=\"EdDSA Ed25519 ES256 ES384 RS256 PS256\", error=\"invalid_token\"";
        check(expired, true, Some(bound));
        check(AuthReject::Binding, false, Some(bound));
        let proof =
            "DPoP algs=\"EdDSA Ed25519 ES256 ES384 RS256 PS256\", error=\"invalid_dpop_proof\"";
        check(AuthReject::ProofTime, true, Some(proof));
        let scope = "Bearer error=\"insufficient_scope\"";
        check(AuthReject::Scope, false, Some(scope));
        check(AuthReject::Caveat, false, Some(scope));
        check(AuthReject::NoKeys, false, None);
        check(AuthReject::Rate, false, None);
        for reject in AuthReject::ALL {
            let wants = matches!(reject.status(), 401 | 403);
            assert_eq!(reject.challenge(false).is_some(), wants, "{reject:?}");
        }
    }
}
